"""The entry points: every program in scripts/ and scripts/lab/, and the command kernelwatch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch import __main__ as console
from kernelwatch import extras
from kernelwatch.system.errors import CANNOT
from tests.repositories import ROOT, Project

USERS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)
LABORATORY = sorted(f"lab/{path.name}" for path in (ROOT / "scripts" / "lab").glob("[a-z]*") if not path.suffix)
SCRIPTS = [*USERS, *LABORATORY]


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with one that is called scripts, as NVIDIA's cuda-bench brings, and others that
    are called as folders here are."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("scripts", "lab", "benchmarks", "kernelwatch"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise ImportError('the foreign {name}')\n")
    (folder / "environment.py").write_text("raise ImportError('the foreign environment')\n")
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Project:
    """This project, seen from a folder that is none."""
    return Project(tmp_path, tmp_path)


def test_there_are_scripts() -> None:
    assert set(USERS) == {"accept", "bench", "link", "merge", "versus", "ladder", "profile", "test", "check"}
    assert {"lab/figures", "lab/gate", "lab/lock", "lab/simulate"} <= set(LABORATORY)
    assert all(os.access(ROOT / "scripts" / name, os.X_OK) for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_explains_itself_beside_a_foreign_package(here: Project, foreign: Path, name: str) -> None:
    """Whatever else is installed: scripts/ is no package, and what the scripts import comes from this checkout."""
    done = here.run(sys.executable, str(ROOT / "scripts" / name), "--help", PYTHONPATH=str(foreign))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "foreign" not in done.stdout + done.stderr
    told = "" if name == "test" else f"scripts/{name} "  # pytest answers for that
    assert done.stdout.startswith(f"usage: {told}"), done.stdout


def test_help_does_not_wait_for_the_environment(tmp_path: Path) -> None:
    """In a fresh checkout, in which no environment was made yet, and none is made for a help text."""
    for folder in ("scripts", "requirements", "kernelwatch/commands", "kernelwatch/extras"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    before = sorted(tmp_path.iterdir())
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GPUKERNELS_")}
    for name in (each for each in SCRIPTS if each != "lab/lock"):  # which asks uv, outside the environment
        script = tmp_path / "scripts" / name
        done = subprocess.run(
            [sys.executable, str(script), "--help"],
            env=variables | {"PIP_NO_INDEX": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: scripts/{name} ...\n\n"), done.stdout
        assert "docs/commands.md" in done.stdout
        assert len(done.stdout.split("\n\n")[1]) > 20
    assert sorted(tmp_path.iterdir()) == before


def test_what_a_script_cannot_do_is_said_in_a_line(here: Project) -> None:
    done = here.run(sys.executable, str(ROOT / "scripts" / "ladder"), "nonsense")
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert done.stderr == f"scripts/ladder: no op nonsense; there are {', '.join(PROJECT.ops)}\n"


def test_what_a_program_of_the_laboratory_cannot_do_is_said_in_a_line(here: Project) -> None:
    done = here.run(sys.executable, str(ROOT / "scripts" / "lab" / "counters"), PATH=str(here.folder))
    assert done.returncode == CANNOT
    missing = "Nsight Compute's ncu is not on the PATH; it comes with the CUDA toolkit"
    assert done.stderr == f"scripts/lab/counters: {missing}\n"


# --- the command kernelwatch -----------------------------------------------------------------------------------------


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kernelwatch(here: Project) -> Command:
    """The command, in a folder that is no project."""
    return lambda *arguments: here.run(sys.executable, "-m", "kernelwatch", *arguments, PYTHONPATH=str(ROOT))


def test_it_prints_its_usage(kernelwatch: Command) -> None:
    asked = kernelwatch("--help")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, f"{console.usage()}\n", "")
    assert asked.stdout.startswith("usage: kernelwatch COMMAND ...\n")
    for name in console.COMMANDS:
        assert re.search(rf"^  {name} +\w", asked.stdout, re.MULTILINE)
    bare = kernelwatch()
    assert (bare.returncode, bare.stdout) == (CANNOT, asked.stdout)


def test_an_unknown_command_is_refused(kernelwatch: Command) -> None:
    done = kernelwatch("measured", "--help")
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert done.stderr == f"kernelwatch: no command 'measured'\n\n{console.usage()}\n"


def test_a_distribution_may_add_a_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "further-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: further\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[kernelwatch.commands]\ncount = further_count\n")
    (tmp_path / "further_count.py").write_text(
        "def main(project, prog, arguments):\n    print(prog, len(project.problems), *arguments)\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(ROOT)
    assert console.main(["count", "-x"]) == 1
    assert capsys.readouterr().out == f"kernelwatch count {len(PROJECT.problems)} -x\n"
    assert re.search(r"^  count +from further_count$", console.usage(), re.MULTILINE)


def test_every_command_is_a_module_and_has_a_script() -> None:
    modules = {path.stem for path in (ROOT / "kernelwatch" / "commands").glob("[a-z]*.py")}
    parts = {"confirming", "discovery", "full", "phases", "plain", "publishing", "shown", "skeleton", "watching"}
    commands = modules - parts
    assert commands == set(console.COMMANDS) - set(extras.COMMANDS)
    assert all(find_spec(module) for module, _ in console.COMMANDS.values())
    assert commands - set(console.ANYWHERE) <= {name.removeprefix("lab/") for name in SCRIPTS}


@pytest.mark.parametrize("name", [name for name in console.COMMANDS if name not in console.ANYWHERE])
def test_outside_any_project_it_says_what_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert console.main([name]) == CANNOT
    said = f"no asv.conf.json in {tmp_path} or above it; run this in a project that asv benchmarks"
    assert capsys.readouterr() == ("", f"kernelwatch {name}: {said}\n")


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({}, "{suites} has no project.py: it describes what is measured (PROJECT, a kernelwatch Project)"),
        (
            {"__init__.py": ""},
            "{suites} has no project.py: it describes what is measured (PROJECT, a kernelwatch Project); versus, link, "
            "bench, merge and accept need none",
        ),
        ({"project.py": ""}, "{suites} has no __init__.py: asv's suites are a package"),
        (
            {"__init__.py": "", "project.py": "PROJECT = 3"},
            "{suites}/project.py must define PROJECT, a kernelwatch.plan.project.Project; got 3",
        ),
    ],
)
def test_of_half_a_project_it_says_what_is_missing(here: Project, files: dict[str, str], missing: str) -> None:
    suites = here.folder / "the suites"
    suites.mkdir()
    for name, text in files.items():
        (suites / name).write_text(text)
    (here.folder / "asv.conf.json").write_text('{"version": 1, "benchmark_dir": "the suites"} // as asv writes it')
    below = here.folder / "below"
    below.mkdir()
    done = Project(below, here.home).run(sys.executable, "-m", "kernelwatch", "ladder", PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (CANNOT, f"kernelwatch ladder: {missing.format(suites=suites)}\n")


@pytest.mark.xdist_group("together")
def test_tests_of_a_group_stay_together(request: pytest.FixtureRequest) -> None:
    """pytest-xdist's scheduler tells a group by the end of a test's name."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@together")
