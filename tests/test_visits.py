"""The laboratory's script that comes back to cells within one process (scripts/lab/visits)."""

import dataclasses
import json
import random
import statistics
from pathlib import Path
from typing import Any, cast

import pytest

from kernelwatch.history.records import Record, read
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Package
from kernelwatch.timing.gpu import SLOW_S
from kernelwatch.timing.record import quartiles
from lab import figures, visits
from lab.quiet import variation
from lab.sampling import factor
from tests.fake_gpu import CLOCK_MHZ, Device
from tests.test_quiet import sidecar
from tests.test_replay import MOVING, Moving, device  # noqa: F401 (a fixture)

CELLS = [Cell("move", "copy", "float32", (size,), "cold", "gpu") for size in (4096, 8192, 16384)]
VISITS = 6
BUDGET = Budget(samples=5, sample_s=2e-3)


def visiting(device: Device) -> visits.Visiting:  # noqa: F811
    return visits.Visiting(MOVING, cast(Package, Moving(device, 1e-5)), CELLS, BUDGET, 3)


def test_a_visit_fills_the_buffers_and_takes_the_samples_of_a_measurement(device: Device) -> None:  # noqa: F811
    device.later_s = 1e-6  # if the graphs of other cells were still in the way
    figures = visiting(device).visited(CELLS, VISITS)
    assert list(figures) == [cell.key for cell in CELLS]
    for one in figures.values():
        assert one["samples"] == BUDGET.samples
        assert one["seconds"] == pytest.approx([1e-5] * VISITS)
        assert len(one["quartiles_s"]) == VISITS
        assert one["clock64_mhz"] == pytest.approx([CLOCK_MHZ] * VISITS, rel=0.01)
        assert one["back_to_back_s"] == pytest.approx([1e-5] * visits.BACK_TO_BACK)
        assert not one["retakes"]


