"""Time cells on the CPU: pinned threads, rotating buffers, checked first."""

import ctypes
import math
import os
import platform
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._cells import Cell
from benchmarks._ops import COMPUTES
from benchmarks._visit import POISON, Budget, NotHere, WrongOutput, describe_wrong, packages

ROTATION = 2  # cold: the buffers rotated over are so many times the last-level cache
SAMPLES_LEAST = 2
VISIT_S = 0.1  # a cell whose pass is slow gets fewer samples, down to the least
DEAR_S = 0.5
CACHE_BYTES_UNKNOWN = 32 << 20
CACHE_BYTES_MAX = 256 << 20  # a cloud machine reports the cache of a host it shares


def cores() -> list[int]:
    """The cores this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def environment() -> dict[str, str]:
    """What a worker's environment needs so that OpenMP's threads stay where they are put."""
    return {
        "OMP_NUM_THREADS": str(len(cores())),
        "OMP_PROC_BIND": "true",
        "OMP_PLACES": "threads",
        "OMP_DYNAMIC": "false",
        "OPENBLAS_NUM_THREADS": str(len(cores())),
    }


def cache_bytes() -> int:
    """The last-level cache's size as the system reports it, within reason."""
    try:
        reported = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        reported = 0
    return min(reported if reported > 0 else CACHE_BYTES_UNKNOWN, CACHE_BYTES_MAX)


def cpu_name() -> str:
    """The CPU's model as Linux names it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def compiler() -> str | None:
    """The first line that the C compiler says of its version."""
    command = shlex.split(os.environ.get("CC", "cc"))
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return next(iter(done.stdout.splitlines()), None)


class Cpu:
    """This machine's CPU with the memory that a run of cells shares."""

    def __init__(self, cells: list[Cell], budget: Budget, seed: int) -> None:
        self.budget = budget
        self.cores = cores()
        self.cache_bytes = cache_bytes()
        self.random = np.random.default_rng(seed)
        size = max([self._slots(cell) * self._set_bytes(cell) for cell in cells], default=0)
        # Written once, so that every page is there before timing; random, and cheap to make over and over.
        self.pool = self.random.random(1 << 20, np.float32) * 2 - 1
        self.arena = np.resize(self.pool.view(np.uint8), size)

    def facts(self) -> dict[str, Any]:
        """Who measured, with what: constant during a run."""
        return {
            "cpu": cpu_name(),
            "cores": self.cores,
            "cache_bytes": self.cache_bytes,
            "packages": packages(),
            "compiler": compiler(),
            "openmp": {name: os.environ.get(name) for name in environment()},
        }

    def _set_bytes(self, cell: Cell) -> int:
        operands = COMPUTES[cell.computes].operands(cell.shape, cell.type)
        return sum(-(-math.prod(shape) * dtype.itemsize // 64) * 64 for shape, dtype in operands)

    def _slots(self, cell: Cell) -> int:
        return 1 if cell.cache == "hot" else max(1, -(-ROTATION * self.cache_bytes // self._set_bytes(cell)))

    def _operands(self, cell: Cell, slot: int) -> tuple[list[Any], Any]:
        at, found = slot * self._set_bytes(cell), []
        for shape, dtype in COMPUTES[cell.computes].operands(cell.shape, cell.type):
            size = math.prod(shape) * dtype.itemsize
            found.append(self.arena[at : at + size].view(dtype).reshape(shape))
            at += -(-size // 64) * 64
        return found[:-1], found[-1]

    @contextmanager
    def _pinned(self, cell: Cell) -> Iterator[None]:
        """The calling thread on one core: the last, which the system uses least; where a rung uses all, the first, its
        place among OpenMP's, whose other threads have been given places of their own.

        Undone afterwards: OpenMP takes the cores that it finds free, when the next kernel loads it, for all there are.
        """
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        os.sched_setaffinity(0, self.cores[:1] if cell.threads == "all" else self.cores[-1:])
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.cores)

    def _check(self, cell: Cell, launch: Callable[[], object]) -> float:
        """Run a cell once on poisoned output; the seconds of this first run. Raises: WrongOutput."""
        inputs, out = self._operands(cell, 0)
        for operand in inputs:
            values = np.roll(self.pool, self.random.integers(self.pool.size))
            operand[...] = np.resize(
                values if operand.dtype.kind in "fc" else values.view(operand.dtype), operand.shape
            )
        bits = COMPUTES[cell.computes].exact_bits
        for operand, count in zip(inputs, bits(cell.type) if bits else (), strict=False):
            operand[...] = np.ldexp(self.random.integers(-(1 << count), 1 << count, operand.shape), -count)
        ctypes.memset(out.ctypes.data, POISON, out.nbytes)
        start = time.perf_counter()
        launch()
        once = time.perf_counter() - start
        why = describe_wrong(cell, out, COMPUTES[cell.computes].reference(*inputs), np)
        if why:
            raise WrongOutput(why)
        return once

    def measure(self, cell: Cell, kernel: Any) -> dict[str, Any]:
        """One visit to a cell: check it, time it. Returns JSON values; "seconds" is the median over the samples.

        Raises: WrongOutput, NotHere.
        """
        if cell.cache == "hot" and self._set_bytes(cell) > self.cache_bytes / 2:
            raise NotHere(
                f"its buffers ({self._set_bytes(cell) >> 20} MiB) do not fit in half of the last-level cache "
                f"({self.cache_bytes >> 20} MiB): never hot"
            )
        launches = []
        for slot in range(self._slots(cell)):
            inputs, out = self._operands(cell, slot)
            launches.append(kernel.bind(*inputs, out=out))
        with self._pinned(cell):
            return self._time(cell, launches)

    def _time(self, cell: Cell, launches: list[Any]) -> dict[str, Any]:
        once = self._check(cell, launches[0])
        if once > DEAR_S:  # long enough to need no company, and each of them is dear: the checked run is the sample
            return self._visit(cell, launches, [once / cell.repeats], 1)
        if once < self.budget.sample_s:  # the first run of a short one is its warm-up: a team of threads starts in it
            start = time.perf_counter()
            launches[-1]()
            once = time.perf_counter() - start
        count = max(1, round(self.budget.sample_s / once))
        seconds, turn = [], 0
        for _ in range(max(SAMPLES_LEAST, min(self.budget.samples, round(VISIT_S / once)))):
            taking = [launches[(turn + i) % len(launches)] for i in range(count)]
            turn += count
            start = time.perf_counter()
            for launch in taking:
                launch()
            seconds.append((time.perf_counter() - start) / count / cell.repeats)
        return self._visit(cell, launches, seconds, count * len(seconds))

    def _visit(self, cell: Cell, launches: list[Any], seconds: list[float], count: int) -> dict[str, Any]:
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        return {
            "seconds": statistics.median(seconds),
            "quartiles_s": [quartiles[0], quartiles[2]],
            "launches": count,
            "slots": len(launches),
            "identity": launches[0].identity,
            "throttled": [],
            "retakes": 0,
        }
