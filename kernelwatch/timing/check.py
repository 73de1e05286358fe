"""The parts of a measurement that every device shares: its budget, the check of the output, the packages' versions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.problem import Array, Computation
from kernelwatch.system import installed

POISON = 0xA5


@dataclass(frozen=True)
class Budget:
    """How long a measurement takes: `samples` samples of about `sample_s` seconds each, with at least one launch.

    `clocks_mhz`: by the cell's key, the SM clock at which earlier processes measured it; no higher one is waited for.
    """

    samples: int
    sample_s: float
    clocks_mhz: Mapping[str, float] = field(default_factory=dict)


class WrongOutput(Exception):
    """A kernel's output differs from the reference."""


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
) -> str:
    """Why the outputs of a cell are wrong, "" if they are right.

    They are compared with the reference on the same inputs, within the bound if there is one. A NaN is wrong wherever
    the reference has a number. `xp`: the module of the arrays, NumPy or CuPy. `updated`: the names of the last arrays,
    which are inputs that were updated.
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
        rounded = want.astype(out.dtype) if computation.exact_bits and bound is None else want
        if why := _differs(out, rounded, bound, xp):
            shape = "(" + ", ".join(map(str, cell.shape)) + ("," if len(cell.shape) == 1 else "") + ")"
            return f"{cell.name} at {shape} {cell.type}: {why.format(which=which)}"
    return ""


def _differs(out: Array, expected: Array, bound: Array | None, xp: Any) -> str:
    """How many elements are wrong and which is the first, "" if none is."""
    same = out == expected
    if bound is not None:
        wide = np.complex128 if "c" in (out.dtype.kind, expected.dtype.kind) else np.float64
        with np.errstate(invalid="ignore"):  # inf - inf is NaN; `same` covers it
            error = abs(out.astype(wide) - expected.astype(wide))
        same = same | (error <= bound) | (xp.isnan(out.astype(wide)) & xp.isnan(expected.astype(wide)))
    wrong = ~same
    count = int(xp.count_nonzero(wrong))
    if not count:
        return ""
    at = np.unravel_index(int(xp.argmax(wrong)), out.shape)
    poison = np.frombuffer(bytes([POISON]) * out.dtype.itemsize, out.dtype)[0]
    bits = np.dtype(f"u{out.dtype.itemsize}") if out.dtype.itemsize <= 8 else out.dtype
    kept = int(xp.count_nonzero(wrong & (out.view(bits) == poison.view(bits))))
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
