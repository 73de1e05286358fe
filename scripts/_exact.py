"""The exact series of two packages: figures of the asv suites that carry no noise, so that any difference counts."""

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from benchmarks import access, static
from benchmarks._group import Group

# The suites' modules: whatever is in one of them is compared, under the names that its series have on the pages.
MODULES: tuple[ModuleType, ...] = (access, static)

Value = float | str  # a figure, NaN where it is n/a; or why it has failed


@dataclass(frozen=True)
class Series:
    """One series: "static.Transpose.track_registers(padded, float32, sm_90)"."""

    name: str
    where: tuple[str, ...]
    unit: str
    higher_is_better: bool | None
    judged: bool  # whether the Regressions page judges it
    op: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.where)})"

    @property
    def rung(self) -> str:
        return f"{self.op}/{self.where[0]}"

    def verdict(self, base: Value, head: Value) -> str:
        """As of a cell; "changed" where a series is shown only."""
        if isinstance(head, str):
            return "n/a" if isinstance(base, str) else "failed"
        if isinstance(base, str) or math.isnan(base) or math.isnan(head):
            return "n/a"
        if base == head:
            return "no change"
        if not self.judged or self.higher_is_better is None:
            return "changed"
        return "worse" if (head > base) != self.higher_is_better else "better"


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _suites(rungs: set[str]) -> Iterator[tuple[str, Any, list[Series]]]:
    """Each suite that has some of these rungs ("op/rung"): its name, itself, and the series that are theirs."""
    for module in MODULES:
        for name, suite in vars(module).items():
            if not (isinstance(suite, type) and suite.__module__ == module.__name__):
                continue
            kind: Any = suite
            label = f"{module.__name__.removeprefix('benchmarks.')}.{name}"
            rows = [rung for rung in kind.params[0] if f"{kind.op}/{rung}" in rungs]
            found = [
                Series(f"{label}.{method}", where, series.unit, series.higher_is_better, bool(series.judged), kind.op)
                for method in dir(kind)
                if method.startswith("track_") and (series := getattr(kind, method))
                for where in itertools.product(rows, *kind.params[1:])
            ]
            if found:
                yield label, kind, found


def series_of(rungs: set[str]) -> list[Series]:
    """All that there are of some rungs."""
    return [series for *_, found in _suites(rungs) for series in found]


@dataclass(frozen=True)
class Figures:
    """A package's figures by series, and by rung what was compiled for whom, {} where it does not all compile."""

    values: dict[Series, Value]
    binaries: dict[str, dict[str, tuple[Any, ...]]]


def measure(package: str, rungs: set[str], name: str = "track_") -> Figures:
    """The exact figures of a package's rungs; of the series whose name has `name` in it."""
    values: dict[Series, Value] = {}
    groups: dict[Callable[..., Group], Group] = {}
    pattern = f"^({'|'.join(map(re.escape, sorted(rungs)))}) "
    # A folder that is not there is no package: each figure is n/a, with the stick's words.
    with _environment(GPUKERNELS_PACKAGE=package or os.devnull, GPUKERNELS_CELLS=pattern, GPUKERNELS_FACTS=""):
        for _, suite, found in _suites(rungs):
            wanted = [series for series in found if name in series.name]
            if wanted and suite.setup_cache not in groups:  # which some suites share
                groups[suite.setup_cache] = suite().setup_cache()
            for series in wanted:
                try:
                    method = getattr(suite(), series.name.rpartition(".")[2])
                    values[series] = float(method(groups[suite.setup_cache], *series.where))
                except RuntimeError as error:  # a cell that has failed, in the suites' words
                    values[series] = str(error)
    binaries: dict[str, dict[str, tuple[Any, ...]]] = {}
    for group in groups.values():
        for key, outcome in group.outcomes.items():
            launch = ("cubin_sha256", "block_threads", "dynamic_shared_bytes")
            for visit in outcome.visits:
                if "cubin_sha256" in visit:
                    binaries.setdefault(key.split()[0], {})[key] = tuple(visit.get(part) for part in launch)
    for key, outcome in ((key, outcome) for group in groups.values() for key, outcome in group.outcomes.items()):
        if outcome.state == "failed":
            binaries.pop(key.split()[0], None)
    return Figures(values, binaries)


@dataclass(frozen=True)
class Difference:
    """A series that differs: where, and both figures."""

    series: Series
    base: Value
    head: Value

    @property
    def verdict(self) -> str:
        return self.series.verdict(self.base, self.head)


def differences(base: Figures, head: Figures) -> list[Difference]:
    """What is worse, better, changed or newly failing, in this order."""
    found = [Difference(series, base.values[series], value) for series, value in head.values.items()]
    order = ("failed", "worse", "better", "changed")
    return sorted((one for one in found if one.verdict in order), key=lambda one: order.index(one.verdict))
