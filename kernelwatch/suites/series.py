"""The base of all asv suites: how a method becomes a series, what it returns, and how it reads a measured group.

A suite's `setup_cache` measures a whole group in fresh processes; the series then read that group. Each module must
define `setup_cache` itself: asv keys it by file and line, so an inherited one would give a suite another suite's group.

A series returns its samples, one from each process, so that asv keeps median, interval and quartiles. A cell that is
not measured is n/a (NaN). A cell whose kernel is wrong or died has failed, with a reason. `version` is set by hand:
asv's default, a hash of the source, would drop the history when a comment changes.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, cast

from kernelwatch.identity import Identity
from kernelwatch.plan.problem import Problem
from kernelwatch.plan.project import Project
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.system.options import Options

Samples = dict[str, list[float] | int] | float
Method = TypeVar("Method", bound=Callable[..., Samples])


def samples(values: Mapping[int, float]) -> Samples:
    """The values of all processes in the form from which asv computes statistics; NaN if there are none."""
    if not values:
        return math.nan
    return {"samples": [float(value) for value in values.values()], "number": 1}


def series(by: Identity, unit: str, *, higher_is_better: bool | None, judged: str = "") -> Callable[[Method], Method]:
    """Mark a method as an asv series. asv copies the attributes of a function, not of a class, into benchmarks.json.

    `by`: the kind of figures; its version is the version of the series.
    `higher_is_better`: None if neither direction is better, as for a temperature.
    `judged`: which changes are flagged. "exact": any difference. The name of a measurement's figure ("seconds"): a
    change beyond the noise of that figure. "": none, as for a series that is derived from a judged one and would flag
    the same changes again.

    If the method is called without parameters, it returns the results of all combinations, each {"value"} or
    {"error"}. The plugin `together` calls it so, since asv takes some 8 ms for each call. This changes no figure, since
    nothing is measured here.
    """

    def mark(function: Method) -> Method:
        @functools.wraps(function)
        def answer(self: Any, group: Group, *where: str) -> Any:
            if where or not getattr(self, "params", None):
                return function(self, group, *where)
            return [_answer(function, self, group, *values) for values in itertools.product(*self.params)]

        attributes = {"unit": unit, "higher_is_better": higher_is_better, "judged": judged, "version": by.version}
        vars(answer).update(attributes, at_once=True)
        return cast(Method, answer)

    return mark


def _answer(function: Callable[..., Samples], *arguments: object) -> dict[str, Samples | str]:
    """The result of a series for one combination of parameters, or its error as text."""
    try:
        return {"value": function(*arguments)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def outcome_of(group: Group, key: str) -> Outcome:
    """The outcome of one cell; "waiting" if it is not in the group. Raises: RuntimeError if the cell failed."""
    outcome = group.outcomes.get(key, Outcome())
    if outcome.state == "failed":
        raise RuntimeError(outcome.reason)
    return outcome


class Suite(ABC):
    """The series of one problem. A subclass names the project and the op, from which its parameters follow."""

    project: ClassVar[Project]
    op: ClassVar[str]
    params: ClassVar[list[list[str]]]
    param_names: ClassVar[list[str]]
    may_miss: ClassVar[tuple[str, ...]] = ()  # the beginnings of the facts that say which figures a machine lacks
    timeout = 1800

    def __init_subclass__(cls, project: Project | None = None, op: str = "") -> None:
        if project is not None:
            cls.project, cls.op = project, op
            cls.params = cls.parameters()

    @classmethod
    @abstractmethod
    def parameters(cls) -> list[list[str]]:
        """The values of each parameter, in the order of `param_names`. Raises: UserError if there is no such op."""

    @abstractmethod
    def setup_cache(self) -> Group:
        """Measure the group. It is abstract so that asv does not collect this class as a benchmark."""

    @abstractmethod
    def measure(self, options: Options | None = None) -> Group:
        """Measure the group at the commit under test. `options`: by default those of this process."""

    @abstractmethod
    def cell(self, *where: str) -> str:
        """The key of the cell at these values of the suite's parameters."""

    @classmethod
    def missing(cls, group: Group) -> dict[str, str]:
        """The figures that the machine which measured the group could not take, each with the reason. "" stands for
        all of them: nothing was measured, and nothing failed."""
        reasons = [outcome.reason for outcome in group.outcomes.values() if outcome.state == "na"]
        if reasons and len(reasons) == len(group.outcomes):
            return {"": max(reasons, key=reasons.count)}
        facts: Mapping[str, Any] = group.facts
        return {name: str(why) for name, why in facts.items() if name.startswith(cls.may_miss)}

    @property
    def problem(self) -> Problem:
        """The problem that the suite measures."""
        return self.project.ops[self.op]

    def outcome(self, group: Group, *where: str) -> Outcome:
        """The outcome of the cell at these values of the suite's parameters. Raises: RuntimeError if it failed."""
        return outcome_of(group, self.cell(*where))
