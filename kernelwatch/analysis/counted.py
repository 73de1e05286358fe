"""The memory accesses of a rung's warps, counted on the emulator: exact, and the same with and without a GPU.

In a worker, the emulator compiles the measured commit's source with g++, runs it and counts. Counts are cached, so that
the next commit counts only the rungs that it changed.
"""

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import cache as once
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from kernelwatch import emulator
from kernelwatch.identity import COUNTED as IDENTITY
from kernelwatch.identity import HERE
from kernelwatch.plan import checks
from kernelwatch.plan.cells import COUNTED, Cell
from kernelwatch.plan.package import CudaSource, Package
from kernelwatch.plan.problem import Array, Problem, Shape
from kernelwatch.plan.project import Project
from kernelwatch.system import cache
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.tools import cxx_compiler, digest
from kernelwatch.timing import usage
from kernelwatch.timing.check import WrongOutput, describe_wrong, packages, poisoned
from kernelwatch.timing.record import Facts, Measurement

DEVICE = "access"
Result = TypeVar("Result")


def cuda(problem: Problem) -> dict[str, tuple[str, ...]]:
    """The CUDA rungs of a problem, which the emulator can run, and their types."""
    return {rung.name: rung.types for rung in problem.rungs if rung.is_cuda}


def places(problem: Problem) -> list[tuple[str, Shape]]:
    """The types and shapes at which a problem is counted: the first shape with every type, the other shapes with only
    the main types of its rungs."""
    if not problem.counted_shapes:
        return []
    first, *others = problem.counted_shapes
    cuda_types = {type for types in cuda(problem).values() for type in types}
    main_types = dict.fromkeys(problem.main_type(rung) for rung in cuda(problem))
    return [
        *((type, first) for type in problem.types if type in cuda_types),
        *((type, shape) for shape in others for type in main_types),
    ]


def plan(problem: Problem, only: str = "") -> list[Cell]:
    """The cells of a problem that are counted. `only`: a regular expression on their keys."""
    cells = [
        Cell(problem.name, rung.name, type, shape, COUNTED, DEVICE)
        for rung in problem.rungs
        for type, shape in places(problem)
        if type in cuda(problem).get(rung.name, ()) and problem.within(rung, shape, type)
    ]
    return [cell for cell in cells if re.search(only, cell.key)]


def counts_of(cell: Cell, source: CudaSource) -> emulator.Counts:
    """The counts of one launch of a source at a cell's shape."""
    return emulator.count(source, dict(zip(source.dims, cell.shape, strict=True)))


