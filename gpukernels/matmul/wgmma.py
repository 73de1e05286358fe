"""matmul/wgmma: how wgmma.cu is launched: A, B and C are described to the copy engine, and a block goes to every SM.

The copy engine takes matrices whose rows begin at multiples of 16 bytes. An operand that is not such is copied to one
that is, before the kernel or, for C, after it.
"""

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from gpukernels.kernel import KernelError, LimitError

WHO = "matmul/wgmma"
ALIGNMENT = 16  # bytes, of a matrix and of its rows
ROW_BYTES = 128  # of a row in shared memory, as wide as the swizzle
TILE_ROWS, TILE_COLUMNS, TILE_K = 128, 256, 64  # as in wgmma.cu
EXTENT_MAX = 2**31 - TILE_COLUMNS  # rounded up to whole tiles it fits an int

ELEMENTS = {
    "float16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bfloat16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "float32": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}


def _takes(matrix: Any) -> bool:
    pitch = matrix.strides[0]  # of a single row it may be anything, such as negative
    return matrix.data.ptr % ALIGNMENT == 0 and pitch % ALIGNMENT == 0 and pitch >= matrix.shape[1] * matrix.itemsize


def _aligned(matrix: Any) -> Any:
    """`matrix`, or memory of its shape whose rows begin where the copy engine takes them."""
    if _takes(matrix):
        return matrix
    rows, columns = matrix.shape
    per = ALIGNMENT // matrix.itemsize
    return cupy.empty((rows, -(-columns // per) * per), matrix.dtype)[:, :columns]


def _tensor_map(matrix: Any, box_rows: int) -> np.void:
    """A description of `matrix`, copied in boxes of `box_rows` rows of 128 bytes, as a kernel's argument."""
    rows, columns = matrix.shape
    wide, count = driver.cuuint64_t, driver.cuuint32_t
    error, described = driver.cuTensorMapEncodeTiled(
        ELEMENTS[matrix.dtype.name],
        2,
        matrix.data.ptr,
        [wide(columns), wide(rows)],
        [wide(matrix.strides[0])],
        [count(ROW_BYTES // matrix.itemsize), count(box_rows)],
        [count(1), count(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise KernelError(f"{WHO}: the driver does not describe a {rows} x {columns} matrix of {matrix.dtype}: {error}")
    words = np.array([int(word) for word in described.opaque], np.uint64)
    return words.view("V128")[0]  # type: ignore[no-any-return]


def matmul_wgmma(
    _module: cupy.RawModule,
    function: Callable[..., None],
    _grid: tuple[int, ...],
    block: tuple[int, ...],
    operands: tuple[Any, Any, Any],
    dims: tuple[np.int64, np.int64, np.int64],
) -> Callable[[], None]:
    """The launch of `function` on `operands` A, B, C (M x K, K x N, M x N; A and B float16 or bfloat16, C float32,
    overwritten), for `dims` M, N, K.

    The launch runs on CuPy's current stream; not synchronized. It keeps the memory of its operands.

    Raises: LimitError if an extent exceeds EXTENT_MAX.
    """
    if max(dims) > EXTENT_MAX:
        raise LimitError(f"{WHO}: an extent must be at most {EXTENT_MAX}, got {' x '.join(map(str, dims))}")
    a, b, c = map(_aligned, operands)
    inputs = [(new, old) for new, old in zip((a, b), operands, strict=False) if new is not old]
    rows, columns, k = map(int, dims)
    tiles = -(-rows // TILE_ROWS) * -(-columns // TILE_COLUMNS)
    turns = math.ceil(tiles / c.device.attributes["MultiProcessorCount"])
    grid = (math.ceil(tiles / turns), 1, 1)  # as many blocks as finish in as many turns: all blocks have equal work
    maps = (_tensor_map(a, TILE_ROWS), _tensor_map(b, TILE_K), _tensor_map(c, TILE_ROWS // 2))
    arguments = (*maps, *map(np.int32, (rows, columns, k)))

    def launch(_alive: object = (a, b, operands)) -> None:
        for new, old in inputs:
            cupy.copyto(new, old)
        function(grid, block, arguments)
        if c is not operands[2]:
            cupy.copyto(operands[2], c)

    return launch
