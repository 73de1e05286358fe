"""Rungs that are plain functions, measured: a faulty one costs only itself; what they import is a condition."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernelwatch.detect.events import JudgedSeries
from kernelwatch.history.records import Measured, Record
from kernelwatch.plan.cells import plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.project import load_from
from kernelwatch.run import processes
from kernelwatch.run.group import measure
from kernelwatch.run.outcome import Outcome
from kernelwatch.run.processes import Run
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Facts, Measurement
from tests.repositories import without_modules
from tests.series import results_of

FAULTY = """
import numpy as np


def good(a, out, scale):
    np.multiply(a.sum(axis=1), np.float32(scale), out=out)


def returns(a, out, scale):
    return a.sum(axis=1) * np.float32(scale)


def raises(a, out, scale):
    raise RuntimeError("no such tile")


KERNELS = {
    "row_sum": {
        "good": good,
        "returns": returns,
        "raises": raises,
        "unimportable": "faulty.broken:row_sum",
        "misnamed": "faulty:row_sums",
        "three": 3,
        "texted": "faulty.broken",
    },
}
"""
DESCRIPTION = """
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project

SCALARS = {"scale": 2}
SUM = Computation(
    lambda shape, type: Operands((Operand(shape, np.dtype(type)),), (Operand(shape[:1], np.dtype(type)),), SCALARS),
    lambda a, scale: scale * a.astype(np.float64).sum(axis=1),
    bound=lambda type, a, scale: (a.shape[1] + 1) * 2.0**-24 * scale * abs(a).astype(np.float64).sum(axis=1),
)
NAMES = ("good", "returns", "raises", "unimportable", "misnamed", "three", "texted", "lacking")
RUNGS = tuple(Rung(name, "cpu", ("float32",)) for name in NAMES)
PROJECT = Project(
    "faulty",
    Path(__file__).resolve(),
    tuple(Problem(op, SUM, RUNGS, shapes=((512, 512),), cpu_shapes=((512, 512),)) for op in ("row_sum", "column_sum")),
)
"""


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., Run]:
    """The rungs of an op, once measured by a worker."""

    def of(package: str, op: str = "row_sum", broken: str = "no_such_module") -> Run:
        texts = {"faulty/__init__.py": package, "faulty/broken.py": f"import {broken}\n"}
        for name, text in {**texts, "described/__init__.py": "", "described/project.py": DESCRIPTION}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        with without_modules("described"):
            project = load_from(tmp_path / "described")
        run = Run(project, plan(project.op(op), "cpu"), "cpu", str(tmp_path), Budget(3, 0.0002))
        run.measure_all(0)
        return run

    return of


def test_an_import_that_ends_the_process_costs_only_its_own_rung(
    measured: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a process imports what its rungs need before it measures, as for a GPU."""
    (tmp_path / "lethal.py").write_text("import os\nos._exit(7)\n")
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(processes, "AHEAD", devices)
        found = outcomes(measured(FAULTY, broken="lethal"))
        assert (found["unimportable"].state, found["good"].state) == ("failed", "ok")
        assert "exit code 7" in found["unimportable"].reason


def test_what_rungs_need_is_imported_before_the_lock(
    measured: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module says in which order: the import, then the lock of the CPU, which is a file."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / "telling.py").write_text(
        f"import os\nwith open({str(tmp_path / 'seen')!r}, 'a') as file:\n"
        f"    print(os.listdir({str(tmp_path / 'locks')!r}), file=file)\n"
    )
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path / "locks"))
    for devices in (("cpu",), ()):
        monkeypatch.setattr(processes, "AHEAD", devices)
        measured(FAULTY, broken="telling")
    assert (tmp_path / "seen").read_text().splitlines() == ["[]", "['kernelwatch-cpu.lock']"]


OWN = """
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelwatch.plan.devices import Budget, Device


@dataclass(frozen=True)
class Own(Device):
    def places(self, problem: Problem) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        yield from ((rung.name, "float32", (64, 64)) for rung in problem.rungs if rung.where == self.where)


OWN = Own("own", "kernelwatch.timing.cpu:Cpu", holds="CPU", processes=2, budget=Budget(2, 0.0002), where="elsewhere")
HERE, THERE = PROJECT.problems
RUNGS = (Rung("good", "cpu", ("float32",), where="elsewhere"), Rung("returns", "cpu", ("float32",)))
PROJECT = replace(PROJECT, problems=(replace(HERE, rungs=RUNGS, devices=(OWN,)), THERE))
"""


