#!/usr/bin/env python3
"""Shows what a full run spends its time on, and what other rules for stopping and resting would cost and give.

The tables of docs/research/measuring.md come from recorded sidecars and from the durations that asv keeps beside them.
--pair BEFORE needs a GPU: it measures all GPU cells of this checkout's HEAD twice, by the harness of the commit BEFORE
and by that of HEAD. It shows the minutes and the intervals of both, and keeps them beside the sidecars in minutes.json:
in docs/, that is the table of a pair. The sidecars are an A/A for `kernelwatch identity`.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import dataclasses
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.history.records import Measured, Record, measured, read, sidecars
from kernelwatch.plan.devices import DEVICES
from kernelwatch.report.arguments import Parser, add_selection, selected
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.run.outcome import FINE, LEAST, Outcome
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from kernelwatch.timing.nvml import POWER_CAP
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import POWER_CLOCK, REST_S, SHORT_REST_S, STEADY_CLOCK
from lab.figures import write_block
from lab.quiet import quantiles, taken_s
from lab.sampling import within

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, WRITER = ROOT / "docs" / "research" / "measuring.md", "scripts/lab/minutes"
PAIR = ROOT / "docs" / "minutes.json"  # of the newest pair
RECORD = "5e02dca1"  # the newest full run whose minutes are known
ENDED = "65a8feec"  # one before it
SPENT = ("c9f45981", "95a9752d")  # records that say what each measurement spent
SINCE = "14db415d"  # the first one by the rules of today, with warm caches
SHOWN = ("rest", "replay")  # the parts of what they spent that the table by process tells by themselves
OLD = ("46ae8df7", "cdf67321")  # the records whose intervals a shorter run is held against
GPU = DEVICES["gpu"]
SAMPLES = GPU.budget.samples
SLOW_S = 0.005  # a launch that takes longer is a sample by itself
HOST_LOOPS, HOST_LOOP, HOST_LOOP_S = 7, 256, 0.005  # of the records without `spent_s`
CANARY_REPLAYS = 4  # with the lead-in
BANDS = (0.0, 0.80, 0.85, 0.90, 0.93, 0.96, STEADY_CLOCK, math.inf)  # of the highest SM clock
MEASURE = """
import json, sys
from benchmarks.project import PROJECT
from kernelwatch.run import group
from kernelwatch.system.options import Options

tree, facts, only, quick = sys.argv[1:]
ops = [problem.name for problem in PROJECT.problems]
for op in ops:
    group.measure(PROJECT, op, "gpu", Options(bool(quick), tree=tree, facts=facts, only=only), together=ops)
