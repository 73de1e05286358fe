"""Hands out jobs to the workers of a Dask cluster, and writes the results that come back.

One job at a time goes to each worker, so that Dask's scheduler has as many tasks as there are workers, and this process
decides which GPU measures what. A job whose worker dies is left again. A job of a full run is a commit and some suites;
a job of links is a commit with its parent, with the last commit that had what was lost between, or with its anchor.
"""

import argparse
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed.client import ClosedClientError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from kernelwatch.comparison import linking
from kernelwatch.extras.fleet import remote
from kernelwatch.extras.fleet.cluster import CONNECT_S, GOES_ON, Cluster, reply_of
from kernelwatch.extras.fleet.merging import merge
from kernelwatch.extras.fleet.schedule import Job, Schedule, misfits, recorded
from kernelwatch.extras.fleet.units import Unit, missing, unit_of, units
from kernelwatch.history import links
from kernelwatch.history.links import Kind, Session
from kernelwatch.history.returned import returned
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.project import MADE, Project
from kernelwatch.run import outcome
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.git import git, objects, pack, snapshot

GRACE_S = 60.0  # for a worker that died to come back
TRIES = 5  # of a job whose worker dies or fails
STRIKES = 3  # failures in a row after which a worker gets no more jobs
PAUSE_S = 0.1


class Fleet(Cluster):
    """A cluster that measures in the place of this machine."""

    def measure(
        self,
        project: Project,
        _configuration: Path,
        commits: list[str],
        _known: int,
        arguments: argparse.Namespace,
        console: Console,
    ) -> int:
        """Measure commits in this order, as `watching.run_asv` does on this machine. Returns asv's exit code (2: some
        cells failed). Raises: UserError."""
        run = _Full(self, commits, arguments)
        self._go(run)
        return run.code

    def link(
        self,
        pairs: Sequence[tuple[str, str]],
        left: Callable[[str], Mapping[tuple[str, str], Sequence[Cell]]],
        budget_s: float,
        show: Callable[[Session], None],
    ) -> list[Session]:
        """Link pairs of commits (the oldest first) on each kind of machine, any worker of which takes any pair; the
        sessions. `left`: the cells that a kind has not linked; `show`: called for each session. Raises: UserError."""
        run = _Links(self, pairs, left, budget_s, show)
        self._go(run)
        return run.sessions

    def _go(self, run: "_Run") -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(TextColumn("{task.description:>12}"), *columns, console=self.console, transient=True) as bar:
            run.bar, run.line = bar, bar.add_task("starting", total=None)
            try:
                run.go()
            except ClosedClientError:  # the connection was lost between two looks
                raise self.lost() from None


