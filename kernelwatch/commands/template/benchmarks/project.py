"""What is measured: the package, and for each op what it computes, its rungs and its shapes."""

from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Problem, Rung
from kernelwatch.plan.project import Project

ROW_SUM = Computation.of_shapes(
    lambda shape: (shape,),
    lambda shape: shape[:1],
    lambda a: a.astype(np.float64).sum(axis=1),
    # Summing n numbers in any order is off by at most n u sum(|a|), u = 2^-24.
    bound=lambda type, a: a.shape[1] * 2.0**-24 * abs(a).astype(np.float64).sum(axis=1),
    flops=lambda shape: shape[0] * shape[1],
)

PROJECT = Project(
    package="PACKAGE",
    here=Path(__file__).resolve(),
    problems=(
        Problem(
            name="row_sum",
            computation=ROW_SUM,
            rungs=(
                Rung("numpy", "cpu", ("float32",)),
                Rung("einsum", "cpu", ("float32",)),
                Rung("cupy", "gpu", ("float32",)),  # with a GPU
            ),
            shapes=((256, 256), (4096, 4096)),
            cpu_shapes=((256, 256),),
        ),
    ),
)
