"""A stand-in for the GPU: the .cu rungs, unmodified, compiled by g++ and run thread by thread on the CPU.

    >>> rung = gpukernels.rung("transpose", "padded")
    >>> out = load(rung, "float32")(a)          # on NumPy arrays, with the call of gpukernels.load's kernels
    >>> check(rung, "float32", [a])             # faults by name: source line, block, thread
    []
    >>> count(rung, "float32", {"M": 256, "N": 256}).global_store.per_request   # 32-byte sectors
    4.0

It needs g++ ($CXX, else g++), binutils and CUDA's own headers, no GPU and no driver. Inline PTX cannot run here: a
source keeps it in a small `__device__` wrapper with a host body under `#ifdef GPUKERNELS_HOST`; a rung without one is a
ToolMissing that says so.

What the stand-in does not know: caches; the time anything takes; races between blocks; what nvcc merges or splits
(write float4 where a 16-byte access is meant). Lanes whose loops run differently often between two barriers may be put
together in another way than the hardware does. Exact counts are those of one version of g++.
"""

from typing import TYPE_CHECKING

from benchmarks._emulator.counts import KINDS, Counts, Tally, count
from benchmarks._emulator.faults import Fault, check, run_checked

if TYPE_CHECKING:
    from benchmarks._emulator.machine.build import EmulatedKernel
    from gpukernels import Rung

__all__ = ["KINDS", "Counts", "Fault", "Tally", "check", "count", "load", "run_checked"]


def load(found: "Rung", type: str, edge: int | None = None) -> "EmulatedKernel":
    """The rung for one element type (and edge) as a callable on NumPy arrays: kernel(*inputs, out=None) -> out.

    Compiled once and kept in gpukernels' cache. Raises: KernelError where g++ does not compile it, or an operand does
    not fit; ToolMissing where this machine lacks g++ or CUDA's headers, or the rung cannot run on a CPU.
    """
    from benchmarks._emulator.machine.build import EmulatedKernel

    return EmulatedKernel(found, type, edge)
