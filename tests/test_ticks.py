"""The laboratory's script that follows the highest SM clock from take to take (scripts/lab/ticks)."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Package
from lab import figures, ticks
from lab.quiet import variation
from tests.fake_gpu import CLOCK_MHZ, Device
from tests.test_replay import MOVING, Moving, device  # noqa: F401 (a fixture)

CELL = Cell("move", "copy", "float32", (4096,), "cold", "gpu")


def test_takes_follow_one_another_and_copies_run_before_those_of_one_way(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = cast(Package, Moving(device, 1e-5))
    gpu = ticks.Ticking(MOVING, package, [CELL], Budget(samples=5, sample_s=2e-3), 3)
    done: list[str] = []
    take, copies, prepare = gpu.take, gpu.lead_in[0].launch, gpu._prepared

    def prepared(cell: Cell, *given: Any) -> Any:
        one = prepare(cell, *given)
        done.clear()
        return one

    def taken(*given: Any) -> Any:
        done.append("take" if device.host_s >= device.device_s else "take before the copies have ended")
        return take(*given)

    def launched(stream: Any) -> None:
        done.append("copies")
        copies(stream)

    monkeypatch.setattr(gpu, "take", taken)
    monkeypatch.setattr(gpu, "_prepared", prepared)
    monkeypatch.setattr(gpu.lead_in[0], "launch", launched)
    monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=device.now))
    found = gpu.taken(CELL)
    each = ["copies"] * 16 + ["take"]
    assert done == ["take"] * ticks.TAKES + each * ticks.TAKES + ["take"] * ticks.TAKES
    assert list(found) == ["alone", "after copies", "alone again"]
    times = [ms for takes in found.values() for ms, _, _ in takes]
    assert times[0] < 0.01
    assert all(after - before > 5 * 2 for before, after in itertools.pairwise(times)), "samples of 2 ms"
    for takes in found.values():
        assert [seconds for _, seconds, _ in takes] == pytest.approx([1e-5] * ticks.TAKES)
        assert [mhz for _, _, mhz in takes] == pytest.approx([CLOCK_MHZ] * ticks.TAKES, rel=0.01)


def test_the_record_has_the_takes_of_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stub:
        gpu, nvml_facts = "NVIDIA H200", {"driver": "580"}

        def __init__(self, project: Any, package: Any, cells: list[Cell], *_: Any) -> None:
            assert [cell.key for cell in cells] == list(ticks.CHOSEN)

        def taken(self, cell: Cell) -> str:
            return cell.key

    monkeypatch.setattr(ticks, "Ticking", Stub)
    monkeypatch.setattr(ticks, "import_package", lambda *_: None)
    assert ticks.work() == {"gpu": "NVIDIA H200", "driver": "580", "cells": {key: key for key in ticks.CHOSEN}}


def way(clocks: Sequence[float | None], seconds: Sequence[float]) -> list[list[float | None]]:
    """Takes 10 ms apart, after those that no table uses."""
    return [
        [10.0 * at, *one]
        for at, one in enumerate([(9.0, 1.0)] * ticks.UNUSED + list(zip(seconds, clocks, strict=True)))
    ]


def test_each_level_of_the_clock_is_found_and_how_long_it_lasts() -> None:
    clocks: list[float | None] = [1972.0, 1972.4, 1979.0, 1979.2, None, 1979.1, 1975.0, 1977.0, 1977.1, 1972.0, 1972.1]
    seconds = [1.0 if mhz and mhz < 1973 else 0.5 for mhz in clocks]
    cells = {"a cold": {"alone": way(clocks, seconds)}}
    row = [each.strip() for each in ticks.ticks(cells).splitlines()[2].strip("|").split("|")]
    kept = [each for each, mhz in zip(seconds, clocks, strict=True) if mhz]
    assert row[:6] == ["a", f"{100 * variation(kept):.3f} %", "3", "1972 MHz", "1976 MHz", "1979 MHz"]
    # The clock changed level at the 3rd, 8th and 10th take, 10 ms apart; during the 7th it moved.
    assert row[6] == "35 ms"
    assert float(row[7]) < -0.5
    assert row[8] == "0.000 %"


def test_a_clock_that_never_changes_has_one_level_and_no_correlation() -> None:
    seconds = [1.0, 1.01, 1.02, 1.03]
    row = ticks.row_of_clock(ticks.used(way([1979.0, 1979.3, 1979.1, 1979.2], seconds)))
    assert row[1:5] == ["1", "1979 MHz", "1979 MHz", "1979 MHz"]
    assert row[5:7] == ["n/a", "n/a"]
    assert row[0] == row[7] == f"{100 * variation(seconds):.3f} %"


def test_a_clock_that_moves_in_each_take_has_no_level() -> None:
    row = ticks.row_of_clock(ticks.used(way([1970.0, 1974.0, 1978.0, 1974.0], [4.0, 3.0, 2.0, 3.0])))
    assert row[1:] == ["0", "n/a", "1974 MHz", "n/a", "n/a", "-1.00", "n/a"]


def test_the_spread_within_levels_is_pooled_over_them() -> None:
    clocks = [1972.0] * 3 + [1979.0] * 2
    row = ticks.row_of_clock(ticks.used(way(clocks, [0.98, 1.0, 1.02, 0.5, 0.5])))
    assert row[7] == f"{100 * 0.02 * (2 / 3) ** 0.5:.3f} %"  # two degrees of freedom with 2 %, one with none


def test_a_level_that_comes_back_at_once_did_not_end() -> None:
    clocks = [1972.0] * 2 + [1979.0] * 2 + [1975.0] + [1979.0] * 2 + [1972.0] * 2
    assert ticks.row_of_clock(ticks.used(way(clocks, [1.0] * 8 + [1.1])))[5] == "50 ms"


SLOW, FAST = 548e-6, 535e-6


def made_up(alone: list[float], copies: list[float], again: list[float]) -> dict[str, Any]:
    ways = zip(ticks.WAYS, (alone, copies, again), strict=True)
    return {name: way([1979.0] * len(seconds), seconds) for name, seconds in ways}


RECORD = {
    "gpu": "NVIDIA H200",
    "driver": "580",
    "cells": {
        "a float32 8 cold": made_up([SLOW] * 5, [SLOW, *[FAST] * 4], [FAST] * 5),
        "b float32 8 cold": made_up([FAST, 1.004 * FAST] * 2, [FAST] * 4, [FAST] * 4),
    },
}


def test_copies_that_settle_a_cell_are_seen() -> None:
    told, _, _, _, *rows = ticks.text(RECORD, "settled").splitlines()
    assert told == "NVIDIA H200, driver 580."
    first, second = ([each.strip() for each in row.strip("|").split("|")] for row in rows)
    assert first[1:] == ["548.00 us", "535.00 us", "535.00 us", "-2.37 %", "5 of 5", "1 of 5", "0 of 5"]
    assert second[4:] == ["-0.20 %", "0 of 4", "0 of 4", "0 of 4"]


def test_a_record_elsewhere_leaves_the_page_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Path, str]] = []
    monkeypatch.setattr(ticks, "work", lambda: RECORD)
    monkeypatch.setattr(ticks, "write_block", lambda path, name, *_: written.append((path, name)))
    path = tmp_path / "ticks.json"
    assert ticks.main(["--out", str(path)]) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == RECORD
    assert not written
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith('   "alone": [') and line.endswith("],") for line in lines) == 2, "a way is a line"
    monkeypatch.setattr(ticks, "RECORD", path)
    monkeypatch.setattr(ticks, "work", None)
    assert ticks.main(["--table", "--out", str(path)]) == 0
    assert written == [(ticks.PAGE, "ticks"), (ticks.PAGE, "settled")]


@pytest.mark.parametrize("name", ticks.BLOCKS)
def test_the_page_has_the_tables_of_the_record(name: str) -> None:
    begin, end = figures.marks(name, "scripts/lab/ticks")
    _, _, after = ticks.PAGE.read_text(encoding="utf-8").partition(begin)
    block, found, _ = after.partition(end)
    assert found
    assert block.strip() == ticks.text(json.loads(ticks.RECORD.read_text(encoding="utf-8")), name)


def test_the_page_says_what_the_record_shows() -> None:
    record = json.loads(ticks.RECORD.read_text(encoding="utf-8"))
    page = " ".join(ticks.PAGE.read_text(encoding="utf-8").split())
    rows = [line.strip("| ").split(" | ") for line in ticks.text(record, "ticks").splitlines()[4:]]
    moving = [row for row in rows if row[0].startswith("matmul/") and int(row[2]) > 1]
    near = sum(float(row[-1].rstrip(" %")) < 0.04 for row in moving)
    assert (near, len(moving)) == (4, 5)
    assert "Four of the five products whose clock moved follow it, and agree within 0.04 % within a level" in page
    assert {int(row[2]) for row in rows} == {1, 2, 3}
    assert "in seven of the eight cells the clock has two or three levels" in page
    assert sum(int(row[2]) > 1 for row in rows) == 7
    lasting = [int(row[6].removesuffix(" ms")) for row in rows if row[6] != "n/a"]
    assert f"for {min(lasting)} to {max(lasting)} ms" in page
    (tile,) = (line for line in ticks.text(record, "settled").splitlines() if "thread_tile_2d" in line)
    alone, copies, again = (int(count.split(" of ")[0]) for count in tile.strip("| ").split(" | ")[-3:])
    total = int(tile.rsplit(" of ", 1)[1].strip("| "))
    assert alone == total
    assert max(copies, again) < total / 2
    assert "took its upper level in each take, and its lower one in most takes once copies had run" in page


def test_the_cells_are_cells_of_the_plan() -> None:
    assert set(ticks.CHOSEN) <= {cell.key for problem in PROJECT.problems for cell in plan(problem, "gpu")}
