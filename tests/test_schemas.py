"""kernelwatch measure, whose document is as the shipped schema says; test_versus.py and test_decisions.py check the
other documents."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelwatch.commands import measure
from kernelwatch.history.records import finite
from kernelwatch.report import documents
from kernelwatch.report.documents import VERSION
from kernelwatch.system.errors import CANNOT
from tests.schemas import FOLDER, check, schema

OWN = """
import os
import sys
from kernelwatch.system import clock
import numpy as np

def arrays():
    print("what a function prints is no part of a document")
    os.system("echo nor what a library prints")
    x = np.arange(1024.0)
    return x, np.empty_like(x)

def keywords():
    return {"x": np.arange(1024.0), "out": np.empty(1024)}

def reserved():
    return {"cache": 1}

def rests(x, out):
    clock.sleep(2e-4)

def rests_longer(x, out):
    clock.sleep(2e-2)

def alone():
    clock.sleep(2e-4)

def fails(*arguments):
    raise KeyError("nothing")

def exits():
    sys.exit(0)

def leaves(*arguments):
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    os._exit(0 if child else 5)

three = 3
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_kernels.py").write_text(OWN)
    (folder / "broken_kernels.py").write_text("1 +")
    (folder / "script.py").write_text("import sys\nsys.exit(0)")
    return folder


