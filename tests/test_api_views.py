"""Arrays of a measured call in one large allocation, made by CuPy. No GPU is needed: nothing is read."""

import numpy as np
import pytest

from kernelwatch.api.arguments import Original
from kernelwatch.api.judge.layout import Layout, Place

cupy = pytest.importorskip("cupy")
GIB = 1 << 30
AT = 0x7F0000000000  # no memory is there


def test_a_copy_is_indexed_with_as_many_bits_as_the_original() -> None:
    """CuPy indexes an allocation of more than 2 GiB, and plain views of it, with 64 bits, and launches slower kernels
    then: in the open mode and for a judge, a copy of a small array must not be such a view."""
    memory = cupy.ndarray(3 * GIB, np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(AT, 3 * GIB, None, 0), 0))
    assert not memory[:1024]._index_32_bits
    small = cupy.ndarray((256, 256), np.float32, memory.data)
    (opened,) = Original(small, cupy).views(memory, [512])
    place = Place("cupy", "float32", 4, (256, 256), (1024, 4), 0, 0, small.nbytes)
    (judged,), _ = Layout((place,), {}, 1 << 21).arguments(memory, 512)
    for copy in (opened, judged):
        assert copy._index_32_bits
        assert (copy.data.ptr, copy.shape, copy.strides) == (AT + 512, (256, 256), (1024, 4))
