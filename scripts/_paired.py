"""Two packages in turns, A B B A ..., in fresh processes of the stick on one device: by cell the ratio, and a verdict.

A turn is a process of each side, one after the other, over the same cells in the same order; the logarithms of the
turns' ratios are what is judged, by a trimmed mean and its interval. Who is measured longer is who is undecided.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scipy.stats import t

from benchmarks._cells import Cell
from benchmarks._cells import key as key_of
from benchmarks._group import BUDGETS, Run

LOOKS = (4, 6, 10, 16, 24, 36)  # so many turns, and the verdicts are asked for
FALSE_ALARMS = 0.01  # that a comparison without any change says worse or better at all: all its cells, at all looks
SEEN = 0.95  # of the changes as large as the smallest that would show, so many do
TRIMMED = 0.1  # at each end: a process that another tenant held up is left out of the mean
SAME = "same binary"
FLOOR = {"gpu": 0.005, "cpu": 0.02}  # a smaller change is not worth a verdict
WITHIN = {"gpu": 0.01, "cpu": 0.02}  # "no change" is said where the interval lies within


@dataclass(frozen=True)
class Side:
    """What is compared: its name, and the folder that holds its gpukernels/ ("" where it has none)."""

    name: str
    package: str


class Interval(NamedTuple):
    """Of the middle of a log ratio; `shows`: by how much it must differ from a bound to lie beyond it, as a rule."""

    middle: float
    half: float
    shows: float

    def beyond(self, bound: float, sign: int = 1) -> bool:
        return sign * self.middle - self.half > bound


def interval(logs: Sequence[float], level: float) -> Interval:
    """The trimmed mean with its interval, wrong `level` of the time. Source: Tukey and McLaughlin, 1963; Yuen, 1974."""
    ordered, n = sorted(logs), len(logs)
    cut = int(TRIMMED * n)
    kept = ordered[cut : n - cut]
    middle = statistics.mean(kept) if kept else math.nan
    if len(kept) < 2:
        return Interval(middle, math.inf, math.inf)
    winsorized = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    error = statistics.stdev(winsorized) * math.sqrt((n - 1) / (len(kept) * (len(kept) - 1)))
    freedom = len(kept) - 1
    half = error * float(t.ppf(1 - level / 2, freedom))
    return Interval(middle, half, half + error * float(t.ppf(SEEN, freedom)))


NOTHING = Interval(math.nan, math.inf, math.inf)


@dataclass(frozen=True)
class Judged:
    """A verdict, why, and what it is drawn from. `word`: "worse", "better", "no change", "cannot tell"; "new" where
    only the second side has the cell, "n/a" where it has not, "failed" where it is wrong there."""

    word: str
    why: str = ""
    ratio: Interval = NOTHING
    floor: float = 0.0

    @property
    def change(self) -> float:
        """Relative, of the seconds."""
        return math.expm1(self.ratio.middle)

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the change."""
        low, high = self.ratio.middle - self.ratio.half, self.ratio.middle + self.ratio.half
        return math.expm1(low), math.expm1(high) if high < 700 else math.inf

    @property
    def would_show(self) -> float:
        """The smallest change that this run could have seen."""
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
    """The verdict on a cell by its turns' log ratios. `controls`: the same turns' log ratios of what is alike on both
    sides; `same`: the cell is as well."""
    ratio, least = interval(logs, level), math.log1p(floor)

    def found(word: str, why: str = "") -> Judged:
        return Judged("cannot tell" if why and not same else word, why, ratio, least)

    if same:
        return found("no change", SAME)
    if len(logs) < LOOKS[0]:
        return found("cannot tell", f"only {len(logs)} of at least {LOOKS[0]} turns")
    for sign, word in ((1, "worse"), (-1, "better")):
        if ratio.beyond(least, sign):  # and beyond what its controls did in the same turns
            apart = {
                name: interval([own - other for own, other in zip(logs, moved, strict=True)], level)
                for name, moved in controls.items()
            }
            doubt = next((name for name, one in apart.items() if not one.beyond(least, sign)), "")
            return found(word, _as_well(doubt, controls[doubt], level) if doubt else "")
    if abs(ratio.middle) + ratio.half < math.log1p(within):
        others = {name: interval(moved, level) for name, moved in controls.items()}
        doubt = next((name for name, one in others.items() if one.beyond(least) or one.beyond(least, -1)), "")
        return found("no change", _as_well(doubt, controls[doubt], level) if doubt else "")
    return found("cannot tell", f"its interval is neither within {100 * within:g} % nor beyond {100 * floor:g} %")


