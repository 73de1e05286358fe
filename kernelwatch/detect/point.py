"""The points of a series, and the stretches whose points may be compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwatch.detect.conditions import differ


@dataclass(frozen=True)
class Point:
    """A commit's value in a series.

    `commit`: its place on the branch; the oldest commit is 0, and commits may be missing.
    `value`: as recorded, seconds or a count.
    `spread`: the relative standard error of the mean of its processes; 0 if the value is exact or they are not known.
    `identity`: of the binary and its launch; "" if it is not known.
    `conditions`: GPU, driver, packages and harness; "" if they are not known. If they are a JSON object, the step can
    name those that changed.
    `canary`: seconds of the canary measured beside it, None without one.
    `common`: the logarithm of the factor by which the environment has moved many series since the first point.
    """

    commit: int
    value: float
    spread: float = 0.0
    identity: str = ""
    conditions: str = ""
    canary: float | None = None
    common: float = 0.0

    @property
    def own(self) -> float:
        """The value without the common part."""
        return self.value * math.exp(-self.common)


def stretches(points: Sequence[Point]) -> list[int]:
    """The first index of each stretch with the same conditions, 0 included. Unknown conditions are no change."""
    starts, known = [0], points[0].conditions
    for at, point in enumerate(points):
        if differ(known, point.conditions):
            starts.append(at)
        known = point.conditions or known
    return starts
