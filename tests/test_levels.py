"""The laboratory's script that shows what an L2 cache settles into (scripts/lab/levels)."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.package import Package
from lab import levels
from tests.fake_gpu import Device
from tests.test_replay import BUDGET, MOVING, Moving, device  # noqa: F401 (a fixture)

CELL = Cell("move", "copy", "float32", (4096,), "cold", "gpu")


def settling(device: Device) -> levels.Settling:  # noqa: F811
    return levels.Settling(MOVING, cast(Package, Moving(device, 1e-5)), [CELL], BUDGET, 3)


def test_the_cells_are_there() -> None:
    planned = {cell.key for problem in PROJECT.problems for cell in plan(problem, "gpu")}
    assert planned.issuperset(levels.CELLS)


def test_each_way_does_what_it_says_before_each_take(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, done = settling(device), list[str]()
    named = {"_fill": "buffers filled anew", "graph": "a graph captured anew", "canary_seconds": "other kernels"}

    def noted(name: str) -> Callable[..., Any]:
        own = getattr(gpu, name)

        def noting(*given: Any) -> Any:
            done.append(named[name])
            return own(*given)

        return noting

    for name in named:
        monkeypatch.setattr(gpu, name, noted(name))
    monkeypatch.setattr("time.sleep", lambda seconds: done.append(f"a rest of {seconds} s"))
    replay, graphs = gpu.replay, list[Any]()

    def replayed(graph: Any, *given: Any, **more: Any) -> Any:
        if graph not in gpu.canaries.values():
            graphs.append(graph)
            done.append("take")
        return replay(graph, *given, **more)

    monkeypatch.setattr(gpu, "replay", replayed)
    found = gpu.taken(CELL)
    own = [["take"], *([way, "take"] for way in levels.WAYS[1:])]
    expected = [what for each in own for what in each * levels.TAKES]
    assert done[-len(expected) :] == expected
    at = levels.WAYS.index(levels.CAPTURED) * levels.TAKES
    taken = [id(graph) for graph in graphs[-len(levels.WAYS) * levels.TAKES :]]
    anew = taken[at : at + levels.TAKES]
    assert len({*anew}) == levels.TAKES, "each has a graph of its own"
    assert len({*taken}.difference(anew)) == 1
    assert list(found) == list(levels.WAYS)
    for takes in found.values():
        assert len(takes) == levels.TAKES
        assert {len(one) for one in takes} == {levels.SAMPLES}
        assert takes[-1] == pytest.approx([1e-5] * levels.SAMPLES)


def test_the_table_tells_levels_from_samples(tmp_path: Path) -> None:
    """Every second take is 3 % slower after a filling; the samples of each differ by 0.1 %."""
    steady = [[1e-5, 1.001e-5]] * levels.TAKES
    filled = [[1e-5 * (1.03 if at % 2 else 1.0), 1.001e-5 * (1.03 if at % 2 else 1.0)] for at in range(levels.TAKES)]
    ways = {**dict.fromkeys(levels.WAYS, steady), "buffers filled anew": filled}
    record = tmp_path / "levels.json"
    record.write_text(json.dumps({"gpu": "A GPU", "driver": "1", "cells": {"move/copy": ways}}))
    assert levels.main(["--table", "--out", str(record)]) == 0
    row = levels.text(json.loads(record.read_text())).splitlines()[-1]
    assert row == "| `move/copy` | 0.07 % | 0.00 % | 0.00 % | 0.00 % | 0.00 % | 1.53 % |"


def test_the_page_has_the_table_of_the_record_and_says_what_it_shows() -> None:
    record = json.loads(levels.RECORD.read_text(encoding="utf-8"))
    assert levels.text(record) in levels.PAGE.read_text(encoding="utf-8")
    cells = record["cells"]
    inside = [levels.inside([take for takes in ways.values() for take in takes]) for ways in cells.values()]
    assert [round(100 * edge(inside), 2) for edge in (min, max)] == [0.05, 0.08]
    apart = {way: [levels.between(ways[way]) for ways in cells.values()] for way in levels.WAYS}
    *still, others, filled = levels.WAYS
    assert round(100 * max(value for way in still for value in apart[way]), 2) == 0.09
    four = [at for at, value in enumerate(apart[others]) if value > 0.005]
    names = [levels.CELLS[at].split()[0].split("/")[1] for at in four]
    assert names == ["thread_tile_2d", "split_tail", "cublas", "naive_read"]
    assert [round(100 * edge(apart[others][at] for at in four), 1) for edge in (min, max)] == [0.6, 0.9]
    assert [round(1000 * apart[filled][at]) for at in four] == [9, 7, 2, 1]
    rest = [apart[way][at] for way in (others, filled) for at in range(len(cells)) if at not in four]
    assert round(100 * max(rest), 2) == 0.13
    takes = sorted(map(statistics.fmean, cells[levels.CELLS[0]][filled]))
    assert (len(takes), takes[11] < 1.005 * takes[0]) == (16, True)
    assert [round(100 * (take / statistics.median(takes[:12]) - 1)) for take in takes[12:]] == [1, 2, 2, 3]
