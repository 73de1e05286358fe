"""Faults of a GPU in a run, by a stand-in: it falls off the bus, its memory fails, it becomes another one, it hangs."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.run import checkpoint, group, outcome, processes, workers
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.run.processes import Run
from kernelwatch.system.options import Options
from kernelwatch.system.patience import Patience
from tests import faulty_gpu
from tests.faulty_gpu import BREAKS, ECC, FALLS_OFF, FAULT_AT, HANGS, MIG, UUIDS, VANISHES
from tests.groups import BUDGET, ROOT
from tests.repositories import copy_into, new_project, rewrite

ONLY = r"transpose/(naive_read|naive_write|tiled|padded) float32 256x256 cold"
CELLS = 4
Faulty = Callable[[str], Options]


class Patient(Patience):
    """Nothing is a hang but the one that the fault is, however long a process takes on a busy machine."""

    def __init__(self, begun: Path, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.begun, self.over_before = begun, begun.with_name("hung")

    def over(self) -> str:
        has_come = self.begun.exists() and self.begun.stat().st_size > FAULT_AT
        why = super().over() if has_come and not self.over_before.exists() else ""
        if why:
            self.over_before.touch()
        return why


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """Makes the workers those of a GPU with a fault; the options of a run on it."""

    def make(fault: str) -> Options:
        (tmp_path / "fault").write_text(fault)
        monkeypatch.setattr(processes, "Patience", functools.partial(Patient, tmp_path / "begun"))
        for name in ("facts", "kept"):
            (tmp_path / name).mkdir()
        monkeypatch.setenv("FAULTY", str(tmp_path))
        monkeypatch.setenv("ASV_COMMIT", "1" * 40)
        monkeypatch.setattr(workers, "WORKER", Path(faulty_gpu.__file__))
        facts, kept, progress = (str(tmp_path / name) for name in ("facts", "kept", "progress"))
        return Options(tree=str(ROOT), only=ONLY, locks=str(tmp_path), facts=facts, kept=kept, progress=progress)

    return make


def states(found: Group) -> list[str]:
    assert len(found.outcomes) == CELLS
    return sorted(each.state for each in found.outcomes.values())


def failed(found: Group) -> list[Outcome]:
    return [each for each in found.outcomes.values() if each.state == "failed"]


def notes(options: Options) -> list[str]:
    lines = map(json.loads, Path(options.progress).read_text().splitlines())
    return [line["note"] for line in lines if "note" in line]


@pytest.mark.parametrize(
    ("fault", "first", "then"),
    [
        (FALLS_OFF, "; NVML of GPU 0: GPU is lost", "no CUDA-capable device is detected; NVML of GPU 0: GPU is lost"),
        (VANISHES, "", "no GPU here: "),
    ],
)
def test_a_gpu_that_falls_off_the_bus(faulty: Faulty, fault: str, first: str, then: str) -> None:
    """One cell fails by that name. What earlier processes measured stays, and is no finished group."""
    options = faulty(fault)
    found = group.measure(PROJECT, "transpose", "gpu", options)
    assert states(found) == ["failed", "ok", "ok", "ok"]
    (cell,) = failed(found)
    assert cell.reason == f"CUDARuntimeError: cudaErrorLaunchFailure: unspecified launch failure{first}"
    assert sorted(len(each.measurements) for each in found.outcomes.values()) == [0, 1, 1, 2]
    (said,) = notes(options)
    assert said.startswith("the device was lost: ")
    assert then in said
    # The next group of the run tries nothing, and says why; one measured before the fault would be taken as it was.
    begun = Path(options.facts).with_name("processes").stat().st_size
    (Path(options.facts) / "transpose.gpu.jsonl").unlink()
    again = group.measure(PROJECT, "transpose", "gpu", options)
    assert {(each.state, each.reason) for each in again.outcomes.values() if not each.measurements} == {
        ("failed", said)
    }
    assert Path(options.facts).with_name("processes").stat().st_size == begun
    # A later run goes on where the last whole process ended.
    kept = checkpoint.there(found.name, found.outcomes, options)
    assert kept is not None
    assert checkpoint.taken(kept) == 1
    assert states(kept) == ["ok"] * CELLS


def test_a_gpu_that_is_lost_before_anything_is_measured_has_failed(
    faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the machine that has none: such cells would be n/a, and not be measured again."""
    options = faulty(FALLS_OFF)
    (tmp_path / "begun").write_text("." * (FAULT_AT + 1))
    found = group.measure(PROJECT, "transpose", "gpu", options)
    assert states(found) == ["failed"] * CELLS
    assert {each.reason.partition("NVML")[2] for each in found.outcomes.values()} == {" of GPU 0: GPU is lost"}


def test_a_gpu_that_cannot_be_used_any_more(faulty: Faulty) -> None:
    """CUDA still tells which device it is, and NVML says nothing of a fault."""
    found = group.measure(PROJECT, "transpose", "gpu", faulty(BREAKS))
    assert states(found) == ["failed", "ok", "ok", "ok"]


