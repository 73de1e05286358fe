"""A cold cell that is slow: no sample finds what the launch before it left in the L2 cache."""

import dataclasses
import itertools
import json
import math
import statistics
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.history.records import read, sidecars
from kernelwatch.identity import comparisons
from kernelwatch.timing.gpu import SLOW_AGREED, SLOW_CELL_S, SLOW_LONG_S, SLOW_MOST, SLOW_S, Gpu
from kernelwatch.timing.replay import CANARY_BYTES, LOW_CLOCK, REST_S, SHORT_REST_S
from tests.fake_gpu import CLOCK_MHZ, Device
from tests.test_replay import BUDGET, cell, device, gpu_of  # noqa: F401 (a fixture)

SLOW = 2 * SLOW_S
SAMPLES = min(BUDGET.samples, round(SLOW_CELL_S / SLOW))


def in_a_row(fake: Device, gpu: Any, where: Any) -> tuple[int, int]:
    """How often the kernel ran while a cell was measured, and how often right after itself: sorts, stamps and fills do
    not count."""
    fake.launches.clear()
    gpu.measure(where)
    names = [one.name for one in fake.launches if one.name in ("move", "vector_copy", "canary_compute")]
    return names.count("move"), sum(pair == ("move", "move") for pair in itertools.pairwise(names))


RESTS = pytest.mark.parametrize("rest_s", [0.0, SHORT_REST_S, REST_S])


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch, rest_s: float) -> list[float]:
    """How long each rest was to be; the clock that a launch is known to have asks for one of `rest_s`."""
    asked: list[float] = []
    monkeypatch.setattr(Gpu, "rest_s", lambda *_: rest_s)
    monkeypatch.setattr(Gpu, "rest", lambda _, seconds: asked.append(seconds))
    return asked


@RESTS
def test_each_sample_of_a_slow_cold_cell_comes_after_the_canaries(
    device: Device,  # noqa: F811
    slept: list[float],
    rest_s: float,
) -> None:
    """They move more than the cache holds."""
    gpu, _ = gpu_of(device, cell(), SLOW)
    slept.clear()
    ran, again = in_a_row(device, gpu, cell())
    assert ran > SAMPLES > 1
    assert again == 0
    assert sum(slept) == pytest.approx(rest_s)
    assert len(slept) == (SAMPLES if rest_s == REST_S else 1)


@RESTS
def test_the_samples_of_a_slow_hot_cell_stay_in_the_cache(
    device: Device,  # noqa: F811
    slept: list[float],
    rest_s: float,
) -> None:
    gpu, _ = gpu_of(device, cell("hot"), SLOW)
    slept.clear()
    _, again = in_a_row(device, gpu, cell("hot"))
    assert again >= SAMPLES, "each comes after the launch itself"
    assert sum(slept) == pytest.approx(rest_s)


def test_the_checked_run_is_no_sample_of_a_hot_cell(device: Device) -> None:  # noqa: F811
    """It comes after the canaries."""
    gpu, _ = gpu_of(device, cell("hot"), SLOW_CELL_S)
    assert in_a_row(device, gpu, cell("hot"))[1] > 0
    gpu, _ = gpu_of(device, cell(), SLOW_CELL_S)
    assert in_a_row(device, gpu, cell())[1] == 0


def test_the_samples_of_a_slow_cold_cell_are_apart_when_they_are_taken_again(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Power held the clock down in the first take."""
    gpu, _ = gpu_of(device, cell(), SLOW)
    held = iter([True])
    monkeypatch.setattr(gpu, "_held_down", lambda *_: next(held, False))
    ran, again = in_a_row(device, gpu, cell())
    assert (ran > 2 * SAMPLES, again) == (True, 0)


@pytest.mark.parametrize(
    ("launch_s", "known_s", "apart", "samples"),
    [
        (0.04, math.inf, 0.0, 2),  # the first process has nothing else to hold a single sample against
        (1.1 * SLOW_LONG_S, math.inf, 0.5, 1),  # what takes so long is steady, and dear
        (0.04, 0.04, 0.0, 1),
        (0.04, 0.04 * (1 + 1.9 * SLOW_AGREED), 0.0, 1),
        (0.04, 0.04 * (1 + 2.1 * SLOW_AGREED), 0.0, 2),
        (0.04, math.inf, 0.05, SLOW_MOST),
        (0.04, math.inf, 0.5, 3),  # two agree, and the third one was disturbed
        (1.1 * SLOW_LONG_S, 1.1 * SLOW_LONG_S, 0.05, 9),  # in a second
        (1.1 * SLOW_LONG_S, 1.0, 0.0, 2),  # they agree, whatever was known
        (SLOW, math.inf, 0.0, SAMPLES),
        (SLOW, math.inf, 0.05, SLOW_MOST),
    ],
)
def test_a_slow_cell_has_more_samples_if_they_do_not_agree_with_what_is_known(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    launch_s: float,
    known_s: float,
    apart: float,
    samples: int,
) -> None:
    """Every second launch takes longer by `apart`."""
    gpu, _ = gpu_of(device, cell(), launch_s)
    if known_s < math.inf:
        gpu.budget = dataclasses.replace(gpu.budget, seconds={cell().key: known_s})
    replay, count = gpu.replay, itertools.count(1)

    def replayed(*given: Any, **named: Any) -> Any:
        seconds, *others = replay(*given, **named)
        return [one * (1 + apart * (next(count) % 2)) for one in seconds], *others

    monkeypatch.setattr(gpu, "replay", replayed)
    found = gpu.measure(cell())
    assert found["launches"] == samples
    if samples == SLOW_MOST and apart:
        assert len(found["takes_s"]) > 1
        assert found["seconds"] == pytest.approx(launch_s * (1 + apart / 2), rel=2e-3), "the mean over all samples"


def test_a_further_sample_of_a_slow_cell_that_meets_a_limit_does_not_count(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does another one follow. It had no rest."""
    gpu, _ = gpu_of(device, cell(), SLOW)
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell().key: 1.05 * SLOW})
    take, captured, shares, fills = gpu.take_quietly, gpu._captured, list[float](), list[int]()
    fill = gpu._fill

    def taken(*given: Any) -> Any:
        shares.append(given[6])
        return {**take(*given), "throttled": ["power cap"] if len(shares) > 2 else []}

    def filled(where: Any) -> None:
        fills.append(len(shares))
        fill(where)

    def once(*given: Any) -> Any:
        fills.clear()
        return captured(*given)

    monkeypatch.setattr(gpu, "_fill", filled)
    monkeypatch.setattr(gpu, "_captured", once)

    monkeypatch.setattr(gpu, "take_quietly", taken)
    found = gpu.measure(cell())
    assert shares == [1.0, 0.0, 0.0]
    assert fills[:1] == [0], "what was checked held other numbers"
    assert (found["samples"], found["throttled"]) == (SAMPLES + 1, [])


