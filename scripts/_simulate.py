"""Detectors of steps on simulated histories: what each finds, how soon, on which commit, and how often it cries wolf.

The noise is the GPU's own (each cell's A/A runs with the spread between their processes, drawn again and again) and
worse than that. Every binary counts as changed, so that no flag is excused. The detectors are this project's
(scripts/_steps.py), asv's as it comes and at 1 %, and, where they are installed, Apache Otava and ruptures. What is
simulated follows from the seed. Written to docs/detection.json, and from it to the tables of docs/detection.md.
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

from benchmarks._files import write_whole
from scripts import _environment, _papers
from scripts._events import spread
from scripts._steps import FLOOR, Point, Values, find

ROOT = Path(__file__).resolve().parent.parent
JSON, PAPER = ROOT / "docs" / "detection.json", ROOT / "docs" / "detection.md"
LABELLED = ROOT / "tests" / "data"
LENGTH = 200
NEAR = 5  # a flag so many commits from a step is of that step
WAIT = 10  # how many commits after a step's own are published, one by one
EVERY = 5  # of the commits of a history without any step, how many are published between two looks
QUIET_CV = 0.002  # the goal's cells: their A/A runs differ by no more


class Series(NamedTuple):
    """A value a commit; where there is one, the canary beside each; where they are known, the relative standard error
    that each commit's processes give it."""

    values: Values
    canary: Values | None = None
    spreads: Values | None = None

    def until(self, length: int) -> "Series":
        """As it was after so many commits."""
        values, *others = self
        return Series(values[:length], *(part if part is None else part[:length] for part in others))


class Runs(NamedTuple):
    """The A/A runs of a cell: how far each is from their mean, relative, and what its processes say of its error."""

    off: Values
    spreads: Values

    def drawn(self, rng: np.random.Generator) -> Series:
        """A history of this cell without any change: its runs, again and again."""
        at = rng.integers(len(self.off), size=LENGTH)
        return Series(1 + self.off[at], None, self.spreads[at])

    @property
    def variation(self) -> float:
        """Their coefficient of variation."""
        return float(np.std(self.off))  # which is widened


Truth = list[tuple[int, int]]  # of each change the first commit and the last one


# --- noise ---------------------------------------------------------------------------------------------------------


def record(path: Path) -> dict[str, Runs]:
    """Of each cell of an A/A record its runs, their distances widened for the mean's being theirs."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        runs = np.array(entry["medians_s"])
        off = (runs / runs.mean() - 1) * math.sqrt(len(runs) / (len(runs) - 1))
        processes = entry.get("processes_s", [[]] * len(runs))  # which older records lack
        found[entry["key"]] = Runs(off, np.array([spread(run) for run in processes]))
    return found


def recorded(results: Path) -> Path:
    """The newest A/A record. Raises: SystemExit where there is none."""
    found = sorted(results.glob("*/noise.jsonl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"scripts/simulate: no A/A record under {results.name}/; scripts/noise makes one, with a GPU")
    return found[-1]


def gaussian(share: float) -> Callable[[np.random.Generator], Series]:
    return lambda rng: Series(1 + share * rng.standard_normal(LENGTH))


def measured(cells: dict[str, Runs]) -> Callable[[np.random.Generator], Series]:
    """A cell drawn at random."""
    everyone = list(cells.values())
    return lambda rng: everyone[rng.integers(len(everyone))].drawn(rng)


def bimodal(rng: np.random.Generator) -> Series:
    """One commit in five 3 % slower."""
    return Series((1 + 0.003 * rng.standard_normal(LENGTH)) * np.where(rng.random(LENGTH) < 0.2, 1.03, 1.0))


def outliers(rng: np.random.Generator) -> Series:
    """One commit in twenty is slower, by 5 % on average."""
    off = np.where(rng.random(LENGTH) < 0.05, rng.exponential(0.05, LENGTH), 0.0)
    return Series(1 + 0.003 * rng.standard_normal(LENGTH) + off)


def sticky(rng: np.random.Generator) -> Series:
    """Two states of the machine, 1.5 % apart, one of them rare: it is entered every 100 commits and kept for 8."""
    state = np.zeros(LENGTH, bool)
    for at in range(1, LENGTH):
        state[at] = rng.random() < (7 / 8 if state[at - 1] else 1 / 100)
    return Series((1 + 0.003 * rng.standard_normal(LENGTH)) * np.where(state, 1.015, 1.0))


def drifting(seen: bool) -> Callable[[np.random.Generator], Series]:
    """The machine's speed wanders by 1 %, within some 30 commits; a canary of 0.1 % noise sees it or there is none."""

    def make(rng: np.random.Generator) -> Series:
        wander = np.zeros(LENGTH)
        for at, push in enumerate(rng.standard_normal(LENGTH - 1), start=1):
            wander[at] = 0.97 * wander[at - 1] + 0.01 * math.sqrt(1 - 0.97**2) * push
        values = (1 + 0.002 * rng.standard_normal(LENGTH)) * np.exp(wander)
        return Series(values, np.exp(wander) * (1 + 0.001 * rng.standard_normal(LENGTH)) if seen else None)

    return make


