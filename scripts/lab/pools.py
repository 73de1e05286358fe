"""Simulated histories over a pool of GPUs, and the designs that make events of them.

What a launch is on another GPU comes from the record: launches with one identity that several H200s measured. So do the
spread between processes, and the noise of the turns of links. Which launches a commit changes is drawn.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelwatch.comparison.linking import BUDGET_S, CONTROLS, NARROW
from kernelwatch.comparison.paired import INTERVAL, LOOKS, interval, trimmed_mean
from kernelwatch.detect.chain import chains
from kernelwatch.detect.judging import judge, word_of
from kernelwatch.detect.steps import Point, Values, find
from kernelwatch.history import links, records
from kernelwatch.history.links import Kind, Link, Session
from kernelwatch.identity import TIMED
from kernelwatch.identity import known as known_version

GPUS = 20
COMMITS = 400
LAUNCHES = 300
MOST = 5  # launches that a commit changes, at most
STEPS = 1 / 3  # share of the changes that are a step; the others leave the speed as it was
SIZES = (0.005, 0.01, 0.02, 0.05)  # of the steps, up or down
PROCESSES = 6  # of a full run
START_S, CELL_S = 3.5, 0.1  # of a process, and of a cell in it: round figures of recorded sessions
TURNS = 6  # of a link, where nothing else is said
EQUAL = 26  # turns of a link, at which links cost what full runs cost
SOON = 2  # commits after its own within which a step is found soon
LEAST = 10  # differences without a change, from which a launch's own threshold follows
SHARED = 3  # GPUs that must have measured a launch before the record tells how it differs between them


# --- the record ----------------------------------------------------------------------------------------------------


class Same(NamedTuple):
    """A launch that several GPUs measured. `kind`: op and cache state; `spread`: between processes, relative; `rest`:
    by how much each GPU differs from the mean of all, as a logarithm, without what its launches of the kind share."""

    key: str
    kind: str
    spread: float
    rest: Values


@dataclass(frozen=True)
class Recorded:
    """What the record tells. `shifts`: by kind, what the launches of a GPU share; `deviations`: of a turn, of each
    recorded link, by cache state; `gpus`: how many there are."""

    launches: Sequence[Same]
    shifts: dict[str, Values]
    deviations: dict[str, Values]
    gpus: int

    @property
    def links(self) -> int:
        """How many links tell the noise of turns."""
        return sum(map(len, self.deviations.values()))

    def pool(self) -> Values:
        """The deviation of a turn of every recorded link."""
        return np.concatenate(list(self.deviations.values()))


def recorded(folder: Path) -> Recorded:
    """The record of a machine's folder."""
    # By cell, identity of the launch and version of the harness.
    medians: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    spreads: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*.facts.jsonl")):
        record = records.read(path)
        for key, cell in record.cells.items():
            identities = {str(each.get("identity") or "") for each in cell.measurements}
            if not cell.group.endswith(" gpu") or len(cell.seconds) < 2 or len(identities) != 1 or "" in identities:
                continue
            facts = record.facts[cell.group]
            place = key, min(identities), known_version(facts, TIMED) or ""
            medians[place][str(facts.get("nvml_uuid_sha256"))].append(cell.median_s)
            spreads[place].append(cell.spread)
    shared = {place: by_gpu for place, by_gpu in medians.items() if len(by_gpu) >= SHARED}
    apart = {place: _apart(by_gpu) for place, by_gpu in shared.items()}
    by_kind: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (key, *_), by_gpu in apart.items():
        for gpu, off in by_gpu.items():
            by_kind[kind_of(key)][gpu].append(off)
    shifts = {kind: {gpu: statistics.median(offs) for gpu, offs in own.items()} for kind, own in by_kind.items()}
    launches = []
    for place, by_gpu in apart.items():
        key = place[0]
        kind, count = kind_of(key), len(by_gpu)
        rest = np.array([off - shifts[kind][gpu] for gpu, off in by_gpu.items()]) * math.sqrt(count / (count - 1))
        launches.append(Same(key, kind, statistics.median(spreads[place]), rest))
    sessions, _ = links.read(folder)
    known = [link for session in sessions for link in session.links if len(link.logs) >= LOOKS[0]]
    deviations = {
        cache: np.array([statistics.stdev(link.logs) for link in known if link.cell.endswith(f" {cache}")])
        for cache in ("cold", "hot")
    }
    gpus = {gpu for by_gpu in shared.values() for gpu in by_gpu}
    return Recorded(launches, {kind: np.array([*own.values()]) for kind, own in shifts.items()}, deviations, len(gpus))


def kind_of(key: str) -> str:
    """The op and the cache state of a cell."""
    return f"{key.partition('/')[0]} {key.rpartition(' ')[2]}"


