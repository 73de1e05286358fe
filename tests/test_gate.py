"""The gate: kernels' tests that fail, hang, or end pytest."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwatch.commands import gate, phases
from kernelwatch.plan import project as plan_project
from kernelwatch.report.arguments import Output
from kernelwatch.system.errors import UserError
from tests.repositories import ROOT, processes_in

Said = pytest.CaptureFixture[str]

# In native code, where no signal handler of Python's runs: one works and keeps the interpreter's lock, one waits.
NATIVE = {
    "endless": "import re\n\n\ndef test_it():\n    re.match('(a+)+$', 'a' * 60 + 'b')\n",
    "hung": "import ctypes\n\n\ndef test_it():\n    ctypes.CDLL(None).pause()\n",
}


COUNT = ("-o", "console_output_style=count")  # in place of percent
GATE_OPTIONS = {"one": (), "one counts": COUNT, "several": ("-n", "2"), "several count": ("-n", "2", *COUNT)}
ENDLESS = "it is endless or very slow: it has worked for 4 s"
DO_NOT_END = [  # how progress is printed is the same whatever a test does, and a test that works takes all of a core
    pytest.param(name, why, options, id=f"{name}-{each}")
    for each, options in GATE_OPTIONS.items()
    for name, why in (("endless", ENDLESS), ("hung", "it hung"))
    if name == "hung" or COUNT[-1] not in options
]


@pytest.mark.parametrize(("name", "why", "options"), DO_NOT_END)
def test_a_gate_that_does_not_end_is_ended_with_the_name_of_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "test_gate.py").write_text("def test_before():\n    pass\n\n\n" + NATIVE[name])
    (tmp_path / "asv.conf.json").write_text("{}")
    project = dataclasses.replace(
        plan_project.load(ROOT), here=tmp_path / "project.py", gate=(*options, "test_gate.py")
    )
    monkeypatch.setattr(gate, "GATE_IDLE_S", 4.0)  # longer than a busy machine lets pytest wait before the test begins
    monkeypatch.setattr(gate, "GATE_ENDLESS_S", 4.0)  # more than pytest works before the test begins
    with pytest.raises(UserError) as error:
        gate.gate(project, Output())
    assert str(error.value).startswith(f"the gate did not end: test_gate.py::test_it: {why}")
    assert str(error.value).endswith("; nothing was measured")
    assert processes_in(tmp_path) == {}


@pytest.mark.parametrize("name", NATIVE)
def test_tests_that_hang_in_native_code_are_ended(tmp_path: Path, name: str) -> None:
    """By the settings of this project's tests, with a shorter limit, at nine tenths of which it is named."""
    (tmp_path / "test_gate.py").write_text(NATIVE[name])
    limit_s = 20 if name == "hung" else 5  # a tenth of it is time to speak, on a busy machine too
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-o", f"faulthandler_timeout={limit_s}"]
    settings += ["-p", "no:cacheprovider", "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", *settings, "test_gate.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.search(r"Timeout .*test_gate\.py\", line \d+ in test_it\n", done.stderr, re.DOTALL), done.stderr
    # Who holds the interpreter's lock, as no kernel does, lets nobody speak.
    assert ("test_gate.py::test_it does not end" in done.stderr) is (name == "hung")


