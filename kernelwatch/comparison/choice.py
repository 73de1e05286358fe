"""Choose what to compare: the cells to time with their controls, and the rungs whose exact figures count."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kernelwatch.analysis import compiled
from kernelwatch.comparison.paired import controls_of
from kernelwatch.plan.cells import Cell, rungs, timed
from kernelwatch.plan.project import Project, check_described
from kernelwatch.system.errors import UserError


@dataclass(frozen=True)
class Choice:
    """What to compare. `cells`: those to time; `controls`: the key of a cell's control by the key of the cell; `exact`:
    the rungs ("op/rung") whose exact figures are compared."""

    cells: list[Cell]
    controls: dict[str, str]
    exact: set[str]


def choose(project: Project, wanted: Iterable[Cell], exact: set[str], changed: Iterable[str]) -> Choice:
    """These cells with their controls. The control of an op on a device is the reference or vendor line that its rungs
    are compared with, or else the first rung that is not `changed`."""
    wanted, controls, changed = list(wanted), {}, set(changed)
    for problem in project.problems:
        for device in ("gpu", "cpu"):
            line = problem.held_against(device)
            names = [line, *rungs(problem, device)] if line else rungs(problem, device)
            unchanged = (name for name in names if f"{problem.name}/{name}" not in changed)
            controls[problem.name, device] = next(unchanged, "")
    control_of = controls_of(wanted, controls)
    every = {cell.key: cell for cell in (*timed(project), *_beside(project, wanted, controls))}
    added = [every[key] for key in control_of.values() if key in every]
    cells = [replace(cell, launch_cost=False) for cell in dict.fromkeys([*wanted, *added])]
    return Choice(cells, control_of, exact)


def _beside(project: Project, wanted: Iterable[Cell], controls: Mapping[tuple[str, str], str]) -> list[Cell]:
    """The controls of cells as cells, for those that no suite times. `controls`: rungs by op and device."""
    found = []
    for cell in wanted:
        problem, name = project.op(cell.op), controls[cell.op, cell.device]
        own = next((rung for rung in problem.rungs if rung.name == name), None)
        if own and cell.type in own.types and problem.takes(own, cell.shape, cell.type):
            found.append(replace(cell, rung=name, threads=own.threads, repeats=own.repeats))
    return found


def cells_of(project: Project, types: Mapping[str, Collection[str]], only: str = "") -> list[Cell]:
    """The cells of rungs with these types, by "op/rung". A type of a rung that no suite times gets a cell at one of the
    rung's shapes: that of other types, else the largest that it takes. `only`: a regular expression on the keys."""
    every = [cell for cell in timed(project) if not cell.reference and cell.name in types]
    cells = [cell for cell in every if cell.type in types[cell.name]]
    planned = {(cell.name, cell.type) for cell in cells}
    for name, wanted in types.items():
        problem, rung = project.op(name.partition("/")[0]), name.partition("/")[2]
        for type in wanted:
            near = [
                cell
                for cell in every
                if cell.name == name and problem.takes(problem.rung(rung), cell.shape, type)
            ]  # fmt: skip
            if near and (name, type) not in planned:
                best = max(near, key=lambda cell: (cell.shape == problem.element_shape, math.prod(cell.shape)))
                cells.append(replace(best, type=type, launch_cost=False))
    return [cell for cell in cells if re.search(only, cell.key)]


def main_types(project: Project, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The main type of each of these rungs ("op/rung")."""
    parts = {name: name.partition("/") for name in names}
    return {name: (project.op(op).main_type(rung),) for name, (op, _, rung) in parts.items()}


def before_in_ladder(project: Project, name: str) -> str:
    """The rung ("op/rung") that a rung of the same device follows in the ladder; "" if it is the first."""
    op, _, rung = name.partition("/")
    device = project.op(op).rung(rung).device
    names = [""]
    for other in project.op(op).rungs:
        if other.name == rung:
            break
        if other.device == device:
            names.append(f"{op}/{other.name}")
    return names[-1]


def by_pattern(project: Project, pattern: str, changed: Iterable[str], unmatched: str = "") -> Choice:
    """The cells whose keys match, with the exact figures of their rungs and of the compilation targets that match.
    Raises: UserError if there are none, which says `unmatched`."""
    every = timed(project)
    check_described(project, project.rungs())
    cells = [cell for cell in every if re.search(pattern, cell.key)]
    targets = [target for problem in project.problems for target in compiled.plan(problem, pattern)]
    if not cells and not targets:
        example = f"; one is named like {every[0].key!r}" if every else ", since no suite times any"
        raise UserError(unmatched or f"no cell matches {pattern!r}{example}")
    return choose(project, cells, {cell.name for cell in [*cells, *targets]}, changed)
