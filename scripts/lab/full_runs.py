#!/usr/bin/env python3
"""Shows how far full runs of one commit on several GPUs of a model agree: within a run, between two, between GPUs.

--add FOLDER ... adds runs to the record, docs/full_runs.jsonl: result folders that hold a sidecar and asv's result file
beside it. --new FOLDER ... begins it anew with such runs, of another commit. Its first line tells the runs, each other
line a GPU cell in all of them. From the record come the tables of docs/research/measuring.md. Without arguments it only
writes these.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kernelwatch.history.records import CellChange, Measured, Record, measured, read
from kernelwatch.history.same import MOVED_MOST
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.run.outcome import Outcome
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.timing.clocks import OWN
from kernelwatch.timing.record import Facts, Measurement
from lab import minutes
from lab.figures import write_block
from lab.quiet import WORST, cold, meeting, quantiles

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "full_runs.jsonl", ROOT / "docs" / "research" / "measuring.md"
WRITER = "scripts/lab/full_runs"
FACTS = ("gpu", "nvml_uuid_sha256", "nvml_driver", "harness", "neighbors", "others", "measured_at")
BARS = (0.0003, 0.0015, WORST)  # of the spread of unmarked cold cells at the highest clock: median, 90 %, most
MARKED_MOST = 0.05  # of the cold cells
FULL_MHZ = 1.0  # below the highest SM clock of a run: rounded, a process that was so near was at all of it
THEN = "46ae8df7"  # the newest record when the aim of five minutes was set


@dataclass(frozen=True)
class FullRun:
    """A full run. `facts`: those in FACTS; `caches`: of compiled kernels, "cold" or "warm" when it began; `taken_s`:
    how long its GPU suites took; `record`: its GPU cells, with what `measured` needs of their measurements; `spent_s`:
    how long all measurements of each cell took."""

    facts: dict[str, Any]
    caches: str
    taken_s: float
    record: Record
    spent_s: dict[str, float]

    @property
    def gpu(self) -> str:
        return str(self.facts["nvml_uuid_sha256"])

    @property
    def measurements(self) -> int:
        return sum(len(cell.seconds) for cell in self.record.cells.values())

    def unmarked(self, own: bool) -> dict[str, Measured]:
        """The cold cells that no limit holds, by key: those at their own clock, or those at the highest."""
        cells = (cell for cell in cold(self.record) if not cell.limits)
        return {cell.key: cell for cell in cells if bool(cell.own_clock_mhz) is own}

    @property
    def marked(self) -> float:
        """The share of cold cells with a limited clock."""
        cells = cold(self.record)
        return sum(bool(cell.limits) for cell in cells) / len(cells)


# --- the record ----------------------------------------------------------------------------------------------------


def taken(folder: Path, earlier: Sequence[FullRun]) -> FullRun:
    """The run of a result folder. `earlier`: the runs before it, of which one on the same GPU left the caches warm.

    Raises: UserError if the folder does not hold one sidecar, or if this is another commit or the same run.
    """
    paths = [*folder.glob("*.facts.jsonl")]
    if len(paths) != 1:
        raise UserError(f"{folder} should hold the sidecar of one run, not {len(paths)}")
    record, run = read(paths[0]), minutes.recorded(paths[0])
    facts: Any = record.facts[run.cells[0].group]
    kept = {name: facts.get(name) for name in FACTS}
    for other in earlier:
        if other.record.commit != record.commit:
            here = f"the record has runs of {other.record.commit}: begin it anew, by --new, or keep to that commit"
            raise UserError(f"{folder} is a run of {record.commit}, but {here}")
        if other.facts == kept:
            raise UserError(f"{folder} is in the record already")
    warm = any(other.gpu == kept["nvml_uuid_sha256"] for other in earlier)
    spent = {cell.key: sum(minutes.spent([cell]).values()) for cell in run.cells}
    return full_run(record.commit, kept, "warm" if warm else "cold", run.seconds, run.cells, spent)


def full_run(
    commit: str,
    facts: dict[str, Any],
    caches: str,
    taken_s: float,
    cells: Sequence[Measured],
    spent_s: dict[str, float],
) -> FullRun:
    """A run of these cells."""
    groups = {cell.group: cast(Facts, facts) for cell in cells}
    return FullRun(facts, caches, taken_s, Record("", commit, groups, {cell.key: cell for cell in cells}), spent_s)


def written(runs: Sequence[FullRun]) -> str:
    """The text of the record. What throttled a process is told by places in the `limits` of the first line."""
    every = [cell for run in runs for cell in run.record.cells.values()]
    known = {limit for cell in every for one in cell.measurements for limit in one["throttled"]}
    limits = [*OWN, *sorted(known.difference(OWN))]
    told = [{**run.facts, "caches": run.caches, "taken_s": round(run.taken_s, 3)} for run in runs]
    lines: list[dict[str, Any]] = [{"commit": runs[0].record.commit, "limits": limits, "runs": told}]
    for key in dict.fromkeys(cell.key for cell in every):
        own = [run.record.cells[key].measurements if key in run.record.cells else () for run in runs]
        lines.append(
            {
                "key": key,
                "seconds": [[float(f"{one['seconds']:.6g}") for one in each] for each in own],
                "mhz": [[round(mhz) if (mhz := one["clock64_mhz"]) else None for one in each] for each in own],
                "throttled": [
                    [[limits.index(str(limit)) for limit in one["throttled"]] for one in each] for each in own
                ],
                "spent_s": [round(run.spent_s.get(key, 0.0), 3) for run in runs],
            }
        )
    return "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)


def load(text: str) -> list[FullRun]:
    """The runs in the text of a record, in the order in which they were added."""
    first, *lines = map(json.loads, text.splitlines())
    runs = []
    for at, told in enumerate(first["runs"]):
        facts = {name: told[name] for name in FACTS}
        cells = [cell_of(line, at, first["limits"], facts) for line in lines if line["seconds"][at]]
        spent = {line["key"]: line["spent_s"][at] for line in lines}
        runs.append(full_run(first["commit"], facts, told["caches"], told["taken_s"], cells, spent))
    return runs


def cell_of(line: Mapping[str, Any], at: int, limits: Sequence[str], facts: dict[str, Any]) -> Measured:
    """The cell of a line in one of the runs."""
    own = zip(line["seconds"][at], line["mhz"][at], line["throttled"][at], strict=True)
    taken = [
        {"process": place, "seconds": seconds, "clock64_mhz": mhz, "throttled": [limits[limit] for limit in met]}
        for place, (seconds, mhz, met) in enumerate(own)
    ]
    group = f"{line['key'].partition('/')[0]} gpu"
    return measured(line["key"], Outcome("ok", "", cast(list[Measurement], taken)), group, cast(Facts, facts))


# --- the tables ----------------------------------------------------------------------------------------------------


def by_gpu(runs: Sequence[FullRun]) -> dict[str, list[FullRun]]:
    """The runs of each GPU, by a letter: its number is the one in the table of records."""
    gpus = dict.fromkeys(run.gpu for run in runs)
    return {f"GPU {chr(ord('A') + at)}": [run for run in runs if run.gpu == gpu] for at, gpu in enumerate(gpus)}


def titled(runs: Sequence[FullRun]) -> Iterator[tuple[str, FullRun]]:
    """Each run with its title."""
    for gpu, own in by_gpu(runs).items():
        for number, run in enumerate(own, 1):
            yield f"{gpu}, run {number}", run


def by_run(runs: Sequence[FullRun]) -> str:
    """A row for each run: minutes, measurements, and the spread between processes of unmarked cold cells; and how many
    runs meet each bar."""
    rows, spreads = [], []
    for title, run in titled(runs):
        row = [title, run.caches, f"{run.taken_s / 60:.1f}", str(run.measurements)]
        for own in (False, True):
            apart = [cell.spread for cell in run.unmarked(own).values()]
            row += [str(len(apart)), *quantiles(apart, 3)]
            if not own:
                spreads.append(apart)
                row.append(str(sum(spread > WORST for spread in apart)))
        rows.append([*row, percent(run.marked, 1)])
    marked = sum(run.marked <= MARKED_MOST for run in runs)
    last = [
        "meet the bar",
        *[""] * 4,
        *meeting(BARS, spreads),
        *[""] * 5,
        f"{marked} of {len(runs)}: {percent(MARKED_MOST, 0)}",
    ]
    spread = ["median", "90 %", "most"]
    header = ["", "caches", "minutes", "measurements", "at the highest clock", *spread, f"above {percent(WORST)}"]
    return table([*header, "at an own clock", *spread, "marked"], [*rows, last])


def at_full_clock(cell: Measured, highest_mhz: float) -> bool:
    """Whether all processes ran a cell at the highest SM clock, and none a little below it."""
    clocks = [one.get("clock64_mhz") for one in cell.measurements]
    return all(mhz and mhz >= highest_mhz - FULL_MHZ for mhz in clocks)


def by_full_clock(run: FullRun) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """The unmarked cold cells at the highest clock, by key: those that all processes ran at the whole of it, and the
    others. The kind of clock that is told as lowered begins 1 % below."""
    cells = run.unmarked(False)
    every = [mhz for cell in cells.values() for one in cell.measurements if (mhz := one.get("clock64_mhz"))]
    highest = statistics.quantiles(every, n=20)[-1]  # a few readings are wrong, and higher
    full = {key: cell for key, cell in cells.items() if at_full_clock(cell, highest)}
    return full, {key: cell for key, cell in cells.items() if key not in full}


def by_clock(runs: Sequence[FullRun]) -> str:
    """A row for each run: the spread of the cells that all processes ran at the whole clock, and of the others; and how
    many runs meet each bar with the first ones."""
    rows, spreads = [], []
    for title, run in titled(runs):
        sides = [[cell.spread for cell in side.values()] for side in by_full_clock(run)]
        spreads.append(sides[0])
        rows.append([title, *(text for side in sides for text in (str(len(side)), *quantiles(side, 3)))])
    spread = ["median", "90 %", "most"]
    last = ["meet the bar", "", *meeting(BARS, spreads), *[""] * 4]
    return table(["", "the whole clock in all processes", *spread, "a process below it", *spread], [*rows, last])


def once_full(runs: Sequence[FullRun]) -> str:
    """A row for each GPU: the cells that all processes ran at the whole clock in one of its first two runs, and not in
    the other, with their spread in the one and in the other."""
    rows = []
    for gpu, own in by_gpu(runs).items():
        sides = [by_full_clock(run) for run in own[:2]]
        pairs = [
            (one[0][key].spread, other[1][key].spread)
            for one, other in itertools.permutations(sides, 2)
            for key in one[0]
            if key in other[1]
        ]
        if pairs:
            rows.append(
                [gpu, str(len(pairs)), *(text for side in zip(*pairs, strict=True) for text in quantiles(side, 3)[:2])]
            )
    spread = ["90 %"]
    return table(["", "cells", "the whole clock: median", *spread, "in the other run: median", *spread], rows)


def moved(before: FullRun, after: FullRun) -> tuple[list[float], int]:
    """How far the median of each cold cell changed from one run to another, and how many cells an A/A would call moved
    (kernelwatch/history/same.py)."""
    old, new = ({cell.key: cell for cell in cold(run.record)} for run in (before, after))
    changes = [CellChange.between(old[key], new[key]) for key in old if key in new]
    return [abs(change.ratio - 1) for change in changes], sum(bool(change.verdict) for change in changes)


def again(runs: Sequence[FullRun]) -> str:
    """A row for each GPU and each run after its first one: how far its cold cells are from the run before."""
    rows = []
    for gpu, own in by_gpu(runs).items():
        for number, pair in enumerate(itertools.pairwise(own), 2):
            changes, count = moved(*pair)
            row = [f"{gpu}, run {number} against {number - 1}", str(len(changes)), *quantiles(changes)]
            rows.append([*row, f"{count} ({percent(count / len(changes))})"])
    return table(["", "cold cells", "median", "90 %", "most", f"moved (an A/A allows {percent(MOVED_MOST, 0)})"], rows)


def apart(first: Sequence[FullRun], other: Sequence[FullRun], own: bool) -> list[float]:
    """By how much the cold cells of a GPU differ from those of another one, relative to these. A cell counts if no run
    marks it and if all have it at the same kind of clock. Its figure is the median of all processes of a GPU's runs."""
    cells = [[run.unmarked(own) for run in runs] for runs in (first, other)]
    keys = [key for key in cells[0][0] if all(key in each for side in cells for each in side)]
    medians = [
        [statistics.median(second for each in side for second in each[key].seconds) for key in keys] for side in cells
    ]
    return [there / here - 1 for here, there in zip(*medians, strict=True)]


