"""What many series do together although their binaries are the same: then the environment moved, and no commit did.

Cells are judged against what this common part leaves. A drift moves them by too little from one commit to the next;
then a gradual change is compared with what the others did between the same two commits.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernelwatch.detect.events import Change, JudgedSeries
from kernelwatch.detect.noise import assumed
from kernelwatch.detect.results import Results
from kernelwatch.detect.robust import Values
from kernelwatch.detect.steps import Step
from kernelwatch.detect.testing import FLOOR, Passed

FEWEST = 5  # series with the same binary: fewer may have moved together by chance
SHARE = 0.5  # of them that must have moved in the same direction
LEAST = FLOOR / 5  # the smallest move that counts; those below the floor are taken out, but are no events
ENDS = 5  # commits at each end of a gradual change whose median counts
SURE = 4.0  # standard deviations by which a series must have moved
Place = tuple[str, str, int, int]  # the machine and so on, the conditions, the positions of the commits on both sides


@dataclass(frozen=True)
class Move:
    """A common move. `place`: where; `shift`: the logarithm of its factor; `changes`: those of the series that moved,
    though their binaries are the same, if the move exceeds the floor."""

    place: Place
    shift: float
    changes: tuple[Change, ...]


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The neighboring points of a timed series that were measured in the same conditions.

    `at`: the index of the second point; `ratio`: the logarithm of the ratio of the two values.
    """

    series: JudgedSeries
    machine: str
    at: NDArray[np.int64]
    ratio: Values

    @classmethod
    def of(cls, series: JudgedSeries) -> "_Pairs | None":
        """None if the series cannot tell of a common move."""
        points = series.points
        if series.exact or not ((points.value > 0) & np.isfinite(points.value)).all():
            return None
        codes = points.conditions.codes
        at = np.flatnonzero((codes[1:] == codes[:-1]) & (codes[1:] != points.conditions.table.empty)) + 1
        machine = str(sorted((name, value or "") for name, value in series.place.items()))
        return cls(series, machine, at, np.log(points.value[at] / points.value[at - 1]))

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        """Whether both points are of the same binary."""
        codes = self.series.points.identity.codes
        known = codes != self.series.points.identity.table.empty
        return np.asarray(known[self.at] & (codes[self.at] == codes[self.at - 1]))

    @cached_property
    def least(self) -> Values:
        """What noise alone does not exceed, at each pair."""
        noise, _ = assumed(self.series.points.spread)
        return np.asarray(np.maximum(LEAST, SURE * np.hypot(noise[self.at - 1], noise[self.at])))

    def moved(self) -> list[int]:
        """The pairs that moved though the binary is the same."""
        places = np.flatnonzero(self.same & (np.abs(self.ratio) > LEAST))
        return places[np.abs(self.ratio[places]) > self.least[places]].tolist() if len(places) else []

    def between(self, before: int, after: int) -> float | None:
        """The logarithm of the ratio of the values at two commits; None if the binaries or conditions there differ."""
        points = self.series.points
        old, new = (int(points.commit.searchsorted(commit)) for commit in (before, after))
        if new >= len(points) or (points.commit[old], points.commit[new]) != (before, after):
            return None
        binary, conditions = points.identity[old], points.conditions[old]
        if not binary or (binary, conditions) != (points.identity[new], points.conditions[new]):
            return None
        sides = points.value[max(old - ENDS + 1, 0) : old + 1], points.value[new : new + ENDS]
        return float(np.log(np.median(sides[1]) / np.median(sides[0])))

    def place(self, pair: int) -> Place:
        points, at = self.series.points, int(self.at[pair])
        return self.machine, points.conditions[at], int(points.commit[at - 1]), int(points.commit[at])

    def find(self, place: Place) -> int | None:
        """The pair at a place."""
        commits = self.series.points.commit[self.at]
        pair = int(commits.searchsorted(place[3]))
        return pair if self.machine == place[0] and pair < len(commits) and self.place(pair) == place else None

    def has(self, place: Place) -> bool:
        """Whether there is a pair of the same binary at a place."""
        pair = self.find(place)
        return pair is not None and bool(self.same[pair])