def _apart(by_gpu: dict[str, list[float]]) -> dict[str, float]:
    """By how much each GPU differs from the mean of all, as a logarithm."""
    logs = {gpu: math.log(statistics.median(seconds)) for gpu, seconds in by_gpu.items()}
    return {gpu: log - statistics.fmean(logs.values()) for gpu, log in logs.items()}


def responses(rng: np.random.Generator, launches: Sequence[Same], shifts: Values) -> Values:
    """By how much launches differ from the mean on each GPU of a pool. `shifts`: of launches and GPUs."""
    drawn = np.array([rng.choice(launch.rest, shifts.shape[1]) for launch in launches])
    return np.asarray(shifts + drawn)


def shifts_of(rng: np.random.Generator, known: Recorded, launches: Sequence[Same], gpus: int) -> Values:
    """What the launches of a kind share on each GPU of a pool, by launch: each GPU is a recorded one."""
    by_kind = {kind: rng.choice(own, gpus) for kind, own in known.shifts.items()}
    return np.array([by_kind[launch.kind] for launch in launches])


def correlated(rng: np.random.Generator, launches: Sequence[Same], old: Values, shifts: Values, share: float) -> Values:
    """How new launches differ from the mean on each GPU, if that correlates with their predecessors' by `share`."""
    if share == 1 or not launches:
        return old
    return np.asarray(
        shifts + share * (old - shifts) + math.sqrt(1 - share**2) * (responses(rng, launches, 0 * shifts))
    )


# --- a history -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class History:
    """A history over a pool.

    `gpu`: that of each commit. `step`: the logarithm of the true change, by launch and commit; `version`: how often
    the launch has changed. `seconds`, `error`: of the full run of each commit. `deviation`: of a turn of a link.
    `changed`: the launches that each commit changed; `moved`: the change of their response to each GPU.
    """

    gpu: NDArray[np.int64]
    step: Values
    version: NDArray[np.int64]
    seconds: Values
    error: Values
    deviation: Values
    changed: Sequence[Sequence[int]]
    moved: Sequence[Values]

    @property
    def changes(self) -> int:
        """How many launches changed."""
        return sum(map(len, self.changed))


def history(rng: np.random.Generator, known: Recorded, commits: int = COMMITS, share: float = 1.0) -> History:
    """A history: every commit on a GPU of the pool at random. `share`: how far the response of a changed launch to a
    GPU correlates with that of the launch before it."""
    launches = [known.launches[at] for at in rng.choice(len(known.launches), LAUNCHES, replace=False)]
    gpu = rng.integers(GPUS, size=commits)
    shifts = shifts_of(rng, known, launches, GPUS)
    now = responses(rng, launches, shifts)
    shape = len(launches), commits
    step, version, response = np.zeros(shape), np.zeros(shape, int), np.empty(shape)
    changed: list[list[int]] = []
    moved = []
    for commit in range(commits):
        own = sorted(rng.choice(len(launches), rng.integers(1, MOST + 1), replace=False).tolist()) if commit else []
        old = now[own]
        now[own] = correlated(rng, [launches[at] for at in own], old, shifts[own], share)
        response[:, commit] = now[:, gpu[commit]]
        version[own, commit:] += 1
        for at in own:
            if rng.random() < STEPS:
                step[at, commit] = math.log1p(rng.choice(SIZES)) * rng.choice((-1, 1))
        changed.append(own)
        moved.append(now[own] - old)
    spreads = np.array([launch.spread for launch in launches])[:, None, None]
    processes = 1 + spreads * rng.standard_normal((*shape, PROCESSES))
    seconds = np.exp(np.cumsum(step, axis=1) + response) * np.median(processes, axis=2)
    error = processes.std(axis=2, ddof=1) / math.sqrt(PROCESSES)
    deviation = np.array([rng.choice(known.deviations[launch.kind.rpartition(" ")[2]]) for launch in launches])
    return History(gpu, step, version, seconds, error, deviation, changed, moved)


class Event(NamedTuple):
    """A change of a launch that a design reports, and the commits that may be to blame for it."""

    launch: int
    first: int
    last: int
    sign: int


