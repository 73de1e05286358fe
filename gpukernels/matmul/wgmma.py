"""matmul/wgmma: how the rungs with Hopper's copy engine are launched: A and B are described to it, and so is C if it
stores the results (BUFFERS). There is a block for each tile of C or, if blocks stay (PERSISTENT), for each SM.

The copy engine takes matrices whose rows begin at multiples of 16 bytes. Operands that are not aligned go through a
copy whose rows begin at cache lines: A and B before the kernel, C after it.
"""

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from gpukernels import prepare
from gpukernels.kernel import LimitError
from gpukernels.ladder import Rung

WORD_BYTES = 8  # at most, of what a thread copies: rows of wider ones need no copy
ROW_BYTES = 128  # of a row in shared memory, as wide as the swizzle
STORED_ROWS = 64  # of C, in a store
EXTENT_MAX = 2**31 - 256  # rounded up to whole tiles it fits an int


def _copyable(matrix: Any) -> Any:
    """`matrix`, a float8 one as bytes: CuPy makes and copies no float8."""
    return matrix.view(np.uint8) if matrix.itemsize == 1 else matrix


def _takes(matrix: Any) -> bool:
    pitch = matrix.strides[0]  # of a single row it may be anything, such as negative
    starts = matrix.data.ptr % prepare.ALIGNMENT == 0 and pitch % prepare.ALIGNMENT == 0
    return starts and pitch >= matrix.shape[1] * matrix.itemsize


def _aligned(matrix: Any) -> Any:
    """`matrix` if the copy engine takes it, or memory of its shape whose rows begin at cache lines."""
    if _takes(matrix):
        return matrix
    rows, columns = matrix.shape  # zeros, since initcheck does not see what the copy engine stores
    return cupy.zeros((rows, prepare.padded(columns, matrix.itemsize)), matrix.dtype)[:, :columns]


def _copy(to: Any, matrix: Any) -> None:
    """Copy `matrix` to one of its shape, in words as wide as the rows of both allow: CuPy has a thread for each."""
    places = [each.data.ptr for each in (to, matrix)]
    pitches = [each.strides[0] for each in (to, matrix)] if len(matrix) > 1 else []
    word = f"u{math.gcd(WORD_BYTES, matrix.shape[1] * matrix.itemsize, *places, *pitches)}"
    cupy.copyto(to.view(word), matrix.view(word))


def schedule(rung: Rung, rows: int, columns: int, processors: int) -> tuple[int, bool]:
    """How many blocks compute a C of `rows` x `columns` on so many multiprocessors, and whether all its tiles are on
    the GPU at once. The blocks are whole clusters, which have tiles one below the other (CLUSTER), or share one
    (SPLIT)."""
    macros = rung.macros()
    cluster, split = macros.get("CLUSTER", 1), macros.get("SPLIT", 1)
    tile_rows, tile_columns = rung.tile
    tiles = -(-rows // (cluster * tile_rows)) * -(-columns // tile_columns)  # of a cluster
    at_once = processors // (cluster * split)
    turns = math.ceil(tiles / at_once) if "PERSISTENT" in macros else 1
    # as few blocks as finish in the same number of waves (`turns`): all have equal work
    return cluster * split * math.ceil(tiles / turns), tiles <= at_once


def matmul_wgmma(call: prepare.Call) -> Callable[[], None]:
    """The launch of `call` on its operands A, B, C (M x K, the rung's B, M x N); C is overwritten.

    The launch runs on CuPy's current stream; not synchronized. It keeps the memory of its operands.

    Raises: LimitError if an extent exceeds EXTENT_MAX.
    """
    rung, function, block, dims = call.rung, call.function, call.block, call.dims
    if max(dims) > EXTENT_MAX:
        raise LimitError(f"{rung}: an extent must be at most {EXTENT_MAX}, got {' x '.join(map(str, dims))}")
    macros = rung.macros()
    stores = "BUFFERS" in macros  # else the threads store C
    operands = tuple(map(_copyable, call.operands))
    a, b, c = (_aligned(operand) if stores or at < 2 else operand for at, operand in enumerate(operands))
    inputs = [(new, old) for new, old in zip((a, b), operands, strict=False) if new is not old]
    rows, columns, k = map(int, dims)
    blocks, at_once = schedule(rung, rows, columns, c.device.attributes["MultiProcessorCount"])
    grid = (blocks, 1, 1)
    tile_rows, tile_columns = rung.tile
    wide = ROW_BYTES // b.itemsize
    box_b = (tile_columns, wide) if rung.inputs[1] == "N K" else (macros["TILE_K"], wide)
    boxes = ((a, (tile_rows, wide)), (b, box_b), (c, (STORED_ROWS, ROW_BYTES // c.itemsize)))
    maps = [prepare.tensor_map(str(rung), matrix, box) for matrix, box in (boxes if stores else boxes[:2])]
    arguments = (*maps, *(() if stores else (np.uintp(c.data.ptr),)), *map(np.int32, (rows, columns, k)))

    # If all tiles fit on the GPU at once, only the launch before this one can hide its start. With more tiles it costs
    # more to let the blocks of the next launch in.
    overlaps = at_once and ("PERSISTENT" in macros or "SPLIT" in macros)  # the others have no griddepcontrol
    enqueue = prepare.overlapping(function, grid, block, arguments) if overlaps else None

    def launch(_alive: object = (a, b, c)) -> None:
        for new, old in inputs:
            _copy(new, old)
        if enqueue is None:
            function(grid, block, arguments)
        else:
            enqueue()
        if c is not operands[2]:
            _copy(operands[2], c)
        if inputs or c is not operands[2]:
            prepare.keep_until_run(a, b, c)

    return launch
