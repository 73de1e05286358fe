"""How well a process knows its own figure: the sampling error of the median of its samples, from their quartiles."""

import functools
import math
import random
import statistics
from types import SimpleNamespace
from typing import Any

from kernelwatch.history.records import Measured
from kernelwatch.plan.devices import DEVICES
from kernelwatch.timing.gpu import SLOW_S, Gpu
from kernelwatch.timing.record import Measurement, quartiles

BUDGET = DEVICES["gpu"].budget
SINGLE = (1, 3)  # samples of a take that is the only one of several: by the rules of 5ba20d92, of 5b906c46
DRAWS = 50_000  # the factor below is then known within 0.5 %


def samples(one: Measurement) -> int:
    """How many samples a cold measurement has. Records up to 5ba20d92 do not tell: by the rule of timing/gpu.py. A slow
    launch is a sample by itself."""
    if "samples" in one:
        return one["samples"]
    if one["seconds"] >= SLOW_S:
        return one["launches"]
    harness: Any = SimpleNamespace(budget=BUDGET)
    count, replays, samples = Gpu._enough(harness, one["slots"], one["seconds"])
    taken = round(one["launches"] / (count * replays))
    return min(samples, taken) if taken in SINGLE else samples


@functools.cache
def factor(count: int, mean: bool = False) -> float:
    """The standard deviation of the median, or of the `mean`, of `count` normal numbers, over the root mean square of
    the distance between their quartiles.

    For the median, the textbook's 1.2533 / 1.349 / sqrt(count) holds for many numbers. Of five, `quartiles` takes the
    middle of the two lowest and of the two highest. These are 1.66 standard deviations apart in the mean, not 1.349, so
    that formula gives an error that is 1.4 times too large. Here the numbers are drawn, and go through that very
    function. The root mean square makes the mean of the squared errors of several processes right.
    """
    draw = random.Random(count)
    medians, distances = 0.0, 0.0
    for _ in range(DRAWS):
        numbers = [draw.gauss(0.0, 1.0) for _ in range(count)]
        lower, upper = quartiles(numbers)
        medians += (statistics.fmean(numbers) if mean else statistics.median(numbers)) ** 2
        distances += (upper - lower) ** 2
    return math.sqrt(medians / distances)


def error(one: Measurement) -> float:
    """The relative standard error of a process's figure from its samples alone; NaN if it has a single one. If it has
    several takes, that of their mean."""
    if len(takes := one.get("takes_s", ())) > 1:
        return statistics.stdev(takes) / math.sqrt(len(takes)) / one["seconds"]
    if (count := samples(one)) < 2:
        return math.nan
    lower, upper = one["quartiles_s"]
    return factor(count, mean="samples" in one) * (upper - lower) / one["seconds"]


def within(cell: Measured) -> float:
    """The sampling error of a cell's processes: the root mean square of their errors; NaN if one does not know it."""
    return math.sqrt(statistics.fmean(error(one) ** 2 for one in cell.measurements))
