"""The memory accesses of a rung's warps, counted on the emulator: exact, and the same with and without a GPU.

In a worker, the emulator compiles the measured commit's source with g++, runs it and counts.
"""

import re
from dataclasses import replace

import numpy as np

from kernelwatch import emulator
from kernelwatch.analysis.compiled import compiled
from kernelwatch.identity import COUNTED as IDENTITY
from kernelwatch.measure.check import WrongOutput, describe_wrong, packages
from kernelwatch.measure.record import Facts, Measurement
from kernelwatch.plan.cells import COUNTED, Cell
from kernelwatch.plan.package import CudaSource, Package
from kernelwatch.plan.problem import Problem, Shape
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.tools import cxx_compiler

DEVICE = "access"
CHECKED = (33, 65, 31)  # extents at which a rung must be right before it is counted; no tile divides them


def places(problem: Problem) -> list[tuple[str, Shape]]:
    """The types and shapes at which a problem is counted: the first shape with every type, the other shapes with only
    the main types of its rungs."""
    if not problem.counted_shapes:
        return []
    first, *others = problem.counted_shapes
    compiled_types = {type for types in compiled(problem).values() for type in types}
    main_types = dict.fromkeys(problem.main_type(rung) for rung in compiled(problem))
    return [
        *((type, first) for type in problem.types if type in compiled_types),
        *((type, shape) for shape in others for type in main_types),
    ]


def plan(problem: Problem, only: str = "") -> list[Cell]:
    """The cells of a problem that are counted. `only`: a regular expression on their keys."""
    cells = [
        Cell(problem.name, rung.name, type, shape, COUNTED, DEVICE)
        for rung in problem.rungs
        for type, shape in places(problem)
        if type in compiled(problem).get(rung.name, ()) and problem.takes(rung, shape, type)
    ]
    return [cell for cell in cells if re.search(only, cell.key)]


def counts_of(cell: Cell, source: CudaSource) -> emulator.Counts:
    """The counts of one launch of a source at a cell's shape."""
    return emulator.count(source, dict(zip(source.dims, cell.shape, strict=True)))


class Counter:
    """The device of a worker that counts."""

    def __init__(self, project: Project, package: Package, *_: object) -> None:
        self.project = project
        self.package = package

    def facts(self) -> Facts:
        try:
            compiler: str | None = cxx_compiler().title
        except ToolMissing:
            compiler = None
        return {
            "packages": packages(self.project.conditions),
            "emulator": IDENTITY.version,
            "compiler": compiler,
        }

    def measure(self, cell: Cell) -> Measurement:
        """The counts of one launch of a rung, after a check that the rung is right.

        Raises: NotHere, Absent; WrongOutput; OutOfBounds; CompileError if g++ rejects the source; ToolMissing.
        """
        source = self.package.cuda_source(cell.op, cell.rung, cell.type)
        why = self._wrong(cell, source)
        if why:
            raise WrongOutput(why)
        counts = counts_of(cell, source)
        return {
            "global_load": vars(counts.global_load),
            "global_store": vars(counts.global_store),
            "shared_load": vars(counts.shared_load),
            "shared_store": vars(counts.shared_store),
            "moved_bytes": counts.moved_bytes,
            "compulsory_bytes": counts.compulsory_bytes,
            "blocks": counts.blocks,
            "barriers": counts.barriers,
        }

    def _wrong(self, cell: Cell, source: CudaSource) -> str:
        """Why a rung is not right; "" if it is. It is checked for faults and for its output on small integers, whose
        sums are exact."""
        shape = CHECKED[: len(source.dims)]
        computes = self.project.computes(cell.op, cell.rung)
        operands = computes.operands(shape, cell.type)
        rng = np.random.default_rng(0)
        inputs = [rng.integers(0, 4, array.shape).astype(array.dtype) for array in operands.inputs]
        faults, out = emulator.run_checked(source, inputs)
        if faults:
            return str(faults[0]) if len(faults) == 1 else f"{faults[0]}; and {len(faults) - 1} more"
        return describe_wrong(replace(cell, shape=shape), computes, inputs, [out], dict(operands.scalars), np)
