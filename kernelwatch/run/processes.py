"""Runs the worker processes of a group one after another, collects their events, and goes on after a worker dies."""

import hashlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, cast

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import SILENCE_S, Budget
from kernelwatch.plan.project import Project
from kernelwatch.run import outcome
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.run.workers import Workers
from kernelwatch.system import cache
from kernelwatch.system.patience import Patience, Stuck, output
from kernelwatch.timing import cpu, nvml
from kernelwatch.timing.record import CellState, Facts, Measurement
from kernelwatch.timing.spent import DIGITS

ENDLESS_S = 600.0  # a worker that works for this long and sends nothing has an endless cell, or a very slow one
END_S = 20.0  # for a process to end that closed its output or was killed: only a driver that hangs holds it for longer
ALIKE = ("gpu", "launched")  # devices whose processes import much the same
AHEAD = ("gpu",)  # devices on which other processes may import while one measures; on a CPU it would move the figures


def _events(
    worker: "subprocess.Popen[str]", patience: Patience, slow: Callable[[], None]
) -> Generator[dict[str, Any], None, None]:
    """The events of a worker until it closes its output. Raises: Stuck. Other arguments as in `output`."""
    assert worker.stdout is not None
    text = b""
    for chunk in output(worker.stdout.fileno(), patience, slow):
        *lines, text = (text + chunk).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # a line that other code printed before the worker took over the stream
                yield json.loads(line)


_imported: dict[str, list[str]] = {}  # by interpreter, the modules of others that processes for ALIKE imported so far


def _ended(worker: "subprocess.Popen[str]") -> int | None:
    """The exit code of a worker that has closed its output or was killed; None if a driver holds it."""
    for _ in range(2):
        with suppress(subprocess.TimeoutExpired):
            return worker.wait(END_S)
        worker.kill()
    return None


def workers_of(project: Project, tree: str, device: str, python: str = "") -> Workers:
    """The processes that measure a tree on a device. `tree`: as in `Run`; `python`: as in `Workers`."""
    own = cpu.environment() if device == "cpu" else {}
    caches = cache.of_tree(_content(project, tree, python)) if tree else {}
    imported = _imported.setdefault(python, []) if device in ALIKE else None
    return Workers({**caches, **own, **project.environment}, imported, python)


def _content(project: Project, tree: str, python: str) -> str:
    """A hash of what may decide what a tree's caches of compilers hold."""
    content = project.places(tree).content()
    return hashlib.sha256(f"{content} {python}".encode()).hexdigest() if python else content


