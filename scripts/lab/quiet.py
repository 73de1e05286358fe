#!/usr/bin/env python3
"""Shows how quiet the recorded runs are: how far the processes of a run differ, cell by cell.

The tables of docs/research/measuring.md are written from the sidecars in results/, a row for each commit that a GPU
model measured in full, from the durations that asv keeps beside them, from the record of `kernelwatch noise`, and from
the harness's lock and its A/As.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.history.instrument import LEVELS_APART_S, LEVELS_MOST_S
from kernelwatch.history.records import Measured, Record, read, sidecars
from kernelwatch.identity import comparisons, debt
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.run.outcome import FINE, LEAST
from kernelwatch.timing.check import GUARD_BYTES
from kernelwatch.timing.clocks import odd
from kernelwatch.timing.gpu import SLOW_S
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import STEADY_CLOCK
from lab.figures import write_block
from lab.sampling import within

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "research" / "measuring.md"
RUNS = ROOT / "docs" / "runs.jsonl"  # of `kernelwatch noise` on short cold cells, by the harness of b8ee5444
RUNS_BARS = (0.0008, 0.003, 0.01)  # of the spread in one of them: median, 90 %, most
SHORT_S = 30e-6  # cells below this are told by themselves: a fixed time a launch shows there first
CELLS_LEAST = 100  # with fewer a record is no full run
NEWEST = 5  # records of which the sampling errors are shown
WORST = 0.005  # the aim of issue 31 for the worst cell
INDEXED_BYTES = 1 << 31  # CuPy indexes larger allocations, and views of them, with 64 bits
LOUD = 0.01  # a spread above this is no agreement of the processes, whatever their clocks
PRODUCT = re.compile(r"matmul/cublas\S* float16\S* 2048x2048x2048 cold")
# What measures faster went on with the measurements that an interrupted run had kept: how long these took is not known.
EACH_LEAST_S = 0.03


def recorded(machine: str) -> list[Record]:
    """The records of full runs, the oldest first. `machine`: part of the name of the machine's folder."""
    return [record for record in map(read, sidecars(PROJECT.results, machine)) if len(cold(record)) >= CELLS_LEAST]


def cold(record: Record) -> list[Measured]:
    """The cold GPU cells of a record that enough processes measured."""
    cells = (cell for cell in record.cells.values() if cell.group.endswith(" gpu") and cell.key.endswith(" cold"))
    return [cell for cell in cells if len(cell.seconds) >= LEAST]


def variation(values: Sequence[float]) -> float:
    """The coefficient of variation: standard deviation over mean."""
    return statistics.stdev(values) / statistics.mean(values)


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, what 90 % stay below, and the most of some values."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1], ordered[-1]


def quantiles(values: Sequence[float], digits: int = 2) -> list[str]:
    """The summary of some values as text. `digits`: of a percentage, after the point."""
    return [percent(value, digits) for value in summary(values)] if values else ["n/a"] * 3


def meeting(bars: Sequence[float], runs: Sequence[Sequence[float]]) -> list[str]:
    """How many runs meet each bar, and the bar. `bars`: the most that the summary of a run's spreads may have."""
    counts = (
        sum(value <= bar for value in own) for bar, own in zip(bars, zip(*map(summary, runs), strict=True), strict=True)
    )
    return [f"{count} of {len(runs)}: {100 * bar:g} %" for count, bar in zip(counts, bars, strict=True)]