"""


@dataclass(frozen=True)
class Rests:
    """How a harness rests. `power`: the share of the highest clock below which a rest is a long one; `shared`: whether
    only the first settling of a hot cell comes after a whole rest, and each further one after its share; `none`: it
    does not rest at all."""

    power: float
    shared: bool
    none: bool = False

    def of(self, mhz: float | None, highest: float) -> float:
        """The seconds before launches that run at this clock."""
        if not mhz or mhz >= STEADY_CLOCK * highest:
            return 0.0
        return REST_S if mhz < self.power * highest else SHORT_REST_S

    def rested(self, cell: Measured, at: int, highest: float) -> tuple[float, float]:
        """The seconds of rest of a cell's measurement: before its first takes, and before those that were made again,
        by the clocks and retakes that were recorded."""
        if self.none:
            return 0.0, 0.0
        one = cell.measurements[at]
        retakes, rounds = one.get("retakes", 0), SAMPLES if cell.key.endswith(" hot") else 1
        earlier = [mhz for each in cell.measurements[:at] if (mhz := each.get("clock64_mhz"))]
        own, each = (
            self.of(statistics.median(earlier) if earlier else None, highest),
            self.of(one["clock64_mhz"], highest),
        )
        if not self.shared:
            return own * rounds, retakes * (each or SHORT_REST_S)
        first, further = own, (rounds - 1) / rounds * (own or each)
        if not earlier:  # nothing was known: each settling was taken again, which the first one's clock spares now
            retakes = min(retakes, max(1, retakes - rounds + 1))
        return first + further, retakes * (each or SHORT_REST_S)


WHOLE, NOW, NONE = Rests(0.93, shared=False), Rests(POWER_CLOCK, shared=True), Rests(0.0, shared=True, none=True)


@dataclass(frozen=True)
class Run:
    """A recorded full run. `cells`: its measured GPU cells; `highest`: its highest SM clock in MHz; `seconds`: how long
    its GPU suites took."""

    cells: list[Measured]
    highest: float
    seconds: float

    def modeled(self, cell: Measured, at: int, rests: Rests) -> dict[str, float]:
        """The seconds of a measurement that follow from what was recorded, by part."""
        one = cell.measurements[at]
        first, again = rests.rested(cell, at, self.highest)
        hot, slow = cell.key.endswith(" hot"), one["seconds"] >= SLOW_S
        sliced = not hot and not slow and rests.of(one["clock64_mhz"], self.highest) == REST_S
        takes = 1 + one.get("retakes", 0) / (SAMPLES if hot else 1)
        lead_ins = 0.0 if slow else 1.0 if sliced or hot else 1 / SAMPLES
        loop = max(HOST_LOOP // 8, min(HOST_LOOP, round(HOST_LOOP_S / one["seconds"])))
        return {
            "rest": first,
            "rest, taken again": again,
            "samples, with lead-ins": one["launches"] * one["seconds"] * takes * (1 + lead_ins),
            "launches by the host in a loop": HOST_LOOPS * loop * one.get("host_loop_seconds", 0.0),
            "canaries": CANARY_REPLAYS * sum(one.get("canary_s", {}).values()),
        }

    def unexplained_s(self) -> float:
        """What a measurement takes beyond its modeled parts, in the mean: the start of processes, loading, binding,
        capturing, checking."""
        every = [(cell, at) for cell in self.cells for at in range(len(cell.measurements))]
        known = sum(sum(self.modeled(cell, at, WHOLE).values()) for cell, at in every)
        return (self.seconds - known) / len(every)


def path_of(commit: str) -> Path:
    """The sidecar of a commit that an H200 measured."""
    return next(path for path in sidecars(PROJECT.results, "h200") if path.name.startswith(commit))


def timed(record: Record) -> list[Measured]:
    """The GPU cells of a record with a figure."""
    return [cell for cell in record.cells.values() if cell.group.endswith(" gpu") and cell.seconds]


def recorded(path: Path) -> Run:
    """The run of a sidecar."""
    cells = timed(read(path))
    kept = json.loads(path.with_name(path.name.replace(".facts.jsonl", ".json")).read_text(encoding="utf-8"))
    clocks = [max(each for one in cell.measurements if (each := one.get("clock64_mhz"))) for cell in cells]
    ops = sorted({cell.group.removesuffix(" gpu") for cell in cells})
    return Run(cells, statistics.quantiles(clocks, n=4)[-1], taken_s(kept["durations"], ops))


def runs() -> dict[str, Run]:
    """The full runs whose harness rested as WHOLE says, by commit, the newest last. One was ended early: it took no
    known time."""
    return {commit: recorded(path_of(commit)) for commit in (ENDED, RECORD)}


def told() -> dict[str, Run]:
    """The runs whose measurements say what they spent, by commit."""
    return {commit: recorded(path_of(commit)) for commit in SPENT}


def olds() -> dict[str, dict[str, Measured]]:
    """The GPU cells of the records in OLD, by commit."""
    return {commit: {cell.key: cell for cell in timed(read(path_of(commit)))} for commit in OLD}


# --- where the time goes -------------------------------------------------------------------------------------------


def by_part(run: Run) -> str:
    """A row for each part of a run, by processes: seconds, and milliseconds a measurement."""
    columns = {"process 0": (0,), "processes 1 and 2": (1, 2), "later": (*range(3, 100),)}
    seconds: dict[str, dict[str, float]] = {}
    counts = dict.fromkeys(columns, 0)
    for cell in run.cells:
        for at, one in enumerate(cell.measurements):
            column = next(name for name, own in columns.items() if one["process"] in own)
            counts[column] += 1
            for part, value in run.modeled(cell, at, WHOLE).items():
                row = seconds.setdefault(part, dict.fromkeys(columns, 0.0))
                row[column] += value
    total, count = run.seconds, sum(counts.values())
    rows = [["measurements", *map(str, counts.values()), str(count), ""]]
    for part, row in seconds.items():
        own = sum(row.values())
        rows.append(
            [part, *(f"{value:.0f} s" for value in row.values()), f"{own:.0f} s", f"{own / count * 1e3:.0f} ms"]
        )
    left = run.unexplained_s() * count
    what = "starts of processes, loading, binding, capturing, checking"
    rows.append([what, *["n/a"] * len(columns), f"{left:.0f} s", f"{left / count * 1e3:.0f} ms"])
    rows.append(["all", *["n/a"] * len(columns), f"{total:.0f} s", f"{total / count * 1e3:.0f} ms"])
    return table(["", *columns, "all", "a measurement"], rows)


def spent(cells: Sequence[Measured]) -> dict[str, float]:
    """The seconds of each part that measurements say that they spent time on."""
    seconds: dict[str, float] = {}
    for _, parts in by_visit(cells):
        for part, value in parts.items():
            seconds[part] = seconds.get(part, 0.0) + value
    return seconds


def by_visit(cells: Sequence[Measured]) -> Iterator[tuple[int, Mapping[str, float]]]:
    """The process of each measurement and what it spent by part, also of those that others replaced, as far as it is
    known."""
    for one in (one for cell in cells for one in cell.measurements):
        told: Mapping[str, Any] | None = one
        while told:
            if told is one or "spent_s" in told:
                yield told["process"], told.get("spent_s", {})
            told = told.get("instead_of")


def by_process(cells: Sequence[Measured]) -> str:
    """A row for each process of a run: its measurements, and the seconds that they rested, replayed and did others."""
    rows, total, visits = [], dict.fromkeys(("", *SHOWN, "others"), 0.0), [*by_visit(cells)]
    for process in sorted({process for process, _ in visits}):
        own = [parts for at, parts in visits if at == process]
        taken: dict[str, float] = {"": len(own), **dict.fromkeys(SHOWN, 0.0), "others": 0.0}
        for part, seconds in ((part, each) for parts in own for part, each in parts.items()):
            taken[part if part in SHOWN else "others"] += seconds
        total = {name: total[name] + taken[name] for name in total}
        rows.append(_row(str(process), taken))
    heads = ["process", "measurements", *SHOWN, "others", "all", "a measurement"]
    return table(heads, [*rows, _row("all", total)])


def _row(title: str, taken: Mapping[str, float]) -> list[str]:
    count, *parts = taken.values()
    each = 1e3 * sum(parts) / count
    return [title, f"{count:.0f}", *(f"{part:.0f} s" for part in (*parts, sum(parts))), f"{each:.0f} ms"]


def by_band(runs: Mapping[str, Run]) -> str:
    """A row for each band of the SM clock: what its cold measurements rested for, in how many cells the first process
    found that a rest raises the clock, and how often the power limit was met, in each run."""
    rows = []
    newest = [*runs.values()][-1]
    for low, high in itertools.pairwise(BANDS):
        row = [f"{low:g} to {high:g}" if low and high < math.inf else f"from {low:g}" if low else f"below {high:g}"]
        own = [cell for cell in _cold(newest) if low <= _share(newest, cell) < high]
        rests = sum(sum(WHOLE.rested(cell, at, newest.highest)) for cell in own for at in range(len(cell.seconds)))
        first = [cell.measurements[0].get("retakes", 0) for cell in own]
        taken = [retakes for retakes in first if retakes]
        row += [str(len(own)), f"{rests:.0f} s", *quantiles([cell.spread for cell in own if len(cell.seconds) > 1])[:2]]
        row += [f"{sum(retakes > 1 for retakes in taken)} of {len(taken)}"]
        for run in runs.values():
            every = [one for cell in _cold(run) if low <= _share(run, cell) < high for one in cell.measurements]
            met = sum(POWER_CAP in one.get("throttled", ()) for one in every)
            row.append(percent(met / len(every), 1) if every else "n/a")
        rows.append(row)
    head = ["of the highest clock", "cells", "rest", "spread", "90 %", "a rest raises it"]
    return table([*head, *(f"limit met, {commit}" for commit in runs)], rows)


def _cold(run: Run) -> list[Measured]:
    return [cell for cell in run.cells if cell.key.endswith(" cold")]


def _share(run: Run, cell: Measured) -> float:
    """The clock of a cell, of the highest."""
    known = [float(mhz) for one in cell.measurements if (mhz := one.get("clock64_mhz"))]
    return statistics.median(known) / run.highest if known else math.nan


# --- other rules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """When a cell has enough processes. `narrow`: the half-width of its 95 % interval, and of that of a launch's cost,
    that ends it; None if that is FINE, the minimum detectable change of its time, as in a run."""

    title: str
    least: int = LEAST
    narrow: float | None = None
    most: int = GPU.processes
    rests: Rests = NOW

    def ends(self, taken: Sequence[Measurement]) -> bool:
        """Whether these measurements of a cell suffice."""
        if len(taken) >= self.most:
            return True
        if len(taken) < self.least:
            return False
        if self.narrow is None:
            return Outcome("ok", "", [*taken]).detectable() <= FINE
        launches: list[Measurement] = [
            {"seconds": each} for one in taken if (each := one.get("launch_seconds", 0.0)) > 0
        ]
        return max(width(of(each)) for each in (taken, launches) if each) <= self.narrow


RULES = (
    Rule("an interval of 0.1 %, rests as recorded", narrow=0.001, rests=WHOLE),
    Rule("an interval of 0.1 %", narrow=0.001),
    Rule("an interval of 0.25 %", narrow=0.0025),
    Rule("an interval of 0.25 %, 4 processes at least", least=4, narrow=0.0025),
    Rule("an interval of 0.5 %", narrow=0.005),
    Rule("a detectable change of 0.5 %"),
    Rule("the same, 8 processes at most", most=8),
    Rule("the same, without rests", rests=NONE),
    Rule("3 processes", most=3),
    Rule("3 processes, without rests", most=3, rests=NONE),
)


def of(taken: Sequence[Measurement]) -> Measured:
    """A cell of these measurements."""
    return measured("op/rung float32 1 cold", Outcome("ok", "", [*taken]))


def width(cell: Measured) -> float:
    """The half-width of a cell's 95 % interval, relative to its figure; NaN with fewer than two processes."""
    low, high = cell.interval
    return (high - low) / 2 / cell.median_s


