"""What many series do together although their binaries are the same: then the environment moved, and no commit did.

Cells are judged against what this common part leaves.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kernelwatch.detect.events import Change, JudgedSeries
from kernelwatch.detect.levels import FLOOR
from kernelwatch.detect.noise import assumed
from kernelwatch.detect.point import Point
from kernelwatch.detect.steps import Step

FEWEST = 5  # series with the same binary: fewer may have moved together by chance
SHARE = 0.5  # of them that must have moved in the same direction
LEAST = FLOOR / 5  # the smallest move that counts; those below the floor are taken out, but are no events
SURE = 4.0  # standard deviations by which a series must have moved
Place = tuple[str, str, int, int]  # the machine and so on, the conditions, the positions of the commits on both sides


@dataclass(frozen=True)
class Move:
    """A common move. `place`: where; `shift`: the logarithm of its factor; `changes`: those of the series that moved,
    though their binaries are the same, if the move exceeds the floor."""

    place: Place
    shift: float
    changes: tuple[Change, ...]


def moves(judged: Iterable[JudgedSeries]) -> list[Move]:
    """The common moves of series that were measured on the same machine, in the same conditions, at the same two
    commits."""
    same: dict[Place, list[tuple[JudgedSeries, int, float, float]]] = {}
    for series in judged:
        for place, at, ratio, least in _pairs(series):
            old, new = series.points[at - 1], series.points[at]
            if old.identity and old.identity == new.identity:
                same.setdefault(place, []).append((series, at, ratio, least))
    found = []
    for place, entries in same.items():
        for sign in (1, -1):
            moved = [entry for entry in entries if sign * entry[2] > entry[3]]
            if len(entries) >= FEWEST and len(moved) >= SHARE * len(entries):
                found.append(_move(place, moved, len(entries)))
    return sorted(found, key=lambda move: move.place[3])


def _pairs(series: JudgedSeries) -> Iterator[tuple[Place, int, float, float]]:
    """The places at which a series can tell of a common move: the place, the index of its second point, the logarithm
    of the ratio of the two values, and what noise alone does not exceed."""
    points = series.points
    if series.exact or any(not 0 < point.value < math.inf for point in points):
        return
    noise, _ = assumed(np.array([point.spread for point in points]))
    least = np.maximum(LEAST, SURE * np.hypot(noise[:-1], noise[1:])).tolist()
    machine = str(sorted((name, value or "") for name, value in series.place.items()))
    for at, (old, new) in enumerate(pairwise(points), 1):
        if old.conditions and old.conditions == new.conditions:
            yield (
                (machine, new.conditions, old.commit, new.commit),
                at,
                math.log(new.value / old.value),
                least[at - 1],
            )


def _move(place: Place, moved: Sequence[tuple[JudgedSeries, int, float, float]], count: int) -> Move:
    shift = statistics.median(ratio for _, _, ratio, _ in moved)
    why = f"{len(moved)} of {count} cells whose binary is the same moved by {math.expm1(shift):+.2%} too"
    changes = tuple(
        Change(
            series,
            Step(at, "environment", series.points[at - 1].value, series.points[at].value, math.expm1(least), why),
        )
        for series, at, _, least in moved
        if abs(shift) > math.log1p(FLOOR)
    )
    return Move(place, shift, changes)


def without(judged: Iterable[JudgedSeries], common: Sequence[Move]) -> list[JudgedSeries]:
    """The series; their points tell what of their values is a common move. A series that did not take part, which
    would be farther off without the move than with it, keeps its values."""
    shifts = {move.place: move.shift for move in common}
    return [_without(series, shifts) if shifts else series for series in judged]


def _without(series: JudgedSeries, shifts: dict[Place, float]) -> JudgedSeries:
    own = {}
    for place, at, ratio, _ in _pairs(series):
        shift = shifts.get(place, 0.0)
        if abs(ratio - shift) < abs(ratio):
            own[at] = shift
    if not own:
        return series
    total, results = 0.0, []
    for at, result in enumerate(series.results):
        total += own.get(at, 0.0)
        point: Point = replace(result.point, common=total)
        results.append(replace(result, point=point))
    return replace(series, results=tuple(results))
