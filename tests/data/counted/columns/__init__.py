"""A CUDA kernel that is never launched: the emulator counts its accesses."""

from pathlib import Path

from kernelwatch.plan.package import CudaSource

THREADS = 128


def cuda_source(op, rung, type):
    return CudaSource(
        name=f"{op}/{rung}",
        path=Path(__file__).with_name({("scale", "naive"): "scale.cu"}[op, rung]),
        entry="scale_naive",
        template=("float",),
        headers=(),
        macros={},
        types=(type, type),
        dims=("M", "N"),
        inputs=("M N",),
        output="M N",
        grid=lambda extents: ((extents["M"] * extents["N"] + THREADS - 1) // THREADS, 1, 1),
        block=(THREADS, 1),
    )
