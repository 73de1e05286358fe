"""Real workers on real packages, and what becomes of a group when a kernel, a package or a parent goes wrong."""

import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import gpukernels
from benchmarks.project import PROJECT
from kernelwatch.plan import package as plan_package
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.run import checkpoint, group, processes, worker, workers
from kernelwatch.run.outcome import CONDITIONS, Group, Outcome, conditions, group_of, read
from kernelwatch.run.processes import Run
from kernelwatch.run.workers import WORKER, Worker, Workers
from kernelwatch.system import patience
from kernelwatch.system.options import Options
from kernelwatch.timing import cpu as cpu_module
from kernelwatch.timing.check import Budget
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import LOW_CLOCK
from tests.repositories import wait_until
from tests.test_files import holder

ROOT = Path(__file__).resolve().parents[1]
BUDGET = Budget(samples=3, sample_s=0.0002)
SHAPE = (256, 256)

C = "void transpose_{name}(const T *restrict in, T *restrict out, long long M, long long N) {{\n{body}\n}}\n"
RIGHT = "    for (long long m = 0; m < M; ++m) for (long long n = 0; n < N; ++n) out[n * M + m] = in[m * N + n];"
WRONG = RIGHT + "\n    out[4 * M + 31] += 1;"
SEGFAULT = "    (void)in, (void)out, (void)M, (void)N;\n    *(volatile char *)0 = 1;"
FOR_EVER = "    (void)in, (void)out, (void)M, (void)N;\n    for (volatile int i = 1; i;);"
NO_C = "    out[0] = in[0]  // the semicolon is missing"

Package = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A copy of the package under a folder, with bodies planted in its C rungs of transpose."""

    def plant(name: str = "commit", head: str = "", **bodies: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
        for rung, body in bodies.items():
            write(folder, rung, body, head)
        return folder

    return plant


def write(folder: Path, rung: str, body: str, head: str = "") -> None:
    (folder / "gpukernels" / "transpose" / f"{rung}.c").write_text(head + C.format(name=rung, body=body))


def cells(device: str = "cpu", *caches: str) -> list[Cell]:
    """One cell a rung of transpose (and cache: hot unless told), small."""
    found = plan(PROJECT.op("transpose"), device, quick=True)
    return [cell for cell in found if cell.shape == SHAPE and cell.cache in (caches or ("hot",)) and not cell.reference]


def measured(folder: Path, *, times: int = 1, endless_s: float = 60.0, device: str = "cpu") -> Run:
    run = Run(PROJECT, cells(device), device, str(folder), BUDGET, endless_s=endless_s)
    for seed in range(times):
        run.measure_all(seed)
    return run


def outcomes(run: Run) -> dict[str, Outcome]:
    """By rung."""
    return {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}


def assert_measured(outcome: Outcome, processes: int = 1) -> None:
    assert (outcome.state, outcome.reason) == ("ok", "")
    assert [one["process"] for one in outcome.measurements] == list(range(processes))
    assert all(one["seconds"] > 0 for one in outcome.measurements)


def assert_failed(outcome: Outcome, *words: str) -> None:
    assert (outcome.state, outcome.measurements) == ("failed", [])
    for one in words:
        assert one in outcome.reason


def assert_only_failed(run: Run, rung: str, *words: str) -> None:
    """This rung failed with these words; every other one was measured."""
    for name, outcome in outcomes(run).items():
        if name != rung:
            assert_measured(outcome)
    assert_failed(outcomes(run)[rung], *words)


def affinity() -> set[int]:
    return os.sched_getaffinity(0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not pin threads")
def test_a_calling_thread_has_a_core_of_its_own() -> None:
    """The last one; where a rung uses all, the first of OpenMP's places, whose others belong to its other threads."""
    every = affinity()
    cpu = object.__new__(cpu_module.Cpu)
    cpu.cores = sorted(every)
    by_threads = {cell.threads: cell for cell in cells()}
    with cpu._pinned(by_threads["1"]):
        assert affinity() == {max(every)}
    with cpu._pinned(by_threads["all"]):
        assert affinity() == {min(every)}
    assert affinity() == every  # what is loaded next finds all of them


