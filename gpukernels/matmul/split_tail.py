"""matmul/split_tail: how split_tail.cu is launched: which tiles are split along K, and into which parts.

The sums of the parts take memory, 64 KiB each: tens of MiB if M, N and K are 4096, some hundreds at most. A second
kernel adds them.
"""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from gpukernels import prepare
from gpukernels.ladder import Rung

SPLITS_MOST = 32
PART_STEPS = 2  # steps along K that a part costs in addition to its own, and the second kernel to its work on the parts
PARTS_A_STEP = 64  # parts that the GPU writes, reads and adds in the time of a step
TAIL_THREADS = 256  # of a block of matmul_split_tail_sums; each has VECTOR results
VECTOR = 4


def schedule(tiles: int, steps: int, places: int) -> tuple[int, int, int]:
    """How many of `tiles` tiles of `steps` steps along K stay whole; into how many parts each other tile is split; the
    steps of its first part. The other parts share the rest.

    `places`: for how many blocks all multiprocessors have room at a time. Whole tiles fill as many waves as they can; a
    wave is a tile for each place. In the last wave the first parts of the other tiles take a place each. The remaining
    places take the other parts, several one after the other (`turns`), of such a size that all places end at nearly the
    same time. The number of parts is the one with the least time for the last wave and the second kernel. If no number
    is faster than a last wave of whole tiles, all tiles stay whole.
    """
    left = tiles % places
    shortest, chosen = steps, (tiles, 1, steps)
    for splits in range(2, SPLITS_MOST + 1) if left else ():
        others = splits - 1
        turns = math.ceil(left * others / (places - left))
        other = (steps - (turns - 1) * PART_STEPS) // (turns + others)  # steps of each other part
        first = steps - others * other
        needed = max(first + PART_STEPS, turns * (other + PART_STEPS)) + PART_STEPS + left * splits / PARTS_A_STEP
        if other > 0 and needed < shortest:
            shortest, chosen = needed, (tiles - left, splits, first)
    return chosen


def matmul_split_tail(call: prepare.Call) -> Callable[[], None]:
    """The launch of `call` on its operands A, B, C (M x K, K x N, M x N, float32); C is overwritten.

    The launch runs on CuPy's current stream; not synchronized. It keeps the memory of its operands and of the parts.
    How K is split depends on the number of multiprocessors, and so may the last bits of C.
    """
    rung, function, block = call.rung, call.function, call.block
    operands, dims = call.operands, call.dims
    rows, columns, k = map(int, dims)
    tile_rows, tile_columns = rung.tile
    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    places = operands[2].device.attributes["MultiProcessorCount"] * rung.macros()["ROOM"]
    whole, splits, first = schedule(tiles, -(-k // rung.macros()["TILE_K"]), places)
    left = tiles - whole
    parts = cupy.empty((left * splits, tile_rows, tile_columns), np.float32)
    split = tuple(map(np.int32, (whole, splits)))
    arguments = (*operands, *dims, parts, *split, np.int32(first))
    add = call.module.get_function("matmul_split_tail_sums")
    tail_grid = (tile_rows * tile_columns // (VECTOR * TAIL_THREADS), left)

    def launch() -> None:
        function((whole + left * splits,), block, arguments)
        if left:
            add(tail_grid, (TAIL_THREADS,), (parts, operands[2], *dims[:2], *split))
            prepare.keep_until_run(parts)

    return launch


def on_emulator(rung: Rung, _library: Any, addresses: list[int], _sizes: list[int], dims: list[Any]) -> list[Any]:
    """The arguments on the emulator, as if there were a place for each tile: none is split."""
    rows, columns = (-(-dim.value // extent) for dim, extent in zip(dims, rung.tile, strict=False))
    whole, splits, first = rows * columns, 1, -(-dims[2].value // rung.macros()["TILE_K"])
    return [*map(ctypes.c_uint64, addresses), *dims, ctypes.c_uint64(0), *map(ctypes.c_int32, (whole, splits, first))]
