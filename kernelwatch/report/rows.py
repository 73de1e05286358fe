"""Make table rows of an op's ladder: each rung's cell at one shape, its rate and its share."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernelwatch.history.records import Measured, Record
from kernelwatch.plan.cells import CACHES
from kernelwatch.plan.problem import Kind, Problem, Shape, label
from kernelwatch.plan.project import Project


@dataclass(frozen=True)
class Row:
    """A row of the ladder's table."""

    rung: str
    idea: str
    cell: Measured
    rate: float  # bytes/s; FLOP/s if operations count
    share: float  # of the vector copy's rate; of the rate of the vendor's rung of the same kind if operations count
    kind: Kind


def ladder(
    record: Record, problem: Problem, device: str, shape: Shape, cache: str, type: str | None = None
) -> list[Row]:
    """The rows of a problem's ladder at one shape. `type`: None stands for each rung's main type.

    Only cells that were measured or failed have a row. The share is NaN if the rate it refers to is missing. An op
    whose rungs the ladder does not have yet, as that of an older checkout, has no type, and no row.
    """
    if not problem.types:
        return []
    ideas = {rung.name: rung.idea for rung in problem.rungs if rung.device == device}
    if device == "gpu":
        ideas |= dict.fromkeys(problem.lines, "reference line")
    rows = []
    for rung, idea in ideas.items():
        own = type or problem.main_type(rung)
        place = f"{own} {label(shape)} {cache}"
        cell = record.cells.get(f"{problem.name}/{rung} {place}")
        if cell is None or not (cell.seconds or cell.state == "failed"):
            continue
        rate = problem.rate(rung, own, shape, cell.median_s) if cell.seconds else math.nan
        kind = problem.kind(rung, own)
        against = problem.held_against(device, kind)
        base = record.cells.get(f"{problem.name}/{against} {place}")
        full_rate = problem.rate(against, own, shape, base.median_s) if base and base.seconds else math.nan
        name = rung if own == (type or problem.types[0]) else f"{rung} ({own})"
        rows.append(Row(name, idea, cell, rate, rate / full_rate, kind))
    return rows


@dataclass(frozen=True)
class Section:
    """A problem's ladder on one device, at one shape, in one cache state."""

    title: str
    problem: Problem
    device: str
    shape: Shape
    cache: str
    rows: list[Row]
    against: str  # the rung or line whose rate is 100 % for most of them

    def by_kind(self) -> list["Section"]:
        """A section for each kind of what its rungs compute, the first rung's first: the rates of two are not
        comparable."""
        kinds = dict.fromkeys(row.kind for row in self.rows)
        return [self._of_kind(kind) for kind in kinds]

    def _of_kind(self, kind: Kind) -> "Section":
        rows = [replace(row, rung=row.rung.partition(" ")[0]) for row in self.rows if row.kind == kind]
        where = f"{label(self.shape)}, {self.cache}, {self.device.upper()}"
        title = f"{kind.title(self.problem.name)} {where}"
        return replace(self, title=title, rows=rows, against=self.problem.held_against(self.device, kind))

    @property
    def group(self) -> str:
        """The title without the shape: the sections of a group differ in their shapes only."""
        return self.title.replace(f" {label(self.shape)},", ",", 1)


def sections(
    record: Record,
    project: Project,
    ops: list[str],
    shapes: list[Shape] | None = None,
    type: str | None = None,
    only: str = "",
) -> list[Section]:
    """A section for each op, device, shape and cache state that has rows. `only`: a device, "" for all."""
    parts = []
    for problem in map(project.op, ops):
        for device in (only,) if only else ("gpu", "cpu"):
            for shape in problem.shapes if device == "gpu" else problem.cpu_shapes:
                for cache in CACHES:
                    rows = ladder(record, problem, device, shape, cache, type)
                    if rows and (shapes is None or shape in shapes):
                        title = f"{problem.name} {type or problem.types[0]} {label(shape)}, {cache}, {device.upper()}"
                        parts.append(Section(title, problem, device, shape, cache, rows, problem.held_against(device)))
    return parts


def by_reason(reasons: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Pairs of a key and a reason as reason -> keys. Reasons that differ only in words of the keys (a compiler's
    error for each type and architecture) are one, which is shown as the first of them."""
    pairs = list(reasons)
    words = {word for key, _ in pairs for word in re.split(r"[\s,()/]+", key) if word}
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    shown: dict[str, str] = {}
    keys: dict[str, list[str]] = {}
    for key, reason in pairs:
        general = re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", "", reason)
        keys.setdefault(shown.setdefault(general, reason), []).append(key)
    return keys


def reasons(cells: Iterable[Measured], state: str) -> dict[str, list[str]]:
    """Why the cells in a state have no figure: reason -> keys."""
    return by_reason((cell.key, cell.reason) for cell in cells if cell.state == state)