def between(runs: Sequence[FullRun]) -> str:
    """Two rows for each GPU but the first one: how far its cells are from those of the first one, at the highest clock
    and at their own; and what half of them exceed, with its sign."""
    (first, base), *others = by_gpu(runs).items()
    rows = []
    for gpu, other in others:
        for own, clock in ((False, "highest"), (True, "own")):
            signed = apart(base, other, own)
            middle = f"{100 * statistics.median(signed):+.2f} %" if signed else "n/a"
            rows.append([gpu, clock, str(len(signed)), *quantiles([*map(abs, signed)]), middle])
    return table([f"against {first}", "clock", "cold cells", "median", "90 %", "most", "with its sign"], rows)


def minutes_of(run: FullRun, keys: Sequence[str]) -> dict[str, float]:
    """What the GPU suites of a run spent on some cells: "measured" by their measurements, and "at most", with all that
    the run took outside of any measurement. In seconds."""
    own = sum(run.spent_s.get(key, 0.0) for key in keys)
    return {"measured": own, "at most": own + run.taken_s - sum(run.spent_s.values())}


def five(runs: Sequence[FullRun], then: Sequence[str]) -> str:
    """A row for each run: the minutes that the cells of the record THEN took of it, and all its cells."""
    rows = []
    for title, run in titled(runs):
        row = [title, run.caches]
        for keys in (then, [*run.spent_s]):
            count = sum(key in run.record.cells for key in keys)
            row += [str(count), *(f"{seconds / 60:.2f}" for seconds in minutes_of(run, keys).values())]
        rows.append(row)
    columns = [f"cells of {THEN}", "minutes, measured", "at most", "all cells", "minutes, measured", "the run"]
    return table(["", "caches", *columns], rows)


