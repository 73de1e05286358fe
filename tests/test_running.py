"""asv runs that are killed, interrupted, crowded or out of disk: nothing is lost, nothing stays behind, all goes on.

Real asv on a copy of this project with two commits and a few cells. GPUKERNELS_KILLS says how often
test_a_run_that_is_killed_goes_on does so (2 if unset).
"""

import inspect
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from asv import util
from asv.commands.run import Run

from benchmarks.project import PROJECT
from kernelwatch.asv import running
from kernelwatch.commands import bench, full
from kernelwatch.system import git
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import Busy, locked
from tests import repositories
from tests.preloaded import Background
from tests.repositories import (
    copy_into,
    cpu_processes,
    few_rungs,
    new_project,
    processes_in,
    rewrite,
    uncommitted_harness,
    wait_until,
    without_suites,
)
from tests.test_files import holder

BENCH = r"(transpose|vector_add)\.CPU\.track_seconds"
CELLS = r"transpose/(c|numpy) float32 256x256 hot|vector_add/numpy float32 65536 hot"
GROUPS = ("transpose cpu", "vector_add cpu")
HANG = "void transpose_c(const T *in, T *out, long long M, long long N) { (void)in, (void)out, (void)M, (void)N; %s }\n"


@dataclass(frozen=True)
class Project(repositories.Project):
    """A copy of this project, of so many commits that differ in nothing that is measured."""

    commits: tuple[str, ...]

    @property
    def kept(self) -> Path:
        return self.folder / ".asv" / "kept"

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**{"KERNELWATCH_ONLY": CELLS, **more})

    def command(self, *arguments: str, commits: int = 2) -> list[str]:
        hashes = self.home / f"hashes{commits}"
        hashes.write_text("\n".join(self.commits[:commits]))
        skip = "--skip-existing-successful"
        return [
            sys.executable, "-m", "asv", "run", "-E", "checkout", skip, "--bench", BENCH, *arguments,
            f"HASHFILE:{hashes}",
        ]  # fmt: skip

    def measure(self, commits: int = 2) -> "subprocess.CompletedProcess[str]":
        """asv run over the first of the commits."""
        return self.run(*self.command(commits=commits))

    def start(self, commits: int = 2, **more: str) -> Background:
        """asv in the background."""
        return self.begin(*self.command(commits=commits)[1:], **more)

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
                numbers = [at for at, value in enumerate(values[0]) if value is not None and not math.isnan(value)]
                found.add((path.name, name, str(numbers)))
        return found

    def facts(self, commit: str) -> dict[str, dict[str, Any]]:
        """Of each group."""
        (path,) = self.results.glob(f"*/{commit[:8]}-*.facts.jsonl")
        lines = map(json.loads, path.read_text().splitlines())
        return {line["group"]: line["facts"] for line in lines if line["record"] == "run"}

    def resumed(self) -> int:
        """How many groups of the first two commits are from before a kill."""
        return sum("resumed" in facts for commit in self.commits[:2] for facts in self.facts(commit).values())

    def clear(self) -> None:
        for path in (self.results, self.kept):
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def made(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("running"))
    copy_into(project.folder)
    uncommitted_harness(project.folder)
    without_suites(project.folder, "access", "device", "matmul", "static")
    few_rungs(project.folder, ("c", "numpy"))
    rewrite(project.folder, cpu_processes(2))  # the fewest between which a kill falls
    commits = tuple(project.commit_all(f"commit {at}", "--allow-empty") for at in range(3))
    return Project(project.folder, project.home, commits)


@pytest.fixture
def project(made: Project) -> Iterator[Project]:
    """The project with nothing measured."""
    made.clear()
    yield made
    left = processes_of(made)
    for process in left:
        os.kill(process, signal.SIGKILL)
    made.git("reset", "-q", "--hard", made.commits[-1])
    made.git("clean", "-q", "-f", "-d")
    assert left == {}


