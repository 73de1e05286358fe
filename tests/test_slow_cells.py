"""A cold cell that is slow: no sample finds what the launch before it left in the L2 cache."""

import itertools
import statistics
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.history.records import read, sidecars
from kernelwatch.timing.gpu import SLOW_CELL_S, SLOW_S
from kernelwatch.timing.replay import CANARY_BYTES, SHORT_REST_S
from tests.fake_gpu import Device
from tests.test_replay import BUDGET, cell, device, gpu_of  # noqa: F401 (a fixture)

SLOW = 2 * SLOW_S


def in_a_row(fake: Device, gpu: Any, where: Any) -> tuple[int, int]:
    """How often the kernel ran while a cell was measured, and how often right after itself: sorts, stamps and fills do
    not count."""
    fake.launches.clear()
    gpu.measure(where)
    names = [one.name for one in fake.launches if one.name in ("move", "vector_copy", "canary_compute")]
    return names.count("move"), sum(pair == ("move", "move") for pair in itertools.pairwise(names))


@pytest.mark.parametrize("rests", [False, True])
def test_each_sample_of_a_slow_cold_cell_comes_after_the_canaries(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    rests: bool,
) -> None:
    """They copy more than the cache holds."""
    gpu, _ = gpu_of(device, cell(), SLOW)
    if rests:
        monkeypatch.setattr(gpu, "rest_s", lambda *_: SHORT_REST_S)
    ran, again = in_a_row(device, gpu, cell())
    assert ran > min(BUDGET.samples, round(SLOW_CELL_S / SLOW)) > 1
    assert again == 0


def test_a_slow_hot_cell_stays_in_the_cache(device: Device) -> None:  # noqa: F811
    gpu, _ = gpu_of(device, cell("hot"), SLOW)
    _, again = in_a_row(device, gpu, cell("hot"))
    assert again == min(BUDGET.samples, round(SLOW_CELL_S / SLOW)) - 1


def test_the_pages_tell_what_the_record_of_the_finding_shows() -> None:
    docs = PROJECT.repository / "docs"
    (path,) = (each for each in sidecars(PROJECT.results, "h200") if each.name.startswith("b8ee5444"))
    first, *others = read(path).cells["matmul/initial float32 2048x2048x2048 cold"].seconds
    text = (docs / "research" / "measuring.md").read_text(encoding="utf-8")
    section = " ".join(text.split("## Slow cells that fit in the cache")[1].split("\n## ")[0].split())
    back_to_back = statistics.mean(others)
    assert f"it took {1e3 * back_to_back:.2f} ms in two processes" in section
    assert f"it took {1e3 * first:.2f} ms, which is {100 * (first / back_to_back - 1):.0f} % more" in section
    assert f"after a copy of {CANARY_BYTES >> 20} MiB" in (docs / "measuring.md").read_text(encoding="utf-8")
