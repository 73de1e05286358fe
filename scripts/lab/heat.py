#!/usr/bin/env python3
"""Shows that the SM clock of kernels on tensor cores moves with the heat of the GPU.

Two sidecars of one commit, taken one after the other on one GPU, are held against each other: ALONE has a few cells,
AMONG has them among many others, which heat the GPU. What the cells took goes to docs/heat.jsonl, a line each, and from
there to a table of docs/research/measuring.md. A second table comes from three records in results/: the kernels
whose own work lowers the clock, by the process that measured them. With no sidecars it only writes the tables.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelwatch.history.records import Measured, Record, read
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import POWER_CLOCK, STEADY_CLOCK
from lab.figures import write_block
from lab.quiet import clocks, cold, recorded

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "heat.jsonl", ROOT / "docs" / "research" / "measuring.md"
SHOWN = ("686b6c50", "1376bf80", "b8ee5444")  # records before and after the A/A
PROCESSES = range(6)
LEAST = 5  # processes of a cell, so that each row has the same cells or nearly so
Readings = dict[str, float]


def readings(measurements: Iterable[Measurement]) -> Readings:
    """The medians of the seconds and the SM clock, the means of the temperature in degrees C and the board's power."""
    own = [each for each in measurements if each.get("clock64_mhz")]
    states = [each["state"] for each in own]
    return {
        "seconds": statistics.median(each["seconds"] for each in own),
        "mhz": statistics.median(float(each["clock64_mhz"] or 0) for each in own),
        "celsius": statistics.fmean(float(state["temperature_c"] or 0) for state in states),
        "watts": statistics.fmean(float(state["power_w"] or 0) for state in states),
    }


def highest(record: Record) -> float:
    """The highest SM clock of a record: a wrong reading is none."""
    return statistics.quantiles([max(clocks(cell)) for cell in cold(record) if clocks(cell)], n=4)[-1]


TENSOR, POWER, NOTHING = "tensor cores lower it", "the power limit lowers it", "the highest"


def held_by(mhz: float, most: float) -> str:
    """What held an SM clock. `most`: the highest one."""
    return NOTHING if mhz >= STEADY_CLOCK * most else TENSOR if mhz >= POWER_CLOCK * most else POWER


def pair(alone: Record, among: Record) -> list[dict[str, Any]]:
    """A line for each cold GPU cell of both. Raises: UserError if they are not of one commit and one GPU, or if both
    have no such cell whose clock tensor cores lowered."""
    who = [
        {(group, facts.get("nvml_uuid_sha256")) for group, facts in record.facts.items() if group.endswith(" gpu")}
        for record in (alone, among)
    ]
    if alone.commit != among.commit or not who[0] & who[1]:
        raise UserError("the two sidecars are not of one commit and one GPU")
    most = highest(among)
    beside = {cell.key: cell for cell in cold(among)}
    lines = [
        {
            "key": cell.key,
            "held_by": held_by(readings(beside[cell.key].measurements)["mhz"], most),
            "alone": readings(cell.measurements),
            "among": readings(beside[cell.key].measurements),
        }
        for cell in cold(alone)
        if cell.key in beside and clocks(cell) and clocks(beside[cell.key])
    ]
    if not any(line["held_by"] == TENSOR for line in lines):
        raise UserError(
            "no cold cell of both sidecars has a clock that tensor cores lowered: there is nothing to compare"
        )
    return lines


def by_side(lines: Sequence[dict[str, Any]]) -> str:
    """A row for each of what held the clocks of cells."""
    rows = []
    for title in (TENSOR, POWER, NOTHING):
        if not (own := [line for line in lines if line["held_by"] == title]):
            continue

        def mean(side: str, name: str, own: Sequence[dict[str, Any]] = own) -> float:
            return statistics.fmean(line[side][name] for line in own)

        def changes(name: str, own: Sequence[dict[str, Any]] = own) -> list[float]:
            return [line["among"][name] / line["alone"][name] - 1 for line in own]

        heat = [f"{mean(side, 'celsius'):.1f}, {mean(side, 'watts'):.0f} W" for side in ("alone", "among")]
        moved = [f"{100 * statistics.median(changes(name)):+.2f} %" for name in ("mhz", "seconds")]
        far = sum(abs(change) > 0.0025 for change in changes("seconds")) / len(own)
        rows.append([title, str(len(own)), *heat, *moved, percent(far, 0)])
    return table(["clock", "cells", "alone, C", "among others, C", "clock", "time", "by over 0.25 %"], rows)


def by_process(records: Sequence[Record]) -> str:
    """A row for each process: how hot it found the GPU, and by how much the clock and the time of the kernels on tensor
    cores differ from their means over the processes."""
    cells = [of_tensor_cores(record) for record in records]
    firsts = [f"{record.commit}, {len(own)} cells: C" for record, own in zip(records, cells, strict=True)]
    heads = [head for first in firsts for head in (first, "W", "clock", "time")]
    rows = [[str(process), *(text for own in cells for text in _texts(own, process))] for process in PROCESSES]
    return table(["process", *heads], rows)


def of_tensor_cores(record: Record) -> list[Measured]:
    """The cold cells whose clock work on tensor cores lowered, of which LEAST processes or more read it."""
    most = highest(record)
    cells = [cell for cell in cold(record) if len(clocks(cell)) == len(cell.measurements) >= LEAST]
    return [cell for cell in cells if held_by(statistics.fmean(clocks(cell)), most) == TENSOR]


def _texts(cells: Sequence[Measured], process: int) -> list[str]:
    def apart(value: Callable[[Measurement], float]) -> str:
        found = []
        for cell in cells:
            mean = statistics.fmean(map(value, cell.measurements))
            found += [value(each) / mean - 1 for each in cell.measurements if each["process"] == process]
        return f"{100 * statistics.fmean(found):+.2f} %" if found else "n/a"

    states = [each["state"] for cell in cells for each in cell.measurements if each["process"] == process]
    if not states:
        return ["n/a"] * 4
    heat = [statistics.fmean(float(state[name] or 0) for state in states) for name in ("temperature_c", "power_w")]
    clock = apart(lambda each: float(each["clock64_mhz"] or 0))
    return [f"{heat[0]:.1f}", f"{heat[1]:.0f}", clock, apart(lambda each: each["seconds"])]


def shown() -> list[Record]:
    """The records of the second table."""
    return [record for record in recorded("h200") if record.commit in SHOWN]


def main(arguments: list[str] | None = None) -> int:
    """Hold two sidecars against each other, or only write the tables; the exit code."""
    parser = Parser("scripts/lab/heat", __doc__)
    parser.add_argument("sidecars", nargs="*", type=Path, metavar="ALONE AMONG", help="two sidecars of one commit")
    options = parser.parse_args(arguments)
    if len(options.sidecars) not in (0, 2):
        parser.error(f"takes two sidecars, or none, got {len(options.sidecars)}")
    if options.sidecars:
        write_whole(RECORD, "".join(f"{json.dumps(line)}\n" for line in pair(*map(read, options.sidecars))))
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    write_block(PAGE, "heat", by_side(lines), "scripts/lab/heat")
    write_block(
        PAGE,
        "processes",
        by_process(shown()),
        "scripts/lab/heat",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
