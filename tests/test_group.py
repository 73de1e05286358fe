"""Groups of cells: what a package lacks, how many processes a cell needs, and what is written down of a whole group."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.detect.testing import FLOOR
from kernelwatch.history import records
from kernelwatch.plan.cells import Cell
from kernelwatch.run import group, outcome
from kernelwatch.run.outcome import Group, Outcome, group_of, read
from kernelwatch.run.processes import Run
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Measurement
from tests.groups import (
    BUDGET,
    FOR_EVER,
    ROOT,
    WRONG,
    Package,
    all_alike,
    assert_measured,
    cells,
    measured,
    outcomes,
    package,
    workers_of,
)
from tests.repositories import wait_until

__all__ = ["package"]  # a fixture


def test_a_package_whose_rungs_take_less_or_are_missing(package: Package) -> None:
    """Without one rung, with one of another type, and with one that has a limit: none of it is a failure."""
    folder = package()
    ladder = folder / "gpukernels" / "ladder.toml"
    parts = ladder.read_text().split("[[transpose.rungs]]")
    text = "[[transpose.rungs]]".join(part for part in parts if 'name = "c_blocked"' not in part)
    text = text.replace('name = "c"\nidea = "two', 'name = "c"\ntypes = ["float64"]\nidea = "two')
    text = text.replace('name = "c_openmp"\n', 'name = "c_openmp"\ninput_bytes_max = [9]\n')
    ladder.write_text(text)
    found = outcomes(measured(folder))
    missing, limited = found["c_blocked"], found["c_openmp"]
    assert missing.state == limited.state == "na"
    assert missing.reason.startswith("this commit has no rung transpose/c_blocked; the ladder has ")
    assert found["c"] == Outcome("na", "at this commit transpose/c takes float64, not float32")
    assert limited.reason.startswith("transpose/c_openmp: input 0 must have at most 9 bytes, got ")
    assert_measured(found["numpy"])


@pytest.mark.parametrize(("seconds", "enough"), [(1e-6, None), (0.004, None), (0.006, 3), (0.1, 3), (0.3, 2)])
def test_a_slow_cell_is_left_to_fewer_processes(seconds: float, enough: int | None) -> None:
    outcome = Outcome()
    for process in range(9):
        assert outcome.wanted(process) is (enough is None or process < enough)
        outcome.state = "ok"
        outcome.measurements.append({"process": process, "seconds": seconds * (1 - process % 2 / 2)})
    assert not Outcome("failed", "wrong").wanted(0)
    assert not Outcome("na", "no GPU").wanted(0)


@pytest.mark.parametrize(
    ("spread", "launch_spread", "enough"),
    [(0.0, None, 3), (0.0014, None, 3), (0.002, None, 4), (0.01, None, None), (0.0, 0.5, 3)],
)
def test_a_cell_that_is_known_well_needs_no_further_process(
    spread: float, launch_spread: float | None, enough: int | None
) -> None:
    """By its time: the cost of a launch is never known so well. Two processes that agree are no evidence."""
    outcome = Outcome("ok")
    for process in range(6):
        assert outcome.wanted(process) is (enough is None or process < enough)
        measurement: Measurement = {"process": process, "seconds": 1e-5 * (1 + spread * (process % 2))}
        if launch_spread is not None:
            measurement["launch_seconds"] = 1e-6 * (1 + launch_spread * (process % 2))
        outcome.measurements.append(measurement)


def test_a_cell_is_known_well_if_detection_could_report_no_smaller_change() -> None:
    """And as the records say it: one formula."""
    assert outcome.FINE == FLOOR
    taken: list[Measurement] = [{"process": at, "seconds": 1e-5 * (1 + 0.001 * at)} for at in range(4)]
    known = Outcome("ok", measurements=taken)
    assert known.detectable() == records.measured("copy/a float32 8 cold", known).detectable
    assert Outcome("ok", measurements=taken[:2]).detectable() == math.inf


def test_a_process_measures_a_cell_once() -> None:
    outcome = Outcome("ok", measurements=[{"process": 0, "seconds": 1e-5}])
    assert not outcome.wanted(0)
    assert outcome.wanted(1)


def test_the_roofline_of_a_cell() -> None:
    """Operations over bytes; the higher of the two peaks; none of it where operations do not count."""
    mine = Cell("matmul", "wmma", "float16->float32", (32, 32, 32), "cold", "gpu")
    vendor = [dataclasses.replace(mine, rung="cublas", shape=(n, n, n)) for n in (32, 64)]
    copied = Cell("transpose", "padded", "float32", (4, 4), "cold", "gpu")
    run = Run(PROJECT, [mine, *vendor, copied], "gpu", "", BUDGET)
    for cell, seconds in zip(run.cells, (3e-9, 2e-9, 1e-9, 1e-9), strict=True):
        taken: list[Measurement] = [
            {"process": at, "seconds": value} for at, value in enumerate((seconds, seconds, 9 * seconds))
        ]
        run.group.outcomes[cell.key] = Outcome("ok", "", taken)
    run.group.facts = {"ceilings": {"copy_bytes_per_s": 4e12, "float32_flops_per_s": 6e13}}
    peaks = group.vendor_peaks(run)
    assert group.roofline(mine, run, peaks) == {
        "flops": 2 * 32**3,
        "bytes": 2 * 32 * 32 * 2 + 32 * 32 * 4,
        "intensity_flops_per_byte": 8.0,
        "peak_flops_per_s": 2 * 64**3 / 1e-9,
        "peak_of": "matmul/cublas float16->float32 64x64x64 cold",
        "copy_bytes_per_s": 4e12,
    }
    single = dataclasses.replace(mine, rung="initial", type="float32")
    assert group.roofline(single, run, peaks)["peak_of"] == "multiply-adds"
    assert group.roofline(copied, run, peaks) == {}


def test_a_package_older_than_the_harness(package: Package) -> None:
    folder = package()
    (folder / "gpukernels" / "__init__.py").write_text("class LadderError(Exception): ...\n")
    want = "this commit's gpukernels lacks load, rung: older than the harness"
    assert all_alike(measured(folder)) == Outcome("na", want)


def test_no_package(tmp_path: Path) -> None:
    want = "this commit has no package gpukernels to measure"
    assert all_alike(measured(tmp_path)) == Outcome("na", want)


def test_the_checkouts_package_is_never_measured_in_place_of_the_commits(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": ""}
    code = (
        "from benchmarks.project import PROJECT\nfrom kernelwatch.plan.cells import plan\n"
        "from kernelwatch.run.processes import Run\n"
        "cells = plan(PROJECT.op('transpose'), 'cpu', quick=True)[:1]\n"
        f"run = Run(PROJECT, cells, 'cpu', {str(tmp_path)!r}, PROJECT.devices['cpu'].budget)\n"
        "run.measure_all(0); print([o.state for o in run.group.outcomes.values()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("['na']", 0), done.stderr


def test_a_package_that_is_no_python(package: Package) -> None:
    folder = package()
    (folder / "gpukernels" / "__init__.py").write_text("def load(:\n")
    found = all_alike(measured(folder))
    assert found.state == "failed"
    assert found.reason.startswith("gpukernels cannot be imported: SyntaxError: ")


def test_no_gpu(no_gpu: str, package: Package) -> None:
    run = measured(package(), times=2, device="gpu")
    found = all_alike(run)
    assert found.state == "na"
    assert found.reason.startswith("no GPU here: ")
    assert run.group.facts == {}


# --- a whole group -------------------------------------------------------------------------------------------------


def test_measure_leaves_facts_and_progress(monkeypatch: pytest.MonkeyPatch, package: Package, tmp_path: Path) -> None:
    """As asv starts it: the options come from the environment."""
    folder, facts, progress = package(c=WRONG), tmp_path / "facts", tmp_path / "progress"
    facts.mkdir()
    monkeypatch.setenv("KERNELWATCH_QUICK", "1")
    monkeypatch.setenv("KERNELWATCH_ONLY", r"transpose/(c|c_blocked) float32 256x256 hot")
    monkeypatch.setenv("KERNELWATCH_FACTS", str(facts))
    monkeypatch.setenv("KERNELWATCH_PROGRESS", str(progress))
    monkeypatch.setenv("KERNELWATCH_TREE", str(folder))
    found = group.measure(PROJECT, "transpose", "cpu")
    states = {key: (one.state, len(one.measurements)) for key, one in found.outcomes.items()}
    assert states == {
        "transpose/c float32 256x256 hot": ("failed", 0),
        "transpose/c_blocked float32 256x256 hot": ("ok", 2),
    }
    (sidecar,) = facts.iterdir()
    assert sidecar.name == "transpose.cpu.jsonl"
    lines = sidecar.read_text().splitlines()
    assert lines == list(found.lines())
    assert [json.loads(line)["record"] for line in lines] == ["run", "cell", "cell"]
    assert [len(json.loads(line).get("visits", ())) for line in lines] == [0, 0, 2]  # the name on disk
    assert read(lines) == [found]
    said = [json.loads(line) for line in progress.read_text().splitlines()]
    assert {(line["group"], line["total"]) for line in said} == {("transpose cpu", 4)}
    # The failed cell is measured once: the end says that all is done.
    assert [line["done"] for line in said] == [1, 2, 3, 4, 4]
    assert ["ended" in line for line in said] == [False, False, False, False, True]


def test_an_op_without_cells_starts_no_process_for_those_that_have_some(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(quick=True, only=r"transpose/c float32 256x256 hot", tree=str(package()), facts=str(tmp_path))
    first = group.measure(PROJECT, "transpose", "cpu", options, ["transpose", "vector_add"])
    monkeypatch.setattr(Run, "measure_all", lambda *_, **__: pytest.fail("it measures again"))
    found = group.measure(PROJECT, "vector_add", "cpu", options, ["transpose", "vector_add"])
    assert (len(first.outcomes), found.outcomes) == (1, {})
    assert {path.name for path in tmp_path.glob("*.jsonl")} == {"transpose.cpu.jsonl", "vector_add.cpu.jsonl"}


def test_the_end_of_a_group_is_said(package: Package, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    only = r"transpose/c float32 256x256 hot"
    options = Options(quick=True, only=only, progress=str(progress), tree=str(package()))
    group.measure(PROJECT, "transpose", "cpu", options)
    said = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [(line["done"], line["total"]) for line in said] == [(1, 2), (2, 2), (2, 2)]
    assert ["ended" in line for line in said] == [False, False, True]


def test_what_is_exact_is_measured_once_by_several_processes(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell is measured by one process; a process is not started for a few cells."""
    runs: list[list[str]] = []

    def measure_all(run: Run, seed: int, tick: Callable[[], None]) -> None:
        runs.append([cell.key for cell in run.cells])
        for cell in run.cells:
            run.group.outcomes[cell.key].state = "ok"
            tick()
        run.group.facts = {"harness": "1"}

    monkeypatch.setattr(Run, "measure_all", measure_all)
    monkeypatch.setattr(group, "PROCESSES_MAX", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    every, options = cells("cpu", "hot", "cold"), Options(tree=str(package()))
    for count in (2, 2 * group.CELLS_LEAST, len(every)):
        runs.clear()
        found = group.measure_once(PROJECT, "transpose", "cpu", every[:count], options)
        assert list(found.outcomes) == [cell.key for cell in every[:count]]
        assert {one.state for one in found.outcomes.values()} == {"ok"}
        assert len(runs) == max(1, min(count // group.CELLS_LEAST, 3))
        assert sorted(key for run in runs for key in run) == sorted(found.outcomes)
        assert found.facts == {"harness": "1"}


@pytest.mark.timeout(300)  # a worker that works for ever is killed after ten minutes anyway
def test_an_interrupted_group_is_left_at_once(
    monkeypatch: pytest.MonkeyPatch, package: Package, tmp_path: Path
) -> None:
    """A rung hangs in one process, and others are to come: nobody waits for them."""
    mark = tmp_path / "hangs"
    folder = package(head="#include <stdio.h>\n", c=f'    fclose(fopen("{mark}", "w"));\n' + FOR_EVER)
    monkeypatch.setattr(group, "PROCESSES_MAX", 2)
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path))  # nobody else keeps the CPU
    before = set(workers_of(os.getpid()))

    def interrupt() -> None:
        wait_until(mark.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        group.measure_once(PROJECT, "transpose", "cpu", cells(), Options(tree=str(folder)))
    thread.join()
    assert not set(workers_of(os.getpid())) - before


def test_the_measured_tree_is_the_one_on_the_path() -> None:
    assert group.measured_tree(PROJECT, Options()) == str(ROOT)
    nowhere = dataclasses.replace(PROJECT, package="no_such_package")
    assert group.measured_tree(nowhere, Options()) == ""


def test_a_checkout_whose_package_cannot_be_imported_from_here_is_measured(tmp_path: Path) -> None:
    for name in (".git", "benchmarks", "src/rows"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "src/rows/__init__.py").touch()
    rows = dataclasses.replace(PROJECT, package="rows", here=tmp_path / "benchmarks/project.py")
    assert group.measured_tree(rows, Options()) == str(tmp_path)


def test_the_commits_checkout_is_measured_or_nothing(package: Package, tmp_path: Path) -> None:
    folder = str(package())
    assert group.measured_tree(PROJECT, Options(tree=folder)) == folder
    for empty in (str(tmp_path / "empty"), ""):  # a commit before there was a package
        run = Run(PROJECT, cells(), "cpu", empty, BUDGET)
        run.measure_all(0)
        assert all_alike(run) == Outcome("na", "this commit has no package gpukernels to measure")


def test_by_process_leaves_out_what_is_missing() -> None:
    one = Outcome("ok", "", [{"process": 0, "seconds": 1.0}, {"process": 1}, {"process": 2, "clock64_mhz": None}])
    assert one.by_process("seconds") == {0: 1.0}
    assert one.by_process("clock64_mhz") == {}
    assert json.loads(list(Group("g", {"k": one}, {"gpu": "f"}).lines())[1])["key"] == "k"


def test_lines_are_read_as_far_as_they_are_whole() -> None:
    one = Outcome("ok", "", [{"process": 0, "seconds": 1.0}], {"flops": 2})
    lines = list(Group("g", {"k": one, "l": Outcome("na", "why")}, {"gpu": "f"}).lines())
    whole = read(lines)
    assert whole == [Group("g", {"k": one, "l": Outcome("na", "why")}, {"gpu": "f"})]
    assert [group_of(line) for line in lines] == ["g"] * 3
    cut = lines[1][: len(lines[1]) // 2]
    broken = [lines[0], cut, "[]", "null", '{"group": "g"}', '{"group": "g", "record": "cell", "key": "m"}', lines[2]]
    assert read(broken) == [Group("g", {"l": Outcome("na", "why")}, {"gpu": "f"})]
    assert [group_of(line) for line in (cut, "[]", "null", "{}")] == [None] * 4
