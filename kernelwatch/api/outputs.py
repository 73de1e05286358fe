"""Whether two functions compute the same: what they return, and what they leave in the arrays that they were given."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwatch.api.arguments import device_of
from kernelwatch.api.rounds import Timer

Values = list[Any]  # of NumPy's arrays


class Outputs(NamedTuple):
    """What a call returned, and its arrays afterwards. `wrote`: whether it returned or changed anything."""

    returned: Values
    arrays: Values
    wrote: bool


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
    returned, after = values(result), values(copies)
    changed = any(differ(*pair, 0, 0) for pair in zip(before, after, strict=True))
    return Outputs(returned, after, bool(returned) or changed)


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
    for what, mine, theirs in (
        ("output", own.returned, expected.returned),
        ("array argument", own.arrays, expected.arrays),
    ):
        for at, pair in enumerate(zip(theirs, mine, strict=True)):
            if why := differ(*pair, rtol, atol):
                return f"{what} {at}: {why}"
    return ""


def differ(expected: Any, own: Any, rtol: float, atol: float, xp: Any = np) -> str:
    """How many elements of an array are wrong and which is the first, "" if none is. `xp`: the module of both arrays,
    NumPy or CuPy."""
    if own.shape != expected.shape or own.dtype != expected.dtype:
        kinds = [f"{one.dtype} of shape {one.shape}" for one in (own, expected)]
        return f"it is {kinds[0]}, {kinds[1]} is expected"
    right = own == expected
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
