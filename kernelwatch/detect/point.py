"""The points of a series, and the stretches whose points may be compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from kernelwatch.detect.robust import Values
from kernelwatch.detect.texts import Texts


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


@dataclass(frozen=True, eq=False)
class Points(Sequence[Point]):
    """The points of a series, oldest first, as columns; `canary` is NaN where there is none."""

    commit: NDArray[np.int64]
    value: Values
    spread: Values
    identity: Texts
    conditions: Texts
    canary: Values
    common: Values

    @classmethod
    def of(cls, points: Sequence[Point]) -> "Points":
        if isinstance(points, Points):
            return points
        canaries = [math.nan if point.canary is None else point.canary for point in points]
        return cls(
            np.array([point.commit for point in points], np.int64),
            np.array([point.value for point in points], float),
            np.array([point.spread for point in points], float),
            Texts.of(point.identity for point in points),
            Texts.of(point.conditions for point in points),
            np.array(canaries, float),
            np.array([point.common for point in points], float),
        )

    def __len__(self) -> int:
        return len(self.value)

    @overload
    def __getitem__(self, at: int) -> Point: ...
    @overload
    def __getitem__(self, at: "slice | NDArray[Any]") -> "Points": ...
    def __getitem__(self, at: "int | slice | NDArray[Any]") -> "Point | Points":
        if not isinstance(at, int):
            return Points(*(getattr(self, column.name)[at] for column in fields(self)))
        canary = float(self.canary[at])
        return Point(
            int(self.commit[at]),
            float(self.value[at]),
            float(self.spread[at]),
            self.identity[at],
            self.conditions[at],
            None if math.isnan(canary) else canary,
            float(self.common[at]),
        )

    @property
    def own(self) -> Values:
        """The values without the common part."""
        return np.asarray(self.value * np.exp(-self.common)) if self.common.any() else self.value


def stretches(points: Points) -> list[int]:
    """The first index of each stretch with the same conditions, 0 included. Unknown conditions are no change."""
    known = points.conditions.filled().codes
    changed = (known[1:] != known[:-1]) & (known[:-1] != points.conditions.table.empty)
    return [0, *(np.flatnonzero(changed) + 1).tolist()]
