"""The command that compares rests at the power limit: what each way does on a fake GPU, and its table."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelwatch.plan.package import Package
from kernelwatch.system.errors import CANNOT
from kernelwatch.timing import replay
from lab import rests
from tests.test_replay import BUDGET, MOVING, Moving, cell, device

__all__ = ["device"]  # a fixture

KERNEL_S = 5e-6


@pytest.mark.parametrize("name", rests.WAYS)
def test_each_way_rests_as_it_says(name: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    way, pauses = rests.WAYS[name], list[float]()
    resting = rests.Resting(MOVING, cast(Package, Moving(device, KERNEL_S)), [cell()], BUDGET, 1)
    monkeypatch.setattr(rests, "time", SimpleNamespace(sleep=pauses.append))
    began = device.device_s
    found = resting.take_in({name: way}, cell())[name]
    assert len(found["seconds"]) == way.samples
    assert found["seconds"] == pytest.approx([KERNEL_S] * way.samples)
    assert pauses == ([way.rest_s] * (way.samples if way.sliced else 1) if way.rest_s else [])
    lead_ins = way.samples if way.sliced else 1
    expected_s = way.own_s + way.sample_s * (way.samples + lead_ins)
    assert device.device_s - began == pytest.approx(expected_s, rel=0.15)
    assert [mhz > 0 for mhz in found["mhz"]] == [True] * lead_ins


def line(seed: int, **figures: list[float]) -> dict[str, Any]:
    """A line of a record, of one product; ways without figures of their own have those of a constant."""
    ways = {name: {"seconds": figures.get(name, [2.0] * 8)} for name in rests.WAYS}
    who = {"gpu": "a GPU", "driver": "1", "cupy": "2", "date": "2026-01-01", "seed": seed}
    return {**who, "cells": {"product": ways, **({"more": ways} if seed == 1 else {})}}


def test_the_table_has_the_spread_of_medians_between_processes() -> None:
    """Of the first slices too, and of the products that all processes took."""
    lines = [
        line(1, none=[3.96, 1.0, 9.0], slices=[9.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
        line(2, none=[4.04, 1.0, 9.0], slices=[2.0] * 8),
    ]
    first, *_ = written = rests.text(lines).splitlines()
    rows = {cells[1].strip(): [one.strip() for one in cells[2:-1]] for cells in (row.split("|") for row in written[2:])}
    assert first == "a GPU, driver 1, CuPy 2, 2026-01-01; 2 processes, 1 products."
    assert rows["no rest"] == ["1.41 %", "1.41 %", "2.000", "2.000", "2.000"]
    assert rows["rest of 100 ms"] == ["0.00 %", "0.00 %", "1.000", "1.000", "1.000"]
    sliced = "rest of 20 ms before each sample, the first"
    assert rows[f"{sliced} 3"][0] == "90.00 %"
    assert rows[f"{sliced} 5"][0] == rows[f"{sliced} 8"][0] == "0.00 %"


def test_the_table_is_the_one_of_the_record() -> None:
    lines = rests.read(rests.RECORD)
    assert rests.text(lines) in rests.PAGE.read_text(encoding="utf-8")
    assert {key for one in lines for key in one["cells"]} == {one.key for one in rests.cells()}
    assert len(rests.cells()) == len(rests.PRODUCTS)


def test_a_process_that_fails_or_hangs_costs_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def process(command: list[str], timeout: float, **_: Any) -> Any:
        seed = command[-1]
        if seed == "2":
            raise subprocess.TimeoutExpired(command, timeout)
        if seed == "3":
            raise subprocess.CalledProcessError(1, command)
        return SimpleNamespace(stdout="" if seed == "4" else f'printed by others\n{{"seed": {seed}}}\n')

    monkeypatch.setattr(subprocess, "run", process)
    assert list(rests.run(5, 100.0)) == [{"seed": 1}, {"seed": 5}]
    assert list(rests.run(5, 0.0)) == []
    said = capsys.readouterr().err
    assert [f"process {seed}:" in said for seed in range(1, 6)] == [False, True, True, True, False]
    assert "process 1 is not begun: 0 s are over" in said


def test_without_a_gpu_nothing_is_recorded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rests, "run", lambda *_: iter(()))
    record = tmp_path / "rests.jsonl"
    assert rests.main(["--out", str(record)]) == CANNOT
    assert not record.exists()


def test_todays_rest_is_among_the_ways() -> None:
    assert rests.WAYS[rests.LEVEL].rest_s == replay.REST_S
    assert rests.WAYS["slices"].rest_s * replay.SLICED_LEAST == pytest.approx(replay.REST_S)


@pytest.mark.gpu
def test_a_process_takes_every_product_in_every_way() -> None:
    """Within about 30 s."""
    command = [sys.executable, str(rests.PROGRAM), "--seconds", "60", "--work", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    found = json.loads(done.stdout.splitlines()[-1])["cells"]
    assert all(set(ways) == set(rests.WAYS) for ways in found.values())
    assert found
