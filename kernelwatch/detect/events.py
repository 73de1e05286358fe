"""The changes of the judged series; those at one commit form an event."""

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from kernelwatch.detect import steps
from kernelwatch.detect.alike import alike
from kernelwatch.detect.conditions import HASHES, differences
from kernelwatch.detect.point import Points
from kernelwatch.detect.results import Result, Results, conditions_of
from kernelwatch.detect.settled import Settled
from kernelwatch.detect.steps import FLOOR, Step
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.system.student import quantile

PROCESSES = 6  # that measure a cell, as a rule
OTHER_GPU = HASHES["nvml_uuid_sha256"]
# Why an exact figure may change though the binary is the same.
INSTRUMENTS = {
    "emulator": "the emulator counts the same binary otherwise",
    "compiler": "the same binary is read otherwise",
}
COUNTED = " counted"  # the end of the keys of what the emulator counts
DISTURBED = 5  # the most commits that one disturbance of the machine is assumed to have met


@dataclass(frozen=True, eq=False)
class JudgedSeries:
    """A judged series: one combination of a benchmark's parameters on one machine. `place`: the names under which asv
    files its graph (machine, branch, ...); `results`: those of the branch's commits, oldest first; `cell`: the key of
    the cell that it shows, "" if there is none; `own`: the commits whose changes are told, None for all; `shows`: the
    key of what it shows in the sidecar, which a series of exact figures has as well; `renamed`: the project's rungs."""

    benchmark: str
    params: dict[str, str]
    place: dict[str, str | None]
    higher_is_better: bool | None
    exact: bool
    results: Sequence[Result]
    cell: str = ""
    settled: Settled | None = None
    own: Collection[str] | None = None
    shows: str = ""
    renamed: Renamed = NONE

    @cached_property
    def points(self) -> Points:
        return Results.of(self.results).points

    @cached_property
    def compared(self) -> Points:
        """The points; conditions that alternate are one."""
        return alike(self.points)

    @cached_property
    def _judged(self) -> steps.Judged:
        return steps.judge(self.points, exact=self.exact, settled=self.settled)

    @property
    def instrument(self) -> str:
        """What an exact figure is taken with: "emulator" or "compiler"; "" for a time."""
        if not self.exact:
            return ""
        return "emulator" if self.shows.endswith(COUNTED) else "compiler" if self.shows else ""

    @property
    def smallest(self) -> float:
        """The smallest relative step that the series could show now."""
        return self._judged.smallest

    @property
    def since(self) -> int:
        """The index of the first result that `smallest` follows from."""
        return self._judged.since

    def tells(self, commit: str) -> bool:
        """Whether its changes at a commit are told; those at others are told of another branch."""
        return self.own is None or commit in self.own

    def changes(self) -> list["Change"]:
        """Its changes, oldest first."""
        own = self._judged.steps
        edges = [0, *(step.at for step in own), len(self.results)]
        found = []
        for at, step in enumerate(own):
            later = own[at + 1 :]
            ended = back(step, later, partial(self._differ, edges)) or self.undone(step, later)
            found.append(Change(self, step, ended, (edges[at], edges[at + 2])))
        return [change for change in found if self.tells(change.last.commit)]

    def undone(self, step: Step, later: Iterable[Step]) -> Step | None:
        """The later step that made the launch the one before a step again, whatever others made of it since."""
        names = self.points.identity
        before = names[(step.at if step.since is None else step.since) - 1]
        return next((other for other in later if before and names[other.at] == before), None)

    def _differ(self, edges: Sequence[int], step: Step, later: Step) -> bool:
        """Whether a step shows between the level before a step and that after a later one if nothing lies between them,
        in the direction of the first. `edges`: of all levels."""
        begin, end = edges[edges.index(step.at) - 1], edges[edges.index(later.at) + 1]
        both = np.array([*range(begin, step.at if step.since is None else step.since), *range(later.at, end)])
        return any(
            each.kind != "environment" and (each.after > each.before) == (step.after > step.before)
            for each in steps.find(self.points[both])
        )


