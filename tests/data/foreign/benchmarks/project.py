"""What is measured of rows: two ops, one of them rounded."""

from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung, Shape, dtypes
from kernelwatch.plan.project import Project


def counters(random: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    return random.integers(-1000, 1000, shape, dtype)


SCALED_SUM = Computation(
    lambda shape, type: Operands(
        (Operand(shape, dtypes(type)[0]),), (Operand(shape[:1], dtypes(type)[1]),), {"scale": 2.5}
    ),
    lambda a, scale: scale * a.astype(np.float64).sum(axis=1),
    # n additions and a multiplication, each off by at most u = 2^-24 of what is summed.
    bound=lambda type, a, scale: (a.shape[1] + 1) * 2.0**-24 * scale * abs(a).astype(np.float64).sum(axis=1),
    flops=lambda shape: shape[0] * (shape[1] + 1),
)
EXTREMES = Computation(
    lambda shape, type: Operands(
        (Operand(shape, np.dtype(type), counters),),
        (Operand(shape[:1], np.dtype(type)), Operand(shape[:1], np.dtype(type))),
    ),
    lambda a: (a.min(axis=1), a.max(axis=1)),
)
SHAPES = ((96, 64), (512, 500))

PROJECT = Project(
    package="rows",
    here=Path(__file__).resolve(),
    problems=(
        Problem(
            "scaled_sum",
            SCALED_SUM,
            (Rung("einsum", "cpu", ("float32",)), Rung("tree", "cpu", ("float32",), "pairs of columns, again and again")),
            shapes=SHAPES,
            cpu_shapes=SHAPES,
        ),
        Problem(
            "extremes",
            EXTREMES,
            (Rung("numpy", "cpu", ("int32",)),),
            shapes=SHAPES,
            cpu_shapes=SHAPES,
        ),
    ),
)
