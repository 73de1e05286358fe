"""The laboratory's script that tells an L2 cache from a place in memory (scripts/lab/draws)."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.package import Package
from kernelwatch.timing.record import FAR
from lab import draws
from tests.fake_gpu import CLOCK_MHZ, Device
from tests.test_replay import BUDGET, MOVING, Moving, device  # noqa: F401 (a fixture)

CELLS = [Cell("move", "copy", "float32", (size,), "cold", "gpu") for size in (4096, 8192)]


def drawing(device: Device) -> draws.Drawing:  # noqa: F811
    return draws.Drawing(MOVING, cast(Package, Moving(device, 1e-5)), CELLS, BUDGET, 3)


def test_the_cells_are_there() -> None:
    planned = {cell.key for cell in plan(PROJECT.op("matmul"), "gpu")}
    assert planned.issuperset(draws.CELLS)


def test_each_way_visits_each_cell_as_often_and_fills_as_it_says(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draws, "ROOM_BYTES", 1 << 20)
    monkeypatch.setattr(draws, "STEP_BYTES", 1 << 12)
    gpu, fills, places = drawing(device), Counter[bool](), set[int]()
    visit, fill = gpu._visit, gpu._fill
    now: list[bool] = []

    def visited(one: draws.Ready, graph: Any, anew: bool) -> list[float]:
        now[:] = [anew]
        places.add(int(gpu.arena.data.ptr))
        samples = visit(one, graph, anew)
        now.clear()
        return samples

    def filled(cell: Cell) -> None:
        for anew in now:
            fills[anew] += 1
        fill(cell)

    monkeypatch.setattr(gpu, "_visit", visited)
    monkeypatch.setattr(gpu, "_fill", filled)
    found = gpu.drawn(CELLS)
    assert list(found) == [cell.key for cell in CELLS]
    visits = draws.VISITS * len(CELLS)
    for cell, own in zip(CELLS, found.values(), strict=True):
        assert own["sets"] == gpu._slots(cell) <= draws.MOVED_MOST
        for way in (draws.ONCE, draws.ANEW, draws.ELSEWHERE):
            assert len(own[way]) == draws.VISITS
            assert own[way][0] == pytest.approx([1e-5] * draws.SAMPLES)
    assert fills == {False: visits, True: 2 * visits * (1 + draws.SAMPLES)}
    assert len(places) > draws.VISITS, "most visits elsewhere have a place of their own"


def test_a_visit_rests_as_a_measurement_does(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    gpu, rests = drawing(device), list[float]()
    gpu.best_clock_mhz = CLOCK_MHZ
    rested = gpu._rested
    monkeypatch.setattr(gpu, "_rested", lambda rest_s, *how: (rests.append(rest_s), rested(0.0, *how))[1])  # type: ignore[func-returns-value]
    one = gpu._ready_for(CELLS[0], 1e-5, 0.8 * CLOCK_MHZ)
    gpu._visit(one, one.graph, anew=True)
    assert rests == [gpu.rest_s(0.8 * CLOCK_MHZ)] != [0.0]


def test_the_table_tells_the_ways_apart(tmp_path: Path) -> None:
    """The level changes from visit to visit, from sample to sample, and from place to place; one cell is not moved."""
    low, high = [1.0] * 5, [1.02] * 5
    mixed = [[1.0, 1.02, 1.0, 1.02, 1.02], [1.02, 1.0, 1.02, 1.0, 1.0]]
    cell = {"sets": 4, draws.ONCE: [low, high], draws.ANEW: mixed, draws.ELSEWHERE: [low, low]}
    record = tmp_path / "draws.json"
    cells = {"move/copy": cell, "move/other": {**cell, draws.ELSEWHERE: []}}
    record.write_text(json.dumps({"gpu": "A GPU", "driver": "1", "cells": cells}))
    assert draws.main(["--table", "--out", str(record)]) == 0
    rows = draws.text(json.loads(record.read_text())).splitlines()[-4:]
    assert rows == [
        "| `move/copy` | 4 | 1.40 % | 1.40 % | 0.28 % | 0.00 % |",
        "| `move/other` | 4 | 1.40 % | 1.40 % | 0.28 % |  |",
        "| median of 1 with all |  | 1.40 % | 1.40 % | 0.28 % | 0.00 % |",
        "| mean of 1 with all |  | 1.40 % | 1.40 % | 0.28 % | 0.00 % |",
    ]


def test_the_page_says_what_the_record_shows() -> None:
    """Three fifths of the spread with a filling before each sample; nearly as much as before at places of their own."""
    record = json.loads(draws.RECORD.read_text(encoding="utf-8"))
    page = draws.PAGE.read_text(encoding="utf-8")
    assert draws.text(record) in page
    cells = record["cells"]
    whole = [
        own for cell in cells.values() if None not in (own := [draws.spread(cell, title) for title in draws.LEVEL])
    ]
    once, median, mean, elsewhere = (sum(own) for own in zip(*whole, strict=True))
    assert (len(cells), len(whole)) == (20, 16)
    assert round(5 * mean / once) == 3
    assert mean < median < once
    assert 0.75 < elsewhere / once < 1
    moved = cells["matmul/torch_fp8 float8_e4m3fn->bfloat16 4096x4096x64 cold"]
    spreads = [draws.spread(moved, title) for title in (f"{draws.ANEW}, mean", draws.ELSEWHERE)]
    assert [f"{100 * one:.1f}" for one in spreads if one] == ["0.2", "1.5"]
    far = [
        max(abs(value / statistics.median_low(samples) - 1) for value in samples)
        for cell in cells.values()
        for way in (draws.ONCE, draws.ANEW, draws.ELSEWHERE)
        for samples in cell[way]
    ]
    assert round(1 / max(far)) == 8, "the farthest lies an eighth from the median"
    assert max(far) < FAR
