"""The tables of how quiet full runs are (scripts/lab/quiet)."""

import dataclasses
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.history.records import Record, read, sidecars
from kernelwatch.identity import comparisons, debt
from kernelwatch.timing.gpu import SLOW_S, TAKES_LEAST
from kernelwatch.timing.record import quartiles
from kernelwatch.timing.replay import LOW_CLOCK
from lab import quiet, sampling
from lab.full_runs import BARS

GPU = {"gpu": "NVIDIA H200", "nvml_uuid_sha256": "one", "nvml_driver": "580"}


def sidecar(path: Path, uuid: str, cells: dict[str, list[float]], clocks: tuple[float, ...] = (1980.0,) * 3) -> Path:
    """A sidecar of one group. `clocks`: of the processes of all cells; other ones than the first are limits."""
    lines: list[dict[str, object]] = [
        {"group": "copy gpu", "record": "run", "facts": {**GPU, "nvml_uuid_sha256": uuid}}
    ]
    for key, seconds in cells.items():
        visits = [
            {"process": at, "seconds": each, "clock64_mhz": mhz, "throttled": ["low clock"] if mhz < clocks[0] else []}
            for at, (each, mhz) in enumerate(zip(seconds, clocks, strict=False))
        ]
        lines.append({"group": "copy gpu", "record": "cell", "key": key, "state": "ok", "reason": "", "visits": visits})
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_records_tell_their_gpu_and_leave_out_marked_cells(tmp_path: Path) -> None:
    steady, apart = [1e-5, 1.0001e-5, 1.0002e-5], [1e-5, 1.1e-5, 1.2e-5]
    paths = [
        sidecar(tmp_path / "12345678-x.facts.jsonl", "one", {"copy/a float32 8 cold": steady}),
        sidecar(tmp_path / "22345678-x.facts.jsonl", "two", {"copy/a float32 8 cold": steady}),
        sidecar(tmp_path / "32345678-x.facts.jsonl", "one", {"copy/a float32 8 cold": apart}, (1980, 1500, 1980)),
    ]
    rows = [line for line in quiet.by_record(list(map(read, paths))).splitlines() if "GPU" in line]
    assert [row.split("|")[1].strip() for row in rows] == ["12345678, GPU 1", "22345678, GPU 2", "32345678, GPU 1"]
    assert rows[0].split("|")[2:4] == [" 1 ", " 0.01 % "]
    assert rows[2].split("|")[2:4] == [" 0 ", " n/a "]
    assert rows[2].rstrip("| ").endswith("100.0 % | 0 | 0")


def test_a_lowered_clock_that_is_no_mark_is_counted_and_said_to_be_loud(tmp_path: Path) -> None:
    """The clocks of all cells are lowered, within 2 %; the times of one differ by more than that allows."""
    cells = {"copy/a float32 8 cold": [1e-5] * 3, "copy/b float32 8 cold": [1e-5, 1e-5, 1.03e-5]}
    path = sidecar(tmp_path / "12345678-x.facts.jsonl", "one", cells, (1720.0, 1715.0, 1710.0))
    path.write_text(path.read_text().replace("low clock", LOW_CLOCK))
    row = quiet.by_record([read(path)]).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")][-3:] == ["0.0 %", "2", "1"]


def test_a_second_level_is_a_fixed_time_a_kernel() -> None:
    level = [9e-6, 9e-6, 9e-6, 9.34e-6]
    assert quiet.two_levels(level, 1)
    assert not quiet.two_levels(level, 2)
    assert not quiet.two_levels([9e-6, 9e-6, 9e-6, 9.1e-6], 1)
    assert not quiet.two_levels([9e-6, 9e-6, 9e-6, 12e-6], 1)


def test_hot_cells_and_cells_of_few_processes_do_not_count(tmp_path: Path) -> None:
    cells = {"copy/a float32 8 hot": [1e-5] * 3, "copy/b float32 8 cold": [1e-5] * 2}
    assert quiet.cold(read(sidecar(tmp_path / "12345678-x.facts.jsonl", "one", cells, (1980.0,) * 3))) == []


def test_runs_are_told_by_all_processes_and_by_their_medians() -> None:
    line = {"key": "copy/a float32 8 cold", "processes_s": [[1e-5, 1.02e-5]] * 2}
    hot, long = line | {"key": "copy/a float32 8 hot"}, line | {"processes_s": [[1e-4], [2e-4]]}
    assert [row.split("|")[2].strip() for row in quiet.repeated([line, hot, long]).splitlines()[2:]] == [
        "1.14 %",
        "0.00 %",
    ]


