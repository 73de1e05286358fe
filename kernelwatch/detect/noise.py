"""How noisy each point of a series is: from the processes of its commit, and from how far neighbors differ."""

import math

import numpy as np

from kernelwatch.detect.robust import Values, smooth, spread

USUAL = 0.0025  # noise of one of the GPU's more restless cells: few values cannot show that a series has less
PRIOR = 10  # weight of USUAL, in points, if no processes are known
TOLD = 20  # weight of the spread between the processes of each commit, in points, if it is known
FEW = 2  # commits whose processes weigh as much as USUAL: those of a few may all have been quiet by chance
MEDIAN = 1.25  # a commit's figure is a median: its error over that of the mean (of many values: sqrt(pi / 2))
DISTURBED = 3  # times the spread between processes of the commits around: a larger one belongs to that commit alone
AROUND = 21  # commits whose processes together say how noisy the middle one was
BLOCK, FADE = 32, 160  # points that share an estimate from their differences, and those on each side that count


def assumed(spreads: Values) -> tuple[Values, int]:
    """The noise of each point that is assumed before the values are looked at, and its weight in points: the spread
    between the processes of the commits around, averaged with the usual noise; without processes, the usual noise.

    `spreads`: the relative standard error of each point, 0 where it is not known.
    """
    known = np.flatnonzero(spreads)
    if not len(known):
        return np.full(len(spreads), USUAL), PRIOR
    own = MEDIAN * spreads[known]
    padded = np.pad(np.minimum(own, DISTURBED * smooth(own, AROUND)) ** 2, AROUND // 2, mode="reflect")
    squares = np.convolve(padded, np.full(AROUND, 1 / AROUND), mode="valid")
    told = np.sqrt((len(known) * squares + FEW * USUAL**2) / (len(known) + FEW))
    return np.interp(np.arange(len(spreads)), known, told), TOLD


def noise(x: Values, spreads: Values, starts: list[int]) -> tuple[Values, int]:
    """The standard deviation of each point, and the degrees of freedom of that estimate.

    The differences between neighbors, which a few steps hardly change, say by what factor the noise differs from the
    assumed one. Points far away count no more: what was noisy in the past may be quiet now.
    `x`: values whose differences are relative. `starts`: the first points of stretches with the same conditions.
    """
    expected, weight = assumed(spreads)
    within = np.ones(len(x), bool)
    within[starts] = False
    off = np.zeros(len(x))
    off[1:] = np.diff(x) / np.hypot(expected[1:], expected[:-1])
    found = np.empty(len(x))
    for at in range(0, len(x), BLOCK):
        near = slice(max(at - FADE, 0), at + BLOCK + FADE)
        differences = off[near][within[near]]
        count = len(differences) + (at <= FADE)  # a start of new conditions says nothing
        factor = math.sqrt((count * spread(differences) ** 2 + weight) / (count + weight))
        found[at : at + BLOCK] = factor * expected[at : at + BLOCK]
    return np.maximum(found, smooth(spreads, AROUND)), min(len(x), BLOCK + 2 * FADE) + weight
