"""Shapes and inputs with which a rung is checked before it is timed or counted, and under a sanitizer.

The shapes follow from the rung's own tile, which its launch grid shows. A guard that is wrong only in a ragged last
block needs two blocks in each dimension. A barrier that is lost in a loop needs two steps of the loop. An index that is
too narrow needs an extent beyond its width.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kernelwatch.plan.package import CudaSource, Extents
from kernelwatch.plan.problem import Array, Operands, Shape

STEP = 32  # of a rung whose tile is not known, and the least of a loop inside a kernel: a warp, some vector registers
STEP_MOST = 1 << 12  # a dimension in which the grid is the same up to this extent is not tiled

# By the number of dimensions: in each dimension an extent beyond an index of 16 bits; where it is cheap, over a million
# elements.
LONG: dict[int, tuple[Shape, ...]] = {
    1: ((1_000_003,),),
    2: ((65_551, 3), (3, 65_551), (1009, 1013)),
    3: ((65_551, 1, 2), (1, 65_551, 2), (1, 1, 65_551)),
}

LONG_BYTES_MOST = 64 << 20  # of all operands, at a shape of many elements: those of another op may grow with a square


def steps(
    dims: Sequence[str], grid: Callable[[Extents], tuple[int, int, int]], block: Sequence[int], loop_step: int = 0
) -> Shape:
    """The extents of the tile that a block works on, in the order of `dims`. In a dimension in which the grid does not
    grow, the kernel has a loop, of `loop_step`; if that is 0, the step is taken to be the block's longer side or
    STEP."""

    def tile(dim: str) -> int:
        ones = dict.fromkeys(dims, 1)

        def more_blocks(extent: int) -> bool:
            return math.prod(grid({**ones, dim: extent})) > math.prod(grid(ones))

        step = bisect.bisect_left(range(STEP_MOST), True, lo=1, key=more_blocks) - 1
        return step if step < STEP_MOST - 1 else loop_step or max(STEP, *block)

    return tuple(map(tile, dims))


def steps_of(source: CudaSource) -> Shape:
    """The extents of the tile that a block of this source works on, in the order of its dims."""
    return steps(source.dims, source.grid, source.block, source.loop_step)


def ragged(steps: Shape) -> Shape:
    """A shape of two blocks in each dimension, or two steps of a loop, the second of which is about a quarter full. All
    extents differ."""
    return tuple(step + (step // 4 | 1) + 2 * at for at, step in enumerate(steps))


def around(steps: Shape) -> Iterator[Shape]:
    """Shapes with extents just below, at and beyond one and two tiles. In three dimensions each pair of extents of two
    dimensions is in one of them; all combinations would be many more."""
    near = [sorted({1, 3, step - 1, step, step + 1, 2 * step - 1, 2 * step + 1, 97} - {0}) for step in steps]
    count = max(map(len, near))
    for i, j in itertools.product(range(count), range(count if len(near) > 1 else 1)):
        yield tuple(
            extents[at % len(extents)] for at, extents in zip((i, j, *(i + j for _ in near[2:])), near, strict=False)
        )


def inputs(operands: Operands, random: "np.random.Generator") -> list[Array]:
    """NumPy arrays for these operands: small integers, whose sums are exact, or an operand's own values."""
    made: list[Array] = []
    for array in operands.inputs:
        own = array.values is not None
        made.append(array.made(random, made) if own else random.integers(0, 9, array.shape).astype(array.dtype))
    return made
