"""Conditions that alternate, such as two GPUs that measure a series in turns, made comparable: A with A, B with B.

Where a series passes from one to the other again and again, its neighbors on both sides of these passes say how much
the conditions move it. Without that, it goes on as under one of them.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernelwatch.detect.point import Points, stretches
from kernelwatch.detect.robust import Values
from kernelwatch.detect.texts import Texts

PASSES = 6  # between a condition and the others: a step at one of fewer could not be told from what the conditions do
ENOUGH = 24  # passes of a condition that count: later ones change nothing, so that what was found stays
ROUNDS = 10  # of the fit, which converges in a few


def alike(points: Points) -> Points:
    """The points, whose unknown conditions are the last known ones. Conditions that alternate are one, the first; what
    they do is part of `common`, and no part of the canary."""
    points = replace(points, conditions=points.conditions.filled())
    codes = points.conditions.codes
    at = np.array(stretches(points)[1:], np.int64)
    if len(at) < PASSES or not ((points.value > 0) & np.isfinite(points.value)).all():
        return points
    passes = np.stack([codes[at - 1], codes[at]], axis=1)
    group = _alternating(passes)
    if not group:
        return points
    among = np.isin(passes, group).all(axis=1)
    at, places = at[among], np.searchsorted(group, passes[among])
    seen, first = np.zeros(len(group), int), []
    for old, new in places:
        first.append(min(seen[old], seen[new]) < ENOUGH)
        seen[[old, new]] += 1
    at, places = at[first], places[first]
    where = np.searchsorted(group, codes)
    own = np.flatnonzero(np.isin(codes, group))

    def offsets(values: Values) -> Values:
        """By what the conditions move each point's logarithm."""
        logs = np.log(values)
        found = np.zeros(len(values))
        found[own] = _offsets(places, logs[at] - logs[at - 1], len(group))[where[own]]
        return found

    canary = points.canary
    if ((canary[own] > 0) & np.isfinite(canary[own])).all():
        canary = canary * np.exp(-offsets(canary))
    joined = codes.copy()
    joined[own] = codes[own[0]]
    return replace(
        points,
        canary=canary,
        common=points.common + offsets(points.own),
        conditions=Texts(joined, points.conditions.table),
    )


def _alternating(passes: NDArray[np.int32]) -> list[int]:
    """Conditions between which a series passes often enough: the two with the most passes, and whatever passes as
    often to or from those that are in already. `passes`: the conditions before and after each."""
    counts = Counter((int(min(pair)), int(max(pair))) for pair in passes)
    (pair, most), *_ = counts.most_common(1)
    group = {*pair} if most >= PASSES else set()
    while group:
        near: Counter[int] = Counter()
        for (one, other), count in counts.items():
            if (one in group) != (other in group):
                near[other if one in group else one] += count
        new = {condition for condition, count in near.items() if count >= PASSES}
        if not new:
            break
        group |= new
    return sorted(group)


def _offsets(places: NDArray[np.int64], moved: Values, count: int) -> Values:
    """By what each condition moves a series, less the first one: the fit with the least sum of absolute errors, which a
    few steps at passes hardly change. `places`: the conditions before and after each pass; `moved`: by what it moved
    the series."""
    old, new = places.T
    offsets: Values = np.zeros(count)
    weights: Values = np.ones(len(moved))
    for _ in range(ROUNDS):
        sums, right = np.zeros((count, count)), np.zeros(count)
        for one, other, sign in ((new, old, 1), (old, new, -1)):
            np.add.at(sums, (one, one), weights)
            np.add.at(sums, (one, other), -weights)
            np.add.at(right, one, sign * weights * moved)
        offsets = np.asarray(np.linalg.lstsq(sums, right, rcond=None)[0])
        off = np.abs(moved - (offsets[new] - offsets[old]))
        weights = np.asarray(1 / np.maximum(off, max(float(np.median(off)), 1e-9) / 10))
    return np.asarray(offsets - offsets[0])
