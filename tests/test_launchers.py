"""Rungs of every launcher (CuPy, cuda.core, Triton, PyTorch), and faulty ones: each costs only its own cell."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwatch.plan.cells import plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.project import load_from
from kernelwatch.run.codes import note_codes
from kernelwatch.run.outcome import Outcome
from kernelwatch.run.processes import Run
from kernelwatch.timing.record import Measurement
from tests.reader import Reader
from tests.repositories import ROOT, new_project, without_modules

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("launchers")]

DATA = Path(__file__).with_name("data") / "launchers"
NEEDS = {
    **dict.fromkeys(("triton", "tuned", "far_triton"), "triton"),
    **dict.fromkeys(("torch", "compiled", "tensor", "new_tensor"), "torch"),
}
RETURNING = ("new", "new_temporary", "new_tensor")
RIGHT = (
    *("raw", "elementwise", "core", "triton", "tuned", "torch", "compiled", "temporary", "waiting", "tensor"),
    *RETURNING,
)
FAULTY = ("wrong", "beyond", "far", "far_triton", "elsewhere", "partly", "view", "writing", "same", "unimportable")


def run_of(*rungs: str, silence_s: float, op: str = "axpy") -> Run:
    """The rungs, once measured."""
    with without_modules("described"):
        project = load_from(DATA / "described")
    cells = [cell for cell in plan(project.op(op), "gpu") if cell.rung in rungs]
    run = Run(project, cells, "gpu", str(DATA), Budget(3, 0.0005), silence_s)
    run.measure_all(0)
    return run


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcomes of all rungs but the one that hangs."""
    run = run_of(*RIGHT, *FAULTY, silence_s=60)
    note_codes(run)
    return {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}


def here(rung: str) -> bool:
    """Whether the library that a rung needs is installed."""
    return importlib.util.find_spec(NEEDS.get(rung, "cupy")) is not None


def measured(outcomes: dict[str, Outcome], rung: str) -> Measurement:
    if not here(rung):
        pytest.skip(f"{NEEDS[rung]} is not installed")
    outcome = outcomes[rung]
    assert (outcome.state, outcome.reason) == ("ok", "")
    return outcome.measurements[0]


