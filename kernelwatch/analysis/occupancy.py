"""Theoretical occupancy, by NVIDIA's own calculator (cuda_occupancy.h) compiled for this machine's CPU."""

import ctypes
import subprocess
from collections.abc import Callable
from functools import cache as cached
from pathlib import Path

from kernelwatch.plan.package import NotHere
from kernelwatch.system import cache, tools
from kernelwatch.system.errors import ToolMissing

# Architecture -> maximum threads per SM; shared memory per SM, maximum shared memory per block, and shared memory
# reserved in each block, in bytes. From 8.0 on, 1 KiB is reserved. All architectures have 64 Ki registers per SM.
# Source: NVIDIA, CCCL, cuda/__device/arch_traits.h (CuPy ships it).
KIB = 1024
LIMITS = {
    "sm_75": (1024, 64 * KIB, 64 * KIB, 0),
    "sm_80": (2048, 164 * KIB, 163 * KIB, KIB),
    "sm_86": (1536, 100 * KIB, 99 * KIB, KIB),
    "sm_89": (1536, 100 * KIB, 99 * KIB, KIB),
    "sm_90": (2048, 228 * KIB, 227 * KIB, KIB),
    "sm_100": (2048, 228 * KIB, 227 * KIB, KIB),
    "sm_120": (1536, 100 * KIB, 99 * KIB, KIB),
}
ARCHES = tuple(LIMITS)

CALCULATOR = """
#include <cuda_occupancy.h>
int active_blocks(int major, int minor, int threads_sm, int shared_sm, int shared_block_most, int reserved,
                  int registers, int static_shared, int dynamic_shared, int block_threads) {
    cudaOccDeviceProp sm = {0};
    cudaOccFuncAttributes kernel = {0};
    cudaOccDeviceState state = {0};
    cudaOccResult result;
    sm.computeMajor = major, sm.computeMinor = minor;
    sm.maxThreadsPerBlock = 1024, sm.maxThreadsPerMultiprocessor = threads_sm;
    sm.regsPerBlock = sm.regsPerMultiprocessor = 65536, sm.warpSize = 32;
    sm.sharedMemPerBlock = 49152, sm.sharedMemPerMultiprocessor = shared_sm, sm.numSms = 1;
    sm.sharedMemPerBlockOptin = shared_block_most, sm.reservedSharedMemPerBlock = reserved;
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = static_shared;
    kernel.numBlockBarriers = 1;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;  // more than 48 KiB, which a launch may ask for
    kernel.maxDynamicSharedSizeBytes = dynamic_shared;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &sm, &kernel, &state, block_threads, dynamic_shared);
    return error ? -1 : result.activeBlocksPerMultiprocessor;
}
"""


FLAGS = ("-O1", "-shared", "-fPIC")


@cached
def calculator() -> Callable[..., int]:
    """`active_blocks` of CALCULATOR, compiled. Raises: ToolMissing."""
    headers = [folder for folder in tools.cuda_headers() if Path(folder, "cuda_occupancy.h").is_file()]
    if not headers:
        raise ToolMissing("no cuda_occupancy.h is found (pip install nvidia-cuda-runtime)")
    compiler = tools.c_compiler()

    def build(path: Path) -> set[Path]:
        source = path.with_suffix(".c")
        source.write_text(CALCULATOR)
        rule = path.with_suffix(".d")
        command = [*compiler.command, *FLAGS, f"-I{headers[0]}", "-MD", "-MF", str(rule), "-o", str(path), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolMissing(f"{compiler.command[0]} does not compile cuda_occupancy.h: {done.stderr.strip()}")
        return tools.read_by(rule) - {source}

    key = tools.digest("occupancy", CALCULATOR, *FLAGS, headers[0], compiler.key)
    function: Callable[..., int] = ctypes.CDLL(str(cache.built(key, ".so", build))).active_blocks
    return function


def occupancy(arch: str, registers: int, static_shared: int, dynamic_shared: int, block_threads: int) -> float:
    """Theoretical occupancy in percent: the warps of all blocks that fit on an SM, over the SM's maximum. 0 if no block
    fits. Raises: ToolMissing; NotHere if the calculator does not know the architecture."""
    number = int(arch[3:])
    blocks = calculator()(
        number // 10, number % 10, *LIMITS[arch], registers, static_shared, dynamic_shared, block_threads
    )
    if blocks < 0:
        raise NotHere(f"cuda_occupancy.h does not know {arch}")
    return 100 * blocks * -(-block_threads // 32) / (LIMITS[arch][0] // 32)
