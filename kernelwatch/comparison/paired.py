"""Measure two packages in turns (A B B A ...) on one device, and judge the ratio of each cell.

In a turn one fresh process per side measures the same cells in the same order. A verdict comes from the trimmed mean of
the logarithms of the turns' ratios, and its interval. Undecided cells are measured in further turns.
"""

import math
import signal
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kernelwatch.detect.judging import EARLY
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.cells import key as key_of
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.project import Project
from kernelwatch.run.codes import look, note, of_sources
from kernelwatch.run.outcome import LOST
from kernelwatch.run.processes import AHEAD, Run, workers_of
from kernelwatch.run.workers import Workers
from kernelwatch.system.student import quantile
from kernelwatch.timing.record import Facts, Measurement, number

# Beginnings of reasons that are not the cell's own: a process is killed by the system, say, where memory runs out.
KILLED = f"its process died with exit code {-signal.SIGKILL}"
FROM_OUTSIDE = (LOST, KILLED)
LOOKS = (4, 6, 10, 16, 24, 36)  # the numbers of turns after which verdicts are sought
FALSE_ALARMS = 0.01  # chance that a comparison without a change says worse or better of any cell at any look
SEEN = 0.95  # share of the changes of exactly the detectable size that are found
TRIMMED = 0.1  # share left out of the mean at each end, such as a process that another tenant delayed
INTERVAL = 0.05  # chance that an interval which a link tells misses the true ratio
SAME = "same launch"
WAITING = 2  # processes of each side that start early: their imports may take longer than a turn
FLOOR = {"gpu": 0.005, "cpu": 0.02}  # a smaller change is not worth a verdict
WITHIN = {"gpu": 0.01, "cpu": 0.02}  # the verdict is "no change" if the interval lies within


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name, the folder of its tree ("" if it has none), and the interpreter that measures
    it ("" for that of this process)."""

    name: str
    tree: str
    python: str = ""


class Interval(NamedTuple):
    """The interval `middle` +- `half` of a log ratio. `shows`: how far the true value must be from a bound for the
    interval to lie beyond it in a share SEEN of runs."""

    middle: float
    half: float
    shows: float

    def beyond(self, bound: float, sign: int = 1) -> bool:
        return sign * self.middle - self.half > bound


def interval(logs: Sequence[float], level: float) -> Interval:
    """The trimmed mean and its interval, which misses the true value with probability `level`.

    Source: Tukey and McLaughlin, 1963; Yuen, 1974.
    """
    middle, error, freedom = trimmed_mean(logs)
    if not freedom:
        return Interval(middle, math.inf, math.inf)
    half = error * quantile(1 - level / 2, freedom)
    return Interval(middle, half, half + error * quantile(SEEN, freedom))


def trimmed_mean(logs: Sequence[float]) -> tuple[float, float, int]:
    """The trimmed mean, its standard error, and the degrees of freedom of that: 0 if there are too few values."""
    ordered, n = sorted(logs), len(logs)
    cut = int(TRIMMED * n)
    kept = ordered[cut : n - cut]
    middle = math.fsum(kept) / len(kept) if kept else math.nan
    if len(kept) < 2:
        return middle, math.inf, 0
    winsorized = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    mean = math.fsum(winsorized) / n
    squares = math.fsum((value - mean) ** 2 for value in winsorized)
    return middle, math.sqrt(squares / (len(kept) * (len(kept) - 1))), len(kept) - 1


def identity_of(measurement: Measurement) -> str:
    """The identity of what was launched, by itself if it is known; "" if nothing is."""
    return measurement.get("launch") or measurement.get("identity") or ""


NOTHING = Interval(math.nan, math.inf, math.inf)


@dataclass(frozen=True)
class Judged:
    """A verdict, the reason for it, and the interval it follows from.

    `word`: "worse", "better", "no change" or "cannot tell"; "new" if only the second side has the cell, "repaired" if
    it failed on the first side only, "gone" if only the first side has it, "n/a" if neither has, "failed" if it fails
    on the second side.
    """

    word: str
    why: str = ""
    ratio: Interval = NOTHING
    floor: float = 0.0

    @property
    def change(self) -> float:
        """The relative change of the seconds."""
        return math.expm1(self.ratio.middle)

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the change."""
        low, high = self.ratio.middle - self.ratio.half, self.ratio.middle + self.ratio.half
        return math.expm1(low), math.expm1(high) if high < 700 else math.inf

    @property
    def detectable(self) -> float:
        """The smallest change that this run could have shown."""
        return math.expm1(self.floor + self.ratio.shows) if self.ratio.shows < 700 else math.inf