def test_the_page_has_the_table_of_the_records() -> None:
    page, records = quiet.PAGE.read_text(encoding="utf-8"), quiet.recorded("h200")
    assert quiet.by_record(records) in page
    assert quiet.by_sampling(records[-quiet.NEWEST :]) in page
    assert quiet.by_allocation(records[-quiet.NEWEST :]) in page
    assert quiet.by_takes(records) in page
    assert quiet.by_clock(records) in page
    assert quiet.by_cycles(records) in page
    assert quiet.by_minutes(sidecars(PROJECT.results)) in page
    assert quiet.changed([json.loads(line) for line in comparisons().read_text().splitlines()]) in page
    assert quiet.owed(debt()) in page


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.commit: record for record in quiet.recorded("h200")}


def worth(record: Record) -> list[float]:
    """What processes differ by with all takes, over what they differ by with the first: median, 90 %, most."""
    rows = quiet.by_takes([record]).splitlines()[2:]
    first, whole = ([float(value.rstrip(" %")) for value in row.split("|")[4:7]] for row in rows)
    return [after / before for before, after in zip(first, whole, strict=True)]


def quick(record: Record) -> list[list[list[float] | None]]:
    """The takes of each process of each quick cell, if it has several."""
    cells = (cell for cell in quiet.cold(record) if cell.median_s < SLOW_S)
    return [[each.get("takes_s") for each in cell.measurements] for cell in cells]


def test_the_page_says_what_several_takes_are_worth(records: dict[str, Record]) -> None:
    """Of three: two thirds in the median and in nine of ten cells, less than half in the worst one. Until they agree:
    half, two fifths, less than a third."""
    three, agreed = worth(records["5b906c46"]), worth(records["5ba20d92"])
    assert [round(3 * share) for share in three[:2]] == [2, 2]
    assert three[2] < 0.5
    assert (round(2 * agreed[0]), round(5 * agreed[1])) == (1, 2)
    assert agreed[2] < 1 / 3
    for commit, left_out in (("5b906c46", 3), ("5ba20d92", 90)):
        cells = quick(records[commit])
        for at in (1, 2):
            changes = [takes[at] / takes[0] - 1 for cell in cells for takes in cell if takes]
            assert abs(statistics.mean(changes)) < 1e-4, "without bias"
        some = sum(any(cell) and not all(cell) for cell in cells)
        assert round(left_out * some / sum(map(any, cells))) == 1, "one of so many"


def test_the_page_says_how_many_takes_cells_have(records: dict[str, Record]) -> None:
    """For a later process, what earlier ones measured counts as one of the fewest."""
    record = records["5ba20d92"]
    cells = [cell for cell in quiet.cold(record) if cell.median_s < SLOW_S]
    several = [cell.measurements for cell in cells if all("takes_s" in one for one in cell.measurements)]
    taken = [(len(one["takes_s"]), TAKES_LEAST - (one["process"] > 0)) for cell in several for one in cell]
    assert all(least <= count <= 16 for count, least in taken)
    assert round(4 * sum(count == least for count, least in taken) / len(taken)) == 3, "three of four"
    assert round(15 * sum(count == 16 for count, _ in taken) / len(taken)) == 1, "one of fifteen"
    for name in ("thread_tile_2d float32 2048x2048x2048", "split_tail float32 256x256x256"):
        assert {len(one["takes_s"]) for one in record.cells[f"matmul/{name} cold"].measurements} == {16}


def test_the_page_says_how_quiet_cells_at_the_highest_clock_are(records: dict[str, Record]) -> None:
    cells = [cell for cell in quiet.cold(records["5ba20d92"]) if not cell.limits and not cell.own_clock_mhz]
    middle, most, worst = quiet.quantiles([cell.spread for cell in cells], 3)
    page = " ".join(quiet.PAGE.read_text(encoding="utf-8").split())
    assert (
        f"5ba20d92 has {len(cells)} cold ones that no limit holds. They spread by {middle} in the median, by {most} at "
        f"most in nine of ten, and by {worst} in the worst one. That meets the bars of 0.15 and 0.5 %"
    ) in page
    assert [value <= bar for value, bar in zip(quiet.summary([one.spread for one in cells]), BARS, strict=True)] == [
        *(False, True, True)
    ]
    assert max(cells, key=lambda cell: cell.spread).key == "matmul/read_only float16->float32 4096x4096x4096 cold"