def noises(cells: dict[str, Runs]) -> dict[str, Callable[[np.random.Generator], Series]]:
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
    def make(rng: np.random.Generator) -> tuple[Values, Truth]:
        at = int(rng.integers(50, 150))
        return np.where(np.arange(LENGTH) >= at, 1 + size, 1.0), [(at, at)]

    return make


def creep(rng: np.random.Generator) -> tuple[Values, Truth]:
    """0.3 % a commit over ten commits."""
    at = int(rng.integers(50, 150))
    return np.exp(math.log(1.003) * np.clip(np.arange(LENGTH) - at + 1, 0, 10)), [(at, at + 9)]


def staircase(*sizes: float) -> Callable[[np.random.Generator], tuple[Values, Truth]]:
    """So many steps, some 25 commits apart."""

    def make(rng: np.random.Generator) -> tuple[Values, Truth]:
        gap = LENGTH // (len(sizes) + 1)
        places = [gap * (at + 1) + int(rng.integers(-5, 6)) for at in range(len(sizes))]
        level = np.ones(LENGTH)
        for at, size in zip(places, sizes, strict=True):
            level[at:] *= 1 + size
        return level, [(at, at) for at in places]

    return make


SINGLES = {f"{100 * size:g} %": single(size) for size in (0.005, 0.01, 0.02, 0.05, 0.1)}
OTHERS = {
    "creep": creep,
    "6 x 2 %": staircase(*[0.02] * 6),
    "6 x 5 %": staircase(*[0.05] * 6),
    "8 x 5 % up and down": staircase(*[0.05, -0.05] * 4),
}
NONE = "none"


# --- detectors -----------------------------------------------------------------------------------------------------


Detector = Callable[[Series], list[int]]  # the first commits of the changes that it tells of


def points(series: Series) -> list[Point]:
    """A series as the detector takes it."""
    nothing = [None] * len(series.values)
    beside = zip(
        series.values.tolist(),
        nothing if series.canary is None else series.canary.tolist(),
        nothing if series.spreads is None else series.spreads.tolist(),
        strict=True,
    )
    return [Point(at, value, error or 0.0, canary=canary) for at, (value, canary, error) in enumerate(beside)]


def own(series: Series) -> list[int]:
    return [step.since or step.at for step in find(points(series))]


def asv(threshold: float) -> Detector:
    """What its Regressions page lists: rises that the newest value has not made good."""

    def flags(series: Series) -> list[int]:
        _, _, jumps = detect_regressions(detect_steps(series.values.tolist()), threshold)
        return [jump[1] for jump in jumps or []]

    return flags


def otava(least: float) -> Detector:
    from otava.analysis import compute_change_points

    def flags(series: Series) -> list[int]:
        found, _weak = compute_change_points(series.values.tolist(), min_magnitude=least)
        return [int(point.index) for point in found]

    return flags