def test_a_first_run_that_waited_long_is_told_from_a_slow_cell(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second sample tells."""
    gpu, _ = gpu_of(device, cell(), 1e-4)
    check = gpu._check
    monkeypatch.setattr(gpu, "_check", lambda *given: ({**check(*given)[0], "seconds": [0.04]}, 0.0))
    found = gpu.measure(cell())
    assert found["seconds"] == pytest.approx(1e-4, rel=0.1)
    assert found["slots"] > 1


@pytest.mark.parametrize("share", [0.98, 1.0])
def test_a_checked_run_at_a_lowered_clock_is_told_so(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    share: float,
) -> None:
    """If it is the only sample, and the clock is the one that is known."""
    gpu, _ = gpu_of(device, cell(), 0.04)
    mhz = gpu.best_clock_mhz = CLOCK_MHZ
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell().key: 0.04}, clocks_mhz={cell().key: share * mhz})
    check = gpu._check
    monkeypatch.setattr(gpu, "_check", lambda *given: ({**check(*given)[0], "clock64_mhz": share * mhz}, 0.0))
    found = gpu.measure(cell())
    assert (found["samples"], found["throttled"]) == (1, [LOW_CLOCK] if share < 1 else [])


@pytest.mark.parametrize(("cache", "limits"), [("hot", []), ("cold", ["power cap"])])
def test_more_samples_tell_nothing_of_a_slow_cell_that_is_hot_or_meets_a_limit(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    cache: str,
    limits: list[str],
) -> None:
    gpu, _ = gpu_of(device, cell(cache), SLOW)
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell(cache).key: 1.05 * SLOW})
    take = gpu.take_quietly
    monkeypatch.setattr(gpu, "take_quietly", lambda *given: {**take(*given), "throttled": limits})
    assert gpu.measure(cell(cache))["launches"] == SAMPLES


def comparisons_kept() -> list[dict[str, Any]]:
    return [json.loads(line) for line in comparisons().read_text(encoding="utf-8").splitlines()]


def test_the_pages_tell_what_the_record_of_the_finding_shows() -> None:
    docs = PROJECT.repository / "docs"
    (path,) = (each for each in sidecars(PROJECT.results, "h200") if each.name.startswith("b8ee5444"))
    cells = read(path).cells
    first, *others = cells["matmul/initial float32 2048x2048x2048 cold"].seconds
    text = (docs / "research" / "measuring.md").read_text(encoding="utf-8")
    section = " ".join(text.split("## Slow cells that fit in the cache")[1].split("\n## ")[0].split())
    back_to_back = statistics.mean(others)
    for rung, more in (("read_only", 4), ("texture", 1)):
        for one in cells[f"matmul/{rung} float32 2048x2048x2048 cold"].measurements:
            assert round(100 * (one["quartiles_s"][1] / one["quartiles_s"][0] - 1)) == more
    assert f"it took {1e3 * back_to_back:.2f} ms in two processes" in section
    assert f"it took {1e3 * first:.2f} ms, which is {100 * (first / back_to_back - 1):.0f} % more" in section
    assert f"whose copy touches {CANARY_BYTES >> 20} MiB" in section
    all_cells = [each for each in comparisons_kept() if each["commit"] == "14db415d"]
    assert [(each["cells"], each["moved"]) for each in all_cells] == [(866, 3)]
    assert "of 866 cells only these three moved" in section
    (path,) = (each for each in sidecars(PROJECT.results, "h200") if each.name.startswith("14db415d"))
    since = read(path).cells
    for rung, was, now, more in (("initial", 5.36, 5.74, 7), ("read_only", 5.45, 5.82, 7), ("texture", 8.61, 8.85, 3)):
        key = f"matmul/{rung} float32 2048x2048x2048 cold"
        old, new = cells[key].median_s, since[key].median_s
        assert (round(1e3 * old, 2), round(1e3 * new, 2), round(100 * (new / old - 1))) == (was, now, more)
    assert "from 5.36 to 5.74, from 5.45 to 5.82 and from 8.61 to 8.85 ms, which is 7, 7 and 3 % more" in section
