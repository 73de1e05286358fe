"""Make tables of what rungs compile to: the compile-time figures of an op for one architecture."""

import math

from rich.console import Console
from rich.table import Table

from kernelwatch.analysis.compiled import DEVICE, compiled, target
from kernelwatch.analysis.sass import CLASSES
from kernelwatch.history.records import Measured, Record
from kernelwatch.plan.problem import Problem
from kernelwatch.plan.project import Project
from kernelwatch.report.markdown import table
from kernelwatch.report.terminal import show_reasons
from kernelwatch.timing.record import Measurement, number

HEADERS = ("rung", "registers", "shared bytes", "spill bytes", "occupancy", "instructions", *CLASSES)


def cells_of(record: Record, problem: Problem, arch: str, type: str | None = None) -> dict[str, Measured]:
    """The compiled cells of an op by rung. `type`: None stands for each rung's main type."""
    found = {}
    for rung in compiled(problem):
        own = type or problem.main_type(rung)
        cell = record.cells.get(target(problem.name, rung, own, arch).key)
        if cell:
            found[rung if own == (type or problem.types[0]) else f"{rung} ({own})"] = cell
    return found


def texts(figures: Measurement) -> list[str]:
    """A rung's figures under HEADERS, "" where the machine that compiled it lacked what tells one."""
    known = [number(figures, name) for name in ("registers", "shared_bytes")]
    spills = [number(figures, f"spill_{way}_bytes") for way in ("load", "store")]
    known.append(None if None in spills else math.fsum(filter(None, spills)))
    occupancy = number(figures, "occupancy_percent")
    counts = [number(figures, "instructions"), *(number(figures, "mix", kind) for kind in CLASSES)]
    return [*map(_whole, known), "" if occupancy is None else f"{occupancy:.3g} %", *map(_whole, counts)]


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def rows(cells: dict[str, Measured]) -> list[list[str]]:
    """The table's rows: of the cells that have figures."""
    return [[rung, *texts(cell.measurements[0])] for rung, cell in cells.items() if cell.measurements]


def title(record: Record, op: str, arch: str, type: str | None) -> str:
    """What was compiled, for what, and the versions of what compiled it."""
    facts = record.facts.get(f"{op} {DEVICE}", {})
    nvrtc = {name: version for name, version in facts.get("packages", {}).items() if "nvrtc" in name}
    versions = ", ".join(f"{name} {version}" for name, version in (nvrtc | facts.get("imports", {})).items())
    return "; ".join(filter(None, (f"{op} {type}" if type else op, f"compiled for {arch}", versions)))


def show(record: Record, project: Project, console: Console, ops: list[str], arch: str, type: str | None) -> None:
    """Print a table for each op, then why rungs have no figure. A narrow terminal has no instructions by class."""
    for op in ops:
        cells = cells_of(record, project.op(op), arch, type)
        if found := rows(cells):
            widths = [max(map(len, column)) + 3 for column in zip(HEADERS, *found, strict=True)]
            columns = HEADERS if sum(widths) < console.width else HEADERS[: -len(CLASSES)]
            shown = Table()
            for header in columns:
                shown.add_column(header, justify="left" if header == "rung" else "right", no_wrap=" " not in header)
            for row in found:
                shown.add_row(*row[: len(columns)])
            console.print(title(record, op, arch, type), style="italic", markup=False)
            console.print(shown)
            if columns != HEADERS:
                console.print("instructions by class: in a wider terminal, or with --markdown", style="dim")
        show_reasons(cells.values(), console)


def markdown(record: Record, project: Project, ops: list[str], arch: str, type: str | None) -> str:
    """The tables as Markdown."""
    parts = []
    for op in ops:
        if found := rows(cells_of(record, project.op(op), arch, type)):
            parts.append(f"**{title(record, op, arch, type)}** (commit {record.commit})\n\n{table([*HEADERS], found)}")
    return "\n\n".join(parts)