class _Run:
    """Measures on a fleet."""

    bar: Progress
    line: TaskID

    def __init__(self, fleet: Fleet, commits: Sequence[str]) -> None:
        self.fleet, self.root = fleet, fleet.project.root
        self.schedule = Schedule()
        self.planned: set[str] = set()
        self.tries: dict[Job, int] = {}
        self.begun: dict[Job, float] = {}
        self.given_up: dict[Job, str] = {}
        self.total = 0
        values = fleet.project.configuration
        made = [str(values.get(name, default)) for name, default in MADE.items()]
        hash = snapshot(self.root, [*made, ".asv"])
        prefix = git(self.root, "rev-parse", "--show-prefix")
        lines = git(self.root, "rev-list", *commits).splitlines()  # asv walks over commits, and not into them
        self.sent = objects(self.root, hash) | set(lines)
        self.checkout = (hash, pack(self.root, self.sent), prefix)

    @abstractmethod
    def _plan(self, machine: str) -> None:
        """Add the jobs of a kind whose first worker has come."""

    @abstractmethod
    def _request(self, job: Job) -> dict[str, Any]:
        """What a worker is asked for a job; its `commits` are sent with it."""

    @abstractmethod
    def _take_in(self, job: Job, reply: dict[str, Any]) -> None:
        """Write what a worker has sent."""

    def _add(self, machine: str, at: int, commit: str, units: Sequence[Unit]) -> None:
        self.schedule.add(machine, at, commit, units)
        self.total += len(units)
        self.bar.update(self.line, description="measuring", total=self.total)

    def _have_more(self) -> bool:
        """Whether what was measured asks for further jobs, which are added."""
        return False

    def go(self) -> None:
        """Measure until nothing is left. Raises: UserError."""
        fleet = self.fleet
        self._wait_for_workers()
        alone_since = time.monotonic()
        while True:
            if fleet.look(self.checkout):
                self._admit()
                self._collect()
                self._hand_out()
            if fleet.running or fleet.probes:
                alone_since = time.monotonic()
            elif not len(self.schedule) and self._have_more():
                continue
            elif not len(self.schedule) or time.monotonic() - alone_since > GRACE_S or not self._may_come_back():
                break
            time.sleep(PAUSE_S)
        self._judge()

    def _wait_for_workers(self) -> None:
        """Wait until a worker is there, and all that are there have said what they are."""
        fleet, began, told = self.fleet, time.monotonic(), False
        while fleet.probes or not fleet.workers:
            fleet.look(self.checkout)
            if fleet.refused and not fleet.probes and fleet.refused >= fleet.known.keys():
                raise UserError("no worker of the cluster can measure; why is said above")
            if not (told or fleet.known) and time.monotonic() - began > CONNECT_S:
                fleet.console.print("no worker is there yet; waiting for one (Ctrl-C ends this)")
                told = True
            time.sleep(PAUSE_S)

    def _may_come_back(self) -> bool:
        """Whether a worker that could measure what is left was here in this run."""
        return bool(self.tries) or not self.fleet.workers

    def _judge(self) -> None:
        """Raises: UserError if something could not be measured."""
        why = [f"{job.told}: {reason}" for job, reason in self.given_up.items()]
        why += self.schedule.stranded(self.fleet.workers.values())
        if why or len(self.schedule):
            left = len(self.schedule) + sum(len(job.units) for job in self.given_up)
            raise UserError(f"{left} units of {self.total} were not measured. " + "\n".join([*why, GOES_ON]))

    def _admit(self) -> None:
        """Plan the kinds of new workers."""
        fleet = self.fleet
        for machine in sorted({worker.machine for worker in fleet.workers.values()} - self.planned):
            self.planned.add(machine)
            if len(self.planned) == 1:
                write_whole(fleet.project.results / "benchmarks.json", fleet.benchmarks[machine])
            self._plan(machine)

    def _doable(self, machine: str, every: Sequence[Unit]) -> list[Unit]:
        """The units that a kind can measure; what it cannot for lack of a GPU is said."""
        fleet = self.fleet
        has_gpu = any(worker.gpu for worker in fleet.workers.values() if worker.machine == machine)
        if without := [unit.name for unit in every if unit.place == "gpu" and not has_gpu]:
            fleet.console.print(f"{machine} has no GPU: {', '.join(without)} are not measured there")
        return [unit for unit in every if unit.name not in without]

    def _hand_out(self) -> None:
        fleet = self.fleet
        for worker in list(fleet.workers.values()):
            if worker.address in fleet.running:
                continue
            running = {
                fleet.workers[address]: job for address, (job, _) in fleet.running.items() if address in fleet.workers
            }
            job = self.schedule.take(worker, running)
            if job is None:
                continue
            request = self._request(job)
            needed = set().union(*(objects(self.root, commit) for commit in request["commits"]))
            packed = pack(self.root, needed - self.sent)
            hash, _, prefix = self.checkout
            future = fleet.submit(worker.address, job.told, remote.measure, hash, prefix, request, packed)
            fleet.running[worker.address] = job, future
            self.begun[job] = time.monotonic()

    def _collect(self) -> None:
        """Take in the jobs that have ended. A job's results are written whole and once: what a worker that was thought
        dead sends later is not asked for."""
        fleet = self.fleet
        for address, (job, future) in list(fleet.running.items()):
            gone = address not in fleet.known
            if not (future.done() or gone):
                continue
            del fleet.running[address]
            worker = fleet.workers.get(address)
            reply = reply_of(future, gone=gone)
            if reply is None:
                self._again(job, "its worker died")
                continue
            if "why" in reply:
                name = worker.name if worker else address
                strikes = fleet.strikes[address] = fleet.strikes.get(address, 0) + 1
                if worker and strikes >= STRIKES:
                    fleet.refuse(address, name, f"{strikes} of its jobs in a row failed, the last one: {reply['why']}")
                self._again(job, f"on {name}: {reply['why']}")
                continue
            fleet.strikes.pop(address, None)
            self._take_in(job, reply)
            self.bar.advance(self.line, len(job.units))
            seconds = time.monotonic() - self.begun[job]
            told = f"{job.told}: {seconds:.0f} s on {worker.told if worker else address}; {len(self.schedule)} to go"
            fleet.console.print(told, markup=False, highlight=False, soft_wrap=True)

    def _again(self, job: Job, why: str) -> None:
        tries = self.tries[job] = self.tries.get(job, 0) + 1
        text = f"{job.told}: {why}"
        self.fleet.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
        if tries >= TRIES:
            self.given_up[job] = f"{why} (given up after {tries} tries)"
        else:
            self.schedule.put_back(job)


