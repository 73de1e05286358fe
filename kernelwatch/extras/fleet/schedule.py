"""Who measures what: no GPU has two jobs, and the CPU's times are taken in peace."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwatch.detect.conditions import differences
from kernelwatch.extras.fleet.units import Unit
from kernelwatch.run import outcome

PLACES = ("host", "gpu", "")  # in this order: a host times its CPU for one job at a time, while other GPUs go on
OWN = ("nvml_uuid_sha256", "machine", "gpu", "cpu")  # conditions that name a worker or its kind


@dataclass(frozen=True)
class Worker:
    """A worker of the cluster. `machine`: the kind, as asv's machine; `gpu`: the hashed UUID, "" without a GPU; `host`:
    the hashed id of its machine."""

    address: str
    name: str
    machine: str
    gpu: str
    host: str
    conditions: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def where(self, place: str) -> str:
        return {"gpu": self.gpu, "host": self.host, "": ""}[place]

    @property
    def told(self) -> str:
        return f"{self.name} (GPU {self.gpu[:6]})" if self.gpu else self.name


@dataclass(frozen=True)
class Job:
    """A commit (and its place among the commits, the oldest being 0) and some units of one place, for one kind."""

    commit: str
    at: int
    machine: str
    place: str
    units: tuple[Unit, ...]

    @property
    def told(self) -> str:
        return f"{self.commit[:8]} {', '.join(unit.name for unit in self.units)}"


def software(worker: Worker) -> dict[str, Any]:
    """The conditions that all workers of a kind must share."""
    return {name: value for name, value in worker.conditions.items() if name not in OWN}


def misfits(workers: Iterable[Worker], recorded: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The workers that measure under other conditions than the rest of their kind, and how they differ, by address.

    The right conditions are those of the newest record if a worker has them, or else those that most workers have.
    `recorded`: the conditions of the newest record, by kind.
    """
    kinds: dict[str, list[Worker]] = {}
    for worker in workers:
        kinds.setdefault(worker.machine, []).append(worker)
    wrong = {}
    for machine, alike in kinds.items():
        newest = recorded.get(machine, {})

        def weight(worker: Worker, alike: list[Worker] = alike, newest: Mapping[str, Any] = newest) -> tuple[bool, int]:
            known = software(worker)
            return all(known.get(name) == newest[name] for name in known if name in newest) and bool(newest), sum(
                software(other) == known for other in alike
            )

        right = software(max(alike, key=weight))
        for worker in alike:
            if software(worker) != right:
                wrong[worker.address] = "; ".join(differences(right, software(worker)))
    return wrong


class Schedule:
    """The jobs that are left. Each GPU, and each host's CPU, gets a stretch of neighboring commits."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], dict[str, dict[int, Unit]]] = {}  # kind, place -> name -> position -> unit
        self._commits: dict[int, str] = {}
        self._last: dict[tuple[str, str, str], int] = {}  # kind, place, where -> the position of its last job

    def add(self, machine: str, at: int, commit: str, units: Iterable[Unit]) -> None:
        """Add what is to be measured of a commit."""
        self._commits[at] = commit
        for unit in units:
            self._left.setdefault((machine, unit.place), {}).setdefault(unit.name, {})[at] = unit

    def put_back(self, job: Job) -> None:
        """A job that was not done is left."""
        self.add(job.machine, job.at, job.commit, job.units)

    def __len__(self) -> int:
        return sum(len(commits) for units in self._left.values() for commits in units.values())

    def take(self, worker: Worker, running: Mapping[Worker, Job]) -> Job | None:
        """The next job for an idle worker, None if there is none at present. `running`: the jobs of other workers."""
        if worker.gpu and any(other.gpu == worker.gpu and other.host == worker.host for other in running):
            return None  # two workers were given the same GPU
        beside = {job.place for other, job in running.items() if other.host == worker.host}
        for place in PLACES:
            if place == "gpu" and not worker.gpu:
                continue
            if (place == "host" and beside & {"host", ""}) or (place == "" and "host" in beside):
                continue  # what else loads the CPU would move its times
            if job := self._next(worker, place):
                return job
        return None

    def _next(self, worker: Worker, place: str) -> Job | None:
        left = self._left.get((worker.machine, place), {})
        if not left:
            return None
        here = worker.where(place)
        # An exact figure is the same everywhere: its commits go in the order in which they were added.
        at = self._nearest(worker.machine, place, here, left) if place else next(iter(next(iter(left.values()))))
        self._last[worker.machine, place, here] = at
        units = tuple(commits.pop(at) for commits in left.values() if at in commits)
        self._left[worker.machine, place] = {name: commits for name, commits in left.items() if commits}
        return Job(self._commits[at], at, worker.machine, place, units)

    def _nearest(self, machine: str, place: str, here: str, left: Mapping[str, Iterable[int]]) -> int:
        """The commit next to the last one here, so that each GPU has a stretch of the history. A GPU begins as far as
        possible from where the others are, also where its stretch ends."""
        commits = set().union(*left.values())
        last = self._last.get((machine, place, here))
        if last is not None and (beside := commits & {last - 1, last + 1}):
            return max(beside)
        others = [at for (kind, own, _), at in self._last.items() if (kind, own) == (machine, place)]
        return max(commits, key=lambda at: (min((abs(at - other) for other in others), default=0), -at))

    def stranded(self, present: Collection[Worker]) -> list[str]:
        """Why what is left cannot be measured by these workers, in sentences."""
        return [
            f"{', '.join(left)} of {machine}: no worker of this kind is left"
            for (machine, place), left in self._left.items()
            if left and not any(worker.machine == machine and (worker.gpu or place != "gpu") for worker in present)
        ]


def recorded(folder: Path, commits: Iterable[str], names: Collection[str]) -> dict[str, dict[str, Any]]:
    """The facts of the newest record of each group in a machine's folder. `commits`: the newest first."""
    files = {path.name[:8]: path for path in folder.glob("*.facts.jsonl")}
    facts: dict[str, dict[str, Any]] = {}
    for commit in commits:
        path = files.get(commit[:8])
        if path is None:
            continue
        lines = path.read_bytes().split(b"\n")
        about = (line.decode(errors="replace") for line in lines if b'"facts"' in line)  # most lines are a cell's
        for group in outcome.read(about):
            if group.name in names and group.facts:
                facts.setdefault(group.name, dict(group.facts))
        if len(facts) == len(names):
            break
    return facts
