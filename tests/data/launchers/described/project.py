"""axpy by every launcher, and by faulty ones."""

from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project

AXPY = Computation(
    lambda shape, type: Operands(
        (Operand(shape, np.dtype(type)), Operand(shape, np.dtype(type))),
        (Operand(shape, np.dtype(type)),),
        {"alpha": 2.5},
    ),
    lambda x, y, alpha: alpha * x.astype(np.float64) + y,
    # A product and a sum, each rounded by at most u = 2^-24 of its result; u^2 is less than the third u.
    bound=lambda type, x, y, alpha: 3 * 2.0**-24 * (alpha * abs(x).astype(np.float64) + abs(y)),
    flops=lambda shape: 2 * shape[0],
)
RIGHT = ("raw", "elementwise", "core", "triton", "tuned", "torch", "compiled", "temporary", "waiting")
FAULTY = ("wrong", "beyond", "far", "far_triton", "elsewhere", "partly", "view", "unimportable", "hanging")
PROJECT = Project(
    "launched",
    Path(__file__).resolve(),
    (Problem("axpy", AXPY, tuple(Rung(name, "gpu", ("float32",)) for name in RIGHT + FAULTY), shapes=((100_003,),)),),
)
