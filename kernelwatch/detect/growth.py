"""Finds where a series grew steadily: too slowly for any commit to show, and farther than it gets without a direction.

A series that drifts, as machines do, is no growth: its moves cancel one another (a random walk). What a canary or
other cells show too is taken out before (levels.py), or blamed on the machine after (common.py).
"""

import math
from typing import NamedTuple

import numpy as np

from kernelwatch.detect.robust import Values, median
from kernelwatch.detect.testing import CHANCE, FLOOR, GRADUAL, Growth, Passed, weight
from kernelwatch.system.student import quantile

BLOCK = 5  # points whose median counts
FEWEST = 6  # moves from block to block: fewer cannot show a direction
ALIKE = math.sqrt(1.5)  # medians of blocks of a random walk move alike, so that their sum varies by more
REACH = 20  # points by which its line is lengthened at once
ROUNDS = 4  # of that: the blocks that show a growth best may be far fewer than it has
MOST = 3  # standard deviations of a move from one point to the next that count: the others are steps


class Grown(NamedTuple):
    """A growth. `since`, `at`: its first point, and the first one beyond it; `rise`: by what logarithm; `tests`: those
    that it passed."""

    since: int
    at: int
    rise: float
    tests: tuple[Passed, ...]

    def ramp(self, count: int) -> Values:
        """What it adds to each of `count` points."""
        return self.rise * np.clip((np.arange(count) - self.since + 1) / (self.at - self.since + 1), 0.0, 1.0)


def growths(x: Values, noise: Values, low: int, end: int) -> list[Grown]:
    """The growths between two points, oldest first. `x`: values whose differences are relative; `noise`: the standard
    deviation of each."""
    count = (end - low) // BLOCK
    if count <= FEWEST:
        return []
    start = end - count * BLOCK  # of the first whole block
    part = slice(start, end)
    most = MOST * np.hypot(noise[part][1:], noise[part][:-1])
    path = np.concatenate([[0.0], np.cumsum(np.clip(np.diff(x[part]), -most, most))])
    levels = np.median(path.reshape(count, BLOCK), axis=1)
    squares = np.concatenate([[0.0], np.cumsum(np.diff(levels) ** 2)])
    first, last = np.triu_indices(count, FEWEST)
    many, shift = last - first, levels[last] - levels[first]
    variance = np.maximum((squares[last] - squares[first] - shift**2 / many) / (many - 1), np.finfo(float).tiny)
    deviations = np.abs(shift) / (ALIKE * np.sqrt(many * variance))
    by_chance = np.array([math.inf] * FEWEST + [quantile(1 - CHANCE / 2, n - 1) for n in range(FEWEST, count)])[many]
    best = int(np.argmax(deviations / by_chance * (np.abs(shift) >= math.log1p(FLOOR))))
    grown = Growth(float(shift[best]), float(deviations[best]), float(by_chance[best]))
    if weight(GRADUAL, grown) < 1:
        return []
    since, at = (int(block[best]) * BLOCK + BLOCK // 2 for block in (first, last))
    for _ in range(ROUNDS):
        before, (since, at, rise) = (since, at), _fitted(path, since, at)
        if before == (since, at):
            break
    own = Grown(start + since + 1, start + at, rise, tuple(test.passed(grown) for test in GRADUAL))
    return [*growths(x, noise, low, start + since), own, *growths(x, noise, start + at, end)]


def _fitted(path: Values, begin: int, end: int) -> tuple[int, int, float]:
    """The last point before a growth, the first one beyond it, and its rise: those of the straight line between two
    levels that leaves the least sum of absolute errors."""
    low, high = max(begin - 2 * REACH, 0), min(end + 2 * REACH, len(path))
    part, places = path[low:high], np.arange(low, high)
    fits = []
    for since in range(max(begin - REACH, low + BLOCK // 2), begin + BLOCK + 1):
        old = median(path[low : since + 1])
        for at in range(max(end - BLOCK, since + BLOCK), min(end + REACH, high - BLOCK // 2 - 1) + 1):
            new = median(path[at:high])
            line = np.interp(places, [since, at], [old, new])
            fits.append((float(np.abs(part - line).sum()), since, at, new - old))
    return min(fits)[1:]
