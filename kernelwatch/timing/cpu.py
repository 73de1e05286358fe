"""Measures cells on the CPU: checks them first, then times them over rotating buffers on pinned threads."""

import os
import platform
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Launch, NotHere, Package
from kernelwatch.plan.problem import Array, Operands
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.machine import free_bytes, machine_id
from kernelwatch.system.tools import c_compiler
from kernelwatch.timing import usage
from kernelwatch.timing.check import GUARD, GUARD_BYTES, WrongOutput, beyond, describe_wrong, packages, poisoned
from kernelwatch.timing.launch import Returning, bind
from kernelwatch.timing.record import Facts, Measurement, quartiles

ROTATION = 2  # cold: the buffers together are at least this many times the last-level cache
SAMPLES_LEAST = 2
CELL_S = 0.1  # a slow cell gets only as many samples as fit in this, at least SAMPLES_LEAST
ALIGNMENT = 64
DEAR_S = 0.5  # a run that takes longer is checked and timed at once
CACHE_BYTES_UNKNOWN = 32 << 20
CACHE_BYTES_MAX = 256 << 20  # a cloud machine reports the cache of the host that it shares


def cores() -> list[int]:
    """The cores that this process may use; all cores if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def environment() -> dict[str, str]:
    """The environment variables that keep a worker's OpenMP threads on their cores."""
    return {
        "OMP_NUM_THREADS": str(len(cores())),
        "OMP_PROC_BIND": "true",
        "OMP_PLACES": "threads",
        "OMP_DYNAMIC": "false",
        "OPENBLAS_NUM_THREADS": str(len(cores())),
    }


def cache_bytes() -> int:
    """The size of the last-level cache in bytes as the system reports it, at most CACHE_BYTES_MAX."""
    try:
        reported = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        reported = 0
    return min(reported if reported > 0 else CACHE_BYTES_UNKNOWN, CACHE_BYTES_MAX)


def cpu_name() -> str:
    """The CPU's model from /proc/cpuinfo, else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor()  # which starts a process


def compiler() -> str | None:
    """The first line of the C compiler's version; None if there is no compiler."""
    try:
        return c_compiler().title or None
    except ToolMissing:
        return None


