"""The parts of a measurement that every device shares: the check of the output, the packages' versions."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.problem import Array, Computation
from kernelwatch.system import installed

MANTISSAS = {
    "float64": 52,
    "float32": 23,
    "float16": 10,
    "bfloat16": 7,
}  # bits of a float or of a complex number's part
GUARD_BYTES = 4096  # after the last output: a kernel that writes there is wrong
GUARD = 0x3C


class WrongOutput(Exception):
    """A kernel's output differs from the reference."""


def poison(dtype: np.dtype[Any], *key: int) -> np.unsignedinteger[Any]:
    """The bits of each element of an output before a kernel writes it: NaN if the type has one, so that what adds to an
    element is as wrong as what keeps it; else random, and never 0. Of a complex number these are the bits of each part.

    `key`: other numbers give other bits. The NaN is a signaling one, whose bits arithmetic changes, but no copy.
    """
    random, part = np.random.default_rng([0, *key]), dtype.itemsize // (2 if dtype.kind == "c" else 1)
    word = np.dtype(f"u{min(part, 8)}")
    least, most = (2 if dtype.kind == "b" else 1), int(np.iinfo(word).max)
    bits = int(random.integers(least, most, dtype=word, endpoint=True))
    if dtype.kind not in "biu":
        if mantissa := MANTISSAS.get(f"float{8 * part}" if dtype.kind == "c" else dtype.name):
            payload = bits % ((1 << (mantissa - 1)) - 1) + 1
            bits = (most >> 1) >> mantissa << mantissa | payload | bits & (1 << (8 * part - 1))
        elif dtype.itemsize == 1:
            with np.errstate(all="ignore"):
                every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
            nans = np.flatnonzero(np.isnan(every))
            bits = int(random.choice(nans)) if len(nans) else bits
        else:
            bits = most  # NaN in every format of IEEE's
    return cast("np.unsignedinteger[Any]", word.type(bits))


def poisoned(out: Array, key: tuple[int, ...]) -> None:
    """Poison a contiguous array of NumPy's or CuPy's, on the current stream."""
    bits = poison(out.dtype, *key)
    out.reshape(-1).view(bits.dtype)[...] = bits


def still_poisoned(out: Array, key: tuple[int, ...], xp: Any) -> Array:
    """Where an array is as `poisoned` left it."""
    bits = poison(out.dtype, *key)
    if bits.itemsize == out.dtype.itemsize:
        return out.view(bits.dtype) == bits
    parts = xp.ascontiguousarray(out).reshape(-1).view(bits.dtype).reshape(*out.shape, -1)
    return (parts == bits).all(axis=-1)


def beyond(cell: Cell, guard: NDArray[np.uint8]) -> str:
    """What to say of a launch that wrote to the bytes after its last output, "" if it did not. They held GUARD."""
    count = np.count_nonzero(guard != GUARD)
    return f"{cell.name} wrote {count} of the {GUARD_BYTES} bytes after its output" if count else ""


def outputs(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    """The result of a reference or a bound, one array or a tuple of them, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def describe_wrong(
    cell: Cell,
    computation: Computation,
    inputs: Iterable[Array],
    outs: Iterable[Array],
    scalars: dict[str, Any],
    xp: Any,
    updated: Sequence[str] = (),
    key: tuple[int, ...] = (),
) -> str:
    """Why the outputs of a cell are wrong, "" if they are right.

    They are compared with the reference on the same inputs, within the bound if there is one. A NaN is wrong wherever
    the reference has a number. `xp`: the module of the arrays, NumPy or CuPy. `updated`: the names of the last arrays,
    which are inputs that were updated. `key`: of the poison that the outputs held before.
    """
    operands, outs = list(inputs), list(outs)
    expected = outputs(computation.reference(*operands, **scalars))
    bounds: tuple[Array | None, ...] = (None,) * len(outs)
    if computation.bound:
        bounds = outputs(computation.bound(cell.type, *operands, **scalars))
    if not len(outs) == len(expected) == len(bounds):
        raise ValueError(
            f"{cell.name}: the reference returns {len(expected)} arrays, the bound {len(bounds)}; the outputs and the "
            f"updated inputs are {len(outs)}"
        )
    for at, (out, want, bound) in enumerate(zip(outs, expected, bounds, strict=True)):
        own = len(outs) - len(updated)
        which = f" of {updated[at - own]}" if at >= own else f" of output {at}" if len(outs) > 1 else ""
        # An exact number may have had to be rounded once.
        rounded = want.astype(out.dtype, copy=False) if computation.exact_bits and bound is None else want
        if why := _differs(out, rounded, bound, key, xp):
            return f"{cell.name} at {cell.shape} {cell.type}: {why.format(which=which)}"
    return ""


def _differs(out: Array, expected: Array, bound: Array | None, key: tuple[int, ...], xp: Any) -> str:
    """How many elements are wrong and which is the first, "" if none is."""
    with np.errstate(invalid="ignore"):  # the poison; inf - inf is NaN, and `same` covers it
        if bound is None:
            same = out == expected
        else:
            wide = np.complex128 if "c" in (out.dtype.kind, expected.dtype.kind) else np.float64
            error = abs(xp.subtract(out, expected, dtype=wide))
            same = error <= bound
        if int(xp.count_nonzero(same)) == same.size:  # nearly always
            return ""
        if bound is not None:
            same = same | (out == expected) | (xp.isnan(out.astype(wide)) & xp.isnan(expected.astype(wide)))
    wrong = ~same
    count = int(xp.count_nonzero(wrong))
    if not count:
        return ""
    at = np.unravel_index(int(xp.argmax(wrong)), out.shape)
    kept = int(xp.count_nonzero(wrong & still_poisoned(out, key, xp)))
    beyond = ""
    if bound is not None:
        most = float(xp.broadcast_to(xp.asarray(bound), out.shape)[at])
        beyond = f", off by {float(error[at]):.3g} where {most:.3g} is allowed"
    return (
        f"{count} of {out.size} elements{{which}} wrong, the first at {[int(i) for i in at]}{beyond}; "
        f"{kept} never written"
    )


PACKAGES = (
    "numpy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
)


def packages(others: Iterable[str] = ()) -> dict[str, str]:
    """The versions of the installed packages on which a figure may depend: the engine's own, and `others`."""
    return installed.versions(dict.fromkeys([*PACKAGES, *others]))