def two_levels(seconds: Sequence[float], kernels: int) -> bool:
    """Whether a process is slower than the lower half of them by the fixed time a kernel that makes a second level."""
    low = statistics.mean(sorted(seconds)[: len(seconds) // 2])
    return any(LEVELS_APART_S < (each - low) / kernels < LEVELS_MOST_S for each in seconds)


def kernels(cell: Measured) -> int:
    """How many kernels a launch of a cell has."""
    return max(1, *(len(each.get("kernels") or ()) for each in cell.measurements))


def by_record(records: Sequence[Record]) -> str:
    """A row for each record: its cold cells that are not marked, those below 30 us, and how many are marked."""
    gpus: list[object] = []
    rows = []
    for record in records:
        cells = cold(record)
        facts: Any = record.facts[cells[0].group]
        uuid = facts.get("nvml_uuid_sha256")
        if uuid and uuid not in gpus:
            gpus.append(uuid)
        free = [cell for cell in cells if not cell.limits]
        own = [cell for cell in free if cell.own_clock_mhz]
        short = [cell for cell in free if min(cell.seconds) < SHORT_S]
        rows.append(
            [
                f"{record.commit}, GPU {gpus.index(uuid) + 1}" if uuid else record.commit,
                *(str(len(free)), *quantiles([cell.spread for cell in free])),
                *(str(len(short)), *quantiles([cell.spread for cell in short])),
                str(sum(two_levels(cell.seconds, kernels(cell)) for cell in short)),
                percent(1 - len(free) / len(cells), 1),
                *(str(len(own)), str(sum(cell.spread > LOUD for cell in own))),
            ]
        )
    header = [
        "",
        "cells",
        "median",
        "90 %",
        "most",
        "below 30 us",
        "median",
        "90 %",
        "most",
        "two levels",
        "marked",
        "own",
        "loud",
    ]
    return table(header, rows)


def by_sampling(records: Sequence[Record]) -> str:
    """Two rows for each record, its unmarked cells at the highest clock and those at their own: the spread between
    processes, the sampling error within one, and in how many cells that is at least half of the variance; the same
    count among the cells with a spread above WORST."""
    rows = []
    for record in records:
        free = [(cell, within(cell)) for cell in cold(record) if not cell.limits]
        known = [(cell, error) for cell, error in free if not math.isnan(error)]
        for clock in ("highest", "own"):
            pairs = [(cell, error) for cell, error in known if bool(cell.own_clock_mhz) is (clock == "own")]
            half = [cell for cell, error in pairs if error**2 >= cell.spread**2 / 2]
            spreads = quantiles([cell.spread for cell, _ in pairs], 3)[:2]
            row = [record.commit, clock, str(len(pairs)), *spreads, *quantiles([error for _, error in pairs], 3)[:2]]
            share = percent(len(half) / len(pairs), 0) if pairs else "n/a"
            worst = sum(cell.spread > WORST for cell, _ in pairs)
            rows.append([*row, share, f"{sum(cell.spread > WORST for cell in half)} of {worst}"])
    spread = ["between processes", "90 %", "within one", "90 %"]
    return table(["", "clock", "cells", *spread, "half or more", "of those above 0.5 %"], rows)


def by_takes(records: Sequence[Record]) -> str:
    """Two rows for each record with quick cells that each of their processes took several times: how far processes
    differ by their first take alone, and by the mean of all. A slow cell has further samples in some processes, if they
    do not agree: its first take is another one."""
    rows = []
    for record in records:
        quick = [cell for cell in cold(record) if cell.median_s < SLOW_S]
        several = [cell for cell in quick if all("takes_s" in one for one in cell.measurements)]
        if several:
            inside = [statistics.median(variation(one["takes_s"]) for one in cell.measurements) for cell in several]
            first = [variation([one["takes_s"][0] for one in cell.measurements]) for cell in several]
            whole = [cell.spread for cell in several]
            for name, spreads in (("the first take", first), ("all", whole)):
                rows.append([record.commit, str(len(several)), name, *quantiles(spreads, 3), *quantiles(inside, 3)[:1]])
    return table(["", "cells", "a process's figure is", "median", "90 %", "most", "takes of a process differ by"], rows)


def allocated(record: Record) -> dict[int, int]:
    """Process -> the bytes of the one allocation in which its largest cell has its sets of buffers."""
    most: dict[int, int] = {}
    for cell in record.cells.values():
        if cell.group.endswith(" gpu") and cell.seconds:
            op, rung, kind, shape, _ = re.split("[/ ]", cell.key)
            problem = PROJECT.op(op)
            there = rung in problem.lines or any(each.name == rung for each in problem.rungs)  # still in the ladder
            computes = problem.computes(rung) if there else problem.computation
            arrays = computes.operands(tuple(map(int, shape.split("x"))), kind).arrays
            size = sum(array.nbytes for array in arrays)
            for one in cell.measurements:
                most[one["process"]] = max(most.get(one["process"], 0), one["slots"] * size + GUARD_BYTES)
    return most


def by_allocation(records: Sequence[Record]) -> str:
    """A row for each short cell of CuPy's sum that more than LEAST processes measured: its time in the processes whose
    allocation CuPy indexes with 64 bits, and in the others."""
    rows = []
    for record in records:
        sizes = allocated(record)
        for cell in record.cells.values():
            short = (
                cell.key.startswith("vector_add/cupy_add ") and len(cell.seconds) > LEAST and cell.median_s < SHORT_S
            )
            if short:
                row = [record.commit, cell.key.split(" ", 1)[1]]
                for large in (True, False):
                    times = [one["seconds"] for one in cell.measurements if is_large(sizes, one) is large]
                    row.append(f"{min(times) * 1e6:.2f} to {max(times) * 1e6:.2f} us ({len(times)})" if times else "")
                rows.append(row)
    return table(["", "cupy_add", "processes with more than 2 GiB", "with less"], rows)


def is_large(sizes: Mapping[int, int], one: Measurement) -> bool:
    """Whether the process of a measurement allocated more than CuPy indexes with 32 bits. `sizes`: of `allocated`."""
    return sizes[one["process"]] > INDEXED_BYTES


def clocks(cell: Measured) -> list[float]:
    """The SM clock of each process in MHz."""
    return [float(mhz) for each in cell.measurements if (mhz := each.get("clock64_mhz"))]


def by_clock(records: Sequence[Record]) -> str:
    """A row for each record: how far the processes differ in the cells that can run at the highest SM clock, where all
    of them did, and where one ran below it; of all cells, the share in which one process ran a step below or above the
    others, and in how many of them it was the first."""
    spread = ["median", "90 %", "most"]
    header = ["", "cells at the highest clock", *spread, "a process below it", *spread, "odd", "first"]
    rows = []
    for record in records:
        cells = [cell for cell in cold(record) if not cell.limits and len(clocks(cell)) == len(cell.measurements)]
        # The middle of the upper half: a wrong reading is no highest clock.
        highest = statistics.quantiles([max(clocks(cell)) for cell in cells], n=4)[-1]
        steady = {cell.key for cell in cells if min(clocks(cell)) >= STEADY_CLOCK * highest}
        able = [cell for cell in cells if max(clocks(cell)) >= STEADY_CLOCK * highest]
        row = [record.commit]
        for side in (True, False):
            spreads = [cell.spread for cell in able if (cell.key in steady) is side]
            row += [str(len(spreads)), *quantiles(spreads)]
        strange = [cell for cell in cells if odd(cell.measurements) is not None]
        first = sum(odd(cell.measurements) == 0 for cell in strange)
        rows.append([*row, percent(len(strange) / len(cells), 1), str(first)])
    return table(header, rows)


def taken_s(durations: Mapping[str, float], ops: Sequence[str]) -> float:
    """How long the GPU suites of some ops took, by asv's durations, such as {"<setup_cache matmul:12>": 660.5}.

    The file of an op begins with its GPU suites, and the first of them measures for all.
    """
    found: dict[str, dict[int, float]] = {}
    for name, seconds in durations.items():
        if told := re.fullmatch(r"<setup_cache (\w+):(\d+)>", name):
            found.setdefault(told[1], {})[int(told[2])] = seconds
    return sum(found[op][min(found[op])] for op in ops if op in found)


def by_minutes(paths: Sequence[Path]) -> str:
    """A row for each record of a full run: how long its GPU cells took, all together and each measurement; and how well
    the figures are known for that: the half-widths of their 95 % intervals, and the share of cells whose minimum
    detectable change is FINE or less."""
    rows = []
    for path in paths:
        record = read(path)
        if len(cold(record)) < CELLS_LEAST:
            continue
        cells = [cell for cell in record.cells.values() if cell.group.endswith(" gpu") and cell.seconds]
        count = sum(len(cell.seconds) for cell in cells)
        kept = json.loads(path.with_name(path.name.replace(".facts.jsonl", ".json")).read_text(encoding="utf-8"))
        ops = sorted({cell.group.removesuffix(" gpu") for cell in cells})
        seconds = taken_s(kept["durations"], ops)
        known = seconds >= EACH_LEAST_S * count
        told = [f"{seconds / 60:.1f}", f"{seconds / count * 1e3:.0f} ms"] if known else ["n/a", "n/a"]
        widths = [(cell.interval[1] - cell.interval[0]) / 2 / cell.median_s for cell in cells if len(cell.seconds) > 1]
        middle, most, _ = quantiles(widths)
        row = [record.commit, path.parent.name.partition(".")[0], str(len(cells)), str(count), *told]
        fine = sum(cell.detectable <= FINE for cell in cells if len(cell.seconds) > 1)
        rows.append([*row, middle, most, percent(fine / len(widths), 0)])
    header = ["", "GPU", "cells", "measurements", "minutes", "a measurement", "interval", "90 %", "fine"]
    return table(header, rows)


def by_cycles(records: Sequence[Record]) -> str:
    """A row for each such PRODUCT of each record: how far the processes differ in the time, in the SM clock, and in the
    cycles, the product of both."""
    rows = []
    for record in records:
        for cell in cold(record):
            mhz = clocks(cell)
            if PRODUCT.fullmatch(cell.key) and len(mhz) == len(cell.seconds):
                cycles = [each * clock for each, clock in zip(cell.seconds, mhz, strict=True)]
                spreads = (percent(variation(values), 2) for values in (cell.seconds, mhz, cycles))
                clock = f"{statistics.median(mhz):.0f} MHz"
                rows.append([record.commit, cell.key.split()[0].split("/")[1], str(len(mhz)), clock, *spreads])
    return table(["", "rung", "processes", "clock", "time spreads by", "clock by", "cycles by"], rows)


def repeated(lines: list[dict[str, Any]]) -> str:
    """The runs of `kernelwatch noise` on short cells: between all processes, and between the medians of the runs."""
    cells = [line["processes_s"] for line in lines if line["key"].endswith(" cold")]
    short = [runs for runs in cells if statistics.median(runs[0]) < SHORT_S]
    apart = [variation([each for run in runs for each in run]) for runs in short]
    medians = [variation([*map(statistics.median, runs)]) for runs in short]
    count = max(map(len, short))
    header = [f"{len(short)} cold cells below 30 us, {count} runs", "median", "90 %", "most"]
    rows = [["between all processes", *quantiles(apart)], ["between the medians of the runs", *quantiles(medians)]]
    return table(header, rows)


def by_run(lines: list[dict[str, Any]], newest: Mapping[str, Measured]) -> str:
    """A row for each run of `kernelwatch noise`: how far the processes of a run differ, by cell, and in how many cells
    they have two levels; and how many runs meet each bar. `newest`: cells that tell how many kernels a launch has."""
    launched = [kernels(newest[line["key"]]) if line["key"] in newest else 1 for line in lines]
    rows, spreads, levels = [], [], []
    for number, cells in enumerate(zip(*(line["processes_s"] for line in lines), strict=True), 1):
        spreads.append([variation(seconds) for seconds in cells if len(seconds) > 1])
        levels.append(sum(map(two_levels, cells, launched)))
        row = [str(number), str(len(spreads[-1])), str(sum(map(len, cells))), *quantiles(spreads[-1])]
        rows.append([*row, str(levels[-1])])
    last = ["meet the bar", "", "", *meeting(RUNS_BARS, spreads), f"{levels.count(0)} of {len(levels)}: 0"]
    return table(["run", "cells", "measurements", "median", "90 %", "most", "two levels"], [*rows, last])


def changed(lines: list[dict[str, Any]]) -> str:
    """A row for each change of the harness that an A/A let pass: the cells, how many moved, and the spread between
    processes of the short ones, before and after."""
    header = ["files", "on", "cells", "moved", "spread before", "after", "two levels before", "after"]
    rows = []
    for line in lines:
        files = ", ".join(f"`{Path(name).name}`" for name in line["files"])
        spreads = (percent(line[side][name], 2) for name in ("spread", "two_levels") for side in ("before", "after"))
        rows.append([files, line["machine"].partition(".")[0], str(line["cells"]), str(line["moved"]), *spreads])
    return table(header, rows)


def owed(changes: Sequence[Mapping[str, Any]]) -> str:
    """A row for each change of the harness that no A/A has shown yet, the oldest first."""
    rows = []
    for one in changes:
        names = [f"`{Path(name).name}`" for name in one["files"]]
        files = ", ".join(names) if len(names) <= 5 else f"{len(names)} files"
        rows.append([one["after"], files, one["why"].replace("|", "\\|")])
    return table(["after", "files", "change"], rows) if rows else "All changes have an A/A."


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/quiet", __doc__)
    parser.add_argument("--machine", default="h200", help="part of the name of the machine's folder (default: h200)")
    options = parser.parse_args(arguments)
    records = recorded(options.machine)
    write_block(PAGE, "quiet", by_record(records), "scripts/lab/quiet")
    write_block(PAGE, "sampling", by_sampling(records[-NEWEST:]), "scripts/lab/quiet")
    write_block(PAGE, "takes", by_takes(records), "scripts/lab/quiet")
    write_block(PAGE, "allocation", by_allocation(records[-NEWEST:]), "scripts/lab/quiet")
    write_block(PAGE, "clock", by_clock(records), "scripts/lab/quiet")
    noise = sidecars(PROJECT.results, options.machine)[-1].parent / "noise.jsonl"
    lines = [json.loads(line) for line in noise.read_text(encoding="utf-8").splitlines()]
    write_block(PAGE, "repeated", repeated(lines), "scripts/lab/quiet")
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    write_block(PAGE, "runs", by_run(lines, records[-1].cells), "scripts/lab/quiet")
    write_block(PAGE, "runs_repeated", repeated(lines), "scripts/lab/quiet")
    write_block(PAGE, "cycles", by_cycles(records), "scripts/lab/quiet")
    write_block(PAGE, "minutes", by_minutes(sidecars(PROJECT.results)), "scripts/lab/quiet")
    lines = [json.loads(line) for line in comparisons().read_text(encoding="utf-8").splitlines()]
    write_block(PAGE, "changes", changed(lines), "scripts/lab/quiet")
    write_block(PAGE, "debt", owed(debt()), "scripts/lab/quiet")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