def processes(cell: Measured) -> Iterator[tuple[int, Measurement]]:
    """The measurements of a cell, each with the place of a recorded one that took as long. After the recorded ones
    come some that are drawn with their mean and spread."""
    every = cell.measurements
    yield from enumerate(every)
    drawn = random.Random(cell.key)
    seconds = statistics.mean(cell.seconds)
    deviation = statistics.stdev(cell.seconds) if len(cell.seconds) > 1 else 0.0
    for at in range(len(every), 100):
        yield len(every) - 1, {**every[-1], "process": at, "seconds": drawn.gauss(seconds, deviation)}


def applied(rule: Rule, run: Run) -> tuple[float, dict[str, Measured]]:
    """The seconds of a run by a rule, and its cells. A slow cell has as many processes as were recorded."""
    each_s = run.unexplained_s()
    total, cells = 0.0, {}
    for cell in run.cells:
        taken: list[Measurement] = []
        most = len(cell.seconds) if max(cell.seconds) > SLOW_S else rule.most
        for at, one in processes(cell):
            if len(taken) >= most or rule.ends(taken):
                break
            taken.append(one)
            total += each_s + sum(run.modeled(cell, at, rule.rests).values())
        cells[cell.key] = of(taken)
    return total, cells


def wider(cells: Mapping[str, Measured], old: Mapping[str, Measured], beyond: float = 0.0) -> float:
    """The share of the cells of both records whose interval is wider than before, and than `beyond`."""
    both = [key for key in cells if key in old and min(len(cells[key].seconds), len(old[key].seconds)) > 1]
    return sum(width(cells[key]) > max(width(old[key]), beyond) for key in both) / len(both) if both else math.nan


