"""A stand-in for the GPU: the .cu rungs, unmodified, compiled by g++ and run thread by thread on the CPU.

    >>> rung = gpukernels.rung("transpose", "padded")
    >>> out = load(rung, "float32")(a)          # on NumPy arrays, with the call of gpukernels.load's kernels
    >>> check(rung, "float32", [a])             # faults by name: source line, block, thread
    []
    >>> count(rung, "float32", {"M": 256, "N": 256}).global_store.per_request   # 32-byte sectors
    4.0

It needs g++ ($CXX, else g++), binutils and CUDA's own headers, no GPU and no driver. Inline PTX cannot run here: a source
keeps it in a small `__device__` wrapper with a host body under `#ifdef GPUKERNELS_HOST`; a rung without one is a
ToolMissing that says so. What the stand-in does not know: caches, the time anything takes, races between blocks, what
nvcc merges (write float4 where a 16-byte access is meant); lanes whose loops run differently often between two barriers
may be put together in another way than the hardware does.
"""

from benchmarks._emulator.build import EmulatedKernel, load
from benchmarks._emulator.counts import Counts, Tally, count
from benchmarks._emulator.faults import Fault, check

__all__ = ["Counts", "EmulatedKernel", "Fault", "Tally", "check", "count", "load"]
