#!/usr/bin/env python3
"""What measuring a long history on many GPUs costs, and what limits it: a simulation with the fleet's own schedule.

The seconds of each unit are those of this project's most complete record. Workers die now and then, which
costs their job and a new start. The repository's size is that of synthetic results, as git packs them.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import heapq
import itertools
import json
import random
import statistics
import subprocess
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.project import PROJECT
from kernelwatch.extras.fleet.schedule import Job, Schedule, Worker, recorded
from kernelwatch.extras.fleet.units import Unit, missing, units
from kernelwatch.report import markdown
from kernelwatch.report.arguments import Output, Parser
from lab import figures, scale

KIND = "kind"
GPUS_A_HOST = 4
START_S = 20.0  # of a worker: Python, its clone, the conditions
OVERHEAD_S = 15.0  # of a job: on H200s one with next to nothing to measure took 16 to 20 s, by asv's start and imports
LIFE_S = 24 * 3600.0  # after which a worker dies, on average
PACKED = 32  # commits whose results are packed by git, to know their size
HEADERS = (
    "GPUs", "commits", "days", "GPU hours", "at work", "jobs an hour", "decision", "changes of GPU",
    "lost to deaths",
)  # fmt: skip


@dataclass
class Outcome:
    """What a simulated run took. `busy_s`: of all GPUs; `wall_s`; `jobs`; `decided_s`: CPU time of this program's
    decisions; `changes`: of the GPU in the series that changed it most often; `lost_s`: by workers that died."""

    busy_s: float = 0.0
    wall_s: float = 0.0
    jobs: int = 0
    decided_s: float = 0.0
    changes: int = 0
    lost_s: float = 0.0


def timed_units() -> dict[str, tuple[Unit, float, str]]:
    """The units by name, each with its seconds and the commit of the record that says so: of those that have the unit,
    the one with the most series."""
    benchmarks = json.loads((PROJECT.results / "benchmarks.json").read_text(encoding="utf-8"))
    known: dict[str, tuple[Unit, float, str]] = {}
    for path in scale.by_series(PROJECT.results):
        durations = json.loads(path.read_text(encoding="utf-8"))["durations"]
        for unit in units(PROJECT, benchmarks, []):
            key = benchmarks[next(iter(unit.versions))].get("setup_cache_key")
            module = str(key).partition(":")[0]
            # Lines have moved since: the n-th measurement of a module is still the n-th.
            own = sorted((name for name in durations if name.startswith(f"<setup_cache {module}:")), key=_line)
            alike = sorted({entry["setup_cache_key"] for entry in benchmarks.values() if _of(entry, module)}, key=_line)
            if key in alike and alike.index(key) < len(own):
                seconds = float(durations[own[alike.index(key)]])
                known.setdefault(unit.name, (unit, seconds, path.name.partition("-")[0]))
    return known


def _line(key: str) -> int:
    return int(key.rpartition(":")[2].rstrip(">"))


def _of(entry: Any, module: str) -> bool:
    return isinstance(entry, dict) and str(entry.get("setup_cache_key")).partition(":")[0] == module


@dataclass
class Simulation:
    """A run of a fleet over a new history."""

    gpus: int
    commits: int
    seconds: dict[str, float]
    units: Iterable[Unit]
    seed: int = 0
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        chance = random.Random(self.seed)
        schedule = Schedule()
        for at in range(self.commits):
            schedule.add(KIND, at, f"{at:040x}", self.units)
        workers = [Worker(str(at), str(at), KIND, f"gpu {at}", f"host {at // GPUS_A_HOST}") for at in range(self.gpus)]
        idle, running, now = set(workers), dict[Worker, Job](), 0.0
        events = list[tuple[float, int, Worker, bool]]()  # time, number, worker, whether it dies then
        who: dict[str, dict[int, str]] = {unit.name: {} for unit in self.units}
        numbers = itertools.count()
        while True:
            began = time.process_time()
            for worker in sorted(idle, key=lambda each: each.gpu) if len(schedule) else ():
                job = schedule.take(worker, running)
                if job is None:
                    continue
                self.outcome.jobs += 1
                idle.discard(worker)
                running[worker] = job
                takes_s = OVERHEAD_S + sum(self.seconds[unit.name] for unit in job.units)
                dies_s = chance.expovariate(1 / LIFE_S)
                heapq.heappush(events, (now + min(takes_s, dies_s), next(numbers), worker, dies_s < takes_s))
                self.outcome.busy_s += min(takes_s, dies_s)
            self.outcome.decided_s += time.process_time() - began
            if not events:
                break
            before, (now, _, worker, died) = now, heapq.heappop(events)
            if worker in running:
                job = running.pop(worker)
                if died:
                    schedule.put_back(job)
                    self.outcome.lost_s += START_S + now - before
                    heapq.heappush(events, (now + START_S, next(numbers), worker, False))
                    continue
                for unit in job.units:
                    if unit.place == "gpu":
                        who[unit.name][job.at] = worker.gpu
            idle.add(worker)
        self.outcome.wall_s = now
        for places in who.values():
            order = [places[at] for at in sorted(places)]
            self.outcome.changes = max(self.outcome.changes, sum(a != b for a, b in itertools.pairwise(order)))
        return self.outcome


@dataclass(frozen=True)
class Results:
    """Of a commit: bytes as files, in git's packs and as a worker sends them, CPU seconds in which a run that goes on
    finds what is left, and series by kind."""

    plain: float
    stored: float
    sent: float
    found_s: float
    series: Counter[str]


def results_of(known: list[Unit]) -> Results:
    """What the results of a commit cost, as a mean over PACKED commits."""
    with tempfile.TemporaryDirectory() as folder:
        history = scale.History(Path(folder), PACKED, scale.SERIES)
        results, plain, sizes = history.recorder.machine, list[int](), list[int]()
        git = ["git", "-C", str(results), "-c", "user.name=a", "-c", "user.email=a@b.org"]
        subprocess.run([*git, "init", "-q"], check=True)
        for commit in history.hashes[:PACKED]:
            subprocess.run([*git, "add", *[path.name for path in results.glob(f"{commit[:8]}-*")]], check=True)
            subprocess.run([*git, "commit", "-q", "-m", commit], check=True)
            sent = "".join(path.read_text() for path in sorted(results.glob(f"{commit[:8]}-*")))
            plain.append(len(sent.encode()))
            sizes.append(len(zlib.compress(sent.encode())))
        subprocess.run([*git, "gc", "-q"], check=True)
        stored = sum(path.stat().st_size for path in (results / ".git" / "objects" / "pack").iterdir())
        began = time.process_time()
        for _ in missing(results, history.hashes, known):
            pass
        recorded(results, history.hashes, {unit.name for unit in known})
        found_s = time.process_time() - began
        benchmarks = json.loads((results.parent / "benchmarks.json").read_text(encoding="utf-8"))
    series = Counter[str]()
    for name, (values, *_) in history.recorder.result["results"].items():
        kind = "exact" if benchmarks[name]["judged"] == "exact" else "timed"
        series[kind] += sum(value is not None for value in values)
    return Results(statistics.mean(plain), stored / PACKED, statistics.mean(sizes), found_s / PACKED, series)


def row(simulation: Simulation) -> list[str]:
    """A run, as in HEADERS."""
    done = simulation.run()
    hours = done.busy_s / 3600
    return [
        f"{simulation.gpus}",
        f"{simulation.commits:,}",
        f"{done.wall_s / 86400:.1f}",
        f"{hours:,.0f}",
        f"{100 * done.busy_s / (done.wall_s * simulation.gpus):.0f} %",
        f"{done.jobs / (done.wall_s / 3600):,.0f}",
        f"{1e3 * done.decided_s / done.jobs:.1f} ms",
        f"{done.changes}",
        f"{100 * done.lost_s / done.busy_s:.1f} %",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print what fleets of several sizes cost."""
    parser = Parser("scripts/lab/fleet", __doc__)
    parser.add_argument("gpus", nargs="*", type=int, default=[1, 4, 100], help="sizes of the fleet (default: 1 4 100)")
    parser.add_argument("--commits", type=int, default=10_000, help="length of the history (default: 10000)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/research/fleet.md")
    options = parser.parse_args(arguments)
    if any(gpus < 1 for gpus in options.gpus) or options.commits < 1:
        parser.error("a fleet has at least one GPU, and a history one commit")
    known = timed_units()
    seconds = {name: taken for name, (_, taken, _) in known.items()}
    plain = Simulation(1, options.commits, seconds, [unit for unit, _, _ in known.values()])
    rows = [row(replace(plain, gpus=gpus, outcome=Outcome())) for gpus in options.gpus]
    results = results_of([unit for unit, _, _ in known.values()])
    sources = dict.fromkeys(commit for _, _, commit in known.values())
    lists = (
        f"as in {source}: "
        + ", ".join(f"{name} {taken:.0f}" for name, (_, taken, own) in known.items() if own == source)
        for source in sources
    )
    told = (
        f"Seconds of the units {'; '.join(lists)}. A commit of {results.series.total():,} series "
        f"({results.series['timed']:,} times and {results.series['exact']:,} exact figures) is "
        f"{results.plain / 1024:,.0f} KiB as files and {results.stored / 1024:.0f} KiB in git's packs "
        f"({results.plain * options.commits / 2**30:.0f} and {results.stored * options.commits / 2**30:.1f} GiB for "
        f"{options.commits:,} commits of one kind of GPU), and {results.sent / 1024:.0f} KiB as a worker sends it. The "
        f"command finds out what is left of {options.commits:,} commits in {results.found_s * options.commits:.0f} s "
        "of CPU time."
    )
    table = Table(title_justify="left")
    for header in HEADERS:
        table.add_column(header, justify="right")
    for cells in rows:
        table.add_row(*cells)
    console = Output()
    console.print(table)
    console.print(told)
    if options.write:
        text = f"{markdown.table(list(HEADERS), rows)}\n\n{told}"
        figures.write_block(scale.ROOT / "docs" / "research" / "fleet.md", "fleet", text, "scripts/lab/fleet --write")
    return 0
