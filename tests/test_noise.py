"""kernelwatch noise and truth, and the laboratory: what they record and what they say if they cannot."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.__main__ import code_of
from kernelwatch.__main__ import run as command
from kernelwatch.commands import noise
from kernelwatch.extras.nsight import profiler
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.project import Project
from kernelwatch.run import checkpoint
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.system import machine
from kernelwatch.system.errors import CANNOT, UserError
from kernelwatch.system.options import Options
from kernelwatch.timing.record import CellState
from lab import between, counters, figures


def group(*seconds: float, state: CellState = "ok") -> Group:
    """A group of one cell with a measurement a process."""
    taken: list[Any] = [{"process": at, "seconds": value} for at, value in enumerate(seconds)]
    return Group("transpose gpu", {"transpose/padded": Outcome(state, "wrong", taken)}, {"gpu": "A", "harness": "1"})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The project in another folder: its results lie there."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").write_text('{"results_dir": "results"}')
    return replace(PROJECT, here=tmp_path / "benchmarks" / "project.py")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """What will be measured, run by run."""
    told: list[Group] = []
    monkeypatch.setattr(noise, "measure", lambda *_: told.pop(0))
    monkeypatch.setattr(noise, "machine_name", lambda: "here")
    return told


def test_runs_differ_by_their_medians(
    runs: list[Group], project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs[:] = [group(1.0, 9.0, 2.0), group(4.0)]
    path = tmp_path / "results/here/noise.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"key": "transpose/copy", "cv": 0.5}\n{"key": "transpose/padded", "cv": 7}\n')
    assert noise.main(project, "scripts/lab/noise", ["--runs", "2", "transpose"]) == 0
    kept, fresh = map(json.loads, path.read_text().splitlines())
    assert kept == {"key": "transpose/copy", "cv": 0.5}  # not measured again: it stays
    assert (fresh["medians_s"], fresh["processes_s"]) == ([2.0, 4.0], [[1.0, 9.0, 2.0], [4.0]])
    assert fresh["cv"] == pytest.approx(2**0.5 / 3)
    assert fresh["who"] == {"gpu": "A", "nvml_uuid_sha256": None, "nvml_driver": None, "harness": "1"}
    said = capsys.readouterr().out
    assert "1 cells: median 47.140 %, worst 47.140 %; recorded in results/here/noise.jsonl" in said


BUSY = """
import os, sys
with open(f"{sys.argv[0]}.{os.environ['CUDA_VISIBLE_DEVICES']}", "a") as file:
    file.write("+")
print("busy", flush=True)
sys.stdin.read()
"""


def test_every_other_run_has_neighbors_at_work(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, beside, beside, alone; the load's program is a stand-in that needs no GPU and marks that it ran."""
    program = tmp_path / "load.py"
    program.write_text(BUSY)
    seen: list[int] = []

    def measured(*_: object) -> Group:
        marks = [len(path.read_text()) for path in sorted(tmp_path.glob("load.py.*"))]
        seen.append(sum(marks))
        busy = len(seen) in (2, 3)
        return group(2.02, 2.04) if busy else group(1.0, 2.0, 3.0)

    monkeypatch.setattr(noise, "LOAD", program)
    monkeypatch.setattr(machine, "gpus", lambda: ["0", "4", "7"])
    monkeypatch.setattr(noise, "measure", measured)
    monkeypatch.setattr(noise, "machine_name", lambda: "here")
    assert noise.main(project, "scripts/lab/noise", ["--neighbors", "--runs", "4", "transpose"]) == 0
    assert {path.name for path in tmp_path.glob("load.py.*")} == {"load.py.4", "load.py.7"}  # not the one that measures
    assert seen == [0, 2, 4, 4]
    (line,) = map(json.loads, (tmp_path / "results/here/neighbors.jsonl").read_text().splitlines())
    assert (line["busy"], line["alone_s"], line["beside_s"]) == (2, [[1.0, 2.0, 3.0]] * 2, [[2.02, 2.04]] * 2)
    said = capsys.readouterr().out
    assert "1 cells beside 2 busy GPUs: median +1.500 %" in said
    assert "50.000 % alone and 0.697 % beside them" in said


