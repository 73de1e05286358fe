"""Runs detectors of steps on simulated histories: what each finds, how soon, on which commit, how many flags are false.

The noise is that of the GPU (the A/A runs of each cell with the spread between their processes, resampled) and worse.
Every binary counts as changed, so no flag is excused. The detectors are this project's (kernelwatch/detect/steps.py),
asv's with its default threshold and with 1 %, and, if they are installed, Apache Otava and ruptures. The seed
determines all histories. The results go to docs/detection.json, and from there to the tables of docs/detection.md.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from asv.step_detect import detect_regressions, detect_steps

import environment
from kernelwatch.detect.events import spread
from kernelwatch.detect.steps import FLOOR, Point, Values, find
from kernelwatch.report.markdown import table
from kernelwatch.system.files import write_whole
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
JSON, PAPER = ROOT / "docs" / "detection.json", ROOT / "docs" / "detection.md"
LABELLED = ROOT / "tests" / "data"
LENGTH = 200
NEAR = 5  # a flag within this many commits of a step belongs to that step
WAIT = 10  # the commits after a step's own that are published, one by one
EVERY = 5  # in a history without any step, the commits that are published between two looks
QUIET_CV = 0.002  # the goal is for the cells whose A/A runs vary by no more than this


class Series(NamedTuple):
    """A history of one cell: a value for each commit; the canary's value, if there is one; and the relative standard
    error from each commit's processes, if it is known."""

    values: Values
    canary: Values | None = None
    spreads: Values | None = None

    def until(self, length: int) -> "Series":
        """The series after its first `length` commits."""
        canary = None if self.canary is None else self.canary[:length]
        spreads = None if self.spreads is None else self.spreads[:length]
        return Series(self.values[:length], canary, spreads)


class Runs(NamedTuple):
    """The A/A runs of a cell: the relative distance of each from their mean, and the relative standard error of each
    from its processes."""

    off: Values
    spreads: Values

    def drawn(self, rng: np.random.Generator) -> Series:
        """A history of this cell without any change: its runs, resampled."""
        at = rng.integers(len(self.off), size=LENGTH)
        return Series(1 + self.off[at], None, self.spreads[at])

    @property
    def variation(self) -> float:
        """Their coefficient of variation; `off` is already corrected for the estimated mean."""
        return float(np.std(self.off))


Truth = list[tuple[int, int]]  # the first and the last commit of each change


# --- noise ---------------------------------------------------------------------------------------------------------


def record(path: Path) -> dict[str, Runs]:
    """The runs of each cell in an A/A record. Distances are scaled by sqrt(n / (n - 1)), since the mean is estimated
    from the same n runs."""
    cells = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        runs = np.array(entry["medians_s"])
        off = (runs / runs.mean() - 1) * math.sqrt(len(runs) / (len(runs) - 1))
        processes = entry.get("processes_s", [[]] * len(runs))  # older records lack these
        cells[entry["key"]] = Runs(off, np.array([spread(run) for run in processes]))
    return cells


