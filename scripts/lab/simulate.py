"""Runs detectors of steps on simulated histories: what each finds, how soon, on which commit, how many flags are false.

The noise is that of the GPU (the A/A runs of each cell with the spread between their processes, resampled) and worse.
Every binary counts as changed, so no flag is excused. The detectors are this project's (kernelwatch/detect/steps.py),
asv's with its default threshold and with 1 %, and, if they are installed, Apache Otava and ruptures. The seed
determines all histories. The results go to docs/detection.json, and from there to the tables of docs/detection.md.
"""

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
from kernelwatch.compare import paired
from kernelwatch.compare.paired import FALSE_ALARMS, LOOKS, WITHIN, judge
from kernelwatch.detect import common
from kernelwatch.detect.events import JudgedSeries, Result
from kernelwatch.detect.steps import FLOOR, find
from kernelwatch.report.markdown import table
from kernelwatch.system.files import write_whole
from lab.detectors import Detector, detectors, own, points
from lab.figures import write_block
from lab.histories import (
    LENGTH,
    NONE,
    OTHERS,
    QUIET_CV,
    SINGLES,
    TITLES,
    Runs,
    Series,
    Truth,
    disturbances,
    noises,
    record,
    recorded,
    shifts,
)

ROOT = Path(__file__).resolve().parent.parent.parent
JSON, PAPER = ROOT / "docs" / "detection.json", ROOT / "docs" / "detection.md"
LABELLED = ROOT / "tests" / "data"
NEAR = 5  # a flag within this many commits of a step belongs to that step
SAMPLE = 20  # quiet cells in a history whose events are measured again, or that a session shifts
WAIT = 10  # the commits after a step's own that are published, one by one
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


# --- what measuring again and other cells tell ---------------------------------------------------------------------


@dataclass
class Confirmed:
    """What came of the events of disturbed runs, each of which is measured again.

    `events`: without a step's doing; `false`: those that were confirmed; `steps`: true steps of 1 %; `after_2`: those
    flagged within two commits, `flagged`: at all, `confirmed`: and confirmed.
    """

    commits: int = 0
    events: int = 0
    false: int = 0
    steps: int = 0
    after_2: int = 0
    flagged: int = 0
    confirmed: int = 0


def confirmed(job: tuple[dict[str, Runs], int, int]) -> Confirmed:
    """Publish a few quiet cells with disturbed runs commit by commit. Each event is measured again on both sides in
    turns. If it is refuted, its commits are measured again too. `job`: the cells, the number of the history, the
    seed."""
    cells, history, seed = job
    rng = np.random.default_rng([seed, 2, history])
    result = Confirmed()
    for key in rng.choice(sorted(cells), size=SAMPLE, replace=False):
        runs = cells[str(key)]
        at = int(rng.integers(20, LENGTH - WAIT - 1))
        level = np.where(np.arange(LENGTH) >= at, 1.01, 1.0)
        series = runs.drawn(rng)
        series = series._replace(values=series.values * level * disturbances(rng))
        result.commits += LENGTH
        result.steps += 1
        judged: dict[int, bool] = {}
        for end in range(2, LENGTH + 1):
            for step in find(points(series.until(end))):
                if any(abs(step.at - other) <= 1 for other in judged):
                    continue
                truly = abs(step.at - at) <= 1
                judged[step.at] = again(runs, level[step.at - 1], level[step.at], rng)
                result.after_2 += truly and end - 1 - at <= 2
                result.flagged += truly
                result.confirmed += truly and judged[step.at]
                result.events += not truly
                result.false += not truly and judged[step.at]
                if not judged[step.at]:
                    fresh = runs.drawn(rng)
                    remeasured = slice(max(step.at - NEAR, 0), end)
                    series.values[remeasured] = (fresh.values * level)[remeasured]
    return result