class Cpu:
    """This machine's CPU, with the memory that all cells of a run share."""

    def __init__(self, project: Project, package: Package, cells: list[Cell], budget: Budget, seed: int) -> None:
        self.project = project
        self.package = package
        self.budget = budget
        self.cores = cores()
        self.cache_bytes = cache_bytes()
        self.random = np.random.default_rng(seed)
        self.free_bytes = free_bytes()
        taken = [cell for cell in cells if not usage.refusal(project, cell)]
        sizes = [size for cell in taken if (size := self._arena_bytes(cell)) <= self.free_bytes]
        size = max(sizes, default=0)
        # Written once, so that every page exists before timing; repeats the pool, since drawing numbers is slow.
        self.pool = self.random.random(1 << 20, np.float32) * 2 - 1
        self.arena = np.resize(self.pool.view(np.uint8), size + GUARD_BYTES)

    def facts(self) -> Facts:
        """The CPU, the caches, the packages and the compiler, which are constant during a run."""
        return {
            "cpu": cpu_name(),
            "machine": machine_id(),
            "cores": self.cores,
            "cache_bytes": self.cache_bytes,
            "packages": packages(usage.conditions(self.project)),
            "compiler": compiler(),
            "openmp": {name: os.environ.get(name) for name in environment()},
        }

    def _operands_of(self, cell: Cell) -> Operands:
        return self.project.computes(cell.op, cell.rung).operands(cell.shape, cell.type)

    def _set_bytes(self, cell: Cell) -> int:
        return sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in self._operands_of(cell).arrays)

    def _slots(self, cell: Cell) -> int:
        return 1 if cell.cache == "hot" else max(1, -(-ROTATION * self.cache_bytes // self._set_bytes(cell)))

    def _arena_bytes(self, cell: Cell) -> int:
        return self._slots(cell) * self._set_bytes(cell)

    def _operands(self, cell: Cell, slot: int) -> tuple[list[Array], list[Array]]:
        """The inputs and outputs of one set of buffers, as arrays."""
        at, views, operands = slot * self._set_bytes(cell), [], self._operands_of(cell)
        for array in operands.arrays:
            views.append(self.arena[at : at + array.nbytes].view(array.dtype).reshape(array.shape))
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return views[: len(operands.inputs)], views[len(operands.inputs) :]

    def _guard(self, cell: Cell, slot: int) -> Array:
        """The bytes after the last output of a set of buffers, where the next set begins soon."""
        last = self._operands_of(cell).arrays[-1].nbytes
        end = (slot + 1) * self._set_bytes(cell) - -(-last // ALIGNMENT) * ALIGNMENT + last
        return self.arena[end : end + GUARD_BYTES]

    def _fill(self, cell: Cell, slot: int) -> None:
        """Fill the inputs that have values of their own; the others keep the random numbers of the arena."""
        inputs, _ = self._operands(cell, slot)
        for at, (array, view) in enumerate(zip(self._operands_of(cell).inputs, inputs, strict=True)):
            if array.values is not None:
                view[...] = array.made(self.random, inputs[:at])

    @contextmanager
    def _pinned(self, cell: Cell) -> Iterator[None]:
        """Pin the calling thread to the last core, which the system uses least. If a rung uses all cores, pin it to the
        first core instead: that is its place in OpenMP's team, whose other threads are already bound to their own.

        Undone afterwards: when the next kernel loads OpenMP, it takes this thread's cores for all cores of the machine.
        """
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        os.sched_setaffinity(0, self.cores[:1] if cell.threads == "all" else self.cores[-1:])
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.cores)

    def _check(self, cell: Cell, launch: Callable[[], object], slot: int = 0, how: str = "") -> float:
        """Run a cell once over a set of buffers whose outputs are poisoned, and check it, also that it wrote nothing
        after its last output; the seconds of this run.
        `how`: it was launched, for messages. Raises: WrongOutput."""
        inputs, outs = self._operands(cell, slot)
        computes, operands = self.project.computes(cell.op, cell.rung), self._operands_of(cell)
        given: list[Array] = [None] * len(inputs)  # what each input was filled with
        for at, (array, view) in enumerate(zip(operands.inputs, inputs, strict=True)):
            if array.values is None:
                values = np.roll(self.pool, self.random.integers(self.pool.size))
                given[at] = np.resize(values if view.dtype.kind in "fc" else values.view(view.dtype), view.shape)
                view[...] = given[at]
            elif not array.derived:
                given[at] = view.copy()
        for at, bits in enumerate(computes.exact_bits(cell.type) if computes.exact_bits else ()):
            given[at] = np.ldexp(self.random.integers(-(1 << bits), 1 << bits, inputs[at].shape), -bits)
            inputs[at][...] = given[at]
        for at, (array, view) in enumerate(zip(operands.inputs, inputs, strict=True)):
            if array.derived:
                given[at] = array.made(self.random, inputs[:at])
                view[...] = given[at]
        key = secrets.randbits(32), slot
        for out in outs:
            poisoned(out, key)
        guard = self._guard(cell, slot)
        kept = guard.copy()
        guard[...] = GUARD
        start = time.perf_counter()
        result = launch()
        once = time.perf_counter() - start
        written, guard[...] = guard.copy(), kept
        before = [one.astype(view.dtype, copy=False) for one, view in zip(given, inputs, strict=True)]
        if why := self._wrong(cell, launch, before, result, key) or beyond(cell, written):
            raise WrongOutput(f"{why}{how}")
        return once

    def _wrong(
        self, cell: Cell, launch: Callable[[], object], before: list[Array], result: object, key: tuple[int, int]
    ) -> str:
        """What is wrong with a launch over a set of buffers, "" if nothing is. `before`: what its inputs were;
        `result`: what it returned; `key`: of the poison, which ends with the number of the set. Raises: WrongOutput."""
        inputs, outs = self._operands(cell, key[-1])
        computes, operands = self.project.computes(cell.op, cell.rung), self._operands_of(cell)
        given = usage.read_only(operands, inputs)
        changed = [at for at, view in given.items() if not usage.same_bits(np.ascontiguousarray(before[at]), view, np)]
        if why := usage.overwritten(cell, computes, operands, changed):
            return why
        updated = [view for at, view in enumerate(inputs) if at not in given]
        known = [name for at, name in enumerate(usage.names(computes, operands)) if at not in given]
        returns = isinstance(launch, Returning)
        written = usage.returned(cell, result, computes, operands, inputs, np) if returns else outs
        positional, named = operands.arguments(before)
        why = describe_wrong(cell, computes, positional, [*written, *updated], named, np, known, key)
        return (why and not returns and usage.untouched(cell, result, outs, key, np)) or why

    def measure(self, cell: Cell) -> Measurement:
        """Measure a cell once: check it, then time it. "seconds" is the median over the samples.

        Raises: WrongOutput, NotHere, Absent.
        """
        rung = usage.declared(self.project, cell)
        if cell.cache == "hot" and self._set_bytes(cell) > self.cache_bytes / 2:
            raise NotHere(
                f"its buffers ({self._set_bytes(cell) >> 20} MiB) do not fit in half of the last-level cache "
                f"({self.cache_bytes >> 20} MiB): never hot"
            )
        if self._arena_bytes(cell) > self.arena.nbytes - GUARD_BYTES:
            raise NotHere(
                f"it needs {self._arena_bytes(cell) >> 20} MiB of memory, {self.free_bytes >> 20} MiB are free"
            )
        kernel, repeats = self.package.load(cell.op, cell.rung, cell.type), self.package.repeats(cell.op, cell.rung)
        operands, launches = self._operands_of(cell), []
        for slot in range(self._slots(cell)):
            self._fill(cell, slot)
            inputs, outs = self._operands(cell, slot)
            launches.append(bind(kernel, rung, operands, inputs, outs))
        with self._pinned(cell):
            measurement = self._time(cell, launches, repeats)
        if operands.updated:
            computes, (inputs, _) = self.project.computes(cell.op, cell.rung), self._operands(cell, 0)
            if why := usage.not_finite(cell, computes, operands, inputs, np):
                raise WrongOutput(why)
        if measurement["launches"] > 1:  # else the checked run was the only one
            slot = secrets.randbelow(len(launches))
            with self._pinned(cell):
                self._check(cell, launches[slot], slot, usage.afterwards(slot))
        return measurement

    def _time(self, cell: Cell, launches: list[Launch], repeats: int) -> Measurement:
        once = self._check(cell, launches[0])
        if once > DEAR_S:  # long enough to be timed alone, and expensive: the checked run is the only sample
            return _measurement(launches, [once / repeats], 1)
        if once < self.budget.sample_s:  # the first run was a warm-up, in which a team of threads starts
            start = time.perf_counter()
            launches[-1]()
            once = time.perf_counter() - start
        count = max(1, round(self.budget.sample_s / once))
        seconds, turn = [], 0
        for _ in range(max(SAMPLES_LEAST, min(self.budget.samples, round(CELL_S / once)))):
            rotation = [launches[(turn + i) % len(launches)] for i in range(count)]
            turn += count
            start = time.perf_counter()
            for launch in rotation:
                launch()
            seconds.append((time.perf_counter() - start) / count / repeats)
        return _measurement(launches, seconds, count * len(seconds))


def _measurement(launches: list[Launch], seconds: list[float], count: int) -> Measurement:
    """The record of a cell. `seconds`: of one pass in each sample; `count`: launches in all."""
    return {
        "seconds": statistics.median(seconds),
        "quartiles_s": quartiles(seconds),
        "launches": count,
        "slots": len(launches),
        "identity": launches[0].identity,
        "throttled": [],
        "retakes": 0,
    }
