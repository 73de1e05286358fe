"""A round: some samples of one callable over fresh copies of its arguments. What a device must offer to take rounds."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelwatch.api.arguments import Rotation
from kernelwatch.api.result import MeasureError

LATER = (Awaitable, Generator, AsyncGenerator, Future, map, filter, zip)  # compute when somebody asks for the result
Sets = Sequence[tuple[Any, ...]]  # of arguments


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

    def round(self, sets: Sets) -> Round: ...

    def used(self, sets: Sets) -> Sets:
        """The sets over which the rounds go."""
        ...

    def again(self) -> Mapping[int, object] | None:
        """Do what was timed last once more, and wait: what it returned by the number of the set; None if nothing of it
        is kept."""
        ...

    def once(self, sets: Sets, between: Callable[[], object] | None = None) -> tuple[float, Mapping[int, object]]:
        """Call the function over each set once, as rounds do: the seconds of a call, and what was returned by the
        number of the set. `between`: the sets are gone over once before, then this happens; the seconds are no figure
        then."""
        ...


class Timer(Protocol):
    """A device. `renews`: whether each round gets new copies of the arguments. `xp`: the module of its arrays."""

    device: str
    name: str
    renews: bool

    @property
    def xp(self) -> Any: ...

    def subject(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> Subject: ...

    def rotation(self, arguments: Sequence[object], cache: str) -> Rotation: ...

    def current(self) -> AbstractContextManager[None]: ...

    def disturbed(self) -> str: ...

    def memory_errors(self) -> int:
        """The uncorrected errors of the device's memory since its driver's start, as far as that is known."""
        ...

    def conditions(self) -> dict[str, Any]: ...


def returned_bytes(name: str, result: object, arguments: Sequence[object]) -> int:
    """The bytes of the arrays that a call of a function returned and that are none of its arguments.

    Raises: MeasureError if the call has not computed its result.
    """
    if isinstance(result, LATER):
        if isinstance(result, Coroutine):
            result.close()  # else Python says that nobody waited for it
        raise MeasureError(
            f"{name} returns a {type(result).__name__}, which is computed later: measure a function that waits for the "
            "result, such as by list() or asyncio.run()"
        )
    results = result if isinstance(result, tuple | list) else (result,)
    given = {address(one) for one in arguments}
    return sum(one.nbytes for one in results if (at := address(one)) is not None and at not in given)


def address(array: Any) -> int | None:
    """Where the first element of an array is; None if it is none, or hands out bytes, as an image of Pillow does. A
    type has these attributes, too, and a proxy may have any."""
    if isinstance(array, type):
        return None
    if hasattr(type(array), "data_ptr"):
        return int(array.data_ptr())
    for name in ("__array_interface__", "__cuda_array_interface__"):
        interface = getattr(array, name, None)
        if isinstance(interface, dict):
            data = interface.get("data")
            return int(data[0]) if isinstance(data, tuple) else None
    return None
