#!/usr/bin/env python3
"""Runs detectors of steps on simulated histories: what each finds, how soon, on which commit, how many flags are false.

The noise is that of the GPU (the A/A runs of each cell with the spread between their processes, resampled) and worse.
Every binary counts as changed, so no flag is excused. The detectors are this project's (kernelwatch/detect/steps.py),
asv's with its default threshold and with 0.5 %, and, if they are installed, Apache Otava, ruptures and MongoDB's
E-divisive. The seed determines all histories. The results go to docs/detection.json, and from there to
docs/research/detection.md.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import argparse
import json
import math
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import environment
from kernelwatch.detect.settled import Settled
from kernelwatch.detect.steps import FLOOR, find, judge
from kernelwatch.system.files import write_whole
from lab import ablation
from lab.confirming import confirmed, together, total
from lab.detection import BLOCKS
from lab.detectors import Detector, asv, detectors, own, points
from lab.figures import write_block
from lab.histories import (
    LENGTH,
    NONE,
    OTHERS,
    QUIET_CV,
    SINGLES,
    Runs,
    Series,
    Truth,
    noises,
    record,
    recorded,
)

ROOT = Path(__file__).resolve().parent.parent.parent
JSON, PAPER = ROOT / "docs" / "detection.json", ROOT / "docs" / "research" / "detection.md"
LABELED = ROOT / "tests" / "data"
NEAR = 5  # a flag within this many commits of a step belongs to that step
WAIT = 10  # the commits after a step's own that are published, one by one
LONG = 3000  # commits of a long series
PASTS = 400  # steps after a noisy past
EVERY = 5  # in a history without any step, the commits that are published between two looks
ABLATED = 20  # histories of each noise and change for each test that is left out


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


def past(job: tuple[str, dict[str, Runs], int, int]) -> dict[str, int]:
    """Run this project's detector on 1 % steps in the quiet part after a noisy past. `job`: the noise, the recorded
    cells, the histories, the seed."""
    noise, cells, histories, seed = job
    rng = np.random.default_rng([seed, 4, zlib.crc32(noise.encode())])
    make_noise, make_change = noises(cells)[noise], SINGLES["1 %"]
    after_2 = false = 0
    for _ in range(histories):
        series = make_noise(rng)
        level, truth = make_change(rng)
        series = series._replace(values=series.values * level)
        after_2 += delay(own, series, truth[0][0]) <= 2
        false += sum(not of(flag, truth) for flag in own(series))
    return {"steps": histories, "after_2": after_2, "false": false}


def cost(job: tuple[str, dict[str, Runs], int]) -> dict[str, float]:
    """The CPU seconds of a long series: this project's detector, the same for one commit more, asv's detector.
    `job`: the noise, the recorded cells, the seed."""
    noise, cells, seed = job
    rng = np.random.default_rng([seed, 5, zlib.crc32(noise.encode())])
    parts = [noises(cells)[noise](rng) for _ in range(LONG // LENGTH)]
    values, canaries, spreads = zip(*parts, strict=True)
    series = Series(
        np.concatenate(values),
        None if canaries[0] is None else np.concatenate(canaries),
        None if spreads[0] is None else np.concatenate(spreads),
    )
    known, settled = points(series), Settled()
    judge(known[:LENGTH])  # what it imports is no part of the cost

    def seconds(work: Callable[[], object]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return {
        "whole": seconds(lambda: judge(known[:-1], settled=settled)),
        "more": seconds(lambda: judge(known, settled=settled)),
        "asv": seconds(lambda: asv(0.05)(series)),
    }


# --- public series -------------------------------------------------------------------------------------------------


def labeled(folder: Path) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Plan:
    """What to run. `cells`: the record's; `histories`: for each noise and change; `suites`: histories of the whole
    suite; `pool`: of processes; `say`: called with messages of progress."""

    cells: dict[str, Runs]
    seed: int
    histories: int
    suites: int
    pool: ProcessPoolExecutor
    say: Callable[[str], None] = lambda _: None

    @property
    def quiet(self) -> dict[str, Runs]:
        return {key: runs for key, runs in self.cells.items() if runs.variation <= QUIET_CV}

    def map(self, what: str, work: Callable[[Any], Any], jobs: list[Any]) -> Iterator[Any]:
        """The results of jobs, in order."""
        for done, result in enumerate(self.pool.map(work, jobs), start=1):
            self.say(f"{what}, {done} of {len(jobs)}")
            yield result

    def trials(self) -> dict[str, Any]:
        """Every detector on every noise and change."""
        noises_and_changes = [(noise, change) for noise in noises(self.cells) for change in [NONE, *SINGLES, *OTHERS]]
        jobs = [(*each, self.cells, self.histories, self.seed) for each in noises_and_changes]
        rows_by_noise: dict[str, dict[str, Any]] = {}
        for noise, change, rows in self.map("trials", trial, jobs):
            rows_by_noise.setdefault(noise, {})[change] = rows
        return rows_by_noise

    def suite(self) -> dict[str, Any]:
        """The whole suite without any change, with two seeds."""
        flags: dict[str, list[dict[str, Any]]] = {}
        for name, seed in (("false_flags", self.seed), ("false_flags_of_next_seed", self.seed + 1)):
            jobs = [(self.cells, history, seed) for history in range(self.suites)]
            new_flags = [flag for each in self.map(f"whole suite, seed {seed}", suite, jobs) for flag in each]
            flags[name] = [
                {"cell": key, "commit": at, "seen": seen, "change": change} for key, at, seen, change in new_flags
            ]
        return {"cells": len(self.cells), "commits": self.suites * LENGTH, **flags}

    def goal(self) -> dict[str, int]:
        """Steps of 1 % in each quiet cell."""
        jobs = [(key, runs, self.suites, self.seed) for key, runs in self.quiet.items()]
        flagged: list[Flagged] = [one for each in self.map("1 % steps", goal, jobs) for one in each]
        return {
            "cells": len(jobs),
            "steps": len(flagged),
            "after_1": sum(step.delay <= 1 for step in flagged),
            "after_2": sum(step.delay <= 2 for step in flagged),
            "first": sum(step.first for step in flagged),
            "named": sum(step.named for step in flagged),
            "whole": sum(step.whole for step in flagged),
        }

    def past(self) -> dict[str, dict[str, int]]:
        """Steps of 1 % after a noisy past."""
        pasts = [noise for noise in noises(self.cells) if noise.startswith("noisy past")]
        jobs = [(noise, self.cells, PASTS, self.seed) for noise in pasts]
        return dict(zip(pasts, self.map("noisy past", past, jobs), strict=True))

    def ablation(self) -> dict[str, Any]:
        """The detector without each of its tests."""
        names = [(name, noise) for name in ablation.LEFT_OUT for noise in noises(self.cells)]
        histories = ABLATED if self.suites > 1 else 1
        jobs = [(*each, self.cells, histories, self.seed) for each in names]
        return ablation.total(list(self.map("without each test", ablation.ablated, jobs)))

    def confirmed(self) -> dict[str, int]:
        """Disturbed runs, each event measured again."""
        jobs = [(self.quiet, history, self.seed) for history in range(self.histories)]
        return total([asdict(one) for one in self.map("disturbed runs, measured again", confirmed, jobs)])

    def together(self) -> dict[str, int]:
        """Sessions that shift all cells."""
        jobs = [(self.quiet, history, self.seed) for history in range(self.histories)]
        return total(list(self.map("sessions that shift all cells", together, jobs)))

    def cost(self) -> dict[str, Any]:
        """CPU seconds of a long series."""
        jobs = [(noise, self.cells, self.seed) for noise in noises(self.cells)]
        seconds = self.map(f"CPU seconds of {LONG} commits", cost, jobs)
        return {"commits": LONG, "seconds": dict(zip(noises(self.cells), seconds, strict=True))}

    def labeled(self) -> dict[str, Any]:
        """The public series."""
        return labeled(LABELED)


PARTS = ("trials", "suite", "goal", "past", "confirmed", "together", "ablation", "cost", "labeled")


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation and write its results; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/lab/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=777, help="seed of all random numbers (default: 777)")
    parser.add_argument("--histories", type=int, default=6, help="for each noise and change (default: 6)")
    parser.add_argument("--suites", type=int, default=50, help="histories of the whole suite (default: 50)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="run these parts; keep the others")
    parser.add_argument("--quick", action="store_true", help="use few histories; print the tables, write no file")
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables from docs/detection.json")
    options = parser.parse_args(arguments)
    result = json.loads(JSON.read_text(encoding="utf-8"))
    if not options.tables:
        wanted = set(environment.requirements("simulate")) - set(environment.requirements())
        if lacking := environment.missing(sorted(wanted)):
            print(f"not compared, since not installed: {', '.join(lacking)}; to add them: pip install --no-deps")
        began = time.monotonic()
        path = recorded(ROOT / "results")
        histories, suites = (3, 1) if options.quick else (options.histories, options.suites)
        with ProcessPoolExecutor(options.workers) as pool:
            plan = Plan(
                record(path),
                options.seed,
                histories,
                suites,
                pool,
                lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True),
            )
            result |= {"record": f"{path.parent.name}/{path.name}", "seed": options.seed, "histories": histories}
            result |= {part: getattr(plan, part)() for part in options.only}
        if "trials" in options.only:
            result["detectors"] = list(detectors())
    if options.quick:
        print("\n\n".join(make(result) for make in BLOCKS.values()))
        return 0
    write_whole(JSON, json.dumps(result, indent=1) + "\n")
    for name, make in BLOCKS.items():
        write_block(PAPER, name, make(result), "scripts/lab/simulate")
    print(f"written: {JSON.relative_to(ROOT)} and the tables of {PAPER.relative_to(ROOT)}")
    return 0
