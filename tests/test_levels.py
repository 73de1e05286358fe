"""The laboratory's script that shows what an L2 cache settles into (scripts/lab/levels)."""

import json
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
    take = gpu._take

    def taken(made: object, graph: Any, *given: Any) -> list[float]:
        done.append("another graph" if hasattr(made, "launch") and made is not graph else "take")
        return take(made, graph, *given)

    monkeypatch.setattr(gpu, "_take", taken)
    found = gpu.taken(CELL)
    first = next(at for at, what in enumerate(done) if what == "take")
    own = [[way, "another graph" if "graph" in way else "take"] for way in levels.WAYS[1:]]
    assert done[first:] == ["take"] * levels.TAKES + [what for each in own for what in each * levels.TAKES]
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
