"""Which machine a CPU's figures are of: told by its hash, a change of the environment, unknown to older records."""

import io
import random
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.project import PROJECT
from kernelwatch.detect import events
from kernelwatch.detect.events import JudgedSeries
from kernelwatch.history.records import Measured, Record
from kernelwatch.plan.devices import Budget
from kernelwatch.report import terminal
from kernelwatch.run.outcome import alike, conditions
from kernelwatch.system.machine import machine_id, no_gpu
from kernelwatch.timing import cpu
from kernelwatch.timing.record import Facts, Measurement
from tests.series import results_of

KEY = "transpose/c float32 256x256 hot"
FACTS: Facts = {"cpu": "Xeon", "cores": [0, 1], "compiler": "gcc 12", "packages": {"numpy": "2.2.0"}, "harness": "1"}


def system(folder: Path, own: str | None = "abc", board: str = "X11", cache: str = "32K") -> tuple[Path, Path]:
    """The folders /etc and /sys of a machine."""
    files = {"sys/class/dmi/id/board_name": board, "sys/devices/system/cpu/cpu0/cache/index0/size": cache}
    if own is not None:
        files["etc/machine-id"] = own
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (folder / "etc").mkdir(exist_ok=True)
    return folder / "etc", folder / "sys"


def test_a_machine_is_told_by_its_id_and_its_hardware(tmp_path: Path) -> None:
    machines = {
        "one": system(tmp_path / "one"),
        "its twin": system(tmp_path / "twin", own="def"),
        "its image on another board": system(tmp_path / "board", board="X12"),
        "a container on it": system(tmp_path / "container", own=None),
        "another cache": system(tmp_path / "cache", own=None, cache="48K"),
        "nothing to read": (tmp_path / "none", tmp_path / "none"),
    }
    hashes = {name: machine_id(*folders) for name, folders in machines.items()}
    assert len(set(hashes.values())) == len(machines)
    assert machine_id(*system(tmp_path / "again")) == hashes["one"]
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in hashes.values())


def test_a_cpu_group_records_its_machine() -> None:
    facts = cpu.Cpu(PROJECT, None, [], Budget(1, 0.0), 0).facts()  # type: ignore[arg-type]
    assert facts["machine"] == machine_id()
    assert conditions(facts)["machine"] == machine_id()
    assert "machine" not in conditions(FACTS)


@pytest.mark.parametrize(
    ("before", "after", "same"), [("", "a", True), ("a", "", True), ("a", "a", True), ("a", "b", False)]
)
def test_what_a_record_does_not_know_is_no_difference(before: str, after: str, same: bool) -> None:
    sides = [conditions(FACTS | ({"machine": one} if one else {})) for one in (before, after)]
    assert alike(*sides) is same
    assert not alike(sides[0], sides[1] | {"cpu": "another"})


def record(machine: str, seconds: float, binary: str = "same") -> Record:
    """A commit's sidecar with one CPU cell. `machine`: "" where the record does not know it."""
    chance = random.Random(seconds)
    measurements: list[Measurement] = [
        {"process": process, "seconds": seconds * chance.gauss(1, 1e-3), "identity": binary} for process in range(3)
    ]
    measured = Measured(
        KEY, "ok", "", tuple(one["seconds"] for one in measurements), (), "transpose cpu", tuple(measurements)
    )
    facts = FACTS | ({"machine": machine} if machine else {})
    return Record("here", "0123abcd", {"transpose cpu": facts}, {KEY: measured})


def series(*stretches: tuple[str, float, int]) -> JudgedSeries:
    """A history. Each stretch: the machine, the seconds, the number of commits."""
    told: list[tuple[float, Record]] = []
    chance = random.Random(0)
    for machine, seconds, count in stretches:
        for _ in range(count):
            value = seconds * chance.gauss(1, 1e-3)
            told.append((value, record(machine, value, f"{seconds}")))
    return JudgedSeries("transpose.CPU.track_seconds", {}, {}, False, False, results_of(told, KEY, "seconds"))


def test_another_machine_of_the_same_name_is_the_environment() -> None:
    (change,) = series(("a", 3e-3, 12), ("b", 2e-3, 12)).changes()
    assert change.kind == "environment"
    assert change.why == ["machine a -> b"]


def test_the_same_step_on_one_machine_is_the_commits() -> None:
    for stretches in ((("a", 3e-3, 12), ("a", 2e-3, 12)), (("", 3e-3, 12), ("a", 2e-3, 12))):
        (change,) = series(*stretches).changes()
        assert change.kind == "improvement"


def test_a_record_that_does_not_know_its_machine_cuts_nothing() -> None:
    for stretches in ((("", 3e-3, 8), ("a", 3e-3, 8)), (("a", 3e-3, 8), ("", 3e-3, 4), ("a", 3e-3, 8))):
        history = series(*stretches)
        assert history.changes() == []
        assert events.turns([history]) == []
    (turn,) = events.turns([series(("", 3e-3, 4), ("a", 3e-3, 4), ("", 3e-3, 4), ("b", 3e-3, 4))])
    assert (turn.why, int(turn.before, 16), int(turn.commit, 16)) == ("machine a -> b", 11, 12)


@pytest.mark.parametrize(("before", "compared"), [("", True), ("a", True), ("b", False)])
def test_changes_since_the_commit_before_are_of_one_machine(before: str, compared: bool) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    terminal.show_changes(record(before, 3e-3), record("a", 2e-3), console)
    said = console.export_text()
    assert ("1 of 1 cells changed" in said) is compared
    assert ("transpose cpu not compared: another GPU, CPU, driver" in said) is not compared


def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'cupy'")
    assert no_gpu(missing) == (
        "CuPy cannot be imported (No module named 'cupy'); install the engine with [cuda13] or [cuda12]"
    )

    def load(name: str) -> None:
        if name not in known:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", load)
    known: set[str] = set()
    assert no_gpu(RuntimeError("insufficient")) == "no NVIDIA driver is installed (libcuda.so.1 is not found)"
    known = {"libcuda.so.1"}
    assert no_gpu(RuntimeError("out of memory")) == "RuntimeError: out of memory"