def test_a_neighbor_that_cannot_work_is_said(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "load.py"
    program.write_text("raise SystemExit('no CuPy')")
    monkeypatch.setattr(noise, "LOAD", program)
    monkeypatch.setattr(machine, "gpus", lambda: ["0", "4"])
    monkeypatch.setattr(noise, "measure", lambda *_: group(1.0, 2.0))
    with pytest.raises(UserError, match="GPU 4 cannot be kept busy"):
        noise.main(project, "scripts/lab/noise", ["--neighbors", "transpose"])


def test_a_neighbor_that_stops_within_a_run_is_said(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was measured beside it is forgotten: the next call does not take it up."""
    program, told, kept = (tmp_path / name for name in ("load.py", "told", ".asv/kept/noise1"))
    program.write_text(
        f"import os\nprint('busy', flush=True)\nprint(os.getpid(), file=open({str(told)!r}, 'w'))\nos._exit(1)"
    )
    kept.parent.mkdir(parents=True)

    def measured(*_: object) -> Group:
        kept.touch()
        if beside:
            os.waitid(os.P_PID, neighbor(), os.WEXITED | os.WNOWAIT)
        beside.append(True)
        return group(1.0, 2.0)

    def neighbor() -> int:
        while not (told.exists() and (pid := told.read_text())):
            pass
        return int(pid)

    beside: list[bool] = []
    monkeypatch.setattr(noise, "LOAD", program)
    monkeypatch.setattr(machine, "gpus", lambda: ["0", "4"])
    monkeypatch.setattr(noise, "measure", measured)
    monkeypatch.setattr(noise, "machine_name", lambda: "here")
    with pytest.raises(UserError, match="GPU 4 stopped working within run 2"):
        noise.main(project, "scripts/lab/noise", ["--neighbors", "--runs", "2", "transpose"])
    assert not kept.exists()


def test_half_of_the_runs_are_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        noise.main(PROJECT, "scripts/lab/noise", ["--neighbors", "--runs", "5"])
    assert "--neighbors takes an even number of --runs, half of them alone; got 5" in capsys.readouterr().err


def test_neighbors_need_a_second_gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ["0"])
    with pytest.raises(UserError, match="--neighbors needs a second GPU"):
        noise.main(project, "scripts/lab/noise", ["--neighbors", "transpose"])


def test_a_wrong_kernel_is_no_noise(runs: list[Group], project: Project, tmp_path: Path) -> None:
    runs[:] = [group(state="failed")]
    with pytest.raises(UserError, match="transpose/padded failed: wrong"):
        noise.main(project, "scripts/lab/noise", ["--runs", "2", "transpose"])
    assert not (tmp_path / "results").exists()


def test_a_wrong_kernel_costs_only_its_own_cells(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what it measured in an earlier run, in which it was right."""
    wrong = group(state="failed").outcomes["transpose/padded"]
    made = [group(1.0, 2.0), group(1.0, 4.0), group(1.0, 3.0)]
    for at, one in enumerate(made):
        one.outcomes["transpose/racy"] = wrong if at == 1 else group(5.0, 6.0).outcomes["transpose/padded"]
    monkeypatch.setattr(noise, "measure", lambda *_: made.pop(0))
    monkeypatch.setattr(noise, "machine_name", lambda: "here")
    assert noise.main(project, "scripts/lab/noise", ["--runs", "3", "transpose"]) == 2
    said = capsys.readouterr()
    assert said.err == "transpose/racy failed: wrong\n"
    assert "1 cells: median" in said.out
    lines = map(json.loads, (tmp_path / "results/here/noise.jsonl").read_text().splitlines())
    assert [line["key"] for line in lines] == ["transpose/padded"]


def test_nothing_measured_is_said(runs: list[Group], capsys: pytest.CaptureFixture[str]) -> None:
    runs[:] = [group(state="na")]
    assert command("noise", ["--runs", "2", "transpose"], "scripts/lab/noise") == CANNOT
    assert capsys.readouterr().err == "scripts/lab/noise: nothing to record: wrong\n"


def test_an_op_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        noise.main(PROJECT, "scripts/lab/noise", ["matmull"])
    assert f"no op matmull; there are {', '.join(PROJECT.ops)}" in capsys.readouterr().err


def test_truth_needs_ncu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert command("truth", [], "scripts/lab/truth") == CANNOT
    assert "scripts/lab/truth: Nsight Compute's ncu is not on the PATH" in capsys.readouterr().err


def test_counters_need_ncu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert code_of("scripts/lab/counters", lambda: counters.main([])) == CANNOT
    assert "scripts/lab/counters: Nsight Compute's ncu is not on the PATH" in capsys.readouterr().err


def test_counters_are_asked_of_cells_that_exist() -> None:
    tables = [table for tables in counters.TABLES.values() for table in tables]
    assert len(tables) > 10
    for table in tables:
        problem = PROJECT.op(table.op)
        assert len(table.shape) == len(problem.shapes[0])
        for name in table.rungs:
            assert problem.rung(name).is_cuda
            assert table.type in problem.rung(name).types, (table, name)
        assert set(table.columns) <= set(counters.METRICS)


def test_counters_are_taken_of_cells_that_no_suite_has() -> None:
    name = "transpose/sector_aligned uint8 16411x8209 cold"
    with pytest.raises(UserError, match="no cell"):
        profiler.find(PROJECT, name)
    assert counters.find(name) == Cell("transpose", "sector_aligned", "uint8", (16411, 8209), "cold", "gpu")
    assert counters.find("transpose/torch float32 4096x4096 cold").rung == "torch"  # of a suite, and in no table
    with pytest.raises(UserError, match="no cell 'transpose/nothing'"):
        counters.find("transpose/nothing")


def test_every_step_of_the_climbs_is_counted() -> None:
    counted = {(table.type, rung) for table in counters.TABLES["docs/research/matmul.md"] for rung in table.rungs}
    steps = {(type, rung) for type, rungs in figures.CLIMBS.items() for rung in rungs}
    assert steps
    assert steps <= counted


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The cells whose counters were taken; those of `padded` cannot be. The record lies in the folder of the test."""
    taken: list[str] = []

    def take(project: object, package: object, cell: Cell, metrics: list[str], **_: object) -> dict[str, float]:
        if cell.rung == "padded":
            raise UserError("ncu measured 0 launches")
        taken.append(cell.key)
        return dict.fromkeys(metrics, 1.0)

    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").write_text('{"results_dir": "results"}')
    (tmp_path / "results" / "here").mkdir(parents=True)
    monkeypatch.setattr(counters, "PROJECT", replace(PROJECT, here=tmp_path / "benchmarks" / "project.py"))
    monkeypatch.setattr(counters, "import_package", lambda *_: None)
    monkeypatch.setattr(counters, "ncu", lambda: "ncu")
    monkeypatch.setattr(counters, "machine_name", lambda: "here")
    monkeypatch.setattr(counters, "who", lambda: {"gpu": "A"})
    monkeypatch.setattr(counters, "binary_of", lambda package, cell: f"of {cell.rung}")
    monkeypatch.setattr(profiler, "counters", take)
    return taken


def test_counters_are_taken_again_only_if_the_binary_or_the_metrics_changed(
    counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"transpose/{rung} float32 4096x4096 cold" for rung in ("copy", "naive_read", "tiled", "padded")]
    assert counters.main(names) == 2  # the last one cannot be taken
    assert "transpose/padded float32 4096x4096 cold: ncu measured 0 launches" in capsys.readouterr().err
    path = tmp_path / "results" / "here" / "counters.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["key"], line["binary"]) for line in lines] == [
        (names[0], "of copy"), (names[1], "of naive_read"), (names[2], "of tiled"),
    ]  # fmt: skip
    counted.clear()
    assert counters.main(["--missing", *names[:3]]) == 0
    assert counted == []
    lines[0]["binary"] = "of an older source"
    del lines[1]["metrics"][counters.METRICS["clock, MHz"][0]]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert counters.main(["--missing", *names[:3]]) == 0
    assert counted == names[:2]
    counted.clear()
    assert counters.main(names[2:3]) == 0  # without the option all that are named
    assert counted == names[2:3]


def test_the_name_of_a_kernel_in_its_source() -> None:
    names = ("_Z12matmul_wgmmaI6__halffEv9TensorMapS1_S1_iii", "_Z5scalePf", "_Z3a_Zi", "scale", "_Zero")
    assert list(map(profiler.base_name, names)) == ["matmul_wgmma", "scale", "a_Z", "scale", "_Zero"]


def test_streamed_products_ask_for_the_gpu_before_they_fill_the_memory(
    no_gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between, "numbers", lambda *_: pytest.fail("filled"))
    assert code_of("scripts/lab/between", lambda: between.main([])) == CANNOT
    assert "scripts/lab/between: matmul/between_grids: " in capsys.readouterr().err


def test_streamed_products_need_a_gpu(no_gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("scripts/lab/between", lambda: between.main(["--edge", "64"])) == CANNOT
    assert "scripts/lab/between: matmul/between_grids: " in capsys.readouterr().err


def test_streamed_products_are_exact() -> None:
    found = between.numbers(np.random.default_rng(0), 500)
    assert set(np.unique(found)) == set(range(-3, 4))
    assert len({row.tobytes() for row in found}) > 300


shared: list[list[str]] = []  # the ops in whose processes each group of `asked` would be measured


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Cell]]:
    """The cells of each group that was asked for; none is measured."""
    cells: list[list[Cell]] = []
    shared.clear()

    def measure(project: Project, op: str, device: str, options: Options, together: Sequence[str]) -> Group:
        assert (options.quick, options.tree) == (False, "a folder")  # all other options stay
        assert options.facts  # where the groups of ops that share processes wait for their turn
        assert Path(options.facts).is_dir()
        shared.append([*together])
        cells.append(plan(project.op(op), device, quick=options.quick, only=options.only))
        return group(1.0)

    monkeypatch.setattr(noise, "measure", measure)
    monkeypatch.setattr(noise, "machine_name", lambda: "here")
    monkeypatch.setenv("KERNELWATCH_TREE", "a folder")
    monkeypatch.delenv("KERNELWATCH_QUICK", raising=False)
    return cells


def test_an_expensive_op_is_taken_in_part(asked: list[list[Cell]], project: Project) -> None:
    assert noise.main(project, "scripts/lab/noise", ["--runs", "2", "matmul"]) == 0
    some, again = asked
    assert some == again
    assert 3 <= len(some) <= 10
    assert {cell.rung for cell in some} == {"thread_tile_2d", "cublas", "wmma"}
    assert len(plan(PROJECT.op("matmul"), "gpu")) > 100
    asked.clear()
    assert noise.main(project, "scripts/lab/noise", ["--runs", "2", "--only", "initial", "matmul"]) == 0
    assert {cell.rung for cell in asked[0]} == {"initial"}


def test_other_ops_are_taken_whole(asked: list[list[Cell]], project: Project) -> None:
    assert noise.main(project, "scripts/lab/noise", ["--runs", "2"]) == 0
    assert [cells[0].op for cells in asked] == [*PROJECT.ops] * 2
    assert shared == [["vector_add", "transpose"], ["vector_add", "transpose"], ["matmul"]] * 2
    assert noise.main(project, "scripts/lab/noise", ["--runs", "2", "--only", "padded"]) == 0
    assert shared[6:] == [[*PROJECT.ops]] * 6
    assert asked[1] == plan(PROJECT.op("transpose"), "gpu")
    asked.clear()
    narrowed = ["--only", "padded|naive", "--shape", "1024x1024", "--type", "float32", "--cache", "cold"]
    assert noise.main(project, "scripts/lab/noise", ["--runs", "2", *narrowed, "transpose"]) == 0
    assert {(cell.shape, cell.type, cell.cache) for cell in asked[0]} == {((1024, 1024), "float32", "cold")}
    assert len(asked[0]) > 2


def test_truths_cells_exist() -> None:
    assert [profiler.find(PROJECT, key).key for key in PROJECT.truth_cells] == list(PROJECT.truth_cells)
    assert PROJECT.truth_cells
    with pytest.raises(UserError, match="no cell 'transpose/warp'"):
        profiler.find(PROJECT, "transpose/warp")


KEY = "transpose/padded float32 256x256 cold"


def test_an_interrupted_record_goes_on(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real checkpoints of a group; the third run is interrupted at first."""
    package = tmp_path / PROJECT.package
    package.mkdir()
    (package / "kernel.cu").write_text("one")
    measured: list[float] = []
    interrupts = [False, False, True, False, False, False, False, False, False]

    def measure(project: Project, op: str, device: str, options: Options, together: Sequence[str]) -> Group:
        if kept := checkpoint.there("transpose gpu", [KEY], options):
            return kept
        if interrupts.pop(0):
            raise KeyboardInterrupt
        measured.append(float(len(measured) + 1))
        made = Group(
            "transpose gpu",
            {KEY: Outcome("ok", "", [{"process": 0, "seconds": measured[-1]}])},
            {"gpu": "A", "nvml_uuid_sha256": "1"},
        )
        checkpoint.keep(made, options)
        return made

    monkeypatch.setattr(noise, "measure", measure)
    monkeypatch.setattr(noise, "machine_name", lambda: "here")
    arguments = ["--runs", "4", "transpose"]
    with pytest.raises(KeyboardInterrupt):
        noise.main(project, "scripts/lab/noise", arguments)
    path = tmp_path / "results" / "here" / "noise.jsonl"
    assert json.loads(path.read_text())["medians_s"] == [1.0, 2.0]  # of what was measured by then
    assert noise.main(project, "scripts/lab/noise", arguments) == 0
    assert json.loads(path.read_text())["medians_s"] == [1.0, 2.0, 3.0, 4.0]
    assert measured == [1.0, 2.0, 3.0, 4.0]
    assert list((tmp_path / ".asv" / "kept").iterdir()) == []
    assert "ASV_COMMIT" not in os.environ
    interrupts[:] = [False, False, True, False, False, False, False]
    with pytest.raises(KeyboardInterrupt):
        noise.main(project, "scripts/lab/noise", arguments)
    (package / "kernel.cu").write_text("another")
    assert noise.main(project, "scripts/lab/noise", arguments) == 0
    assert json.loads(path.read_text())["medians_s"] == [7.0, 8.0, 9.0, 10.0]  # nothing of the kernel before the edit


def test_one_run_does_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        noise.main(PROJECT, "scripts/lab/noise", ["--runs", "1", "matmul"])
    assert "--runs must be at least 2, to differ; got 1" in capsys.readouterr().err