@dataclass
class Tally:
    """The result of a design. `found`, `soon`: steps by size; `false`: events without a step, or in the other
    direction; `elsewhere`: right ones that name another commit than the step's; `cost_s`: GPU seconds of a commit."""

    changes: int = 0
    steps: dict[float, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 0))
    found: dict[float, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 0))
    soon: int = 0
    false: int = 0
    elsewhere: int = 0
    commits: int = 0
    cost_s: float = 0.0

    def share(self, size: float) -> float:
        """The share of the steps of this size that were found."""
        return self.found[size] / self.steps[size]

    @property
    def false_per_1000(self) -> float:
        """False events for 1,000 changed launches."""
        return 1000 * self.false / self.changes

    def take(self, one: History, events: Sequence[Event], cost_s: float, soon: Callable[[int, int], bool]) -> None:
        """Add the events of a history. `soon`: whether the step of a launch at a commit was found soon."""
        self.changes += one.changes
        self.commits += one.step.shape[1]
        self.cost_s += cost_s
        right: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if event.sign * math.fsum(one.step[event.launch, event.first : event.last + 1]) > 0:
                right[event.launch].append(event)
                self.elsewhere += not one.step[event.launch, event.last]
            else:
                self.false += 1
        for launch, commit in np.argwhere(one.step).tolist():
            log = one.step[launch, commit]
            size = min(SIZES, key=lambda each: abs(math.log1p(each) - abs(log)))
            self.steps[size] += 1
            is_found = any(each.first <= commit <= each.last and each.sign * log > 0 for each in right[launch])
            self.found[size] += is_found
            self.soon += size == 0.01 and is_found and soon(launch, commit)


# --- designs -------------------------------------------------------------------------------------------------------


def of_series(one: History, launch: int, commits: Sequence[int], crossing: bool) -> list[Event]:
    """What today's detector reports of a launch at some commits. `crossing`: whether GPUs are compared."""
    if not commits:
        return []
    points = [
        Point(
            at,
            float(one.seconds[launch, at]),
            float(one.error[launch, at]),
            str(one.version[launch, at]),
            "" if crossing else str(one.gpu[at]),
        )
        for at in commits
    ]
    events = []
    for step in find(points):
        if step.kind != "environment":
            first = step.at if step.since is None else step.since
            events.append(Event(launch, commits[first - 1] + 1, commits[step.at], 1 if step.change > 0 else -1))
    return events


Series = Callable[[History, int, int], list[Event]]  # the events of a launch after the commits before the last argument


def like_with_like(one: History, launch: int, end: int) -> list[Event]:
    """Today's full runs: a change of the GPU is a change of conditions, which alternate."""
    return of_series(one, launch, range(min(end, one.step.shape[1])), crossing=False)


def raw_levels(one: History, launch: int, end: int) -> list[Event]:
    """Full runs, and no look at the GPU."""
    return of_series(one, launch, range(min(end, one.step.shape[1])), crossing=True)


def series_a_gpu(one: History, launch: int, end: int) -> list[Event]:
    """Full runs, and a series for each GPU."""
    own = [np.flatnonzero(one.gpu[:end] == gpu).tolist() for gpu in range(GPUS)]
    return [event for commits in own for event in of_series(one, launch, commits, crossing=True)]


def detected(one: History, tally: Tally, series: Series) -> None:
    """Take what a detector reports of every launch of a history."""
    events = [event for launch in range(len(one.step)) for event in series(one, launch, one.step.shape[1])]

    def soon(launch: int, commit: int) -> bool:
        return any(event.first <= commit <= event.last for event in series(one, launch, commit + SOON + 1))

    tally.take(one, events, full_cost_s(len(one.step)) * one.step.shape[1], soon)


def full_cost_s(launches: int) -> float:
    """The GPU seconds of a full run of a commit."""
    return PROCESSES * (START_S + launches * CELL_S)


def differences(one: History, tally: Tally) -> None:
    """Full runs: the difference to the previous commit, less the median of the launches that did not change. The noise
    is that of the launch's own past differences; the verdict from it follows the rule of links."""
    apart = np.diff(np.log(one.seconds), axis=1)
    is_changed = np.diff(one.version, axis=1) > 0
    events = []
    for at in range(apart.shape[1]):
        apart[:, at] -= np.median(apart[~is_changed[:, at], at])
        for launch in one.changed[at + 1]:
            past = apart[launch, :at][~is_changed[launch, :at]]
            log = float(apart[launch, at])
            if len(past) >= LEAST and word_of(log, float(past.std(ddof=1)), len(past) - 1) in ("worse", "better"):
                events.append(Event(launch, at + 1, at + 1, 1 if log > 0 else -1))
    tally.take(one, events, full_cost_s(len(one.step)) * one.step.shape[1], lambda *_: True)


# --- links ---------------------------------------------------------------------------------------------------------


def name(commit: int) -> str:
    """The hash of a simulated commit."""
    return f"{commit:040x}"


def a_link(cell: str, logs: Iterable[float], *, control: bool = False) -> Link:
    """A link with the logarithms of these turns."""
    turns = tuple(map(float, logs))
    return Link(cell, *trimmed_mean(turns), turns, (1e-5, 1e-5), control=control)


def a_session(before: int, after: int, own: Iterable[Link], gpu: int = 0, kind: Kind = "step") -> Session:
    """A session of two simulated commits."""
    conditions = {"gpu": "simulated", "nvml_uuid_sha256": f"{gpu:08x}"}
    return Session(kind, name(before), name(after), f"{after:06}", 1.0, conditions, 0, links=tuple(own))


