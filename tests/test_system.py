"""What the engine takes from the machine around it: options from the environment, compilers from the PATH; and
Student's t."""

import importlib.metadata
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan import build
from kernelwatch.plan.cells import plan
from kernelwatch.plan.devices import Budget
from kernelwatch.run.processes import Run
from kernelwatch.system import installed, lifeline, options, tools
from kernelwatch.system.errors import ToolMissing, UserError
from kernelwatch.system.options import Options
from kernelwatch.system.student import quantile
from kernelwatch.timing import cpu

ROOT = Path(__file__).resolve().parents[1]
GCC = shutil.which("gcc")

# --- options -------------------------------------------------------------------------------------------------------

TOLD = {
    "quick": True,
    "again": True,
    "only": r"transpose/(c|numpy) float16->float32 .*$",
    "tree": "/a folder/with spaces",
    "facts": "facts",
    "kept": "kept",
    "progress": "progress.jsonl",
    "locks": "/locks",
    "suites": "a.B,c.D",
    "python": "/an environment/bin/python",
}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No options in the environment."""
    for field in fields(Options):
        monkeypatch.delenv(options.PREFIX + field.name.upper(), raising=False)


def test_without_a_word_the_options_are_those_of_a_whole_run(outside: None) -> None:
    assert Options.here() == Options.here({}) == Options()
    assert (Options().quick, Options().again, Options().locks) == (False, False, "/tmp")
    blank = {f"KERNELWATCH_{field.name.upper()}": "" for field in fields(Options)}
    assert Options.here(blank) == Options()


@pytest.mark.parametrize("name", ["quick", "again"])
@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("1", True), ("yes", True)])
def test_what_is_asked_for_by_a_flag(name: str, value: str, wanted: bool) -> None:
    assert getattr(Options.here({f"KERNELWATCH_{name.upper()}": value}), name) is wanted


def test_every_option_comes_back_from_an_environment(outside: None) -> None:
    assert set(TOLD) == {field.name for field in fields(Options)}
    every = Options(**TOLD)  # type: ignore[arg-type]
    assert Options.here(every.environment()) == every
    for name, value in TOLD.items():
        alone = replace(Options(), **{name: value})  # type: ignore[arg-type]
        assert alone != Options()
        assert Options.here(alone.environment()) == alone
    assert Options.here(Options().environment()) == Options()


def test_an_environment_overrules_what_this_process_was_told(monkeypatch: pytest.MonkeyPatch, outside: None) -> None:
    """Also an option that is off again: a process that was started for a quick look may start a whole one."""
    monkeypatch.setenv("KERNELWATCH_QUICK", "1")
    monkeypatch.setenv("KERNELWATCH_ONLY", "padded")
    monkeypatch.setenv("GPUKERNELS_SEED", "1")
    told = Options(again=True).environment()
    assert Options.here(told) == Options(again=True)
    assert told["GPUKERNELS_SEED"] == "1"  # what else is there stays
    assert told["PATH"] == os.environ["PATH"]
    assert Options.here() == Options(quick=True, only="padded")  # and this process has its own


def test_options_are_handed_on(monkeypatch: pytest.MonkeyPatch, outside: None) -> None:
    for name in Options().environment():  # undone at the end of the test
        monkeypatch.setenv(name, os.environ.get(name, ""))
    options.hand_on(quick=True, facts="here")
    assert Options.here() == Options(quick=True, facts="here")
    options.hand_on(quick=False)
    assert Options.here() == Options(facts="here")
    Options(only="padded").hand_on()
    assert Options.here() == Options(only="padded")


# --- tools ---------------------------------------------------------------------------------------------------------


def script(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\necho more of it\n")
    path.chmod(0o755)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A PATH of one empty folder; no compiler is named by a variable."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    tools._asked.cache_clear()
    yield folder
    tools._asked.cache_clear()


def test_the_first_c_compiler_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clang", "gcc", "cc"):  # the last comes first
        tools._asked.cache_clear()
        script(path, name, f"{name} 1.2")
        found = tools.c_compiler()
        assert (found.command, found.title, found.version) == ((name,), f"{name} 1.2", f"{name} 1.2\nmore of it\n")
        assert cpu.compiler() == f"{name} 1.2"
    script(path, "icx", "icx 3")
    monkeypatch.setenv("CC", "icx -O1 '-D a'")
    assert tools.c_compiler().command == ("icx", "-O1", "-D a")
    assert cpu.compiler() == "icx 3"


def test_no_compiler_is_said_and_recorded_as_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolMissing, match="no C compiler: cc, gcc, clang not found; install gcc or set CC"):
        tools.c_compiler()
    with pytest.raises(UserError, match=r"no C\+\+ compiler: g\+\+ not found; install gcc or set CXX"):
        tools.cxx_compiler()
    assert cpu.compiler() is None
    script(path, "cc", "cc 1")
    monkeypatch.setenv("CC", "/no/such cc")
    with pytest.raises(ToolMissing, match="no C compiler: /no/such not found"):
        tools.c_compiler()
    assert cpu.compiler() is None


@pytest.mark.skipif(GCC is None, reason="gcc is not on the PATH")
def test_gcc_without_cc_is_recorded(path: Path) -> None:
    """In the facts of a real process."""
    assert GCC is not None
    (path / "gcc").symlink_to(GCC)
    assert shutil.which("cc") is None
    gcc = subprocess.run([GCC, "--version"], capture_output=True, text=True, check=True)
    mine = plan(PROJECT.op("transpose"), "cpu", quick=True, only="/numpy .* 256x256 hot")
    run = Run(PROJECT, mine, "cpu", str(ROOT), Budget(samples=3, sample_s=0.0002))
    run.measure_all(0)
    assert [one.state for one in run.group.outcomes.values()] == ["ok"]
    assert run.group.facts["compiler"] == gcc.stdout.splitlines()[0] == cpu.compiler()
    assert run.group.facts["packages"]["numpy"] == np.__version__


# --- versions of packages ------------------------------------------------------------------------------------------


def test_every_installed_distribution_has_the_version_that_python_tells() -> None:
    names = {found.metadata["Name"] for found in importlib.metadata.distributions()} | {"no-such-package"}
    wanted = {name: importlib.metadata.version(name) for name in names - {"no-such-package"}}
    assert {"numpy", "asv_runner"} <= wanted.keys()
    assert installed.versions(names) == wanted
    assert installed.versions(["Asv.Runner"]) == {"Asv.Runner": wanted["asv_runner"]}


def test_a_build_is_told_all_installed_distributions() -> None:
    described = [found.metadata for found in importlib.metadata.distributions()]
    wanted = sorted(f"{each['Name']}=={each['Version']}" for each in described)
    assert build.environment()["installed"] == wanted


def test_distributions_that_others_than_pip_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A system's are files or folders named .egg-info; the first on the path counts; what is broken is not there."""
    (tmp_path / "a_b-1.0.egg-info").write_text("Metadata-Version: 1.1\nName: a_b\nVersion: 1.0\n")
    (tmp_path / "c.egg-info").mkdir()
    (tmp_path / "c.egg-info" / "PKG-INFO").write_text("Name: c\nVersion: 2.0\n\nVersion: 3.0\n")
    (tmp_path / "numpy-0.1.dist-info").mkdir()
    (tmp_path / "numpy-0.1.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 0.1\n")
    (tmp_path / "empty-0.1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "gone"), str(tmp_path), *sys.path])
    names = ["a-b", "c", "numpy", "empty"]
    assert installed.versions(names) == {"a-b": "1.0", "c": "2.0", "numpy": "0.1"}
    assert all(importlib.metadata.version(name) == version for name, version in installed.versions(names).items())


# --- Student's t ---------------------------------------------------------------------------------------------------


def closed(p: float, freedom: int) -> float:
    """The quantile for the degrees of freedom that have a formula."""
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    root = 2 * math.sqrt(p * (1 - p))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2) / root
    assert freedom == 4
    return 2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1)


