"""The abstract asv suites: one measurement of a cell feeds every series of it.

A suite's `setup_cache` measures a whole group in fresh processes; the series then read what came back. It must be
written in each module: asv keys it by file and line, and an inherited one would hand a suite the group of another.

A series returns its samples (one a process), so that asv keeps median, interval and quartiles. A cell that is not
measured here is n/a (NaN); one whose kernel is wrong or died has failed, with its reason. `version` is set by hand:
asv's default, a hash of the source, would drop the history when a comment changes.
"""

import functools
import itertools
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

from benchmarks._cells import CACHES, key, label, rungs
from benchmarks._group import Group, Outcome, quick
from benchmarks._identity import TIMED, Identity
from benchmarks._ops import COMPUTES, COPY, OPS, Computes, entries, main_type, takes, types

Samples = dict[str, Any] | float
Method = TypeVar("Method", bound=Callable[..., Samples])


def samples(values: dict[int, float]) -> Samples:
    """What asv takes with full statistics; n/a where there is nothing."""
    if not values:
        return math.nan
    return {"samples": [float(value) for value in values.values()], "number": 1}


def series(by: Identity, unit: str, *, higher_is_better: bool | None, judged: str = "") -> Callable[[Method], Method]:
    """Mark a method as an asv series: asv copies the attributes of a function into benchmarks.json, not of a class.

    `by`: the code that makes the figure; its version is the series'.
    `higher_is_better`: None where there is no better, as of a temperature. `judged`, what raises flags: "exact" by any
    difference; the name of a visit's figure ("seconds") by more than that figure's noise; "" never, as of what is
    derived from a judged series and would flag its changes once more.

    Called without parameters it answers for all combinations at once, each {"value"} or {"error"}: what
    scripts/asv_plugins/at_once.py asks for, since asv takes some 8 ms for each question. It may: nothing is measured
    here any more.
    """

    def mark(function: Method) -> Method:
        @functools.wraps(function)
        def answer(self: Any, group: Group, *where: str) -> Any:
            if where or not getattr(self, "params", None):
                return function(self, group, *where)
            return [_answer(function, self, group, *each) for each in itertools.product(*self.params)]

        vars(answer).update(
            unit=unit, higher_is_better=higher_is_better, judged=judged, version=by.version, at_once=True
        )
        return cast(Method, answer)

    return mark


