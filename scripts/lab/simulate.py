#!/usr/bin/env python3
"""Runs detectors of steps on simulated histories: what each finds, how soon, on which commit, how many flags are false.

The noise is that of the GPU (the A/A runs of each cell with the spread between their processes, resampled) and worse.
Every binary counts as changed, so no flag is excused. The detectors are this project's (kernelwatch/detect/steps.py),
asv's with its default threshold and with 0.5 %, and, if they are installed, Apache Otava and ruptures. The seed
determines all histories. The results go to docs/detection.json, and from there to docs/research/detection.md.
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import environment
from kernelwatch.detect.settled import Settled
from kernelwatch.detect.steps import FLOOR, find, judge
from kernelwatch.system.files import write_whole
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
        say("1 % steps after a noisy past")
        pasts = [(noise, cells, PASTS, seed) for noise in noises(cells) if noise.startswith("noisy past")]
        after_noise = dict(zip((noise for noise, *_ in pasts), pool.map(past, pasts), strict=True))
        say(f"CPU seconds of {LONG} commits")
        costs = dict(zip(noises(cells), pool.map(cost, [(noise, cells, seed) for noise in noises(cells)]), strict=True))
        few = [({key: cells[key] for key in quiet}, history, seed) for history in range(histories)]
        say("disturbed runs, each event measured again")
        disturbed_runs = [asdict(one) for one in pool.map(confirmed, few)]
        say("sessions that shift all cells")
        shifted = list(pool.map(together, few))
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
        "past": after_noise,
        "confirmed": total(disturbed_runs),
        "together": total(shifted),
        "cost": {"commits": LONG, "seconds": costs},
        "labeled": labeled(LABELED),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation and write its results; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/lab/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=777, help="seed of all random numbers (default: 777)")
    parser.add_argument("--histories", type=int, default=6, help="for each noise and change (default: 6)")
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
        write_block(PAPER, name, make(result), "scripts/lab/simulate")
    print(f"written: {JSON.relative_to(ROOT)} and the tables of {PAPER.relative_to(ROOT)}")
    return 0
