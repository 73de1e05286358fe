"""The processes of a run: they die, are killed, wait for each other, and for a GPU or a CPU."""

import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell
from kernelwatch.run import group, processes, worker, workers
from kernelwatch.run.processes import Run
from kernelwatch.run.workers import WORKER, Worker, Workers
from kernelwatch.system.options import Options
from kernelwatch.timing.replay import LOW_CLOCK
from tests.groups import (
    BUDGET,
    FOR_EVER,
    ROOT,
    Package,
    assert_measured,
    assert_only_failed,
    cells,
    few_processes,
    lives,
    measured,
    outcomes,
    package,
    workers_of,
)
from tests.repositories import wait_until
from tests.test_files import holder

__all__ = ["package"]  # a fixture


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_never_leaves_a_worker(value: float) -> None:
    """asv would record it, and then not publish."""
    said = io.StringIO()
    with pytest.raises(ValueError, match="not JSON compliant"):
        worker._emit(said, event="cell", measurement={"seconds": value})
    assert said.getvalue() == ""


def test_the_time_between_two_measurements_is_kept_with_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a process before its first cell, and what a cell without a figure took."""
    times = iter([0.0, 3.0, 3.5, 3.6, 9.0, 10.0])  # made; begin and end, begin, begin and end
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(times)))
    three = [Cell("transpose", "c", "float32", (n, 1), "hot", "gpu") for n in (1, 2, 3)]
    run = Run(PROJECT, three, "gpu", "", BUDGET)
    for cell, state in zip(three, ("ok", "na", "ok"), strict=True):
        run._last({"event": "begin", "key": cell.key}, 0, lambda: None)
        told = {"measurement": {"seconds": 1.0, "spent_s": {"rest": 0.1}}} if state == "ok" else {"reason": "no"}
        run._last({"event": "cell", "key": cell.key, "state": state, **told}, 0, lambda: None)
    spent = [run.group.outcomes[cell.key].measurements for cell in three]
    assert [each[0]["spent_s"] for each in spent if each] == [
        {"before": 3.0, "rest": 0.1},
        {"before": 5.5, "rest": 0.1},
    ]


@pytest.mark.parametrize("count", [1, 1000])  # a job that the pipe takes, and one that it does not hold
def test_a_worker_that_dies_before_it_reads_its_job(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    class Dead(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Dead)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    many = [Cell("transpose", "c", "float32", (n, 1), "hot", "cpu") for n in range(1, count + 1)]
    run = Run(PROJECT, many, "cpu", "", BUDGET)
    run.measure_all(0)
    assert {(outcome.state, outcome.reason) for outcome in run.group.outcomes.values()} == {
        ("failed", "its process died with exit code 1 before the first cell: ")
    }


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in Linux's /proc")
def test_a_killed_parent_leaves_no_worker_behind(package: Package, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    mark = f'    fclose(fopen("{begun}", "w"));\n'
    folder = package(head="#include <stdio.h>\n", c=mark + FOR_EVER)
    script = tmp_path / "parent.py"
    script.write_text(
        "from benchmarks.project import PROJECT\nfrom kernelwatch.plan.cells import plan\n"
        "from kernelwatch.plan.devices import Budget\nfrom kernelwatch.run.processes import Run\n"
        "every = plan(PROJECT.op('transpose'), 'cpu', quick=True)\n"
        "cells = [cell for cell in every if cell.rung == 'c' and cell.cache == 'hot']\n"
        f"Run(PROJECT, cells, 'cpu', {str(folder)!r}, Budget(samples=3, sample_s=0.0002)).measure_all(0)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    left: list[int] = []
    try:
        assert wait_until(begun.exists), "the kernel was never launched"
        left = workers_of(parent.pid)
        assert len(left) == 1
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert wait_until(lambda: not lives(left[0])), "the worker goes on without its parent"
    finally:
        parent.kill()
        parent.wait()
        for process in left:
            if lives(process):
                os.kill(process, signal.SIGKILL)


def test_a_worker_that_is_killed_costs_one_cell(package: Package, tmp_path: Path) -> None:
    """By the system, say, when memory runs out."""
    body = f'    fclose(fopen("{tmp_path}/begun", "w"));\n{FOR_EVER}'
    folder = package(head="#include <stdio.h>\n", c=body)
    killed = []

    def kill() -> None:
        if wait_until((tmp_path / "begun").exists):
            killed.extend(workers_of(os.getpid()))
            os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    run = measured(folder)
    thread.join()
    assert len(killed) == 1
    assert_only_failed(run, "c", f"its process died with exit code {-signal.SIGKILL}")


# --- one GPU, several runs -------------------------------------------------------------------------------------------

CUPY = """
class runtime:
    getDevice = staticmethod(lambda: 0)

