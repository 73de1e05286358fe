"""Whether two functions compute the same: what they return, and what they leave in the arrays that they were given."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from kernelwatch.api.arguments import device_of
from kernelwatch.api.rounds import Timer, address

Values = list[Any]  # of NumPy's arrays
Steps = tuple[int, ...]  # the strides of an array in bytes
SHOWN = 60  # characters of a text
LIBRARIES = (("cupy", "ndarray"), ("torch", "Tensor"))


class Outputs(NamedTuple):
    """What a call returned, and its arrays afterwards. `wrote`: whether it returned or changed anything. `kinds`: what
    is unusual about the types of the arrays that it returned. `steps`: the strides of those that have dimensions.
    `views`: which array arguments share memory with what it returned. `form`: of what it returned, each place that
    holds something, and what: "" for an array or number of `returned`, text as it is. `unknown`: what nobody compares,
    by place."""

    returned: Values
    arrays: Values
    wrote: bool
    kinds: tuple[str, ...] = ()
    steps: tuple[Steps, ...] = ()
    views: frozenset[int] = frozenset()
    form: tuple[tuple[str, str], ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()


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
    return own._replace(wrote=bool(own.form) or changed)


def left(result: object, arguments: Sequence[object]) -> Outputs:
    """What a call left that was made: its result, and what is in its arguments."""
    own, given = arrays(result), [arrays(one) for one in arguments]
    views = {at for at, ones in enumerate(given) if any(_overlap(mine, one) for mine in own for one in ones)}
    steps = tuple(_steps(one) for one in own if len(one.shape))
    return Outputs(
        values(result), values(tuple(arguments)), True, tuple(map(_kind, own)), steps, frozenset(views), *_form(result)
    )


def _parts(result: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """What a result holds, by place: tuples, lists, dictionaries and arrays of Python's objects are gone through."""
    if isinstance(result, np.ndarray) and result.dtype.hasobject:
        result = result.tolist()
    if isinstance(result, dict):  # in an order that follows from the keys
        own = sorted(((f"[{key!r}]", one) for key, one in result.items()), key=lambda item: item[0])
    elif isinstance(result, tuple | list):
        own = [(f"[{at}]", one) for at, one in enumerate(result)]
    else:
        yield place, result
        return
    for key, one in own:
        yield from _parts(one, place + key)


def arrays(result: object) -> list[Any]:
    """The arrays of a result themselves."""
    return [one for _, one in _parts(result) if device_of(one)]


def values(result: object) -> Values:
    """The arrays and numbers of a result, as NumPy's arrays of their own."""
    return [np.array(one) if _is_number(one) else _on_host(one) for _, one in _parts(result) if _is_value(one)]


def _is_value(one: object) -> bool:
    return _is_number(one) or bool(device_of(one))


def _is_number(one: object) -> bool:
    return isinstance(one, bool | int | float | complex | np.generic)


def _form(result: object) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """`form` and `unknown` of a result."""
    form, unknown = [], []
    for place, one in _parts(result):
        if _is_value(one):
            form.append((place, ""))
        elif isinstance(one, str | bytes | bytearray | Number):  # such as a fraction
            form.append((place, repr(one)))
        elif one is not None:
            unknown.append((place, f"{type(one).__module__}.{type(one).__qualname__}"))
    return tuple(form), tuple(unknown)


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
    if why := _why_other_form(expected, own):
        return why
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


def _why_other_form(expected: Outputs, own: Outputs) -> str:
    if len(own.returned) != len(expected.returned):
        return f"it returns {len(own.returned)} arrays and numbers, {len(expected.returned)} are expected"
    mine, theirs = dict(own.form), dict(expected.form)
    for place in dict.fromkeys((*theirs, *mine)):
        if mine.get(place) != theirs.get(place):
            where = f" at {place}" if place else ""
            return f"it returns {_what(mine.get(place))}{where}, {_what(theirs.get(place))} is expected"
    return ""


def _what(form: str | None) -> str:
    """What a place of a result holds, as in `form`."""
    if not form:
        return "nothing that is compared" if form is None else "an array or number"
    return form if len(form) <= SHOWN else f"{form[:SHOWN]}..."


def differ(expected: Any, own: Any, rtol: float, atol: float, xp: Any = np) -> str:
    """How many elements of an array are wrong and which is the first, "" if none is. `xp`: the module of both arrays,
    NumPy or CuPy."""
    if own.shape != expected.shape or own.dtype != expected.dtype:
        kinds = [f"{one.dtype} of shape {one.shape}" for one in (own, expected)]
        return f"it is {kinds[0]}, {kinds[1]} is expected"
    if any(isinstance(one, np.ma.MaskedArray) for one in (own, expected)):  # what is masked equals everything
        if why := differ(np.ma.getmaskarray(expected), np.ma.getmaskarray(own), 0, 0):
            return f"its mask: {why}"
        expected, own = (np.ma.filled(one, 0) for one in (expected, own))
    if own.dtype.names:
        fields = ((name, differ(expected[name], own[name], rtol, atol)) for name in own.dtype.names)
        return next((f"field {name}: {why}" for name, why in fields if why), "")
    with np.errstate(all="ignore"):  # inf - inf is NaN, which is near nothing
        right = (own == expected) | ((own != own) & (expected != expected))  # noqa: PLR0124 (NaN, of any type)
        if own.dtype.kind not in "SUMmO" and (own.dtype.kind not in "biu" or rtol or atol):
            size = abs(expected.astype(_wide(expected)))
            right = right | (_apart(expected, own, xp) <= atol + rtol * xp.where(xp.isfinite(size), size, 0))
    if right.all():
        return ""
    at = np.unravel_index(int(right.argmin()), own.shape)
    return (
        f"{right.size - int(xp.count_nonzero(right))} of {own.size} elements wrong, the first at "
        f"{[int(i) for i in at]}: {own[at]} is not {expected[at]}"
    )


def _wide(array: Any) -> Any:
    """A type of numbers that is at least as exact, and that NumPy can calculate with."""
    if array.dtype.kind in "fc":
        return np.promote_types(array.dtype, np.complex128 if array.dtype.kind == "c" else np.float64)
    return np.float64  # of an integer; of a type that NumPy itself lacks, such as bfloat16


def _apart(a: Any, b: Any, xp: Any) -> Any:
    """How far numbers are from each other. A float64 would round large integers, and take different ones as equal."""
    if a.dtype.kind in "biu":
        return xp.maximum(a, b).astype(np.uint64) - xp.minimum(a, b).astype(np.uint64)
    return abs(a.astype(_wide(a)) - b.astype(_wide(b)))