def back(step: Step, later: Sequence[Step], differ: Callable[[Step, Step], bool] = lambda *_: False) -> Step | None:
    """The step since which the level is back where it was, or at a better one; None if it is not. None also if the
    environment changed since: levels across such a change are not compared.

    `differ`: whether the level after a later step certainly lies beyond the one before this step, which a few points
    between them may not show.
    """
    if any(other.kind == "environment" for other in later):
        return None
    found = None
    for other in reversed(later):
        left = (other.after - step.before) * math.copysign(1.0, step.after - step.before)
        if left > abs(step.before) * step.smallest or (left > abs(step.before) * FLOOR and differ(step, other)):
            break
        found = other
    return found


def _error(level: Points) -> float:
    """The relative standard error of a level: what its processes say, or how its results differ if that is more. It is
    0 if neither is known."""
    own = float(np.sqrt((level.spread**2).sum())) / max(len(level), 1)
    if len(level) < 2 or (level.value <= 0).any():
        return own
    apart = statistics.stdev(np.log(level.own).tolist())
    return max(own, float(apart) / math.sqrt(len(level)))


def change_id(machine: str | None, shown: Sequence[object], commit: str) -> str:
    """The id of a change. `shown`: its cell, or of an exact figure the benchmark and its parameters, sorted by name."""
    return f"{commit[:12]}-{hashlib.sha256(json.dumps([machine, *shown]).encode()).hexdigest()[:8]}"


@dataclass(frozen=True, eq=False)
class Change:
    """A step of a series. `back`: the later step that took it back, if one did; `levels`: the index of the first result
    of the level before it, and the end of the level after it."""

    series: JudgedSeries
    step: Step
    back: Step | None = None
    levels: tuple[int, int] = (0, 0)

    @property
    def id(self) -> str:
        """What names the change for good: its commit, and a hash of its machine and cell, or of an exact figure's
        benchmark and parameters. It is the same in a clone of another depth, after more commits, after the rung was
        renamed, and for a full run and a link, which may know no benchmark."""
        series, renamed = self.series, self.series.renamed
        params = renamed.first_params(series.shows.partition(" ")[0], series.params)
        shown = [renamed.first(series.cell)] if series.cell else [series.benchmark, *sorted(params.items())]
        return change_id(series.place.get("machine"), shown, self.last.commit)

    @property
    def kind(self) -> str:
        """A "regression", an "improvement", or an "environment"; "change" if neither direction is better."""
        if self.step.kind == "environment":
            return "environment"
        if self.series.higher_is_better is None:
            return "change"
        better = (self.step.after > self.step.before) == self.series.higher_is_better
        return "improvement" if better else "regression"

    @cached_property
    def first(self) -> Result:
        """The first result after the step, or after the first step of a gradual change."""
        return self.series.results[self._begin]

    @property
    def _begin(self) -> int:
        return self.step.at if self.step.since is None else self.step.since

    @cached_property
    def last(self) -> Result:
        return self.series.results[self.step.at]

    @cached_property
    def before(self) -> Result:
        """The last result before the change."""
        return self.series.results[max(self._begin - 1, 0)]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the relative change, from the results on both sides; both NaN for an exact series or if
        the processes of these results are not known."""
        begin, end = self.levels
        before, after = self.series.compared[begin : self._begin], self.series.compared[self.step.at : end]
        errors = [_error(points) for points in (before, after)]
        if self.series.exact or not all(errors) or not math.isfinite(self.step.change):
            return math.nan, math.nan
        half = quantile(0.975, max(len(before) + len(after) - 2, PROCESSES - 1)) * math.hypot(*errors)
        middle = math.log1p(self.step.change)
        return math.expm1(middle - half), math.expm1(middle + half)

    @property
    def launches(self) -> tuple[str, str] | None:
        """The identities of what was launched before the change and since the level is back; None if one of them is not
        known, or if the level is not back."""
        if self.back is None:
            return None
        names = self.series.points.identity
        known = names[max(self._begin - 1, 0)], names[self.back.at]
        return known if all(known) else None

    @property
    def suspects(self) -> list[str]:
        """The commits whose runs were disturbed if this is no change of the program: those of the shorter level beside
        it; of two alike the one that another step ends, or else the later. [] if it is too long for that."""
        (begin, end), at = self.levels, self.step.at
        levels = [(at - begin, begin == 0, 1, begin, at), (end - at, end == len(self.series.results), 0, at, end)]
        length, _, _, first, last = min(levels)
        return [result.commit for result in self.series.results[first:last]] if length <= DISTURBED else []

    @property
    def commits(self) -> int:
        """How many commits may be to blame, measured or not."""
        return self.last.point.commit - self.before.point.commit

    @property
    def _canary(self) -> float:
        """The canary's time after the change over that before it, 0 if it is not known. The canary never changes, so it
        tells how much of the change another GPU may explain."""
        begin, end = self.levels
        levels = self.series.points[begin : self._begin].canary, self.series.points[self.step.at : end].canary
        before, after = (level[np.isfinite(level)] for level in levels)
        return float(np.median(after) / np.median(before)) if len(before) and len(after) else 0.0

    @property
    def why(self) -> list[str]:
        """The conditions that changed; if none did, the detector's reason, if any."""
        before, after = self.before.conditions, self.last.conditions
        reasons = differences(before, after) if before and after else []
        if OTHER_GPU in reasons and (canary := self._canary):
            reasons[reasons.index(OTHER_GPU)] = f"{OTHER_GPU}, whose canary takes {canary - 1:+.2%} of time"
        if not reasons and self.step.why:
            reasons = [INSTRUMENTS.get(self.series.instrument, self.step.why)]
        return reasons