class cuda:
    runtime = runtime

    class Device:
        pci_bus_id = "0000:1B:00.0"

def RawModule(**given):
    raise RuntimeError("this stands in for a GPU only until it is used")
"""


def test_a_gpu_that_another_run_measures_on_is_waited_for(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a CuPy that has a device and no more."""
    folder, locks = package(), tmp_path / "locks"
    (folder / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(locks))
    run = Run(PROJECT, cells("gpu"), "gpu", str(folder), BUDGET)
    said: list[str] = []
    with holder(locks / "kernelwatch-0000-1B-00-0.lock") as other:

        def note(words: str) -> None:
            said.append(words)
            assert outcomes(run)["padded"].state == "waiting"
            assert other.stdin is not None
            other.stdin.close()

        run.note = note
        run.measure_all(0)
    assert said == [f"waiting: process {other.pid} in {os.getcwd()} is measuring on the GPU"]
    assert outcomes(run)["padded"].reason.startswith("its process died with exit code 1 before the first cell")


def test_a_cpu_that_another_run_times_on_is_waited_for(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, locks = package(), tmp_path / "locks"
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(locks))
    run = Run(PROJECT, [cell for cell in cells() if cell.rung == "numpy"], "cpu", str(folder), BUDGET)
    said: list[str] = []
    with holder(locks / "kernelwatch-cpu.lock") as other:

        def note(words: str) -> None:
            said.append(words)
            assert outcomes(run)["numpy"].state == "waiting"
            assert other.stdin is not None
            other.stdin.close()

        run.note = note
        run.conditions()  # measures nothing, and waits for nobody
        assert said == []
        run.measure_all(0)
    assert said == [f"waiting: process {other.pid} in {os.getcwd()} is measuring on the CPU"]
    assert_measured(outcomes(run)["numpy"])