def _answer(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    try:
        return {"value": function(*arguments)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def computes(op: str, rung: str) -> Computes:
    """What a rung or reference line computes."""
    return COMPUTES[OPS[op].references.get(rung) or next(e.computes for e in entries(op) if e.name == rung)]


def bytes_moved(op: str, rung: str, type: str, shape: tuple[int, ...]) -> int:
    """Compulsory bytes of a rung or reference line at a shape."""
    return computes(op, rung).bytes_moved(shape, type)


def flops(op: str, rung: str, shape: tuple[int, ...]) -> int:
    """Operations of a rung at a shape, 0 where they do not count."""
    count = computes(op, rung).flops
    return count(shape) if count else 0


def outcome_of(group: Group, key: str) -> Outcome:
    """The outcome of one cell, "waiting" where it is not in the plan. Raises: RuntimeError where it failed."""
    found = group.outcomes.get(key, Outcome())
    if found.state == "failed":
        raise RuntimeError(found.reason)
    return found


class Suite(ABC):
    """An op's cells on one device; `op` and `device` come from the subclass, and with them the parameters."""

    op: ClassVar[str]
    device: ClassVar[str]
    params: ClassVar[list[list[str]]]
    param_names: ClassVar[list[str]]
    timeout = 1800

    @abstractmethod
    def setup_cache(self) -> Group:
        """The measured group; abstract, so that asv takes this class for what it is and does not collect it."""

    def outcome(self, group: Group, *where: str) -> Outcome:
        """The outcome of one cell, by the suite's parameters; as outcome_of."""
        return outcome_of(group, self.cell(*where))

    def cell(self, *where: str) -> str:
        """The cell's key, by the suite's parameters."""
        return key(self.op, *self.place(*where))

    def place(self, *where: str) -> tuple[str, str, tuple[int, ...], str]:
        """A combination of parameters as (rung, type, shape, cache)."""
        rung, shape, cache = where
        return rung, main_type(self.op, rung), tuple(map(int, shape.split("x"))), cache

    @series(TIMED, "seconds", higher_is_better=False, judged="seconds")
    def track_seconds(self, group: Group, *where: str) -> Samples:
        """Seconds of one launch."""
        return samples(self.outcome(group, *where).by_process("seconds"))


class _ByShape(Suite):
    """All rungs and reference lines of an op, each with its main type, by shape, cold and hot."""

    param_names: ClassVar[list[str]] = ["rung", "shape", "cache"]

    def __init_subclass__(cls, op: str = "") -> None:
        if op:
            cls.op = op
            shapes = OPS[op].timed(cls.device, quick())
            cls.params = [rungs(op, cls.device), [label(shape) for shape in shapes], list(CACHES)]


class _ByType(Suite):
    """The rungs on the GPU by element type, at one large shape, cold."""

    device = "gpu"
    param_names: ClassVar[list[str]] = ["rung", "type"]

    def __init_subclass__(cls, op: str = "") -> None:
        if op:
            cls.op = op
            repeated = {entry.name for entry in entries(op) if entry.repeats > 1}  # timed with float32 only
            cls.params = [[rung for rung in rungs(op, "gpu") if rung not in repeated], list(types(op)[1:])]
            if quick():  # none of them is timed: asv need not ask for each
                cls.params = [names[:1] for names in cls.params]

    def place(self, *where: str) -> tuple[str, str, tuple[int, ...], str]:
        rung, type = where
        return rung, type, OPS[self.op].element_shape, CACHES[0]


class _Bandwidth(Suite):
    """Of an op whose bytes count."""

    @series(TIMED, "GB/s", higher_is_better=True)
    def track_bandwidth(self, group: Group, *where: str) -> Samples:
        """Compulsory bytes over time, in 1e9 bytes a second."""
        rung, type, shape, _ = self.place(*where)
        amount = bytes_moved(self.op, rung, type, shape)
        taken = self.outcome(group, *where).by_process("seconds")
        return samples({process: amount / value / 1e9 for process, value in taken.items()})


class _GpuBandwidth(_Bandwidth):
    device = "gpu"

    @series(TIMED, "% of copy", higher_is_better=True)
    def track_share_of_copy(self, group: Group, *where: str) -> Samples:
        """Effective bandwidth over that of the stick's vector copy, of the same process, in per cent."""
        rung, type, shape, cache = self.place(*where)
        ratio = bytes_moved(self.op, rung, type, shape) / bytes_moved(self.op, COPY, type, shape)
        own = self.outcome(group, *where).by_process("seconds")
        copy = group.outcomes.get(key(self.op, COPY, type, shape, cache), Outcome()).by_process("seconds")
        return samples({at: 100 * ratio * copy[at] / value for at, value in own.items() if at in copy})

    @series(TIMED, "% of theoretical", higher_is_better=True)
    def track_share_of_theoretical(self, group: Group, *where: str) -> Samples:
        """Effective bandwidth over bus width times memory clock, in per cent; above 100 only out of a cache."""
        rung, type, shape, _ = self.place(*where)
        amount = bytes_moved(self.op, rung, type, shape)
        own = self.outcome(group, *where).by_process("seconds")
        peak = group.facts.get("nvml_theoretical_bandwidth_bytes_per_s")
        return samples({at: 100 * amount / value / peak for at, value in own.items()} if peak else {})


class _Flops(Suite):
    """Of an op whose operations count, and whose vendor has a library for it."""

    @series(TIMED, "GFLOP/s", higher_is_better=True)
    def track_flops(self, group: Group, *where: str) -> Samples:
        """Operations (2 M N K) over time, in 1e9 a second."""
        rung, _, shape, _ = self.place(*where)
        taken = self.outcome(group, *where).by_process("seconds")
        return samples({at: flops(self.op, rung, shape) / value / 1e9 for at, value in taken.items()})

    @series(TIMED, "% of vendor", higher_is_better=True)
    def track_share_of_vendor(self, group: Group, *where: str) -> Samples:
        """That rate over the vendor's library's, of the same type and process, in per cent."""
        _, type, shape, cache = self.place(*where)
        own = self.outcome(group, *where).by_process("seconds")
        vendor = key(self.op, OPS[self.op].vendor[self.device], type, shape, cache)
        base = group.outcomes.get(vendor, Outcome()).by_process("seconds")
        return samples({at: 100 * base[at] / value for at, value in own.items() if at in base})


class GpuSuite(_ByShape, _GpuBandwidth):
    """An op whose bytes count on the GPU."""


class ElementSuite(_ByType, _GpuBandwidth):
    """The same by element type."""


class CpuSuite(_ByShape, _Bandwidth):
    """The same on the CPU."""

    device = "cpu"


class GpuFlopsSuite(_ByShape, _Flops):
    """An op whose operations count on the GPU."""

    device = "gpu"


class ElementFlopsSuite(_ByType, _Flops):
    """The same by element type."""


class CpuFlopsSuite(_ByShape, _Flops):
    """The same on the CPU."""

    device = "cpu"


class LaunchSuite(ABC):
    """What a launch costs: a loop of launches on the host less the graph's replay, hot, at the smallest shape."""

    op: ClassVar[str]
    params: ClassVar[list[list[str]]]
    param_names: ClassVar[list[str]] = ["rung"]
    timeout = 1800

    def __init_subclass__(cls, op: str) -> None:
        cls.op = op
        smallest = OPS[op].shapes[0]
        asked = {e.name for e in entries(op) if e.repeats == 1 and takes(e, smallest, main_type(op, e.name))}
        cls.params = [[rung for rung in rungs(op, "gpu") if rung in asked]]

    @abstractmethod
    def setup_cache(self) -> Group:
        """As in Suite."""

    def cell(self, rung: str) -> str:
        """As in Suite."""
        return key(self.op, rung, main_type(self.op, rung), OPS[self.op].shapes[0], "hot")

    @series(TIMED, "seconds", higher_is_better=False, judged="launch_seconds")
    def track_launch(self, group: Group, rung: str) -> Samples:
        """Seconds."""
        return samples(outcome_of(group, self.cell(rung)).by_process("launch_seconds"))


def per_process(group: Group, read: Any) -> Samples:
    """The median over all visits of each process of what `read(visit)` says of one; n/a where nothing is said."""
    found: dict[int, list[float]] = {}
    for outcome in group.outcomes.values():
        for visit in outcome.visits:
            value = read(visit)
            if value is not None:
                found.setdefault(visit["process"], []).append(value)
    return samples({process: statistics.median(values) for process, values in found.items()})
