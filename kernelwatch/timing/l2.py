"""What kernels leave in the L2 cache for those that follow them.

A kernel may ask the cache to keep what it reads (the eviction priority `evict_last`, or an access policy window whose
accesses persist). Such lines stay for a while when that kernel has ended. Meanwhile the cache is smaller for whoever
comes next, or the lines that it would write back first are others. Filling other memory, several times as large as the
cache, does not end that. docs/research/measuring.md has what it changes.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SET_ASIDE = 6  # cudaLimitPersistingL2CacheSize, which CuPy does not name


@functools.cache
def _driver() -> Any:
    """The driver's interface; None if it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return driver


def reset_persisting() -> str:
    """Make the lines that persist in the current device's L2 cache usual ones. Returns why that could not be done, ""
    if it was."""
    driver = _driver()
    if driver is None:
        return "cuda-bindings is not installed"
    try:
        (code,) = driver.cuCtxResetPersistingL2Cache()
    except (AttributeError, RuntimeError) as error:  # there is no such call in the bindings, or in the driver
        return str(error)
    return "" if code == driver.CUresult.CUDA_SUCCESS else code.name


def set_aside_bytes() -> int | None:
    """What of the current device's L2 cache is set aside for accesses that persist; None if that cannot be read: before
    the Ampere generation, with an older runtime, or after an error of CUDA's."""
    try:
        import cupy

        return int(cupy.cuda.runtime.deviceGetLimit(SET_ASIDE))
    except Exception:
        return None


@contextmanager
def set_aside_as_before() -> Iterator[None]:
    """Give the current device's L2 cache back what a `with` block sets aside for accesses that persist."""
    before = set_aside_bytes()
    try:
        yield
    finally:
        if before is not None and set_aside_bytes() not in (None, before):
            # An error of the block is not to be hidden, and a CUDA error comes back with the next call.
            with suppress(Exception):
                import cupy

                cupy.cuda.runtime.deviceSetLimit(SET_ASIDE, before)
