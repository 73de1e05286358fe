"""Measure a group of cells in several fresh processes, one after another, and survive what they do."""

import importlib.util
import json
import math
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from benchmarks import _cpu, _kept, _nvml
from benchmarks._cells import Cell, plan
from benchmarks._ops import COMPUTES, OPS, dtypes
from benchmarks._visit import Budget

WORKER = Path(__file__).with_name("_worker.py")
SILENCE_S = 60.0  # a worker that says nothing for so long hangs

# How many fresh processes, and what a visit to a cell takes; quick is for a first look, not for a record.
PROCESSES = {"gpu": 6, "cpu": 3}
QUICK_PROCESSES = {"gpu": 2, "cpu": 2}
PROCESSES_MAX = 8  # at once, of what is exact
AHEAD = ("gpu",)  # where the next process may import while one measures: not on a CPU, whose figures it would move
# A cell whose pass takes longer is steady, and dear: so many processes are enough.
ENOUGH_VISITS = {0.2: 2, 0.005: 3}
BUDGETS = {"gpu": Budget(samples=5, sample_s=0.002), "cpu": Budget(samples=7, sample_s=0.004)}
QUICK_BUDGETS = {"gpu": Budget(samples=3, sample_s=0.002), "cpu": Budget(samples=3, sample_s=0.004)}


