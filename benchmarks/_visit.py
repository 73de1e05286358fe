"""What a visit to a cell has in common on every device: its budget, the check of the output, the versions in play."""

import importlib.metadata
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._cells import Cell

POISON = 0xA5


@dataclass(frozen=True)
class Budget:
    """How long a visit to a cell takes: `samples` samples of about `sample_s` seconds, at least a launch each."""

    samples: int
    sample_s: float


class WrongOutput(Exception):
    """A kernel's output differs from the reference."""


class NotHere(Exception):
    """A cell cannot be measured here: no memory for it, or no cache that it fits in."""


def describe_wrong(cell: Cell, out: Any, expected: Any, xp: Any) -> str:
    """Why `out` is wrong, "" where it is right; a NaN is wrong wherever the reference has a number."""
    wrong = ~(out == expected)
    count = int(xp.count_nonzero(wrong))
    if not count:
        return ""
    at = np.unravel_index(int(xp.argmax(wrong)), out.shape)
    poison = np.frombuffer(bytes([POISON]) * out.dtype.itemsize, out.dtype)[0]
    bits = np.dtype(f"u{out.dtype.itemsize}") if out.dtype.itemsize <= 8 else out.dtype
    kept = int(xp.count_nonzero(wrong & (out.view(bits) == poison.view(bits))))
    shape = "(" + ", ".join(map(str, cell.shape)) + ("," if len(cell.shape) == 1 else "") + ")"
    return (
        f"{cell.op}/{cell.rung} at {shape} {cell.type}: {count} of {out.size} elements wrong, "
        f"the first at {[int(i) for i in at]}; {kept} never written"
    )


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