class _Full(_Run):
    """Measures all of commits."""

    def __init__(self, fleet: Fleet, commits: list[str], arguments: argparse.Namespace) -> None:
        super().__init__(fleet, commits)
        self.commits, self.arguments, self.code = commits, arguments, 0
        self.newest: dict[str, dict[str, Any]] = {}  # kind -> the conditions of its newest record on a GPU
        self.history = git(self.root, "rev-list", "--first-parent", "HEAD", *commits[:1]).splitlines()

    def _admit(self) -> None:
        """Workers that differ from the others of their kind are skipped: a change of conditions is in every figure."""
        super()._admit()
        for address, why in misfits(self.fleet.workers.values(), self.newest).items():
            self.fleet.refuse(address, self.fleet.workers[address].name, f"unlike the others of its kind: {why}")

    def _plan(self, machine: str) -> None:
        fleet = self.fleet
        folder = fleet.project.results / machine
        wanted = self._doable(
            machine, units(fleet.project, json.loads(fleet.benchmarks[machine]), self.arguments.bench)
        )
        known = recorded(folder, self.history, {unit.name for unit in wanted if unit.place == "gpu"})
        for facts in known.values():
            self.newest[machine] = outcome.conditions(facts)  # type: ignore[arg-type]
        oldest_first = {commit: at for at, commit in enumerate(self._in_history())}
        for commit, left in missing(folder, self.commits, wanted, again=self.arguments.again):
            self._add(machine, oldest_first[commit], commit, left)

    def _in_history(self) -> list[str]:
        """The commits, the oldest first."""
        places = {commit: at for at, commit in enumerate(self.history)}
        return sorted(self.commits, key=lambda commit: -places.get(commit, len(places)))

    def _request(self, job: Job) -> dict[str, Any]:
        return {
            "program": "measure",
            "commits": [job.commit],
            "benchmarks": [name for unit in job.units for name in unit.versions],
            "again": self.arguments.again,
        }

    def _take_in(self, job: Job, reply: dict[str, Any]) -> None:
        merge(self.fleet.project.results / job.machine, reply["files"])
        self.code = max(self.code, int(reply["code"]))


class _Links(_Run):
    """Measures what commits changed."""

    def __init__(
        self,
        fleet: Fleet,
        pairs: Sequence[tuple[str, str]],
        left: Callable[[str], Mapping[tuple[str, str], Sequence[Cell]]],
        budget_s: float,
        show: Callable[[Session], None],
    ) -> None:
        super().__init__(fleet, [after for _, after in pairs])
        self.pairs, self.left, self.budget_s, self.show = pairs, left, budget_s, show
        self.parents = {after: before for before, after in pairs}
        self.places = {after: at for at, after in enumerate(self.parents)}
        # By kind of machine, commit and unit: the kind of session, the commit before, and the cells.
        self.asked: dict[tuple[str, str, str], tuple[str, str, list[str]]] = {}
        self.sessions: list[Session] = []
        self.new: dict[str, list[Session]] = {}  # by kind, those of which no anchor was planned yet

    def _ask(self, machine: str, kind: Kind, before: str, after: str, unit: Unit, keys: list[str]) -> None:
        """Add the comparison of some cells of two commits."""
        self.asked[machine, after, unit.name] = kind, before, keys
        self._add(machine, self.places[after], after, [unit])

    def _plan(self, machine: str) -> None:
        left = self.left(machine)
        devices = {cell.device for cells in left.values() for cell in cells}
        for unit in self._doable(machine, [unit_of("links", device) for device in sorted(devices)]):
            for before, after in self.pairs:
                cells = left[before, after]
                if keys := [cell.key for cell in cells if unit_of("links", cell.device).name == unit.name]:
                    self._ask(machine, "step", before, after, unit, keys)

    def _request(self, job: Job) -> dict[str, Any]:
        asked = [self.asked[job.machine, job.commit, unit.name] for unit in job.units]
        parent = self.parents[job.commit]
        commits = [*dict.fromkeys([job.commit, parent, *(before for _, before, _ in asked)])]
        return {"program": "link", "commits": commits, "parent": parent, "asked": asked, "budget_s": self.budget_s}

    def _take_in(self, job: Job, reply: dict[str, Any]) -> None:
        for text in reply["sessions"]:
            session = links.parsed(text.splitlines())
            links.save(self.fleet.project.results / job.machine, session)
            self.sessions.append(session)
            self.new.setdefault(job.machine, []).append(session)
            self.show(session)

    def _have_more(self) -> bool:
        """Add the steps across gaps and the anchors that are due, once all links are there."""
        new, self.new = self.new, {}
        for machine, sessions in new.items():
            known, _ = links.read(self.fleet.project.results / machine, self.fleet.project.renamed)
            sessions.sort(key=lambda session: self.places[session.after])
            self._ask_across(machine, sessions, known)
            for due in linking.planned(sessions, known, self._line_of):
                unit = unit_of(f"anchor {due.before[:8]}", due.changed[0].device)
                self._ask(machine, "anchor", due.before, due.after, unit, [link.cell for link in due.changed])
        return len(self.schedule) > 0

    def _ask_across(self, machine: str, sessions: Sequence[Session], known: Sequence[Session]) -> None:
        """Add the steps from the last commits that had what the parents of these sessions lack, or what failed there.
        The sessions of both devices may tell of it."""
        keys: dict[tuple[str, str, str], dict[str, None]] = {}
        for one in sessions:
            if one.kind != "step" or one.before != self.parents[one.after]:
                continue
            for before, names in returned(one, known, self._line_of(one.after)).items():
                for cell in linking.across_of(self.fleet.project, names):
                    if (machine, one.after, unit_of("links", cell.device).name) in self.asked:
                        keys.setdefault((before, one.after, cell.device), {})[cell.key] = None
        for (before, after, device), own in keys.items():
            self._ask(machine, "step", before, after, unit_of(f"across {before[:8]}", device), [*own])

    def _line_of(self, commit: str) -> list[str]:
        return git(self.root, "rev-list", "--first-parent", "--reverse", commit).splitlines()