def test_operands_that_no_memory_holds(package: Package) -> None:
    """71 PiB of them: the cell is n/a, and the others are measured."""
    (mine,) = (cell for cell in cells() if cell.rung == "numpy")
    large = dataclasses.replace(mine, shape=(100_000_000, 100_000_000), cache="cold")
    run = Run(PROJECT, [mine, large], "cpu", str(package()), BUDGET)
    run.measure_all(0)
    assert_measured(run.group.outcomes[mine.key])
    found = run.group.outcomes[large.key]
    assert found.state == "na"
    assert found.reason.startswith("it needs 76293945312 MiB of memory, ")
    assert found.reason.endswith(" MiB are free")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start early on this machine, as they do for a GPU beside many cores."""
    monkeypatch.setattr(processes, "AHEAD", ("cpu",))
    monkeypatch.setattr(workers, "WAITING_MOST", 2)


@pytest.mark.usefixtures("ahead")
def test_the_next_processes_wait_while_one_measures(package: Package) -> None:
    folder = package()
    run = Run(PROJECT, cells(), "cpu", str(folder), BUDGET)
    run.measure_all(0, more=3)
    waiting = workers_of(os.getpid())
    assert len(waiting) == 2  # and no third
    run.measure_all(1)
    (last,) = workers_of(os.getpid())  # the other one has measured
    assert last in waiting
    for outcome in outcomes(run).values():
        assert_measured(outcome, 2)
    run.workers.close()
    run.workers.close()
    assert workers_of(os.getpid()) == []


@pytest.mark.usefixtures("ahead")
def test_no_process_waits_where_nothing_can_be_measured(tmp_path: Path) -> None:
    run = Run(PROJECT, cells(), "cpu", str(tmp_path), BUDGET)
    run.measure_all(0, more=1)
    assert run.unavailable
    assert workers_of(os.getpid()) == []


@pytest.mark.usefixtures("ahead")
def test_no_process_waits_when_a_group_is_done(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is interrupted."""
    made = list[Workers]()
    start = Workers.ahead

    def noted(these: Workers, wanted: int) -> None:
        made.append(these)
        start(these, wanted)

    monkeypatch.setattr(Workers, "ahead", noted)
    few_processes(monkeypatch, 2)
    options = Options(tree=str(package()), only="transpose/(c|numpy) .* 256x256 hot")
    group.measure(PROJECT, "transpose", "cpu", options)
    assert len(made) == 2
    assert workers_of(os.getpid()) == []
    monkeypatch.setattr(Run, "_note", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        group.measure(PROJECT, "transpose", "cpu", options)
    assert len(made) == 2 + 1
    assert workers_of(os.getpid()) == []


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    ("clocks_mhz", "sources", "waiting"),
    [
        ((1980.0, 1980.0, 1980.0), False, [0, 2, 1]),
        ((1980.0, 1980.0, 1980.0), True, [0, 2, 2, 1]),
        ((1980.0, 1400.0, 1980.0), False, [0, 2, 1, 1]),
        ((1980.0, 1400.0, 1980.0), True, [0, 2, 2, 2, 1]),
        ((1980.0, 1980.0, 1400.0), True, [0, 2, 2, 1, 1]),  # the one for the codes measures it, and one for them starts
    ],
)
def test_a_process_waits_for_what_comes_after_the_last_round(
    package: Package, monkeypatch: pytest.MonkeyPatch, clocks_mhz: tuple[float, ...], sources: bool, waiting: list[int]
) -> None:
    """As soon as it is known that a cell is measured again, or that its codes are looked at. No process starts that is
    not used. The clocks and times are planted, as if read on a GPU."""
    note, take, start = Run._note, Workers.take, Workers._start
    waited, started = list[int](), list[Worker]()

    def on_a_gpu(run: Run, event: dict[str, Any], process: int) -> None:
        clock = (*clocks_mhz, 1980.0)[process]
        event["measurement"] |= {"clock64_mhz": clock, "throttled": [LOW_CLOCK] if clock < 1980 else []}
        event["measurement"] |= {"seconds": 1e-3 / clock, **({"sources": "some"} if sources else {})}
        note(run, event, process)

    def taken(these: Workers) -> Worker:
        waited.append(len(these._waiting))
        return take(these)

    def begun(these: Workers) -> Worker:
        started.append(start(these))
        return started[-1]

    monkeypatch.setattr(Run, "_note", on_a_gpu)
    monkeypatch.setattr(Workers, "take", taken)
    monkeypatch.setattr(Workers, "_start", begun)
    monkeypatch.setattr(group, "note_codes", lambda run: run.workers.take().end() if sources else None)
    few_processes(monkeypatch, 3)
    group.measure(PROJECT, "transpose", "cpu", Options(tree=str(package()), only="transpose/c float32 256x256 hot"))
    assert waited == waiting
    assert len(started) == len(waiting)
    assert workers_of(os.getpid()) == []


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("ahead")
def test_a_waiting_process_imports_what_others_did(package: Package, tmp_path: Path) -> None:
    """A rung imports a module when it is loaded. The first process has it only then; those that wait meanwhile are told
    of it, and have it before their job comes."""
    folder = package()
    seen = tmp_path / "seen"
    rung = folder / "gpukernels" / "transpose" / "numpy.py"
    late = f"import sys\nwith open({str(seen)!r}, 'a') as file:\n    print('json5' in sys.modules, file=file)\n"
    rung.write_text(f"{late}import json5\n{rung.read_text()}")
    order = sorted(cells(), key=lambda cell: cell.rung != "numpy")
    run = Run(PROJECT, order, "cpu", str(folder), BUDGET)
    run._worker(order, 0, lambda: None, 2)
    for process in (1, 2):
        run._worker(order, process, lambda: None)
    assert_measured(outcomes(run)["numpy"], 3)
    assert seen.read_text().split() == ["False", "True", "True"]
    tops = {name.partition(".")[0] for name in run.workers.modules}
    assert "json5" in tops
    assert not tops & {"gpukernels", "kernelwatch", "benchmarks"}


# What a job for the CPU may not import: it takes long, or is not installed where only such cells are measured.
NOT_IMPORTED = ("cupy", "pynvml", "elftools", "asv", "rich", "kernelwatch.emulator", "kernelwatch.analysis")


def test_a_job_for_the_cpu_loads_nothing_of_the_others(package: Package, tmp_path: Path) -> None:
    mine = cells()
    job = {
        "project": str(PROJECT.here.parent),
        "tree": str(package()),
        "device": "cpu",
        "seed": 0,
        "budget": dataclasses.asdict(BUDGET),
        "cells": [cell.as_json() for cell in mine],
        "early": False,
        "alone": True,
    }
    with (tmp_path / "stderr").open("w+") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-v", "-P", str(WORKER)],  # names each module that is imported
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()  # and stays open, as long as the process is there
            events = [json.loads(line) for line in process.stdout]
            process.wait()
        stderr.seek(0)
        imported = {line.split("'")[1] for line in stderr if line.startswith("import '")}
    assert process.returncode == 0
    told = [event["event"] for event in events if event["event"] != "modules"]
    assert told == ["start", *["begin", "cell"] * len(mine), "end"]
    assert {event["state"] for event in events if event["event"] == "cell"} == {"ok"}
    assert {"numpy", "gpukernels", "benchmarks.project", "kernelwatch.timing.cpu"} <= imported
    assert not [name for name in imported if name.startswith(tuple(f"{one}." for one in NOT_IMPORTED))]
    assert not imported & set(NOT_IMPORTED)


def test_a_process_that_gets_no_job_leaves() -> None:
    for said in ("", "[]\n"):
        command = [sys.executable, "-P", str(WORKER)]
        done = subprocess.run(command, input=said, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
