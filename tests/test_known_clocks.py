"""The SM clock at which a cell is timed: what is waited for, and what a process knows before it takes samples."""
# ruff: noqa: F811 (a fixture)

import dataclasses

import pytest

from kernelwatch.timing.replay import LOW_CLOCK, REST_S, SHORT_REST_S
from tests.test_gpu_timing import Handless, cell, pauses  # noqa: F401

LONG_S = 1e-5  # of a launch: all sets of buffers together take some milliseconds, over which a clock can be read


def test_a_clock_that_recovers_is_waited_for(pauses: list[float]) -> None:
    """What ran before had drawn much power: 10 % below, 5 % below, then as high as it has been."""
    gpu = Handless()
    gpu.best_clock_mhz, gpu.clocks = 1980.0, [1780.0, 1880.0, 1975.0]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"]) == (2, 3.0, [])
    assert pauses == [REST_S, SHORT_REST_S]


@pytest.mark.parametrize(("clock", "rest"), [(1770.0, REST_S), (1790.0, SHORT_REST_S)])
def test_a_clock_that_its_own_work_holds_down_is_marked(pauses: list[float], clock: float, rest: float) -> None:
    """Power holds it below 90 % of the highest, tensor cores from there on: one rest shows that it stays there."""
    gpu = Handless()
    gpu.best_clock_mhz, gpu.clocks = 1980.0, [clock, clock + 1, clock + 2]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"]) == (1, 2.0, [LOW_CLOCK])
    assert pauses == [rest]


@pytest.mark.parametrize(("seen", "rest"), [(1770.0, REST_S), (1790.0, SHORT_REST_S), (1975.0, 0.0), (None, 0.0)])
def test_a_first_process_rests_for_the_clock_that_it_saw_before_its_samples(
    pauses: list[float],
    seen: float | None,
    rest: float,
) -> None:
    """Where no process knows the clock, a first replay tells it as well as samples would, which cost more."""
    gpu = Handless(launch_s=LONG_S)
    gpu.best_clock_mhz, gpu.seen_mhz, gpu.clocks = 1980.0, seen, [seen or 1975.0]
    visit = gpu.measure(cell())
    assert (visit["retakes"], len(gpu.taken), pauses) == (0, 1, [rest] if rest else [])


def test_a_clock_that_took_too_short_to_read_decides_nothing(pauses: list[float]) -> None:
    """The first launch waited for a library, so that the first replay was one of a single launch."""
    gpu = Handless(launch_s=LONG_S)
    gpu.check_s = 4e-3
    gpu.best_clock_mhz, gpu.seen_mhz, gpu.clocks = 1980.0, 1700.0, [1975.0]
    assert (gpu.measure(cell())["retakes"], pauses) == (0, [])


def test_a_clock_that_rises_after_that_rest_is_waited_for_once_more(pauses: list[float]) -> None:
    gpu = Handless(launch_s=LONG_S)
    gpu.best_clock_mhz, gpu.seen_mhz, gpu.clocks = 1980.0, 1700.0, [1780.0, 1781.0]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], pauses) == (1, 2.0, [REST_S] * 2)


def test_a_known_clock_counts_more_than_the_one_that_was_seen(pauses: list[float]) -> None:
    gpu = Handless(launch_s=LONG_S)
    gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz={cell().key: 1790.0})
    gpu.best_clock_mhz, gpu.seen_mhz, gpu.clocks = 1980.0, 1700.0, [1790.0]
    assert (gpu.measure(cell())["retakes"], pauses) == (0, [SHORT_REST_S])


def test_a_clock_that_other_processes_found_comes_after_a_rest(pauses: list[float]) -> None:
    gpu = Handless()
    gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz={cell().key: 1700.0})
    gpu.best_clock_mhz, gpu.clocks = 1980.0, [1695.0]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["throttled"], pauses) == (0, [LOW_CLOCK], [REST_S])
    gpu.taken.clear()
    pauses.clear()
    gpu.clocks = [1650.0, 1695.0]  # lower than theirs: what ran before holds it down still
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], pauses) == (1, 2.0, [REST_S] * 2)
    gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz={cell().key: 1980.0})
    gpu.taken.clear()
    pauses.clear()
    gpu.clocks = [1980.0]
    assert (gpu.measure(cell())["retakes"], pauses) == (0, [])