def judge(
    logs: Sequence[float],
    controls: dict[str, Sequence[float]],
    *,
    floor: float,
    within: float,
    level: float,
    same: bool = False,
) -> Judged:
    """The verdict on a cell from the log ratios of its turns.

    `controls`: the log ratios of the controls, which are the same on both sides, in the same turns.
    `floor`: the smallest relative change that is worse or better; `within`: the largest that is no change.
    `level`: the chance of error of each interval.
    `same`: the cell, too, launches the same on both sides.
    """
    ratio, least = interval(logs, level), math.log1p(floor)

    def verdict(word: str, doubtful: list[str]) -> Judged:
        """The verdict `word`; "cannot tell" if a control's own move may explain it."""
        if not doubtful:
            return Judged(word, "", ratio, least)
        return Judged("cannot tell", _moved_text(doubtful[0], controls[doubtful[0]], level), ratio, least)

    if same and len(logs) >= LOOKS[0] and (ratio.beyond(least) or ratio.beyond(least, -1)):
        return Judged("cannot tell", "both sides seem to launch the same, and yet their times differ", ratio, least)
    if same:
        return Judged("no change", SAME, ratio, least)
    if len(logs) < LOOKS[0]:
        return Judged("cannot tell", f"only {len(logs)} of at least {LOOKS[0]} turns", ratio, least)
    for sign, word in ((1, "worse"), (-1, "better")):
        if ratio.beyond(least, sign):  # the cell must also differ from each control in the same turns
            apart = {
                name: interval([own - other for own, other in zip(logs, moves, strict=True)], level)
                for name, moves in controls.items()
            }
            return verdict(word, [name for name, gap in apart.items() if not gap.beyond(least, sign)])
    if abs(ratio.middle) + ratio.half < math.log1p(within):
        own = {name: interval(moves, level) for name, moves in controls.items()}
        moved = [name for name, move in own.items() if move.beyond(least) or move.beyond(least, -1)]
        return verdict("no change", moved)
    why = f"its interval is neither within {100 * within:g} % nor beyond {100 * floor:g} %"
    return Judged("cannot tell", why, ratio, least)


def _moved_text(name: str, logs: Sequence[float], level: float) -> str:
    ratio = interval(logs, level)
    middle, half = (100 * math.expm1(min(value, 700)) for value in (ratio.middle, ratio.half))
    return f"{name}, alike on both sides, moved by {middle:+.2f} +- {half:.2f} %"


@dataclass
class Pairs:
    """A cell's measurements by turn, one of each side, or the reason why there are none."""

    cell: Cell
    measurements: dict[int, tuple[Measurement, Measurement]] = field(default_factory=dict)
    left_out: Judged | None = None
    settled: Judged | None = None  # the verdict of the look that decided
    alone_s: float | None = None  # seconds on the second side, if the first has none
    differs: bool = False  # its launch is known to differ, even if the binary is the same
    launches: tuple[str, str] | None = None  # the identities of both launches, if they are known beforehand

    def logs(self, *name: str) -> dict[int, float]:
        """The log ratio of a figure by turn. `name`: of the figure, "seconds" by default; each further name goes one
        dictionary deeper."""
        read = name or ("seconds",)
        numbers = {
            turn: (number(base, *read) or 0.0, number(head, *read) or 0.0)
            for turn, (base, head) in self.measurements.items()
        }
        return {turn: math.log(head / base) for turn, (base, head) in numbers.items() if base and head}

    def told(self, side: int, name: str) -> list[float]:
        """A number of a side's measurements, of those that have it."""
        found = (number(both[side], name) for both in self.measurements.values())
        return [value for value in found if value]

    @property
    def same(self) -> bool:
        """Whether both sides launch the same; False if an identity is not known."""
        if self.differs:
            return False
        if self.launches:
            return self.launches[0] == self.launches[1]
        measurements = [measurement for both in self.measurements.values() for measurement in both]
        identities = {identity_of(measurement) for measurement in measurements}
        return len(identities) == 1 and "" not in identities

    @property
    def is_alike(self) -> bool:
        """Whether both sides launch the same, and their times so far say nothing else."""
        logs = self.logs().values()
        return self.same and abs(statistics.median(logs)) <= FLOOR[self.cell.device] if logs else False

    def seconds(self, side: int) -> float:
        """The median of a side's measurements, NaN if it has none."""
        if not self.measurements:
            return self.alone_s if side and self.alone_s else math.nan
        return float(statistics.median(both[side]["seconds"] for both in self.measurements.values()))