def by_rule(run: Run, olds: Mapping[str, Mapping[str, Measured]]) -> str:
    """A row for each rule: minutes, intervals, how many are wider than in old records, what can be detected."""
    rows = []
    for rule in RULES:
        seconds, cells = applied(rule, run)
        known = [cell for cell in cells.values() if len(cell.seconds) > 1]
        row = [rule.title, f"{seconds / 60:.1f}", str(sum(len(cell.seconds) for cell in cells.values()))]
        row += quantiles([width(cell) for cell in known])[:2]
        for old in olds.values():
            row += [f"{percent(wider(cells, old), 0)}, {percent(wider(cells, old, FINE / 2), 0)}"]
        changes = [cell.detectable for cell in known]
        row += [*quantiles(changes)[:2], percent(sum(change <= FINE for change in changes) / len(changes), 0)]
        rows.append(row)
    head = ["a cell ends at", "minutes", "measurements", "interval", "90 %", *(f"wider than {name}" for name in olds)]
    return table([*head, "detectable", "90 %", "0.5 % is"], rows)


# --- more samples --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class More:
    """More samples for some cold cells. `count`: instead of SAMPLES; `rests_s`: only cells that rest no longer."""

    title: str
    count: int
    rests_s: float

    def takes(self, run: Run, cell: Measured) -> bool:
        """Whether a cell has them: a quick cold one without a limited clock, in which the sampling error is known."""
        if not cell.key.endswith(" cold") or cell.limits or len(cell.seconds) < LEAST or max(cell.seconds) > SLOW_S:
            return False
        return self.rests_of(run, cell) <= self.rests_s and not math.isnan(within(cell))

    def rests_of(self, run: Run, cell: Measured) -> float:
        """The seconds for which a later process rests before a cell."""
        known = [mhz for one in cell.measurements if (mhz := one.get("clock64_mhz"))]
        return NOW.of(statistics.median(known) if known else None, run.highest)

    def scale(self, cell: Measured) -> float:
        """What its processes' distances from their mean are multiplied by. The variance within a process is inversely
        proportional to the samples, and the rest of the variance between processes stays."""
        inner = within(cell) ** 2
        rest = max(0.0, cell.spread**2 - inner)
        return math.sqrt((rest + inner * SAMPLES / self.count) / (rest + inner)) if rest + inner else 1.0

    def extra_s(self, run: Run, cell: Measured, one: Measurement) -> float:
        """The seconds that a measurement takes longer: samples come back to back, or each after its share of a whole
        rest. What is taken again has them again."""
        share = (self.count - SAMPLES) / SAMPLES
        rest = self.rests_of(run, cell)
        each = one["launches"] * one["seconds"] + (rest if rest == REST_S else 0.0)
        return share * each * (1 + one.get("retakes", 0))