def then_cells() -> list[str]:
    """The GPU cells of the record THEN."""
    return [cell.key for cell in minutes.timed(read(minutes.path_of(THEN)))]


def blocks(runs: Sequence[FullRun]) -> dict[str, str]:
    """The tables by the names of their blocks."""
    tables = {"full_runs": by_run(runs), "full_runs_again": again(runs), "full_runs_between": between(runs)}
    tables |= {"full_runs_clock": by_clock(runs), "full_runs_once": once_full(runs)}
    return tables | {"five_minutes": five(runs, then_cells())}


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(WRITER, __doc__)
    how = parser.add_mutually_exclusive_group()
    for name, what in (("--add", "add the runs of these result folders"), ("--new", "begin the record anew with them")):
        note = "the first one of a GPU began with cold caches, the others did not"
        how.add_argument(name, nargs="+", type=Path, default=[], metavar="FOLDER", help=f"{what}; {note}")
    options = parser.parse_args(arguments)
    runs = load(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() and not options.new else []
    if folders := [*options.add, *options.new]:
        for folder in folders:
            runs.append(taken(folder, runs))
        write_whole(RECORD, written(runs))
        runs = load(RECORD.read_text(encoding="utf-8"))  # the tables are those of the rounded record
    for name, text in blocks(runs).items():
        write_block(PAGE, name, text, WRITER)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