def test_a_project_may_have_a_device_of_its_own(tmp_path: Path) -> None:
    """The engine asks it for its cells, how many processes time them, and what measures them."""
    for name, text in {"faulty": FAULTY, "described": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    (tmp_path / "described" / "project.py").write_text(DESCRIPTION + OWN)
    with without_modules("described"):
        project = load_from(tmp_path / "described")
    assert [device.name for device in project.timed] == ["gpu", "cpu", "own"]
    assert [cell.rung for cell in plan(project.op("row_sum"), "cpu")] == ["returns"]
    assert plan(project.op("row_sum"), "own", quick=True) == []
    group = measure(project, "row_sum", "own", Options(tree=str(tmp_path)))
    assert group.name == "row_sum own"
    ((key, outcome),) = group.outcomes.items()
    assert (key, outcome.state, len(outcome.measurements)) == ("row_sum/good float32 64x64 own", "ok", 2)
    assert measure(project, "column_sum", "own", Options(tree=str(tmp_path))).outcomes == {}


def outcomes(run: Run) -> dict[str, Outcome]:
    return {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}


def test_a_faulty_rung_costs_only_itself(measured: Callable[..., Run]) -> None:
    run = measured(FAULTY)
    said = {rung: (outcome.state, outcome.reason) for rung, outcome in outcomes(run).items()}
    (one,) = outcomes(run)["good"].measurements
    assert one["identity"]
    assert one["seconds"] > 0
    wrong = said.pop("returns")
    assert wrong[0] == "failed"
    assert wrong[1].startswith("WrongOutput: row_sum/returns returned an array and left out untouched: ")
    entry = 'TypeError: faulty.KERNELS["row_sum"]'
    assert said == {
        "good": ("ok", ""),
        "raises": ("failed", "RuntimeError: no such tile"),
        "unimportable": ("failed", "ModuleNotFoundError: No module named 'no_such_module'"),
        "misnamed": ("failed", "AttributeError: module 'faulty' has no attribute 'row_sums'"),
        "three": ("failed", f'{entry}["three"] must be a function or a text "module:function"; it is 3'),
        "texted": (
            "failed",
            f'{entry}["texted"] must be a function or a text "module:function"; it is \'faulty.broken\'',
        ),
        "lacking": ("na", "this commit has no row_sum/lacking: faulty.KERNELS does not list it"),
    }
    assert run.group.facts["imports"] == {"numpy": np.__version__}


@pytest.mark.parametrize(
    ("table", "state", "said"),
    [
        ("[]", "failed", "TypeError: faulty.KERNELS must be a table {op: {rung: function}}; it is []"),
        ("{'row_sum': sum}", "failed", 'TypeError: faulty.KERNELS["row_sum"] must be a table {rung: function}; it is '),
        ("{}", "na", "this commit has no row_sum/good: faulty.KERNELS does not list it"),
    ],
)
def test_what_is_no_table_is_said(measured: Callable[..., Run], table: str, state: str, said: str) -> None:
    found = outcomes(measured(f"KERNELS = {table}\n"))["good"]
    assert found.state == state
    assert found.reason.startswith(said)


def test_a_package_without_a_table_or_load(measured: Callable[..., Run]) -> None:
    found = outcomes(measured("kernels = {}\n"))["good"]
    assert (found.state, found.reason) == ("na", "faulty has no load() and no table KERNELS")


# --- the conditions ------------------------------------------------------------------------------------------------


KEY = "row_sum/numpy float32 8x8 cold"
FACTS: Facts = {"cpu": "Xeon", "cores": [0], "compiler": None, "packages": {"numpy": "2.2.0"}, "harness": "1"}


def history(*stretches: tuple[str, float]) -> JudgedSeries:
    """Twelve commits each. `stretches`: the version of a distribution, "" where nothing imports it; the seconds."""
    told: list[tuple[float, Record]] = []
    chance = random.Random(0)
    for version, level_s in stretches:
        facts = FACTS | {"imports": {"numpy": "2.2.0"} | ({"foreign-kernels": version} if version else {})}
        for _ in range(12):
            value = level_s * chance.gauss(1, 1e-3)
            measurements: list[Measurement] = [
                {"process": process, "seconds": value * chance.gauss(1, 1e-3), "identity": f"{version}{level_s}"}
                for process in range(3)
            ]
            values = tuple(one["seconds"] for one in measurements)
            cell = Measured(KEY, "ok", "", values, (), "row_sum cpu", tuple(measurements))
            told.append((value, Record("here", "0123abcd", {"row_sum cpu": facts}, {KEY: cell})))
    return JudgedSeries("suite.CPU.track_seconds", {}, {}, False, False, results_of(told, KEY, "seconds"))


def test_an_upgrade_is_the_environment() -> None:
    (change,) = history(("1.0", 3e-3), ("1.1", 2e-3)).changes()
    assert (change.kind, change.why) == ("environment", ["import foreign-kernels 1.0 -> 1.1"])


def test_a_commit_that_imports_something_new_is_judged() -> None:
    for stretches in ((("", 3e-3), ("1.0", 2e-3)), (("1.0", 3e-3), ("", 2e-3)), (("1.0", 3e-3), ("1.0", 2e-3))):
        (change,) = history(*stretches).changes()
        assert change.kind == "improvement"