MORE = (
    More("", SAMPLES, REST_S),
    *(
        More(title, count, rests_s)
        for title, rests_s in (("without a rest", 0.0), ("without a long rest", SHORT_REST_S), ("all", REST_S))
        for count in (10, 15, 25, 40)
    ),
)


def sampled(more: More, run: Run) -> tuple[float, dict[str, Measured]]:
    """The seconds of a run whose sidecar says what measurements spent, with more samples, and its cells.

    A cell has the recorded processes in their order, until they end it. One that is left out saves what it spent, but
    not its share of a process's start.
    """
    total, cells = run.seconds, {}
    for cell in run.cells:
        taken: list[Measurement] = [*cell.measurements]
        if more.takes(run, cell):
            mean, scale = statistics.fmean(cell.seconds), more.scale(cell)
            taken = []
            for one in cell.measurements:
                if Outcome("ok", "", taken).detectable() <= FINE:
                    total -= sum(seconds for part, seconds in one["spent_s"].items() if part != "before")
                else:
                    taken.append({**one, "seconds": mean + scale * (one["seconds"] - mean)})
                    total += more.extra_s(run, cell, one)
        cells[cell.key] = dataclasses.replace(of(taken), limits=cell.limits)
    return total, cells


def by_samples(runs: Mapping[str, Run]) -> str:
    """A row for each number of samples and the cells that have it: minutes, measurements, and the spread of cold cells
    without a limited clock, in each run."""
    rows = []
    for more in MORE:
        row = [more.title, str(more.count)]
        for run in runs.values():
            seconds, cells = sampled(more, run)
            free = [cell for key, cell in cells.items() if key.endswith(" cold") and not cell.limits]
            row += [f"{seconds / 60:.1f}", str(sum(len(cell.seconds) for cell in cells.values()))]
            row += quantiles([cell.spread for cell in free if len(cell.seconds) >= LEAST], 3)
        rows.append(row)
    told = [(f"{name}: minutes", "measurements", "spread", "90 %", "most") for name in runs]
    return table(["cells", "samples", *itertools.chain(*told)], rows)