def measured(rng: np.random.Generator, true: Values, deviation: Values, turns: int | None) -> list[Values]:
    """The logarithms of the turns of a session's links, the last CONTROLS of which are controls. `true`: the ratios;
    `deviation`: of a turn. `turns`: of each; None: as many as the engine takes within its time for a commit."""
    if turns is not None:
        return [*(true[:, None] + deviation[:, None] * rng.standard_normal((len(true), turns)))]
    logs: list[list[float]] = [[] for _ in true]
    open_links, taken, elapsed_s, last_s = [*range(len(true) - CONTROLS)], 0, 0.0, 0.0
    while open_links and taken < LOOKS[-1] and (taken < LOOKS[0] or elapsed_s + last_s <= BUDGET_S):
        now = [*open_links, *range(len(true) - CONTROLS, len(true))]
        for at in now:
            logs[at].append(float(rng.normal(true[at], deviation[at])))
        taken, last_s = taken + 1, 2 * (START_S + CELL_S * len(now))
        elapsed_s += last_s
        if taken in LOOKS:
            open_links = [at for at in open_links if interval(logs[at], INTERVAL).half > NARROW["gpu"]]
    return [np.array(own) for own in logs]


def linked(one: History, tally: Tally, rng: np.random.Generator, turns: int | None = TURNS, again: int = 0) -> None:
    """Links: the launch before and after in turns on one GPU, of the changed launches only. `turns`: of each; None: as
    many as the engine takes. `again`: on how many more GPUs a change is measured."""
    sessions: list[Session] = []
    cost_s = 0.0
    for commit, own in enumerate(one.changed):
        asked = list(own)
        others = np.delete(np.arange(GPUS), one.gpu[commit])
        for number, gpu in enumerate([int(one.gpu[commit]), *rng.choice(others, again, replace=False).tolist()]):
            if number == 1:
                verdicts = judge(sessions[-1])
                asked = [at for at in own if verdicts[str(at)].word in ("worse", "better")]
            if not asked:
                break
            controls = rng.choice(np.delete(np.arange(len(one.step)), own), CONTROLS, replace=False).tolist()
            true = [one.step[at, commit] + one.moved[commit][own.index(at), gpu] for at in asked]
            launches = [*asked, *controls]
            logs = measured(rng, np.array([*true, *[0.0] * CONTROLS]), one.deviation[launches], turns)
            found = [a_link(str(at), each, control=at in controls) for at, each in zip(launches, logs, strict=True)]
            cost_s += 2 * START_S * max(map(len, logs)) + 2 * CELL_S * sum(map(len, logs))
            sessions.append(a_session(commit - 1, commit, found, gpu))
    tally.take(one, events_of(sessions, one.step.shape[1]), cost_s, lambda *_: True)


def events_of(sessions: Sequence[Session], commits: int) -> list[Event]:
    """The events of links: the launches that a verdict calls changed, and the gradual changes."""
    events = []
    for cell, chain in chains(sessions, {name(commit): commit for commit in range(commits)}).items():
        spans = [(node - 1, node) for node in range(1, len(chain.nodes) + 1) if chain.word(node) in ("worse", "better")]
        for first, last in [*spans, *chain.gradual()]:
            sign = 1 if chain.span(first, last)[0] > 0 else -1
            events.append(Event(int(cell), chain.nodes[first].at, chain.nodes[last - 1].at, sign))
    return events


DESIGNS: dict[str, Callable[[History, Tally, np.random.Generator], None]] = {
    "GPUs compared like with like": lambda one, tally, _: detected(one, tally, like_with_like),
    "raw levels over all GPUs": lambda one, tally, _: detected(one, tally, raw_levels),
    "one series a GPU": lambda one, tally, _: detected(one, tally, series_a_gpu),
    "difference to the previous commit": lambda one, tally, _: differences(one, tally),
    "links, 6 turns": linked,
    "links, turns as the engine takes them": lambda one, tally, rng: linked(one, tally, rng, None),
    "links, changes on two more GPUs too": lambda one, tally, rng: linked(one, tally, rng, again=2),
    "links at equal cost, 26 turns": lambda one, tally, rng: linked(one, tally, rng, EQUAL),
}


def compared(
    known: Recorded,
    seed: int,
    histories: int,
    designs: Sequence[str] = tuple(DESIGNS),
    commits: int = COMMITS,
    share: float = 1.0,
) -> dict[str, Tally]:
    """Designs on the same histories."""
    tallies = {design: Tally() for design in designs}
    for number in range(histories):
        one = history(np.random.default_rng([seed, number]), known, commits, share)
        for design, tally in tallies.items():
            DESIGNS[design](one, tally, np.random.default_rng([seed, number, [*DESIGNS].index(design)]))
    return tallies