@pytest.mark.parametrize(
    ("rung", "kernels", "block"),
    [
        ("raw", ["axpy"], 256),
        ("elementwise", ["axpy_e"], 128),
        ("core", ["axpy_core"], 256),
        ("triton", ["axpy_triton"], 128),
        ("torch", None, None),
        ("compiled", None, None),
        ("temporary", ["cupy_multiply__float_float32_float32", "cupy_add__float32_float32_float32"], 128),
        ("tensor", None, None),
        ("new", ["axpy"], 256),
        ("new_temporary", ["cupy_multiply__float_float32_float32", "cupy_add__float32_float32_float32"], 128),
        ("new_tensor", None, None),
    ],
)
def test_what_a_launcher_runs(
    outcomes: dict[str, Outcome], rung: str, kernels: list[str] | None, block: int | None
) -> None:
    one = measured(outcomes, rung)
    assert "timed_by" not in one
    assert "configurations" not in one
    size = 4 * 100_003
    asked = {"temporary": size, "new": size, "new_temporary": 2 * size, "new_tensor": -(-size // 512) * 512}
    assert one.get("peak_allocated_bytes", 0) == asked.get(rung, 0)
    ran = one["kernels"]
    assert kernels is None or [each["kernel"] for each in ran] == kernels
    for each in ran:
        assert re.fullmatch("[0-9a-f]{16}", each["code"])
        assert each["instructions"] == sum(each["mix"].values()) > 10
        assert block is None or each["block"] == [block, 1, 1]
        assert 8 <= each["registers"] <= 255
        assert each["blocks_per_multiprocessor"] >= 1
        assert each["grid"][0] > 1


def test_a_tuned_kernel_tells_its_configuration(outcomes: dict[str, Outcome]) -> None:
    one = measured(outcomes, "tuned")
    (chosen,) = one["configurations"]
    (ran,) = one["kernels"]
    assert chosen.startswith("axpy_triton: BLOCK: ")
    assert f"num_warps: {ran['block'][0] // 32}," in chosen
    size = int(chosen.split()[2].rstrip(","))
    assert ran["grid"][0] == -(-100_003 // size)


@pytest.mark.parametrize("rung", RETURNING)
def test_what_is_returned_is_timed_as_what_is_written(outcomes: dict[str, Outcome], rung: str) -> None:
    """In a graph, in which nothing is allocated or copied; the results rotate with the inputs."""
    one = measured(outcomes, rung)
    assert one["slots"] > 1
    assert not [each for each in one["kernels"] if "kind" in each]
    if rung == "new":
        raw = measured(outcomes, "raw")
        assert one["kernels"] == raw["kernels"]
        assert 0.8 < one["seconds"] / raw["seconds"] < 1.25


@pytest.fixture(scope="module")
def steps() -> dict[str, Outcome]:
    run = run_of("cupy", "torch", "growing", silence_s=60, op="step")
    return {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}


@pytest.mark.parametrize("rung", ["cupy", "torch"])
def test_an_input_may_be_updated(steps: dict[str, Outcome], rung: str) -> None:
    """It and the other one go in by position and by name; there is no output."""
    one = measured(steps, rung)
    assert len(one["kernels"]) == 1
    assert "peak_allocated_bytes" not in one


def test_an_update_that_overflows_is_said(steps: dict[str, Outcome]) -> None:
    assert steps["growing"].state == "failed"
    assert "step/growing: w, which it updates, is not finite after its launches" in steps["growing"].reason


def test_what_cannot_be_captured_is_timed_by_events(outcomes: dict[str, Outcome]) -> None:
    one = measured(outcomes, "waiting")
    assert one["timed_by"] == "events"
    assert "kernels" not in one
    assert one["seconds"] > measured(outcomes, "raw")["seconds"]


def test_launches_differ_in_their_identity(outcomes: dict[str, Outcome]) -> None:
    identities = [outcome.measurements[0]["identity"] for outcome in outcomes.values() if outcome.state == "ok"]
    assert len(set(identities)) == len(identities) >= 4


@pytest.mark.parametrize(
    ("rung", "said"),
    [
        ("wrong", "WrongOutput: axpy/wrong at (100003,) float32: "),
        ("beyond", "WrongOutput: axpy/beyond wrote 4 of the 4096 bytes after its output"),
        ("far", "illegal memory access"),
        ("far_triton", "illegal memory access"),
        ("elsewhere", "WrongOutput: axpy/elsewhere enqueues nothing on the given stream: it runs on another stream"),
        ("partly", "while it was captured in a CUDA graph: not all of it runs on the given stream"),
        ("view", "WrongOutput: axpy/view returned an array and left out untouched"),
        ("writing", "WrongOutput: axpy/writing wrote its input x: "),
        ("same", "WrongOutput: axpy/same returned memory of its input y; right is a new array"),
        ("unimportable", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_fault_costs_its_own_cell(outcomes: dict[str, Outcome], rung: str, said: str) -> None:
    if not here(rung):
        pytest.skip(f"{NEEDS[rung]} is not installed")
    outcome = outcomes[rung]
    assert outcome.state == "failed"
    assert said in outcome.reason


def test_what_hangs_costs_its_own_cell() -> None:
    """The GPU is free for the next worker."""
    run = run_of("hanging", "raw", "elementwise", silence_s=12)
    found = {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}
    assert found["hanging"].state == "failed"
    assert "it hung: nothing for 12 s" in found["hanging"].reason
    assert found["raw"].state == found["elementwise"].state == "ok"


class Typing(Reader):
    """One who writes what the page says, and calls no command."""

    def _call(self, command: str) -> None:
        pass


def test_the_launchers_of_the_page(tmp_path: Path) -> None:
    """docs/own.md: its files, on top of what `kernelwatch init` writes."""
    project = new_project(tmp_path, "rows")
    project.git("commit", "-q", "--allow-empty", "-m", "Begin")
    command = [sys.executable, "-m", "kernelwatch", "init"]
    subprocess.run(command, cwd=project.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    Typing(project, tmp_path, {}).do((ROOT / "docs" / "own.md").read_text(encoding="utf-8"))
    with without_modules("benchmarks"):
        described = load_from(project.folder / "benchmarks")
    cells = [cell for cell in plan(described.op("axpy"), "gpu") if cell.shape == (1 << 16,)]
    assert {cell.rung for cell in cells} == {"cuda", "elementwise", "triton", "torch", "core"}
    run = Run(described, cells, "gpu", str(project.folder), Budget(3, 0.0005))
    run.measure_all(0)
    found = {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}
    for rung in found:
        if here(rung):
            assert measured(found, rung)["kernels"]