@dataclass
class Outcome:
    """What became of a cell: "waiting", then "ok" with a visit a process, or "na" or "failed" with the reason."""

    state: str = "waiting"
    reason: str = ""
    visits: list[dict[str, Any]] = field(default_factory=list)
    roofline: dict[str, Any] = field(default_factory=dict)

    def wanted(self) -> bool:
        """Whether another process should visit the cell."""
        pass_s = max((visit["seconds"] for visit in self.visits), default=0.0)
        enough = next((visits for slow_s, visits in ENOUGH_VISITS.items() if pass_s > slow_s), math.inf)
        return self.state == "waiting" or (self.state == "ok" and len(self.visits) < enough)

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
    """The folder that the package under test is imported from, "" where there is none: the commit's checkout where
    asv's environment names it ($GPUKERNELS_PACKAGE; another may be installed), else where Python finds it."""
    told = os.environ.get("GPUKERNELS_PACKAGE")
    if told:
        return told if Path(told, "gpukernels", "__init__.py").is_file() else ""
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
        with suppress(ValueError):  # what something else printed before the worker took the stream for itself
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
        self.note: Callable[[str], None] = lambda words: print(words, file=sys.stderr, flush=True)
        self._done, self._begun = 0, ""  # of the worker that runs
        self._next: tuple[subprocess.Popen[str], IO[str]] | None = None  # a worker that only waits, and its stderr
        self._running: subprocess.Popen[str] | None = None

    def visit_all(self, seed: int, tick: Callable[[], None] = lambda: None, *, more: bool = False) -> None:
        """Visit every cell that has not failed, nor been seen often enough, once, in fresh processes: another one after
        each death. `more`: there will be another visit, whose process may start already; `close` ends it."""
        order = random.Random(seed).sample(self.cells, len(self.cells))
        left = [cell for cell in order if self.group.outcomes[cell.key].wanted()]
        while left and not self.unavailable:
            done = self._worker(left, seed, tick, more)
            left = [cell for cell in left[done:] if self.group.outcomes[cell.key].state in ("waiting", "ok")]

    def conditions(self) -> dict[str, Any]:
        """Who would measure, as a process says that visits nothing."""
        here = Run([], self.device, self.package, self.budget, self.silence_s)
        here.note = self.note
        here._worker([], 0, lambda: None)
        return _kept.conditions(here.group.facts)

    def close(self) -> None:
        """End a process that was started for a visit that did not come."""
        if self._next:
            (process, stderr), self._next = self._next, None
            with process, stderr:
                process.kill()

    def leave(self) -> None:
        """From another thread: end what runs, and begin nothing more. What was measured is worth nothing then."""
        self._give_up("interrupted")
        if self._running:
            self._running.kill()

    def _start(self) -> "tuple[subprocess.Popen[str], IO[str]]":
        """A worker that imports what it needs and waits for its job; its stderr."""
        environment = os.environ | (_cpu.environment() if self.device == "cpu" else {})
        stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with its process)
        command = [sys.executable, "-P", str(WORKER), self.device]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, text=True, env=environment), stderr

    def _worker(self, cells: list[Cell], seed: int, tick: Callable[[], None], more: bool = False) -> int:
        """One process over `cells`; how many of them are dealt with when it has gone, at least one."""
        job = {
            "package": self.package,
            "device": self.device,
            "seed": seed,
            "budget": asdict(self.budget),
            "cells": [cell.as_json() for cell in cells],
        }
        self._done, self._begun = 0, ""
        worker, stderr = self._next or self._start()
        # The next one imports while this one does, and waits while it measures; not before one has shown that it can.
        self._next = self._start() if more and self.device in AHEAD and self.group.facts else None
        with stderr, worker:
            assert worker.stdin is not None
            hung = False
            self._running = worker
            if self.unavailable:  # `leave` came before there was something to kill
                worker.kill()
            try:
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()  # and stays open: the worker leaves when it closes
                for event in _events(worker, self.silence_s):
                    if self._last(event, seed, tick):
                        return len(cells)
                why = f"its process died with exit code {worker.wait()}"
            except TimeoutError:
                hung, why = True, f"it hung: nothing for {self.silence_s:.0f} s, its process was killed"
            except BrokenPipeError:
                why = f"its process died with exit code {worker.wait()}"
            finally:
                worker.kill()
                with suppress(BrokenPipeError):  # what a dead worker did not read is flushed once more
                    worker.stdin.close()
            stderr.seek(0)
            words = stderr.read().strip()[-2000:]
        if self._begun:
            self._fail(self._begun, f"{why}: {words}" if words else why, seed)
            if hung:  # the rung's other cells would hang as well, each for as long
                for cell in self._alike(self._begun):
                    self._fail(cell.key, f"not tried: {self._begun} hung", seed)
            return self._done + 1
        if not self._done:  # it never came to a cell: the next one would not either
            self._give_up(f"{why} before the first cell: {words}", "failed")
            return len(cells)
        return self._done

    def _last(self, event: dict[str, Any], process: int, tick: Callable[[], None]) -> bool:
        """Take in what a worker says; whether it was its last word."""
        match event["event"]:
            case "waiting":
                self.note(f"waiting: the GPU is being measured on by {event['who']}")
            case "start":
                others = _nvml.busiest(self.group.facts.get("others"), event["facts"].get("others"))
                self.group.facts = event["facts"] | ({"others": others} if others else {})
            case "begin":
                self._begun = event["key"]
            case "cell":
                self._note(event, process)
                self._begun = ""
                self._done += 1
                tick()
            case "unavailable":
                self._give_up(event["reason"])
        return event["event"] in ("unavailable", "end")

    def _fail(self, key: str, reason: str, process: int) -> None:
        self._note({"key": key, "state": "failed", "reason": reason}, process)

    def _alike(self, key: str) -> list[Cell]:
        """The other cells of a cell's rung that would be visited."""
        found = next(cell for cell in self.cells if cell.key == key)
        mine = [cell for cell in self.cells if (cell.op, cell.rung) == (found.op, found.rung) and cell.key != key]
        return [cell for cell in mine if self.group.outcomes[cell.key].state in ("waiting", "ok")]

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


def roofline(cell: Cell, run: "Run") -> dict[str, Any]:
    """What a report needs to place a cell under its ceilings; {} where operations do not count.

    Operations, compulsory bytes and their ratio; the rate of the stick's copy; and the type's peak: that of
    multiply-adds in registers, or of the vendor's fastest cell of this type in the same run where that is higher, as
    on tensor cores.
    """
    count = COMPUTES[cell.computes].flops
    if not count:
        return {}
    flops, amount = count(cell.shape), COMPUTES[cell.computes].bytes_moved(cell.shape, cell.type)
    found: dict[str, Any] = {"flops": flops, "bytes": amount, "intensity_flops_per_byte": flops / amount}
    ceilings = run.group.facts.get("ceilings", {})
    peaks = [("multiply-adds", ceilings.get(f"{dtypes(cell.type)[0].name}_flops_per_s", 0.0))]
    for other in run.cells:
        seconds = run.group.outcomes[other.key].by_process("seconds").values()
        if other.rung == OPS[cell.op].vendor.get(cell.device) and other.type == cell.type and seconds:
            peaks.append((other.key, count(other.shape) / statistics.median(seconds)))
    peak_of, peak = max(peaks, key=lambda pair: pair[1])
    if peak:
        found |= {"peak_flops_per_s": peak, "peak_of": peak_of}
    if "copy_bytes_per_s" in ceilings:
        found |= {"copy_bytes_per_s": ceilings["copy_bytes_per_s"]}
    return found


