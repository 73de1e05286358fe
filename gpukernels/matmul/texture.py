"""matmul/texture: how texture.cu is launched: A and B are bound to texture objects, once for all runs."""

import ctypes
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime, texture

from gpukernels import prepare
from gpukernels.kernel import KernelError, LimitError
from gpukernels.ladder import Rung

MOST_ELEMENTS = 2**27  # of a 1-D linear texture


def _bound(which: str, array: Any, alignment: int) -> tuple[texture.TextureObject, np.int32]:
    """A texture that holds `array` (float32, contiguous), and the index of the array's first element in it.

    A texture must begin at a multiple of `alignment` bytes: it begins at the last one at or below the array.
    """
    first, rest = divmod(array.data.ptr % alignment, array.itemsize)
    if rest:
        raise KernelError(f"matmul/texture: {which} is not at a multiple of {array.itemsize} bytes but {rest} past it")
    if first + array.size > MOST_ELEMENTS:
        raise LimitError(
            f"matmul/texture: {which} must have at most {MOST_ELEMENTS} elements, counted from the aligned address "
            f"below it, got {first + array.size}"
        )
    memory = array.data.mem
    base = cupy.cuda.MemoryPointer(memory, array.data.ptr - first * array.itemsize - memory.ptr)
    held = cupy.ndarray(first + array.size, array.dtype, base)
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    resource = texture.ResourceDescriptor(
        runtime.cudaResourceTypeLinear, arr=held, chDesc=channel, sizeInBytes=held.nbytes
    )
    reading = texture.TextureDescriptor(readMode=runtime.cudaReadModeElementType)
    return texture.TextureObject(resource, reading), np.int32(first)


def matmul_texture(call: prepare.Call) -> Callable[[], None]:
    """The launch of `call` on its operands A, B, C (M x K, K x N, M x N, float32); C is overwritten.

    The launch runs the kernel on CuPy's current stream; not synchronized. It keeps the textures, and with them the
    memory of A and B, for as long as it lives, and until its kernels have run.

    Raises: LimitError where an operand does not fit a texture.
    """
    function, grid, block, dims = call.function, call.grid, call.block, call.dims
    a, b, c = call.operands
    alignment = runtime.getDeviceProperties(c.device.id)["textureAlignment"]
    texture_a, first_a = _bound("A", a, alignment)
    texture_b, first_b = _bound("B", b, alignment)

    def launch() -> None:
        handles = np.uint64(texture_a.ptr), np.uint64(texture_b.ptr)
        function(grid, block, (*handles, c, *dims, first_a, first_b))
        prepare.keep_until_run(texture_a, texture_b)

    return launch


def on_emulator(_rung: Rung, _library: Any, addresses: list[int], _sizes: list[int], dims: list[Any]) -> list[Any]:
    """The arguments on the emulator, as for operands that are not aligned: A and B are textures that begin some
    elements before the operand."""
    firsts = (3, 5)
    handles = [address - 4 * first for address, first in zip(addresses, firsts, strict=False)]
    return [*map(ctypes.c_uint64, [*handles, addresses[2]]), *dims, *map(ctypes.c_int32, firsts)]
