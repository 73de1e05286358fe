"""Finds where a series changed, and what is to blame: a commit, the environment, or many small commits together.

A long series is taken in windows of a few hundred commits (see levels.py). A change that a window finds in its oldest
part is settled: later commits do not move it. So a commit more costs one window, however long the series is, if the
settled changes are kept (see settled.py); the result is the same without.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernelwatch.detect.alike import alike
from kernelwatch.detect.conditions import differ, what_changed
from kernelwatch.detect.levels import LEAST, Change, Window
from kernelwatch.detect.point import Point, Points, stretches
from kernelwatch.detect.robust import Values, median
from kernelwatch.detect.settled import Settled
from kernelwatch.detect.testing import FLOOR, Passed

__all__ = ["FLOOR", "Judged", "Point", "Step", "Values", "find", "judge", "smallest"]

CHUNK = 400  # commits whose changes are settled together
AHEAD = 100  # commits after these that must be known by then
BEFORE = 200  # commits before them that are looked at too


@dataclass(frozen=True)
class Step:
    """A change of level.

    `at`: the index of the first point after it.
    `kind`: "step", "gradual" (many small steps; `since` is the index of the first) or "environment" (no commit is to
    blame; `why` says what changed).
    `before`, `after`: the levels, in the units of the values.
    `smallest`: the smallest relative change that this series could show there.
    `tests`: those that it passed; none in an exact series.
    """

    at: int
    kind: str
    before: float
    after: float
    smallest: float
    why: str = ""
    since: int | None = None
    tests: tuple[Passed, ...] = ()

    @property
    def change(self) -> float:
        """The relative change; infinite if it starts from 0."""
        return self.after / self.before - 1 if self.before else float("inf")


class Judged(NamedTuple):
    """What was found in a series.

    `steps`: its changes, oldest first.
    `smallest`: the smallest relative step that the series would show two commits after it; infinite if it is too short.
    `since`: the index of the first point of the newest level, from which `smallest` follows.
    """

    steps: list[Step]
    smallest: float
    since: int


def find(points: Sequence[Point], *, exact: bool = False) -> list[Step]:
    """The changes of a series in both directions, oldest first. `exact`: any difference is a step.

    A step needs two points after it, which tell it from a single bad point, and more if the series is noisy. A value
    that is not finite counts as not measured.
    """
    return judge(points, exact=exact).steps


def smallest(points: Sequence[Point], *, exact: bool = False) -> float:
    """The smallest relative step that a series would show two commits after it; infinite if the series is too short."""
    return judge(points, exact=exact).smallest


def judge(points: Sequence[Point], *, exact: bool = False, settled: Settled | None = None) -> Judged:
    """Judge a series. `settled`: settled changes that are read, and added to."""
    points = Points.of(points)
    finite = np.flatnonzero(np.isfinite(points.value))
    known = points[finite]
    known = replace(known, conditions=known.conditions.filled()) if exact else alike(known)
    if exact:
        steps, least = _exact(known), 0.0
        since = max([stretches(known)[-1], *(step.at for step in steps)])
    elif len(known) < LEAST:
        steps, least, since = [], math.inf, stretches(known)[-1]
    else:
        changes, least, since = _changes(known, Settled() if settled is None else settled)
        steps = _steps(known, changes)
    if len(finite) < len(points):
        places = finite.tolist()
        steps = [
            replace(step, at=places[step.at], since=None if step.since is None else places[step.since])
            for step in steps
        ]
        since = places[since] if places else 0
    return Judged(steps, least, since)


def _within_floor(points: Points) -> bool:
    """Whether all values, and all canaries, differ by less than the floor: then all levels do. Most series end here."""
    own, canaries = points.own, points.canary[~np.isnan(points.canary)]
    return bool(
        own.min() > 0
        and own.max() < own.min() * (1 + FLOOR)
        and (not len(canaries) or canaries.max() < canaries.min() * (1 + FLOOR))
    )


def _exact(points: Points) -> list[Step]:
    """Every difference between neighbors, as a step."""
    steps = []
    for at in (np.flatnonzero(np.diff(points.value)) + 1).tolist():
        old, new = points[at - 1], points[at]
        why = _environment(old, new)
        steps.append(Step(at, "environment" if why else "step", old.value, new.value, 0.0, why))
    return sorted(steps, key=lambda step: step.at)


def _environment(before: Point, after: Point) -> str:
    """Why no commit is to blame for a change between two points; "" if one may be."""
    if differ(before.conditions, after.conditions):
        return what_changed(before.conditions, after.conditions)
    return "the binary is the same" if before.identity and before.identity == after.identity else ""


def _changes(points: Points, settled: Settled) -> tuple[list[Change], float, int]:
    """The changes of a series, the smallest step that two more commits would show, and the first point of the level
    that says so."""
    count = max((len(points) - AHEAD) // CHUNK, 0)
    keys = settled.keys(points, (at * CHUNK + AHEAD for at in range(1, count + 1)))
    done = max((at for at, key in enumerate(keys, 1) if settled.get(key) is not None), default=0)
    changes = settled.get(keys[done - 1]) or [] if done else []
    for at in range(done, count):
        end = (at + 1) * CHUNK
        found, _, _ = _window(points[: end + AHEAD], changes, at * CHUNK)
        changes = [*changes, *(change for change in found if change.since < end)]
    if keys:
        settled.put(keys[-1], changes)
    found, least, since = _window(points, changes, count * CHUNK)
    return [*changes, *found], least, since


def _window(points: Points, settled: Sequence[Change], first: int) -> tuple[list[Change], float, int]:
    """The changes from `first` on, the smallest step that two more points would show, and the first point of the level
    that says so; BEFORE points before `first` are looked at too."""
    low = max(first - BEFORE, 0)
    first = max([first, *(change.at + 1 for change in settled)])
    window = Window(points[low:], [change.moved(-low) for change in settled], max(first - low, 1))
    changes = [] if _within_floor(points[low:]) else window.changes()
    last = max([*window.settled, *window.starts, *(change.boundaries[-1] for change in changes)])
    return [change.moved(low) for change in changes], window.newest(last), low + last


def _steps(points: Points, changes: Sequence[Change]) -> list[Step]:
    """The changes with their levels and kinds."""
    grown = sum((change.ramp(len(points)) for change in changes if change.rise), points.common)
    values = np.asarray(points.value * np.exp(-grown)) if grown.any() else points.value
    boundaries = [at for change in changes if not change.rise for at in change.boundaries]
    edges = sorted({0, *boundaries, *stretches(points), len(points)})
    steps = []
    for change in changes:
        low = edges[bisect_left(edges, change.since) - 1]
        high = edges[bisect_right(edges, change.at)]
        common = math.exp(grown[change.at])  # both levels as in the environment after the change
        before, after = common * median(values[low : change.since]), common * median(values[change.at : high])
        before = after * math.exp(-change.rise) if change.rise else before  # without what steps amid it did
        why = _environment(points[change.since - 1], points[change.at])
        gradual = change.since < change.at
        kind = "environment" if why else "gradual" if gradual else "step"
        since = change.since if kind == "gradual" else None
        steps.append(Step(change.at, kind, before, after, change.smallest, why, since, change.tests))
    return sorted(steps, key=lambda step: step.at)