@dataclass(frozen=True)
class Undisturbed:
    """What a run measures that nobody disturbs: the cells of two commits, and a copy of the first one's results."""

    cells: set[tuple[str, ...]]
    results: Path

    @classmethod
    def of_two(cls, cells: set[tuple[str, ...]], results: Path, commits: Sequence[str]) -> Self:
        """From the first commit's. `cells`: of which the second commit has the same, in files of its own."""
        first, second = (commit[:8] for commit in commits)
        return cls(cells | {(name.replace(first, second), *cell) for name, *cell in cells}, results)

    def first_commit(self, project: Project) -> None:
        """Put what it measured of the first commit into a project that has no results."""
        shutil.copytree(self.results, project.results, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def undisturbed(made: Project) -> Undisturbed:
    made.clear()
    done = made.measure(commits=1)
    assert done.returncode == 0, done.stdout + done.stderr
    found = made.cells()
    assert len({name for name, *_ in found}) == 2  # a result and a sidecar
    return Undisturbed.of_two(found, made.results.rename(made.home / "undisturbed"), made.commits[:2])


def processes_of(project: repositories.Project) -> dict[int, str]:
    """The living processes that know the project: its path is in their command line or environment."""
    return processes_in(project.folder, environment=True)


def gone(project: Project) -> bool:
    return not processes_of(project)


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in Linux's /proc")
pytestmark = pytest.mark.xdist_group("running")  # one project for all of these


# --- together --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "together", "groups"),
    [(BENCH, "cpu", set(GROUPS)), (r"vector_add\.CPU\.track_seconds", "vector_add cpu", {"vector_add cpu"})],
    ids=["both", "one"],
)
def test_the_suites_of_a_run_share_their_processes(
    project: Project, series: str, together: str, groups: set[str]
) -> None:
    """Those that are asked for, and no others."""
    progress = project.home / "progress"
    progress.write_text("")
    command = [series if argument == BENCH else argument for argument in project.command(commits=2)]
    done = project.run(*command, KERNELWATCH_PROGRESS=str(progress))
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    assert {event["group"] for event in events if "group" in event} == {together}
    assert [event["counts"]["ok"] for event in events if "counts" in event] == [3 if len(groups) > 1 else 1] * 2
    assert all(set(project.facts(commit)) == groups for commit in project.commits[:2])


def test_what_was_not_saved_is_no_other_commits_result(project: Project) -> None:
    """A dry run saves nothing, and still measures each commit."""
    progress = project.home / "progress"
    progress.write_text("")
    done = project.run(*project.command("--dry-run", commits=2), KERNELWATCH_PROGRESS=str(progress))
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [event["done"] for event in events if event.get("ended")] == [6, 6]


# --- killed ----------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.timeout(3000)
def test_a_run_that_is_killed_goes_on(project: Project, undisturbed: Undisturbed) -> None:
    """kill -9 when a group is finished, which the next run takes up, and then at random points: after each all files
    are whole and nobody is left, and the run that is let through at last has just the cells of one that was never
    disturbed."""

    def kill(process: Background) -> None:
        process.kill()
        process.wait()
        assert wait_until(lambda: gone(project)), processes_of(project)
        project.whole()

    process = project.start()
    kept = project.kept.glob
    assert wait_until(lambda: any("measured_at" in path.read_text() for path in kept("*.transpose.cpu.jsonl")))
    kill(process)
    (path,) = project.kept.glob("*.transpose.cpu.jsonl")
    before = json.loads(path.read_text().splitlines()[0])["facts"]
    done = project.measure(commits=1)
    assert done.returncode == 0, done.stdout + done.stderr
    after = project.facts(project.commits[0])["transpose cpu"]
    assert after == before | {"resumed": (count := after["resumed"])}
    assert count >= 1
    assert f"transpose cpu: {count} of its processes measured before an interruption" in done.stdout
    assert list(project.kept.iterdir()) == []

    kills = int(os.environ.get("GPUKERNELS_KILLS", "2"))
    chance = random.Random(0)
    longest, rounds, resumed = 4.5, 1, 0
    for _ in range(kills - 1):
        process = project.start()
        try:
            assert process.wait(chance.uniform(0.0, longest)) == 0
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        kill(process)
        if ended:  # it was through before its time: the next one begins anew
            assert project.cells() == undisturbed.cells
            resumed += project.resumed()
            project.clear()
            rounds += 1
    done = project.measure()
    assert done.returncode == 0, done.stdout + done.stderr
    project.whole()
    assert project.cells() == undisturbed.cells
    resumed += project.resumed()
    assert list(project.kept.glob("*")) == []
    print(f"{kills} times kill -9, {rounds} histories, {resumed} groups taken up from before a kill")


