"""A fleet: bench --cluster with Dask's own schedulers and workers, which are killed, differ, and run out of disk.

The workers take CPU cells for those of a GPU whose hashed UUID is in $FAKE_GPU. GPUKERNELS_KILLS says how often
test_workers_that_are_killed_at_random_cost_nothing kills one (it is skipped if unset).
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import distributed
import pytest

from kernelwatch.extras.fleet import remote
from kernelwatch.extras.fleet.cluster import reply_of
from kernelwatch.extras.fleet.local import QUIET
from kernelwatch.history import links
from kernelwatch.system.errors import CANNOT
from tests import repositories, slurm, test_running
from tests.preloaded import Background, Preloaded
from tests.repositories import (
    FEWEST_TURNS,
    OWN_CLOCK,
    PRELOADED,
    ROOT,
    copy_into,
    cpu_processes,
    end_group,
    few_rungs,
    new_project,
    processes_in,
    rewrite,
    smaller,
    wait_until,
    without_suites,
)

ONE = r"vector_add\.CPU\.track_seconds"  # one group, unless a test needs two
CELLS = r"transpose/numpy float32 256x256 hot|vector_add/numpy float32 65536 hot"
FAKES = {
    **cpu_processes(1),
    "kernelwatch/timing/cpu.py": {
        '"machine": machine_id(),': '"machine": machine_id(), "nvml_uuid_sha256": os.environ.get("FAKE_GPU"),',
        '"compiler": compiler(),': '"compiler": os.environ.get("FAKE_COMPILER") or compiler(),',
    },
    "kernelwatch/extras/fleet/units.py": {
        '.holds == "GPU"': '.holds in ("CPU", "GPU")',
        '"cpu": "host"}': '"cpu": "gpu"}',
    },
    "kernelwatch/comparison/linking.py": {"EVERY = 10": "EVERY = 3", "BUDGET_S = 40.0": "BUDGET_S = 2.0"},
    **FEWEST_TURNS,
    "kernelwatch/extras/fleet/dispatch.py": {"TRIES = 5": "TRIES = 9"},  # one run has a full disk and two deaths
    "kernelwatch/extras/fleet/cluster.py": {"LOST_S = 20.0": "LOST_S = 3.0"},
}
WITH_DASK = Preloaded("distributed", **QUIET)
pytestmark = [
    pytest.mark.xdist_group("fleet"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in Linux's /proc"),
]


@dataclass(frozen=True)
class Project(test_running.Project):
    """A copy of this project, of so many commits that differ in nothing that is measured."""

    preloaded: ClassVar[Preloaded] = WITH_DASK

    def environment(self, **more: str) -> dict[str, str]:
        libraries = str(Path(distributed.__file__).parent.parent)  # Dask's, wherever the tests find them
        return super().environment(
            **{"KERNELWATCH_ONLY": CELLS, "FAKE_GPU": "here", "PYTHONPATH": libraries, **QUIET, **more}
        )

    def command(  # type: ignore[override]
        self, address: str, *arguments: str, commits: int = 2, bench: str = ONE
    ) -> list[str]:
        range = f"{self.commits[0]}..{self.commits[commits]}"
        options = ["--no-gate", "--no-confirm", "--bench", bench, "--cluster", address]
        return [sys.executable, "scripts/bench", *options, *arguments, range]

    def fleet(
        self, address: str, *arguments: str, commits: int = 2, bench: str = ONE
    ) -> "subprocess.CompletedProcess[str]":
        return self.run(*self.command(address, *arguments, commits=commits, bench=bench))

    def begin_fleet(self, address: str, *arguments: str) -> Background:
        """A run over two commits in the background."""
        return self.begin(*self.command(address, *arguments)[1:])

    def gpus(self) -> dict[tuple[str, str], str]:
        """Which GPU has measured each group of each commit."""
        return {
            (path.name[:8], line["group"]): line["facts"]["nvml_uuid_sha256"]
            for path in self.results.glob("*/*.facts.jsonl")
            for line in map(json.loads, path.read_text().splitlines())
            if line["record"] == "run"
        }

    def jobs(self) -> list[int]:
        """The processes of asv that measure something for a job."""
        return self.running("benchmark.py setup_cache", "benchmark.py run_server")

    def job_held(self) -> bool:
        """Stop a job where it is, so that it does not end by itself; whether there was one."""
        held = False
        for process in self.jobs():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                held = True
        return held

    def running(self, *programs: str) -> list[int]:
        """The processes of this project that run one of these programs."""
        return [
            process for process, command in self.processes().items() if any(program in command for program in programs)
        ]

    def processes(self) -> dict[int, str]:
        """Everything that this project has started."""
        return processes_in(self.home, environment=True)


@dataclass
class Cluster:
    """A scheduler and workers of Dask's, as a user would start them."""

    folder: Path
    environment: dict[str, str]
    processes: dict[str, Background] = field(default_factory=dict)

    def start(self, name: str, options: Sequence[str] = ("--no-nanny",), **more: str) -> None:
        program, *arguments = ["dask_scheduler", "--port", "0", "--dashboard-address", ":0"]
        if name != "scheduler":
            program, *arguments = ["dask_worker", "--name", name, "--nthreads", "1", "--no-dashboard", *options]
            arguments += ["--local-directory", str(self.folder / name), "--resources", "GPU=1"]
        command = ["-m", f"distributed.cli.{program}", "--host", "127.0.0.1", *arguments]
        self.processes[name] = WITH_DASK.start(
            [*command, "--scheduler-file", self.file], self.folder, self.environment | more
        )
        assert wait_until(lambda: os.path.exists(self.file) and os.path.getsize(self.file))

    @property
    def file(self) -> str:
        return str(self.folder / "scheduler.json")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def made(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("fleet"))
    copy_into(project.folder)
    for edits in (FAKES, OWN_CLOCK):
        rewrite(project.folder, edits)
    without_suites(project.folder, "access", "device", "matmul", "static")
    few_rungs(project.folder, ("c", "numpy"))
    smaller(project.folder, cpu_shapes="problem.counted_shapes[:1]")
    commits = tuple(project.commit_all(f"commit {at}", "--allow-empty") for at in range(3))
    project.git("repack", "-a", "-d", "-q")  # what is packed is sent to each worker as it is
    return Project(project.folder, project.home, commits)


