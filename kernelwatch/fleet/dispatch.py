"""Hands out jobs to the workers of a Dask cluster, and writes the results that come back.

One job at a time goes to each worker, so that Dask's scheduler has as many tasks as there are workers, and this process
decides which GPU measures what. A job whose worker dies is left again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from distributed.client import ClosedClientError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from kernelwatch.fleet import remote
from kernelwatch.fleet.cluster import CONNECT_S, GOES_ON, Cluster, reply_of
from kernelwatch.fleet.merging import merge
from kernelwatch.fleet.schedule import FACTS, Job, Schedule, misfits, recorded
from kernelwatch.fleet.units import missing, units
from kernelwatch.plan.project import Project
from kernelwatch.run import outcome
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.git import git, objects, pack, snapshot

GRACE_S = 60.0  # for a worker that died to come back
TRIES = 5  # of a job whose worker dies or fails
STRIKES = 3  # failures in a row after which a worker gets no more jobs
PAUSE_S = 0.1
MADE = {"results_dir": "results", "env_dir": "env", "html_dir": "html"}  # by asv: its defaults


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
        """Measure commits in this order, as `watching.measure` does on this machine. Returns asv's exit code (2: some
        cells failed). Raises: UserError."""
        run = _Run(self, commits, arguments)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(TextColumn("{task.description:>12}"), *columns, console=console, transient=True) as bar:
            run.bar, run.line = bar, bar.add_task("starting", total=None)
            try:
                return run.go()
            except ClosedClientError:  # the connection was lost between two looks
                raise self.lost() from None


class _Run:
    """Measures commits on a fleet."""

    bar: Progress
    line: TaskID

    def __init__(self, fleet: Fleet, commits: list[str], arguments: argparse.Namespace) -> None:
        self.fleet, self.root, self.arguments = fleet, fleet.project.root, arguments
        self.commits = commits
        self.history = git(self.root, "rev-list", "--first-parent", "HEAD", *commits[:1]).splitlines()
        self.schedule = Schedule({}, anywhere=fleet.anywhere)
        self.planned: set[str] = set()
        self.newest: dict[str, dict[str, Any]] = {}  # kind -> the conditions of its newest record on a GPU
        self.tries: dict[Job, int] = {}
        self.begun: dict[Job, float] = {}
        self.given_up: dict[Job, str] = {}
        self.code = self.total = 0
        values = fleet.project.configuration
        made = [str(values.get(name, default)) for name, default in MADE.items()]
        hash = snapshot(self.root, [*made, ".asv"])
        prefix = git(self.root, "rev-parse", "--show-prefix")
        lines = git(self.root, "rev-list", *commits).splitlines()  # asv walks over commits, and not into them
        self.sent = objects(self.root, hash) | set(lines)
        self.checkout = (hash, pack(self.root, self.sent), prefix)

    def go(self) -> int:
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
            elif not len(self.schedule) or time.monotonic() - alone_since > GRACE_S or not self._may_come_back():
                break
            time.sleep(PAUSE_S)
        self._judge()
        return self.code

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
        """Plan the kinds of new workers, and skip workers that differ from the others of their kind."""
        fleet = self.fleet
        new = {worker.machine for worker in fleet.workers.values()} - self.planned
        for machine in sorted(new):
            self._plan(machine)
        for address, why in misfits(fleet.workers.values(), self.newest).items():
            fleet.refuse(address, fleet.workers[address].name, f"unlike the others of its kind: {why}")

    def _plan(self, machine: str) -> None:
        fleet, results = self.fleet, self.fleet.project.results
        self.planned.add(machine)
        text = fleet.benchmarks[machine]
        if not self.planned - {machine}:
            write_whole(results / "benchmarks.json", text)
        folder = results / machine
        every = units(fleet.project, json.loads(text), self.arguments.bench)
        has_gpu = any(worker.gpu for worker in fleet.workers.values() if worker.machine == machine)
        wanted = [unit for unit in every if has_gpu or unit.place != "gpu"]
        if without := [unit.name for unit in every if unit not in wanted]:
            fleet.console.print(f"{machine} has no GPU: {', '.join(without)} are not measured there")
        known = recorded(folder, self.history, {unit.name for unit in wanted})
        for unit in wanted:
            facts = known.get(unit.name, {})
            if unit.place and (home := facts.get(FACTS[unit.place])):
                self.schedule.homes[machine, unit.name] = str(home)
            if facts and unit.place == "gpu":
                self.newest[machine] = outcome.conditions(facts)  # type: ignore[arg-type]
        oldest_first = {commit: at for at, commit in enumerate(self._in_history())}
        for commit, left in missing(folder, self.commits, wanted, again=self.arguments.again):
            self.schedule.add(machine, oldest_first[commit], commit, left)
            self.total += len(left)
        self.bar.update(self.line, description="measuring", total=self.total)

    def _in_history(self) -> list[str]:
        """The commits, the oldest first."""
        places = {commit: at for at, commit in enumerate(self.history)}
        return sorted(self.commits, key=lambda commit: -places.get(commit, len(places)))

    def _hand_out(self) -> None:
        fleet = self.fleet
        present = list(fleet.workers.values())
        self.schedule.free(present)
        for worker in present:
            if worker.address in fleet.running:
                continue
            running = {
                fleet.workers[address]: job for address, (job, _) in fleet.running.items() if address in fleet.workers
            }
            job = self.schedule.take(worker, running, present)
            if job is None:
                continue
            names = [name for unit in job.units for name in unit.versions]
            request = {
                "program": "measure",
                "commit": job.commit,
                "benchmarks": names,
                "again": self.arguments.again,
            }
            packed = pack(self.root, objects(self.root, job.commit) - self.sent)
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
            merge(fleet.project.results / job.machine, reply["files"])
            self.schedule.done(job)
            self.code = max(self.code, int(reply["code"]))
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
