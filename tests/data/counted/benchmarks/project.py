"""What is measured of columns: one CUDA kernel, by its counted accesses."""

from pathlib import Path

from kernelwatch.plan.problem import Computation, Problem, Rung
from kernelwatch.plan.project import Project

SOURCE = Path(__file__).resolve().parent.parent / "columns" / "scale.cu"
SCALE = Computation.of_shapes(lambda shape: (shape,), lambda shape: shape, lambda a: a + a)

PROJECT = Project(
    package="columns",
    here=Path(__file__).resolve(),
    problems=(
        Problem(
            "scale",
            SCALE,
            (Rung("naive", "gpu", ("float32",), source=SOURCE),),
            shapes=((64, 64),),
            counted_shapes=((64, 64), (65, 33)),
        ),
    ),
    gate=("test_columns.py",),
)
