"""The plugin: its parts, and how one process answers for all parameters of a series."""

import functools
import importlib
import importlib.metadata
import inspect
import json
import math
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from asv import runner

import kernelwatch.asv
from kernelwatch.asv import together
from tests.repositories import ROOT, Project

ASKED = {"name": "x.track_y", "params": [["a", "b"], ["1", "2"]], "at_once": True, "timeout": 9}
SAMPLES = {"samples": [1.0, 2.0], "number": 1}


def told(answer: object, errcode: int = 0, stderr: str = "") -> Any:
    """What asv's runner gives for one process."""
    return runner.BenchmarkResult([answer], [None], [None], errcode, stderr, None)


def test_answers_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"value": 1.5}, {"value": math.nan}, {"error": "RuntimeError: wrong"}, {"value": SAMPLES}]
    asked: list[Any] = []

    def once(benchmark: Any, spawner: Any, param_idx: Any, **options: Any) -> Any:
        asked.append((benchmark["name"], benchmark["params"], param_idx, options))
        return told(answers)

    monkeypatch.setattr(runner, "_run_benchmark_single_param", once)
    found = together.run_benchmark_together(ASKED, None, profile=False, extra_params={}, cwd="here")
    assert asked == [("x.track_y", [], None, {"profile": False, "extra_params": {}, "cwd": "here"})]
    assert repr(found.result) == "[1.5, nan, None, True]"
    assert found.samples == [None, None, None, [1.0, 2.0]]
    assert found.number == [None, None, None, 1]
    assert (found.errcode, found.stderr) == (1, "For parameters: b, 1\nRuntimeError: wrong")
    found = together.run_benchmark_together(ASKED, None, profile=False, selected_idx={0}, extra_params={}, cwd="here")
    assert repr(found.result) == "[1.5, nan, nan, nan]"
    assert (found.errcode, found.stderr) == (0, "")


def test_a_process_that_dies_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_run_benchmark_single_param", lambda *_, **__: told(None, 139, "it died"))
    found = together.run_benchmark_together(ASKED, None, profile=False, extra_params={}, cwd="here")
    assert (found.result, found.errcode, found.stderr) == ([None] * 4, 139, "it died")
    monkeypatch.setattr(runner, "_run_benchmark_single_param", lambda *_, **__: told([{"value": 1.0}]))
    found = together.run_benchmark_together(ASKED, None, profile=False, extra_params={}, cwd="here")
    assert (found.result, found.errcode) == ([None] * 4, 1)  # it has other parameters than asv knows


@pytest.mark.parametrize("change", [{"at_once": False}, {"params": []}])
def test_others_are_asked_one_by_one(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "one_by_one", lambda benchmark, *_, **__: ("stock", benchmark["name"]))
    assert together.run_benchmark_together(ASKED | change, None, profile=False) == ("stock", "x.track_y")
    assert together.run_benchmark_together(ASKED, None, profile=True) == ("stock", "x.track_y")


def test_what_is_patched_is_there() -> None:
    assert list(inspect.signature(together.one_by_one).parameters)[:3] == ["benchmark", "spawner", "profile"]
    wanted = {"benchmark", "spawner", "param_idx", "profile", "extra_params", "cwd"}
    assert set(inspect.signature(runner._run_benchmark_single_param).parameters) == wanted
    assert runner.BenchmarkResult._fields == ("result", "samples", "number", "errcode", "stderr", "profile")
    assert "res = run_benchmark(" in inspect.getsource(runner.run_benchmarks)  # by its global name


# --- the plugin ----------------------------------------------------------------------------------------------------


def test_the_one_plugin_is_all_of_them() -> None:
    assert json.loads((ROOT / "asv.conf.json").read_text())["plugins"] == [".kernelwatch.asv"]
    patching, found = (
        [importlib.import_module(f"kernelwatch.asv.{name}") for name in names]
        for names in (kernelwatch.asv.PATCHING, kernelwatch.asv.FOUND)
    )
    used = {"failing", "machine_names", "patches"}
    every = {module.name for module in pkgutil.iter_modules(kernelwatch.asv.__path__)}
    assert {*kernelwatch.asv.PATCHING, *kernelwatch.asv.FOUND, *used} == every
    assert all(hasattr(module, "setup") for module in patching)
    assert not any(hasattr(module, "setup") for module in found)
    assert set(kernelwatch.asv.PUBLISHING) < set(kernelwatch.asv.PATCHING)


def test_the_plugin_sets_all_of_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in kernelwatch.asv.PATCHING:
        module = importlib.import_module(f"kernelwatch.asv.{name}")
        monkeypatch.setattr(module, "setup", functools.partial(called.append, name))
    kernelwatch.asv.setup()
    assert sorted(called) == sorted(kernelwatch.asv.PATCHING)


def test_a_command_does_not_wait_for_the_plugin_and_asv_gets_all_of_it() -> None:
    code = """
import sys
import kernelwatch.commands.ladder
print(*sys.modules)
kernelwatch.asv.setup()
print(*sys.modules)
"""
    told = Project(ROOT, Path.home()).python(code).splitlines()
    before, after = ({name for name in line.split() if name.startswith("kernelwatch.asv.")} for line in told)
    assert before == {"kernelwatch.asv.machine_names"}
    assert {f"kernelwatch.asv.{name}" for name in (*kernelwatch.asv.PATCHING, *kernelwatch.asv.FOUND)} <= after
