"""The results of a judged series: its points, with what else is recorded of each commit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from kernelwatch.detect.point import Point, Points
from kernelwatch.detect.texts import Texts


@dataclass(frozen=True)
class Result:
    """A series' value at one commit. `limits`: those that its cell met, such as a low clock; `conditions`: as in
    history.records."""

    commit: str
    point: Point
    conditions: dict[str, object] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Results(Sequence[Result]):
    """The results of a series, oldest first, as columns. `known`: the conditions as JSON, "" if there are none;
    `limits`: each in a line."""

    points: Points
    commits: Texts
    known: Texts
    limits: Texts

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Results":
        if isinstance(results, Results):
            return results
        return cls(
            Points.of([result.point for result in results]),
            Texts.of(result.commit for result in results),
            Texts.of(json.dumps(result.conditions) if result.conditions else "" for result in results),
            Texts.of("\n".join(result.limits) for result in results),
        )

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, at: int) -> Result: ...
    @overload
    def __getitem__(self, at: "slice | NDArray[Any]") -> "Results": ...
    def __getitem__(self, at: "int | slice | NDArray[Any]") -> "Result | Results":
        if not isinstance(at, int):
            return Results(self.points[at], self.commits[at], self.known[at], self.limits[at])
        limits = tuple(self.limits[at].split("\n")) if self.limits[at] else ()
        return Result(self.commits[at], self.points[at], dict(conditions_of(self.known[at])), limits)

    def filled(self, names: Sequence[str]) -> "Results":
        """The results with conditions that older records do not know. Such a condition is the last one that is known,
        or the first one that will be: it changes only between two records that know it."""
        known, told = self.known.codes.copy(), self.points.conditions.codes.copy()
        for name in names:
            runs = list(Texts(known, self.known.table).runs())
            last = next((found for *_, text in runs if (found := conditions_of(text).get(name))), None)
            for start, end, text in runs:
                conditions = conditions_of(text)
                last = conditions.get(name) or last
                if last and conditions.get(name) != last:
                    mine = np.arange(start, end)[told[start:end] != self.points.conditions.table.empty]
                    known[mine] = self.known.table.code(json.dumps(conditions | {name: last}))
                    told[mine] = self.points.conditions.table.code(sorted_text(conditions | {name: last}))
        points = replace(self.points, conditions=Texts(told, self.points.conditions.table))
        return replace(self, points=points, known=Texts(known, self.known.table))


def sorted_text(conditions: dict[str, object]) -> str:
    """Conditions as a text that is the same for the same conditions; "" if nothing is known."""
    return "" if all(value is None for value in conditions.values()) else json.dumps(conditions, sort_keys=True)


@lru_cache(maxsize=4096)
def conditions_of(text: str) -> dict[str, object]:
    """The conditions in a text of `Results.known`; not to be changed."""
    return dict(json.loads(text)) if text else {}
