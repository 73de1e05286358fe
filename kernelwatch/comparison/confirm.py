"""Confirm flagged changes where they were measured: the commits on both sides take turns.

A disturbed run and a step look alike in a history, and only measuring again can tell them apart. A change is refuted if
its interval lies within half of what was flagged. It is confirmed if the interval lies beyond that, or beyond the floor
of a comparison: a smaller change than the flagged one is a change, too.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernelwatch.comparison.changes import changes
from kernelwatch.comparison.choice import choose
from kernelwatch.comparison.paired import Comparison, Judged, Side
from kernelwatch.history.confirmations import Confirmation, Word
from kernelwatch.plan.build import tree_of_commit
from kernelwatch.plan.cells import timed
from kernelwatch.plan.project import Project

LEAST_SHARE = 0.5  # of the flagged change, in logarithms: if the interval lies below it, the change is refuted


@dataclass(frozen=True)
class Flag:
    """A flagged change of a cell between two commits; `change`: of the seconds, relative."""

    cell: str
    before: str
    after: str
    change: float


def confirm(
    project: Project, flags: Sequence[Flag], budget_s: float, tell: Callable[[str], None] = lambda _: None
) -> list[Confirmation]:
    """The verdicts on flags between the same two commits. Raises: UserError if a commit cannot be exported."""
    every = {cell.key: cell for cell in timed(project)}
    known = [flag for flag in flags if flag.cell in every]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    why = "no suite here times it"
    gone = [
        Confirmation(flag.cell, flag.before, flag.after, "not tried", flag.change, why=why, at=at)
        for flag in flags
        if flag.cell not in every
    ]
    if not known:
        return gone
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        old, new = (
            Side(sha[:8], tree_of_commit(project, sha, Path(folder, sha))) for sha in (known[0].before, known[0].after)
        )
        cells = [every[flag.cell] for flag in known]
        differ = changes(project, old.tree, new.tree).rungs
        choice = choose(project, cells, set(), differ)
        within = {flag.cell: math.expm1(LEAST_SHARE * abs(math.log1p(flag.change))) for flag in known}
        comparison = Comparison(project, old, new, choice.cells, choice.controls, within, differ)
        comparison.run(budget_s, tell)
    return gone + [_verdict(flag, comparison, at) for flag in known]


def _verdict(flag: Flag, comparison: Comparison, at: str) -> Confirmation:
    """The verdict on a flag from the comparison of its commits."""
    judged = comparison.verdict(flag.cell)
    word, why = _word(flag, judged)
    figures = (judged.change, *judged.bounds)
    change, low, high = figures if all(map(math.isfinite, figures)) else (None, None, None)
    logs = tuple(comparison.pairs[flag.cell].logs().values())
    return Confirmation(
        flag.cell, flag.before, flag.after, word, flag.change, change, low, high, comparison.turns, why, at, logs
    )


def _word(flag: Flag, judged: Judged) -> tuple[Word, str]:
    """The verdict on a flag, and the reason if there is one."""
    match judged.word:
        case "worse" | "better":
            same = (judged.word == "worse") == (flag.change > 0)
            return ("confirmed", judged.why) if same else ("refuted", "it changed in the other direction")
        case "no change":
            return "refuted", judged.why
        case "cannot tell":
            return "not decided", judged.why
        case _:
            return "not tried", judged.why or judged.word