class Turns(ABC):
    """Turns of two sides, until every cell is decided. `pairs`: the cells, by key; `controls`: the key of a cell's
    control by the key of the cell. The controls are among the cells; a cell that is only a control is not judged.
    `within`: the largest change that is "no change", of all cells or by the key of a cell.
    `narrow`: by device, measure a cell until the half-width of its 95 % interval is this small, instead of until it is
    decided; a cell that both sides launch alike is measured once, if its times do not differ.
    `stops`: whether no further turn is taken once a cell failed on the second side."""

    stops = True

    def __init__(
        self,
        sides: tuple[Side, Side],
        pairs: dict[str, Pairs],
        controls: dict[str, str],
        within: float | Mapping[str, float] | None = None,
        narrow: Mapping[str, float] | None = None,
    ) -> None:
        self.sides = sides
        self.pairs = pairs
        self.controls = {own: other for own, other in controls.items() if own in pairs and other in pairs}
        lines = set(self.controls.values())
        self.judged = [key for key in self.pairs if key in self.controls or key not in lines]
        self.within = within
        self.narrow = narrow
        self.facts: Facts = {}  # of the machine, and of every device that measured
        self.turns = 0
        self.tests = max(1, len(self.judged)) * (len(LOOKS) + 1)  # one more look when the time is up

    @abstractmethod
    def turn(self, tick: Callable[[str], None] = lambda text: None) -> None:
        """Measure both sides once more, for the undecided cells and their controls."""

    @abstractmethod
    def close(self) -> None:
        """End what a turn leaves behind."""

    def unchanged(self) -> Collection[str]:
        """The cells that need no further turn if the first look would exceed the time; asked after EARLY turns."""
        return ()

    def open(self, key: str) -> bool:
        """Whether another turn could show more of a cell."""
        pairs = self.pairs[key]
        known = pairs.same and self.turns >= LOOKS[0] if self.narrow is None else pairs.is_alike
        return not (pairs.left_out or pairs.settled or known)

    def verdict(self, key: str) -> Judged:
        """The verdict on a cell as of now."""
        pairs = self.pairs[key]
        known = pairs.left_out or pairs.settled
        if known:
            return known
        logs = pairs.logs()
        controls = {}
        control = self.pairs.get(self.controls.get(key, ""))
        if control and control.same and not control.left_out:
            controls[control.cell.key] = control.logs()
        for canary in ("memory", "compute"):
            controls[f"the {canary} canary"] = pairs.logs("canary_s", canary)
        device = pairs.cell.device
        asked = self.within.get(key) if isinstance(self.within, Mapping) else self.within
        within = WITHIN[device] if asked is None else asked
        return judge(
            list(logs.values()),
            {
                name: [by_turn[turn] for turn in logs]
                for name, by_turn in controls.items()
                if logs and logs.keys() <= by_turn.keys()
            },
            floor=min(FLOOR[device], within),
            within=within,
            level=FALSE_ALARMS / self.tests,
            same=pairs.same,
        )

    def look(self) -> None:
        """Settle the cells that can be decided now."""
        for key in filter(self.open, self.judged):
            judged = self.verdict(key)
            if self._is_enough(key, judged):
                self.pairs[key].settled = judged

    def _is_enough(self, key: str, judged: Judged) -> bool:
        """Whether no more need be known of a cell."""
        if self.narrow is None:
            return judged.word in ("worse", "better", "no change")
        return interval([*self.pairs[key].logs().values()], INTERVAL).half <= self.narrow[self.pairs[key].cell.device]

    def failed(self) -> dict[str, Judged]:
        """The cells that failed on the second side, because of wrong output or a dead process."""
        left_out = {key: pairs.left_out for key, pairs in self.pairs.items() if pairs.left_out}
        return {key: judged for key, judged in left_out.items() if judged.word == "failed"}

    def run(self, budget_s: float, tick: Callable[[str], None] = lambda text: None) -> None:
        """Take turns until every cell is decided, a cell failed, the last look is over, or another turn would exceed
        `budget_s` in total. The first look is always reached, unless a cell fails. If that would exceed `budget_s`,
        what is `unchanged` takes no further turn."""
        began, last = time.monotonic(), 0.0
        try:
            while any(self.open(key) for key in self.judged) and self.turns < LOOKS[-1]:
                at = time.monotonic()
                if self.turns >= LOOKS[0] and at + last > began + budget_s:
                    return
                self.turn(tick)
                last = time.monotonic() - at
                if self.stops and self.failed() and self.narrow is None:
                    return
                if self.turns == EARLY and time.monotonic() + (LOOKS[0] - EARLY) * last > began + budget_s:
                    for key in self.unchanged():
                        self.pairs[key].settled = self.verdict(key)
                if self.turns in LOOKS:
                    self.look()
        finally:
            self.close()

    def verdicts(self) -> Iterator[tuple[Pairs, Judged]]:
        """Each cell with its verdict, in the order of the cells, controls included."""
        for key in self.pairs:
            yield self.pairs[key], self.verdict(key)