@pytest.fixture
def project(made: Project) -> Iterator[Project]:
    """The project with nothing measured."""
    made.clear()
    yield made
    assert wait_until(lambda: not processes_in(made.folder)), processes_in(made.folder)


@pytest.fixture
def cluster(made: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler without a worker."""
    folder = tmp_path_factory.mktemp("c")
    cluster = Cluster(folder, made.environment(TMPDIR=str(folder)))
    cluster.start("scheduler")
    yield cluster
    for process in cluster.processes.values():
        end_group(process)
    assert wait_until(lambda: not processes_in(folder, environment=True)), processes_in(folder, environment=True)


@pytest.fixture(scope="module")
def undisturbed(made: Project) -> test_running.Undisturbed:
    """Without a cluster."""
    made.clear()
    hashes = made.home / "hashes"
    hashes.write_text(made.commits[1])
    done = made.asv("run", "-E", "checkout", "--bench", ONE, f"HASHFILE:{hashes}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = made.cells()
    assert len(found) == 2  # a cell in its facts, and a series
    return test_running.Undisturbed.of_two(found, made.results.rename(made.home / "undisturbed"), made.commits[1:])


def test_a_history_is_spread_and_workers_unlike_the_others_get_none(project: Project, cluster: Cluster) -> None:
    """Unlike the others are one with another compiler, and one that lacks a wheel, which fails before it can say
    anything."""
    for name in ("one", "two"):
        cluster.start(name, FAKE_GPU=name * 4)
    cluster.start("other", FAKE_GPU="other", FAKE_COMPILER="cc 1.0")
    broken = cluster.folder / "broken" / "asv"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no asv for this Python')")
    path = os.pathsep.join([str(broken.parent), cluster.environment["PYTHONPATH"]])
    cluster.start("broken", FAKE_GPU="broken", PYTHONPATH=path)
    assert wait_for_workers(cluster, 4)
    first = project.fleet(cluster.file)
    assert first.returncode == 2, first.stdout + first.stderr  # no two of its figures can be compared
    assert "verdict: nothing was judged" in first.stdout
    assert "dashboard: http://" in first.stdout
    assert "worker other is skipped: unlike the others of its kind: compiler " in first.stdout
    assert "-> cc 1.0" in first.stdout
    assert "worker broken is skipped: " in first.stdout
    assert "no asv for this Python" in first.stdout
    assert sorted(project.gpus().values()) == ["oneoneoneone", "twotwotwotwo"]


TIMES = (100, 1, 101, 0, 1000)  # of a function call in a kernel, which is broken if there is none


def test_links_are_measured_by_any_worker(project: Project, cluster: Cluster) -> None:
    """Also by one with another compiler, whose full runs would not be compared with those of the others. When all are
    there, the third launch is compared with its anchor, that from before them, and the one that comes back after a
    broken commit with the last one that worked."""
    kernel = project.folder / "gpukernels" / "vector_add" / "numpy.py"
    text, commits = kernel.read_text(), list[str]()
    try:
        for times in TIMES:
            works = f"for _ in range({times}):\n        len(out)"  # by calls, as the clock is
            kernel.write_text(f"{text}    {works if times else 'raise OSError'}\n")
            commits.append(project.commit_all(f"{times} times"))
        cluster.start("one", FAKE_GPU="one")
        cluster.start("two", FAKE_GPU="two", FAKE_COMPILER="cc 1.0")
        assert wait_for_workers(cluster, 2)
        command = ["scripts/bench", "--cluster", cluster.file, f"{project.commits[2]}..HEAD"]
        done = project.run(sys.executable, *command)
        again = project.run(sys.executable, *command)
    finally:
        project.git("reset", "-q", "--hard", project.commits[2])
    said = done.stdout + done.stderr
    assert done.returncode == 2, said  # one is broken
    (folder,) = project.results.glob("*/")
    sessions, messages = links.read(folder)
    assert not messages
    asked = [(session.kind, session.before, session.after) for session in sessions]
    base = project.commits[2]
    steps = zip([base, *commits], commits, strict=False)
    later = [("anchor", base, commits[2]), ("step", commits[2], commits[4])]
    assert sorted(asked) == sorted([*later, *(("step", *pair) for pair in steps)])
    assert {session.gpu.split()[-1] for session in sessions} == {"one", "two"}
    for session in sessions:
        is_linked = commits[3] not in (session.before, session.after)
        assert {link.cell.split()[0] for link in session.changed} == ({"vector_add/numpy"} if is_linked else set())
        is_faster = session.after == commits[1]
        assert all((link.log < -1) if is_faster else (link.log > 1) for link in session.changed)
    for commit, times in zip(commits, TIMES, strict=True):
        assert re.search(f"{commit[:7]} {times} times: {2 if times else 0} linked", said), said
    assert not list(folder.glob("*-checkout-*"))  # no full run
    assert again.returncode == 2, again.stdout + again.stderr  # of the whole range, whoever measured it
    assert "5 of 5 commits are linked already" in again.stdout


def wait_for_workers(cluster: Cluster, count: int) -> bool:
    """Until the scheduler knows so many workers."""
    with distributed.Client(scheduler_file=cluster.file, set_as_default=False) as client:
        return bool(wait_until(lambda: len(client.scheduler_info()["workers"]) == count, pause_s=0.1))


def processes(cluster: Cluster) -> list[int]:
    """The workers' process ids."""
    with distributed.Client(scheduler_file=cluster.file, set_as_default=False) as client:
        return list(client.run(os.getpid).values())


@pytest.mark.timeout(3000)
@pytest.mark.skipif("GPUKERNELS_KILLS" not in os.environ, reason="GPUKERNELS_KILLS does not say how often")
def test_workers_that_are_killed_at_random_cost_nothing(
    project: Project, cluster: Cluster, undisturbed: test_running.Undisturbed
) -> None:
    """kill -9 of a worker in the midst of its job, and more of them at random moments: another one measures the job,
    and in the end all is there once."""
    kills = int(os.environ["GPUKERNELS_KILLS"])
    chance, killed, rounds = random.Random(0), 0, 0
    names = ["one", "two"]
    for name in names:
        cluster.start(name, FAKE_GPU=name)
    assert wait_for_workers(cluster, len(names))
    while killed < kills:
        project.clear()
        rounds += 1
        run = project.begin_fleet(cluster.file)
        if rounds == 1:  # all have said what they are, and each has a job
            assert wait_until((project.results / "benchmarks.json").exists)
            assert wait_until(lambda: len(project.running("kernelwatch.extras.fleet.node")) == len(names), pause_s=0.1)
        while killed < kills:
            try:
                run.wait(chance.uniform(0.0, 16.0 if killed else 1.0))
                break
            except subprocess.TimeoutExpired:
                name = chance.choice(names)
                cluster.kill(name)
                killed += 1
                project.whole()
                if killed < kills:
                    cluster.start(name, FAKE_GPU=name)
        said = run.finish()
        if run.returncode == CANNOT and "given up" in said:  # one job had all the kills
            again = project.fleet(cluster.file)
            assert again.returncode == 0, again.stdout + again.stderr
        else:
            assert run.returncode == 0, said
        assert rounds > 1 or ": its worker died" in said
        project.whole()
        assert project.cells() == undisturbed.cells
    print(f"{killed} times kill -9, {rounds} histories")
    assert killed == kills


def test_what_a_worker_does_not_finish_another_one_measures(
    project: Project, cluster: Cluster, undisturbed: test_running.Undisturbed
) -> None:
    """One run, in which a worker has no room, the next one is killed, and so is the third one, but that has Dask's
    nanny, its default, which starts it again: its job is measured once more, by the same GPU."""
    small = cluster.folder / "small"
    small.mkdir()
    mounted = project.run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small))
    begun, skipped = project.results / "benchmarks.json", "worker small is skipped: 3 of its jobs in a row failed"
    if not mounted.returncode:
        try:
            cluster.start("small", FAKE_GPU="small", TMPDIR=str(small))
            run = project.begin_fleet(cluster.file)
            assert wait_until(begun.exists)  # now the jobs begin
            test_running.fill(small)
            assert wait_until(lambda: skipped in run.said or run.poll())
        finally:
            cluster.kill("small")
            project.run("umount", "-l", str(small))
        assert skipped in run.said
        assert "on small: " in run.said
        assert "No space left on device" in run.said
        cluster.start("one", FAKE_GPU="one")
    else:
        cluster.start("one", FAKE_GPU="one")
        run = project.begin_fleet(cluster.file)
    assert wait_until(project.job_held, pause_s=0.1)
    cluster.kill("one")
    assert wait_until(lambda: "its worker died" in run.said, pause_s=0.1)
    cluster.start("two", options=(), FAKE_GPU="two")
    assert wait_until(lambda: project.gpus() and project.jobs(), pause_s=0.1)
    (worker,) = processes(cluster)
    os.kill(worker, signal.SIGKILL)
    said = run.finish()
    assert run.returncode == 0, said
    assert said.count("its worker died") == 2, said
    project.whole()
    assert project.cells() == undisturbed.cells
    assert list(project.gpus().values()) == ["two", "two"]
    assert not project.jobs()
    assert processes(cluster) != [worker]
    if mounted.returncode:
        pytest.skip(f"all but the worker without room: no small disk can be mounted here: {mounted.stderr.strip()}")


