"""Finds where a series changed, and what is to blame: a commit, the environment, or many small commits together.

asv's solver of the Potts model (the piecewise constant function with the least cost: the sum of absolute errors, plus a
price per step) proposes steps. This module sets the price from the noise of the series; asv searches for a price, and
the one it finds settles on one flat level if a history has several steps. A proposed step must then pass three tests:
it exceeds the floor; it exceeds what noise and slow drift alone would let two such stretches differ; and single points
of this series have not done the same before. As long as a step fails, the weakest one is dropped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from asv.step_detect import solve_potts_approx
from numpy.typing import NDArray
from scipy.stats import t as student

from kernelwatch.detect.conditions import differ, what_changed
from kernelwatch.detect.robust import roughness, smooth, spread

FLOOR = 0.005  # the smallest relative step that is reported: below it a canary's drift counts as much as the kernel's
CHANCE = 1e-7  # of a false step at one place of an unchanged series: a suite has millions of places
RUN = 1e-9  # chance that so many points in a row are on one side, as far off as points of this series have been
PRICE = 5.0  # of a proposed step, in standard deviations: low, since every proposal is tested
TAIL = 0.75  # a point is as far off as a step if it is off by this share of the step's size
LEAST = 4  # points needed to tell noise from a step
QUIET = 2e-4  # the least noise assumed of a canary: ten runs of a cell on an H200 seldom differ by less
USUAL = 0.0025  # noise of one of the GPU's more restless cells: few values cannot show that a series has less
PRIOR = 10  # weight of USUAL, in points, if no processes are known
TOLD = 20  # weight of the spread between the processes of each commit, in points, if it is known
FEW = 2  # commits whose processes weigh as much as USUAL: those of a few may all have been quiet by chance
MEDIAN = 1.25  # a commit's figure is a median: its error over that of the mean (of many values: sqrt(pi / 2))
DISTURBED = 3  # times the usual spread between processes: a larger spread belongs to that commit alone
RAMP = 5  # the fewest commits of a gradual change: fewer are steps
MANY = 10  # steps, plus one for each MANY points: if more are proposed, the series flickers and the price is raised
NEAR = 5  # points over which drift is looked for: over many points, a staircase of steps would pass for drift

Values = NDArray[np.float64]


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
    """

    commit: int
    value: float
    spread: float = 0.0
    identity: str = ""
    conditions: str = ""
    canary: float | None = None


@dataclass(frozen=True)
class Step:
    """A change of level.

    `at`: the index of the first point after it.
    `kind`: "step", "gradual" (many small steps; `since` is the index of the first) or "environment" (no commit is to
    blame; `why` says what changed).
    `before`, `after`: the levels, in the units of the values.
    `smallest`: the smallest relative change that this series could show there.
    """

    at: int
    kind: str
    before: float
    after: float
    smallest: float
    why: str = ""
    since: int | None = None

    @property
    def change(self) -> float:
        """The relative change; infinite if it starts from 0."""
        return self.after / self.before - 1 if self.before else float("inf")


def find(points: Sequence[Point], *, exact: bool = False) -> list[Step]:
    """The changes of a series in both directions, oldest first. `exact`: any difference is a step.

    A step needs two points after it, which tell it from a single bad point, and more if the series is noisy. A value
    that is not finite counts as not measured.
    """
    finite = [at for at, point in enumerate(points) if math.isfinite(point.value)]
    if len(finite) < len(points):
        steps = find([points[at] for at in finite], exact=exact)
        return [
            replace(step, at=finite[step.at], since=None if step.since is None else finite[step.since])
            for step in steps
        ]
    points = _filled(points)
    if exact:
        return _exact(points)
    if len(points) < 2 or _within_floor(points):
        return []
    return _Series(points).steps()


