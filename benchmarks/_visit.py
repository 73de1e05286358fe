"""What a visit to a cell has in common on every device: its budget, the check of the output, the versions in play."""

import hashlib
import importlib.metadata
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._cells import Cell
from benchmarks._ops import COMPUTES

POISON = 0xA5  # bytes that lie in an output before a kernel runs
POISON_OF_SUMS = 0xFF  # where an output need only be near: NaN, which is near nothing


@dataclass(frozen=True)
class Budget:
    """How long a visit to a cell takes: `samples` samples of about `sample_s` seconds, at least a launch each."""

    samples: int
    sample_s: float


class WrongOutput(Exception):
    """A kernel's output differs from the reference."""


class NotHere(Exception):
    """A cell cannot be measured here: no memory for it, or no cache that it fits in."""


def poison(cell: Cell) -> int:
    """The byte that a cell's output is filled with before its check."""
    return POISON_OF_SUMS if COMPUTES[cell.computes].bound else POISON


def why_wrong(cell: Cell, inputs: list[Any], out: Any, xp: Any) -> str:
    """Why `out` is not what the cell computes of `inputs`, "" where it is."""
    computes = COMPUTES[cell.computes]
    expected = computes.reference(*inputs)
    return describe_wrong(
        cell, out, expected, xp, computes.bound(cell.type, expected, *inputs) if computes.bound else None
    )


def describe_wrong(cell: Cell, out: Any, expected: Any, xp: Any, bound: Any = None) -> str:
    """Why `out` is wrong, "" where it is right; a NaN is wrong wherever the reference has a number.

    `bound`: how far each element may lie from the reference; None where it must be equal.
    """
    wrong = ~(out == expected) if bound is None else ~(abs(out - expected) <= bound)
    count = int(xp.count_nonzero(wrong))
    if not count:
        return ""
    at = np.unravel_index(int(xp.argmax(wrong)), out.shape)
    poisoned = np.frombuffer(bytes([poison(cell)]) * out.dtype.itemsize, out.dtype)[0]
    bits = np.dtype(f"u{out.dtype.itemsize}") if out.dtype.itemsize <= 8 else out.dtype
    kept = int(xp.count_nonzero(wrong & (out.view(bits) == poisoned.view(bits))))
    shape = "(" + ", ".join(map(str, cell.shape)) + ("," if len(cell.shape) == 1 else "") + ")"
    return (
        f"{cell.op}/{cell.rung} at {shape} {cell.type}: {count} of {out.size} elements wrong, "
        f"the first at {[int(i) for i in at]}; {kept} never written"
    )


def stick() -> str:
    """A hash of the stick's own files: figures taken with another stick are told apart by it."""
    here = Path(__file__).parent
    files = sorted(path for path in here.iterdir() if path.suffix in (".py", ".cu"))
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:16]


def packages() -> dict[str, str]:
    """The versions of what a figure may depend on, of those that are installed."""
    names = (
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
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