def test_a_visit_has_as_many_launches_as_a_measurement_of_a_cell_whose_time_is_known(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, launches = visiting(device), list[int]()
    take = gpu.take_quietly

    def taken(*given: Any, **named: Any) -> Any:
        one = take(*given, **named)
        launches.append(one["launches"])
        return one

    monkeypatch.setattr(gpu, "take_quietly", taken)
    for cell in CELLS:
        known = gpu.visited([cell], 1)[cell.key]["seconds"][0]
        gpu.budget = dataclasses.replace(BUDGET, seconds={cell.key: known})
        assert launches[-1] == gpu.measure(cell)["launches"]


def test_the_cells_are_visited_in_turns_each_in_an_order_of_its_own(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, done = visiting(device), list[tuple[str, str]]()
    fill, take, prepare = gpu._fill, gpu.take_quietly, gpu._prepared
    by_graph: dict[int, str] = {}

    def prepared(cell: Cell, *given: Any) -> visits.Prepared:
        before = len(device.launches)
        one = prepare(cell, *given)
        assert any(each.name == "move" for each in device.launches[before:]), "it ran outside of a capture first"
        by_graph[id(one.graph)] = cell.key
        done.clear()
        return one

    def filled(cell: Cell) -> None:
        done.append(("fill", cell.key))
        fill(cell)

    def taken(graph: Any, *given: Any, **named: Any) -> Any:
        if key := by_graph.get(id(graph)):
            done.append(("take", key))
        return {**take(graph, *given, **named), "retakes": 1}

    monkeypatch.setattr(gpu, "_prepared", prepared)
    monkeypatch.setattr(gpu, "_fill", filled)
    monkeypatch.setattr(gpu, "take_quietly", taken)
    found = gpu.visited(CELLS, VISITS)
    assert [one["retakes"] for one in found.values()] == [VISITS] * len(CELLS)
    own, last = done[: -len(CELLS)], done[-len(CELLS) :]
    visited = [key for what, key in own if what == "take"]
    assert own == [(what, key) for key in visited for what in ("fill", "take")]
    assert last == [("fill", cell.key) for cell in CELLS], "before the samples back to back"
    turns = [visited[at : at + len(CELLS)] for at in range(0, len(visited), len(CELLS))]
    assert [sorted(turn) for turn in turns] == [sorted(cell.key for cell in CELLS)] * VISITS
    assert any(turn != turns[0] for turn in turns)


@pytest.mark.parametrize(
    "change",
    [{"seconds": 2 * SLOW_S}, {"clock64_mhz": 0.9 * CLOCK_MHZ}, {"throttled": ["power cap"]}],
    ids=["slow", "lower clock", "limited"],
)
def test_slow_cells_and_those_that_a_process_rests_before_are_left_out(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    gpu = visiting(device)
    measure = gpu.measure
    monkeypatch.setattr(gpu, "measure", lambda cell: {**measure(cell), **(change if cell is CELLS[1] else {})})
    assert list(gpu.visited(CELLS, 1)) == [CELLS[0].key, CELLS[2].key]


class Stub:
    """In the place of a device; it leaves the first cell out."""

    gpu, nvml_facts = "NVIDIA H200", {"driver": "580"}

    def __init__(self, *_: Any) -> None:
        pass

    def visited(self, cells: list[Cell], visits: int) -> dict[str, dict[str, Any]]:
        return {cell.key: {"visits": visits} for cell in cells[1:]}


def test_a_record_has_the_spread_between_the_processes_of_the_newest_full_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out, key, other = (f"transpose/copy float32 {shape} cold" for shape in ("256x256", "1024x1024", "4096x4096"))
    paths = [
        sidecar(tmp_path / "12345678-x.facts.jsonl", "one", {key: [1e-5, 2e-5, 3e-5], other: [1e-5] * 3}),
        sidecar(tmp_path / "22345678-x.facts.jsonl", "one", {key: [1e-5, 1.01e-5, 1.02e-5]}),
    ]
    asked: list[str] = []

    def recorded(machine: str) -> list[Record]:
        asked.append(machine)
        return list(map(read, paths))

    monkeypatch.setattr(visits, "Visiting", Stub)
    monkeypatch.setattr(visits, "import_package", lambda *_: None)
    monkeypatch.setattr(visits, "recorded", recorded)
    record = visits.work(7)
    assert asked == ["nvidia-h200."]
    assert (record["full_run"], record["left_out"]) == ("22345678", [left_out])
    assert record["cells"][key] == {"between_processes": pytest.approx(0.0099, rel=1e-3), "visits": 7}
    assert record["cells"][other] == {"between_processes": None, "visits": 7}
    monkeypatch.setattr(visits, "recorded", lambda _: [])
    assert visits.work(7)["full_run"] is None


def made_up(middle: float, apart: float, **changes: Any) -> dict[str, Any]:
    """A cell with three visits whose times, and the quartiles of whose samples, are relatively so far apart."""
    seconds = [middle * (1 - apart), middle, middle * (1 + apart)]
    return {
        "between_processes": 2 * apart,
        "samples": 5,
        "seconds": seconds,
        "quartiles_s": [[each * (1 - apart), each * (1 + apart)] for each in seconds],
        "clock64_mhz": [1980.0, 1979.0, 1978.0],
        "retakes": 1,
        "back_to_back_s": [middle, 2 * middle] * 50,
    } | changes


TRANSPOSE, MATMUL = "transpose/{} float32 8 cold", "matmul/{} float32 8 cold"
RECORD = {
    "gpu": "NVIDIA H200",
    "driver": "580",
    "visits": 3,
    "left_out": [MATMUL.format("b")],
    "full_run": "12345678",
    "cells": {
        TRANSPOSE.format("a"): made_up(1e-5, 0.001),
        TRANSPOSE.format("b"): made_up(2e-5, 0.003, between_processes=None),
        TRANSPOSE.format("c"): made_up(
            4e-5, 0.01, clock64_mhz=[1978.0, None, 1980.0], back_to_back_s=[4e-5] * visits.BACK_TO_BACK
        ),
        MATMUL.format("a"): made_up(5e-5, 0.02, clock64_mhz=[1980.0] * 3, retakes=3),
    },
}


def test_the_table_has_a_row_for_each_kind_of_cell() -> None:
    told, _, *rows = visits.text(RECORD).splitlines()
    assert "580; 3 visits of each cell, 6 retakes; 1 cells left out. The processes are those of 12345678." in told
    short, long, product, every = ([each.strip() for each in row.strip("|").split("|")] for row in rows[2:])
    error = [f"{100 * factor(5) * apart:.3f} %" for apart in (0.004, 0.02, 0.04, 0.013)]
    turning = ["-1.00", "-1.00", "+1.00"]  # the correlations at the lags
    assert short == ["transpose, below 30 us", "2", "0.200 %", "0.300 %", error[0], "0.200 %", *turning, "-1.00"]
    assert long == ["transpose, above 30 us", "1", "1.000 %", "1.000 %", error[1], "2.000 %", *["n/a"] * 3, "+1.00"]
    assert product == ["matmul, above 30 us", "1", "2.000 %", "2.000 %", error[2], "4.000 %", *turning, "n/a"]
    assert every == ["all", "4", "0.650 %", "2.000 %", error[3], "2.000 %", *turning, "-1.00"]


def test_visits_that_differ_by_sampling_alone_spread_by_the_sampling_error() -> None:
    draw = random.Random(1)
    taken = [[draw.gauss(1e-5, 1e-7) for _ in range(5)] for _ in range(4000)]
    seconds = [statistics.median(each) for each in taken]
    one = {"samples": 5, "seconds": seconds, "quartiles_s": [quartiles(each) for each in taken]}
    assert visits.sampling_error(one) == pytest.approx(variation(seconds), rel=0.04)


def test_a_record_elsewhere_leaves_the_page_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(visits, "work", lambda count: RECORD | {"visits": count})
    monkeypatch.setattr(visits, "write_block", lambda path, *_: written.append(path))
    path = tmp_path / "visits.json"
    assert visits.main(["--out", str(path), "--visits", "9"]) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == RECORD | {"visits": 9}
    assert not written
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith('   "quartiles_s": [') and line.endswith("],") for line in lines) == 4, (
        "a list is a line"
    )
    monkeypatch.setattr(visits, "RECORD", path)
    monkeypatch.setattr(visits, "work", None)
    assert visits.main(["--table", "--out", str(path)]) == 0
    assert written == [visits.PAGE]


def test_the_page_has_the_table_of_the_record() -> None:
    begin, end = figures.marks("visits", "scripts/lab/visits")
    _, _, after = visits.PAGE.read_text(encoding="utf-8").partition(begin)
    block, found, _ = after.partition(end)
    assert found
    table = visits.text(json.loads(visits.RECORD.read_text(encoding="utf-8")))
    assert block.strip() == table
    rows = {row[0]: row[1:] for row in (line.strip("| ").split(" | ") for line in table.splitlines()[4:])}
    between, sampling, processes = (float(rows["all"][at].rstrip(" %")) for at in (1, 3, 4))
    assert between >= processes > sampling, "visits of one process differ by no less than processes do"
    follows = {name: float(row[-1]) for name, row in rows.items()}
    assert follows["matmul, above 30 us"] < -0.7
    assert min(value for name, value in follows.items() if name.startswith("vector_add")) > -0.3
