"""Compare two packages: which cells are certainly slower or faster, which did not change, which cannot be decided.

The checkout's harness measures both packages in turns (A B B A ...) in fresh processes on the same device. Undecided
cells are measured longer, within the budget. Figures without noise are compared exactly. A rung whose binary or launch
differs and which was not timed is undecided, whatever its exact figures say; only a comparison of the exact figures
alone leaves time out of account.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kernelwatch.comparison import exact
from kernelwatch.comparison.changes import Changes, changes
from kernelwatch.comparison.choice import Choice, before_in_ladder, binaries_of_cpu, cells_of, choose
from kernelwatch.comparison.exact import Difference, Figures
from kernelwatch.comparison.paired import Comparison, Judged, Pairs, Side
from kernelwatch.plan.project import Project

FEW = 3  # names in one line


@dataclass
class Report:
    """The result of a comparison. It is filled step by step, so that it can be printed after an interrupt. `what`: both
    sides in one line; `only`: a regular expression that chooses the cells to time; `exact_only`: time nothing."""

    project: Project
    base: Side
    head: Side
    what: str
    only: str = ""
    exact_only: bool = False
    notes: list[str] = field(default_factory=list)
    compared: int = 0  # exact figures
    whole: bool = False  # the comparison was not interrupted
    alike: bool = False  # every binary is the same, so that there was nothing to compare
    missing: dict[str, str] = field(default_factory=dict)  # exact figures -> why this machine lacks them
    untimed: dict[str, str] = field(default_factory=dict)  # rung with another binary -> why it was not timed
    new: dict[str, str] = field(default_factory=dict)  # rung that only the second side has -> the rung before it
    differences: list[Difference] = field(default_factory=list)
    figures: Figures | None = None  # of the second side
    comparison: Comparison | None = None

    @property
    def failures(self) -> dict[str, str]:
        """The cells and series that fail on the second side, with the reasons."""
        exact = {str(pair.series): str(pair.head) for pair in self.differences if pair.verdict == "failed"}
        timed = self.comparison.failed() if self.comparison else {}
        return exact | {key: judged.why for key, judged in timed.items()}

    def judged(self) -> list[tuple[Pairs, Judged]]:
        """The cells with their verdicts, without controls."""
        comparison = self.comparison
        if comparison is None:
            return []
        return [(pairs, judged) for pairs, judged in comparison.verdicts() if pairs.cell.key in comparison.judged]

    def counts(self) -> dict[str, tuple[int, int]]:
        """How many cells and how many exact figures have each verdict."""
        cells = [judged.word for _, judged in self.judged()]
        exact = [difference.verdict for difference in self.differences]
        return {word: (cells.count(word), exact.count(word)) for word in ("worse", "better", "repaired", "cannot tell")}

    @property
    def undecided(self) -> list[str]:
        """Why more cannot be said, one reason a line; [] if nothing is undecided."""
        reasons = []
        if cells := self.counts()["cannot tell"][0]:
            reasons.append(f"{cells} cell{'s' if cells > 1 else ''}")
        if self.untimed and not self.exact_only:
            binaries = "another binary, and was" if len(self.untimed) == 1 else "other binaries, and were"
            why = next(iter(self.untimed.values()))
            reasons.append(f"{some(self.untimed)}: {binaries} not timed ({why})")
        if self.exact_only:
            reasons += self.absent
        if not reasons and not (self.alike or self.new or self.compared or self._timed):
            reasons.append("nothing could be compared")
        return reasons

    @property
    def absent(self) -> list[str]:
        """The exact figures that this machine lacks, one reason a line."""
        groups: dict[str, list[str]] = {}
        for group, why in self.missing.items():
            groups.setdefault(why, []).append(group)
        return [f"no exact figure of {some(names)} ({why})" for why, names in groups.items()]

    @property
    def _timed(self) -> bool:
        return any(judged.word != "n/a" for _, judged in self.judged())

    @property
    def code(self) -> int:
        """The exit code."""
        if self.failures:
            return 2
        if any(self.counts()["worse"]):
            return 1
        return 2 if self.undecided else 0

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        base, head = self.base.name, self.head.name
        counts = self.counts()

        def amount(word: str) -> str:
            cells, exact = counts[word]
            counted = [(cells, "cell"), (exact, "exact figure")]
            return " and ".join(f"{n} {noun}{'s' if n > 1 else ''}" for n, noun in counted if n)

        parts = [f"{head} is {word} than {base}: {amount(word)}" for word in ("worse", "better") if any(counts[word])]
        if any(counts["repaired"]):
            parts.append(f"repaired: {amount('repaired')}")
        if self.new:
            parts.append(f"new: {some(self.new)}, with nothing to compare")
        if self.undecided:
            parts.append(f"cannot tell: {'; '.join(self.undecided)}")
        if not self.whole:
            parts.append("interrupted before all was decided")
        elif not parts:
            parts = ["no change: every binary is the same, and nothing was timed" if self.alike else "no change"]
        alone = ["by the exact figures alone"] if self.exact_only and not self.alike else []
        return "; ".join([*parts, *alone])


def some(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def compare(
    report: Report, choice: Choice | None, budget_s: float, within: float | None, tell: Callable[[str], None]
) -> None:
    """Fill a report. `choice`: what to compare, by default the rungs whose compiled code or launch differs; `tell` gets
    the text of each stage."""
    project, base, head = report.project, report.base, report.head
    differ = changes(project, base.package, head.package)
    rungs = choice.exact if choice else set(differ.rungs)
    report.new = {rung: before_in_ladder(project, rung) for rung in differ.new if rung in rungs}
    tell("compiling ...")
    asked = rungs | {before for before in report.new.values() if before}
    figures = [exact.measure(project, side.package, asked) for side in (base, head)]
    _take_exact(report, *figures)
    if report.failures:
        return
    concerned = _only(differ, rungs)
    timed = concerned.launched + _recompiled(report, concerned, figures, chosen=choice is not None)
    if choice is None:
        changed = timed if differ.shared else differ.rungs
        before = [name for name in report.new.values() if name]
        choice = choose(project, cells_of(project, dict.fromkeys([*timed, *before]), report.only), rungs, changed)
        report.alike = not timed
    elif choice.cells:
        named = {cell.name for cell in choice.cells}
        timed = [rung for rung in timed if rung in named]
    else:
        report.exact_only = True
    if choice.cells and not report.exact_only:
        report.comparison = Comparison(project, base, head, choice.cells, choice.controls, within)
        report.comparison.run(budget_s, tell)
    report.untimed = _untimed(report, timed)


def _take_exact(report: Report, base: Figures, head: Figures) -> None:
    """Put the exact figures of both sides into a report."""
    report.differences = exact.differences(base, head)
    pairs = [(base.values[series], value) for series, value in head.values.items()]
    report.compared = sum(not any(isinstance(value, str) or math.isnan(value) for value in both) for both in pairs)
    report.figures = head
    report.missing = head.missing


def _only(differ: Changes, rungs: set[str]) -> Changes:
    """The same changes, of these rungs only."""
    launched, compiled, new = (
        [name for name in names if name in rungs] for names in (differ.launched, differ.compiled, differ.new)
    )
    return Changes(launched, compiled, differ.shared, new)


def _untimed(report: Report, timed: list[str]) -> dict[str, str]:
    """Of the rungs with another binary, those without a measured cell, each with the reason."""
    words: dict[str, list[Judged]] = {}
    for pairs, judged in report.judged():
        words.setdefault(pairs.cell.name, []).append(judged)
    untimed = {}
    for rung in timed:
        verdicts = words.get(rung, [])
        if rung not in report.new and all(judged.word == "n/a" for judged in verdicts):
            untimed[rung] = verdicts[0].why if verdicts else "no suite here times it"
    return untimed


def _recompiled(report: Report, changed: Changes, figures: list[Figures], chosen: bool) -> list[str]:
    """Of the rungs of which only the source changed, those whose binary changed or that do not compile. Adds a note
    about the others, unless the cells to time were `chosen`: then they are timed all the same."""
    project, sides = report.project, [report.base.package, report.head.package]
    asked = [] if chosen else changed.compiled
    cpu = [binaries_of_cpu(project, package, asked) for package in sides]
    differ: list[str] = []
    alike: list[str] = []
    for rung in changed.compiled:
        binaries = [of_cpu.get(rung) or of.binaries.get(rung) for of_cpu, of in zip(cpu, figures, strict=True)]
        known = binaries[0] is not None and binaries[0] == binaries[1]
        # If the project knows the parts of its rungs, one that is not compiled would be in `launched` had it changed.
        has_parts = project.parts is not None
        untouched = has_parts and not _is_compiled(report, rung) and bool(changed.shared) and not known
        if known or untouched:
            alike.append(rung)
        else:
            differ.append(rung)
    if chosen:
        return differ
    if changed.shared:
        files = ", ".join(changed.shared)
        verb = "differs" if len(changed.shared) == 1 else "differ"
        report.notes.append(f"all rungs depend on {files}, which {verb}: --all also times rungs with the same binary")
    elif alike:
        report.notes.append(f"the source differs, the binary is the same: {', '.join(alike)}")
    return differ


def _is_compiled(report: Report, rung: str) -> bool:
    op, _, name = rung.partition("/")
    source = report.project.op(op).rung(name).source
    return source is not None and source.suffix != ".py"
