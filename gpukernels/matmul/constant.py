"""matmul/constant: how constant.cu is launched: A is copied into the constant memory of the module before each run."""

import ctypes
from collections.abc import Callable
from typing import Any

import cupy

from gpukernels import prepare
from gpukernels.ladder import Rung


def matmul_constant(call: prepare.Call) -> Callable[[], None]:
    """The launch of `call` on its operands A, B, C (M x K, K x N, M x N); C is overwritten.

    The launch copies A as it is then, and runs the kernel, both on CuPy's current stream; not synchronized. There is
    one constant memory a module: load the rung once for each stream that runs it at the same time as another does.
    """
    function, grid, block, dims = call.function, call.grid, call.block, call.dims
    a, b, c = call.operands
    constant = call.module.get_global("constant_A")

    def launch() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(
            constant.ptr, a.data.ptr, a.nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, stream
        )
        function(grid, block, (b, c, *dims))

    return launch


def on_emulator(_rung: Rung, library: Any, addresses: list[int], sizes: list[int], dims: list[Any]) -> list[Any]:
    """The arguments on the emulator. A is copied into the constant memory of the library."""
    ctypes.memmove(ctypes.addressof(ctypes.c_char.in_dll(library, "constant_A")), addresses[0], sizes[0])
    return [*map(ctypes.c_uint64, addresses[1:]), *dims]
