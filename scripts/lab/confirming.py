"""What measuring again, and other cells, tell of events: disturbed runs, and sessions that shift all cells."""

import math
from dataclasses import dataclass, replace

import numpy as np

from kernelwatch.comparison import paired
from kernelwatch.comparison.confirm import LEAST_SHARE
from kernelwatch.comparison.paired import FALSE_ALARMS, LOOKS, judge
from kernelwatch.detect import common
from kernelwatch.detect.events import JudgedSeries
from kernelwatch.detect.results import Result
from kernelwatch.detect.steps import find
from lab.detectors import points
from lab.histories import LENGTH, Runs, disturbances, shifts

SAMPLE = 20  # quiet cells in a history whose events are measured again, or that a session shifts
LAST = LENGTH - 11  # steps lie before: so many commits follow
AGAIN = 5  # commits before a refuted event that are measured again with it


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
        at = int(rng.integers(20, LAST))
        level = np.where(np.arange(LENGTH) >= at, 1.01, 1.0)
        series = runs.drawn(rng)
        series = series._replace(values=series.values * level * disturbances(rng))
        result.commits += LENGTH
        result.steps += 1
        judged: dict[int, bool] = {}
        flagged, sure = 0, False  # commits after the step's own until it is flagged; whether it is confirmed
        for end in range(2, LENGTH + 1):
            for step in find(points(series.until(end))):
                if step.at in judged:
                    continue
                judged[step.at] = again(runs, level[step.at - 1], level[step.at], step.change, rng)
                if abs(step.at - at) <= 1:  # a disturbed run may first move it by a commit, which then is refuted
                    flagged = flagged or max(1, end - 1 - at)
                    sure = sure or judged[step.at]
                else:
                    result.events += 1
                    result.false += judged[step.at]
                if not judged[step.at]:
                    fresh = runs.drawn(rng)
                    remeasured = slice(max(step.at - AGAIN, 0), end)
                    series.values[remeasured] = (fresh.values * level)[remeasured]
        result.after_2 += 0 < flagged <= 2
        result.flagged += flagged > 0
        result.confirmed += sure
    return result


def again(runs: Runs, before: float, after: float, change: float, rng: np.random.Generator) -> bool:
    """Whether measuring both sides of an event in turns, at the recorded noise, confirms the flagged change."""
    logs: list[float] = []
    within = math.expm1(LEAST_SHARE * abs(math.log1p(change)))
    for turns in LOOKS:
        while len(logs) < turns:
            old, new = runs.drawn(rng).values[:2]
            logs.append(math.log(new * after / (old * before)))
        level = FALSE_ALARMS / len(LOOKS)
        word = judge(logs, {}, floor=min(paired.FLOOR["gpu"], within), within=within, level=level).word
        if word != "cannot tell":
            return word == ("worse" if change > 0 else "better")
    return False


def together(job: tuple[dict[str, Runs], int, int]) -> dict[str, int]:
    """Judge a few quiet cells whose sessions shift all of them. One in four is a reference that no commit changes; a
    commit changes half of the others. One commit makes five of them 1 % slower. `job`: as above."""
    cells, history, seed = job
    rng = np.random.default_rng([seed, 3, history])
    session, at = shifts(rng), int(rng.integers(20, LAST))
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


def total(results: list[dict[str, int]]) -> dict[str, int]:
    """The sums of the same figures of several histories."""
    return {name: sum(result[name] for result in results) for name in results[0]}
