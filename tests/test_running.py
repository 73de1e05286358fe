"""asv runs that are killed, interrupted, crowded or out of disk: nothing is lost, nothing stays behind, all goes on.

Real asv on a copy of this project with two commits and a few cells. GPUKERNELS_KILLS says how often
test_a_run_that_is_killed_goes_on does so (5 if unset).
"""

import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asv import util
from asv.commands.run import Run

from benchmarks._files import locked
from scripts import _bench, _lifeline
from scripts.asv_plugins import running
from tests.test_asv import FILES
from tests.test_files import holder

ROOT = Path(__file__).resolve().parents[1]
BENCH = r"(transpose|vector_add)\.CPU\.track_seconds"
CELLS = r"transpose/(c|numpy) float32 256x256|vector_add/numpy float32 65536"
GROUPS = ("transpose cpu", "vector_add cpu")
HANG = "void transpose_c(const T *in, T *out, long long M, long long N) { (void)in, (void)out, (void)M, (void)N; %s }\n"


@dataclass(frozen=True)
class Project:
    """A copy of this project, of so many commits that differ in nothing that is measured."""

    folder: Path
    commits: tuple[str, ...]

    @property
    def kept(self) -> Path:
        return self.folder / ".asv" / "kept"

    def environment(self, **more: str) -> dict[str, str]:
        who = {f"GIT_{role}_{what}": "a@b.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        own = {"HOME": str(self.folder.parent), "GPUKERNELS_PYTHON": sys.executable, "GPUKERNELS_CELLS": CELLS}
        left = {name: value for name, value in os.environ.items() if name != _lifeline.MARK}
        return left | who | own | {"PYTHONPATH": "", "NO_COLOR": "1", "COLUMNS": "200"} | more

    def run(self, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(**more), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def command(self, *arguments: str, commits: int = 2) -> list[str]:
        hashes = self.folder.parent / f"hashes{commits}"
        hashes.write_text("\n".join(self.commits[:commits]))
        skip = "--skip-existing-successful"
        return [
            sys.executable, "-m", "asv", "run", "-E", "checkout", skip, "--bench", BENCH, *arguments,
            f"HASHFILE:{hashes}",
        ]  # fmt: skip

    def asv(self, *arguments: str, commits: int = 2, **more: str) -> "subprocess.CompletedProcess[str]":
        return self.run(*self.command(*arguments, commits=commits), **more)

    def start(self, *arguments: str, commits: int = 2, **more: str) -> "subprocess.Popen[bytes]":
        """asv in the background, as a shell would have it."""
        return subprocess.Popen(
            self.command(*arguments, commits=commits), cwd=self.folder, env=self.environment(**more),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def whole(self) -> None:
        """Every file of the results is."""
        for path in self.results.rglob("*.json"):
            json.loads(path.read_text())
        for path in self.results.rglob("*.facts.jsonl"):
            for line in path.read_text().splitlines():
                json.loads(line)

    def cells(self) -> set[tuple[str, ...]]:
        """What was measured: of each commit, the cells in its facts, and the combinations of each series that have a
        number."""
        found: set[tuple[str, ...]] = set()
        for path in self.results.glob("*/*.facts.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()):
                if line["record"] == "cell":
                    found.add((path.name, line["key"], line["state"], str(len(line["visits"]))))
        for path in self.results.glob("*/*-checkout-*.json"):
            data = json.loads(path.read_text())
            for name, values in data["results"].items():
                numbers = [at for at, value in enumerate(values[0]) if value is not None and value == value]
                found.add((path.name, name, str(numbers)))
        return found

    def facts(self, commit: str) -> dict[str, dict[str, Any]]:
        """Of each group."""
        (path,) = self.results.glob(f"*/{commit[:8]}-*.facts.jsonl")
        lines = map(json.loads, path.read_text().splitlines())
        return {line["group"]: line["facts"] for line in lines if line["record"] == "run"}

    def clear(self) -> None:
        for path in (self.results, self.kept):
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def made(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("running") / "project"
    folder.mkdir()
    for name in (*FILES, ".gitignore"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
        else:
            shutil.copy(source, folder / name)
    project = Project(folder, ())
    project.git("init", "-q", "-b", "main")
    project.git("add", "-A")
    commits = []
    for at in range(2):
        project.git("commit", "-q", "--allow-empty", "-m", f"commit {at}")
        commits.append(project.git("rev-parse", "HEAD"))
    return Project(folder, tuple(commits))


@pytest.fixture
def project(made: Project) -> Iterator[Project]:
    """The project with nothing measured."""
    made.clear()
    yield made
    made.git("reset", "-q", "--hard", made.commits[-1])
    assert processes_of(made) == {}


@pytest.fixture(scope="module")
def undisturbed(made: Project) -> set[tuple[str, ...]]:
    """What a run measures that nobody disturbs."""
    made.clear()
    done = made.asv()
    assert done.returncode == 0, done.stdout + done.stderr
    found = made.cells()
    assert len({name for name, *_ in found}) == 4  # a result and a sidecar a commit
    return found


def processes_of(project: Project) -> dict[int, str]:
    """The living processes that know the project: its path is in their command line or environment."""
    found, mark = {}, str(project.folder).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if entry.name != str(os.getpid()) and mark in command + (entry / "environ").read_bytes():
                found[int(entry.name)] = command.replace(b"\0", b" ").decode()
        except OSError:  # it has gone, or is another's
            continue
    return found


def wait_until(true: Callable[[], Any], limit_s: float = 60.0) -> Any:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.02)
    return None


def gone(project: Project) -> bool:
    return not processes_of(project)


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in Linux's /proc")
pytestmark = pytest.mark.xdist_group("running")  # one project for all of these


# --- killed ----------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.timeout(3000)
def test_a_run_that_is_killed_goes_on(project: Project, undisturbed: set[tuple[str, ...]]) -> None:
    """kill -9 at random points, again and again: after each all files are whole and nobody is left, and the run that
    is let through at last has just the cells of one that was never disturbed."""
    kills = int(os.environ.get("GPUKERNELS_KILLS", "5"))
    chance = random.Random(0)
    longest, rounds, resumed = 8.0, 1, 0
    for _ in range(kills):
        process = project.start()
        try:
            assert process.wait(chance.uniform(0.0, longest)) == 0
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        process.kill()
        process.wait()
        assert wait_until(lambda: gone(project)), processes_of(project)
        project.whole()
        if ended:  # it was through before its time: the next one begins anew
            assert project.cells() == undisturbed
            resumed += sum(f.get("resumed", False) for c in project.commits for f in project.facts(c).values())
            project.clear()
            rounds += 1
    done = project.asv()
    assert done.returncode == 0, done.stdout + done.stderr
    project.whole()
    assert project.cells() == undisturbed
    resumed += sum(f.get("resumed", False) for c in project.commits for f in project.facts(c).values())
    assert list(project.kept.glob("*")) == []
    print(f"{kills} times kill -9, {rounds} histories, {resumed} groups taken up from before a kill")


