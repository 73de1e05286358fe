"""Launches kernels under a profiler or a sanitizer, as their child process.

`python -m kernelwatch.timing.launches WHAT ROOT ARGUMENTS`, for the project's checkout in ROOT. WHAT and ARGUMENTS:

- `rotating CELL COUNT`: launch a cell over its rotating buffers;
- `each CELLS FILE`: launch each cell once, and write CUDA's attributes of its loaded kernel into a file;
- `all ONLY TOOL`: launch every GPU rung and type at ragged extents, with each array in an allocation of its own, for a
  tool of the sanitizer.

CELL and CELLS are JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np

from kernelwatch.plan import checks
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Absent, Kernel, NotHere, Package
from kernelwatch.plan.problem import Array, Problem, Rung, Shape
from kernelwatch.plan.project import Project, import_package, load
from kernelwatch.timing.launch import bind

# Compile-time figure -> CUDA's name for it as an attribute of the loaded kernel.
ATTRIBUTES = {"registers": "num_regs", "static_shared_bytes": "shared_size_bytes", "stack_bytes": "local_size_bytes"}

CHILD = ("-m", "kernelwatch.timing.launches")  # the arguments of Python that start this module
DEEP = 16  # steps along the last dimension that a shape for the sanitizer has besides
TILE = 256  # of a rung whose tile is not known: as large as any that is usual


def rotating(project: Project, package: Package, cell: Cell, count: int) -> None:
    """Launch a cell `count` times over its rotating buffers. Raises: any error of loading, binding or launching."""
    from kernelwatch.timing.gpu import Gpu

    gpu = Gpu(project, package, [cell], Budget(samples=5, sample_s=0.002), seed=0)
    gpu.launch_all(cell, count)


def shapes_of(package: Package, op: str, rung: str, type: str, dims: int) -> tuple[Shape, ...]:
    """Ragged shapes of more than one tile of a rung; one that shows more comes first.

    In that one, the last dimension has DEEP more steps: a ring of buffers is filled more than once, and a sum that may
    be split among blocks is split. If no CUDA source shows the tile of a rung, TILE in each dimension is taken for it.
    """
    try:
        steps = checks.steps_of(package.cuda_source(op, rung, type))
    except (Absent, NotHere):
        steps = (TILE,) * dims
        return checks.ragged(steps), checks.ragged((checks.STEP,) * dims)
    *others, last = checks.ragged(steps)
    return (*others, last + DEEP * steps[-1]), (*others, last)


def shape_of(package: Package, problem: Problem, rung: Rung, type: str) -> Shape:
    """The first of a rung's shapes that it takes and that is not large; if it takes no ragged one, one of the
    problem's; the last one if it takes none."""
    shapes = shapes_of(package, problem.name, rung.name, type, len(problem.shapes[0]))
    if not any(problem.takes(rung, shape, type) for shape in shapes):
        shapes = (*shapes, *problem.counted_shapes, *problem.timed(rung.device, quick=False))
    operands = problem.computes(rung.name).operands
    fit = (shape for shape in shapes if problem.takes(rung, shape, type))
    return next((shape for shape in fit if operands(shape, type).nbytes <= checks.LONG_BYTES_MOST), shapes[-1])


def _copied(array: Array) -> Array:
    """A copy on the GPU. Of 8-bit numbers CuPy copies the bytes."""
    import cupy

    return cupy.asarray(array.view(np.uint8)).view(array.dtype) if array.itemsize == 1 else cupy.asarray(array)


def launch_cell(project: Project, kernel: Kernel, cell: Cell, *, where: str = "device") -> None:
    """Launch a kernel once on new arrays, and wait for it. `where`: the memory of the operands, "device" or "host"."""
    import cupy

    operands = project.computes(cell.op, cell.rung).operands(cell.shape, cell.type)
    inputs, empty = checks.inputs(operands, np.random.default_rng()), np.empty
    if where == "device":  # the outputs are not copied, so that initcheck sees a read of unwritten elements
        inputs, empty = list(map(_copied, inputs)), cupy.empty
    outs = [empty(array.shape, array.dtype) for array in operands.outputs]
    bind(kernel, project.ops[cell.op].rung(cell.rung), operands, inputs, outs)()
    cupy.cuda.runtime.deviceSynchronize()


def each(project: Project, package: Package, cells: list[Cell], attributes: Path) -> None:
    """Launch each cell once, and append CUDA's attributes of its kernel to a file, a JSON line for each cell."""
    import cupy

    for cell in cells:
        launch_cell(project, package.load(cell.op, cell.rung, cell.type), cell)
        binary = package.binary(cell.op, cell.rung, cell.type, f"sm_{cupy.cuda.Device().compute_capability}")
        own = cupy.RawModule(path=str(binary.path)).get_function(binary.symbol).attributes
        with attributes.open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: own[attribute] for name, attribute in ATTRIBUTES.items()}) + "\n")


def _not_here(package: Package) -> tuple[type[Exception], ...]:
    """The errors of a rung that this commit or this machine lacks."""
    return (Absent, NotHere, *package.not_here)


def everything(project: Project, package: Package, only: str, tool: str) -> tuple[int, int]:
    """Launch every GPU rung and type once at ragged extents; the number of launches, and of the rungs that are left out
    since the tool cannot judge them. `only`: a part of "op/rung"."""
    import cupy

    cupy.cuda.set_allocator(None)  # a pool would put other arrays where an overrun lands
    count = unjudged = 0
    for problem in project.problems:
        for rung in problem.rungs:
            alone = rung.device == "gpu" and problem.device_of(rung).alone
            name = f"{problem.name}/{rung.name}"
            chosen = alone and only in name
            if chosen and (reason := project.unsanitized.get((tool, name))):
                print(f"left out: {name}: {reason}")
                unjudged += 1
                continue
            for type in rung.types if chosen else ():
                shape = shape_of(package, problem, rung, type)
                if reason := problem.refusal(rung, shape, type):
                    print(f"left out: {name} {type}: {reason}")
                    continue
                cell = Cell(problem.name, rung.name, type, shape, "cold", "gpu")
                try:
                    kernels = package.variants(problem.name, rung.name, type)
                except _not_here(package) as error:
                    print(f"left out: {cell.name} {type}: {error}")
                    continue
                for kernel in kernels:
                    launch_cell(project, kernel, cell, where=rung.where)
                    count += 1
    print(f"{count} launches")
    return count, unjudged


def main(arguments: list[str]) -> int:
    """Run as the child process; the exit code: 1 if `all` has no rung. Raises: NotHere if WHAT is unknown."""
    what, root, *rest = arguments
    project = load(Path(root))
    package = import_package(project, str(project.repository))
    if what == "rotating":
        rotating(project, package, Cell.from_json(json.loads(rest[0])), int(rest[1]))
    elif what == "each":
        each(project, package, [Cell.from_json(values) for values in json.loads(rest[0])], Path(rest[1]))
    elif what == "all":
        return 0 if any(everything(project, package, *rest)) else 1
    else:
        raise NotHere(f"no launches called {what}; there are rotating, each, all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
