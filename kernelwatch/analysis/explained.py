"""What a kernel of a tree is made of, for the page of an event: its binary, its launch, and its accesses by line.

A device of a worker, in which the measured commit's package compiles the rung for one architecture, without a GPU, and
the emulator counts its accesses of memory. The cell names the architecture; it has no shape.
"""

from collections.abc import Callable
from typing import Any, cast

from kernelwatch import emulator
from kernelwatch.analysis import counted
from kernelwatch.analysis.compiled import Compiler
from kernelwatch.emulator import CompileError, Faulty
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.package import Absent, CudaSource, NotHere
from kernelwatch.plan.problem import Problem, label
from kernelwatch.system.errors import ToolMissing
from kernelwatch.timing.record import Measurement

DEVICE = "explained"
LINE_MOST = 160  # characters of a line of source
UNABLE: tuple[type[Exception], ...] = (Absent, NotHere, ToolMissing, CompileError, Faulty)


def shape_of(problem: Problem, type: str) -> tuple[int, ...]:
    """The first shape at which the suites count a type; () if there is none."""
    return next((shape for own, shape in counted.places(problem) if own == type), ())


class Explainer(Compiler):
    """`measure` says what it could not do, and why; it fails only with the package."""

    def measure(self, cell: Cell) -> Measurement:
        told: dict[str, Any] = {}

        def tried(what: str, make: Callable[[], dict[str, Any]]) -> None:
            try:
                told.update(make())
            except (*UNABLE, *self.package.not_here) as error:
                told[f"no_{what}"] = str(error)

        tried("binary", lambda: dict(super(Explainer, self).measure(cell)))
        tried("lines", lambda: self._lines(cell))
        return cast(Measurement, told)

    def _lines(self, cell: Cell) -> dict[str, Any]:
        """The launch, and the accesses of each line of the source at a counted shape."""
        shape = shape_of(self.project.op(cell.op), cell.type)
        if not shape:
            raise NotHere(f"no suite counts {cell.op} with {cell.type}")
        source = self.package.cuda_source(cell.op, cell.rung, cell.type)
        counts = emulator.count(source, dict(zip(source.dims, shape, strict=True)))
        text = source.path.read_text(encoding="utf-8").splitlines()
        return {
            "source": source.path.name,
            "text": text,
            "counted_at": label(shape),
            "grids": self._grids(source, cell),
            "block": [*source.block],
            "lines": [
                [line, kind, tally.requests, tally.cost, text[line - 1].strip()[:LINE_MOST] if line else ""]
                for (line, kind), tally in counts.by_line.items()
            ],
            **{kind: vars(getattr(counts, kind)) for kind in emulator.KINDS},
            "blocks": counts.blocks,
            "barriers": counts.barriers,
        }

    def _grids(self, source: CudaSource, cell: Cell) -> dict[str, list[int]]:
        """The blocks of a launch in x, y and z at each shape that is timed."""
        problem = self.project.op(cell.op)
        shapes = [
            shape for shape in problem.timed("gpu", False) if problem.within(problem.rung(cell.rung), shape, cell.type)
        ]
        return {label(shape): [*source.grid(dict(zip(source.dims, shape, strict=True)))] for shape in shapes}
