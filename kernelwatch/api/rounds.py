"""A round: some samples of one callable over fresh copies of its arguments. What a device must offer to take rounds."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelwatch.api.arguments import Rotation


@dataclass(frozen=True)
class Round:
    """`seconds` of a call, the number of calls, the SM clock in MHz if it is known, and the limits that were met."""

    seconds: float
    calls: int
    clock_mhz: float | None = None
    limits: tuple[str, ...] = field(default=())


class Subject(Protocol):
    """A callable on a device, that was called and looked at.

    `method`: how it is timed. `warnings`: what was noticed. `returned`: bytes of the arrays that a call makes.
    `peak_allocated_bytes`: the most device memory that a call allocates at once, None on a CPU.
    """

    method: str
    warnings: list[str]
    returned: int
    peak_allocated_bytes: int | None

    def round(self, sets: Sequence[tuple[Any, ...]]) -> Round: ...


class Timer(Protocol):
    """A device. `renews`: whether each round gets new copies of the arguments."""

    device: str
    name: str
    renews: bool

    def subject(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> Subject: ...

    def rotation(self, arguments: Sequence[object], cache: str) -> Rotation: ...

    def current(self) -> AbstractContextManager[None]: ...

    def disturbed(self) -> str: ...

    def conditions(self) -> dict[str, Any]: ...


def returned_bytes(result: object, arguments: Sequence[object]) -> int:
    """The bytes of the arrays that a call returned and that are none of its arguments."""
    results = result if isinstance(result, tuple | list) else (result,)
    given = {_address(one) for one in arguments}
    return sum(one.nbytes for one in results if (at := _address(one)) is not None and at not in given)


def _address(array: Any) -> int | None:
    """Where the first element of an array is; None if it is none."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    for name in ("__array_interface__", "__cuda_array_interface__"):
        if hasattr(array, name):
            return int(getattr(array, name)["data"][0])
    return None