def smallest(points: Sequence[Point], *, exact: bool = False) -> float:
    """The smallest relative step that a series would show two commits after it; infinite if the series is too short."""
    if exact:
        return 0.0
    finite = [point for point in points if math.isfinite(point.value)]
    if len(finite) < LEAST:
        return math.inf
    series = _Series(finite)
    return series.smallest(len(finite) - max([*series.boundaries(), *series.starts]), 2)


def _within_floor(points: Sequence[Point]) -> bool:
    """Whether all values, and all canaries, differ by less than the floor: then all levels do. Most series end here."""
    values = [point.value for point in points]
    canaries = [point.canary for point in points if point.canary is not None]
    low, high = min(values), max(values)
    return low > 0 and high < low * (1 + FLOOR) and (not canaries or max(canaries) < min(canaries) * (1 + FLOOR))


def _filled(points: Sequence[Point]) -> list[Point]:
    """The points, unknown conditions replaced by the last known ones: a change then shows at the next known ones."""
    filled = []
    known = ""
    for point in points:
        known = point.conditions or known
        filled.append(replace(point, conditions=known) if known != point.conditions else point)
    return filled


def _exact(points: Sequence[Point]) -> list[Step]:
    """Every difference between neighbors, as a step."""
    steps = []
    for at, (old, new) in enumerate(pairwise(points), 1):
        if new.value != old.value:
            why = _environment(old, new)
            steps.append(Step(at, "environment" if why else "step", old.value, new.value, 0.0, why))
    return steps


def _environment(before: Point, after: Point) -> str:
    """Why no commit is to blame for a change between two points; "" if one may be."""
    if differ(before.conditions, after.conditions):
        return what_changed(before.conditions, after.conditions)
    return "the binary is the same" if before.identity and before.identity == after.identity else ""


@lru_cache(maxsize=4096)
def _quantile(freedom: int) -> float:
    """How many standard errors a difference must exceed. `freedom`: degrees of freedom of the noise."""
    return float(student.ppf(1 - CHANCE / 2, freedom))


def _runs(points: Sequence[Point]) -> list[int]:
    """The first index of each stretch with the same conditions, 0 included. Unknown conditions are no change."""
    starts, known = [0], points[0].conditions
    for at, point in enumerate(points):
        if differ(known, point.conditions):
            starts.append(at)
        known = point.conditions or known
    return starts


