"""Measure a group of cells in several fresh processes, one after another, and survive what they do."""

import importlib.util
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import _cpu
from benchmarks._cells import Cell, plan
from benchmarks._gpu import Budget

WORKER = Path(__file__).with_name("_worker.py")
SILENCE_S = 120.0  # a worker that says nothing for so long hangs

# How many fresh processes, and what a visit to a cell takes; quick is for a first look, not for a record.
PROCESSES = {"gpu": 6, "cpu": 4}
QUICK_PROCESSES = {"gpu": 2, "cpu": 2}
BUDGETS = {"gpu": Budget(samples=5, sample_s=0.002), "cpu": Budget(samples=7, sample_s=0.004)}


@dataclass
class Outcome:
    """What became of a cell: "waiting", then "ok" with a visit a process, or "na" or "failed" with the reason."""

    state: str = "waiting"
    reason: str = ""
    visits: list[dict[str, Any]] = field(default_factory=list)

    def by_process(self, name: str) -> dict[int, float]:
        """One of the numbers of a visit ("seconds", ...) by the process that measured it; where it is missing, not."""
        return {visit["process"]: visit[name] for visit in self.visits if visit.get(name) is not None}


@dataclass
class Group:
    """The outcomes of all cells by key, and the facts of the machine that measured them ({} where nothing could)."""

    name: str
    outcomes: dict[str, Outcome]
    facts: dict[str, Any]

    def lines(self) -> Iterator[dict[str, Any]]:
        """The group as records of the sidecar: one of facts, one a cell."""
        yield {"group": self.name, "record": "run", "facts": self.facts}
        for key, outcome in self.outcomes.items():
            yield {"group": self.name, "record": "cell", "key": key, **asdict(outcome)}


def quick() -> bool:
    """Whether $GPUKERNELS_QUICK asks for a first look."""
    return os.environ.get("GPUKERNELS_QUICK", "") not in ("", "0")


def installed_package() -> str:
    """The folder that the package under test is imported from; "" where none is installed."""
    found = importlib.util.find_spec("gpukernels")
    return str(Path(found.origin).parent.parent) if found and found.origin else ""


def _events(worker: "subprocess.Popen[str]", silence_s: float) -> Iterator[dict[str, Any]]:
    """What a worker says, line by line, until it closes its output. Raises: TimeoutError."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=silence_s)
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            return
        yield json.loads(line)


class Run:
    """The state of one group's measurement: what each worker adds to, and what is left when it dies."""

    def __init__(
        self, cells: list[Cell], device: str, package: str, budget: Budget, silence_s: float = SILENCE_S
    ) -> None:
        self.cells = cells
        self.device = device
        self.package = package
        self.budget = budget
        self.silence_s = silence_s
        self.group = Group(f"{cells[0].op} {device}" if cells else device, {cell.key: Outcome() for cell in cells}, {})
        self.unavailable = ""

    def visit_all(self, seed: int, tick: Callable[[], None] = lambda: None) -> None:
        """Visit every cell that has not failed once, in fresh processes: another one after each death."""
        order = random.Random(seed).sample(self.cells, len(self.cells))
        left = [cell for cell in order if self.group.outcomes[cell.key].state in ("waiting", "ok")]
        while left and not self.unavailable:
            done = self._worker(left, seed, tick)
            left = left[done:]

    def _worker(self, cells: list[Cell], seed: int, tick: Callable[[], None]) -> int:
        """One process over `cells`; how many of them are dealt with when it has gone, at least one."""
        job = {
            "package": self.package,
            "device": self.device,
            "seed": seed,
            "budget": asdict(self.budget),
            "cells": [cell.as_json() for cell in cells],
        }
        environment = os.environ | (_cpu.environment() if self.device == "cpu" else {})
        done, begun = 0, ""
        with (
            tempfile.TemporaryFile("w+", errors="replace") as stderr,
            subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            ) as worker,
        ):
            assert worker.stdin is not None
            try:
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()  # and stays open: the worker leaves when it closes
                for event in _events(worker, self.silence_s):
                    if event["event"] == "begin":
                        begun = event["key"]
                    elif event["event"] == "cell":
                        self._note(event, seed)
                        begun = ""
                        done += 1
                        tick()
                    elif event["event"] == "start":
                        self.group.facts = event["facts"]
                    elif event["event"] == "unavailable":
                        self._give_up(event["reason"])
                        return len(cells)
                    elif event["event"] == "end":
                        return len(cells)
                why = f"its process died with exit code {worker.wait()}"
            except TimeoutError:
                why = f"it hung: nothing for {self.silence_s:.0f} s, its process was killed"
            except BrokenPipeError:
                why = f"its process died with exit code {worker.wait()}"
            finally:
                worker.kill()
                with suppress(BrokenPipeError):  # what a dead worker did not read is flushed once more
                    worker.stdin.close()
            stderr.seek(0)
            words = stderr.read().strip()[-2000:]
        if begun:
            self._note({"key": begun, "state": "failed", "reason": f"{why}: {words}" if words else why}, seed)
            return done + 1
        if not done:  # it never came to a cell: the next one would not either
            self._give_up(f"{why} before the first cell: {words}", "failed")
            return len(cells)
        return done

    def _note(self, event: dict[str, Any], process: int) -> None:
        outcome = self.group.outcomes[event["key"]]
        if event["state"] == "ok":
            outcome.state, outcome.reason = "ok", ""
            outcome.visits.append({"process": process} | event["visit"])
        else:  # one wrong answer is enough: what other visits measured is worth nothing
            outcome.state, outcome.reason = event["state"], event["reason"]
            outcome.visits.clear()

    def _give_up(self, reason: str, state: str = "na") -> None:
        """No further process would get anywhere; what earlier ones measured stays."""
        self.unavailable = reason
        for outcome in self.group.outcomes.values():
            if outcome.state == "waiting":
                outcome.state, outcome.reason = state, reason


def _progress(group: str, done: int, total: int) -> None:
    """Tell whoever asked through $GPUKERNELS_PROGRESS, a file, how far this group is."""
    path = os.environ.get("GPUKERNELS_PROGRESS")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"group": group, "done": done, "total": total, "at": time.time()}) + "\n")


def _save(group: Group) -> None:
    """Leave the group's facts where asv's plugin picks them up when it saves the results ($GPUKERNELS_FACTS)."""
    folder = os.environ.get("GPUKERNELS_FACTS")
    if folder:
        text = "".join(json.dumps(line) + "\n" for line in group.lines())
        Path(folder, f"{group.name.replace(' ', '.')}.jsonl").write_text(text, encoding="utf-8")


def measure(op: str, device: str) -> Group:
    """All cells of an op on a device at the installed commit: several processes, each visiting every cell once in an
    order of its own, so that drift falls on all alike. Never raises for what a kernel does."""
    cells = plan(op, device, quick=quick())
    processes = (QUICK_PROCESSES if quick() else PROCESSES)[device]
    run = Run(cells, device, installed_package(), BUDGETS[device])
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        _progress(run.group.name, done, len(cells) * processes)

    for seed in range(processes):
        run.visit_all(seed, tick)
    if done < len(cells) * processes:  # what had failed was not visited again
        _progress(run.group.name, len(cells) * processes, len(cells) * processes)
    _save(run.group)
    return run.group
