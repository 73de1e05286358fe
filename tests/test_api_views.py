"""Arrays in one large allocation, made by CuPy, of a measured call and of a run's cells. No GPU is needed: nothing is
read."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kernelwatch.api.arguments import Original
from kernelwatch.api.judge.layout import Layout, Place
from kernelwatch.plan.problem import Operand
from kernelwatch.timing.gpu import Gpu

cupy = pytest.importorskip("cupy")
GIB = 1 << 30
AT = 0x7F0000000000  # no memory is there


def memory() -> Any:
    return cupy.ndarray(3 * GIB, np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(AT, 3 * GIB, None, 0), 0))


def test_a_copy_is_indexed_with_as_many_bits_as_the_original() -> None:
    """CuPy indexes an allocation of more than 2 GiB, and plain views of it, with 64 bits, and launches slower kernels
    then: in the open mode and for a judge, a copy of a small array must not be such a view."""
    arena = memory()
    assert not arena[:1024]._index_32_bits
    small = cupy.ndarray((256, 256), np.float32, arena.data)
    (opened,) = Original(small, cupy).views(arena, [512])
    place = Place("cupy", "float32", 4, (256, 256), (1024, 4), 0, 0, small.nbytes)
    (judged,), _ = Layout((place,), {}, 1 << 21).arguments(arena, 512)
    for copy in (opened, judged):
        assert copy._index_32_bits
        assert (copy.data.ptr, copy.shape, copy.strides) == (AT + 512, (256, 256), (1024, 4))


@pytest.mark.parametrize("type", ["float32", "float8_e4m3fn"])
def test_an_array_of_a_cell_is_indexed_by_its_own_size(type: str) -> None:
    """A process allocates what its largest cell needs. Of cupy_add, those with more than 2 GiB launched another kernel:
    two levels in one run."""
    import ml_dtypes  # noqa: F401 (NumPy knows its types by name then)

    operand = Operand((64, 16), np.dtype(type))
    gpu = cast(Gpu, SimpleNamespace(cupy=cupy, arena=memory()))
    array = Gpu._view(gpu, 512, operand)
    assert array._index_32_bits
    assert (array.data.ptr, array.shape, array.dtype) == (AT + 512, (64, 16), np.dtype(type))