def _as_well(name: str, logs: Sequence[float], level: float) -> str:
    found = interval(logs, level)
    middle, half = (100 * math.expm1(min(value, 700)) for value in (found.middle, found.half))
    return f"{name}, alike on both sides, moved by {middle:+.2f} +- {half:.2f} %"


@dataclass
class Pairs:
    """A cell's visits by turn, each of both sides; or why there are none."""

    cell: Cell
    visits: dict[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    left_out: Judged | None = None
    settled: Judged | None = None  # at the look that decided
    alone_s: float | None = None  # seconds on the second side, where the first has none

    def logs(self, *name: str) -> dict[int, float]:
        """By turn the log ratio of a number of each visit ("seconds" where none is named; deeper by each name)."""

        def read(visit: dict[str, Any]) -> float:
            found: Any = visit
            for part in name or ("seconds",):
                found = found.get(part) or {}
            return float(found or 0.0)

        numbers = {turn: (read(base), read(head)) for turn, (base, head) in self.visits.items()}
        return {turn: math.log(head / base) for turn, (base, head) in numbers.items() if base and head}

    @property
    def same(self) -> bool:
        """Whether both sides launch the same, as far as they say what."""
        found = {visit.get("identity") or None for both in self.visits.values() for visit in both}
        return len(found) == 1 and None not in found

    def seconds(self, side: int) -> float:
        """The median of a side's visits, NaN where it has none."""
        if not self.visits:
            return self.alone_s if side and self.alone_s else math.nan
        return float(statistics.median(both[side]["seconds"] for both in self.visits.values()))


class Comparison:
    """Cells of one or several devices on two sides. `beside`: by a cell's key the key of its control, itself among the
    cells; what is only a control is not judged."""

    def __init__(
        self, base: Side, head: Side, cells: Sequence[Cell], beside: dict[str, str], within: float | None = None
    ) -> None:
        self.sides = (base, head)
        self.pairs = {cell.key: Pairs(cell) for cell in cells}
        self.beside = {own: other for own, other in beside.items() if own in self.pairs and other in self.pairs}
        controls = set(self.beside.values())
        self.judged = [key for key in self.pairs if key in self.beside or key not in controls]
        self.within = within
        self.turns = 0
        self.tests = max(1, len(self.judged)) * (len(LOOKS) + 1)  # the last look is where the time is up

    def turn(self, tick: Callable[[str], None] = lambda said: None) -> None:
        """Both sides once more, over what is undecided and its controls."""
        undecided = [key for key in self.judged if self.open(key)]
        wanted = {*undecided, *(self.beside[key] for key in undecided if key in self.beside)}
        order = (0, 1) if self.turns % 2 == 0 else (1, 0)
        for device in ("gpu", "cpu"):
            asked = [self.pairs[key] for key in self.pairs if key in wanted]
            cells = [pairs.cell for pairs in asked if pairs.cell.device == device and not pairs.left_out]
            runs: dict[int, Run] = {}
            for at in order if cells else ():
                tick(f"{device}: {self.sides[at].name}, turn {self.turns + 1}")
                for _ in range(2):  # a process that hangs may be the machine's doing, once
                    runs[at] = Run(cells, device, self.sides[at].package, BUDGETS[device])
                    runs[at].visit_all(self.turns)
                    if not any("it hung" in outcome.reason for outcome in runs[at].group.outcomes.values()):
                        break
                if device == "gpu" and runs[at].unavailable.startswith("no GPU here"):
                    runs[1 - at] = runs[at]  # the other side would find none either
                    break
            for cell in cells:
                self._note(cell, runs[0], runs[1])
        self.turns += 1

    def _note(self, cell: Cell, base: Run, head: Run) -> None:
        pairs = self.pairs[cell.key]
        before, after = base.group.outcomes[cell.key], head.group.outcomes[cell.key]
        if after.state == "failed":
            pairs.left_out = Judged("failed", after.reason)
        elif before.state == after.state == "ok":
            pairs.visits[self.turns] = (before.visits[-1], after.visits[-1])
        elif after.state == "ok" and not pairs.visits:
            pairs.left_out = Judged("new", f"{self.sides[0].name}: {before.reason}")
            pairs.alone_s = after.visits[-1]["seconds"]
        else:
            lacking = [(side.name, one) for side, one in zip(self.sides, (before, after), strict=True)]
            reasons = {one.reason: f"{name}: {one.reason}" for name, one in lacking if one.state != "ok"}
            both = before.reason == after.reason and before.state == after.state
            word = "cannot tell" if pairs.visits else "n/a"
            pairs.left_out = Judged(word, before.reason if both else "; ".join(reasons.values()))

    def open(self, key: str) -> bool:
        """Whether another turn could tell more of a cell."""
        pairs = self.pairs[key]
        return not (pairs.left_out or pairs.settled or (pairs.same and self.turns >= LOOKS[0]))

    def verdict(self, key: str) -> Judged:
        """What is known of a cell now."""
        pairs = self.pairs[key]
        if known := pairs.left_out or pairs.settled:
            return known
        logs = pairs.logs()
        controls = {}
        if (other := self.pairs.get(self.beside.get(key, ""))) and other.same and not other.left_out:
            controls[other.cell.key] = other.logs()
        for canary in ("memory", "compute"):
            controls[f"the {canary} canary"] = pairs.logs("canary_s", canary)
        device = pairs.cell.device
        within = WITHIN[device] if self.within is None else self.within
        return judge(
            list(logs.values()),
            {name: [of[turn] for turn in logs] for name, of in controls.items() if logs and logs.keys() <= of.keys()},
            floor=min(FLOOR[device], within),
            within=within,
            level=FALSE_ALARMS / self.tests,
            same=pairs.same,
        )

    def look(self) -> None:
        """Settle what can be told now."""
        for key in self.judged:
            if self.open(key) and (found := self.verdict(key)).word in ("worse", "better", "no change"):
                self.pairs[key].settled = found

    def failed(self) -> dict[str, Judged]:
        """The cells whose output is wrong on the second side, or that died there."""
        return {k: p.left_out for k, p in self.pairs.items() if p.left_out and p.left_out.word == "failed"}

    def run(self, budget_s: float, tick: Callable[[str], None] = lambda said: None) -> None:
        """Turn by turn until all is decided, or a cell failed, or another turn would take more than `budget_s` in all,
        or LOOKS are over; to the first look in any case."""
        began, last = time.monotonic(), 0.0
        while any(self.open(key) for key in self.judged) and self.turns < LOOKS[-1]:
            at = time.monotonic()
            if self.turns >= LOOKS[0] and at + last > began + budget_s:
                return
            self.turn(tick)
            last = time.monotonic() - at
            if self.failed():
                return
            if self.turns in LOOKS:
                self.look()

    def verdicts(self) -> Iterator[tuple[Pairs, Judged]]:
        """Each cell's, in the order of the cells; of a control that is not judged what is known."""
        for key in self.pairs:
            yield self.pairs[key], self.verdict(key)


def beside(cells: Sequence[Cell], controls: dict[tuple[str, str], str]) -> dict[str, str]:
    """By each cell's key its control's: that of its op and device at the same type, shape and cache state."""
    found = {}
    for cell in cells:
        name = controls.get((cell.op, cell.device))
        if name and name != cell.rung:
            found[cell.key] = key_of(cell.op, name, cell.type, cell.shape, cell.cache)
    return found