def test_nobody_waits_for_the_reply_of_a_dead_worker() -> None:
    class Pending:
        released = False

        def done(self) -> bool:
            return False

        def result(self, timeout: float) -> bytes:
            raise AssertionError(f"waited {timeout} s")

        def release(self) -> None:
            self.released = True

    future = Pending()
    assert reply_of(future, gone=True) is None
    assert future.released
    assert "waited" in str(reply_of(future))  # of one that may still come


def test_a_worker_measures_on_its_own_gpu_alone() -> None:
    """The workers of dask-cuda are shown all GPUs of their machine, each another one first."""
    shown = {"CUDA_VISIBLE_DEVICES": "2,3,0,1", "KERNELWATCH_LOCKED": "here", "A": "b"}
    assert remote.environment(shown) == {"CUDA_VISIBLE_DEVICES": "2", "A": "b"}
    assert remote.environment({"A": "b"}) == {"A": "b"}
    assert remote.environment({"CUDA_VISIBLE_DEVICES": ""}) == {"CUDA_VISIBLE_DEVICES": ""}  # none


def test_no_scheduler_is_a_clear_error(project: Project) -> None:
    done = project.fleet("tcp://127.0.0.1:9")
    assert done.returncode == CANNOT
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_however_a_run_ends_the_next_goes_on(
    project: Project, cluster: Cluster, undisturbed: test_running.Undisturbed
) -> None:
    """Ctrl-C, then a scheduler that is lost, then kill -9 of a run that has a cluster of its own: each in the midst of
    the second commit, whose job would never end. Nobody is left, and what was measured stays and is not measured
    again."""
    undisturbed.first_commit(project)
    cluster.start("one")
    run = project.begin_fleet(cluster.file)
    assert wait_until(project.job_held, pause_s=0.1)
    first = {path: path.stat().st_mtime_ns for path in project.results.glob("*/*-checkout-*")}
    assert len(first) == 2
    run.send_signal(signal.SIGINT)
    said = run.finish()
    assert run.returncode == 130, said
    assert "interrupted; " in said
    assert wait_until(lambda: not project.jobs(), pause_s=0.1), project.processes()

    run = project.begin_fleet(cluster.file)
    assert wait_until(project.job_held, pause_s=0.1)
    cluster.kill("scheduler")
    said = run.finish()
    assert run.returncode == CANNOT, said
    assert f"the scheduler at {cluster.file} is lost; " in said.replace("\n", " ")
    assert "what was measured is in the results; the same command goes on there" in said.replace("\n", " ")
    assert "Traceback" not in said
    cluster.kill("one")  # it would wait for its scheduler
    assert wait_until(lambda: not project.processes(), pause_s=0.1), project.processes()

    run = project.begin_fleet("local")
    assert wait_until(project.job_held, pause_s=0.1)
    run.kill()
    run.wait()
    assert wait_until(lambda: not project.processes(), pause_s=0.1), project.processes()
    project.whole()

    done = project.fleet("local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.cells() == undisturbed.cells
    assert {path: path.stat().st_mtime_ns for path in first} == first


SBATCH = """#!/bin/sh
# Slurm, as far as a batch system is needed: it starts the script that it is given, and says under which number.
cp "$1" "$0.$$"
FAKE_GPU=gpu$$ setsid sh "$0.$$" > "$0.$$.log" 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
for job in "$@"; do kill -KILL -- "-$job"; done
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder that can be $TMPDIR: asv puts a socket there, whose path may have some 100 characters."""
    with tempfile.TemporaryDirectory(prefix="kw", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def stand_in(folder: Path) -> Iterator[dict[str, str]]:
    """Two of Slurm's commands, and the environment that finds them."""
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    yield {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    "batch_system",
    [stand_in, pytest.param(slurm.slurm, marks=pytest.mark.skipif(bool(slurm.missing()), reason=f"{slurm.missing()}"))],
)
def test_a_batch_system_hands_out_the_gpus(
    project: Project, short_path: Path, batch_system: Callable[[Path], AbstractContextManager[dict[str, str]]]
) -> None:
    def example(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [str(ROOT / "examples" / "slurm.py"), *arguments]
        return PRELOADED.run(command, project.folder, project.environment(**more))

    shown = example("--show", "--gres", "gpu:h200:1")
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --gres=gpu:h200:1" in shown.stdout
    assert "--resources GPU=1" in shown.stdout
    arguments = [*project.command("")[2:]]
    arguments.remove("--cluster")
    arguments.remove("")
    with batch_system(short_path) as variables:
        done = example("--jobs", "2", "--", *arguments, TMPDIR=str(short_path), **variables)
    assert done.returncode == 2, done.stdout + done.stderr  # each commit was measured on another GPU
    assert "verdict: nothing was judged" in done.stdout
    gpus = project.gpus().values()
    assert len(gpus) == 2
    assert all(re.fullmatch(r"gpu\d+", gpu) for gpu in gpus), gpus  # as the job was given it
    assert project.git("status", "--porcelain") == "?? results/"
    left = partial(processes_in, short_path, environment=True)
    assert wait_until(lambda: not left()), left()


def test_without_a_cluster_dask_is_not_needed(project: Project) -> None:
    code = "import sys, kernelwatch.commands.bench; print({'distributed', 'dask'} & sys.modules.keys())"
    plain = repositories.Project(project.folder, project.home)  # its commands are forks of a process without Dask
    assert plain.python(code) == "set()"
    hidden = project.home / "hidden" / "distributed"
    hidden.mkdir(parents=True, exist_ok=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'distributed'\")")
    done = plain.run(*project.command("local"), PYTHONPATH=str(hidden.parent))
    assert done.returncode == CANNOT
    assert "--cluster needs Dask (No module named 'distributed'); install kernelwatch[fleet]" in done.stderr
    shutil.rmtree(hidden.parent)


@pytest.mark.parametrize("arguments", [["--quick", "--cluster", "local"], ["--worktree", "--cluster", "local"]])
def test_a_cluster_is_for_the_history(project: Project, arguments: list[str]) -> None:
    done = project.run(sys.executable, "scripts/bench", *arguments)
    assert done.returncode == CANNOT
    assert "--cluster measures commits for the history" in done.stderr
