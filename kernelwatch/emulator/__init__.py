"""The emulator stands in for a GPU: g++ compiles unmodified CUDA C++, and the CPU runs it thread by thread.

    >>> source = package.cuda_source("transpose", "padded", "float32")
    >>> out = load(source)(a)              # on NumPy arrays
    >>> check(source, [a])                 # faults by name: source line, block, thread
    []
    >>> count(source, {"M": 256, "N": 256}).global_store.per_request   # 32-byte sectors
    4.0

It needs a C++ compiler ($CXX, or else g++), binutils and CUDA's own headers, but no GPU and no driver. Inline PTX
cannot run here: a source keeps it in a small `__device__` wrapper with a host body under `#ifdef KERNELWATCH_HOST`. A
kernel without a host body raises ToolMissing.

The emulator does not model caches, time, races between blocks, or accesses that nvcc merges or splits (write float4 if
you mean a 16-byte access). If the lanes of a warp run a loop a different number of times between two barriers, it may
group their accesses differently than the hardware. Counts are exact for one version of g++.
"""

from kernelwatch.emulator.build import CompileError, EmulatedKernel
from kernelwatch.emulator.counts import KINDS, Counts, Tally, count, count_on
from kernelwatch.emulator.faults import Emulated, Fault, Faulty, check

__all__ = [
    "KINDS",
    "CompileError",
    "Counts",
    "Emulated",
    "EmulatedKernel",
    "Fault",
    "Faulty",
    "Tally",
    "check",
    "count",
    "count_on",
    "load",
]

load = Emulated