@pytest.mark.parametrize("options", GATE_OPTIONS.values(), ids=GATE_OPTIONS)
def test_a_gate_says_what_failed_and_how_many_passed(tmp_path: Path, capsys: Said, options: tuple[str, ...]) -> None:
    tests = tmp_path / "test_gate.py"
    tests.write_text("def test_it():\n    pass\n")
    (tmp_path / "asv.conf.json").write_text("{}")
    project = dataclasses.replace(
        plan_project.load(ROOT), here=tmp_path / "project.py", gate=(*options, "test_gate.py")
    )
    gate.gate(project, Output())
    assert "gate: 1 passed\n" in capsys.readouterr().out
    tests.write_text("def test_it():\n    pass\n\n\ndef test_next():\n    assert 1 + 1 == 3, 'this rung'\n")
    with pytest.raises(UserError, match="the gate failed; nothing was measured"):
        gate.gate(project, Output())
    said = capsys.readouterr().out
    assert "AssertionError: this rung" in said
    assert "test_it" not in said


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one", "several"])
def test_a_gate_knows_how_many_tests_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    (tmp_path / "test_gate.py").write_text("def test_it():\n    pass\n\n\ndef test_next():\n    pass\n")
    (tmp_path / "asv.conf.json").write_text("{}")
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(phases.Minutes, "tell", lambda _, what, done, total, unit: told.append((done, total)))
    gate.gate(
        dataclasses.replace(plan_project.load(ROOT), here=tmp_path / "project.py", gate=(*options, "test_gate.py")),
        Output(),
    )
    assert {total for done, total in told if done} == {2}
    assert told[-1] == (2, 2)


