"""Whether two functions compute the same: what they return, and what they leave in the arrays that they were given."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwatch.api.arguments import device_of
from kernelwatch.api.rounds import Timer, address

Values = list[Any]  # of NumPy's arrays
Steps = tuple[int, ...]  # the strides of an array in bytes
LIBRARIES = (("cupy", "ndarray"), ("torch", "Tensor"))


class Outputs(NamedTuple):
    """What a call returned, and its arrays afterwards. `wrote`: whether it returned or changed anything. `kinds`: what
    is unusual about the types of the arrays that it returned. `steps`: the strides of those that have dimensions.
    `views`: which array arguments share memory with what it returned."""

    returned: Values
    arrays: Values
    wrote: bool
    kinds: tuple[str, ...] = ()
    steps: tuple[Steps, ...] = ()
    views: frozenset[int] = frozenset()


def outputs(
    timer: Timer,
    function: Callable[..., object],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    cache: str,
) -> Outputs:
    """The outputs of a call on copies of its arrays. Raises: MeasureError if no copy can be made; whatever the function
    raises."""
    rotation = timer.rotation((*arguments, *keywords.values()), cache)
    rotation.sets = min(1, rotation.sets)
    (copies,) = rotation.fresh()
    before = values(copies)
    result = function(*copies[: len(arguments)], **dict(zip(keywords, copies[len(arguments) :], strict=True)))
    own = left(result, copies)
    changed = any(differ(*pair, 0, 0) for pair in zip(before, own.arrays, strict=True))
    return own._replace(wrote=bool(own.returned) or changed)


def left(result: object, arguments: Sequence[object]) -> Outputs:
    """What a call left that was made: its result, and what is in its arguments."""
    own, given = arrays(result), [arrays(one) for one in arguments]
    views = {at for at, ones in enumerate(given) if any(_overlap(mine, one) for mine in own for one in ones)}
    steps = tuple(_steps(one) for one in own if len(one.shape))
    return Outputs(values(result), values(tuple(arguments)), True, tuple(map(_kind, own)), steps, frozenset(views))


def arrays(result: object) -> list[Any]:
    """The arrays of a result themselves; tuples, lists and dictionaries are gone through."""
    if isinstance(result, dict | tuple | list):
        return [each for own in (result.values() if isinstance(result, dict) else result) for each in arrays(own)]
    return [result] if device_of(result) else []


def _kind(array: Any) -> str:
    """The type of an array, "" if that is a library's own: any other may compute when it is read."""
    usual = [np.ndarray, *(getattr(sys.modules.get(module), kind, None) for module, kind in LIBRARIES)]
    name = f"{type(array).__module__}.{type(array).__qualname__}"
    if type(array) not in usual:
        return name
    return f"{name} with attributes of its own" if getattr(array, "__dict__", None) else ""


def _overlap(a: Any, b: Any) -> bool:
    (first, last), (start, end) = _reach(a), _reach(b)
    return first < end and start < last


def _reach(array: Any) -> tuple[int, int]:
    """From which address an array goes to which; (0, 0) if it has no elements or does not say where it is."""
    at = address(array)
    if at is None or 0 in tuple(array.shape):
        return 0, 0
    itemsize = int(array.element_size() if hasattr(array, "data_ptr") else array.dtype.itemsize)
    reach = [(extent - 1) * step for extent, step in zip(array.shape, _steps(array), strict=True)]
    return at + sum(min(0, far) for far in reach), at + sum(max(0, far) for far in reach) + itemsize


def _steps(array: Any) -> Steps:
    """The strides of an array, 0 where it has a single row, whose stride says nothing."""
    if hasattr(array, "data_ptr"):
        steps = [step * array.element_size() for step in array.stride()]
    else:
        steps = getattr(array, "strides", None) or [0] * len(array.shape)  # of a library that does not tell
    return tuple(int(step) if extent > 1 else 0 for extent, step in zip(array.shape, steps, strict=True))