def test_the_page_says_what_a_longer_take_without_a_rest_showed() -> None:
    (line,) = [one for one in map(json.loads, comparisons().read_text().splitlines()) if one["commit"] == "fa29d610"]
    page = " ".join(quiet.PAGE.read_text(encoding="utf-8").split())
    before, after = (f"{100 * line[side]['spread']:.3f} %" for side in ("before", "after"))
    said = f"{line['cells']} cold sums and transposes, which spread by {after} instead of {before} in the median"
    assert said in page
    assert line["moved"] == 1


def test_the_page_says_what_the_last_aa_showed() -> None:
    (line,) = [one for one in map(json.loads, comparisons().read_text().splitlines()) if one["commit"] == "5ba20d92"]
    assert (line["moved"], line["cells"]) == (4, 866)
    assert [round(100 * line[side]["spread"], 3) for side in ("before", "after")] == [0.088, 0.075]


def test_takes_are_told_of_quick_cells_that_each_process_took_several_times(tmp_path: Path) -> None:
    """One process took `c` once, and `slow` takes 1 s."""
    cells = {f"copy/{name} float32 8 cold": [1e-5] * 3 for name in "abc"} | {"copy/slow float32 8 cold": [1.0] * 3}
    path = sidecar(tmp_path / "aaaaaaaa-x.facts.jsonl", "one", cells)
    record = read(path)
    assert len(quiet.by_takes([record]).splitlines()) == 2, "a head alone"
    for key, cell in record.cells.items():
        for one, first in zip(cell.measurements, (1.0, 1.1, 0.9), strict=True):
            if not (key.startswith("copy/c ") and first == 0.9):
                one["takes_s"] = [share * cell.median_s for share in (first, 1.0, 2.0 - first)]
    rows = quiet.by_takes([record]).splitlines()[2:]
    assert [cell.strip() for cell in rows[0].split("|")][2:7] == [
        "2",
        "the first take",
        "10.000 %",
        "10.000 %",
        "10.000 %",
    ]
    assert [cell.strip() for cell in rows[1].split("|")][2:7] == ["2", "all", "0.000 %", "0.000 %", "0.000 %"]


def test_cells_are_told_apart_by_a_process_below_the_highest_clock(tmp_path: Path) -> None:
    """Of four cells, the first process of one ran half a step below, that of another a step, which is odd."""
    mhz = {"a": (1980.0,) * 3, "b": (1971.0, 1980.0, 1980.0), "c": (1960.0, 1979.0, 1980.0), "d": (1980.0,) * 3}
    cells: dict[str, Any] = {}
    for name, clocks in mhz.items():
        key = f"copy/{name} float32 8 cold"
        path = sidecar(tmp_path / f"{name * 8}-x.facts.jsonl", "one", {key: [1e-5, 1.01e-5, 1.02e-5]}, clocks)
        record = read(path)
        cells |= record.cells
    row = quiet.by_clock([dataclasses.replace(record, cells=cells)]).splitlines()[-1]
    told = [cell.strip() for cell in row.strip("|").split("|")]
    assert (told[1], told[5], told[9:]) == ("2", "2", ["25.0 %", "1"])


def test_each_change_of_the_harness_has_a_row() -> None:
    noise = {"spread": 0.0015, "two_levels": 0.03}
    line = {"files": ["timing/gpu.py", "run/a.py"], "machine": "nvidia-h200.xeon", "cells": 9, "moved": 2}
    row = quiet.changed([line | {"before": noise, "after": noise | {"spread": 0.002}}]).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("`gpu.py`, `a.py`", "nvidia-h200", "9", "2"),
        *("0.15 %", "0.20 %", "3.00 %", "3.00 %"),
    ]


def test_each_change_without_an_aa_has_a_row() -> None:
    changes: list[dict[str, Any]] = [
        {"after": "12345678", "files": ["timing/gpu.py", "run/a.py"], "why": "a | b"},
        {"after": "22345678", "files": [f"run/{name}.py" for name in "abcdef"], "why": "all moved"},
    ]
    assert quiet.owed(changes).splitlines()[2:] == [
        "| 12345678 | `gpu.py`, `a.py` | a \\| b |",
        "| 22345678 | 6 files | all moved |",
    ]
    assert quiet.owed([]) == "All changes have an A/A."


def test_a_full_run_took_what_its_gpu_suites_took() -> None:
    """The first suites of an op's file are those of the GPU; later ones are the CPU's."""
    durations = {"<build>": 1.0, "<setup_cache matmul:23>": 20.0, "<setup_cache matmul:9>": 60.0}
    durations |= {"<setup_cache copy:8>": 6.0, "<setup_cache static:9>": 5.0}
    assert quiet.taken_s(durations, ["copy", "matmul", "sum"]) == 66.0