def _progress(group: str, done: int, total: int, note: str = "") -> None:
    """Tell whoever asked through $GPUKERNELS_PROGRESS, a file, how far this group is."""
    path = os.environ.get("GPUKERNELS_PROGRESS")
    if path:
        said = {"group": group, "done": done, "total": total, "at": time.time()} | ({"note": note} if note else {})
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:  # a full disk is no reason to stop
            file.write(json.dumps(said) + "\n")


def save(group: Group) -> None:
    """Leave the group's facts where asv's plugin picks them up when it saves the results ($GPUKERNELS_FACTS)."""
    folder = os.environ.get("GPUKERNELS_FACTS")
    if folder:
        text = "".join(json.dumps(line) + "\n" for line in group.lines())
        Path(folder, f"{group.name.replace(' ', '.')}.jsonl").write_text(text, encoding="utf-8")


def measure_once(op: str, device: str, cells: Sequence[Cell]) -> Group:
    """One visit to each cell at the installed commit, by as many processes as there are cores: for what is exact, and
    so does not mind what else runs. Not saved yet."""
    count = min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
    shares = [share for at in range(count) if (share := cells[at::count])]
    runs = [Run(list(share), device, installed_package(), Budget(0, 0.0)) for share in shares]
    name, done = f"{op} {device}", 0

    def tick() -> None:
        nonlocal done
        done += 1
        _progress(name, done, len(cells))

    with ThreadPoolExecutor(count) as pool:
        try:
            list(pool.map(lambda run: run.visit_all(0, tick), runs))
        except BaseException:  # interrupted: the threads would go on to the last cell
            for run in runs:
                run.leave()
            raise
    if done < len(cells):
        _progress(name, len(cells), len(cells))
    outcomes = {key: outcome for run in runs for key, outcome in run.group.outcomes.items()}
    facts = next((run.group.facts for run in runs if run.group.facts), {})
    return Group(name, {cell.key: outcomes[cell.key] for cell in cells}, facts)


def _resumed(run: Run) -> bool:
    """Whether the group is there from an interrupted run, measured as it would be now; the run then has it."""
    lines = _kept.there(run.group.name, run.group.outcomes)
    if lines is None or _kept.conditions(lines[0]["facts"]) != run.conditions():
        return False
    for line in lines[1:]:
        run.group.outcomes[line["key"]] = Outcome(line["state"], line["reason"], line["visits"], line["roofline"])
    run.group.facts = lines[0]["facts"] | {"resumed": True}
    return True


def measure(op: str, device: str) -> Group:
    """All cells of an op on a device at the installed commit: several processes, each visiting every cell once in an
    order of its own, so that drift falls on all alike. Never raises for what a kernel does.

    What an interrupted run had finished of the same commit under the same conditions is taken up (`_kept`)."""
    cells = plan(op, device, quick=quick())
    processes = (QUICK_PROCESSES if quick() else PROCESSES)[device]
    total = len(cells) * processes
    run = Run(cells, device, installed_package(), (QUICK_BUDGETS if quick() else BUDGETS)[device])
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        _progress(run.group.name, done, total)

    def note(words: str) -> None:
        print(words, flush=True)  # asv ends a process that says nothing for long
        _progress(run.group.name, done, total, words)

    run.note = note
    if not _resumed(run):
        try:
            for seed in range(processes):
                run.visit_all(seed, tick, more=seed + 1 < processes)
        finally:
            run.close()
        for cell in cells:
            run.group.outcomes[cell.key].roofline = roofline(cell, run)
        if run.group.facts:
            run.group.facts["measured_at"] = datetime.now(UTC).isoformat(timespec="seconds")
            _kept.keep(run.group.name, run.group.lines())
    if done < total:  # what had failed was not visited again
        _progress(run.group.name, total, total)
    save(run.group)
    return run.group