def recorded(results: Path) -> Path:
    """The newest A/A record. Raises: SystemExit if there is none."""
    paths = sorted(results.glob("*/noise.jsonl"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise SystemExit(f"scripts/simulate: no A/A record under {results.name}/; scripts/noise makes one, with a GPU")
    return paths[-1]


def gaussian(share: float) -> Callable[[np.random.Generator], Series]:
    """Gaussian noise with this relative standard deviation."""
    return lambda rng: Series(1 + share * rng.standard_normal(LENGTH))


def measured(cells: dict[str, Runs]) -> Callable[[np.random.Generator], Series]:
    """The recorded noise of a cell drawn at random."""
    all_runs = list(cells.values())
    return lambda rng: all_runs[rng.integers(len(all_runs))].drawn(rng)


def bimodal(rng: np.random.Generator) -> Series:
    """One commit in five is 3 % slower."""
    return Series((1 + 0.003 * rng.standard_normal(LENGTH)) * np.where(rng.random(LENGTH) < 0.2, 1.03, 1.0))


def outliers(rng: np.random.Generator) -> Series:
    """One commit in twenty is slower, by 5 % on average."""
    off = np.where(rng.random(LENGTH) < 0.05, rng.exponential(0.05, LENGTH), 0.0)
    return Series(1 + 0.003 * rng.standard_normal(LENGTH) + off)


def sticky(rng: np.random.Generator) -> Series:
    """Two states of the machine, 1.5 % apart. The rare one begins every 100 commits and lasts for 8, on average."""
    state = np.zeros(LENGTH, bool)
    for at in range(1, LENGTH):
        state[at] = rng.random() < (7 / 8 if state[at - 1] else 1 / 100)
    return Series((1 + 0.003 * rng.standard_normal(LENGTH)) * np.where(state, 1.015, 1.0))


def drifting(seen: bool) -> Callable[[np.random.Generator], Series]:
    """The machine's speed drifts by 1 % within some 30 commits. `seen`: a canary with 0.1 % noise shows it; else there
    is no canary."""

    def make(rng: np.random.Generator) -> Series:
        wander = np.zeros(LENGTH)
        for at, push in enumerate(rng.standard_normal(LENGTH - 1), start=1):
            wander[at] = 0.97 * wander[at - 1] + 0.01 * math.sqrt(1 - 0.97**2) * push
        values = (1 + 0.002 * rng.standard_normal(LENGTH)) * np.exp(wander)
        return Series(values, np.exp(wander) * (1 + 0.001 * rng.standard_normal(LENGTH)) if seen else None)

    return make


def noises(cells: dict[str, Runs]) -> dict[str, Callable[[np.random.Generator], Series]]:
    """All kinds of noise by name, each a maker of histories without any change."""
    return {
        "as recorded": measured(cells),
        "gaussian 0.5 %": gaussian(0.005),
        "gaussian 1 %": gaussian(0.01),
        "gaussian 2 %": gaussian(0.02),
        "bimodal": bimodal,
        "5 % outliers": outliers,
        "sticky states": sticky,
        "drift": drifting(seen=False),
        "drift, canary": drifting(seen=True),
    }


# --- changes -------------------------------------------------------------------------------------------------------


def single(size: float) -> Callable[[np.random.Generator], tuple[Values, Truth]]:
    """One step of this relative size."""

    def make(rng: np.random.Generator) -> tuple[Values, Truth]:
        at = int(rng.integers(50, 150))
        return np.where(np.arange(LENGTH) >= at, 1 + size, 1.0), [(at, at)]

    return make


def creep(rng: np.random.Generator) -> tuple[Values, Truth]:
    """A gradual change of 0.3 % per commit over ten commits."""
    at = int(rng.integers(50, 150))
    return np.exp(math.log(1.003) * np.clip(np.arange(LENGTH) - at + 1, 0, 10)), [(at, at + 9)]


def staircase(*sizes: float) -> Callable[[np.random.Generator], tuple[Values, Truth]]:
    """Steps of these relative sizes, evenly spaced up to 5 commits."""

    def make(rng: np.random.Generator) -> tuple[Values, Truth]:
        gap = LENGTH // (len(sizes) + 1)
        places = [gap * (at + 1) + int(rng.integers(-5, 6)) for at in range(len(sizes))]
        level = np.ones(LENGTH)
        for at, size in zip(places, sizes, strict=True):
            level[at:] *= 1 + size
        return level, [(at, at) for at in places]

    return make


# A change's name is also part of its seed, and a key in docs/detection.json.
SINGLES = {f"{100 * size:g} %": single(size) for size in (0.005, 0.01, 0.02, 0.05, 0.1)}
OTHERS = {
    "creep": creep,
    "6 x 2 %": staircase(*[0.02] * 6),
    "6 x 5 %": staircase(*[0.05] * 6),
    "8 x 5 % up and down": staircase(*[0.05, -0.05] * 4),
}
TITLES = {"creep": "gradual change"}  # of changes whose recorded name the random draws depend on
NONE = "none"


# --- detectors -----------------------------------------------------------------------------------------------------


Detector = Callable[[Series], list[int]]  # it returns the first commit of each change that it reports


def points(series: Series) -> list[Point]:
    """A series as this project's detector takes it."""
    absent = [None] * len(series.values)
    columns = zip(
        series.values.tolist(),
        absent if series.canary is None else series.canary.tolist(),
        absent if series.spreads is None else series.spreads.tolist(),
        strict=True,
    )
    return [Point(at, value, error or 0.0, canary=canary) for at, (value, canary, error) in enumerate(columns)]


def own(series: Series) -> list[int]:
    """This project's detector."""
    return [step.since or step.at for step in find(points(series))]


def asv(threshold: float) -> Detector:
    """asv's Regressions page: the rises by more than `threshold` that the newest value has not undone."""

    def flags(series: Series) -> list[int]:
        _, _, jumps = detect_regressions(detect_steps(series.values.tolist()), threshold)
        return [jump[1] for jump in jumps or []]

    return flags


def otava(least: float) -> Detector:
    """Apache Otava, for changes of at least this relative size."""
    from otava.analysis import compute_change_points

    def flags(series: Series) -> list[int]:
        changes, _weak = compute_change_points(series.values.tolist(), min_magnitude=least)
        return [int(point.index) for point in changes]

    return flags


def ruptures(least: float) -> Detector:
    """PELT with squared errors and the usual penalty of 3 log n variances, for changes larger than `least`. The
    variance comes from the differences of neighboring values."""
    from ruptures import KernelCPD

    def flags(series: Series) -> list[int]:
        values = series.values
        if len(values) < 4:
            return []
        variance = (1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)) ** 2
        penalty = 3 * math.log(len(values)) * max(variance, 1e-12)
        edges = [0, *map(int, KernelCPD(kernel="linear", min_size=2).fit(values).predict(pen=penalty))]
        levels = [float(np.mean(values[a:b])) for a, b in pairwise(edges)]
        return [edges[k] for k in range(1, len(levels)) if abs(levels[k] / levels[k - 1] - 1) > least]

    return flags


def detectors() -> dict[str, Detector]:
    """The installed detectors by name, this project's first."""
    installed: dict[str, Detector] = {"gpukernels": own, "asv, 5 %": asv(0.05), "asv, 1 %": asv(0.01)}
    if importlib.util.find_spec("otava"):
        installed |= {"Otava": otava(0.0), "Otava, 1 %": otava(0.01)}
    if importlib.util.find_spec("ruptures"):
        installed |= {"ruptures, 1 %": ruptures(0.01)}
    return installed


# --- what a detector does ------------------------------------------------------------------------------------------


def of(flag: int, truth: Truth) -> bool:
    """Whether a flag belongs to one of the changes."""
    return any(first - NEAR <= flag <= last + NEAR for first, last in truth)


@dataclass
class Tally:
    """The results of one detector.

    `changes`: the changes in all histories; `found`: those that it found in the whole history; `exact`: those that it
    found on the right commit; `delays`: the commits after each change's own until it was flagged (infinite beyond
    WAIT); `false`: false flags; `commits`: the commits of all histories.
    """

    changes: int = 0
    found: int = 0
    exact: int = 0
    delays: list[float] | None = None
    false: int = 0
    commits: int = 0

    def take(self, flags: list[int], truth: Truth) -> None:
        """Add the flags of a whole history."""
        for first, last in truth:
            its_flags = [flag for flag in flags if of(flag, [(first, last)])]
            self.changes += 1
            self.found += bool(its_flags)
            self.exact += first in its_flags
        self.false += sum(not of(flag, truth) for flag in flags)
        self.commits += LENGTH

    def summary(self) -> dict[str, float | None]:
        """The shares and the delay as docs/detection.json holds them; None for a share of nothing."""
        delays = self.delays or []
        return {
            "changes": self.changes,
            "found": self.found / self.changes if self.changes else None,
            "exact": self.exact / self.found if self.found else None,
            "within_2": sum(delay <= 2 for delay in delays) / len(delays) if delays else None,
            "delay": statistics.median_low(delays) if delays and statistics.median_low(delays) < math.inf else None,
            "false_per_1000": 1000 * self.false / self.commits,
            "commits": self.commits,
        }


def delay(detector: Detector, series: Series, at: int) -> float:
    """The number of commits after a step's own until it is flagged, `at` being its own; infinite beyond WAIT."""
    for length in range(at + 1, at + 2 + WAIT):
        if any(abs(flag - at) <= 2 for flag in detector(series.until(length))):
            return length - 1 - at
    return math.inf


def trial(job: tuple[str, str, dict[str, Runs], int, int]) -> tuple[str, str, dict[str, dict[str, float | None]]]:
    """Run every detector on the same histories, with one kind of noise and one kind of change.

    `job`: the noise, the change, the recorded cells, the number of histories, the seed. Returns the noise, the change
    and the summary of each detector.
    """
    noise, change, cells, histories, seed = job
    rng = np.random.default_rng([seed, zlib.crc32(noise.encode()), zlib.crc32(change.encode())])
    make_noise, make_change = noises(cells)[noise], (SINGLES | OTHERS).get(change)
    tallies = {name: Tally(delays=[] if change in SINGLES else None) for name in detectors()}
    for _ in range(histories):
        series = make_noise(rng)
        level, truth = make_change(rng) if make_change else (np.ones(LENGTH), [])
        series = series._replace(values=series.values * level)
        for name, detector in detectors().items():
            tally = tallies[name]
            if make_change:
                tally.take(detector(series), truth)
            else:
                seen = {flag for end in range(EVERY, LENGTH + 1, EVERY) for flag in detector(series.until(end))}
                tally.take(sorted(seen), truth)
            if tally.delays is not None:
                tally.delays.append(delay(detector, series, truth[0][0]))
    return noise, change, {name: tally.summary() for name, tally in tallies.items()}


# --- a whole suite -------------------------------------------------------------------------------------------------


def suite(job: tuple[dict[str, Runs], int, int]) -> list[tuple[str, int, int, float]]:
    """Run this project's detector on one history of every recorded cell without any change, after each commit.

    `job`: the recorded cells, the number of the history, the seed. Returns each flag once: the cell, the flagged
    commit, the commit after which the flag first appeared, and the relative change.
    """
    cells, history, seed = job
    flags: dict[tuple[str, int], tuple[int, float]] = {}
    for key, runs in cells.items():
        series = runs.drawn(np.random.default_rng([seed, history, zlib.crc32(key.encode())]))
        values, known = series.values, points(series)
        wide = np.maximum.accumulate(values) >= np.minimum.accumulate(values) * (1 + FLOOR)
        for end in np.flatnonzero(wide) + 1:  # before these, no two values differ by FLOOR, so find() returns nothing
            for step in find(known[:end]):
                flags.setdefault((key, step.at), (int(end) - 1, step.change))
    return [(key, at, seen, change) for (key, at), (seen, change) in flags.items()]


@dataclass(frozen=True)
class Flagged:
    """The result for one step.

    `delay`: the commits after its own until it was flagged; `first`: whether its first flag was on the right commit;
    `named`: the same if the detector knows at which commit the binary changed; `whole`: whether the whole history has
    that flag and no other.
    """

    delay: float
    first: bool
    named: bool
    whole: bool


def goal(job: tuple[str, Runs, int, int]) -> list[Flagged]:
    """Run this project's detector on 1 % steps in one cell. `job`: the key, its runs, the histories, the seed."""
    key, runs, histories, seed = job
    rng = np.random.default_rng([seed, 1, zlib.crc32(key.encode())])
    results = []
    for _ in range(histories):
        at = int(rng.integers(20, LENGTH - WAIT - 1))
        series = runs.drawn(rng)
        series = series._replace(values=series.values * np.where(np.arange(LENGTH) >= at, 1.01, 1.0))
        waited = delay(own, series, at)
        then = series.until(at + 1 + int(min(waited, WAIT)))
        known = [replace(point, identity="before" if point.commit < at else "after") for point in points(then)]
        named = [(step.at, step.kind) for step in find(known)] == [(at, "step")]
        results.append(Flagged(waited, own(then) == [at], named, own(series) == [at]))
    return results


# --- public series -------------------------------------------------------------------------------------------------


def labelled(folder: Path) -> dict[str, Any]:
    """The flags of each detector in the public series in a folder, whose changes people have labeled."""
    series_by_name = {}
    for path in sorted(folder.glob("*.series.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        values = np.array(entry["values"], float)
        upside_down = 2 * values.mean() - values  # asv reports only rises
        both = [Series(values), Series(upside_down)]
        flags = {
            name: sorted({at for series in both for at in detector(series)}) for name, detector in detectors().items()
        }
        series_by_name[entry["name"]] = {"source": entry["source"], "changes": entry["changes"], "flags": flags}
    return series_by_name


# --- all of it -----------------------------------------------------------------------------------------------------


def run(
    path: Path,
    seed: int,
    histories: int,
    suites: int,
    workers: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run everything; the content of docs/detection.json.

    `path`: the A/A record; `histories`: for each noise and change; `suites`: histories of the whole suite; `workers`:
    processes; `say`: called with messages of progress.
    """
    cells = record(path)
    quiet = [key for key, runs in cells.items() if runs.variation <= QUIET_CV]
    jobs = [(noise, change, cells, histories, seed) for noise in noises(cells) for change in [NONE, *SINGLES, *OTHERS]]
    trials: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for done, (noise, change, rows) in enumerate(pool.map(trial, jobs), start=1):
            trials.setdefault(noise, {})[change] = rows
            say(f"{done} of {len(jobs)}: {noise}, {change}")
        flags: dict[int, list[dict[str, Any]]] = {seed: [], seed + 1: []}
        for suite_seed, false_flags in flags.items():
            suite_jobs = [(cells, history, suite_seed) for history in range(suites)]
            for done, new_flags in enumerate(pool.map(suite, suite_jobs), start=1):
                false_flags += [
                    {"cell": key, "commit": at, "seen": seen, "change": change} for key, at, seen, change in new_flags
                ]
                say(f"whole suite, seed {suite_seed}, {done * LENGTH} commits: {len(false_flags)} false flags")
        steps: list[Flagged] = []
        for done, results in enumerate(pool.map(goal, [(key, cells[key], suites, seed) for key in quiet]), start=1):
            steps += results
            say(f"1 % steps, {done} of {len(quiet)} cells")
    return {
        "record": f"{path.parent.name}/{path.name}",
        "seed": seed,
        "histories": histories,
        "length": LENGTH,
        "detectors": list(detectors()),
        "trials": trials,
        "suite": {
            "cells": len(cells),
            "commits": suites * LENGTH,
            "false_flags": flags[seed],
            "false_flags_of_next_seed": flags[seed + 1],
        },
        "goal": {
            "cells": len(quiet),
            "steps": len(steps),
            "after_1": sum(step.delay <= 1 for step in steps),
            "after_2": sum(step.delay <= 2 for step in steps),
            "first": sum(step.first for step in steps),
            "named": sum(step.named for step in steps),
            "whole": sum(step.whole for step in steps),
        },
        "labelled": labelled(LABELLED),
    }


# --- tables --------------------------------------------------------------------------------------------------------


def share(value: float | None) -> str:
    """A share in percent without its unit; "" for None."""
    return "" if value is None else f"{100 * value:.0f}"


def found_table(result: dict[str, Any]) -> str:
    """Single steps: the share found in the whole history, a row for each noise and detector."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in SINGLES]
            false_flags = changes[NONE][name]["false_per_1000"]
            rows.append([f"{noise}: {name}", *(share(figure["found"]) for figure in figures), f"{false_flags:.2f}"])
    return table(["noise: detector", *SINGLES, "false flags in 1000 commits"], rows)


def soon_table(result: dict[str, Any]) -> str:
    """Single steps: the share flagged within two commits, and the share of the found ones on the right commit."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in SINGLES]
            cells = [f"{share(figure['within_2'])} / {share(figure['exact']) or '-'}" for figure in figures]
            rows.append([f"{noise}: {name}", *cells])
    return table(["noise: detector", *SINGLES], rows)


def stairs_table(result: dict[str, Any]) -> str:
    """Gradual changes and staircases: the share found in the whole history; false flags there in 1000 commits."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in OTHERS]
            false_flags = sum(figure["false_per_1000"] for figure in figures) / len(figures)
            rows.append([f"{noise}: {name}", *(share(figure["found"]) for figure in figures), f"{false_flags:.2f}"])
    names = [TITLES.get(name, name) for name in OTHERS]
    return table(["noise: detector", *names, "false flags in 1000 commits"], rows)


def goal_text(result: dict[str, Any]) -> str:
    """The whole suite without any change, and 1 % steps in the quiet cells."""
    suite, goal = result["suite"], result["goal"]
    rows = [
        ["the A/A record", result["record"]],
        ["cells of the whole suite", str(suite["cells"])],
        ["commits of it without any change, published one by one", str(suite["commits"])],
        ["false flags on any of these days", str(len(suite["false_flags"]))],
        ["the same of another seed", str(len(suite["false_flags_of_next_seed"]))],
        ["cells whose A/A runs differ by at most 0.2 %", str(goal["cells"])],
        ["steps of 1 % in them", str(goal["steps"])],
        ["flagged with the first commit after the step's own", str(goal["after_1"])],
        ["flagged with the second at the latest", str(goal["after_2"])],
        ["the first flag on the right commit", str(goal["first"])],
        ["the same where it is known that the binary changed there", str(goal["named"])],
        ["one flag in the whole history, on the right commit", str(goal["whole"])],
    ]
    return table(["this project's detector, the GPU's own noise", "figure"], rows)


def labelled_text(result: dict[str, Any]) -> str:
    """The public series: a table of the labeled changes and of each detector's flags."""
    parts = []
    for name, entry in result["labelled"].items():
        title = f"**{name}** ({entry['source']}): the first points after a change"
        rows = [["told of", ", ".join(map(str, entry["changes"]))]]
        rows += [[detector, ", ".join(map(str, flags)) or "none"] for detector, flags in entry["flags"].items()]
        parts.append(f"{title}\n\n{table(['detector', 'flags'], rows)}")
    return "\n\n".join(parts)


BLOCKS = {
    "goal": goal_text,
    "found": found_table,
    "soon": soon_table,
    "stairs": stairs_table,
    "labelled": labelled_text,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation and write its results; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=301, help="seed of all random numbers (default: 301)")
    parser.add_argument("--histories", type=int, default=20, help="for each noise and change (default: 20)")
    parser.add_argument("--suites", type=int, default=50, help="histories of the whole suite (default: 50)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)"
    )
    parser.add_argument("--quick", action="store_true", help="use few histories; print the tables, write no file")
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables from docs/detection.json")
    options = parser.parse_args(arguments)
    if options.tables:
        result = json.loads(JSON.read_text(encoding="utf-8"))
    else:
        wanted = set(environment.requirements("simulate")) - set(environment.requirements())
        if lacking := environment.missing(sorted(wanted)):
            print(f"not compared, since not installed: {', '.join(lacking)}; to add them: pip install --no-deps")
        began = time.monotonic()
        histories, suites = (3, 1) if options.quick else (options.histories, options.suites)
        result = run(
            recorded(ROOT / "results"),
            options.seed,
            histories,
            suites,
            options.workers,
            lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True),
        )
    if options.quick:
        print("\n\n".join(make(result) for make in BLOCKS.values()))
        return 0
    write_whole(JSON, json.dumps(result, indent=1) + "\n")
    for name, make in BLOCKS.items():
        write_block(PAPER, name, make(result), "scripts/simulate")
    print(f"written: {JSON.relative_to(ROOT)} and the tables of {PAPER.relative_to(ROOT)}")
    return 0
