"""Compare the exact series of two packages: figures of the asv suites without noise, so that any difference counts."""

import inspect
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kernelwatch.plan import project as projects
from kernelwatch.plan.project import Project
from kernelwatch.run.outcome import Group
from kernelwatch.suites.compiled import Compiled
from kernelwatch.suites.counted import Access
from kernelwatch.system.options import Options

EXACT = (Compiled, Access)  # the base classes of the suites that are compared

Value = float | str  # a figure, NaN if it is n/a; or why the cell failed
Binaries = dict[str, dict[str, tuple[object, ...]]]  # rung -> target -> what is launched


@dataclass(frozen=True)
class ExactSeries:
    """One series, such as "static.Transpose.track_registers(padded, float32, sm_90)"."""

    name: str
    where: tuple[str, ...]
    unit: str
    higher_is_better: bool | None
    judged: bool  # whether the Regressions page judges it
    op: str
    names: tuple[str, ...] = ()  # of the parameters whose values `where` holds

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.where)})"

    @property
    def rung(self) -> str:
        return f"{self.op}/{self.where[0]}"

    def verdict(self, base: Value, head: Value) -> str:
        """A verdict as for a cell; "changed" if the series is not judged."""
        if isinstance(head, str):
            return "n/a" if isinstance(base, str) else "failed"
        if isinstance(base, str):
            return "repaired"
        if math.isnan(base) or math.isnan(head):
            return "n/a" if math.isnan(base) else "gone"
        if base == head:
            return "no change"
        if not self.judged or self.higher_is_better is None:
            return "changed"
        return "worse" if (head > base) != self.higher_is_better else "better"


def _suites(project: Project, rungs: set[str]) -> Iterator[tuple[type[Compiled | Access], list[ExactSeries]]]:
    """Each suite class that has some of these rungs ("op/rung"), with their series."""
    for module in projects.suite_modules(project.here.parent):
        listed = module.__name__.rpartition(".")[2]
        for name, suite in vars(module).items():
            if not (inspect.isclass(suite) and issubclass(suite, EXACT) and suite.__module__ == module.__name__):
                continue
            rows = [rung for rung in suite.params[0] if f"{suite.op}/{rung}" in rungs]
            series = []
            for method_name in dir(suite):
                if method_name.startswith("track_"):
                    method = getattr(suite, method_name)
                    series += [
                        ExactSeries(
                            f"{listed}.{name}.{method_name}",
                            where,
                            method.unit,
                            method.higher_is_better,
                            bool(method.judged),
                            suite.op,
                            tuple(suite.param_names),
                        )
                        for where in itertools.product(rows, *suite.params[1:])
                    ]
            if series:
                yield suite, series


def series_of(project: Project, rungs: set[str]) -> list[ExactSeries]:
    """All exact series of some rungs."""
    return [series for _, of_suite in _suites(project, rungs) for series in of_suite]


@dataclass(frozen=True)
class Figures:
    """A tree's figures by series, and its binaries by rung; a rung that does not fully compile has none. `missing`:
    why this machine lacks figures, by their group ("transpose access") or by group and figure. `repeats`: how often a
    launch does the work, by rung, as far as that was counted."""

    values: dict[ExactSeries, Value]
    binaries: Binaries
    missing: dict[str, str]
    repeats: dict[str, int] = field(default_factory=dict)


def figures_of(project: Project, tree: str, rungs: set[str], name: str = "track_", python: str = "") -> Figures:
    """Measure the exact figures of a tree's rungs, for the series whose names contain `name`, by an interpreter."""
    values: dict[ExactSeries, Value] = {}
    groups: dict[Callable[..., Group], Group] = {}
    missing: dict[str, str] = {}
    # Without a tree, a folder that does not exist stands for it: the harness then reports each figure as n/a.
    only = f"^({'|'.join(map(re.escape, sorted(rungs)))}) "
    options = Options(tree=tree or os.devnull, only=only, python=python)
    for suite, series in _suites(project, rungs):
        wanted = [own for own in series if name in own.name]
        if wanted and suite.setup_cache not in groups:  # some suites share it
            group = groups[suite.setup_cache] = suite().measure(options)
            missing |= {f"{group.name} {name}".strip(): why for name, why in suite.missing(group).items()}
        for own in wanted:
            try:
                method = getattr(suite(), own.name.rpartition(".")[2])
                values[own] = float(method(groups[suite.setup_cache], *own.where))
            except RuntimeError as error:  # the suites raise it for a cell that failed
                values[own] = str(error)
    return Figures(values, _binaries(list(groups.values())), missing, _repeats(groups.values()))


def _repeats(groups: Iterable[Group]) -> dict[str, int]:
    return {
        key.split()[0]: measurement["repeats"]
        for group in groups
        for key, outcome in group.outcomes.items()
        for measurement in outcome.measurements
        if "repeats" in measurement
    }


def _binaries(groups: list[Group]) -> Binaries:
    binaries: Binaries = {}
    failed = set()
    for group in groups:
        for key, outcome in group.outcomes.items():
            rung = key.split()[0]
            if outcome.state == "failed":
                failed.add(rung)
            for figures in outcome.measurements:
                if "cubin_sha256" in figures:
                    launch = figures["cubin_sha256"], figures.get("block_threads"), figures.get("dynamic_shared_bytes")
                    binaries.setdefault(rung, {})[key] = launch
    return {rung: targets for rung, targets in binaries.items() if rung not in failed}


@dataclass(frozen=True)
class Difference:
    """A series whose figures differ. `unjudged`: neither side can be better, since both launch the same binary (counts
    are of the source, in which the compiler may merge accesses), or since their launches repeat the work differently
    often."""

    series: ExactSeries
    base: Value
    head: Value
    unjudged: bool = False
    why: str = ""  # what was said of it beforehand
    accepted: bool = False  # whether that covers it

    @property
    def verdict(self) -> str:
        verdict = self.series.verdict(self.base, self.head)
        if verdict == "worse" and self.accepted:
            return "accepted"
        return "changed" if self.unjudged and verdict in ("worse", "better") else verdict


def differences(base: Figures, head: Figures) -> list[Difference]:
    """The series that newly fail, are worse, gone, better, changed or repaired, in this order."""
    unjudged = {rung for rung, binaries in head.binaries.items() if binaries == base.binaries.get(rung)}
    unjudged |= set(repeated(base, head))
    pairs = [
        Difference(series, base.values[series], value, series.rung in unjudged) for series, value in head.values.items()
    ]
    order = ("failed", "worse", "gone", "better", "changed", "repaired")
    return sorted((pair for pair in pairs if pair.verdict in order), key=lambda pair: order.index(pair.verdict))


def repeated(base: Figures, head: Figures) -> dict[str, tuple[int, int]]:
    """The rungs whose launches do the work differently often on the two sides, and how often."""
    return {
        rung: (base.repeats[rung], times)
        for rung, times in head.repeats.items()
        if base.repeats.get(rung, times) != times
    }