def test_a_retake_on_a_lost_gpu_loses_nothing(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    options = faulty(FALLS_OFF)
    run = Run(PROJECT, [each for each in _cells() if each.rung != "tiled"], "gpu", str(ROOT), BUDGET)
    run.measure_all(0)
    for each in run.group.outcomes.values():
        each.measurements[0]["throttled"] = ["hardware slowdown"]
    Path(options.facts).with_name("begun").write_text("." * (FAULT_AT + 1))
    group.retake(run, 1)
    assert [(each.state, len(each.measurements)) for each in run.group.outcomes.values()] == [("ok", 1)] * 3
    assert run.lost


def test_uncorrected_errors_of_the_memory_fail_a_cell(faulty: Faulty) -> None:
    """Its figure is of operands, or of code, that nobody knows."""
    found = group.measure(PROJECT, "transpose", "gpu", faulty(ECC))
    assert states(found) == ["failed", "ok", "ok", "ok"]
    (cell,) = failed(found)
    assert cell.reason == "MemoryFault: 3 uncorrected ECC errors in the GPU's memory while it was measured"
    assert cell.measurements == []


def test_a_mig_instance_that_becomes_another_one(faulty: Faulty) -> None:
    """Figures of two devices are not those of one cell."""
    options = faulty(MIG)
    found = group.measure(PROJECT, "transpose", "gpu", options)
    assert found.facts["nvml_uuid_sha256"] == UUIDS[0]
    assert [(each.state, len(each.measurements)) for each in found.outcomes.values()] == [("ok", 1)] * CELLS
    assert notes(options) == [
        f"the device was lost: it is another one than before: nvml_uuid_sha256 {UUIDS[0]} -> {UUIDS[1]}"
    ]


def _cells() -> list[Cell]:
    return [each for each in plan(PROJECT.op("transpose"), "gpu", only=ONLY)]


def test_a_call_of_the_driver_that_hangs(faulty: Faulty) -> None:
    """The worker is killed, and costs the cells of one rung."""
    faulty(HANGS)
    run = Run(PROJECT, _cells(), "gpu", str(ROOT), BUDGET, silence_s=2.0)
    run.measure_all(0)
    run.measure_all(1)
    (cell,) = failed(run.group)
    assert cell.reason == "it hung: nothing for 2 s, its process was killed"
    assert states(run.group) == ["failed", "ok", "ok", "ok"]


def test_a_process_that_the_driver_holds(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits within the kernel is not killed by any signal: nobody waits for it, and no further one is
    started on that GPU."""
    faulty(HANGS)
    held = list[subprocess.Popen[str]]()

    class Held(subprocess.Popen[str]):
        ended = False

        def wait(self, timeout: float | None = None) -> int:
            if self.ended:
                return super().wait(timeout)
            assert timeout is not None, "this would wait for ever"
            held.append(self)
            raise subprocess.TimeoutExpired("worker", timeout)

    run = Run(PROJECT, _cells(), "gpu", str(ROOT), BUDGET, silence_s=2.0)
    run.measure_all(0)
    monkeypatch.setattr(subprocess, "Popen", Held)
    monkeypatch.setattr(processes, "END_S", 0.01)
    run.measure_all(1)
    assert len({each.pid for each in held}) == 1
    assert run.lost
    assert run.unavailable == f"the device was lost: the driver hangs: process {held[0].pid} cannot be killed"
    assert states(run.group) == ["failed", "ok", "ok", "ok"]
    Held.ended = True
    held[0].wait()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"gpu": "one"}, ""),
        ({"gpu": "one"}, {"gpu": "one", "machine": "a"}, ""),  # what one of both does not know is no difference
        ({"gpu": "one"}, {"gpu": "other"}, "gpu one -> other"),
        ({"nvml_driver": "1"}, {"nvml_driver": None}, "nvml_driver 1 -> None"),
    ],
)
def test_conditions_that_change_in_a_run(before: Any, after: Any, told: str) -> None:
    assert outcome.changed(before, after) == told


def test_a_run_of_asv_ends_when_its_gpu_is_lost(tmp_path: Path) -> None:
    """Further commits would fail as well, and take the place of what is known of them."""
    project = new_project(tmp_path)
    copy_into(project.folder)
    worker = 'WORKER = Path(__file__).with_name("worker.py")'
    rewrite(project.folder, {"kernelwatch/run/workers.py": {worker: f"WORKER = Path({str(faulty_gpu.__file__)!r})"}})
    commits = [project.commit_all(f"commit {at}", "--allow-empty") for at in range(2)]
    (project.home / "fault").write_text(FALLS_OFF)
    hashes, progress = project.home / "hashes", project.home / "progress"
    hashes.write_text("\n".join(commits))
    variables = {"FAULTY": str(project.home), "KERNELWATCH_ONLY": ONLY, "KERNELWATCH_PROGRESS": str(progress)}
    series = r"transpose\.GPU\.track_seconds"
    done = project.run(
        sys.executable, "-m", "asv", "run", "-E", "checkout", "--bench", series, f"HASHFILE:{hashes}", **variables
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the run ends: the device was lost: " in done.stdout + done.stderr
    (sidecar,) = (project.folder / "results").glob("*/*.facts.jsonl")
    assert sidecar.name.startswith(commits[0][:8])
    (found,) = outcome.read(sidecar.read_text().splitlines())
    assert states(found) == ["failed", "ok", "ok", "ok"]
    (told,) = (line for line in map(json.loads, progress.read_text().splitlines()) if "commit" in line)
    assert told["lost"].startswith("the device was lost: ")