@pytest.fixture
def hanging(project: Project) -> Iterator[tuple[Project, str, Path]]:
    """The project with a commit whose transpose/c runs for ever; that commit; the file by which it says that it
    does."""
    begun = project.home / "begun"
    begun.unlink(missing_ok=True)
    source = project.folder / "gpukernels" / "transpose" / "c.c"
    body = f'fclose(fopen("{begun}", "w")); for (volatile int i = 1; i;);'
    source.write_text("#include <stdio.h>\n" + HANG % body)
    project.git("commit", "-q", "-a", "-m", "for ever")
    commit = project.git("rev-parse", "HEAD")
    yield Project(project.folder, project.home, (commit,)), commit, begun
    project.git("reset", "-q", "--hard", project.commits[-1])


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for temporary files. Its path is short: the path of a socket, which asv makes there, has 107 bytes."""
    return tmp_path_factory.mktemp("t")


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_asv_ends_all_that_it_started(
    hanging: tuple[Project, str, Path], temporary: Path, number: signal.Signals
) -> None:
    project, _, begun = hanging
    process = project.start(commits=1, TMPDIR=str(temporary))
    assert wait_until(begun.exists)
    assert any("kernelwatch/run/worker.py" in command for command in processes_of(project).values())
    process.send_signal(number)
    said = process.finish()
    assert wait_until(lambda: gone(project)), processes_of(project)
    left = {path.name.rpartition("-")[0] for path in temporary.iterdir()}
    assert left == ({"kernelwatch-facts"} if number == signal.SIGKILL else set())
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert f"interrupted; {running.GOES_ON}" in said
        assert "Traceback" not in said
    project.whole()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_as_long_as_asv_runs(number: signal.Signals) -> None:
    arrived: list[int] = []
    before = signal.signal(number, lambda number, _: arrived.append(number))
    try:
        with running.interruptible(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert arrived == []
        signal.raise_signal(number)
        assert arrived == [number]
    finally:
        signal.signal(number, before)


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_bench_ends_all_that_it_started(
    hanging: tuple[Project, str, Path], temporary: Path, number: signal.Signals
) -> None:
    project, _, begun = hanging
    command = ["scripts/bench", "--quick", "--no-gate", "--bench", "transpose.CPU", "--only", CELLS]
    process = project.begin(*command, TMPDIR=str(temporary))
    assert wait_until(begun.exists)
    process.send_signal(number)
    process.wait()
    assert wait_until(lambda: gone(project)), processes_of(project)
    assert list(temporary.iterdir()) == []


# --- crowded ---------------------------------------------------------------------------------------------------------


def test_a_second_run_is_told_who_measures(project: Project) -> None:
    with holder(project.folder / "results.lock") as other:
        for done, code in ((project.measure(), 1), (project.bench("--no-gate", only=""), CANNOT)):
            assert done.returncode == code
            said = f"process {other.pid} in {os.getcwd()} measures into {project.results}; wait for it or end it"
            assert said in (done.stdout + done.stderr).replace("\n", " ")
            assert "Traceback" not in done.stderr
        assert not project.results.exists()
        assert other.stdin is not None
        other.stdin.close()
        other.wait()


def test_a_run_holds_the_lock_and_its_own_asv_may_measure(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(running.LOCKED, raising=False)
    lock = project.folder / "results.lock"
    with running.alone(project.results):
        with pytest.raises(Busy, match=f"process {os.getpid()} "), locked(lock):
            pass
        with running.alone(project.results):  # as asv, whom scripts/bench started
            pass
    with locked(lock):
        pass


# --- a disk that is full, files that are broken ----------------------------------------------------------------------


@pytest.fixture
def small_disk(project: Project) -> Iterator[Path]:
    """The project's results on a disk of half a MiB."""
    project.results.mkdir()
    mounted = project.run("mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(project.results))
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield project.results
    finally:
        project.run("umount", "-l", str(project.results))


def fill(disk: Path) -> Path:
    """Use up what is free."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return path


@linux
def test_a_full_disk_costs_nothing(project: Project, undisturbed: Undisturbed, small_disk: Path) -> None:
    undisturbed.first_commit(project)
    before = {path: path.read_bytes() for path in small_disk.rglob("*.json*")}
    process = project.start()
    assert wait_until(lambda: list(project.kept.glob(f"{project.commits[1]}*.jsonl")))
    filler = fill(small_disk)
    said = process.finish()
    assert process.returncode == 1
    assert "No space left on device" in said
    assert f"every file is as it was before: make room; {running.GOES_ON}" in said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in small_disk.rglob("*.json*")} == before
    filler.unlink()
    done = project.measure()
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.cells() == undisturbed.cells
    assert all(facts.get("resumed") for facts in project.facts(project.commits[1]).values())


def test_files_that_asv_cannot_use_are_set_aside(project: Project, undisturbed: Undisturbed) -> None:
    undisturbed.first_commit(project)
    (path,) = project.results.glob("*/*-checkout-*.json")
    whole = project.cells()
    foreign = {
        path: path.read_text()[:1000],
        path.with_name("0123abcd-checkout-py3.json"): "[]",
        path.with_name("4567abcd-checkout-py3.json"): '{"version": 2, "results": 3}',
        path.with_name("89ababcd-checkout-py3.json"): "[" * 100_000,
        path.with_name("machine.json"): "",
        project.results / "benchmarks.json": '{"version": 2, "x": ',
    }
    for broken, text in foreign.items():
        broken.write_text(text)
    done = project.measure(commits=1)
    assert done.returncode == 0, done.stdout + done.stderr
    for broken, text in foreign.items():
        assert broken.with_name(f"{broken.name}.broken").read_text() == text
        assert f"{broken.name} cannot be used (" in done.stdout
    assert project.cells() == whole


# --- many commits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9, 100])
def test_a_picture_comes_early(count: int) -> None:
    commits = [str(at) for at in range(count)]
    order = full.measuring_order(commits)
    assert sorted(order, key=int) == commits
    for so_far in range(2, count + 1):
        taken = sorted(map(int, order[:so_far]))
        assert (taken[0], taken[-1]) == (0, count - 1)
        widest = max(b - a for a, b in itertools.pairwise(taken))
        assert widest <= 2 * -(-(count - 1) // (so_far - 1)) + 1


def test_a_range_of_what_changed_the_kernels(tmp_path: Path) -> None:
    """A merge that brings another kernel has changed it; what was only on the branch merged is not on the way."""
    project = new_project(tmp_path)

    def commit(path: str) -> str:
        file = project.folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{path} {time.monotonic_ns()}")
        return project.commit_all(path)

    paths = ("gpukernels/a.cu", "README.md", "gpukernels/a.cu", "benchmarks/b.py")
    first, docs, second, suite = (commit(path) for path in paths)
    project.git("checkout", "-q", "-b", "side")
    commit("gpukernels/c.cu")
    project.git("checkout", "-q", "main")
    project.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = project.git("rev-parse", "HEAD")
    last = commit("README.md")
    root, package = project.folder, PROJECT.package
    assert git.commits(root, "main") == [last, merge, suite, second, docs, first]
    assert git.commits(root, "main", [package]) == [last, merge, second, first]
    assert git.commits(root, f"{first}..{suite}", [package]) == [suite, second]
    assert git.commits(root, "main..main", [package]) == []


def test_what_changed_is_asked_of_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(PROJECT, "scripts/bench", ["--changed"])
    assert "--changed chooses among the commits of a range: name one, as A..B" in capsys.readouterr().err


def test_bench_says_each_commit_in_that_order(project: Project) -> None:
    project.git("commit", "-q", "--allow-empty", "-m", "an \x1b[31mescape and " + "a very long subject " * 5)
    commits = [*project.commits, project.git("rev-parse", "HEAD")][1:]
    suite = r"vector_add\.CPU\.track_seconds"
    done = project.bench("--quick", "--no-gate", "--bench", suite, f"{project.commits[0]}..HEAD", only=CELLS)
    assert done.returncode == 0, done.stdout + done.stderr
    order = full.measuring_order(commits)
    assert order not in (commits, commits[::-1])
    lines = [line for line in done.stdout.splitlines() if " to go, about " in line or line.startswith(order[-1][:8])]
    assert [line[:8] for line in lines] == [commit[:8] for commit in order]
    assert [line.partition(" to go")[0].rpartition(" ")[2] for line in lines[:-1]] == ["2", "1"]
    assert all(re.search(r": \d+ s, \d+ ok", line) for line in lines)
    assert lines[0][9:].startswith("commit 1: ")
    assert "an ?[31mescape and a very long" in lines[1]
    assert "\x1b" not in done.stdout


def test_a_run_on_checkouts_makes_no_other_environment(project: Project) -> None:
    """The configured one is a virtualenv's, and asv would import what makes those."""
    command = ["-m", "asv", "run", "-E", "checkout", "--bench", "just-discover", "HEAD^!"]
    done = project.run(sys.executable, "-X", "importtime", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    imported = re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "asv.main" in imported
    assert "virtualenv" not in imported


# --- asv, as it is: what fails here is a work-around that must change or may go --------------------------------------


def test_asv_has_the_name_that_is_patched() -> None:
    kind = inspect.getattr_static(Run, "run")
    assert isinstance(kind, classmethod)
    parameters = inspect.signature(Run.run).parameters
    assert next(iter(parameters)) == "conf"
    assert parameters["dry_run"].default is False
    assert issubclass(util.UserError, Exception)


SUITE = """
import time
from pathlib import Path

class It:
    def setup_cache(self):
        Path({begun!r}).touch()
        time.sleep(600)

    def track_it(self, cache):
        return 1
"""


@linux
def test_asv_itself_leaves_its_processes_behind(tmp_path: Path) -> None:
    """Where this fails, kernelwatch/system/lifeline.py may go."""
    folder, begun = tmp_path / "stock", tmp_path / "begun"
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "__init__.py").touch()
    (folder / "benchmarks" / "it.py").write_text(SUITE.format(begun=str(begun)))
    (folder / "asv.conf.json").write_text(
        json.dumps({"version": 1, "project": "stock", "repo": ".", "environment_type": "existing"})
    )
    project = Project(folder, tmp_path, ())
    command = [sys.executable, "-m", "asv", "run", "--python", "same", "--machine", "here"]
    project.asv("machine", "--yes", "--machine", "here")
    process = subprocess.Popen(
        command, cwd=folder, env=project.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        assert wait_until(begun.exists)
        process.kill()
        process.wait()
        assert processes_of(project) != {}
    finally:
        process.kill()
        process.wait()
        for left in processes_of(project):
            os.kill(left, signal.SIGKILL)
