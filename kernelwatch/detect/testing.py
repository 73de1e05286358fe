"""The tests that a step must pass, and those of a gradual growth: one table each.

A test compares a value with its bound. What each test costs and gains is measured by `scripts/lab/simulate`, which
leaves out one after the other (docs/research/detection.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

FLOOR = 0.005  # the smallest relative step that is reported: below it a canary's drift counts as much as the kernel's
CHANCE = 1e-8  # of a false step at one place of an unchanged series: a suite has millions of places
TOLD_CHANCE = 3e-7  # the same if processes tell the noise: in nine cells of ten the floor is the higher threshold
EVIDENCE = math.log(1e8)  # by how much likelier with a step than without points must be if such points were seen before
OFTEN = math.log(1e6)  # the same if one in MANY was on such a level: what is rare may come in runs
YOUNG = math.log(20)  # the same if none was seen, which says little in a short history
MANY = 10  # points, of which one was on such a level
LEAST_POINTS = 2  # on each side of a step


class Passed(NamedTuple):
    """What a test found. The value must reach the bound. `unit`: "share" (by which the larger level exceeds the
    smaller one), "odds" (their logarithm to base 10), "points", "cells" or "deviations"."""

    name: str
    value: float
    bound: float
    unit: str


@dataclass(frozen=True)
class Boundary:
    """A place at which the level may change. `shift`: by what logarithm; `by_chance`: the logarithm that noise and
    drift alone exceed with the chance CHANCE or TOLD_CHANCE; `points`: on the side that has fewer; `evidence`: by what
    logarithm these are likelier with a step than without, and the logarithm that is needed."""

    shift: float
    by_chance: float
    points: int
    evidence: Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class Growth:
    """A part of a series that may have grown steadily. `shift`: by what logarithm; `deviations`: that over its standard
    error if the series wanders without any direction; `by_chance`: what such a series exceeds with the chance
    CHANCE."""

    shift: float
    deviations: float
    by_chance: float


Tested = TypeVar("Tested", Boundary, Growth)


@dataclass(frozen=True)
class Test(Generic[Tested]):
    """A test. `why`: the reason for it; `unit`: as in Passed; `measure`: the value and its bound. `costly`: it is asked
    only if the others are passed."""

    name: str
    why: str
    unit: str
    measure: Callable[[Tested], tuple[float, float]]
    costly: bool = False

    def margin(self, tested: Tested) -> float:
        """By what factor it is passed; below 1 it is failed. Odds weigh as the deviations that they come from, and a
        single point less than all others."""
        value, bound = self.measure(tested)
        ratio = max(value / bound, 0.0)
        if self.unit == "points":
            return math.inf if ratio >= 1 else ratio**10
        return math.sqrt(ratio) if self.unit == "odds" else ratio

    def passed(self, tested: Tested) -> Passed:
        value, bound = self.measure(tested)
        if self.unit == "share":
            value, bound = math.expm1(value), math.expm1(bound)
        elif self.unit == "odds":
            value, bound = value / math.log(10), bound / math.log(10)
        return Passed(self.name, value, bound, self.unit)


STEP: tuple[Test[Boundary], ...] = (
    Test(
        "floor",
        "a smaller step may as well be the canary's drift",
        "share",
        lambda tested: (abs(tested.shift), math.log1p(FLOOR)),
    ),
    Test(
        "noise and drift",
        "noise, and the slow drift that the series shows, make two such stretches differ too",
        "share",
        lambda tested: (abs(tested.shift), tested.by_chance),
    ),
    Test("points", "a single point may be a bad one", "points", lambda tested: (tested.points, LEAST_POINTS)),
    Test(
        "evidence",
        "single points as far off, if there were any before, may come in runs",
        "odds",
        lambda tested: tested.evidence(),
        costly=True,
    ),
)
GRADUAL: tuple[Test[Growth], ...] = (
    Test("floor", "as for a step", "share", lambda tested: (abs(tested.shift), math.log1p(FLOOR))),
    Test(
        "direction",
        "a series that wanders without any direction gets far too",
        "deviations",
        lambda tested: (tested.deviations, tested.by_chance),
    ),
)


def weight(tests: Sequence[Test[Tested]], tested: Tested) -> float:
    """By what factor the hardest test is passed; below 1 one is failed. Among boundaries with too few points the other
    tests still tell which is the weaker one."""
    least, points = math.inf, math.inf
    for test in tests:
        if test.unit == "points":
            points = min(points, test.margin(tested))
        elif least >= 1 or not test.costly:
            least = min(least, test.margin(tested))
    return least if points >= 1 else points * min(least, 1.0)
