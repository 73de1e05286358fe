"""matmul/constant: how constant.cu is launched: A is copied into the constant memory of the module before each run."""

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from gpukernels import prepare
from gpukernels.ladder import Rung


def matmul_constant(
    _rung: Rung,
    module: cupy.RawModule,
    function: prepare.Enqueue,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    operands: tuple[Any, Any, Any],
    dims: tuple[np.int64, np.int64, np.int64],
) -> Callable[[], None]:
    """The launch of `function` on `operands` A, B, C (M x K, K x N, M x N), C overwritten, for `dims` M, N, K.

    The launch copies A as it is then, and runs the kernel, both on CuPy's current stream; not synchronized. There is
    one constant memory a module: load the rung once for each stream that runs it at the same time as another does.
    """
    a, b, c = operands
    constant = module.get_global("constant_A")

    def launch() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(
            constant.ptr, a.data.ptr, a.nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, stream
        )
        function(grid, block, (b, c, *dims))

    return launch
