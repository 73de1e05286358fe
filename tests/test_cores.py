"""Cores and threads: a serial rung has one core, a parallel one all."""

import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import gpukernels
from benchmarks.project import PROJECT
from kernelwatch.plan import package as plan_package
from kernelwatch.plan.devices import Budget
from kernelwatch.run.processes import Run
from kernelwatch.timing import cpu as cpu_module
from tests.groups import BUDGET, RIGHT, Package, assert_measured, cells, outcomes, package

__all__ = ["package"]  # a fixture


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
