"""Tests that need much of a GPU's memory take turns: several processes of pytest may share a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALONE = 0.95  # of the GPU's memory is free: nobody else uses it


@contextmanager
def gpu_memory(needed: int) -> Iterator[None]:
    """Hold the GPU's memory among the processes of this session, which share the folder of compiled kernels.

    Skips if `needed` bytes are not free, and if memory runs out while others use the GPU. A GPU that nobody else uses
    must have enough: there the error stays.
    """
    import cupy
    from filelock import FileLock  # not at the top: the gate's tests on a CPU need none

    with FileLock(Path(os.environ["GPUKERNELS_CACHE"]).parent / "gpu_memory.lock"):
        pool = cupy.get_default_memory_pool()
        pool.free_all_blocks()
        free, total = cupy.cuda.runtime.memGetInfo()
        if free < needed:
            pytest.skip(f"needs {needed / 2**30:.0f} GiB of GPU memory, {free / 2**30:.0f} GiB are free")
        try:
            yield
        except cupy.cuda.memory.OutOfMemoryError as error:
            if free >= ALONE * total:
                raise
            message = f"others use the GPU, {free / 2**30:.0f} of {total / 2**30:.0f} GiB were free: {error}"
            raise pytest.skip.Exception(message) from None  # the frames of the error hold arrays
        finally:
            pool.free_all_blocks()  # before it is the next one's turn