def ruptures(least: float) -> Detector:
    """PELT with squared errors at the usual price of three log n variances, those from differences of neighbours."""
    from ruptures import KernelCPD

    def flags(series: Series) -> list[int]:
        values = series.values
        if len(values) < 4:
            return []
        variance = (1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)) ** 2
        price = 3 * math.log(len(values)) * max(variance, 1e-12)
        edges = [0, *map(int, KernelCPD(kernel="linear", min_size=2).fit(values).predict(pen=price))]
        levels = [float(np.mean(values[a:b])) for a, b in pairwise(edges)]
        return [edges[k] for k in range(1, len(levels)) if abs(levels[k] / levels[k - 1] - 1) > least]

    return flags


def detectors() -> dict[str, Detector]:
    """Those at hand, this project's first."""
    found: dict[str, Detector] = {"gpukernels": own, "asv, 5 %": asv(0.05), "asv, 1 %": asv(0.01)}
    if importlib.util.find_spec("otava"):
        found |= {"Otava": otava(0.0), "Otava, 1 %": otava(0.01)}
    if importlib.util.find_spec("ruptures"):
        found |= {"ruptures, 1 %": ruptures(0.01)}
    return found


# --- what a detector does ------------------------------------------------------------------------------------------


def of(flag: int, truth: Truth) -> bool:
    """Whether a flag is of one of the changes."""
    return any(first - NEAR <= flag <= last + NEAR for first, last in truth)


@dataclass
class Tally:
    """A detector's record: changes, how many it found in the whole history, how many on the right commit, the commits
    after each change's own until it was flagged (infinite beyond WAIT), false flags and the commits they are of."""

    changes: int = 0
    found: int = 0
    exact: int = 0
    delays: list[float] | None = None
    false: int = 0
    commits: int = 0

    def take(self, flags: list[int], truth: Truth) -> None:
        """A whole history's flags."""
        for first, last in truth:
            mine = [flag for flag in flags if of(flag, [(first, last)])]
            self.changes += 1
            self.found += bool(mine)
            self.exact += first in mine
        self.false += sum(not of(flag, truth) for flag in flags)
        self.commits += LENGTH

    def summary(self) -> dict[str, float | None]:
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


def delay(flags: Detector, series: Series, at: int) -> float:
    """How many commits after a step's own are published before it is flagged."""
    for length in range(at + 1, at + 2 + WAIT):
        if any(abs(flag - at) <= 2 for flag in flags(series.until(length))):
            return length - 1 - at
    return math.inf


def trial(job: tuple[str, str, dict[str, Runs], int, int]) -> tuple[str, str, dict[str, dict[str, float | None]]]:
    """One kind of noise with one kind of change: every detector on the same histories."""
    noise, change, cells, histories, seed = job
    rng = np.random.default_rng([seed, zlib.crc32(noise.encode()), zlib.crc32(change.encode())])
    make_noise, make_change = noises(cells)[noise], (SINGLES | OTHERS).get(change)
    tallies = {name: Tally(delays=[] if change in SINGLES else None) for name in detectors()}
    for _ in range(histories):
        series = make_noise(rng)
        level, truth = make_change(rng) if make_change else (np.ones(LENGTH), [])
        series = series._replace(values=series.values * level)
        for name, flags in detectors().items():
            tally = tallies[name]
            if make_change:
                tally.take(flags(series), truth)
            else:
                seen = {flag for end in range(EVERY, LENGTH + 1, EVERY) for flag in flags(series.until(end))}
                tally.take(sorted(seen), truth)
            if tally.delays is not None:
                tally.delays.append(delay(flags, series, truth[0][0]))
    return noise, change, {name: tally.summary() for name, tally in tallies.items()}


# --- a whole suite -------------------------------------------------------------------------------------------------