# --- before and after, on a GPU ------------------------------------------------------------------------------------


def measure(
    harness: Path, tree: Path, commit: str, label: str, out: Path, only: str, quick: bool = False
) -> tuple[Path, float]:
    """Measure all GPU cells of a tree by the harness of a checkout; the sidecar, and the seconds. `commit`: the tree's.

    Raises: CalledProcessError.
    """
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as facts:
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", MEASURE, str(tree), facts, only, "1" * quick], cwd=harness, check=True)
        seconds = time.monotonic() - began
        lines = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(facts).glob("*.jsonl")))
    path = out / f"{commit[:8]}-{label}.facts.jsonl"
    path.write_text(lines, encoding="utf-8")
    return path, seconds


def compared(before: Record, after: Record, seconds: Mapping[str, float]) -> dict[str, Any]:
    """What is kept of a pair: the figures of each side, and what the side after spent its time on. `seconds`: by side,
    how long it took."""
    old = {cell.key: cell for cell in timed(before)}
    (facts,) = {(each["gpu"], each["nvml_driver"]) for each in after.facts.values() if "gpu" in each}
    found: dict[str, Any] = {"commit": after.commit, "gpu": facts[0], "driver": facts[1]}
    for name, record in (("before", before), ("after", after)):
        cells = timed(record)
        known = [cell for cell in cells if len(cell.seconds) > 1]
        new = {cell.key: cell for cell in cells}
        found[name] = {
            "seconds": seconds[name],
            "cells": len(cells),
            "measurements": sum(len(cell.seconds) for cell in cells),
            "intervals": [width(cell) for cell in known],
            "wider": [wider(new, old), wider(new, old, FINE / 2)],
            "fine": sum(cell.detectable <= FINE for cell in known) / len(known),
        }
    return found | {"spent": spent(timed(after))}


def by_side(kept: Mapping[str, Any]) -> str:
    """The tables of a pair: a row for each side, and one for each part of the side after."""
    rows = []
    for name in ("before", "after"):
        side = kept[name]
        row = [name, f"{side['seconds'] / 60:.1f}", str(side["cells"]), str(side["measurements"])]
        row += [*quantiles(side["intervals"])[:2], *(percent(share, 0) for share in side["wider"])]
        rows.append([*row, percent(side["fine"], 0)])
    head = ["", "minutes", "cells", "measurements", "interval", "90 %", "wider than before", "and than 0.25 %"]
    texts = [f"{kept['gpu']}, driver {kept['driver']}; the cells of {kept['commit']}."]
    texts += [table([*head, "0.5 % is detectable"], rows), by_part_spent(kept["spent"], kept["after"]["measurements"])]
    return "\n\n".join(filter(None, texts))


