"""Where a series changed, and what is to blame: its commit, the environment, or many small commits together.

asv's solver of the Potts model (the piecewise constant function that costs least, a sum of absolute errors and a price
a step) proposes steps at a price that this module sets from the series' own noise; asv's own price, searched for,
settles on one flat level where a history has several steps. What is proposed must then stand three tests, the weakest
first, and goes if it fails one: it is larger than the floor; larger than the noise, slow drift included, lets two such
stretches differ; and not what single points of this series have done before.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from asv.step_detect import solve_potts_approx
from scipy.stats import t as student

FLOOR = 0.005  # the smallest relative step that is told of: below it a canary's word counts as much as the kernel's
CHANCE = 1e-7  # of a false step where nothing changed, at one place of one series: a suite has millions of places
RUN = 1e-9  # of so many points in a row on one side, as far off as points of this series have been
PRICE = 5.0  # of a proposed step, in standard deviations: low, since what is proposed is tested
TAIL = 0.75  # a point is as far off as a step where it has this share of its size
LEAST = 4  # points before noise can be told from a step
QUIET = 2e-4  # the least noise believed of a canary: ten runs of a cell on an H200 seldom differ by less
USUAL = 0.0025  # noise of one of the GPU's more restless cells: few values cannot tell that a series has less
PRIOR = 10  # points that this knowledge is worth, where no process says anything
TOLD = 20  # points that the spread between the processes of each commit is worth, where it is known
FEW = 2  # commits whose processes weigh as much as USUAL: those of a few may all have been quiet by chance
MEDIAN = 1.25  # the error of a median, as a commit's figure is, over that of the mean (of many values: sqrt(pi / 2))
DISTURBED = 3  # times the usual spread between processes: what is more is of that commit alone
RAMP = 5  # commits that a creep takes at least: fewer are steps
MANY = 10  # steps, and one more for as many points: a series where more are proposed flickers, and its price is raised
NEAR = 5  # points over which drift is looked for: over many, a staircase of steps would pass for it

Values = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Point:
    """A commit's value in a series. `commit`: its place on the branch, oldest 0, not every one measured; `value`: as
    recorded, seconds or a count; `spread`: the relative standard error of its processes' mean, 0 for what is exact or
    where they say nothing; `identity`: of the binary and its launch, "" where it is not known; `conditions`: of GPU,
    driver, packages and stick, "" where they are not known (JSON of an object lets the step say which of them changed);
    `canary`: seconds of the control kernel beside it, None where there is none."""

    commit: int
    value: float
    spread: float = 0.0
    identity: str = ""
    conditions: str = ""
    canary: float | None = None


@dataclass(frozen=True)
class Step:
    """A change of level. `at`: the index of the first point after it; `kind`: "step", "creep" (many small ones, `since`
    the index of the first) or "environment" (nothing of the commit's: `why` says what changed); `before` and `after`:
    the levels, raw; `smallest`: the relative change that this series could show there."""

    at: int
    kind: str
    before: float
    after: float
    smallest: float
    why: str = ""
    since: int | None = None

    @property
    def change(self) -> float:
        """Relative; infinite from 0."""
        return self.after / self.before - 1 if self.before else float("inf")


def find(points: Sequence[Point], *, exact: bool = False) -> list[Step]:
    """The changes of a series, oldest first, up and down alike. `exact`: any difference is a step.

    Two points after a step are needed to tell it from a single bad one, more where the series is noisy. A value that is
    not finite counts as not measured.
    """
    finite = [at for at, point in enumerate(points) if math.isfinite(point.value)]
    if len(finite) < len(points):
        steps = find([points[at] for at in finite], exact=exact)
        return [replace(one, at=finite[one.at], since=one.since and finite[one.since]) for one in steps]
    points = _filled(points)
    if exact:
        return _exact(points)
    if len(points) < 2 or _within_floor(points):
        return []
    return _Series(points).steps()


def smallest(points: Sequence[Point], *, exact: bool = False) -> float:
    """The smallest relative step that a series would show two commits after it, at its newest level; infinite where it
    is too short to show any."""
    if exact:
        return 0.0
    finite = [point for point in points if math.isfinite(point.value)]
    if len(finite) < LEAST:
        return math.inf
    series = _Series(finite)
    return series.smallest(len(finite) - max([*series.boundaries(), *series.starts]), 2)


def _within_floor(points: Sequence[Point]) -> bool:
    """Whether no two values, and no two canaries, differ by the floor: then no two levels do. Most series end here."""
    values = [point.value for point in points]
    canaries = [point.canary for point in points if point.canary is not None]
    low, high = min(values), max(values)
    return low > 0 and high < low * (1 + FLOOR) and (not canaries or max(canaries) < min(canaries) * (1 + FLOOR))


def _filled(points: Sequence[Point]) -> list[Point]:
    """Where the conditions are not known, those before: what changed meanwhile shows at the next that are."""
    found: list[Point] = []
    for point in points:
        known = point.conditions or (found[-1].conditions if found else "")
        found.append(point if known == point.conditions else replace(point, conditions=known))
    return found


def _exact(points: Sequence[Point]) -> list[Step]:
    """Every difference between neighbours."""
    found = []
    for at in range(1, len(points)):
        if points[at].value != points[at - 1].value:
            why = _environment(points[at - 1], points[at])
            kind = "environment" if why else "step"
            found.append(Step(at, kind, points[at - 1].value, points[at].value, 0.0, why))
    return found


def _environment(before: Point, after: Point) -> str:
    """Why a change between two points is none of the commit's; "" where it is."""
    if _differ(before.conditions, after.conditions):
        return _what_changed(before.conditions, after.conditions)
    return "the binary is the same" if before.identity and before.identity == after.identity else ""


def _differ(before: str, after: str) -> bool:
    """Whether both are known and are not the same."""
    return bool(before and after and before != after)


def _what_changed(before: str, after: str) -> str:
    """Which conditions: "nvml_driver 580.1 -> 590.2"."""
    try:
        old, new = json.loads(before), json.loads(after)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        return ", ".join(f"{name} {_brief(old.get(name))} -> {_brief(new.get(name))}" for name in names)
    except (ValueError, TypeError, AttributeError):
        return "the conditions changed"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else "..."


@lru_cache(maxsize=4096)
def _quantile(freedom: int) -> float:
    """How many standard errors a difference must be, with the noise known from so many degrees of freedom."""
    return float(student.ppf(1 - CHANCE / 2, freedom))


def _spread(differences: Values) -> float:
    """Their standard deviation round nothing, without what sticks out."""
    found = 1.4826 * float(np.median(np.abs(differences))) if len(differences) else 0.0
    for _ in range(2):  # from all that does not stick out: surer than the median's word
        found = float(np.sqrt(np.mean(differences[np.abs(differences) <= 3.5 * found] ** 2))) if found else found
    return found


def _runs(points: Sequence[Point]) -> list[int]:
    """Where the conditions change: the first index of each stretch, 0 among them. What is not known changes nothing."""
    starts, known = [0], points[0].conditions
    for at, point in enumerate(points):
        if _differ(known, point.conditions):
            starts.append(at)
        known = point.conditions or known
    return starts


class _Series:
    """A series on a scale where differences are relative, without the drift that its canary saw."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self.raw: Values = np.array([point.value for point in points], float)
        self.starts = _runs(points)
        self.runs = list(zip(self.starts, [*self.starts[1:], len(points)], strict=True))
        positive = bool((self.raw > 0).all())
        unit = float(np.median(np.abs(self.raw))) or float(np.abs(self.raw).max()) or 1.0
        self.x: Values = np.log(self.raw / unit) if positive else self.raw / unit
        canaries = [point.canary or 0.0 for point in points]
        if positive and all(0 < canary < math.inf for canary in canaries):
            self._without_drift(np.log(canaries))
        self.noise, self.drift = self._noise(), 0.0
        self.quantile = _quantile(len(points) + self._known()[1])
        self.residuals: Values = np.zeros(len(points))

    def _without_drift(self, canary: Values) -> None:
        """Take out the canary's drift, smoothed or not, where it exceeds its own spread and the series shares it.

        Within that spread nothing is taken out: it would only add the canary's noise.
        """
        for start, end in self.runs:
            if end - start < LEAST:
                continue
            seen = canary[start:end]
            spread = max(_spread(np.diff(seen)) / math.sqrt(2), QUIET)
            moved, drift = seen - np.median(seen), _smooth(seen) - np.median(seen)
            if np.abs(drift).max() > 3 * spread:
                old = self.x[start:end]
                self.x[start:end] = min((old, old - drift, old - moved), key=_roughness)

    def _known(self) -> tuple[float, int]:
        """The noise of a series before any of its values is looked at, and how many points that is worth: what the
        processes of its commits say, tempered by what cells have; where they say nothing, the latter."""
        told = [MEDIAN * point.spread for point in self.points if point.spread]
        most = DISTURBED * float(np.median(told)) if told else 0.0
        square = (sum(min(one, most) ** 2 for one in told) + FEW * USUAL**2) / (len(told) + FEW)
        return math.sqrt(square), TOLD if told else PRIOR

    def _noise(self) -> float:
        """Standard deviation of a point, from that and from the differences of neighbours, which a few steps do not
        move much."""
        near = np.concatenate([np.diff(self.x[a:b]) for a, b in self.runs])
        core = _spread(near)
        count, (usual, worth) = len(self.points), self._known()
        noise = math.sqrt((count * core**2 / 2 + worth * usual**2) / (count + worth))
        return max(noise, float(np.median([point.spread for point in self.points])))

    def _drift(self, found: list[int]) -> float:
        """Standard deviation of what moves a level from one commit to the next, where points some commits apart, of one
        level, differ by more than neighbours do."""
        edges = sorted({0, *found, *self.starts, len(self.x)})
        far = np.concatenate([self.x[a + NEAR : b] - self.x[a : max(a, b - NEAR)] for a, b in pairwise(edges)])
        excess = _spread(far) ** 2 - 2 * (self.noise * (1 + 2 / math.sqrt(max(len(far), 1)))) ** 2
        return math.sqrt(max(excess, 0.0) / NEAR)

    def boundaries(self) -> list[int]:
        """The indices where the level changes."""
        found: list[int] = []
        self.drift = 0.0
        for start, end in self.runs:
            values, price = self.x[start:end].tolist(), max(PRICE * self.noise, FLOOR)
            edges: list[int] = []
            while not edges or len(edges) > MANY + len(values) / MANY:
                edges, _, _ = solve_potts_approx(values, [1.0] * len(values), gamma=price)
                price *= 2
            found += [start + int(edge) for edge in edges]
        found = self._tested(found[:-1])
        self.drift = self._drift(found)
        for _ in range(3):
            before, found = found, self._tested(self._moved(found))
            if found == before:
                break
        return found

    def _tested(self, found: list[int]) -> list[int]:
        """Without what fails a test, the weakest gone first."""
        while found:
            edges = sorted({0, *found, *self.starts, len(self.x)})
            for a, b in pairwise(edges):
                self.residuals[a:b] = self.x[a:b] - np.median(self.x[a:b])
            weights = [self._weight(at, *_around(at, edges)) for at in found]
            if min(weights) >= 1:
                break
            weakest = int(np.argmin(weights))
            found = found[:weakest] + found[weakest + 1 :]
        return found

    def _weight(self, at: int, low: int, high: int) -> float:
        """How far a boundary between two stretches passes its tests: below 1 it fails one."""
        before, after = self.x[at - self._window(at - low) : at], self.x[at : at + self._window(high - at)]
        (old, old_noise), (new, new_noise) = self._level(before), self._level(after)
        shift = new - old
        variance = old_noise**2 / len(before) + new_noise**2 / len(after)
        variance += self.drift**2 * (len(before) + len(after)) / 3
        if at - low <= high - at:
            fewer, shift, others = self.x[low:at], -shift, np.concatenate([self.residuals[:low], self.residuals[at:]])
        else:
            fewer, others = self.x[at:high], np.concatenate([self.residuals[:at], self.residuals[high:]])
        usual = new if at - low <= high - at else old
        beyond = int(np.sum((fewer - usual) * np.sign(shift) > TAIL * abs(shift)))
        seen = _seen(others * np.sign(shift), 2 * beyond - len(fewer))
        weight = abs(shift) / max(math.log1p(FLOOR), self.quantile * math.sqrt(variance), seen)
        return weight if len(fewer) >= 2 else 1e-3 * min(weight, 1.0)

    def _window(self, count: int) -> int:
        """How many points next to a boundary tell its level best: where there is drift, farther ones mislead."""
        return min(count, max(2, round(math.sqrt(3) * self.noise / self.drift))) if self.drift else count

    def _level(self, values: Values) -> tuple[float, float]:
        """The mean without what sticks out, and the standard deviation that a point of it has."""
        middle = float(np.median(values))
        level = float(np.mean(np.clip(values, middle - 3 * self.noise, middle + 3 * self.noise)))
        own = float(np.std(values, ddof=1)) / 1.5 if 1 < len(values) < NEAR else 0.0
        return level, max(self.noise, own)

    def _moved(self, found: list[int]) -> list[int]:
        """Each boundary where it fits best between its neighbours; where that is a near thing, where the binary
        changed."""
        edges = sorted({0, *found, *self.starts, len(self.x)})
        moved = []
        for at in found:
            low, high = _around(at, edges)
            if at not in self.starts and high - low > 2:
                old, new = float(np.median(self.x[low:at])), float(np.median(self.x[at:high]))
                half = abs(new - old) / 2
                misfit = np.clip((self.x[low:high] - (old + new) / 2) * np.sign(new - old), -half, half)
                cost = np.cumsum(misfit)[:-1]  # of a boundary at low + 1, low + 2, ...
                best = int(np.argmin(cost))
                near = [
                    place
                    for place in np.flatnonzero(cost <= cost[best] + max(3 * self.noise, half / 2)).tolist()
                    if _differ(self.points[low + place].identity, self.points[low + place + 1].identity)
                ]
                best = int(min(near, key=lambda place: cost[place])) if near else best
                moved.append(low + 1 + best)
            else:
                moved.append(at)
        return sorted(set(moved))

    def smallest(self, before: int, after: int) -> float:
        """The smallest relative change that shows between stretches of so many points."""
        before, after = self._window(before), self._window(after)
        variance = self.noise**2 * (1 / before + 1 / after) + self.drift**2 * (before + after) / 3
        seen = _seen(np.abs(self.residuals), min(before, after))
        return math.expm1(max(math.log1p(FLOOR), self.quantile * math.sqrt(variance), seen))

    def steps(self) -> list[Step]:
        """The changes, each with its kind."""
        found = self.boundaries()
        edges = sorted({0, *found, *self.starts, len(self.x)})
        steps, at = [], 0
        while at < len(found):
            last = next((end for end in range(len(found) - 1, at, -1) if self._ramp(found[at : end + 1], edges)), at)
            steps.append(self._step(found[at : last + 1], edges))
            at = last + 1
        return steps

    def _step(self, chain: list[int], edges: list[int]) -> Step:
        """One boundary, or a chain of them that is a creep."""
        low, high = _around(chain[0], edges)[0], _around(chain[-1], edges)[1]
        since, at = self._ramp(chain, edges) or (chain[0], chain[0])
        before, after = float(np.median(self.raw[low:since])), float(np.median(self.raw[at:high]))
        why = _environment(self.points[since - 1], self.points[at])
        kind = "environment" if why else "step" if len(chain) == 1 else "creep"
        shows = self.smallest(since - low, high - at)
        return Step(at, kind, before, after, shows, why, since if kind == "creep" else None)

    def _ramp(self, chain: list[int], edges: list[int]) -> tuple[int, int] | None:
        """The first point off the old level and the first on the new one, where a straight line from level to level
        fits a chain of boundaries as well as its own levels do; None where they are steps."""
        low, high = _around(chain[0], edges)[0], _around(chain[-1], edges)[1]
        if len(chain) == 1 or any(start in range(low + 1, high) for start in self.starts):
            return None
        x = self.x[low:high]
        levels = [float(np.median(self.x[a:b])) for a, b in pairwise([low, *chain, high])]
        signs = np.sign(np.diff(levels))
        if abs(signs.sum()) < len(signs):
            return None
        own = float(np.abs(self.residuals[low:high]).sum())
        first, last, places = chain[0] - low, chain[-1] - low, np.arange(high - low)

        def error(begin: int, end: int) -> float:
            line = np.interp(places, [begin - 1, end], [levels[0], levels[-1]])
            return float(np.abs(x - line).sum())

        if high - low <= RAMP or error(first, last) > 3 * own + self.noise:
            return None
        begins, ends = range(max(1, first - RAMP), first + 1), range(last, min(len(x) - 1, last + RAMP) + 1)
        fits = [(error(begin, end), begin, end) for begin in begins for end in ends if end - begin >= RAMP - 1]
        best, begin, end = min(fits, default=(math.inf, 0, 0))
        return (low + begin, low + end) if best <= own else None


def _around(at: int, edges: list[int]) -> tuple[int, int]:
    """Where the stretches before and after a boundary begin and end."""
    place = edges.index(at)
    return edges[place - 1], edges[place + 1]


def _roughness(values: Values) -> float:
    """How much a series moves, from one point to the next and over some more; a step hardly counts."""
    far = values[2 * NEAR :] - values[: -2 * NEAR]
    return float(np.abs(np.diff(values)).mean() + (np.abs(far).mean() if len(far) else 0.0))


def _smooth(values: Values) -> Values:
    """The running median, which keeps edges."""
    padded = np.pad(values, NEAR // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, NEAR), axis=1))


def _seen(residuals: Values, count: int) -> float:
    """The size that a step must have not to be what single points did before: were they independent, so many more of
    them on its side than not would be that far off by chance less often than RUN. A short history knows little of how
    often that is: one point more is taken to have been so."""
    allowed = max(0, int((len(residuals) + 1) * RUN ** (1 / max(count, 1)) - 1))
    if allowed >= len(residuals):
        return 0.0
    return max(0.0, float(np.partition(residuals, -1 - allowed)[-1 - allowed])) / TAIL