def suite(job: tuple[dict[str, Runs], int, int]) -> list[tuple[str, int, int, float]]:
    """Every cell of the record in one history without any change, published after each commit: the flags of any of
    these days, each once: cell, the commit blamed, that at whose publishing it was first seen, the change."""
    cells, history, seed = job
    found: dict[tuple[str, int], tuple[int, float]] = {}
    for key, runs in cells.items():
        series = runs.drawn(np.random.default_rng([seed, history, zlib.crc32(key.encode())]))
        values, known = series.values, points(series)
        wide = np.maximum.accumulate(values) >= np.minimum.accumulate(values) * (1 + FLOOR)
        for end in np.flatnonzero(wide) + 1:  # before these no two values differ by the floor, so find() has nothing
            for step in find(known[:end]):
                found.setdefault((key, step.at), (int(end) - 1, step.change))
    return [(key, at, seen, change) for (key, at), (seen, change) in found.items()]


@dataclass(frozen=True)
class Flagged:
    """A step: the commits after its own until it was flagged; whether that first flag was on the right commit, whether
    it is where the binaries are known to differ there, and whether the whole history has that flag and no other."""

    delay: float
    first: bool
    named: bool
    whole: bool


def goal(job: tuple[str, Runs, int, int]) -> list[Flagged]:
    """A 1 % step in one cell, in so many histories."""
    key, runs, histories, seed = job
    rng = np.random.default_rng([seed, 1, zlib.crc32(key.encode())])
    found = []
    for _ in range(histories):
        at = int(rng.integers(20, LENGTH - WAIT - 1))
        series = runs.drawn(rng)
        series = series._replace(values=series.values * np.where(np.arange(LENGTH) >= at, 1.01, 1.0))
        waited = delay(own, series, at)
        then = series.until(at + 1 + int(min(waited, WAIT)))
        known = [replace(point, identity="before" if point.commit < at else "after") for point in points(then)]
        named = [(step.at, step.kind) for step in find(known)] == [(at, "step")]
        found.append(Flagged(waited, own(then) == [at], named, own(series) == [at]))
    return found


# --- public series -------------------------------------------------------------------------------------------------


