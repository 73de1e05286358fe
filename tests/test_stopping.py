"""A cell that is known well enough is measured by fewer processes, and what is judged does not suffer."""

import statistics

import numpy as np
import pytest

from kernelwatch.detect.steps import Point, find
from kernelwatch.history.records import spread
from kernelwatch.run.outcome import LEAST, Outcome

COMMITS, PROCESSES, STEP_AT = 120, 6, 60


def measured(figures: list[float]) -> list[float]:
    """What the processes of a run measure of a cell, whose figures these would be if all measured it."""
    outcome = Outcome("ok")
    for process, seconds in enumerate(figures):
        if process and not outcome.wanted(process):
            break
        outcome.measurements.append({"process": process, "seconds": seconds})
    return [*outcome.by_process("seconds").values()]


def history(random: np.random.Generator, within: float, between: float, step: float) -> tuple[list[Point], float]:
    """A cell's points, and the mean number of processes. `within`, `between`: the relative standard deviation of the
    processes of a commit, and of the commits."""
    points, counts = [], []
    for commit in range(COMMITS):
        level = 1e-5 * (1 + between * random.standard_normal()) * (1 + step * (commit >= STEP_AT))
        figures = measured([level * (1 + within * each) for each in random.standard_normal(PROCESSES).tolist()])
        points.append(Point(commit, statistics.median(figures), spread(figures)))
        counts.append(len(figures))
    return points, statistics.mean(counts)


@pytest.mark.parametrize(("within", "fewest"), [(0.0003, 3.1), (0.0007, 3.5), (0.0015, 5.0), (0.003, 6.0)])
@pytest.mark.parametrize("between", [0.0, 0.001])
def test_nothing_is_flagged_for_having_been_measured_less(within: float, fewest: float, between: float) -> None:
    random = np.random.default_rng(5)
    for _ in range(6):
        points, count = history(random, within, between, step=0.0)
        assert find(points) == []
        assert LEAST <= count < fewest
        points, _ = history(random, within, between, step=0.01)
        assert [found.at for found in find(points)] == [STEP_AT]