class _Series:
    """A series on a scale on which differences are relative, without the drift that its canary shows.

    `raw`: the values as recorded; `x`: on that scale. `starts`, `runs`: the stretches with the same conditions.
    `noise`, `drift`: standard deviations of a point, and of a level's move from one commit to the next.
    `residuals`: the points less the median of their stretch.
    """

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
        """Subtract the canary's drift, smoothed or not, if it exceeds the canary's spread and the series shares it.

        A drift within that spread stays: to subtract it would only add the canary's noise.
        """
        for start, end in self.runs:
            if end - start < LEAST:
                continue
            logs = canary[start:end]
            usual = max(spread(np.diff(logs)) / math.sqrt(2), QUIET)
            moves, drift = logs - np.median(logs), smooth(logs, NEAR) - np.median(logs)
            if np.abs(drift).max() > 3 * usual:
                old = self.x[start:end]
                self.x[start:end] = min((old, old - drift, old - moves), key=lambda x: roughness(x, 2 * NEAR))

    def _known(self) -> tuple[float, int]:
        """The noise that is assumed before the values are looked at, and its weight in points: the spread between the
        processes of each commit, averaged with the usual noise; without processes, the usual noise alone."""
        spreads = [MEDIAN * point.spread for point in self.points if point.spread]
        most = DISTURBED * float(np.median(spreads)) if spreads else 0.0
        square = (sum(min(spread, most) ** 2 for spread in spreads) + FEW * USUAL**2) / (len(spreads) + FEW)
        return math.sqrt(square), TOLD if spreads else PRIOR

    def _noise(self) -> float:
        """The standard deviation of a point, from the assumed noise and the differences between neighbors, which a
        few steps hardly change."""
        core = spread(np.concatenate([np.diff(self.x[a:b]) for a, b in self.runs]))
        count, (usual, worth) = len(self.points), self._known()
        noise = math.sqrt((count * core**2 / 2 + worth * usual**2) / (count + worth))
        return max(noise, float(np.median([point.spread for point in self.points])))

    def _edges(self, boundaries: list[int]) -> list[int]:
        """Both ends, the boundaries and the starts of new conditions, in order."""
        return sorted({0, *boundaries, *self.starts, len(self.x)})

    def _drift(self, boundaries: list[int]) -> float:
        """The standard deviation of a level's move from one commit to the next; above 0 if points of one level that
        are some commits apart differ by more than neighbors do."""
        edges = self._edges(boundaries)
        far = np.concatenate([self.x[a + NEAR : b] - self.x[a : max(a, b - NEAR)] for a, b in pairwise(edges)])
        excess = spread(far) ** 2 - 2 * (self.noise * (1 + 2 / math.sqrt(max(len(far), 1)))) ** 2
        return math.sqrt(max(excess, 0.0) / NEAR)

    def boundaries(self) -> list[int]:
        """The indices at which the level changes."""
        proposed: list[int] = []
        self.drift = 0.0
        for start, end in self.runs:
            values, price = self.x[start:end].tolist(), max(PRICE * self.noise, FLOOR)
            edges: list[int] = []
            while not edges or len(edges) > MANY + len(values) / MANY:
                edges, _, _ = solve_potts_approx(values, [1.0] * len(values), gamma=price)
                price *= 2
            proposed += [start + int(edge) for edge in edges]
        boundaries = self._tested(proposed[:-1])
        self.drift = self._drift(boundaries)
        for _ in range(3):
            before, boundaries = boundaries, self._tested(self._moved(boundaries))
            if boundaries == before:
                break
        return boundaries

    def _tested(self, boundaries: list[int]) -> list[int]:
        """The boundaries that pass all tests: as long as one fails, the weakest is dropped."""
        while boundaries:
            edges = self._edges(boundaries)
            for a, b in pairwise(edges):
                self.residuals[a:b] = self.x[a:b] - np.median(self.x[a:b])
            weights = [self._weight(at, *_around(at, edges)) for at in boundaries]
            if min(weights) >= 1:
                break
            weakest = int(np.argmin(weights))
            boundaries = boundaries[:weakest] + boundaries[weakest + 1 :]
        return boundaries

    def _weight(self, at: int, low: int, high: int) -> float:
        """By what factor a boundary between two stretches passes its hardest test; below 1 it fails."""
        before, after = self.x[at - self._window(at - low) : at], self.x[at : at + self._window(high - at)]
        (old, old_noise), (new, new_noise) = self._level(before), self._level(after)
        shift = new - old
        variance = old_noise**2 / len(before) + new_noise**2 / len(after)
        variance += self.drift**2 * (len(before) + len(after)) / 3
        if at - low <= high - at:
            fewer, shift, usual = self.x[low:at], -shift, new
            others = np.concatenate([self.residuals[:low], self.residuals[at:]])
        else:
            fewer, usual = self.x[at:high], old
            others = np.concatenate([self.residuals[:at], self.residuals[high:]])
        beyond = int(np.sum((fewer - usual) * np.sign(shift) > TAIL * abs(shift)))
        by_chance = _by_chance(others * np.sign(shift), 2 * beyond - len(fewer))
        weight = abs(shift) / max(math.log1p(FLOOR), self.quantile * math.sqrt(variance), by_chance)
        return weight if len(fewer) >= 2 else 1e-3 * min(weight, 1.0)

    def _window(self, count: int) -> int:
        """How many points next to a boundary give its level best: if there is drift, points farther away mislead."""
        return min(count, max(2, round(math.sqrt(3) * self.noise / self.drift))) if self.drift else count

    def _level(self, values: Values) -> tuple[float, float]:
        """The mean with outliers clipped, and the standard deviation of a point."""
        middle = float(np.median(values))
        level = float(np.mean(np.clip(values, middle - 3 * self.noise, middle + 3 * self.noise)))
        own = float(np.std(values, ddof=1)) / 1.5 if 1 < len(values) < NEAR else 0.0
        return level, max(self.noise, own)

    def _moved(self, boundaries: list[int]) -> list[int]:
        """Each boundary, moved to where it fits best between its neighbors. If several places fit almost as well, one
        at which the binary changed is preferred."""
        edges = self._edges(boundaries)
        moved = []
        for at in boundaries:
            low, high = _around(at, edges)
            if at in self.starts or high - low <= 2:
                moved.append(at)
                continue
            old, new = float(np.median(self.x[low:at])), float(np.median(self.x[at:high]))
            half = abs(new - old) / 2
            misfit = np.clip((self.x[low:high] - (old + new) / 2) * np.sign(new - old), -half, half)
            cost = np.cumsum(misfit)[:-1]  # of a boundary at low + 1, low + 2, ...
            best = int(np.argmin(cost))
            near = [
                place
                for place in np.flatnonzero(cost <= cost[best] + max(3 * self.noise, half / 2)).tolist()
                if differ(self.points[low + place].identity, self.points[low + place + 1].identity)
            ]
            if near:
                best = int(min(near, key=lambda place: cost[place]))
            moved.append(low + 1 + best)
        return sorted(set(moved))

    def smallest(self, before: int, after: int) -> float:
        """The smallest relative change that shows between stretches of `before` and `after` points."""
        before, after = self._window(before), self._window(after)
        variance = self.noise**2 * (1 / before + 1 / after) + self.drift**2 * (before + after) / 3
        by_chance = _by_chance(np.abs(self.residuals), min(before, after))
        return math.expm1(max(math.log1p(FLOOR), self.quantile * math.sqrt(variance), by_chance))

    def steps(self) -> list[Step]:
        """The changes with their kinds."""
        boundaries = self.boundaries()
        edges = self._edges(boundaries)
        steps, first = [], 0
        while first < len(boundaries):
            last = first
            for end in range(len(boundaries) - 1, first, -1):  # the longest gradual change that begins here
                if self._ramp(boundaries[first : end + 1], edges):
                    last = end
                    break
            steps.append(self._step(boundaries[first : last + 1], edges))
            first = last + 1
        return steps

    def _step(self, chain: list[int], edges: list[int]) -> Step:
        """The step at one boundary, or the gradual change along a chain of them."""
        low, high = _around(chain[0], edges)[0], _around(chain[-1], edges)[1]
        since, at = self._ramp(chain, edges) or (chain[0], chain[0])
        before, after = float(np.median(self.raw[low:since])), float(np.median(self.raw[at:high]))
        why = _environment(self.points[since - 1], self.points[at])
        kind = "environment" if why else "step" if len(chain) == 1 else "gradual"
        shown = self.smallest(since - low, high - at)
        return Step(at, kind, before, after, shown, why, since if kind == "gradual" else None)

    def _ramp(self, chain: list[int], edges: list[int]) -> tuple[int, int] | None:
        """The first point off the old level and the first point on the new one, if a straight line between them fits
        a chain of boundaries as well as its levels do; None if the boundaries are steps."""
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
    """The edges before and after a boundary."""
    place = edges.index(at)
    return edges[place - 1], edges[place + 1]


def _by_chance(residuals: Values, count: int) -> float:
    """The size of a step that single points could imitate; a real one must be larger. `count`: how many more of its
    points are on its side than not.

    If points were independent, `count` of them would be that far off by chance less often than RUN. A short history
    knows little of how often a point is, so one more is assumed to have been.
    """
    allowed = max(0, int((len(residuals) + 1) * RUN ** (1 / max(count, 1)) - 1))
    if allowed >= len(residuals):
        return 0.0
    rank = len(residuals) - 1 - allowed  # `allowed` residuals are larger
    return max(0.0, float(np.partition(residuals, rank)[rank])) / TAIL
