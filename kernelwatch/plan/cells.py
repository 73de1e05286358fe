"""Plans the cells of a problem: one rung or reference line, for one type, at one shape, in one cache state."""

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernelwatch.plan.problem import Problem, Rung, Shape, label
from kernelwatch.plan.project import Project

CACHES = ("cold", "hot")
COUNTED = "counted"  # takes the place of a cache state on the emulator, which has no caches


@dataclass(frozen=True)
class Cell:
    """One thing to measure.

    `cache`: "cold" rotates over buffers of several times the size of the last-level cache, "hot" stays within it.
    `reference`: whether `rung` is a reference line.
    `repeats`: how often one launch does the work.
    `threads`: "all" if the rung uses every core, else "1".
    `launch_cost`: whether the cost of a launch is measured as well.
    `arch`: the architecture, for a cell that is only compiled; such a cell has no shape.
    """

    op: str
    rung: str
    type: str
    shape: Shape
    cache: str
    device: str
    reference: bool = False
    repeats: int = 1
    threads: str = "1"
    launch_cost: bool = False
    arch: str = ""

    @property
    def name(self) -> str:
        """The rung's name in messages: op/rung."""
        return f"{self.op}/{self.rung}"

    @property
    def key(self) -> str:
        """The cell's name in results and messages."""
        if self.arch:
            return f"{self.name} {self.type} {self.arch}"
        return key(self.op, self.rung, self.type, self.shape, self.cache)

    def as_json(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; `from_json` reverses it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Cell":
        """The cell with these fields."""
        return cls(**values | {"shape": tuple(values["shape"])})


def key(op: str, rung: str, type: str, shape: Shape, cache: str) -> str:
    """A cell's name in results and messages."""
    return f"{op}/{rung} {type} {label(shape)} {cache}"


def selection(only: str = "", shape: str = "", type: str = "", cache: str = "") -> str:
    """A regular expression for the keys of the cells that match `only` and have this shape, type and cache state; ""
    matches all."""
    if not (shape or type or cache):
        return only  # as it was typed, for messages
    parts = [f"(?=.*(?:{only}))"] if only else []
    if type:
        parts.append(f"(?=\\S+ {re.escape(type)} )")
    if shape:
        parts.append(f"(?=\\S+ \\S+ {re.escape(shape)} )")
    if cache:
        parts.append(f"(?=.* {re.escape(cache)}$)")
    return "^" + "".join(parts)


def rungs(problem: Problem, device: str) -> list[str]:
    """The rungs of a problem on a device ("gpu" or "cpu") in the ladder's order, then the reference lines on a GPU."""
    names = [rung.name for rung in problem.rungs if rung.device == device and rung.where == "device"]
    return names + list(problem.lines if device == "gpu" else ())


def _of_rung(problem: Problem, rung: Rung, device: str, quick: bool) -> list[Cell]:
    """The cells of one rung on a device."""
    shapes, hot = problem.timed(device, quick), problem.hot_shapes
    main = problem.main_type(rung.name)
    if rung.repeats == 1:
        wanted = [(main, shape, cache) for shape in shapes for cache in CACHES if cache == "cold" or shape in hot]
    else:  # it repeats the work on data in a cache, and is compared with the cost of a launch: the smallest shape, hot
        wanted = [(main, shapes[0], "hot")]
    if device == "gpu" and not quick and rung.repeats == 1 and problem.element_shape:
        wanted += [(type, problem.element_shape, CACHES[0]) for type in rung.types if type != problem.types[0]]
    return [
        Cell(
            problem.name,
            rung.name,
            type,
            shape,
            cache,
            device,
            repeats=rung.repeats,
            threads=rung.threads,
            launch_cost=device == "gpu" and shape == shapes[0] and cache == "hot" and rung.repeats == 1,
        )
        for type, shape, cache in dict.fromkeys(wanted)
        if problem.within(rung, shape, type)
    ]


def _of_vendor(problem: Problem, device: str, others: list[Cell]) -> list[Cell]:
    """The vendor's rung at every type of its own, shape and cache state of `others` at which it is not timed yet."""
    name = problem.vendor.get(device)
    vendors = [cell for cell in others if cell.rung == name]
    if not vendors:
        return []
    planned = {(cell.type, cell.shape, cell.cache) for cell in vendors}
    places = dict.fromkeys((cell.type, cell.shape, cell.cache) for cell in others)
    return [
        replace(vendors[0], type=type, shape=shape, cache=cache, launch_cost=False)
        for type, shape, cache in places
        if type in problem.rung(vendors[0].rung).types and (type, shape, cache) not in planned
    ]


def _of_lines(problem: Problem, timed_cells: list[Cell]) -> list[Cell]:
    """The reference lines at every type, shape and cache state at which a rung is timed."""
    places = dict.fromkeys((cell.type, cell.shape, cell.cache) for cell in timed_cells)
    return [
        Cell(problem.name, name, type, shape, cache, "gpu", reference=True)
        for type, shape, cache in places
        for name in problem.lines
    ]


def plan(problem: Problem, device: str, *, quick: bool = False, only: str = "") -> list[Cell]:
    """The cells of a problem on a device: "gpu", "cpu", or one of its further devices.

    `quick`: fewer cells, for a first look. `only`: a regular expression on their keys, "" for all.
    """
    further = next((each for each in problem.devices if each.name == device), None)
    if further:
        places = () if quick and not further.quick_processes else further.places(problem)
        cells = [Cell(problem.name, *place, device, device) for place in places]
    else:
        cells = [
            cell
            for rung in problem.rungs
            if rung.device == device and rung.where == "device" and problem.timed(device, quick)
            for cell in _of_rung(problem, rung, device, quick)
        ]
        cells += _of_vendor(problem, device, cells)
        cells += _of_lines(problem, cells) if device == "gpu" else []
    return [cell for cell in cells if re.search(only, cell.key)]


def timed(project: Project, *, quick: bool = False, only: str = "") -> list[Cell]:
    """All cells of a project whose operands are in the device's memory. `quick`, `only`: as in `plan`."""
    return [
        cell
        for problem in project.problems
        for device in ("gpu", "cpu")
        for cell in plan(problem, device, quick=quick, only=only)
    ]