def test_the_exit_code_of_the_gate(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    project = dataclasses.replace(plan_project.load(ROOT), gate=())
    assert gate.main(project, "gate", []) == 0
    assert capsys.readouterr().out == "project.py names no gate: nothing to test\n"

    def fail(*_: object) -> None:
        raise gate.GateFailed("the gate failed")

    monkeypatch.setattr(gate, "gate", fail)
    assert gate.main(dataclasses.replace(project, gate=("tests",)), "gate", []) == 1
    assert capsys.readouterr().out == "the gate failed\n"


EXIT = "pytest.exit('no GPU here', returncode=0)"


@pytest.mark.parametrize(
    "begin", ["def test_it():\n    ", "def pytest_runtest_teardown():\n    ", "def pytest_collection_finish():\n    "]
)
def test_tests_that_ask_pytest_to_end_are_no_gate_that_passed(tmp_path: Path, begin: str) -> None:
    """With its code of tests that passed: those that come after have not run."""
    (tmp_path / "asv.conf.json").write_text("{}")
    (tmp_path / "test_gate.py").write_text("import pytest\n\n\ndef test_first():\n    pass\n")
    name = "test_gate.py" if "test_it" in begin else "conftest.py"
    with (tmp_path / name).open("a") as file:
        file.write(f"import pytest\n\n\n{begin}{EXIT}\n")
    with (tmp_path / "test_gate.py").open("a") as file:
        file.write("\n\ndef test_next():\n    0 / 0\n")
    project = dataclasses.replace(plan_project.load(ROOT), here=tmp_path / "project.py", gate=("test_gate.py",))
    with pytest.raises(gate.GateFailed, match=r"ended before all of its tests: .*no GPU here; nothing was measured"):
        gate.gate(project, Output())


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one", "several"])
def test_a_test_that_ends_pytest_is_no_gate_that_passed(tmp_path: Path, capsys: Said, options: tuple[str, ...]) -> None:
    """With its code of tests that passed, as a kernel's library may do that gives up."""
    (tmp_path / "test_gate.py").write_text(
        "import os\n\n\ndef test_it():\n    os._exit(0)\n\n\ndef test_next():\n    0 / 0\n"
    )
    (tmp_path / "asv.conf.json").write_text("{}")
    project = dataclasses.replace(
        plan_project.load(ROOT), here=tmp_path / "project.py", gate=(*options, "test_gate.py")
    )
    with pytest.raises(gate.GateFailed, match="nothing was measured") as error:
        gate.gate(project, Output())
    assert "test_gate.py::test_it" in str(error.value) + capsys.readouterr().out


def test_a_gate_whose_tests_were_all_skipped_says_that_it_checked_nothing(tmp_path: Path, capsys: Said) -> None:
    """As on a machine without a GPU. A test that is expected to fail checks nothing either."""
    tests, skips = tmp_path / "test_gate.py", "import pytest\n\n\ndef test_it():\n    pytest.skip('no GPU')\n"
    skips += "\n\n@pytest.mark.xfail\ndef test_broken():\n    0 / 0\n"
    (tmp_path / "asv.conf.json").write_text("{}")
    project = dataclasses.replace(plan_project.load(ROOT), here=tmp_path / "project.py", gate=("test_gate.py",))
    told = "no test passed, so no kernel was checked"
    tests.write_text(skips)
    gate.gate(project, Output())
    assert told in capsys.readouterr().out
    tests.write_text(skips + "\n\ndef test_next():\n    pass\n")
    gate.gate(project, Output())
    assert told not in capsys.readouterr().out


@pytest.mark.parametrize("options", ["", "-p no:junitxml", "-p no:terminal", "-qq"])
def test_what_a_project_has_pytest_print_is_no_matter(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    (tmp_path / "test_gate.py").write_text(
        "import pytest\n\n\ndef test_it():\n    pass\n\n\ndef test_next():\n    pytest.skip('no GPU')\n"
    )
    (tmp_path / "asv.conf.json").write_text("{}")
    project = dataclasses.replace(plan_project.load(ROOT), here=tmp_path / "project.py", gate=("test_gate.py",))
    gate.gate(project, Output())
    assert capsys.readouterr().out.splitlines()[-1] == "gate: 1 passed, 1 skipped or expected to fail"


FORK = "import os\n\n\ndef test_it():\n    if os.fork():\n        os._exit(0)\n"
LEAVES = (
    "import os\nimport time\n\n\ndef test_it():\n    if not os.fork():\n        time.sleep(60)\n        os._exit(0)\n"
)
HIDES = "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n"


@pytest.mark.parametrize(
    ("settings", "plugin", "tests", "why"),
    [
        ("--collect-only", "", "def test_it():\n    0 / 0\n", "the gate ran 0 of its 1 tests"),
        ("", HIDES, "def test_it():\n    0 / 0\n", "pytest ended with code 0, and yet test_gate.py::test_it failed"),
        ("", "", FORK, "a test of the gate ended pytest, with code 0: test_gate.py::test_it"),
    ],
    ids=["only collected", "its code set", "left to a fork"],
)
def test_the_exit_code_of_pytest_is_not_all_that_a_gate_needs(
    tmp_path: Path, settings: str, plugin: str, tests: str, why: str
) -> None:
    (tmp_path / "test_gate.py").write_text(tests)
    (tmp_path / "conftest.py").write_text(plugin)
    (tmp_path / "asv.conf.json").write_text("{}")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {settings}\n")
    project = dataclasses.replace(plan_project.load(ROOT), here=tmp_path / "project.py", gate=("test_gate.py",))
    with pytest.raises(gate.GateFailed) as error:
        gate.gate(project, Output())
    assert str(error.value).startswith(f"{why}; nothing was measured")


def test_a_process_that_a_test_leaves_does_not_hold_the_gate(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_gate.py").write_text(LEAVES)
    (tmp_path / "asv.conf.json").write_text("{}")
    monkeypatch.setattr(gate, "GATE_IDLE_S", 20.0)
    gate.gate(
        dataclasses.replace(plan_project.load(ROOT), here=tmp_path / "project.py", gate=("test_gate.py",)), Output()
    )
    assert capsys.readouterr().out.splitlines()[-1] == "gate: 1 passed"


def test_a_plugin_that_warns_does_not_end_the_gate(tmp_path: Path) -> None:
    """pytest-benchmark 4 warns if pytest-xdist is there too, and a warning is an error in this project."""
    (tmp_path / "warns.py").write_text("import warnings\n\n\ndef pytest_configure():\n    warnings.warn('of xdist')\n")
    folder = tmp_path / "warns-4.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: warns\nVersion: 4\n")
    (folder / "entry_points.txt").write_text("[pytest11]\nbenchmark = warns\n")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests/test_prose.py"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
