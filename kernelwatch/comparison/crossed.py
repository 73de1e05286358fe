"""Split a step that has both another commit and another environment: which part is whose.

Two commits and two Python environments are the corners of a square. Each of its four edges is a comparison in turns:
the commits in either environment, and the environments on either commit. So what a commit does only in one of the
environments is seen, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelwatch.comparison import environments
from kernelwatch.comparison.changes import changes
from kernelwatch.comparison.choice import Choice
from kernelwatch.comparison.consents import Consents
from kernelwatch.comparison.exact import Figures
from kernelwatch.comparison.paired import Judged
from kernelwatch.comparison.verdict import Report, compare_environments
from kernelwatch.plan.interpreters import Interpreter
from kernelwatch.plan.project import Project

MOVED = ("worse", "better", "failed", "repaired", "gone", "new", "accepted")


@dataclass
class Crossed:
    """The four comparisons, by the words that name them: the commit in A and in B, the environment on BASE and on
    HEAD. `what`: all four sides in one line."""

    what: str
    edges: dict[str, Report]
    whole: bool = False  # it was not interrupted

    @property
    def code(self) -> int:
        """The exit code: 2 if something fails, else 1 if something is worse, else 2 if something cannot be told."""
        codes = [report.code for report in self.edges.values()]
        if any(report.failures for report in self.edges.values()):
            return 2
        return 1 if 1 in codes else max(codes)

    def verdicts(self) -> dict[str, list[Judged | None]]:
        """By cell, the verdict of each edge; None where a commit launches the same on both sides."""
        found: dict[str, list[Judged | None]] = {}
        for at, report in enumerate(self.edges.values()):
            for pairs, judged in report.judged():
                found.setdefault(pairs.cell.key, [None] * len(self.edges))[at] = judged
        return found


def blame(verdicts: Sequence[Judged | None]) -> str:
    """Whose a change is, in words. `verdicts`: of the commit in A and in B, of the environment on BASE and on HEAD."""
    words = [judged.word if judged else "no change" for judged in verdicts]
    parts = []
    for who, (one, other), (here, there) in (
        ("the commit", words[:2], ("in A", "in B")),
        ("the environment", words[2:], ("on BASE", "on HEAD")),
    ):
        if one == other and one in MOVED:
            parts.append(who)
        elif one in MOVED and other in MOVED:
            parts.append(f"{who} ({one} {here}, {other} {there})")
        elif one in MOVED or other in MOVED:
            place = here if one in MOVED else there
            doubtful = other if one in MOVED else one
            parts.append(f"{who} {place}{'' if doubtful == 'no change' else ', elsewhere undecided'}")
    if parts:
        return " and ".join(parts)
    return "cannot tell" if "cannot tell" in words else "neither"


def edges(
    project: Project, both: Sequence[Interpreter], commits: Sequence[str], folder: Path, consents: Consents,
    exact_only: bool,
) -> dict[str, Report]:  # fmt: skip
    """The four comparisons, not filled yet. Raises: UserError."""
    corners = [
        environments.sides(project, both, commit, folder / name)
        for name, commit in zip(("BASE", "HEAD"), commits, strict=True)
    ]
    found = {}
    for at, name in enumerate(environments.NAMES):
        base, head = (replace(corner[at], name=side) for corner, side in zip(corners, ("BASE", "HEAD"), strict=True))
        what = f"the commit in {name}"
        found[what] = Report(project, base, head, f"{what}: BASE and HEAD", exact_only=exact_only, consents=consents)
    for corner, name in zip(corners, ("BASE", "HEAD"), strict=True):
        what = f"the environment on {name}"
        found[what] = Report(project, *corner, f"{what}: A and B", exact_only=exact_only)
    return found


def compare(
    crossed: Crossed, choice: Choice, budget_s: float, within: float | None, tell: Callable[[str], None]
) -> None:
    """Fill the reports. `budget_s`: for each of them. What both commits certainly launch alike is not timed between
    them, and the exact figures of a corner are taken once. Raises: UserError."""
    figures: dict[tuple[str, str], Figures] = {}
    for what, report in crossed.edges.items():
        own = choice
        if report.base.python == report.head.python:
            differ = changes(report.project, report.base.tree, report.head.tree)
            report.broken = differ.broken
            same = differ.same - set(differ.rebuilt)  # those were compiled by this environment, not by the measured one
            own = replace(choice, cells=[cell for cell in choice.cells if cell.name not in same])
            report.same = len({cell.name for cell in choice.cells} & same)

        def tell_edge(text: str, what: str = what) -> None:
            tell(f"{what}: {text}")

        compare_environments(report, own, budget_s, within, tell_edge, figures)
        report.whole = True