def by_part_spent(seconds: Mapping[str, float], measurements: int) -> str:
    """A row for each part that measurements spent time on; "" if none says it."""
    parts = sorted(seconds.items(), key=lambda pair: -pair[1])
    rows = [[part, f"{value:.0f} s", f"{value / measurements * 1e3:.0f} ms"] for part, value in parts]
    return table(["part", "all", "a measurement"], rows) if rows else ""


def pair(commit: str, out: Path, only: str, sides: Sequence[str], warm: bool = False) -> None:
    """Measure HEAD by the harness of a commit and by that of HEAD, and print how they compare. A side that is not among
    `sides` is taken from `out`, where an earlier call left it. `warm`: look at a few cells first, so that no side pays
    for compiling. Raises: CalledProcessError."""
    out.mkdir(parents=True, exist_ok=True)
    head = _git("rev-parse", "HEAD")
    for label, harness in (("before", _git("rev-parse", commit)), ("after", head)):
        if label not in sides:
            continue
        with tempfile.TemporaryDirectory(prefix="kernelwatch-") as temporary:
            for name, at in (("harness", harness), ("tree", head)):
                _git("clone", "-q", str(ROOT), f"{temporary}/{name}")
                _git("-C", f"{temporary}/{name}", "checkout", "-q", at)
            folders = Path(temporary, "harness"), Path(temporary, "tree")
            if warm:
                measure(*folders, head, "warm", out, only, quick=True)
                warm = False
            path, seconds = measure(*folders, head, label, out, only)
        (out / f"{label}.json").write_text(json.dumps({"seconds": seconds, "path": path.name}), encoding="utf-8")
        print(f"{label}: {seconds / 60:.1f} minutes", flush=True)
    told: dict[str, Any] = {}
    for label in ("before", "after"):
        if (out / f"{label}.json").is_file():
            told[label] = json.loads((out / f"{label}.json").read_text(encoding="utf-8"))
    records = {label: read(out / each["path"]) for label, each in told.items()}
    if missing := [label for label, record in records.items() if not timed(record)]:
        raise SystemExit(f"scripts/lab/minutes: {' and '.join(missing)}: no GPU cell has a figure")
    if len(records) == 2:
        kept = compared(records["before"], records["after"], {label: each["seconds"] for label, each in told.items()})
        write_whole(out / PAIR.name, json.dumps(kept) + "\n")
        print(by_side(kept))
        paths = " ".join(str(out / each["path"]) for each in told.values())
        print(f"\nas an A/A: scripts/lab/identity --accept --aa {paths}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/minutes", __doc__)
    parser.add_argument("--pair", metavar="BEFORE", help="measure HEAD by the harness of this commit and by HEAD's")
    parser.add_argument(
        "--side", choices=("before", "after"), help="with --pair: only this side, beside the kept other"
    )
    parser.add_argument("--warm", action="store_true", help="with --pair: compile first, by a quick look at the cells")
    parser.add_argument("--out", type=Path, default=ROOT / ".asv" / "minutes", help="with --pair: for the sidecars")
    add_selection(parser, "with --pair: only some cells")
    options = parser.parse_args(arguments)
    if options.pair:
        try:
            sides = [options.side] if options.side else ["before", "after"]
            pair(options.pair, options.out, selected(options), sides, options.warm)
        except subprocess.CalledProcessError as error:
            print(f"scripts/lab/minutes: {error}", file=sys.stderr)
            return CANNOT
        return 0
    write_block(PAGE, "pair", by_side(json.loads(PAIR.read_text(encoding="utf-8"))), WRITER)
    write_block(PAGE, "parts", by_part(runs()[RECORD]), WRITER)
    write_block(PAGE, "spent", by_process(recorded(path_of(SINCE)).cells), WRITER)
    write_block(PAGE, "bands", by_band(runs()), WRITER)
    write_block(PAGE, "rules", by_rule(runs()[RECORD], olds()), WRITER)
    write_block(PAGE, "samples", by_samples(told()), WRITER)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