def again(runs: Runs, before: float, after: float, rng: np.random.Generator) -> bool:
    """Whether measuring both sides of an event in turns, at the recorded noise, confirms it."""
    logs: list[float] = []
    for turns in LOOKS:
        while len(logs) < turns:
            old, new = runs.drawn(rng).values[:2]
            logs.append(math.log(new * after / (old * before)))
        level = FALSE_ALARMS / len(LOOKS)
        word = judge(logs, {}, floor=paired.FLOOR["gpu"], within=WITHIN["gpu"], level=level).word
        if word != "cannot tell":
            return word in ("worse", "better")
    return False


def together(job: tuple[dict[str, Runs], int, int]) -> dict[str, int]:
    """Judge a few quiet cells whose sessions shift all of them. One in four is a reference that no commit changes; a
    commit changes half of the others. One commit makes five of them 1 % slower. `job`: as above."""
    cells, history, seed = job
    rng = np.random.default_rng([seed, 3, history])
    session, at = shifts(rng), int(rng.integers(20, LENGTH - WAIT - 1))
    judged = []
    for place, key in enumerate(rng.choice(sorted(cells), size=SAMPLE, replace=False)):
        series = cells[str(key)].drawn(rng)
        values = series.values * session * np.where((np.arange(LENGTH) >= at) & (place < 5), 1.01, 1.0)
        changed = (rng.random(LENGTH) < 0.5) & (place < 0.75 * SAMPLE)
        changed[at] |= place < 5
        versions = np.cumsum(changed)
        known = points(series._replace(values=values))
        results = [
            Result(str(point.commit), replace(point, identity=str(version), conditions="the same"))
            for point, version in zip(known, versions, strict=True)
        ]
        judged.append(JudgedSeries(f"{place}", {}, {}, False, False, tuple(results)))
    moves = common.moves(judged)

    def blamed(judged: list[JudgedSeries]) -> tuple[int, int]:
        """Changes that are blamed on commits wrongly and rightly."""
        changes = [change for each in judged for change in each.changes() if change.kind != "environment"]
        truly = [change for change in changes if int(change.series.benchmark) < 5 and abs(change.step.at - at) <= 1]
        return len(changes) - len(truly), len(truly)

    (false, found), (alone, found_alone) = blamed(common.without(judged, moves)), blamed(judged)
    return {
        "commits": LENGTH,
        "cells": len(judged),
        "sessions": len(set(session.tolist())),
        "moves": sum(bool(move.changes) for move in moves),
        "steps": 5,
        "false": false,
        "found": found,
        "false_alone": alone,
        "found_alone": found_alone,
    }


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


def total(results: list[dict[str, int]]) -> dict[str, int]:
    """The sums of the same figures of several histories."""
    return {name: sum(result[name] for result in results) for name in results[0]}


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
        "confirmed": total(disturbed_runs),
        "together": total(shifted),
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


def confirmed_text(result: dict[str, Any]) -> str:
    """Disturbed runs, each event measured again; and sessions that shift all cells."""
    again, shifted = result["confirmed"], result["together"]
    rows = [
        ["disturbed runs: commits of a quiet cell, published one by one", str(again["commits"])],
        ["events that are no step", str(again["events"])],
        ["those that measuring again confirmed", str(again["false"])],
        ["steps of 1 %", str(again["steps"])],
        ["flagged with the second commit after the step's own at the latest", str(again["after_2"])],
        ["flagged at all", str(again["flagged"])],
        ["confirmed", str(again["confirmed"])],
        ["sessions: commits of a suite", str(shifted["commits"])],
        ["sessions that shifted all its cells", str(shifted["sessions"])],
        ["events of the environment", str(shifted["moves"])],
        ["changes that were blamed on a commit wrongly", str(shifted["false"])],
        ["the same without looking at cells whose binary is the same", str(shifted["false_alone"])],
        ["steps of 1 %", str(shifted["steps"])],
        ["found", str(shifted["found"])],
        ["found without looking at cells whose binary is the same", str(shifted["found_alone"])],
    ]
    return table(["this project's detector", "figure"], rows)


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
    "confirmed": confirmed_text,
    "found": found_table,
    "soon": soon_table,
    "stairs": stairs_table,
    "labelled": labelled_text,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation and write its results; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=401, help="seed of all random numbers (default: 401)")
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
