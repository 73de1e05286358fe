"""scripts/noise and scripts/truth: what they record and what they say where they cannot."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks._cells import plan
from benchmarks._group import Group, Outcome
from scripts import _between, _counters, _ncu, _noise, _truth


def group(*seconds: float, state: str = "ok") -> Group:
    """A group of one cell with a visit a process."""
    visits = [{"process": at, "seconds": value} for at, value in enumerate(seconds)]
    return Group("transpose gpu", {"transpose/padded": Outcome(state, "wrong", visits)}, {"gpu": "A", "harness": "1"})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Group]:
    """What the stick will measure, run by run; results go to tmp_path."""
    found: list[Group] = []
    monkeypatch.setattr(_noise, "measure", lambda op, device: found.pop(0))
    monkeypatch.setattr(_noise, "ROOT", tmp_path)
    monkeypatch.setattr(_noise, "identity", lambda: {"machine": "here"})
    return found


def test_runs_differ_by_their_medians(runs: list[Group], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs[:] = [group(1.0, 9.0, 2.0), group(4.0)]
    path = tmp_path / "results/here/noise.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"key": "transpose/copy", "cv": 0.5}\n{"key": "transpose/padded", "cv": 7}\n')
    assert _noise.main(["--runs", "2", "transpose"]) == 0
    kept, fresh = map(json.loads, path.read_text().splitlines())
    assert kept == {"key": "transpose/copy", "cv": 0.5}  # not measured again: it stays
    assert (fresh["medians_s"], fresh["processes_s"]) == ([2.0, 4.0], [[1.0, 9.0, 2.0], [4.0]])
    assert fresh["cv"] == pytest.approx(2**0.5 / 3)
    assert fresh["who"] == {"gpu": "A", "nvml_uuid_sha256": None, "nvml_driver": None, "harness": "1"}
    assert "1 cells: median 47.140 %, worst 47.140 %" in capsys.readouterr().out


def test_a_wrong_kernel_is_no_noise(runs: list[Group], tmp_path: Path) -> None:
    runs[:] = [group(state="failed")]
    with pytest.raises(SystemExit, match="transpose/padded failed: wrong"):
        _noise.main(["--runs", "2", "transpose"])
    assert not (tmp_path / "results").exists()


def test_nothing_measured_is_said(runs: list[Group], capsys: pytest.CaptureFixture[str]) -> None:
    runs[:] = [group(state="na")]
    assert _noise.main(["--runs", "2", "transpose"]) == 1
    assert "nothing to record: wrong" in capsys.readouterr().err


def test_an_op_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _noise.main(["matmull"])
    assert "no op matmull; there are vector_add, transpose, matmul" in capsys.readouterr().err


def test_truth_needs_ncu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert _truth.main([]) == 1
    assert "ncu is not on the PATH" in capsys.readouterr().err


def test_counters_need_ncu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert _counters.main([]) == 1
    assert "scripts/counters: Nsight Compute's ncu is not on the PATH" in capsys.readouterr().err


def test_counters_are_asked_of_cells_that_exist() -> None:
    keys = _counters.cells()
    assert len(keys) == 2 * 10
    assert [_ncu.find(key).key for key in keys] == keys


def test_streamed_products_ask_for_the_gpu_before_they_fill_the_memory(
    no_gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_between, "numbers", lambda *_: pytest.fail("filled"))
    assert _between.main([]) == 1
    assert "scripts/between: matmul/between_grids: " in capsys.readouterr().err


def test_streamed_products_need_a_gpu(no_gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _between.main(["--edge", "64"]) == 1
    assert "scripts/between: matmul/between_grids: " in capsys.readouterr().err


def test_streamed_products_are_exact() -> None:
    found = _between.numbers(np.random.default_rng(0), 500)
    assert set(np.unique(found)) == set(range(-3, 4))
    assert len({row.tobytes() for row in found}) > 300


def test_a_dear_op_is_taken_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUKERNELS_CELLS", raising=False)
    with _noise._cells_of("matmul"):
        some = plan("matmul", "gpu")
    assert 3 <= len(some) <= 10
    assert {cell.rung for cell in some} == {"thread_tile_2d", "cublas", "wmma"}
    assert len(plan("matmul", "gpu")) > 100
    monkeypatch.setenv("GPUKERNELS_CELLS", "initial")
    with _noise._cells_of("matmul"):
        assert {cell.rung for cell in plan("matmul", "gpu")} == {"initial"}


def test_truths_cells_exist() -> None:
    assert [_ncu.find(key).key for key in _truth.CELLS] == list(_truth.CELLS)
    with pytest.raises(SystemExit, match="no cell 'transpose/warp'"):
        _ncu.find("transpose/warp")


def test_one_run_does_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _noise.main(["--runs", "1", "matmul"])
    assert "--runs must be at least 2, to differ; got 1" in capsys.readouterr().err
