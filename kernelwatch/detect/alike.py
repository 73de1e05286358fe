"""Conditions that alternate, such as two GPUs that measure a series in turns, made comparable: A with A, B with B.

Where a series passes from one to the other again and again, its neighbors on both sides of these passes say how much
the conditions move it. Without that, it goes on as under one of them.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernelwatch.detect.point import Points, stretches
from kernelwatch.detect.robust import Values
from kernelwatch.detect.texts import Texts

PASSES = 8  # between conditions: a step at one of fewer could not be told from what the conditions do
ENOUGH = 24  # passes of a condition that count: later ones change nothing, so that what was found stays
ROUNDS = 10  # of the fit, which converges in a few


def alike(points: Points) -> Points:
    """The points, whose unknown conditions are the last known ones. Conditions that alternate are one of them; what
    they do is part of `common`, and no part of the canary."""
    points = replace(points, conditions=points.conditions.filled())
    at = np.array(stretches(points)[1:], np.int64)
    if len(at) < PASSES or not ((points.value > 0) & np.isfinite(points.value)).all():
        return points
    codes = points.conditions.codes
    for group in _alternating(np.stack([codes[at - 1], codes[at]], axis=1)):
        points = _joined(points, at, np.array(group))
    return points


def _joined(points: Points, at: NDArray[np.int64], group: NDArray[np.int32]) -> Points:
    """The points; some conditions are one, the first. `at`: where the conditions change."""
    codes = points.conditions.codes
    passes = np.stack([codes[at - 1], codes[at]], axis=1)
    among = np.isin(passes, group).all(axis=1)
    at, places = at[among], np.searchsorted(group, passes[among])
    seen, counts = np.zeros(len(group), int), np.zeros(len(at), bool)
    for number, pair in enumerate(places):
        counts[number] = seen[pair].min() < ENOUGH
        seen[pair] += 1
    at, places = at[counts], places[counts]
    own = np.flatnonzero(np.isin(codes, group))
    where = np.searchsorted(group, codes[own])

    def offsets(values: Values) -> Values:
        """By what the conditions move each point's logarithm."""
        found, logs = np.zeros(len(values)), np.log(values[own])
        before, after = np.searchsorted(own, at - 1), np.searchsorted(own, at)
        found[own] = _offsets(places, logs[after] - logs[before], len(group))[where]
        return found

    canary = points.canary
    if ((canary[own] > 0) & np.isfinite(canary[own])).all():
        canary = canary * np.exp(-offsets(canary))
    conditions = codes.copy()
    conditions[own] = codes[own[0]]
    return replace(
        points,
        canary=canary,
        common=points.common + offsets(points.own),
        conditions=Texts(conditions, points.conditions.table),
    )


def _alternating(passes: NDArray[np.int32]) -> list[list[int]]:
    """The sets of conditions that cannot be parted without losing PASSES passes between the parts. `passes`: the
    conditions before and after each."""
    if not len(passes):
        return []
    conditions, places, degrees = np.unique(passes, return_inverse=True, return_counts=True)
    places = places.reshape(passes.shape)
    inside = (degrees[places] >= PASSES).all(axis=1)
    if not inside.all():
        return _alternating(passes[inside])
    counts = np.zeros((len(conditions), len(conditions)))
    np.add.at(counts, tuple(places.T), 1.0)
    groups = _bound(counts + counts.T)
    if len(groups) == 1:
        return [conditions.tolist()]
    return [found for group in groups for found in _alternating(passes[np.isin(places, group).all(axis=1)])]


def _bound(counts: Values) -> list[list[int]]:
    """Sets of places each two of which are joined by PASSES passes or more, on whatever ways. `counts`: of the passes
    between two places. (Source: Nagamochi and Ibaraki, Computing edge-connectivity in multigraphs, 1992.)

    If the place that has the most passes to those before it comes next, it is joined with the one just before it by as
    many. So both count as one from then on.
    """
    label = np.arange(len(counts))  # of the set of each place
    while True:
        joined, last, near = np.arange(len(counts)), 0, counts[0].copy()
        left = {*range(1, len(counts))}
        while left:
            place = max(left, key=near.__getitem__)
            left.remove(place)
            if near[place] >= PASSES:
                joined[place] = joined[last]
            near, last = near + counts[place], place
        kept, joined = np.unique(joined, return_inverse=True)
        label = joined[label]
        if len(kept) == len(counts):
            return [np.flatnonzero(label == each).tolist() for each in range(len(kept))]
        sums = np.zeros((len(kept), len(kept)))
        np.add.at(sums, (joined[:, None], joined[None, :]), counts)
        np.fill_diagonal(sums, 0.0)
        counts = sums


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