def moves(judged: Sequence[JudgedSeries]) -> list[Move]:
    """The common moves of series that were measured on the same machine, in the same conditions, at the same two
    commits."""
    every = [pairs for series in judged if (pairs := _Pairs.of(series))]
    moved: dict[tuple[Place, int], list[tuple[_Pairs, int]]] = {}
    for pairs in every:
        for pair in pairs.moved():
            moved.setdefault((pairs.place(pair), 1 if pairs.ratio[pair] > 0 else -1), []).append((pairs, pair))
    found = []
    for (place, _), entries in moved.items():
        if len(entries) < SHARE * FEWEST:
            continue
        count = sum(pairs.has(place) for pairs in every)
        if count >= FEWEST and len(entries) >= SHARE * count:
            found.append(_move(place, entries, count))
    return sorted(found, key=lambda move: move.place[3])


def _move(place: Place, moved: Sequence[tuple[_Pairs, int]], count: int) -> Move:
    shift = statistics.median(float(pairs.ratio[pair]) for pairs, pair in moved)
    why = f"{len(moved)} of {count} cells whose binary is the same moved by {math.expm1(shift):+.2%} too"
    changes = tuple(
        Change(
            pairs.series,
            Step(
                at := int(pairs.at[pair]),
                "environment",
                float(pairs.series.points.value[at - 1]),
                float(pairs.series.points.value[at]),
                math.expm1(pairs.least[pair]),
                why,
                tests=(
                    Passed("noise", abs(math.expm1(pairs.ratio[pair])), math.expm1(pairs.least[pair]), "share"),
                    Passed("other cells", len(moved), SHARE * count, "cells"),
                ),
            ),
        )
        for pairs, pair in moved
        if abs(shift) > math.log1p(FLOOR) and pairs.series.tells(pairs.series.results[int(pairs.at[pair])].commit)
    )
    return Move(place, shift, changes)


def without(judged: Sequence[JudgedSeries], common: Sequence[Move]) -> list[JudgedSeries]:
    """The series; their points tell what of their values is a common move. A series that did not take part, which
    would be farther off without the move than with it, keeps its values."""
    shifts = {move.place: move.shift for move in common}
    return [_without(series, shifts) if shifts else series for series in judged]


def _without(series: JudgedSeries, shifts: dict[Place, float]) -> JudgedSeries:
    pairs = _Pairs.of(series)
    own = np.zeros(len(series.points))
    for place, shift in shifts.items():
        pair = pairs.find(place) if pairs else None
        if pairs and pair is not None and abs(pairs.ratio[pair] - shift) < abs(pairs.ratio[pair]):
            own[pairs.at[pair]] = shift
    if not own.any():
        return series
    results = Results.of(series.results)
    return replace(series, results=replace(results, points=replace(results.points, common=np.cumsum(own))))


def drifts(changes: Sequence[Change], judged: Sequence[JudgedSeries]) -> list[Change]:
    """The changes. A gradual one is the environment's if most other series of the machine whose binary is the same at
    both ends moved with it, at least half as far."""
    if not any(change.step.kind == "gradual" for change in changes):
        return list(changes)
    every = [pairs for series in judged if (pairs := _Pairs.of(series))]
    return [_drift(change, every) if change.step.kind == "gradual" else change for change in changes]


def _drift(change: Change, every: Sequence[_Pairs]) -> Change:
    own = _Pairs.of(change.series)
    if not own:
        return change
    size, ends = (
        math.log(change.step.after / change.step.before),
        (change.before.point.commit, change.last.point.commit),
    )
    others = [pairs for pairs in every if pairs.machine == own.machine and pairs.series is not change.series]
    ratios = [ratio for pairs in others if (ratio := pairs.between(*ends)) is not None]
    moved = [ratio for ratio in ratios if ratio / size >= SHARE]
    if len(ratios) < FEWEST or len(moved) < SHARE * len(ratios):
        return change
    shift = math.expm1(statistics.median(moved))
    why = f"{len(moved)} of {len(ratios)} cells whose binary is the same drifted by {shift:+.2%} too"
    return replace(change, step=replace(change.step, kind="environment", since=None, why=why))
