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
# Each set of buffers is updated by some thousand launches, by at most 2^-10 each.
STEP = Computation(
    lambda shape, type: Operands(
        (Operand(shape, np.dtype(type), updated=True), Operand(shape, np.dtype(type), name="gradient")),
        (),
        {"rate": 2.0**-10},
    ),
    lambda w, gradient, rate: w - rate * gradient.astype(np.float64),
    bound=lambda type, w, gradient, rate: 3 * 2.0**-24 * (abs(w).astype(np.float64) + rate * abs(gradient)),
)
GROWING = Computation(
    STEP.operands, lambda w, gradient, rate: w * 1e30, bound=lambda type, w, gradient, rate: 2.0**-22 * 1e30 * abs(w)
)
RIGHT = ("raw", "elementwise", "core", "triton", "tuned", "torch", "compiled", "temporary", "waiting")
FAULTY = ("wrong", "beyond", "far", "far_triton", "elsewhere", "partly", "view", "writing", "same", "unimportable")
OTHERS = ("hanging", "new", "new_temporary")
TENSORS = ("tensor", "new_tensor")


def rungs(names, **options):
    return tuple(Rung(name, "gpu", ("float32",), **options) for name in names)


PROJECT = Project(
    "launched",
    Path(__file__).resolve(),
    (
        Problem("axpy", AXPY, rungs(RIGHT + FAULTY + OTHERS) + rungs(TENSORS, arrays="torch"), shapes=((100_003,),)),
        Problem(
            "step",
            STEP,
            rungs(["cupy"]) + rungs(["torch"], arrays="torch") + rungs(["growing"], computes="growing"),
            shapes=((100_003,),),
            variants={"growing": GROWING},
        ),
    ),
)
