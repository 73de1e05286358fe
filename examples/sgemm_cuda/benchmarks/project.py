"""What is measured of SGEMM_CUDA: its twelve kernels, C = alpha A B + beta C in float32, C overwritten.

U is half a unit in the last place of float32. The sum of K products, in any order, with or without fused operations,
is off by at most K roundings of each product; alpha, beta and the last sum add three. (1 + U)^(K + 3) - 1 is less than
(K + 5) U up to K = 5000. Its own beta is 3: since C is updated by hundreds of launches, it is 0.5 here.
"""

from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project

from .rungs import NAMES, parts

U, F32 = 2.0**-24, np.dtype("float32")
TILED_BY = 256  # most kernels check no bounds; a multiple of the widest tile of any commit


def operands(shape, type):
    m, n, k = shape
    return Operands(
        (Operand((m, k), F32), Operand((k, n), F32), Operand((m, n), F32, updated=True)),
        (),
        {"alpha": 0.5, "beta": 0.5},
    )


def sgemm(a, b, c, alpha, beta):
    a, b, c = (array.astype(np.float64) for array in (a, b, c))
    return alpha * (a @ b) + beta * c


def bound(type, a, b, c, alpha, beta):
    return (a.shape[1] + 5) * U * sgemm(abs(a), abs(b), abs(c), abs(alpha), abs(beta))


def whole_tiles(shape, type):
    return all(extent % TILED_BY == 0 for extent in shape) or f"every extent must be a multiple of {TILED_BY}"


SGEMM = Problem(
    "sgemm",
    Computation(operands, sgemm, bound, flops=lambda shape: 2 * shape[0] * shape[1] * shape[2]),
    tuple(
        Rung(name, "gpu", ("float32",), takes=None if name == "naive" else whole_tiles, compiled=True) for name in NAMES
    ),
    shapes=((2048, 2048, 2048),),
)
PROJECT = Project("", Path(__file__).resolve(), (SGEMM,), table="rungs", parts=parts)
