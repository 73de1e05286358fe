"""The detectors that are compared: this project's, asv's, and, if they are installed, Apache Otava's, ruptures' and
MongoDB's."""

import importlib.util
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from asv.step_detect import detect_regressions, detect_steps

from kernelwatch.detect.steps import Point, find
from lab.histories import Series

Detector = Callable[[Series], list[int]]  # it returns the first commit of each change that it reports


def points(series: Series) -> list[Point]:
    """A series as this project's detector takes it."""
    absent = [None] * len(series.values)
    columns = zip(
        series.values.tolist(),
        absent if series.canary is None else series.canary.tolist(),
        absent if series.spreads is None else series.spreads.tolist(),
        strict=True,
    )
    return [Point(at, value, error or 0.0, canary=canary) for at, (value, canary, error) in enumerate(columns)]


def own(series: Series) -> list[int]:
    """This project's detector."""
    return [step.since or step.at for step in find(points(series))]


def asv(threshold: float) -> Detector:
    """asv's Regressions page: the rises by more than `threshold` that the newest value has not undone."""

    def flags(series: Series) -> list[int]:
        _, _, jumps = detect_regressions(detect_steps(series.values.tolist()), threshold)
        return [jump[1] for jump in jumps or []]

    return flags


def otava(least: float) -> Detector:
    """Apache Otava, for changes of at least this relative size."""
    from otava.analysis import compute_change_points

    def flags(series: Series) -> list[int]:
        changes, _weak = compute_change_points(series.values.tolist(), min_magnitude=least)
        return [int(point.index) for point in changes]

    return flags


def ruptures(least: float) -> Detector:
    """PELT with squared errors and the usual penalty of 3 log n variances, for changes larger than `least`. The
    variance comes from the differences of neighboring values."""
    from ruptures import KernelCPD

    def flags(series: Series) -> list[int]:
        values = series.values
        if len(values) < 4:
            return []
        variance = (1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)) ** 2
        penalty = 3 * math.log(len(values)) * max(variance, 1e-12)
        edges = [0, *map(int, KernelCPD(kernel="linear", min_size=2).fit(values).predict(pen=penalty))]
        levels = [float(np.mean(values[a:b])) for a, b in pairwise(edges)]
        return [edges[k] for k in range(1, len(levels)) if abs(levels[k] / levels[k - 1] - 1) > least]

    return flags


def e_divisive(series: Series) -> list[int]:
    """MongoDB's E-divisive, which needs no threshold: a permutation test decides. Its random numbers are the same in
    each call. (Source: Matteson and James, A nonparametric approach for multiple change point analysis, 2014.)"""
    from signal_processing_algorithms.energy_statistics.energy_statistics import e_divisive

    np.random.seed(0)  # it shuffles by the global generator
    return sorted(map(int, e_divisive(series.values))) if len(series.values) >= 4 else []


def detectors() -> dict[str, Detector]:
    """The installed detectors by name, this project's first."""
    installed: dict[str, Detector] = {"gpukernels": own, "asv, 5 %": asv(0.05), "asv, 0.5 %": asv(0.005)}
    if importlib.util.find_spec("otava"):
        installed |= {"Otava": otava(0.0), "Otava, 1 %": otava(0.01)}
    if importlib.util.find_spec("ruptures"):
        installed |= {"ruptures, 1 %": ruptures(0.01)}
    if importlib.util.find_spec("signal_processing_algorithms"):
        installed["E-divisive"] = e_divisive
    return installed
