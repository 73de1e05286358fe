"""Finds the boundaries between the levels of a part of a series.

asv's solver of the Potts model (the piecewise constant function with the least cost: the sum of absolute errors, here
in units of each point's noise, plus a price per step) proposes boundaries; near the newest point every place is tried,
since medians do not show that a series with several levels has moved. A boundary must then pass the tests of
testing.py. As long as one fails, the weakest ones are dropped. Steady growths are looked for first (growth.py), and
taken out.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kernelwatch.detect.growth import Grown, growths
from kernelwatch.detect.noise import noise
from kernelwatch.detect.point import Point, Points, stretches
from kernelwatch.detect.robust import OUTLIER, Values, median, roughness, smooth, spread, weighted_median
from kernelwatch.detect.testing import (
    CHANCE,
    EVIDENCE,
    FLOOR,
    LEAST_POINTS,
    MANY,
    OFTEN,
    STEP,
    TOLD_CHANCE,
    YOUNG,
    Boundary,
    Passed,
    weight,
)
from kernelwatch.system.student import quantile

PRICE = 5.0  # of a proposed step, in standard deviations: low, since every proposal is tested
TAIL = 0.75  # a point is as far off as a step if it is off by this share of the step's size
LEAST = 4  # points needed to tell noise from a step
QUIET = 2e-4  # the least noise assumed of a canary: ten runs of a cell on an H200 seldom differ by less
RAMP = 5  # the fewest commits of a gradual change: fewer are steps
STEPS = 10  # plus one for each STEPS points: if more are proposed, the series flickers and the price is raised
NEWEST = 12  # places before the newest point at which a step is looked for whether or not it is proposed
WIDE = 21  # points whose median a single point may not exceed by more than PRICE where steps are proposed
NEAR = 5  # points over which drift is looked for: over many points, a staircase of steps would pass for drift


class Change(NamedTuple):
    """A step, or a gradual change along several boundaries.

    `since`, `at`: the first point off the old level and the first one on the new level; the same for a step.
    `boundaries`: all of them. `smallest`: the smallest relative change that would have shown there. `tests`: those that
    it passed. `rise`: of a growth, by what logarithm; it is no part of the levels of other changes.
    """

    since: int
    at: int
    boundaries: tuple[int, ...]
    smallest: float
    tests: tuple[Passed, ...] = ()
    rise: float = 0.0

    def moved(self, by: int) -> "Change":
        boundaries = tuple(at + by for at in self.boundaries)
        return self._replace(since=self.since + by, at=self.at + by, boundaries=boundaries)

    def ramp(self, count: int) -> Values:
        """What a growth adds to the logarithm of each of `count` points."""
        return Grown(self.since, self.at, self.rise, ()).ramp(count)


def _quantile(freedom: int, chance: float) -> float:
    """How many standard errors a difference must exceed. `freedom`: degrees of freedom of the noise."""
    return quantile(1 - chance / 2, freedom)


def _center(values: Values) -> Values:
    """The level around each point: the median of WIDE points, mirrored at both ends. Of points too few to be mirrored
    once, it is their median: a moving one would count some of them three times, and move where the level does not."""
    return smooth(values, WIDE) if len(values) > WIDE // 2 else np.full(len(values), median(values))


class Window:
    """A part of a series, on a scale on which differences are relative, without what moved many series, and without
    the drift that its canary shows.

    `settled`: changes that are kept as they are. `first`: new boundaries are looked for from this index on.
    `x`: the values on that scale. `starts`: the first points of the stretches with the same conditions.
    `noise`: the standard deviation of each point. `drift`: that of a level's move from one commit to the next, in units
    of the noise. `residuals`: the points less the median of their stretch.
    """

    def __init__(self, points: Sequence[Point], settled: Sequence[Change] = (), first: int = 1) -> None:
        points = Points.of(points)
        self.points, self.first = points, first
        self.settled = [at for change in settled for at in change.boundaries if at > 0]
        self.starts = stretches(points)
        raw = points.own
        positive = bool((raw > 0).all())
        unit = float(np.median(np.abs(raw))) or float(np.abs(raw).max()) or 1.0
        self.x: Values = np.log(raw / unit) if positive else raw / unit
        if positive and bool(((points.canary > 0) & np.isfinite(points.canary)).all()):
            self._without_drift(np.log(points.canary))
        for change in settled:
            if change.rise:
                self.x -= change.ramp(len(points))
        self.grown: list[Grown] = []
        self.noise, freedom = noise(self.x, points.spread, self.starts)
        self.quantile = _quantile(freedom, TOLD_CHANCE if points.spread.any() else CHANCE)
        self.levels: dict[tuple[int, int], tuple[float, float]] = {}
        self.drift = 0.0
        self.residuals: Values = np.zeros(len(points))

    def _without_drift(self, canary: Values) -> None:
        """Subtract the canary's drift, smoothed or not, if it exceeds the canary's spread and the series shares it.

        A drift within that spread stays: to subtract it would only add the canary's noise.
        """
        for start, end in pairwise([*self.starts, len(self.x)]):
            if end - start < LEAST:
                continue
            logs = canary[start:end]
            usual = max(spread(np.diff(logs)) / math.sqrt(2), QUIET)
            moves, drift = logs - np.median(logs), smooth(logs, NEAR) - np.median(logs)
            if np.abs(drift).max() > 3 * usual:
                old = self.x[start:end]
                self.x[start:end] = min((old, old - drift, old - moves), key=lambda x: roughness(x, 2 * NEAR))

    # --- boundaries ----------------------------------------------------------------------------------------------

    def _edges(self, boundaries: list[int]) -> list[int]:
        """Both ends, the boundaries, the settled ones and the starts of new conditions, in order. A start beside a
        boundary is left out if the one point between them shows that the level did not change at the start."""
        apart = [start for start in self.starts if start in boundaries or not self._passed(start, boundaries)]
        return sorted({0, *boundaries, *self.settled, *apart, len(self.x)})

    def _passed(self, start: int, boundaries: list[int]) -> bool:
        return any(at in boundaries for at in self.beside.get(start, ()))

    @cached_property
    def beside(self) -> dict[int, list[int]]:
        """For the starts of new conditions, a place beside each where the level changes, if it does not change at the
        start: the one point between them is on the level beyond the start, and not on the one beyond the place."""
        found: dict[int, list[int]] = {}
        for low, start, high in zip([0, *self.starts], self.starts, [*self.starts[1:], len(self.x)], strict=False):
            sides = slice(low, start), slice(start + 1, high)  # the point at the start, the last one before it
            lone = [(start + 1, start, *sides), (start - 1, start - 1, slice(start, high), slice(low, start - 1))]
            places = [at for at, point, near, far in lone if self._is_between(point, near, far)]
            if start and places:
                found[start] = places
        return found

    def _is_between(self, point: int, near: slice, far: slice) -> bool:
        """Whether a point is on the level of one part and certainly not on that of another, and no other point is as
        far off the middle of its conditions: such points come by chance."""
        if near.stop - near.start < 2 or far.stop - far.start < 2:
            return False
        (level, error), (other, other_error) = self._level(near.start, near.stop), self._level(far.start, far.stop)
        noise, off = float(self.noise[point]), float(self.x[point])
        is_apart = abs(off - other) > max(math.log1p(FLOOR), self.quantile * math.hypot(noise, other_error))
        farthest = max(float(np.abs(self.x[part] - at).max()) for part, at in ((near, level), (far, other)))
        return (
            is_apart
            and farthest < TAIL * abs(off - other)
            and abs(off - level) <= max(math.log1p(FLOOR), PRICE * math.hypot(noise, error))
        )

    def boundaries(self) -> list[int]:
        """The indices from `first` on at which the level changes."""
        self._without_growth()
        boundaries = self._tested(self._proposed())
        self.drift = self._drift(boundaries)
        if not self.drift:
            boundaries = self._newest(boundaries)
        for _ in range(3):
            before, boundaries = boundaries, self._tested(self._moved(boundaries))
            if boundaries == before:
                break
        return boundaries

    def _without_growth(self) -> None:
        """Subtract what grew steadily: as part of the drift it would hide, and as a staircase be blamed on single
        commits."""
        ends = [*self.starts[1:], len(self.x)]
        for start, end in zip(self.starts, ends, strict=True):
            self.grown += growths(self.x, self.noise, max(start, self.first - 1), end)
        for grown in self.grown:
            self.x -= grown.ramp(len(self.x))

    def _proposed(self) -> list[int]:
        """The starts of new conditions, and the boundaries that asv's solver proposes between them. Those just before
        `first` are moved there."""
        from asv.step_detect import solve_potts_approx  # not at the top: who looks for no steps need not wait for asv

        lengths = np.diff([*self.starts, len(self.x)])
        both = np.minimum(lengths[:-1], lengths[1:]) >= LEAST_POINTS
        starts = {start for start, last in zip(self.starts[1:], both, strict=True) if last and start >= self.first}
        beside = {start: [at for at in places if at >= self.first] for start, places in self.beside.items()}
        passed = {start for start in starts if beside.get(start)}
        proposed = (starts - passed) | {at for start in passed for at in beside[start]}
        for low, end in pairwise(self._edges([])):
            start = max(low, self.first - WIDE)
            if end <= self.first or end - low < LEAST:
                continue
            deviations = np.maximum(self.noise[start:end], FLOOR / PRICE)
            center = _center(self.x[start:end])
            values = np.clip(self.x[start:end], center - PRICE * deviations, center + PRICE * deviations)
            steps = np.sort(np.abs(np.diff(values)) / deviations[1:])
            usual = steps[: len(steps) - len(steps) // STEPS]  # a step in STEPS points changes nothing
            price = PRICE * max(1.0, float(usual.mean()) if len(usual) else 0.0)
            edges: list[int] = []
            while not edges or len(edges) > STEPS + (end - start) / STEPS:
                edges, _, _ = solve_potts_approx(values.tolist(), (1 / deviations).tolist(), gamma=price)
                price *= 2
            places = (start + int(edge) for edge in edges[:-1])
            proposed |= {max(place, self.first) for place in places if place > self.first - NEAR}
        return sorted(proposed - {*self.settled, len(self.x)})

    def _newest(self, boundaries: list[int]) -> list[int]:
        """The boundaries, and the newest place that passes best, if one does. The solver, which fits medians, seldom
        proposes a place at which a series with several levels has moved."""
        low, end = self._edges(boundaries)[-2:]
        relative = self.residuals / self.noise
        places = range(max(low + LEAST, self.first, end - NEWEST), end - 1)
        weights = {at: self._weight(at, low, end, relative) for at in places}
        best = max(weights, key=weights.__getitem__, default=end)
        return [*boundaries, best] if weights.get(best, 0.0) >= 1 else boundaries

    def _drift(self, boundaries: list[int]) -> float:
        """The standard deviation of a level's move from one commit to the next; above 0 if points of one level that
        are some commits apart differ by more than neighbors do. It widens what a step must exceed, and so hides slow
        trends: a machine's wander would be a step otherwise. A trend with a direction was taken out before."""
        far, near = self._differences(boundaries, NEAR), self._differences(boundaries, 1)
        apart = spread(far)
        alike = near[np.abs(near) <= OUTLIER * apart]  # so that both are without the same outliers
        usual = max(1.0, float(np.mean(alike**2)) ** 0.5 if len(alike) else 0.0)
        excess = apart**2 - (usual * (1 + 2 / math.sqrt(max(len(far), 1)))) ** 2
        return math.sqrt(2 * max(excess, 0.0) / NEAR)

    def _differences(self, boundaries: list[int], distance: int) -> Values:
        """How much points of one level that are so many commits apart differ, in units of their noise."""
        parts = []
        for a, b in pairwise(self._edges(boundaries)):
            old, new = slice(a, max(a, b - distance)), slice(a + distance, b)
            parts.append((self.x[new] - self.x[old]) / np.hypot(self.noise[new], self.noise[old]))
        return np.concatenate(parts)

    def _tested(self, boundaries: list[int]) -> list[int]:
        """The boundaries that pass all tests. As long as one fails, those that are weaker than both neighbors are
        dropped."""
        while True:
            edges = self._edges(boundaries)
            for a, b in pairwise(edges):
                self.residuals[a:b] = self.x[a:b] - median(self.x[a:b])
            relative = self.residuals / self.noise
            weights = [self._weight(at, *_around(at, edges), relative) for at in boundaries]
            if min(weights, default=1.0) >= 1:
                return boundaries
            around = zip([math.inf, *weights], weights, [*weights[1:], math.inf], strict=False)
            weak = [weight < min(left, 1) and weight <= right for left, weight, right in around]
            boundaries = [at for at, drop in zip(boundaries, weak, strict=True) if not drop]

    def _boundary(self, at: int, low: int, high: int, relative: Values) -> Boundary:
        """A boundary between two stretches, to be tested. `relative`: all residuals, in units of the noise of their
        points."""
        begin, end = at - self._reach(at - low), at + self._reach(high - at)
        (old, old_error), (new, new_error) = self._level(begin, at), self._level(at, end)
        shift = new - old
        variance = old_error**2 + new_error**2 + self._drifted(at) ** 2 * (end - begin) / 3
        fewer, usual = (slice(at, high), old) if high - at < at - low else (slice(low, at), new)
        return Boundary(
            shift,
            self.quantile * math.sqrt(variance),
            fewer.stop - fewer.start,
            lambda: self._evidence(fewer, usual, shift if usual == old else -shift, relative),
        )

    def _evidence(self, fewer: slice, usual: float, shift: float, relative: Values) -> tuple[float, float]:
        """By what logarithm points are likelier with a step from the usual level than without, and what is needed."""
        deviation = median(self.noise[fewer])
        others = np.concatenate([relative[: fewer.start], relative[fewer.stop :]]) * deviation
        far = TAIL * abs(shift)
        seen = int(np.count_nonzero(others * math.copysign(1.0, shift) > far))  # single points as far off
        often = far > PRICE * deviation and seen * MANY > len(others)
        evidence = float(_evidence(self.x[fewer] - usual, shift, others).sum())
        return evidence, OFTEN if often else EVIDENCE if seen else YOUNG

    def _weight(self, at: int, low: int, high: int, relative: Values) -> float:
        """By what factor a boundary passes its hardest test; below 1 it fails."""
        return weight(STEP, self._boundary(at, low, high, relative))

    def _drifted(self, at: int) -> float:
        return self.drift * float(self.noise[at - 1 : at + 1].max())

    def _reach(self, count: int) -> int:
        """How many points next to a boundary give its level best: if there is drift, points farther away mislead."""
        return min(count, max(2, round(math.sqrt(3) / self.drift))) if self.drift else count

    def _level(self, start: int, end: int) -> tuple[float, float]:
        """The mean of a part, outliers clipped, noisy points counting less; and its standard error."""
        if (start, end) not in self.levels:
            values, deviations = self.x[start:end], self.noise[start:end]
            weights = deviations**-2
            center, most = weighted_median(values, 1 / deviations), 3 * deviations
            clipped = np.minimum(np.maximum(values, center - most), center + most)
            total = float(weights.sum())
            error = total**-0.5
            if 1 < end - start < NEAR:
                error = max(error, float(np.std(values, ddof=1)) / 1.5 / math.sqrt(end - start))
            self.levels[start, end] = float(clipped @ weights) / total, error
        return self.levels[start, end]

    def _moved(self, boundaries: list[int]) -> list[int]:
        """Each boundary, moved to where it fits best between its neighbors. If several places fit almost as well, one
        at which the binary changed is preferred."""
        edges = self._edges(boundaries)
        relative = self.residuals / self.noise
        binaries = self.points.identity.codes
        known = binaries != self.points.identity.table.empty
        changed = known[:-1] & known[1:] & (binaries[:-1] != binaries[1:])  # at each point: does the next one differ?
        moved = []
        for at in boundaries:
            low, high = _around(at, edges)
            if at in self.starts or high - low <= 2:
                moved.append(at)
                continue
            old, new = median(self.x[low:at]), median(self.x[at:high])
            half = abs(new - old) / 2
            misfit = self._misfit(slice(low, high), old, new, relative * self.noise[at])
            cost = np.cumsum(misfit)[:-1]  # of a boundary at low + 1, low + 2, ...
            cost[: max(self.first - low - 1, 0)] = math.inf
            best = int(np.argmin(cost))
            near = [
                place
                for place in np.flatnonzero(cost <= cost[best] + max(3 * self.noise[at], half / 2)).tolist()
                if changed[low + place]
            ]
            if near:
                best = int(min(near, key=lambda place: cost[place]))
            moved.append(low + 1 + best)
        return sorted({*moved} - {*self.settled})

    def _misfit(self, part: slice, old: float, new: float, residuals: Values) -> Values:
        """How much nearer each point is to the new level than to the old one, at most half a step. If the noise is
        small, points that are off both count by how often points have been off so far."""
        shift, off = new - old, self.x[part] - old
        half = abs(shift) / 2
        misfit = np.asarray(np.clip((off - shift / 2) * np.sign(shift), -half, half))
        if half > 2 * median(self.noise[part]):
            evidence = _evidence(off, shift, residuals)
            known = evidence != 0
            misfit[known] = half * evidence[known] / math.log(len(residuals) + 1)
        return misfit

    def smallest(self, at: int, before: int, after: int) -> float:
        """The smallest relative change that shows at a place between stretches of `before` and `after` points."""
        before, after = self._reach(before), self._reach(after)
        earlier, later = self.noise[at - before : at], self.noise[at : at + after]
        later = later if len(later) else self.noise[-1:]
        variance = 1 / float(np.mean(earlier**-2)) / before + 1 / float(np.mean(later**-2)) / after
        variance += self._drifted(at) ** 2 * (before + after) / 3
        residuals = np.abs(self.residuals / self.noise) * median(later)
        by_chance = _by_chance(residuals, min(before, after))
        return math.expm1(max(math.log1p(FLOOR), self.quantile * math.sqrt(variance), by_chance))

    def newest(self, last: int) -> float:
        """The smallest step that two more points would show. `last`: the first point of the newest level. Infinite if
        that is too short, or if the conditions change so often that there is no place for a step between."""
        count = len(self.x)
        turns = sum(start > count - WIDE for start in self.starts[1:])
        hidden = count - last < LEAST_POINTS or turns * LEAST > min(count, WIDE)
        return math.inf if hidden else self.smallest(count, count - last, 2)

    # --- changes -------------------------------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """The steps and gradual changes at the boundaries."""
        boundaries = self.boundaries()
        edges = self._edges(boundaries)
        relative = self.residuals / self.noise
        changes, first = [], 0
        for since, at, rise, tests in self.grown:
            changes.append(Change(since, at, (since, at), self.smallest(at, since, len(self.x) - at), tests, rise))
        while first < len(boundaries):
            last = first + self._chain(boundaries[first:], edges) - 1
            while last > first and not self._ramp(boundaries[first : last + 1], edges):
                last -= 1  # the longest gradual change that begins here
            chain = boundaries[first : last + 1]
            since, at = self._ramp(chain, edges) or (chain[0], chain[0])
            low, high = _around(chain[0], edges)[0], _around(chain[-1], edges)[1]
            tested = [self._boundary(place, *_around(place, edges), relative) for place in chain]
            weakest = min(tested, key=lambda boundary: weight(STEP, boundary))
            tests = tuple(test.passed(weakest) for test in STEP)
            changes.append(Change(since, at, tuple(chain), self.smallest(at, since - low, high - at), tests))
            first = last + 1
        return sorted(changes)

    def _chain(self, boundaries: list[int], edges: list[int]) -> int:
        """How many of the boundaries, from the first on, go in the same direction, with no other edge between."""
        direction = self._direction(boundaries[0], edges)
        for count, (old, new) in enumerate(pairwise(boundaries), 1):
            if _around(new, edges)[0] != old or new in self.starts or self._direction(new, edges) != direction:
                return count
        return len(boundaries)

    def _direction(self, at: int, edges: list[int]) -> bool:
        low, high = _around(at, edges)
        return median(self.x[at:high]) > median(self.x[low:at])

    def _ramp(self, chain: list[int], edges: list[int]) -> tuple[int, int] | None:
        """The first point off the old level and the first point on the new one, if a straight line between them fits
        a chain of boundaries as well as its levels do; None if the boundaries are steps."""
        if len(chain) == 1 or chain[0] in self.starts:
            return None
        low, high = _around(chain[0], edges)[0], _around(chain[-1], edges)[1]
        x = self.x[low:high]
        old, new = median(self.x[low : chain[0]]), median(self.x[chain[-1] : high])
        own = float(np.abs(self.residuals[low:high]).sum())
        first, last, places = chain[0] - low, chain[-1] - low, np.arange(high - low)

        def error(begin: int, end: int) -> float:
            line = np.interp(places, [begin - 1, end], [old, new])
            return float(np.abs(x - line).sum())

        if high - low <= RAMP or error(first, last) > 3 * own + median(self.noise[low:high]):
            return None
        begins, ends = range(max(1, first - RAMP), first + 1), range(last, min(len(x) - 1, last + RAMP) + 1)
        fits = [(error(begin, end), begin, end) for begin in begins for end in ends if end - begin >= RAMP - 1]
        best, begin, end = min(fits, default=(math.inf, 0, 0))
        return (low + begin, low + end) if best <= own else None


def _around(at: int, edges: list[int]) -> tuple[int, int]:
    """The edges before and after a boundary."""
    place = bisect_left(edges, at)
    return edges[place - 1], edges[place + 1]


def _evidence(points: Values, shift: float, others: Values) -> Values:
    """The logarithm of how much likelier each point is with a step than without.

    `points`: distances from the level before the step. `shift`: the step. `others`: the distances of other points from
    their own levels. How likely a point is follows from how many others are like it; a short history knows little of
    them, so one more is assumed.
    """
    reach, ordered = (1 - TAIL) * abs(shift), np.sort(others)
    off = np.concatenate([points - shift, points])
    alike = ordered.searchsorted(off + reach, "right") - ordered.searchsorted(off - reach) + 1
    logs = np.log(alike)
    return np.asarray(logs[: len(points)] - logs[len(points) :])


def _by_chance(residuals: Values, count: int) -> float:
    """The size of a step that `count` single points could imitate."""
    allowed = max(0, int((len(residuals) + 1) * math.exp(-EVIDENCE / max(count, 1)) - 1))
    if allowed >= len(residuals):
        return 0.0
    rank = len(residuals) - 1 - allowed  # `allowed` residuals are larger
    return float(np.partition(residuals, rank)[rank]) / TAIL
