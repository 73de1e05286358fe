"""Matrix products over several GPUs: how the matrices are divided, and how a GPU's part of the product is checked."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernelwatch.extras.several.device import Several
from kernelwatch.plan.problem import Array, dtypes

# By type, the bits of the numbers in A and B. Sums of 65536 products of them are below 2**10 and exact in float32: that
# is 12 times their standard deviation.
EXACT_BITS = {"float32": (12, 2), "bfloat16": (7, 3)}
VECTORS = 8  # numbers from -16 to 15: a wrong row passes all of them with a probability of at most 32**-8
STRIP_ROWS = 4096  # of a matrix that is converted to float64 at a time


def _strips(matrix: Array) -> Iterator[Array]:
    return (matrix[row : row + STRIP_ROWS] for row in range(0, len(matrix), STRIP_ROWS))


def _times(matrix: Array, vectors: Array, xp: Any) -> Array:
    """matrix times vectors in float64."""
    strips = [strip.astype(np.float64) @ vectors for strip in _strips(matrix)]
    return xp.concatenate([vectors[:0], *strips])


def wrong_rows(
    inputs: Sequence[Sequence[Array]], out: Array, rank: int, ranks: int, random: np.random.Generator, xp: Any
) -> Array:
    """For each row of C's columns on one GPU, whether it is wrong: C X is compared with A (B X) for random vectors X.

    All numbers here are integers times a power of 2, and at most 52 bits long, so both are exact in float64. A is made
    anew part by part, whatever the rung has received.
    Source: Freivalds, Probabilistic machines can use less running time, 1977.
    """
    a, b = inputs
    vectors = xp.asarray(random.integers(-16, 16, (out.shape[1], VECTORS)).astype(np.float64))
    projected = _times(b[rank], vectors, xp)
    expected = xp.concatenate([_times(a[owner], projected, xp) for owner in range(ranks)])
    return (_times(out, vectors, xp) != expected).any(axis=1)


PARTS = Several(
    shapes=tuple((n, n, n) for n in (16384, 32768, 65536)),
    axes=(0, 1, 1),  # rows of A, columns of B and of C
    exact_bits=lambda type: EXACT_BITS[dtypes(type)[0].name],
    wrong=wrong_rows,
)