@pytest.mark.parametrize(("once", "samples"), [(0.7, 1), (0.3, 2), (0.04, 2), (0.01, 7)])
def test_an_expensive_run_is_timed_by_its_check(once: float, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only launches move: over half a second the checked run is the sample, and nothing else runs."""
    clock = [0.0]

    def launch() -> None:
        clock[0] += once

    launch.identity = "who"  # type: ignore[attr-defined]
    cpu = object.__new__(cpu_module.Cpu)
    cpu.budget = Budget(samples=7, sample_s=0.004)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(cpu, "_check", lambda _cell, run: (run(), once)[1])
    found = cpu._time(cells()[0], cast(list[plan_package.Launch], [launch]), 1)
    assert found["seconds"] == pytest.approx(once)
    assert found["launches"] == samples
    assert clock[0] == pytest.approx(once * (1 if samples == 1 else 1 + samples))
    repeated = cpu._time(cells()[0], cast(list[plan_package.Launch], [launch]), 64)
    assert repeated["seconds"] == pytest.approx(once / 64)  # of one pass


def test_every_library_of_threads_gets_all_cores() -> None:
    told = cpu_module.environment()
    assert {told[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {str(len(cpu_module.cores()))}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are read from /proc")
def test_every_thread_of_openmp_has_a_place_of_its_own(package: Package, tmp_path: Path) -> None:
    """In a worker, after a rung of one thread has been timed: no two threads of the team share a core."""
    seen = tmp_path / "cores"
    body = (
        f"{RIGHT}\n    cpu_set_t set;\n#pragma omp parallel private(set)\n#pragma omp critical\n    {{\n"
        "        sched_getaffinity(0, sizeof set, &set);\n"
        f'        FILE *file = fopen("{seen}", "a");\n'
        "        for (int core = 0; core < CPU_SETSIZE; ++core)\n"
        '            if (CPU_ISSET(core, &set)) fprintf(file, "%d,", core);\n'
        '        fprintf(file, "\\n");\n        fclose(file);\n    }'
    )
    folder = package(c_openmp=body, head="#define _GNU_SOURCE\n#include <sched.h>\n#include <stdio.h>\n")
    order = sorted(cells(), key=lambda cell: cell.threads)  # "1" before "all"
    run = Run(PROJECT, order, "cpu", str(folder), BUDGET)
    run._worker(order, 0, lambda: None)
    assert_measured(outcomes(run)["c_openmp"])
    team = seen.read_text().splitlines()[: len(affinity())]
    assert sorted(team) == sorted(f"{core}," for core in affinity())


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_never_leaves_a_worker(value: float) -> None:
    """asv would record it, and then not publish."""
    said = io.StringIO()
    with pytest.raises(ValueError, match="not JSON compliant"):
        worker._emit(said, event="cell", measurement={"seconds": value})
    assert said.getvalue() == ""


def test_a_pass_is_what_the_measured_commit_repeats(package: Package) -> None:
    """The checkout's ladder says once; the commit repeats its work 64 times a launch: its seconds are of one pass."""
    once, repeated = package("once", c=RIGHT), package("repeated")
    write(repeated, "c", f"    for (volatile int i = 0; i < REPEATS; ++i) {{\n{RIGHT}\n    }}")
    ladder = repeated / "gpukernels" / "ladder.toml"
    entry = '[[transpose.rungs]]\nname = "c"\n'
    assert ladder.read_text().count(entry) == 1
    ladder.write_text(ladder.read_text().replace(entry, f"{entry}repeats = 64\n"))
    mine = [cell for cell in cells() if cell.rung == "c"]
    taken = []
    for folder in (once, repeated):
        run = Run(PROJECT, mine, "cpu", str(folder), BUDGET)
        for seed in range(2):
            run.measure_all(seed)
        taken.append(outcomes(run)["c"].by_process("seconds"))
    ratio = min(taken[1].values()) / min(taken[0].values())
    assert 1 / 8 < ratio < 8  # of the two in one run, on a busy machine; 64 where the checkout's count is taken


# --- kernels -------------------------------------------------------------------------------------------------------


def test_processes_measure_every_cell_once(package: Package) -> None:
    run = measured(package(), times=2)
    for outcome in outcomes(run).values():
        assert_measured(outcome, 2)
        assert set(outcome.by_process("seconds")) == {0, 1}
        assert outcome.by_process("launch_seconds") == {}
    assert run.group.facts["packages"]["numpy"] == np.__version__
    assert run.group.facts["compiler"]
    assert run.group.facts["openmp"] == cpu_module.environment()
    assert run.group.name == "transpose cpu"


def test_a_process_is_told_the_clocks_of_those_before(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks are planted, as if read on a GPU."""
    run, jobs = measured(package(), times=2), list[Any]()
    for measurement, clock in zip(outcomes(run)["c"].measurements, (1890.0, 1880.0), strict=True):
        measurement["clock64_mhz"] = clock
    send = Worker.send

    def keep(worker: Worker, line: Any) -> None:
        jobs.append(line)
        send(worker, line)

    monkeypatch.setattr(Worker, "send", keep)
    run.measure_all(2)
    (key,) = (cell.key for cell in run.cells if cell.rung == "c")
    assert [job["budget"]["clocks_mhz"] for job in jobs if isinstance(job, dict)] == [{key: 1885.0}]
    assert_measured(outcomes(run)["c"], 3)


def test_limited_cells_are_measured_once_more(package: Package) -> None:
    """The clocks are planted, as if read on a GPU: in one process that of one cell was low."""
    run, said = measured(package(), times=3), list[str]()
    run.note = said.append
    own, limited, *others = outcomes(run).values()
    for outcome, clocks in ((own, (1890.0, 1891.0, 1889.0)), (limited, (1980.0, 1400.0, 1979.0))):
        for measurement, clock in zip(outcome.measurements, clocks, strict=True):
            measurement["throttled"] = [LOW_CLOCK] if clock < 1900 else []
            measurement["clock64_mhz"] = clock
    slow_s = limited.measurements[1]["seconds"] = 1.0
    group.retake(run, 3)
    for outcome in (own, *others):
        assert_measured(outcome, 3)
    assert [one["process"] for one in limited.measurements] == [0, 3, 2]
    assert limited.measurements[1]["instead_of"]["seconds"] == slow_s
    assert limited.measurements[1]["seconds"] < slow_s
    assert len(said) == 1
    assert said[0].startswith(
        f"1 of {len(run.cells)} cells of transpose cpu are measured again: the SM clock was limited"
    )


def test_a_limited_cell_that_is_wrong_when_measured_again_has_failed(package: Package) -> None:
    run = measured(package(), times=2)
    cell = outcomes(run)["c"]
    for measurement, clock in zip(cell.measurements, (1980.0, 1400.0), strict=True):
        measurement |= {"throttled": [LOW_CLOCK], "clock64_mhz": clock, "seconds": clock}
    write(Path(run.tree), "c", WRONG)
    group.retake(run, 2)
    failed = {name for name, outcome in outcomes(run).items() if outcome.state == "failed"}
    assert failed == {"c"}
    assert_failed(cell, "elements wrong")


def test_cold_cells_rotate_over_more_than_the_cache(package: Package) -> None:
    run = Run(PROJECT, cells("cpu", "cold"), "cpu", str(package()), BUDGET)
    run.measure_all(0)
    for outcome in outcomes(run).values():
        assert_measured(outcome)
        assert outcome.measurements[0]["slots"] * 2 * 256 * 256 * 4 >= 2 * run.group.facts["cache_bytes"]


def test_kernels_that_are_wrong_or_do_not_compile(package: Package) -> None:
    some = RIGHT.replace("n = 0; n < N", "n = 1; n < N")
    found = outcomes(measured(package(c_blocked=WRONG, c=some, c_openmp=NO_C)))
    # What is 1 too much need not be another float32, but here it is: inputs lie in [-1, 1).
    said = "transpose/c_blocked at (256, 256) float32: 1 of 65536 elements wrong, the first at [4, 31]; 0 never written"
    assert_failed(found["c_blocked"])
    assert found["c_blocked"].reason == f"WrongOutput: {said}"
    assert_failed(found["c"], ": 256 of 65536 elements wrong, the first at [0, 0]; 256 never written")
    compiled = "KernelError: transpose/c_openmp float32: ", "does not compile it", "error: expected", "c_openmp.c:2"
    assert_failed(found["c_openmp"], *compiled)
    assert_measured(found["numpy"])


def test_kernels_that_end_their_process_fail_once_and_alone(package: Package, tmp_path: Path) -> None:
    """One segfaults, one exits, one does not compile; no later process tries them again."""
    mark = f'FILE *file = fopen("{tmp_path}/launches", "a"); fputs("{{}}", file); fclose(file);\n    '
    crash = "*(volatile char *)0 = 1;"
    bodies = {
        "c": SEGFAULT.replace(crash, mark.format("segfault ") + crash),
        "c_blocked": SEGFAULT.replace(crash, mark.format("exit ") + 'fputs("out of luck\\n", stderr); _exit(7);'),
    }
    folder = package(head="#include <stdio.h>\nvoid _exit(int);\n", **bodies, c_openmp=NO_C)
    found = outcomes(measured(folder, times=2))
    assert_failed(found["c"], f"its process died with exit code {-signal.SIGSEGV}")
    assert_failed(found["c_blocked"], "its process died with exit code 7: out of luck")
    assert_failed(found["c_openmp"], "does not compile it")
    assert_measured(found["numpy"], 2)
    assert sorted((tmp_path / "launches").read_text().split()) == ["exit", "segfault"]


@pytest.fixture
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent processes are, so that a short limit is noticed soon after it has passed."""
    monkeypatch.setattr(patience, "LOOK_S", 0.2)


def test_a_kernel_that_hangs(package: Package) -> None:
    folder = package(c=SEGFAULT.replace("*(volatile char *)0 = 1;", "pause();"), head="int pause(void);\n")
    mine = [cell for cell in cells() if cell.rung == "c"]
    run = Run(PROJECT, mine, "cpu", str(folder), BUDGET, silence_s=2)
    run.measure_all(0)
    assert_only_failed(run, "c", "it hung: it has not worked for 2 s, its process was killed")


def test_a_slow_kernel_is_said_to_be_slow(package: Package) -> None:
    """It is silent for longer than a worker may be that does not work."""
    wait = "    const clock_t start = clock(); while (clock() - start < CLOCKS_PER_SEC * 5 / 4);\n"
    folder = package(c=wait + RIGHT, head="#include <time.h>\n")
    mine = [cell for cell in cells() if cell.rung == "c"]
    run, said = Run(PROJECT, mine, "cpu", str(folder), BUDGET, silence_s=1), list[str]()
    run.note = said.append
    run.measure_all(0)
    assert_measured(outcomes(run)["c"])
    assert f"slow: {mine[0].key} has taken 1 s and still works" in said


@pytest.mark.usefixtures("looked_at_often")
def test_a_rung_that_does_not_end_is_not_tried_again(package: Package, tmp_path: Path) -> None:
    mark = f'    FILE *file = fopen("{tmp_path}/launches", "a"); fputs("x", file); fclose(file);\n'
    folder = package(head="#include <stdio.h>\n", c=mark + FOR_EVER)
    also = [cell for cell in plan(PROJECT.op("vector_add"), "cpu", quick=True) if cell.rung == "c"]
    mine = [cell for cell in cells("cpu", "hot", "cold") if cell.rung == "c"]
    others = [cell for cell in cells() if cell.rung != "c"]
    run = Run(PROJECT, [*mine, *others, *also], "cpu", str(folder), BUDGET, endless_s=1)
    run.group.outcomes[also[1].key] = Outcome("na", "never hot")
    for seed in range(2):
        run.measure_all(seed)
    assert (tmp_path / "launches").read_text() == "x"
    hung, other = sorted((run.group.outcomes[cell.key].reason, cell.key) for cell in mine)
    assert hung[0] == "it is endless or very slow: it has worked for 1 s, its process was killed"
    assert other[0] == f"not tried: {hung[1]} did not end"
    assert {run.group.outcomes[cell.key].state for cell in mine} == {"failed"}
    for cell in others:
        assert_measured(run.group.outcomes[cell.key], 2)
    assert_measured(run.group.outcomes[also[0].key], 2)  # another op's rung of the same name
    assert run.group.outcomes[also[1].key] == Outcome("na", "never hot")


def test_no_compiler_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch, package: Package) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    found = outcomes(measured(package()))
    assert_measured(found.pop("numpy"))
    for outcome in found.values():
        assert (outcome.state, outcome.measurements) == ("na", [])
        assert "no C compiler: no-such-compiler not found; install one or set CC" in outcome.reason


def test_noise_on_stdout_is_no_event(package: Package) -> None:
    noise = '    printf("{\\"event\\": \\"end\\"}\\n"); fflush(stdout);\n' + RIGHT
    run = measured(package(head="#include <stdio.h>\n", c=noise))
    for outcome in outcomes(run).values():
        assert_measured(outcome)


def test_one_wrong_answer_is_enough(package: Package) -> None:
    folder = package()
    run = measured(folder)
    assert_measured(outcomes(run)["c"])
    write(folder, "c", WRONG)
    run.measure_all(1)
    found = outcomes(run)
    assert (found["c"].state, found["c"].measurements) == ("failed", [])
    assert_measured(found["c_blocked"], 2)
    write(folder, "c", RIGHT)
    run.measure_all(2)
    assert (found["c"].state, found["c"].measurements) == ("failed", [])  # and stays so
    assert_measured(found["c_blocked"], 3)


def test_what_was_measured_stays_when_a_later_process_cannot_start(package: Package) -> None:
    folder = package(c=WRONG)
    run = measured(folder)
    (folder / "gpukernels" / "__init__.py").write_text("def load(:\n")
    run.measure_all(1)
    run.measure_all(2)
    assert_only_failed(run, "c", "WrongOutput: ")
    assert "SyntaxError: " in run.unavailable


def test_every_process_has_an_order_of_its_own(package: Package) -> None:
    def order(seed: int) -> list[str]:
        run = Run(PROJECT, cells(), "cpu", "", BUDGET)
        seen: list[str] = []

        def worker(left: list[Cell], seed: int, tick: Callable[[], None], more: bool) -> int:
            seen.extend(cell.rung for cell in left)
            return len(left)

        run._worker = worker  # type: ignore[assignment, method-assign]
        run.measure_all(seed)
        return seen

    orders = [order(seed) for seed in range(6)]
    assert all(sorted(one) == sorted(orders[0]) for one in orders)
    assert len({tuple(one) for one in orders}) > 1
    assert order(3) == orders[3]


# --- cores -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not say which cores a process has")
def test_a_serial_rung_has_one_core_and_the_next_one_all_again() -> None:
    free = os.sched_getaffinity(0)
    seen: dict[str, list[set[int]]] = {}

    class Watching:
        """A package and its kernels in one."""

        def repeats(self, op: str, rung: str) -> int:
            return 1

        def load(self, op: str, rung: str, type: str) -> "Watching":
            self.seen = seen.setdefault(rung, [])
            return self

        def bind(self, array: Any, out: Any) -> gpukernels.Launch:
            mine = self.seen

            def run() -> None:
                mine.append(os.sched_getaffinity(0))
                np.copyto(out, array.T)

            mine.append(os.sched_getaffinity(0))
            return gpukernels.Launch(out, "watching", run)

    order = [cell for cell in cells() if cell.rung in ("c", "c_openmp")]
    cpu = cpu_module.Cpu(PROJECT, cast(plan_package.Package, Watching()), order, BUDGET, 0)
    for cell in [*order, *order]:
        cpu.measure(cell)
        assert os.sched_getaffinity(0) == free
    serial, parallel = seen["c"], seen["c_openmp"]
    assert min(len(serial), len(parallel)) > 2  # bound and launched
    assert serial[0] == free  # where it was bound: OpenMP starts its threads when a kernel is loaded
    assert {frozenset(cores) for cores in serial[1:]} == {frozenset(free), frozenset({max(free)})}
    assert parallel[0] == free
    assert {frozenset(cores) for cores in parallel[1:]} == {frozenset(free), frozenset({min(free)})}


# --- packages ------------------------------------------------------------------------------------------------------


def test_a_package_whose_rungs_take_less_or_are_missing(package: Package) -> None:
    """Without one rung, with one of another type, and with one that has a limit: none of it is a failure."""
    folder = package()
    ladder = folder / "gpukernels" / "ladder.toml"
    parts = ladder.read_text().split("[[transpose.rungs]]")
    text = "[[transpose.rungs]]".join(part for part in parts if 'name = "c_blocked"' not in part)
    text = text.replace('name = "c"\nidea = "two', 'name = "c"\ntypes = ["float64"]\nidea = "two')
    text = text.replace('name = "c_openmp"\n', 'name = "c_openmp"\ninput_bytes_max = [9]\n')
    ladder.write_text(text)
    found = outcomes(measured(folder))
    missing, limited = found["c_blocked"], found["c_openmp"]
    assert missing.state == limited.state == "na"
    assert missing.reason.startswith("this commit has no rung transpose/c_blocked; the ladder has ")
    assert found["c"] == Outcome("na", "at this commit transpose/c takes float64, not float32")
    assert limited.reason.startswith("transpose/c_openmp: input 0 must have at most 9 bytes, got ")
    assert_measured(found["numpy"])


@pytest.mark.parametrize(("seconds", "enough"), [(1e-6, None), (0.004, None), (0.006, 3), (0.1, 3), (0.3, 2)])
def test_a_slow_cell_is_left_to_fewer_processes(seconds: float, enough: int | None) -> None:
    outcome = Outcome()
    for process in range(9):
        assert outcome.wanted(process) is (enough is None or process < enough)
        outcome.state = "ok"
        outcome.measurements.append({"process": process, "seconds": seconds * (1 - process % 2 / 2)})
    assert not Outcome("failed", "wrong").wanted(0)
    assert not Outcome("na", "no GPU").wanted(0)


@pytest.mark.parametrize(
    ("spread", "launch_spread", "enough"),
    [(0.0, None, 3), (0.0003, None, 3), (0.0007, None, 4), (0.01, None, None), (0.0, 0.0, 3), (0.0, 0.01, None)],
)
def test_a_cell_that_is_known_well_needs_no_further_process(
    spread: float, launch_spread: float | None, enough: int | None
) -> None:
    """Of all its figures. Two processes that agree are no evidence."""
    outcome = Outcome("ok")
    for process in range(6):
        assert outcome.wanted(process) is (enough is None or process < enough)
        measurement: Measurement = {"process": process, "seconds": 1e-5 * (1 + spread * (process % 2))}
        if launch_spread is not None:
            measurement["launch_seconds"] = 1e-6 * (1 + launch_spread * (process % 2))
        outcome.measurements.append(measurement)


def test_a_process_measures_a_cell_once() -> None:
    outcome = Outcome("ok", measurements=[{"process": 0, "seconds": 1e-5}])
    assert not outcome.wanted(0)
    assert outcome.wanted(1)


def test_the_roofline_of_a_cell() -> None:
    """Operations over bytes; the higher of the two peaks; none of it where operations do not count."""
    mine = Cell("matmul", "wmma", "float16->float32", (32, 32, 32), "cold", "gpu")
    vendor = [dataclasses.replace(mine, rung="cublas", shape=(n, n, n)) for n in (32, 64)]
    copied = Cell("transpose", "padded", "float32", (4, 4), "cold", "gpu")
    run = Run(PROJECT, [mine, *vendor, copied], "gpu", "", BUDGET)
    for cell, seconds in zip(run.cells, (3e-9, 2e-9, 1e-9, 1e-9), strict=True):
        taken: list[Measurement] = [
            {"process": at, "seconds": value} for at, value in enumerate((seconds, seconds, 9 * seconds))
        ]
        run.group.outcomes[cell.key] = Outcome("ok", "", taken)
    run.group.facts = {"ceilings": {"copy_bytes_per_s": 4e12, "float32_flops_per_s": 6e13}}
    assert group.roofline(PROJECT, mine, run) == {
        "flops": 2 * 32**3,
        "bytes": 2 * 32 * 32 * 2 + 32 * 32 * 4,
        "intensity_flops_per_byte": 8.0,
        "peak_flops_per_s": 2 * 64**3 / 1e-9,
        "peak_of": "matmul/cublas float16->float32 64x64x64 cold",
        "copy_bytes_per_s": 4e12,
    }
    single = dataclasses.replace(mine, rung="initial", type="float32")
    assert group.roofline(PROJECT, single, run)["peak_of"] == "multiply-adds"
    assert group.roofline(PROJECT, copied, run) == {}


def all_alike(run: Run) -> Outcome:
    """The outcome that every cell has; the message of an exception in a worker is cut to its end."""
    found = list(outcomes(run).values())
    assert found
    assert all(outcome == found[0] for outcome in found)
    assert found[0].measurements == []
    return found[0]


def test_a_package_older_than_the_harness(package: Package) -> None:
    folder = package()
    (folder / "gpukernels" / "__init__.py").write_text("class LadderError(Exception): ...\n")
    want = "this commit's gpukernels lacks load, rung: older than the harness"
    assert all_alike(measured(folder)) == Outcome("na", want)


def test_no_package(tmp_path: Path) -> None:
    want = "this commit has no package gpukernels to measure"
    assert all_alike(measured(tmp_path)) == Outcome("na", want)


def test_the_checkouts_package_is_never_measured_in_place_of_the_commits(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": ""}
    code = (
        "from benchmarks.project import PROJECT\nfrom kernelwatch.plan.cells import plan\n"
        "from kernelwatch.run.group import BUDGETS\nfrom kernelwatch.run.processes import Run\n"
        "cells = plan(PROJECT.op('transpose'), 'cpu', quick=True)[:1]\n"
        f"run = Run(PROJECT, cells, 'cpu', {str(tmp_path)!r}, BUDGETS['cpu'])\n"
        "run.measure_all(0); print([o.state for o in run.group.outcomes.values()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("['na']", 0), done.stderr


def test_a_package_that_is_no_python(package: Package) -> None:
    folder = package()
    (folder / "gpukernels" / "__init__.py").write_text("def load(:\n")
    found = all_alike(measured(folder))
    assert found.state == "failed"
    assert found.reason.startswith("gpukernels cannot be imported: SyntaxError: ")


def test_no_gpu(no_gpu: str, package: Package) -> None:
    run = measured(package(), times=2, device="gpu")
    found = all_alike(run)
    assert found.state == "na"
    assert found.reason.startswith("no GPU here: ")
    assert run.group.facts == {}


# --- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1000])  # a job that the pipe takes, and one that it does not hold
def test_a_worker_that_dies_before_it_reads_its_job(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    class Dead(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Dead)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    many = [Cell("transpose", "c", "float32", (n, 1), "hot", "cpu") for n in range(1, count + 1)]
    run = Run(PROJECT, many, "cpu", "", BUDGET)
    run.measure_all(0)
    assert {(outcome.state, outcome.reason) for outcome in run.group.outcomes.values()} == {
        ("failed", "its process died with exit code 1 before the first cell: ")
    }


def workers_of(parent: int) -> list[int]:
    """The living worker processes that this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has gone
            continue
        if int(above) == parent and str(WORKER).encode() in command and state != "Z":
            found.append(int(entry.name))
    return found


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in Linux's /proc")
def test_a_killed_parent_leaves_no_worker_behind(package: Package, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    mark = f'    fclose(fopen("{begun}", "w"));\n'
    folder = package(head="#include <stdio.h>\n", c=mark + FOR_EVER)
    script = tmp_path / "parent.py"
    script.write_text(
        "from benchmarks.project import PROJECT\nfrom kernelwatch.plan.cells import plan\n"
        "from kernelwatch.timing.check import Budget\nfrom kernelwatch.run.processes import Run\n"
        "every = plan(PROJECT.op('transpose'), 'cpu', quick=True)\n"
        "cells = [cell for cell in every if cell.rung == 'c' and cell.cache == 'hot']\n"
        f"Run(PROJECT, cells, 'cpu', {str(folder)!r}, Budget(samples=3, sample_s=0.0002)).measure_all(0)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    left: list[int] = []
    try:
        assert wait_until(begun.exists), "the kernel was never launched"
        left = workers_of(parent.pid)
        assert len(left) == 1
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert wait_until(lambda: not lives(left[0])), "the worker goes on without its parent"
    finally:
        parent.kill()
        parent.wait()
        for process in left:
            if lives(process):
                os.kill(process, signal.SIGKILL)


def test_a_worker_that_is_killed_costs_one_cell(package: Package, tmp_path: Path) -> None:
    """By the system, say, when memory runs out."""
    body = f'    fclose(fopen("{tmp_path}/begun", "w"));\n{FOR_EVER}'
    folder = package(head="#include <stdio.h>\n", c=body)
    killed = []

    def kill() -> None:
        if wait_until((tmp_path / "begun").exists):
            killed.extend(workers_of(os.getpid()))
            os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    run = measured(folder)
    thread.join()
    assert len(killed) == 1
    assert_only_failed(run, "c", f"its process died with exit code {-signal.SIGKILL}")


# --- one GPU, several runs -------------------------------------------------------------------------------------------

CUPY = """
class runtime:
    getDevice = staticmethod(lambda: 0)

class cuda:
    runtime = runtime

    class Device:
        pci_bus_id = "0000:1B:00.0"

def RawModule(**given):
    raise RuntimeError("this stands in for a GPU only until it is used")
"""


def test_a_gpu_that_another_run_measures_on_is_waited_for(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a CuPy that has a device and no more."""
    folder, locks = package(), tmp_path / "locks"
    (folder / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(locks))
    run = Run(PROJECT, cells("gpu"), "gpu", str(folder), BUDGET)
    said: list[str] = []
    with holder(locks / "kernelwatch-0000-1B-00-0.lock") as other:

        def note(words: str) -> None:
            said.append(words)
            assert outcomes(run)["padded"].state == "waiting"
            assert other.stdin is not None
            other.stdin.close()

        run.note = note
        run.measure_all(0)
    assert said == [f"waiting: process {other.pid} in {os.getcwd()} is measuring on the GPU"]
    assert outcomes(run)["padded"].reason.startswith("its process died with exit code 1 before the first cell")


def test_a_cpu_that_another_run_times_on_is_waited_for(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, locks = package(), tmp_path / "locks"
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(locks))
    run = Run(PROJECT, [cell for cell in cells() if cell.rung == "numpy"], "cpu", str(folder), BUDGET)
    said: list[str] = []
    with holder(locks / "kernelwatch-cpu.lock") as other:

        def note(words: str) -> None:
            said.append(words)
            assert outcomes(run)["numpy"].state == "waiting"
            assert other.stdin is not None
            other.stdin.close()

        run.note = note
        run.conditions()  # measures nothing, and waits for nobody
        assert said == []
        run.measure_all(0)
    assert said == [f"waiting: process {other.pid} in {os.getcwd()} is measuring on the CPU"]
    assert_measured(outcomes(run)["numpy"])


def test_operands_that_no_memory_holds(package: Package) -> None:
    """71 PiB of them: the cell is n/a, and the others are measured."""
    (mine,) = (cell for cell in cells() if cell.rung == "numpy")
    large = dataclasses.replace(mine, shape=(100_000_000, 100_000_000), cache="cold")
    run = Run(PROJECT, [mine, large], "cpu", str(package()), BUDGET)
    run.measure_all(0)
    assert_measured(run.group.outcomes[mine.key])
    found = run.group.outcomes[large.key]
    assert found.state == "na"
    assert found.reason.startswith("it needs 76293945312 MiB of memory, ")
    assert found.reason.endswith(" MiB are free")


# --- a whole group -------------------------------------------------------------------------------------------------


def test_measure_leaves_facts_and_progress(monkeypatch: pytest.MonkeyPatch, package: Package, tmp_path: Path) -> None:
    """As asv starts it: the options come from the environment."""
    folder, facts, progress = package(c=WRONG), tmp_path / "facts", tmp_path / "progress"
    facts.mkdir()
    monkeypatch.setenv("KERNELWATCH_QUICK", "1")
    monkeypatch.setenv("KERNELWATCH_ONLY", r"transpose/(c|c_blocked) float32 256x256 hot")
    monkeypatch.setenv("KERNELWATCH_FACTS", str(facts))
    monkeypatch.setenv("KERNELWATCH_PROGRESS", str(progress))
    monkeypatch.setenv("KERNELWATCH_TREE", str(folder))
    found = group.measure(PROJECT, "transpose", "cpu")
    states = {key: (one.state, len(one.measurements)) for key, one in found.outcomes.items()}
    assert states == {
        "transpose/c float32 256x256 hot": ("failed", 0),
        "transpose/c_blocked float32 256x256 hot": ("ok", 2),
    }
    (sidecar,) = facts.iterdir()
    assert sidecar.name == "transpose.cpu.jsonl"
    lines = sidecar.read_text().splitlines()
    assert lines == list(found.lines())
    assert [json.loads(line)["record"] for line in lines] == ["run", "cell", "cell"]
    assert [len(json.loads(line).get("visits", ())) for line in lines] == [0, 0, 2]  # the name on disk
    assert read(lines) == [found]
    said = [json.loads(line) for line in progress.read_text().splitlines()]
    assert {(line["group"], line["total"]) for line in said} == {("transpose cpu", 4)}
    # The failed cell is measured once: the end says that all is done, and says it once.
    assert [line["done"] for line in said] == [1, 2, 3, 4]


def test_the_end_of_a_group_is_said_once(package: Package, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    only = r"transpose/c float32 256x256 hot"
    options = Options(quick=True, only=only, progress=str(progress), tree=str(package()))
    group.measure(PROJECT, "transpose", "cpu", options)
    said = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [(line["done"], line["total"]) for line in said] == [(1, 2), (2, 2)]


def test_what_is_exact_is_measured_once_by_several_processes(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell is measured by one process; a process is not started for a few cells."""
    runs: list[list[str]] = []

    def measure_all(run: Run, seed: int, tick: Callable[[], None]) -> None:
        runs.append([cell.key for cell in run.cells])
        for cell in run.cells:
            run.group.outcomes[cell.key].state = "ok"
            tick()
        run.group.facts = {"harness": "1"}

    monkeypatch.setattr(Run, "measure_all", measure_all)
    monkeypatch.setattr(group, "PROCESSES_MAX", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    every, options = cells("cpu", "hot", "cold"), Options(tree=str(package()))
    for count in (2, 2 * group.CELLS_LEAST, len(every)):
        runs.clear()
        found = group.measure_once(PROJECT, "transpose", "cpu", every[:count], options)
        assert list(found.outcomes) == [cell.key for cell in every[:count]]
        assert {one.state for one in found.outcomes.values()} == {"ok"}
        assert len(runs) == max(1, min(count // group.CELLS_LEAST, 3))
        assert sorted(key for run in runs for key in run) == sorted(found.outcomes)
        assert found.facts == {"harness": "1"}


@pytest.mark.timeout(300)  # a worker that works for ever is killed after ten minutes anyway
def test_an_interrupted_group_is_left_at_once(
    monkeypatch: pytest.MonkeyPatch, package: Package, tmp_path: Path
) -> None:
    """A rung hangs in one process, and others are to come: nobody waits for them."""
    mark = tmp_path / "hangs"
    folder = package(head="#include <stdio.h>\n", c=f'    fclose(fopen("{mark}", "w"));\n' + FOR_EVER)
    monkeypatch.setattr(group, "PROCESSES_MAX", 2)
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path))  # nobody else keeps the CPU
    before = set(workers_of(os.getpid()))

    def interrupt() -> None:
        wait_until(mark.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        group.measure_once(PROJECT, "transpose", "cpu", cells(), Options(tree=str(folder)))
    thread.join()
    assert not set(workers_of(os.getpid())) - before


# --- groups that are kept ------------------------------------------------------------------------------------------

COMMIT, ENVIRONMENT = "c" * 40, "checkout-py3"
KEPT = f"{COMMIT}-{ENVIRONMENT}.transpose.cpu.jsonl"


@dataclasses.dataclass(frozen=True)
class Kept:
    """A group of one cell, measured as in a run of asv; where it was kept; and the options of such a run."""

    path: Path
    options: Options

    def measure(self, **changed: Any) -> Group:
        return group.measure(PROJECT, "transpose", "cpu", dataclasses.replace(self.options, **changed))


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Options]:
    """The same for all tests of this module, which do not change it."""
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    options = Options(only=r"transpose/c float32 256x256 hot", tree=str(folder), kept=str(folder / "kept"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASV_COMMIT", COMMIT)
        patch.setenv("ASV_ENV_NAME", ENVIRONMENT)
        patch.setattr(group, "PROCESSES", {"cpu": 1, "gpu": 1})
        assert "resumed" not in group.measure(PROJECT, "transpose", "cpu", options).facts
    (path,) = (folder / "kept").iterdir()
    assert path.name == KEPT
    return path, options


@pytest.fixture
def kept(kept_once: tuple[Path, Options], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kept:
    original, options = kept_once
    path = tmp_path / "kept" / KEPT
    path.parent.mkdir()
    shutil.copy(original, path)
    monkeypatch.setenv("ASV_COMMIT", COMMIT)
    monkeypatch.setenv("ASV_ENV_NAME", ENVIRONMENT)
    monkeypatch.setattr(group, "PROCESSES", {"cpu": 1, "gpu": 1})
    return Kept(path, dataclasses.replace(options, kept=str(path.parent)))


@pytest.fixture
def rounds(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds of measuring that were asked for; none is measured. Who would measure is who measured the kept."""
    facts = json.loads(kept.path.read_text().splitlines()[0])["facts"]
    asked: list[int] = []
    monkeypatch.setattr(Run, "measure_all", lambda run, seed, tick, more: asked.append(seed))
    monkeypatch.setattr(Run, "conditions", lambda run: conditions(facts))
    return asked


def test_a_kept_group_is_taken_up(kept: Kept) -> None:
    """By the conditions that a process of this machine tells."""
    head, *rest = kept.path.read_text().splitlines()
    found = kept.measure()
    assert found.facts == json.loads(head)["facts"] | {"resumed": True}
    assert list(found.lines())[1:] == rest


def test_a_run_goes_on_after_the_last_whole_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in its second process of three; the next run measures the second and the third."""
    kept.path.unlink()
    monkeypatch.setattr(group, "PROCESSES", {"cpu": 3, "gpu": 3})
    measure_all, asked = Run.measure_all, list[int]()

    def interrupted(run: Run, seed: int, *arguments: Any, **others: Any) -> None:
        asked.append(seed)
        measure_all(run, seed, *arguments, **others)
        if asked == [0, 1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "measure_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.measure()
    (first,) = (each.measurements for each in read_kept(kept).outcomes.values())
    monkeypatch.setattr(Run, "conditions", lambda run: conditions(read_kept(kept).facts))  # no process asks for them
    assert [each["process"] for each in first] == [0]

    found = kept.measure()
    assert asked == [0, 1, 1, 2]
    (outcome,) = found.outcomes.values()
    assert outcome.measurements[0] == first[0]
    assert [each["process"] for each in outcome.measurements] == [0, 1, 2]
    assert found.facts["resumed"]
    assert checkpoint.UNFINISHED not in found.facts
    assert kept.path.read_text().splitlines() == list(found.lines())
    assert [each["process"] for each in next(iter(kept.measure().outcomes.values())).measurements] == [0, 1, 2]
    assert asked == [0, 1, 1, 2]


def read_kept(kept: Kept) -> Group:
    (found,) = read(kept.path.read_text().splitlines())
    return found


def test_a_group_is_measured_again_if_asked(kept: Kept) -> None:
    before = kept.path.read_text()
    found = kept.measure(again=True)
    assert "resumed" not in found.facts
    assert {one.state for one in found.outcomes.values()} == {"ok"}
    assert kept.path.read_text() != before
    assert kept.path.read_text().splitlines() == list(found.lines())


def test_what_is_taken_up_is_not_measured(kept: Kept, rounds: list[int]) -> None:
    """The counterpart of all tests below."""
    assert kept.measure().facts["resumed"]
    assert rounds == []


@pytest.mark.parametrize(("name", "value"), [("ASV_COMMIT", "d" * 40), ("ASV_ENV_NAME", "virtualenv-py3")])
def test_another_commit_takes_nothing_up(
    kept: Kept, rounds: list[int], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


@pytest.mark.parametrize(
    "changed", [{"only": r"transpose/(c|numpy) float32 256x256 hot"}, {"again": True}, {"kept": ""}], ids=str
)
def test_another_run_takes_nothing_up(kept: Kept, rounds: list[int], changed: dict[str, Any]) -> None:
    assert "resumed" not in kept.measure(**changed).facts
    assert rounds == [0]


def test_outside_asv_nothing_is_kept(kept: Kept, rounds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASV_COMMIT")
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]
    assert checkpoint.place("transpose cpu", kept.options) is None


def test_a_quick_look_takes_up_and_keeps_nothing(kept: Kept) -> None:
    before = kept.path.read_text()
    found = kept.measure(quick=True)
    assert {one.state for one in found.outcomes.values()} == {"ok"}
    assert "resumed" not in found.facts
    assert list(kept.path.parent.iterdir()) == [kept.path]
    assert kept.path.read_text() == before


@pytest.mark.parametrize("name", [*CONDITIONS, "harness", "emulator"])
def test_what_was_measured_otherwise_is_measured_again(kept: Kept, rounds: list[int], name: str) -> None:
    head, *rest = [json.loads(line) for line in kept.path.read_text().splitlines()]
    head["facts"][name] = ["another"]
    kept.path.write_text("".join(json.dumps(line) + "\n" for line in [head, *rest]))
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"record": "run"}\n', '{"record": "run", "facts": {}}\n{"x": 1}\n'])
def test_what_is_broken_is_measured_again(kept: Kept, rounds: list[int], text: str) -> None:
    kept.path.write_text(text)
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


def test_a_group_without_facts_is_measured_again(kept: Kept, rounds: list[int]) -> None:
    kept.path.write_text("".join(f"{line}\n" for line in kept.path.read_text().splitlines()[1:]))
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


def test_whose_gpu_nobody_can_tell_is_not_kept(kept: Kept) -> None:
    kept.path.unlink()
    checkpoint.keep(Group("transpose gpu", {}, {"gpu": "NVIDIA H200"}), kept.options)
    assert list(kept.path.parent.iterdir()) == []
    checkpoint.keep(Group("transpose gpu", {}, {"gpu": "NVIDIA H200", "nvml_uuid_sha256": "1"}), kept.options)
    assert [path.name for path in kept.path.parent.iterdir()] == [KEPT.replace("cpu", "gpu")]


def test_the_measured_tree_is_the_one_on_the_path() -> None:
    assert group.measured_tree(PROJECT, Options()) == str(ROOT)
    nowhere = dataclasses.replace(PROJECT, package="no_such_package")
    assert group.measured_tree(nowhere, Options()) == ""


def test_the_commits_checkout_is_measured_or_nothing(package: Package, tmp_path: Path) -> None:
    folder = str(package())
    assert group.measured_tree(PROJECT, Options(tree=folder)) == folder
    for empty in (str(tmp_path / "empty"), ""):  # a commit before there was a package
        run = Run(PROJECT, cells(), "cpu", empty, BUDGET)
        run.measure_all(0)
        assert all_alike(run) == Outcome("na", "this commit has no package gpukernels to measure")


def test_by_process_leaves_out_what_is_missing() -> None:
    one = Outcome("ok", "", [{"process": 0, "seconds": 1.0}, {"process": 1}, {"process": 2, "clock64_mhz": None}])
    assert one.by_process("seconds") == {0: 1.0}
    assert one.by_process("clock64_mhz") == {}
    assert json.loads(list(Group("g", {"k": one}, {"gpu": "f"}).lines())[1])["key"] == "k"


def test_lines_are_read_as_far_as_they_are_whole() -> None:
    one = Outcome("ok", "", [{"process": 0, "seconds": 1.0}], {"flops": 2})
    lines = list(Group("g", {"k": one, "l": Outcome("na", "why")}, {"gpu": "f"}).lines())
    whole = read(lines)
    assert whole == [Group("g", {"k": one, "l": Outcome("na", "why")}, {"gpu": "f"})]
    assert [group_of(line) for line in lines] == ["g"] * 3
    cut = lines[1][: len(lines[1]) // 2]
    broken = [lines[0], cut, "[]", "null", '{"group": "g"}', '{"group": "g", "record": "cell", "key": "m"}', lines[2]]
    assert read(broken) == [Group("g", {"l": Outcome("na", "why")}, {"gpu": "f"})]
    assert [group_of(line) for line in (cut, "[]", "null", "{}")] == [None] * 4


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start early on this machine, as they do for a GPU beside many cores."""
    monkeypatch.setattr(processes, "AHEAD", ("cpu",))
    monkeypatch.setattr(workers, "WAITING_MOST", 2)


@pytest.mark.usefixtures("ahead")
def test_the_next_processes_wait_while_one_measures(package: Package) -> None:
    folder = package()
    run = Run(PROJECT, cells(), "cpu", str(folder), BUDGET)
    run.measure_all(0, more=3)
    first, second = run.workers._waiting  # and no third
    assert first.process.poll() is None
    assert second.process.poll() is None
    run.measure_all(1)
    assert first.process.returncode is not None  # it was the one
    assert run.workers._waiting == [second]
    for outcome in outcomes(run).values():
        assert_measured(outcome, 2)
    run.workers.close()
    run.workers.close()
    assert second.process.returncode is not None
    assert second.stderr.closed


@pytest.mark.usefixtures("ahead")
def test_no_process_waits_where_nothing_can_be_measured(tmp_path: Path) -> None:
    run = Run(PROJECT, cells(), "cpu", str(tmp_path), BUDGET)
    run.measure_all(0, more=1)
    assert run.unavailable
    assert run.workers._waiting == []


@pytest.mark.usefixtures("ahead")
def test_no_process_waits_when_a_group_is_done(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is interrupted."""
    made = list[Workers]()
    start = Workers.ahead

    def noted(these: Workers, wanted: int) -> None:
        made.append(these)
        start(these, wanted)

    monkeypatch.setattr(Workers, "ahead", noted)
    monkeypatch.setattr(group, "PROCESSES", {"cpu": 2})
    options = Options(tree=str(package()), only="transpose/(c|numpy) .* 256x256 hot")
    group.measure(PROJECT, "transpose", "cpu", options)
    assert [these._waiting for these in made] == [[]] * group.PROCESSES["cpu"]
    monkeypatch.setattr(Run, "_note", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        group.measure(PROJECT, "transpose", "cpu", options)
    assert len(made) == group.PROCESSES["cpu"] + 1
    assert made[-1]._waiting == []


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("ahead")
def test_a_waiting_process_imports_what_others_did(package: Package, tmp_path: Path) -> None:
    """A rung imports a module when it is loaded. The first process has it only then; those that wait meanwhile are told
    of it, and have it before their job comes."""
    folder = package()
    seen = tmp_path / "seen"
    rung = folder / "gpukernels" / "transpose" / "numpy.py"
    late = f"import sys\nwith open({str(seen)!r}, 'a') as file:\n    print('json5' in sys.modules, file=file)\n"
    rung.write_text(f"{late}import json5\n{rung.read_text()}")
    order = sorted(cells(), key=lambda cell: cell.rung != "numpy")
    run = Run(PROJECT, order, "cpu", str(folder), BUDGET)
    run._worker(order, 0, lambda: None, 2)
    for process in (1, 2):
        run._worker(order, process, lambda: None)
    assert_measured(outcomes(run)["numpy"], 3)
    assert seen.read_text().split() == ["False", "True", "True"]
    tops = {name.partition(".")[0] for name in run.workers.modules}
    assert "json5" in tops
    assert not tops & {"gpukernels", "kernelwatch", "benchmarks"}


# What a job for the CPU may not import: it takes long, or is not installed where only such cells are measured.
NOT_IMPORTED = ("cupy", "pynvml", "elftools", "asv", "rich", "kernelwatch.emulator", "kernelwatch.analysis")


def test_a_job_for_the_cpu_loads_nothing_of_the_others(package: Package, tmp_path: Path) -> None:
    mine = cells()
    job = {
        "project": str(PROJECT.here.parent),
        "tree": str(package()),
        "device": "cpu",
        "seed": 0,
        "budget": dataclasses.asdict(BUDGET),
        "cells": [cell.as_json() for cell in mine],
        "early": False,
    }
    with (tmp_path / "stderr").open("w+") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-v", "-P", str(WORKER)],  # names each module that is imported
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()  # and stays open, as long as the process is there
            events = [json.loads(line) for line in process.stdout]
            process.wait()
        stderr.seek(0)
        imported = {line.split("'")[1] for line in stderr if line.startswith("import '")}
    assert process.returncode == 0
    told = [event["event"] for event in events if event["event"] != "modules"]
    assert told == ["start", *["begin", "cell"] * len(mine), "end"]
    assert {event["state"] for event in events if event["event"] == "cell"} == {"ok"}
    assert {"numpy", "gpukernels", "benchmarks.project", "kernelwatch.timing.cpu"} <= imported
    assert not [name for name in imported if name.startswith(tuple(f"{one}." for one in NOT_IMPORTED))]
    assert not imported & set(NOT_IMPORTED)


def test_a_process_that_gets_no_job_leaves() -> None:
    for said in ("", "[]\n"):
        command = [sys.executable, "-P", str(WORKER)]
        done = subprocess.run(command, input=said, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