class Comparison(Turns):
    """Cells of one or several devices on two sides, the trees of a project. `differ`: rungs ("op/rung") whose launches
    certainly differ. `launches`: by the key of a cell, what it launches on both sides, if that is known. Other
    arguments as in `Turns`."""

    def __init__(
        self,
        project: Project,
        base: Side,
        head: Side,
        cells: Sequence[Cell],
        controls: dict[str, str],
        within: float | Mapping[str, float] | None = None,
        differ: Collection[str] = (),
        narrow: Mapping[str, float] | None = None,
        launches: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.project = project
        known = launches or {}
        pairs = {cell.key: Pairs(cell, differs=cell.name in differ, launches=known.get(cell.key)) for cell in cells}
        super().__init__((base, head), pairs, controls, within, narrow)
        self._workers: dict[tuple[str, int], Workers] = {}  # by device and side
        self._seen: dict[tuple[int, str], Measurement] = {}  # by side and cell: what it launches

    def turn(self, tick: Callable[[str], None] = lambda text: None) -> None:
        """Measure both sides once more, for the undecided cells and their controls."""
        undecided = [key for key in self.judged if self.open(key)]
        wanted = {*undecided, *(self.controls[key] for key in undecided if key in self.controls)}
        order = (0, 1) if self.turns % 2 == 0 else (1, 0)
        for device in ("gpu", "cpu"):
            asked = [self.pairs[key] for key in self.pairs if key in wanted]
            cells = [pairs.cell for pairs in asked if pairs.cell.device == device and not pairs.left_out]
            runs: dict[int, Run] = {}
            for at in order if cells else ():
                tick(f"{device}: {self.sides[at].name}, turn {self.turns + 1}")
                for _ in range(2):  # a process may hang once because of the machine
                    tree, budget = self.sides[at].tree, self._budget(device, at)
                    runs[at] = Run(self.project, cells, device, tree, budget, workers=self._of(device, at))
                    if device in AHEAD:  # they import while others are measured
                        for side in (at, 1 - at):
                            self._of(device, side).ahead(WAITING)
                    runs[at].measure_all(self.turns)
                    if not any("it hung" in outcome.reason for outcome in runs[at].group.outcomes.values()):
                        break
                if device == "gpu" and runs[at].unavailable.startswith("no GPU here"):
                    runs[1 - at] = runs[at]  # the other side would find none either
                    break
            if runs:
                self._see(runs)
            for cell in cells:
                self._note(cell, runs[0], runs[1])
            if cells:
                packages = {**self.facts.get("packages", {}), **runs[1].group.facts.get("packages", {})}
                self.facts = {**self.facts, **runs[1].group.facts}
                self.facts |= {"packages": packages} if packages else {}
        self.turns += 1

    def _budget(self, device: str, side: int) -> Budget:
        """How long a side's measurements take, with what its processes of earlier turns know of its cells."""

        def known(name: str) -> dict[str, float]:
            told = {key: pairs.told(side, name) for key, pairs in self.pairs.items() if pairs.cell.device == device}
            return {key: statistics.median(values) for key, values in told.items() if values}

        own = self.project.devices[device].budget
        return replace(own, clocks_mhz=known("clock64_mhz"), seconds=known("seconds"))

    def _see(self, runs: Mapping[int, Run]) -> None:
        """Note what the cells launch whose identity is that of their sources: a change of the host's code may leave it
        as it was. A process of each side, which times nothing, tells it once for all turns."""
        both = [runs[at].group.outcomes for at in sorted(runs)]
        unlike = {
            key for key in both[0] if len({identity_of(each) for own in both for each in own[key].measurements}) > 1
        }
        unseen = [
            [cell for cell in of_sources(run) if cell.key in unlike and self._is_unseen(at, cell.key)]
            for at, run in runs.items()
        ]
        with ThreadPoolExecutor(2) as pool:
            for (at, _), cells, seen in zip(runs.items(), unseen, pool.map(look, runs.values(), unseen), strict=True):
                self._seen |= {(at, cell.key): seen.get(cell.key, {"codes": []}) for cell in cells}
        for at, run in runs.items():
            for cell in of_sources(run):
                if seen_once := self._seen.get((at, cell.key)):
                    note(run.group.outcomes[cell.key].measurements, seen_once)

    def _is_unseen(self, side: int, key: str) -> bool:
        return (side, key) not in self._seen and self.pairs[key].launches is None

    def _of(self, device: str, side: int) -> Workers:
        """The worker processes of a side, some of which start while others measure."""
        if (device, side) not in self._workers:
            own = self.sides[side]
            self._workers[device, side] = workers_of(self.project, own.tree, device, own.python)
        return self._workers[device, side]

    def close(self) -> None:
        """End the processes that wait."""
        for workers in self._workers.values():
            workers.close()

    def _note(self, cell: Cell, base: Run, head: Run) -> None:
        pairs = self.pairs[cell.key]
        before, after = base.group.outcomes[cell.key], head.group.outcomes[cell.key]
        if after.state == "failed":
            pairs.left_out = Judged("failed", after.reason)
        elif before.state == after.state == "ok":
            pairs.measurements[self.turns] = (before.measurements[-1], after.measurements[-1])
        elif after.state == "ok" and not pairs.measurements:
            mended = "cannot tell" if before.reason.startswith(FROM_OUTSIDE) else "repaired"
            word = mended if before.state == "failed" else "new"
            pairs.left_out = Judged(word, f"{self.sides[0].name}: {before.reason}")
            pairs.alone_s = after.measurements[-1]["seconds"]
        else:
            sides = zip(self.sides, (before, after), strict=True)
            reasons = {own.reason: f"{side.name}: {own.reason}" for side, own in sides if own.state != "ok"}
            both = before.reason == after.reason and before.state == after.state
            word = "cannot tell" if pairs.measurements else "gone" if before.state == "ok" else "n/a"
            pairs.left_out = Judged(word, before.reason if both else "; ".join(reasons.values()))


def controls_of(cells: Sequence[Cell], controls: dict[tuple[str, str], str]) -> dict[str, str]:
    """The key of each cell's control by the key of the cell: the control of its op and device at the same type, shape
    and cache state. `controls`: rungs or lines by op and device."""
    keys = {}
    for cell in cells:
        name = controls.get((cell.op, cell.device))
        if name and name != cell.rung:
            keys[cell.key] = key_of(cell.op, name, cell.type, cell.shape, cell.cache)
    return keys