def test_a_run_that_went_on_with_kept_measurements_has_no_time(tmp_path: Path) -> None:
    rows = []
    for commit, seconds, last in (("12345678", 30.0, 1.0002e-5), ("22345678", 3.0, 1.0035e-5)):
        cells = {f"copy/a float32 {at} cold": [1e-5, 1e-5, last] for at in range(100)}
        path = sidecar(tmp_path / "nvidia-h200.xeon" / f"{commit}-x.facts.jsonl", "one", cells)
        durations = {"<setup_cache copy:8>": seconds}
        path.with_name(f"{commit}-x.json").write_text(json.dumps({"durations": durations}))
        rows.append(path)
    assert quiet.by_minutes(rows).splitlines()[2:] == [
        "| 12345678 | nvidia-h200 | 100 | 300 | 0.5 | 100 ms | 0.03 % | 0.03 % | 100 % |",
        "| 22345678 | nvidia-h200 | 100 | 300 | n/a | n/a | 0.50 % | 0.50 % | 0 % |",
    ]


def test_cycles_are_the_time_at_the_clock_of_each_process(tmp_path: Path) -> None:
    """Two processes ran slower by the clock alone; cells of other shapes, types and rungs are left out."""
    seconds, mhz = [1e-5, 1.1e-5, 1e-5], (1760.0, 1600.0, 1760.0)
    keys = [f"matmul/cublas float16->float32 {name}" for name in ("2048x2048x2048 cold", "512x512x512 cold")]
    keys += [f"matmul/{name} 2048x2048x2048 cold" for name in ("cublas float32", "wgmma float16->float32")]
    record = read(sidecar(tmp_path / "12345678-x.facts.jsonl", "one", dict.fromkeys(keys, seconds), mhz))
    assert quiet.by_cycles([record]).splitlines()[2:] == [
        "| 12345678 | cublas | 3 | 1760 MHz | 5.59 % | 5.41 % | 0.00 % |"
    ]


def sampled(path: Path, cells: int, apart: float, clocks: tuple[float, ...] = (1980.0,) * 3) -> Path:
    """A sidecar of short cells whose samples of a process spread by 1 %, and the processes by `apart` more."""
    draw = random.Random(1)
    path = sidecar(path, "one", dict.fromkeys((f"copy/a float32 {at} cold" for at in range(cells)), [1.0] * 3), clocks)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:]:
        for visit in line["visits"]:
            level = 1e-5 * draw.gauss(1.0, apart)
            samples = [level * draw.gauss(1.0, 0.01) for _ in range(sampling.BUDGET.samples)]
            visit |= {"seconds": statistics.median(samples), "quartiles_s": quartiles(samples)}
            visit |= {"slots": 10, "launches": 1 << 20}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_processes_that_only_sample_differ_by_their_sampling_errors(tmp_path: Path) -> None:
    cells = quiet.cold(read(sampled(tmp_path / "12345678-x.facts.jsonl", 2000, 0.0)))
    apart = statistics.fmean(cell.spread**2 for cell in cells)
    assert 0.93 < statistics.fmean(sampling.within(cell) ** 2 for cell in cells) / apart < 1.07


def test_the_share_of_the_sampling_error_is_told_for_both_kinds_of_clocks(tmp_path: Path) -> None:
    """Samples alone make up for half of the variance of three processes, or more, in about four of five cells. Levels
    that differ by much more leave them next to nothing."""
    paths = [
        sampled(tmp_path / "12345678-x.facts.jsonl", 500, 0.0),
        sampled(tmp_path / "22345678-x.facts.jsonl", 500, 0.05, (1720.0, 1715.0, 1710.0)),
    ]
    paths[1].write_text(paths[1].read_text().replace("low clock", LOW_CLOCK))
    rows = [line.strip("|").split("|") for line in quiet.by_sampling([*map(read, paths)]).splitlines()[2:]]
    told = [[text.strip() for text in row] for row in rows]
    assert [row[:3] for row in told] == [
        ["12345678", "highest", "500"],
        ["12345678", "own", "0"],
        ["22345678", "highest", "0"],
        ["22345678", "own", "500"],
    ]
    assert told[1][3:] == told[2][3:] == [*["n/a"] * 5, "0 of 0"]
    alone, apart = (int(told[at][7].removesuffix(" %")) for at in (0, 3))
    assert 75 <= alone <= 88
    assert apart <= 5
    assert int(told[3][8].split(" of ")[1]) > 450