class Run:
    """The measurement of some cells of one device by several workers.

    `tree`: the folder of the measured tree, "" if there is none.
    `group`: the outcomes so far. `unavailable`: why nothing can be measured, "" if something can. `lost`: whether that
    is so since the device has gone, or hangs. `note`: called with
    messages for the user. `workers`: the processes; by default the group's own. `alone`: whether they hold the lock of
    their device; if not, the caller does.
    """

    def __init__(
        self,
        project: Project,
        cells: list[Cell],
        device: str,
        tree: str,
        budget: Budget,
        silence_s: float = SILENCE_S,
        endless_s: float = ENDLESS_S,
        workers: Workers | None = None,
        alone: bool = True,
    ) -> None:
        self.project = project
        self.cells = cells
        self.device = device
        self.on_gpu = project.devices[device].on_gpu
        self.tree = tree
        self.budget = budget
        self.silence_s = silence_s
        self.endless_s = endless_s
        self.ops = list(dict.fromkeys(cell.op for cell in cells))
        name = f"{self.ops[0]} {device}" if len(self.ops) == 1 else device
        self.group = Group(name, {cell.key: Outcome() for cell in cells}, {})
        self.unavailable = ""
        self.lost = False
        self.broken = False  # nothing can be measured, since the measured package cannot be imported
        self.note: Callable[[str], None] = lambda message: print(message, file=sys.stderr, flush=True)
        # Of the running worker: the keys of the cells that it finished, and of the one that it is measuring.
        self._done, self._begun = set[str](), ""
        self._ended_at, self._before_s = time.monotonic(), 0.0  # of the last measurement, and from there to this one
        self.workers = workers or workers_of(project, tree, device)
        self.alone = alone
        self._early = device in AHEAD  # a process imports what its rungs need before it holds the device's lock
        self._running: subprocess.Popen[str] | None = None

    def measure_all(self, seed: int, tick: Callable[[], None] = lambda: None, *, more: int = 0) -> None:
        """Measure each cell once in a fresh process, unless it has failed or is known well enough. If the process dies,
        another one continues.

        `seed`: of the cells' order, op by op; it also numbers the process. `tick`: called after each cell. `more`: how
        many rounds will follow, whose processes may start early; `workers.close` ends them.
        """
        remaining = [cell for cell in self._order(seed) if self.group.outcomes[cell.key].wanted(seed)]
        while remaining and not self.unavailable:
            done = self._worker(remaining, seed, tick, more)
            remaining = [cell for cell in remaining[done:] if self.group.outcomes[cell.key].state in ("waiting", "ok")]

    def _order(self, seed: int) -> list[Cell]:
        """The cells of one op after the other, each op's in random order. Each process begins with another op."""
        first = seed % max(1, len(self.ops))
        own = [[cell for cell in self.cells if cell.op == op] for op in (*self.ops[first:], *self.ops[:first])]
        return [cell for cells in own for cell in random.Random(seed).sample(cells, len(cells))]

    def probe(self) -> "Run":
        """A run whose worker has measured no cell: it knows the facts of this machine, or why it is unavailable."""
        probe = Run(self.project, [], self.device, self.tree, self.budget, self.silence_s, self.endless_s)
        probe.note = self.note
        probe._worker([], 0, lambda: None)
        return probe

    def conditions(self) -> dict[str, Any]:
        """The present conditions, from a worker that measures no cell."""
        return outcome.conditions(self.probe().group.facts)

    def leave(self) -> None:
        """From another thread: kill the running worker and start no more. The outcomes are then incomplete."""
        self._give_up("interrupted")
        if self._running:
            self._running.kill()

    def _worker(self, cells: list[Cell], seed: int, tick: Callable[[], None], more: int = 0) -> int:
        """Let one process measure `cells`; how many of them are settled when it ends, 0 if another one should try."""
        job = {
            "project": str(self.project.here.parent),
            "tree": self.tree,
            "device": self.device,
            "seed": seed,
            "budget": asdict(self.budget_for(cells)),
            "cells": [cell.as_json() for cell in cells],
            "early": self._early,
            "alone": self.alone,
        }
        self._done, self._begun = set(), ""
        taken = self.workers.take()
        worker, stderr = taken.process, taken.stderr
        with stderr:
            stuck = False
            self._running = worker
            if self.unavailable:  # `leave` was called before there was a worker to kill
                worker.kill()
            try:
                taken.send(job)
                # A worker that waits for a GPU burns CPU time, so that only the clock counts.
                patience = Patience(worker.pid, self.silence_s, self.endless_s, by_clock=self.on_gpu)
                for event in _events(worker, patience, self._slow):
                    if self._last(event, seed, tick):
                        return len(cells)
                    if event["event"] == "start" and self.device in AHEAD:
                        self.workers.ahead(more)
                why = f"its process died with exit code {_ended(worker)}"
            except Stuck as error:
                stuck, why = True, f"{error}, its process was killed"
            except BrokenPipeError:
                why = f"its process died with exit code {_ended(worker)}"
            finally:
                self._end(worker)
            stderr.seek(0)
            last_words = stderr.read().strip()[-2000:]
        if self._begun:
            self._fail(self._begun, f"{why}: {last_words}" if last_words else why, seed)
            if stuck:  # the rung's other cells would probably take as long
                for cell in self._alike(self._begun):
                    self._fail(cell.key, f"not tried: {self._begun} did not end", seed)
            return len(self._done | {self._begun})
        if not self._done and self._early:  # if it died of such an import, that costs only the rung's own cells
            self._early = False
            return 0
        if not self._done:  # it did not reach a cell, and the next worker would not either
            self._give_up(f"{why} before the first cell: {last_words}", "failed")
            return len(cells)
        return len(self._done)

    def _end(self, worker: "subprocess.Popen[str]") -> None:
        """Kill a worker. One that waits within the driver stays, and no other is started then."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.kill()
        with suppress(BrokenPipeError):  # closing flushes again what a dead worker did not read
            worker.stdin.close()
        worker.stdout.close()
        if _ended(worker) is None:
            self.lose(f"the driver hangs: process {worker.pid} cannot be killed")

    def budget_for(self, cells: list[Cell]) -> Budget:
        """The budget of a measurement, with what earlier processes know of these cells."""
        clocks = {**self.budget.clocks_mhz, **self._known(cells, "clock64_mhz")}
        return replace(self.budget, clocks_mhz=clocks, seconds={**self.budget.seconds, **self._known(cells, "seconds")})

    def _known(self, cells: list[Cell], name: str) -> dict[str, float]:
        """The median of a number of the measurements of earlier processes, by the cell's key."""
        known = {cell.key: [*self.group.outcomes[cell.key].by_process(name).values()] for cell in cells}
        return {key: statistics.median(values) for key, values in known.items() if values}

    def _slow(self) -> None:
        self.note(f"slow: {self._begun or 'the start of a worker'} has taken {self.silence_s:.0f} s and still works")

    def _last(self, event: dict[str, Any], process: int, tick: Callable[[], None]) -> bool:
        """Record an event of a worker; whether it is the last one. `process`: the worker's number."""
        match event["event"]:
            case "waiting":
                self.note(f"waiting: {event['who']} is measuring on the {event['device']}")
            case "start":
                before, facts = self.group.facts, cast(Facts, event["facts"])
                if changed := outcome.changed(before, facts):
                    self.lose(f"it is another one than before: {changed}")
                    return True
                if others := nvml.busiest(before.get("others"), facts.get("others")):
                    facts["others"] = others
                if neighbors := nvml.most_neighbors(before.get("neighbors"), facts.get("neighbors")):
                    facts["neighbors"] = neighbors
                self.group.facts = facts
            case "begin":
                self._begun, self._before_s = event["key"], time.monotonic() - self._ended_at
            case "cell":
                self._end_cell(event, process, tick)
            case "modules":
                self.workers.imported(event["modules"])
            case "unavailable" if self.group.facts and self.on_gpu:  # an earlier process had the GPU
                self.lose(event["reason"])
            case "unavailable":
                self._give_up(event["reason"])
            case "lost":
                self.lose(event["reason"])
            case "broken":
                self.broken = True
                self._give_up(event["reason"], "failed")
        return event["event"] in ("unavailable", "lost", "broken", "end")

    def _end_cell(self, event: dict[str, Any], process: int, tick: Callable[[], None]) -> None:
        """Record what a worker tells of a cell, which counts once if it has further takes."""
        self._note(event, process)
        self._begun = ""
        if event["key"] not in self._done:
            self._done.add(event["key"])
            tick()

    def _fail(self, key: str, reason: str, process: int) -> None:
        self._note({"key": key, "state": "failed", "reason": reason}, process)

    def _alike(self, key: str) -> list[Cell]:
        """The other cells of a cell's rung that may still be measured."""
        hung = next(cell for cell in self.cells if cell.key == key)
        same_rung = [cell for cell in self.cells if (cell.op, cell.rung) == (hung.op, hung.rung) and cell.key != key]
        return [cell for cell in same_rung if self.group.outcomes[cell.key].state in ("waiting", "ok")]

    def _note(self, event: dict[str, Any], process: int) -> None:
        result, further = self.group.outcomes[event["key"]], event["key"] in self._done
        if further and result.state != "ok":  # it has failed, whatever a further take says
            return
        if event["state"] == "ok":
            result.state, result.reason = "ok", ""
            measurement = cast(Measurement, {"process": process} | event["measurement"])
            before_s = self._before_s
            if further:
                before_s += result.measurements.pop().get("spent_s", {}).get("before", 0.0)
            if "spent_s" in measurement:
                measurement["spent_s"] = {"before": round(before_s, DIGITS)} | measurement["spent_s"]
            self._ended_at = time.monotonic()
            result.measurements.append(measurement)
        else:  # one wrong result is enough: it invalidates what other processes measured
            result.state, result.reason = event["state"], event["reason"]
            result.measurements.clear()

    def lose(self, why: str) -> None:
        """The device has gone: what it measured stays, the rest fails."""
        self.lost = True
        self._give_up(f"{outcome.LOST}{why.removeprefix(outcome.LOST)}", "failed")
        self.note(self.unavailable)

    def _give_up(self, reason: str, state: CellState = "na") -> None:
        """Start no further process; cells without a measurement get `state` and `reason`, the others stay."""
        self.unavailable = reason
        for result in self.group.outcomes.values():
            if result.state == "waiting":
                result.state, result.reason = state, reason