@pytest.fixture(autouse=True)
def exact(exact_api: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands measure by an exact clock."""
    monkeypatch.setenv("PYTHONPATH", str(exact_api))


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kernelwatch", "measure", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


# --- kernelwatch measure ----------------------------------------------------------------------------------------------


def test_a_function_is_measured_without_a_project(own: Path) -> None:
    done = run(own, "own_kernels:rests", "--args", "arrays", "--json", "--seconds", "0.02", "--flops", "1024")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    check(found, "measure")
    assert "no part of a document" in done.stderr
    assert "nor what a library prints" in done.stderr
    measured = found["measured"]
    assert (measured["name"], measured["device"] != "", measured["cache"]) == ("rests", True, "cold")
    assert measured["seconds"] > 2e-4
    assert measured["flops_per_s"] == pytest.approx(1024 / measured["seconds"])
    assert measured["bytes"] == 2 * 8 * 1024
    assert (found["against"], found["comparison"], found["exit_code"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("function", "against", "verdict", "code"),
    [("rests_longer", "rests", "slower", 1), ("rests", "rests_longer", "faster", 0)],
)
def test_the_exit_code_is_the_verdict(own: Path, function: str, against: str, verdict: str, code: int) -> None:
    file = str(own / "own_kernels.py")
    arguments = [f"{file}:{function}", "--against", f"{file}:{against}", "--args", "keywords", "--seconds", "0.4"]
    done = run(own.parent, *arguments, "--json")
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    check(found, "measure")
    assert (found["exit_code"], found["comparison"]["verdict"]) == (code, verdict)
    assert (found["measured"]["name"], found["against"]["name"]) == (function, against)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_two_files_of_one_name_are_two_modules(tmp_path: Path, processes: str) -> None:
    for folder, seconds in (("a", 0.5), ("b", 1e-4)):
        (tmp_path / folder).mkdir()
        own = f"class Box: pass\ndef box(): return Box()\ndef f(box): clock.sleep({seconds})\n"
        (tmp_path / folder / "kernel.py").write_text("from kernelwatch.system import clock\n" + own)
    options = ["--args", "box", "--processes", processes, "--seconds", "0.01", "--json"]
    done = run(tmp_path, "b/kernel.py:f", "--against", "a/kernel.py:f", *options)
    assert done.returncode == (0 if processes == "1" else 2), done.stderr  # a verdict needs four processes
    assert json.loads(done.stdout)["comparison"]["ratio"] < 0.5


def test_a_file_that_another_one_hides_is_refused(tmp_path: Path) -> None:
    for folder, seconds in (("a", 2e-2), ("b", 1e-4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel.py").write_text("import waits\ndef f(): waits.now()\n")
        (tmp_path / folder / "waits.py").write_text(f"import time\ndef now(): time.sleep({seconds})\n")
    done = run(tmp_path, "b/kernel.py:f", "--against", "a/kernel.py:f", "--json")
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert f"{tmp_path}/b/waits.py would be hidden by {tmp_path}/a/waits.py" in done.stderr


def test_a_main_program_beside_a_file_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("1 / 0\n")
    (tmp_path / "kernel.py").write_text("def f(): pass\n")
    done = run(tmp_path, "kernel.py:f", "--seconds", "0.01", "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--args", "numbers"], "makes a dictionary with the key 1: its keys should be names of arguments"),
        (["--args", "names"], "f raises TypeError: f() got an unexpected keyword argument 'function'"),
        (
            ["--args", "names", "--judge", "kernel.py:f", "--rtol", "inf"],
            "argument --rtol: should be a number, at least 0",
        ),
        (
            ["--args", "names", "--judge", "kernel.py:f", "--atol", "-1"],
            "argument --atol: should be a number, at least 0",
        ),
    ],
)
def test_arguments_without_a_meaning_are_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    own = "def f(): pass\ndef numbers(): return {1: 2}\ndef names(): return {'function': 1}\n"
    (tmp_path / "kernel.py").write_text(own)
    done = run(tmp_path, "kernel.py:f", *arguments)
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_comparison_that_cannot_tell_is_2(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    assert {word: measure.CODES.get(word, 0) for word in ("faster", "slower", "cannot tell", "same within 1 %")} == {
        "faster": 0, "slower": 1, "cannot tell": 2, "same within 1 %": 0,
    }  # fmt: skip
    monkeypatch.chdir(own)
    monkeypatch.syspath_prepend(str(own))
    monkeypatch.setattr(measure, "compare", lambda *_, **__: SimpleNamespace(verdict="cannot tell"))
    monkeypatch.setattr(measure, "document", lambda found, code: {"exit_code": code})
    assert measure.main("measure", ["own_kernels:alone", "--against", "own_kernels:alone", "--json"]) == 2


def test_a_function_without_arguments_is_told_to_have_nothing_to_rotate(own: Path) -> None:
    done = run(own, "own_kernels:alone", "--seconds", "0.02")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("alone\n")
    assert "warning: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["own_kernels"], "'own_kernels' names no function: it should be MODULE:FUNCTION or FILE.py:FUNCTION"),
        (["nowhere.py:f"], "nowhere.py:f: there is no file nowhere.py"),
        (["own_kernels:nothing"], "'own_kernels:nothing' names no function"),
        (["own_kernels:three"], "names no function, but an object of type int"),
        (["broken_kernels:f"], "broken_kernels:f cannot be imported: SyntaxError: invalid syntax"),
        (["own_kernels:fails"], "fails raises KeyError: 'nothing'"),
        (["own_kernels:exits"], "calls sys.exit(0)"),
        (["script:main"], "calls sys.exit(0)"),
        (["own_kernels:alone", "--args", "fails"], "own_kernels:fails raises KeyError: 'nothing'"),
        (["own_kernels:alone", "--args", "reserved"], "--args made keywords that measure itself has: cache"),
        (["own_kernels:alone", "--seconds", "nan"], "argument --seconds: should be a number above 0, got nan"),
        (["own_kernels:alone", "--processes", "0"], "--processes takes a number of at least 1"),
    ],
)
def test_what_cannot_be_measured_is_no_verdict(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    from kernelwatch.__main__ import code_of

    monkeypatch.chdir(own)
    monkeypatch.syspath_prepend(str(own))
    assert code_of("measure", lambda: measure.main("measure", [*arguments, "--json"])) == CANNOT
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out


@pytest.mark.parametrize("asked", [["own_kernels:leaves"], ["own_kernels:alone", "--against", "own_kernels:leaves"]])
def test_a_function_that_ends_the_process_gives_no_verdict(own: Path, asked: list[str]) -> None:
    """Its own exit code would be that of a function that is as fast as the other one, or faster."""
    done = run(own, *asked, "--json")
    assert done.returncode == CANNOT, done.stderr
    assert "nothing was measured: a module or function of these ends its process, with exit code 0" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        ("ctypes.CDLL(None).exit(0)", "with exit code 0"),
        ("os.execv('/bin/true', ['true'])", "with exit code 0"),
        ("os.kill(os.getpid(), 9)", "by SIGKILL"),
    ],
)
def test_however_a_function_ends_the_process(tmp_path: Path, ends: str, how: str) -> None:
    (tmp_path / "lethal.py").write_text(f"import ctypes, os\n\n\ndef f():\n    {ends}\n")
    done = run(tmp_path, "lethal.py:f", "--json")
    told = f"nothing was measured: a module or function of these ends its process, {how}"
    assert (done.returncode, done.stdout, told in done.stderr) == (CANNOT, "", True), done.stderr


def test_what_runs_when_python_ends_chooses_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import atexit, os\n\nfrom kernelwatch.system import clock\n\natexit.register(os._exit, 0)\n\n\n"
        "def quick():\n    clock.sleep(2e-4)\n\n\ndef slow():\n    clock.sleep(2e-2)\n"
    )
    done = run(tmp_path, "slow.py:slow", "--against", "slow.py:quick", "--json")
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 1


# --- the schemas ------------------------------------------------------------------------------------------------------


def test_the_schemas_name_their_version_and_are_shipped() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == [
        "campaign.json",
        "events.json",
        "measure.json",
        "versus.json",
    ]
    for name in ("campaign", "events", "measure", "versus"):
        found = schema(name)
        assert found["$id"] == f"urn:kernelwatch:{name}:{VERSION}"
        assert found["properties"]["version"] == {"const": VERSION}
        assert found["properties"]["schema"] == {"const": f"kernelwatch/{name}"}


@pytest.mark.parametrize(
    ("counts", "fields", "word"),
    [
        ({"worse": 1, "better": 1}, {"failures": {"what": "why"}}, "failed"),
        ({"worse": 1, "better": 1}, {"undecided": ["a cell"]}, "worse"),
        ({"better": 1}, {"undecided": ["a cell"]}, "cannot tell"),
        ({"better": 1}, {"whole": False}, "cannot tell"),
        ({"better": 1}, {}, "better"),
        ({}, {}, "no change"),
        ({}, {"exact_only": True, "changed": {"op/rung": "a.cu"}}, "figures alone"),
        ({}, {"exact_only": True, "changed": {"op/rung": "a.cu"}, "alike": True}, "no change"),
        ({}, {"is_compared": False}, "new"),
        ({"repaired": 1}, {"is_compared": False}, "repaired"),
        ({"repaired": 1}, {}, "no change"),
    ],
)
def test_one_word_for_a_comparison(counts: dict[str, int], fields: dict[str, Any], word: str) -> None:
    """Of several, the one that decides the exit code; what was not compared as a whole is never better."""
    told = {name: (counts.get(name, 0), 0) for name in ("worse", "accepted", "better", "repaired")}
    values = {"failures": {}, "undecided": [], "whole": True, "counts": lambda: told}
    values |= {"exact_only": False, "changed": {}, "alike": False, "is_compared": True}
    assert documents.verdict_word(cast(Any, SimpleNamespace(**values | fields))) == word


def test_numbers_that_json_lacks_are_null() -> None:
    assert finite({"a": (1.0, float("nan")), 2: [float("inf"), True]}) == {"a": [1.0, None], "2": [None, True]}