def test_a_launch_of_its_own_is_one_sample() -> None:
    slow: Any = {"seconds": 0.06, "launches": 1, "slots": 1, "quartiles_s": [0.06, 0.06]}
    assert sampling.samples(slow) == 1
    assert math.isnan(sampling.error(slow))
    single: Any = {"seconds": 1e-5, "launches": 3 * 200, "slots": 200, "quartiles_s": [1e-5, 1e-5]}
    taken: list[Any] = [single | {"launches": 200 * count} for count in (3, 5)]
    assert [sampling.samples(one) for one in taken] == [3, 5], "a single one of several takes"
    told: Any = single | {"launches": 2 * 200, "samples": 2, "quartiles_s": [0.9e-5, 1.1e-5]}
    assert sampling.samples(told) == 2
    assert sampling.error(told) == pytest.approx(sampling.factor(2, mean=True) / 5), "the figure is their mean"
    assert sampling.factor(5, mean=True) < 0.9 * sampling.factor(5), "which is surer than the median"
    quick: Any = {"seconds": 3.2e-3, "launches": 6, "slots": 2, "quartiles_s": [3.1e-3, 3.3e-3]}
    assert sampling.samples(quick) == 2
    assert sampling.error(quick) == pytest.approx(sampling.factor(2) / 16)


def test_the_sums_of_cupy_are_told_apart_by_what_a_process_allocates(tmp_path: Path) -> None:
    """The last process has no large cell any more. Cells that few processes measured have no row."""
    sum_of = "vector_add/cupy_add float32"
    cells = {f"{sum_of} 65536 cold": [1.9e-6, 1.91e-6, 1.9e-6, 1.8e-6], f"{sum_of} 1048576 cold": [6e-6] * 3}
    path = sidecar(
        tmp_path / "12345678-x.facts.jsonl", "one", {**cells, f"{sum_of} 268435456 cold": [1e-3] * 3}, (1980.0,) * 4
    )
    path.write_text(path.read_text().replace('"seconds"', '"slots": 1, "seconds"'))
    record = read(path)
    assert [size > quiet.INDEXED_BYTES for size in quiet.allocated(record).values()] == [True, True, True, False]
    assert quiet.by_allocation([record]).splitlines()[2:] == [
        "| 12345678 | float32 65536 cold | 1.90 to 1.91 us (3) | 1.80 to 1.80 us (1) |"
    ]


def test_each_run_is_told_by_itself(tmp_path: Path) -> None:
    """A process of `b` in the second run is slower by the fixed time of a kernel, and so is one of `c`, which launches
    two."""
    level = [9e-6, 9e-6, 9e-6, 9.34e-6]
    lines = [
        {"key": "a", "processes_s": [[1.0, 1.0, 1.0], [1.0, 1.002]]},
        {"key": "b", "processes_s": [[9e-6, 9e-6], level]},
        {"key": "c", "processes_s": [[9e-6, 9e-6, 9e-6], level]},
    ]
    (cell,) = read(sidecar(tmp_path / "12345678-x.facts.jsonl", "one", {"c": [1e-5] * 3})).cells.values()
    cell.measurements[0]["kernels"] = [{}, {}]
    found = [
        [text.strip() for text in row.split("|")[1:-1]] for row in quiet.by_run(lines, {"c": cell}).splitlines()[2:]
    ]
    assert found == [
        ["1", "3", "8", "0.00 %", "0.00 %", "0.00 %", "0"],
        ["2", "3", "10", "1.87 %", "1.87 %", "1.87 %", "1"],
        ["meet the bar", "", "", "1 of 2: 0.08 %", "1 of 2: 0.3 %", "1 of 2: 1 %", "1 of 2: 0"],
    ]


def test_the_page_has_the_runs_of_short_cells() -> None:
    """With what its text says of the bars and of the cell with two levels."""
    page, newest = quiet.PAGE.read_text(encoding="utf-8"), quiet.recorded("h200")[-1].cells
    lines = [json.loads(line) for line in quiet.RUNS.read_text(encoding="utf-8").splitlines()]
    assert quiet.by_run(lines, newest) in page
    assert quiet.repeated(lines) in page
    runs = [*zip(*(line["processes_s"] for line in lines), strict=True)]
    spreads = [[quiet.variation(seconds) for seconds in run] for run in runs]
    assert [text.split(" of ")[0] for text in quiet.meeting(quiet.RUNS_BARS, spreads)] == ["0", "1", "5"]
    assert f"the quietest run has {100 * min(map(statistics.median, spreads)):.3f} %" in page
    levels = {
        line["key"]
        for run in runs
        for line, seconds in zip(lines, run, strict=True)
        if quiet.two_levels(seconds, quiet.kernels(newest[line["key"]]))
    }
    assert levels == {"transpose/naive_read float32 1024x1024 cold"}