def labelled(folder: Path) -> dict[str, Any]:
    """Public series whose changes people have told of: what each detector flags there, of the whole series."""
    found = {}
    for path in sorted(folder.glob("*.series.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        values = np.array(entry["values"], float)
        upside_down = 2 * values.mean() - values  # asv tells of rises only
        both = [Series(values), Series(upside_down)]
        flags = {who: sorted({at for one in both for at in flags(one)}) for who, flags in detectors().items()}
        found[entry["name"]] = {"source": entry["source"], "changes": entry["changes"], "flags": flags}
    return found


# --- all of it -----------------------------------------------------------------------------------------------------


def run(
    path: Path,
    seed: int,
    histories: int,
    suites: int,
    workers: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Everything, as it is written to docs/detection.json."""
    cells = record(path)
    quiet = [key for key, runs in cells.items() if runs.variation <= QUIET_CV]
    jobs = [(noise, change, cells, histories, seed) for noise in noises(cells) for change in [NONE, *SINGLES, *OTHERS]]
    trials: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for done, (noise, change, rows) in enumerate(pool.map(trial, jobs), start=1):
            trials.setdefault(noise, {})[change] = rows
            say(f"{done} of {len(jobs)}: {noise}, {change}")
        flags: dict[int, list[dict[str, Any]]] = {seed: [], seed + 1: []}
        for mine, found_there in flags.items():
            for done, some in enumerate(pool.map(suite, [(cells, at, mine) for at in range(suites)]), start=1):
                found_there += [
                    {"cell": key, "commit": at, "seen": seen, "change": change} for key, at, seen, change in some
                ]
                say(f"whole suite, seed {mine}, {done * LENGTH} commits: {len(found_there)} false flags")
        steps: list[Flagged] = []
        for done, found in enumerate(pool.map(goal, [(key, cells[key], suites, seed) for key in quiet]), start=1):
            steps += found
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
            "after_1": sum(one.delay <= 1 for one in steps),
            "after_2": sum(one.delay <= 2 for one in steps),
            "first": sum(one.first for one in steps),
            "named": sum(one.named for one in steps),
            "whole": sum(one.whole for one in steps),
        },
        "labelled": labelled(LABELLED),
    }


# --- tables --------------------------------------------------------------------------------------------------------


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}"


def found_table(result: dict[str, Any]) -> str:
    """Single steps: the share found in the whole history, a line a noise and a detector."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in SINGLES]
            wolf = changes[NONE][name]["false_per_1000"]
            rows.append([f"{noise}: {name}", *(share(figure["found"]) for figure in figures), f"{wolf:.2f}"])
    return _papers.table(["noise: detector", *SINGLES, "false flags in 1000 commits"], rows)


def soon_table(result: dict[str, Any]) -> str:
    """Single steps: the share flagged within two commits, and of what is found that on the right commit."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in SINGLES]
            cells = [f"{share(one['within_2'])} / {share(one['exact']) or '-'}" for one in figures]
            rows.append([f"{noise}: {name}", *cells])
    return _papers.table(["noise: detector", *SINGLES], rows)


def stairs_table(result: dict[str, Any]) -> str:
    """Creeps and staircases: the share found in the whole history; false flags there in 1000 commits."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in OTHERS]
            wolf = sum(one["false_per_1000"] for one in figures) / len(figures)
            rows.append([f"{noise}: {name}", *(share(one["found"]) for one in figures), f"{wolf:.2f}"])
    return _papers.table(["noise: detector", *OTHERS, "false flags in 1000 commits"], rows)


def goal_text(result: dict[str, Any]) -> str:
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
    return _papers.table(["this project's detector, the GPU's own noise", "figure"], rows)


def labelled_text(result: dict[str, Any]) -> str:
    parts = []
    for name, entry in result["labelled"].items():
        title = f"**{name}** ({entry['source']}): the first points after a change"
        rows = [["told of", ", ".join(map(str, entry["changes"]))]]
        rows += [[who, ", ".join(map(str, flags)) or "none"] for who, flags in entry["flags"].items()]
        parts.append(f"{title}\n\n{_papers.table(['detector', 'flags'], rows)}")
    return "\n\n".join(parts)


BLOCKS = {
    "goal": goal_text,
    "found": found_table,
    "soon": soon_table,
    "stairs": stairs_table,
    "labelled": labelled_text,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=301, help="of all that is drawn (default: 301)")
    parser.add_argument("--histories", type=int, default=20, help="for each noise and change (default: 20)")
    parser.add_argument("--suites", type=int, default=50, help="histories of the whole suite (default: 50)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--quick", action="store_true", help="few histories, printed and not written")
    parser.add_argument("--tables", action="store_true", help="only write the tables again, from docs/detection.json")
    given = parser.parse_args(arguments)
    if given.tables:
        result = json.loads(JSON.read_text(encoding="utf-8"))
    else:
        wanted = set(_environment.requirements("simulate")) - set(_environment.requirements())
        if lacking := _environment.missing(sorted(wanted)):
            print(f"not compared, since not installed: {', '.join(lacking)}; pip install --no-deps brings them")
        began = time.monotonic()
        histories, suites = (3, 1) if given.quick else (given.histories, given.suites)
        result = run(
            recorded(ROOT / "results"),
            given.seed,
            histories,
            suites,
            given.workers,
            lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True),
        )
    if given.quick:
        print("\n\n".join(make(result) for make in BLOCKS.values()))
        return 0
    write_whole(JSON, json.dumps(result, indent=1) + "\n")
    for name, make in BLOCKS.items():
        _papers.write_block(PAPER, name, make(result), "scripts/simulate")
    print(f"written: {JSON.relative_to(ROOT)} and the tables of {PAPER.relative_to(ROOT)}")
    return 0
