"""Compare two packages: which cells are certainly slower or faster, which did not change, which cannot be decided.

The checkout's harness measures both packages in turns (A B B A ...) in fresh processes on the same device. Undecided
cells are measured longer, within the budget. Figures without noise are compared exactly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelwatch.compare import exact
from kernelwatch.compare.changes import Changes, changes
from kernelwatch.compare.choice import Choice, binaries_of_cpu, cells_of, choose
from kernelwatch.compare.exact import Difference
from kernelwatch.compare.paired import Comparison, Judged, Pairs, Side
from kernelwatch.plan.project import Project


@dataclass
class Report:
    """The result of a comparison. It is filled step by step, so that it can be printed after an interrupt. `what`: both
    sides in one line; `only`: a regular expression that chooses the cells to time."""

    project: Project
    base: Side
    head: Side
    what: str
    only: str = ""
    notes: list[str] = field(default_factory=list)
    compared: int = 0  # exact figures
    whole: bool = False  # the comparison was not interrupted
    alike: bool = False  # there was nothing to compare
    differences: list[Difference] = field(default_factory=list)
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
        return {word: (cells.count(word), exact.count(word)) for word in ("worse", "better", "cannot tell")}

    @property
    def code(self) -> int:
        """The exit code."""
        if self.failures:
            return 2
        counts = self.counts()
        if any(counts["worse"]):
            return 1
        untimed = all(judged.word == "n/a" for _, judged in self.judged())
        nothing = not self.alike and not self.compared and untimed
        return 2 if counts["cannot tell"][0] or nothing else 0

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
        if counts["cannot tell"][0]:
            parts.append(f"cannot tell: {amount('cannot tell')}")
        absent = sum(judged.word == "n/a" for _, judged in self.judged())
        if not self.whole:
            parts.append("interrupted before all was decided")
        elif not parts:
            parts = ["nothing could be compared" if self.code == 2 else "no change"]
        if absent and self.code != 2:
            parts.append(f"not timed here: {absent} cell{'s' if absent > 1 else ''}")
        return "; ".join(parts)


def compare(
    report: Report, choice: Choice | None, budget_s: float, within: float | None, tell: Callable[[str], None]
) -> None:
    """Fill a report. `choice`: what to compare, by default the rungs whose compiled code or launch differs; `tell` gets
    the text of each stage."""
    project, base, head = report.project, report.base, report.head
    differ = None if choice else changes(project, base.package, head.package)
    rungs = choice.exact if choice else set(differ.rungs) if differ else set()
    tell("compiling ...")
    figures = [exact.measure(project, side.package, rungs) for side in (base, head)]
    report.differences = exact.differences(*figures)
    pairs = [(figures[0].values[series], value) for series, value in figures[1].values.items()]
    report.compared = sum(not any(isinstance(value, str) or math.isnan(value) for value in both) for both in pairs)
    if report.failures:
        return
    if differ:
        timed = differ.launched + _recompiled(report, differ, figures)
        changed = timed if differ.shared else differ.rungs
        choice = choose(project, cells_of(project, timed, report.only), rungs, changed)
        names = {cell.name for cell in choice.cells}
        report.notes += [f"no suite here times {rung}" for rung in timed if rung not in names]
    report.alike = not (choice and choice.cells) and (differ is not None or not rungs)
    if choice and choice.cells:
        report.comparison = Comparison(project, base, head, choice.cells, choice.controls, within)
        report.comparison.run(budget_s, tell)


def _recompiled(report: Report, changed: Changes, figures: list[exact.Figures]) -> list[str]:
    """Of the rungs of which only the source changed, those whose binary changed or that do not compile. Adds a note
    about the others."""
    project, sides = report.project, [report.base.package, report.head.package]
    cpu = [binaries_of_cpu(project, package, changed.compiled) for package in sides]
    differ: list[str] = []
    alike: list[str] = []
    for rung in changed.compiled:
        binaries = [of_cpu.get(rung) or of.binaries.get(rung) for of_cpu, of in zip(cpu, figures, strict=True)]
        known = binaries[0] is not None and binaries[0] == binaries[1]
        # The source of a rung that is not compiled is unchanged, or else the rung would be in `launched`.
        untouched = not _is_compiled(report, rung) and bool(changed.shared) and not known
        if known or untouched:
            alike.append(rung)
        else:
            differ.append(rung)
    if changed.shared:
        files = ", ".join(changed.shared)
        report.notes.append(f"all rungs depend on {files}, which differs: --all also times rungs with the same binary")
    elif alike:
        report.notes.append(f"the source differs, the binary is the same: {', '.join(alike)}")
    return differ


def _is_compiled(report: Report, rung: str) -> bool:
    op, _, name = rung.partition("/")
    source = report.project.op(op).rung(name).source
    return source is not None and source.suffix != ".py"
