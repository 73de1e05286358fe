"""matmul/parts: how bf16x6.cu and fp16x3.cu are launched: their three kernels, and the memory for the parts of A and B.

The parts take as many 16-bit numbers for each element of A and B as the rung has parts, 6 or 4 bytes in place of 4.
They are made anew by each launch.
"""

import math
from collections.abc import Callable

import cupy
import numpy as np

from gpukernels import prepare
from gpukernels.kernel import LimitError

PART_TYPES = {3: "bfloat16", 2: "float16"}  # by the number of parts
SPLITTERS = 256  # threads of a block of the kernels that make the parts and that compute again
WIDE = 64  # columns of B that a block scales
BLOCKS = 8  # of the kernel that computes again, for each multiprocessor
EXTENT_MAX = 2**31 - 256  # rounded up to whole tiles it fits an int


def matmul_parts(call: prepare.Call) -> Callable[[], None]:
    """The launch of `call` on its operands A, B, C (M x K, K x N, M x N, float32); C is overwritten.

    The launch runs on CuPy's current stream; not synchronized. It keeps the memory of its operands and of their parts.

    Raises: LimitError if an extent exceeds EXTENT_MAX.
    """
    rung, function, block = call.rung, call.function, call.block
    operands, dims = call.operands, call.dims
    if max(dims) > EXTENT_MAX:
        raise LimitError(f"{rung}: an extent must be at most {EXTENT_MAX}, got {' x '.join(map(str, dims))}")
    a, b, c = operands
    rows, columns, k = map(int, dims)
    tile_rows, tile_columns = rung.tile
    constants = rung.macros()
    parts, step, span = (constants[name] for name in ("PARTS", "TILE_K", "SPAN"))
    element = np.dtype(PART_TYPES[parts])
    spans = -(-k // span)
    parts_a = cupy.empty((parts, rows, prepare.padded(k, element.itemsize)), element)
    parts_b = cupy.empty((parts, k, prepare.padded(columns, element.itemsize)), element)
    scales_a = cupy.zeros((spans, -(-rows // tile_rows) * tile_rows), np.float32)
    scales_b = cupy.zeros((spans, -(-columns // tile_columns) * tile_columns), np.float32)
    outside = cupy.empty(rows + columns, np.uint8)  # of rows of A and columns of B, whether they have numbers outside
    rows_outside, columns_outside = outside[:rows], outside[rows:]

    row_bytes = step * element.itemsize  # in shared memory
    map_a = prepare.tensor_map(str(rung), parts_a[:, :, :k], (parts, tile_rows, step))
    map_b = prepare.tensor_map(str(rung), parts_b[:, :, :columns], (parts, step, row_bytes // element.itemsize))
    if parts == 3:
        vectors = (parts_a[0].size + parts_b[0].size) // 8
        making_blocks = -(-vectors // SPLITTERS)
    else:  # SPAN of K of some rows of A or columns of B
        making_blocks = (-(-rows // (SPLITTERS * 8 // span)) + -(-columns // WIDE)) * spans
    pitches = (np.int64(matrix.shape[-1]) for matrix in (parts_a, parts_b))
    wide_a, wide_b = (np.int64(scales.shape[1]) for scales in (scales_a, scales_b))
    make = call.module.get_function(f"{rung.symbol}_parts")
    making_arguments = (a, b, parts_a, parts_b, scales_a, scales_b, rows_outside, columns_outside)
    making_arguments += (*dims, *pitches, wide_a, wide_b)

    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    multiprocessors = c.device.attributes["MultiProcessorCount"]
    grid = (math.ceil(tiles / math.ceil(tiles / multiprocessors)), 1, 1)  # all blocks have equal work
    arguments = (map_a, map_b, c, scales_a, scales_b, *map(np.int32, (rows, columns, k)), wide_a, wide_b)
    again = call.module.get_function(f"{rung.symbol}_outside")

    def launch(_alive: object = (parts_a, parts_b, operands)) -> None:
        outside.data.memset_async(0, outside.nbytes, cupy.cuda.get_current_stream())
        make((making_blocks,), (SPLITTERS,), making_arguments)
        function(grid, block, arguments)
        again((BLOCKS * multiprocessors,), (SPLITTERS,), (a, b, c, rows_outside, columns_outside, *dims))
        prepare.keep_until_run(parts_a, parts_b, scales_a, scales_b, outside, operands)

    return launch