def values(result: object) -> Values:
    """The arrays and numbers of a result, as NumPy's arrays of their own; tuples, lists and dictionaries are gone
    through, anything else is left out."""
    if isinstance(result, dict):
        return [each for own in result.values() for each in values(own)]
    if isinstance(result, tuple | list):
        return [each for own in result for each in values(own)]
    if isinstance(result, bool | int | float | complex | np.generic):
        return [np.array(result)]
    return [_on_host(result)] if device_of(result) else []


def _on_host(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array.copy()
    if hasattr(array, "detach"):  # PyTorch's, which has types that NumPy lacks
        import torch

        own = array.detach().cpu()
        lacks = own.dtype.is_floating_point and own.dtype not in (torch.float16, torch.float32, torch.float64)
        return np.array((own.float() if lacks else own).resolve_conj().resolve_neg().numpy())
    if device_of(array) == "cpu":
        return np.array(array if hasattr(array, "__array_interface__") else np.from_dlpack(array))
    import cupy  # type: ignore[import-not-found,unused-ignore]

    return cupy.asnumpy(array if hasattr(array, "__cuda_array_interface__") else cupy.from_dlpack(array))


def why_other(expected: Outputs, own: Outputs, rtol: float, atol: float) -> str:
    """Why outputs are not the expected ones, "" if they are. An element may be off by `atol` + `rtol` times the size of
    the expected one; NaN is right where NaN is expected."""
    if len(own.returned) != len(expected.returned):
        return f"it returns {len(own.returned)} arrays and numbers, {len(expected.returned)} are expected"
    for at, (kind, usual) in enumerate(zip(own.kinds, expected.kinds, strict=False)):
        if kind not in ("", usual):
            return f"output {at} is a {kind}, which may compute when it is read"
    if shared := sorted(own.views - expected.views):
        return f"it returns memory of argument {shared[0]}, a view; the original returns memory of its own"
    for what, mine, theirs in (
        ("output", own.returned, expected.returned),
        ("array argument", own.arrays, expected.arrays),
    ):
        for at, pair in enumerate(zip(theirs, mine, strict=True)):
            if why := differ(*pair, rtol, atol):
                return f"{what} {at}: {why}"
    for at, (steps, usual_steps) in enumerate(zip(own.steps, expected.steps, strict=True)):
        if steps != usual_steps:
            return (
                f"output {at} has strides {steps}, the original's has {usual_steps} in bytes: whoever reads it would "
                "do the rest of the work; return it in that order, such as a copy"
            )
    return ""


def differ(expected: Any, own: Any, rtol: float, atol: float, xp: Any = np) -> str:
    """How many elements of an array are wrong and which is the first, "" if none is. `xp`: the module of both arrays,
    NumPy or CuPy."""
    if own.shape != expected.shape or own.dtype != expected.dtype:
        kinds = [f"{one.dtype} of shape {one.shape}" for one in (own, expected)]
        return f"it is {kinds[0]}, {kinds[1]} is expected"
    right = own == expected
    if right.all():
        return ""
    is_number = own.dtype.names is None and own.dtype.kind not in "SUMm"
    if is_number and (own.dtype.kind not in "biu" or rtol or atol):
        wide = np.complex128 if own.dtype.kind == "c" else np.float64
        mine, theirs = own.astype(wide), expected.astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, which is near nothing
            near = abs(mine - theirs) <= atol + rtol * xp.where(xp.isfinite(theirs), abs(theirs), 0)
        right = right | near | (xp.isnan(mine) & xp.isnan(theirs))
    if right.all():
        return ""
    at = np.unravel_index(int(right.argmin()), own.shape)
    return (
        f"{right.size - int(xp.count_nonzero(right))} of {own.size} elements wrong, the first at "
        f"{[int(i) for i in at]}: {own[at]} is not {expected[at]}"
    )