@pytest.mark.parametrize("freedom", [1, 2, 4])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.995, 1 - 1e-4, 1 - 1e-6])
def test_the_quantile_is_that_of_the_formula(probability: float, freedom: int) -> None:
    assert quantile(probability, freedom) == pytest.approx(closed(probability, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("freedom", "probability", "value"),
    [(3, 0.975, 3.182446305), (7, 0.95, 1.894578605), (10, 0.975, 2.228138852), (30, 0.995, 2.749995654)],
)
def test_the_quantile_is_that_of_the_tables(freedom: int, probability: float, value: float) -> None:
    assert quantile(probability, freedom) == pytest.approx(value, rel=1e-9)


def test_with_many_degrees_of_freedom_the_quantile_is_the_normal_one() -> None:
    assert quantile(0.975, 10**5) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), rel=1e-4)
    assert quantile(0.975, 10**5) > statistics.NormalDist().inv_cdf(0.975)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in Linux's /proc")
@pytest.mark.parametrize("name", ["short", "long" * 20])
def test_a_socket_fits_into_the_folder_of_temporary_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asv makes one there. A path of more than 107 bytes, under a long $TMPDIR, is none of a socket."""
    base = Path(tempfile.mkdtemp(prefix="s", dir="/tmp")) if name == "short" else tmp_path / name
    base.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(base))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with lifeline.tied(nested=True):
        folder = Path(tempfile.gettempdir())
        assert os.environ["TMPDIR"] == str(folder)
        assert (folder.parent == base) == (name == "short")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(Path(tempfile.mkdtemp(prefix="asv-forkserver-"), "socket")))
    assert not folder.exists()
    assert os.environ["TMPDIR"] == str(base)
    base.rmdir()
