"""What happened to the judged series: their changes, those of one commit together."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks._identity import TIMED
from benchmarks._ops import COMPUTES
from scripts import _steps
from scripts._history import Record, conditions
from scripts._steps import Point, Step

KINDS = ("regression", "improvement", "environment")
HASHES = {"nvml_uuid_sha256": "another GPU of the same name"}  # no reader's values


@dataclass(frozen=True)
class Result:
    """A series' value at one commit, and what lies beside it. `limits`: that its cell met, such as a low clock;
    `conditions`: as _history.conditions."""

    commit: str
    point: Point
    conditions: dict[str, Any] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Series:
    """A judged series: one combination of a benchmark's parameters on one machine. `place`: what asv files its graph
    under (machine, branch, ...); `results`: of the branch's commits, oldest first."""

    benchmark: str
    params: dict[str, str]
    place: dict[str, str | None]
    higher_is_better: bool | None
    exact: bool
    results: tuple[Result, ...]

    @property
    def points(self) -> list[Point]:
        return [result.point for result in self.results]

    @property
    def smallest(self) -> float:
        """The smallest relative step that it could show now."""
        return _steps.smallest(self.points, exact=self.exact)

    def changes(self) -> list["Change"]:
        """Where it changed, oldest first."""
        steps = _steps.find(self.points, exact=self.exact)
        return [Change(self, step, _undone(step, steps[at + 1 :])) for at, step in enumerate(steps)]


def _undone(step: Step, later: Sequence[Step]) -> bool:
    """Whether later steps brought the level back to where it was, or better; never told across environments."""
    if not later or any(one.kind == "environment" for one in later):
        return False
    left = (later[-1].after - step.before) * math.copysign(1.0, step.after - step.before)
    return left <= abs(step.before) * step.smallest


@dataclass(frozen=True, eq=False)
class Change:
    """A step of a series. `undone`: later ones took it back."""

    series: Series
    step: Step
    undone: bool = False

    @property
    def kind(self) -> str:
        """One of KINDS. A series that has no better has only neutral changes: the environment's."""
        if self.step.kind == "environment" or self.series.higher_is_better is None:
            return "environment"
        better = (self.step.after > self.step.before) == self.series.higher_is_better
        return "improvement" if better else "regression"

    @property
    def first(self) -> Result:
        """The first result after the step, or after a creep's first."""
        at = self.step.at if self.step.since is None else self.step.since
        return self.series.results[at]

    @property
    def last(self) -> Result:
        return self.series.results[self.step.at]

    @property
    def before(self) -> Result:
        """The last result before it."""
        at = self.step.at if self.step.since is None else self.step.since
        return self.series.results[max(at - 1, 0)]

    @property
    def commits(self) -> int:
        """How many commits may have done it, measured or not."""
        return self.last.point.commit - self.before.point.commit

    @property
    def why(self) -> list[str]:
        """What changed in the environment, else what the detector says."""
        both = self.before.conditions, self.last.conditions
        return (differences(*both) if all(both) else []) or [self.step.why][: bool(self.step.why)]


@dataclass(frozen=True)
class Event:
    """What several series did at one commit, or between two in a creep; the largest change first."""

    kind: str
    changes: tuple[Change, ...]

    @property
    def narrowest(self) -> Change:
        """The change that says most closely which commit it was."""
        return min(self.changes, key=lambda change: change.commits)

    @property
    def first(self) -> str:
        return self.narrowest.first.commit

    @property
    def last(self) -> str:
        return self.narrowest.last.commit

    @property
    def why(self) -> str:
        return "; ".join(dict.fromkeys(why for change in self.changes for why in change.why))


def events(found: Iterable[Change]) -> list[Event]:
    """Changes of one kind at the same commit as one event, the newest first. A series that was not measured at every
    commit is taken to have changed with the others, where one of them did so in between."""
    together: dict[tuple[str, object, str], list[Change]] = {}
    for change in sorted(found, key=lambda change: change.commits):
        since = (None if change.step.since is None else change.first.commit, change.series.place.get("branch"))
        low, high = change.before.point.commit, change.last.point.commit
        fitting = [
            others
            for (kind, creep, _), others in together.items()
            if (kind, creep) == (change.kind, since) and low < others[0].last.point.commit <= high
        ]
        if fitting:
            max(fitting, key=len).append(change)
        else:
            together[change.kind, since, change.last.commit] = [change]
    return sorted(
        (
            Event(kind, tuple(sorted(changes, key=lambda change: -abs(change.step.change))))
            for (kind, _, _), changes in together.items()
        ),
        key=lambda event: -event.narrowest.last.point.commit,
    )


@dataclass(frozen=True)
class Turn:
    """Results of other conditions than those before them: across it no commit can be blamed, and small steps not be
    seen. `series`: how many it cuts."""

    before: str
    commit: str
    why: str
    series: int


def turns(found: Iterable[Series]) -> list[Turn]:
    """Where the conditions changed, the newest first."""
    places: dict[tuple[int, str, str, str], int] = {}
    for series in found:
        for one, other in pairwise(result for result in series.results if result.conditions):
            if one.conditions != other.conditions:
                why = ", ".join(differences(one.conditions, other.conditions))
                which = (other.point.commit, one.commit, other.commit, why)
                places[which] = places.get(which, 0) + 1
    return [Turn(*which[1:], count) for which, count in sorted(places.items(), reverse=True)]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two conditions, in words."""
    told = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            told += differences(one, other)
        elif name in HASHES:
            told.append(HASHES[name])
        else:
            told.append(f"{name.removeprefix('nvml_')} {one or 'none'} -> {other or 'none'}")
    return told


def result(commit: str, at: int, value: float, record: Record | None, cell: str, judged: str, op: str) -> Result:
    """A value with what the sidecar says of its cell. `at`: the commit's place on the branch; `judged`: the visits'
    figure that the value is the median of, or "exact"."""
    measured = record.cells.get(cell) if record else None
    if record is None or measured is None:
        return Result(commit, Point(at, value))
    beside = conditions(record, measured.group)
    if judged == "exact":  # which packages, compiler and stand-in it depends on they say; the rest of the stick times
        beside |= {TIMED.fact: None}
    canary = _figures(measured.visits, "canary_s", "compute" if COMPUTES[op].flops else "memory")
    point = Point(
        commit=at,
        value=value,
        spread=0.0 if judged == "exact" else spread(_figures(measured.visits, judged)),
        identity=" ".join(sorted({str(visit["identity"]) for visit in measured.visits if visit.get("identity")})),
        conditions="" if all(value is None for value in beside.values()) else json.dumps(beside, sort_keys=True),
        canary=statistics.median(canary) if canary else None,
    )
    return Result(commit, point, beside, measured.throttled)


def spread(figures: Sequence[float]) -> float:
    """The relative standard error of a cell's figure, from the processes that visited it; 0 from fewer than two, which
    tell nothing: the noise of the series is then what differs from commit to commit."""
    if len(figures) < 2 or not (mean := statistics.fmean(figures)):
        return 0.0
    return statistics.stdev(figures) / abs(mean) / math.sqrt(len(figures))


def _figures(visits: Iterable[dict[str, Any]], *names: str) -> list[float]:
    """A figure of each visit that has it, deeper by each name."""
    found = []
    for visit in visits:
        value: Any = visit
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, float) and math.isfinite(value):
            found.append(value)
    return found