@dataclass(frozen=True)
class Event:
    """The changes of several series at one commit, or between two commits if they are gradual; the largest first."""

    kind: str
    changes: tuple[Change, ...]

    @property
    def id(self) -> str:
        """The id of its largest change. Those of its other changes name it as well."""
        return self.changes[0].id

    @property
    def narrowest(self) -> Change:
        """The change that leaves the fewest commits to blame."""
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


def events(changes: Iterable[Change]) -> list[Event]:
    """Groups changes of one kind at the same commit, the newest event first. If a series was not measured at every
    commit, and another one changed at a commit between, both are assumed to have changed there."""
    together: dict[tuple[str, object, str], list[Change]] = {}
    for change in sorted(changes, key=lambda change: change.commits):
        since = (None if change.step.since is None else change.first.commit, change.series.place.get("branch"))
        low, high = change.before.point.commit, change.last.point.commit
        fitting = [
            others
            for (kind, begin, _), others in together.items()
            if (kind, begin) == (change.kind, since) and low < others[0].last.point.commit <= high
        ]
        if fitting:
            max(fitting, key=len).append(change)
        else:
            together[change.kind, since, change.last.commit] = [change]
    grouped = [
        Event(kind, tuple(sorted(alike, key=lambda change: -abs(change.step.change))))
        for (kind, _, _), alike in together.items()
    ]
    return sorted(grouped, key=lambda event: -event.narrowest.last.point.commit)


@dataclass(frozen=True)
class Turn:
    """A change of the conditions. No commit can be blamed for a step across it, and small steps there do not show.
    `before`, `commit`: the commits on its two sides; `series`: how many series it cuts."""

    before: str
    commit: str
    why: str
    series: int


def turns(judged: Iterable[JudgedSeries]) -> list[Turn]:
    """The changes of the conditions, the newest first."""
    counts: dict[tuple[int, str, str, str], int] = {}
    for series in judged:
        results = Results.of(series.results)
        results = results[results.known.codes != results.known.table.empty]
        for at, _, text in itertools.islice(results.known.runs(), 1, None):
            old, new, conditions = results[at - 1], results[at], conditions_of(text)
            if old.conditions != conditions and series.tells(new.commit):
                why = ", ".join(differences(old.conditions, conditions))
                place = (new.point.commit, old.commit, new.commit, why)
                counts[place] = counts.get(place, 0) + 1
    newest_first = sorted(counts.items(), reverse=True)
    return [Turn(before, commit, why, count) for (_, before, commit, why), count in newest_first]