@once
def _counting() -> str:
    """A hash of the code that counts and of the code that makes the inputs."""
    files = [path for pattern in IDENTITY.files for path in sorted(HERE.glob(pattern)) if path.is_file()]
    return digest(IDENTITY.version, *(path.read_text(encoding="utf-8") for path in (*files, Path(checks.__file__))))


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
        """The counts of one launch of a rung, which must be right at this shape and at those of `_check`.

        Raises: NotHere, Absent; Faulty, WrongOutput; CompileError if g++ rejects the source; ToolMissing.
        """
        usage.declared(self.project, cell)
        kernel = emulator.Emulated(self.package.cuda_source(cell.op, cell.rung, cell.type))
        self._check(cell, kernel)
        source, extents = kernel.kernel.source, dict(zip(kernel.kernel.source.dims, cell.shape, strict=True))
        if source.arguments:  # code of the package, which is part of no key
            return self._count(cell, kernel)

        def count(path: Path) -> None:
            path.write_text(json.dumps(self._count(cell, kernel)), encoding="utf-8")

        operands = (source.dims, source.inputs, source.output)
        launched = (source.grid(extents), source.block, source.dynamic_shared_bytes)
        repeats = self.package.repeats(cell.op, cell.rung)
        made = cache.inputs(kernel.kernel.path)
        key = digest("counts", made, cell.key, operands, launched, repeats, self._described(), _counting())
        path = cache.built(key, ".counts", count)
        return cast(Measurement, json.loads(path.read_text(encoding="utf-8")))

    def _count(self, cell: Cell, kernel: emulator.Emulated) -> Measurement:
        """The counts of a cell as its record. Raises: Faulty, WrongOutput."""
        counts = self._run(cell, lambda inputs, out: emulator.count_on(kernel.kernel, inputs, out))
        self._check_repeats(cell, counts)
        return {
            "global_load": vars(counts.global_load),
            "global_store": vars(counts.global_store),
            "shared_load": vars(counts.shared_load),
            "shared_store": vars(counts.shared_store),
            "moved_bytes": counts.moved_bytes,
            "compulsory_bytes": counts.compulsory_bytes,
            "blocks": counts.blocks,
            "barriers": counts.barriers,
            "repeats": self.package.repeats(cell.op, cell.rung),
        }

    def _check(self, cell: Cell, kernel: emulator.Emulated) -> None:
        """Check a rung for every kind of fault at a ragged shape of its tile, and with its main type for its output at
        long shapes. A compiled kernel that was right is not checked again. Raises: Faulty, WrongOutput."""
        source, problem = kernel.kernel.source, self.project.op(cell.op)
        rung, operands = problem.rung(cell.rung), problem.computes(cell.rung).operands
        ragged = checks.ragged(checks.steps_of(source))
        long = checks.LONG.get(len(source.dims), ()) if cell.type == problem.main_type(cell.rung) else ()
        long = tuple(shape for shape in long if operands(shape, cell.type).nbytes <= checks.LONG_BYTES_MOST)
        shapes = [shape for shape in (ragged, *long) if problem.takes(rung, shape, cell.type)]

        def run(shape: Shape) -> None:
            at = replace(cell, shape=shape)
            self._run(at, lambda inputs, out: kernel(*inputs, out=out, thorough=shape == ragged))

        def run_all(path: Path) -> None:
            for shape in shapes:
                run(shape)
            path.touch()

        if source.arguments:  # code of the package, which is part of no key
            for shape in shapes:
                run(shape)
            return
        grids = [source.grid(dict(zip(source.dims, shape, strict=True))) for shape in shapes]
        launched = (shapes, grids, source.block, source.dynamic_shared_bytes)
        operands_named = (source.dims, source.inputs, source.output)
        what = (cell.name, cell.type, cache.inputs(kernel.kernel.path), operands_named, launched)
        cache.built(digest("right", *what, self._described(), _counting()), ".right", run_all)

    def _described(self) -> str:
        """A hash of the project's description, with the modules beside it that it may import."""
        folder = self.project.here.parent
        files = sorted(folder.rglob("*.py"))
        return digest(*(text for path in files for text in (path.relative_to(folder), path.read_text("utf-8"))))

    def _run(self, cell: Cell, launch: Callable[[list[Array], Array], Result]) -> Result:
        """Call `launch(inputs, out)` with inputs of small integers, and check the output. Raises: WrongOutput."""
        computes = self.project.computes(cell.op, cell.rung)
        operands = computes.operands(cell.shape, cell.type)
        inputs, (output,) = checks.inputs(operands, np.random.default_rng(0)), operands.outputs
        out, key = np.empty(output.shape, output.dtype), (secrets.randbits(32),)
        poisoned(out, key)
        result = launch(inputs, out)
        if why := describe_wrong(cell, computes, inputs, [out], dict(operands.scalars), np, key=key):
            raise WrongOutput(why)
        return result

    def _check_repeats(self, cell: Cell, counts: emulator.Counts) -> None:
        """Check that a rung that repeats its work writes its output each time. Raises: WrongOutput."""
        repeats = self.package.repeats(cell.op, cell.rung)
        (output,) = self.project.computes(cell.op, cell.rung).operands(cell.shape, cell.type).outputs
        times = counts.stored_bytes / output.nbytes
        if repeats > 1 and times < repeats:
            raise WrongOutput(f"{cell.name}: a launch writes its output {times:g} times, and should {repeats} times")
