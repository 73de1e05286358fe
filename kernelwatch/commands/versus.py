"""Compare two commits (worse, better, no change, cannot tell), or two Python environments on one commit; split a step
between a commit and an environment; or find the commit, or the package, that caused a change.

Exit code: 0, no change or better; 1, worse; 2, undecided, or a cell of HEAD fails; 130, interrupted. A rung that is
launched differently is undecided if it cannot be timed here, unless --exact leaves time out of account and its exact
figures were compared. A rung, type or figure that is gone is undecided, and so is a new rung that ran nowhere. What is
worse as a commit between BASE and HEAD announces (Perf-Expected), or as someone accepted it on this machine
(kernelwatch accept), is told and is not worse.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from kernelwatch.asv.machine_names import machine_name
from kernelwatch.comparison import bisect, consents, crossed, packages
from kernelwatch.comparison import environments as two
from kernelwatch.comparison.changes import Changes
from kernelwatch.comparison.choice import Choice, by_pattern, choose
from kernelwatch.comparison.paired import LOOKS, Side
from kernelwatch.comparison.verdict import Report, compare, compare_environments
from kernelwatch.plan import beside, interpreters
from kernelwatch.plan.build import tree_of_commit
from kernelwatch.plan.cells import timed
from kernelwatch.plan.project import Project
from kernelwatch.report import comparison as report_text
from kernelwatch.report import crossed as crossed_text
from kernelwatch.report import documents
from kernelwatch.report.arguments import Output, Parser, add_selection, selected, stop_on_signals, unmatched
from kernelwatch.system.files import write_whole
from kernelwatch.system.git import resolve
from kernelwatch.system.waiting import status

if TYPE_CHECKING:
    from kernelwatch.comparison import benchmarks

BUDGET_S = 300.0


def versus(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Compare two commits and print the report."""
    project.check()
    names, shas = arguments.commits, [resolve(project.root, name) for name in arguments.commits]
    only = selected(arguments)
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        base, head = (
            Side(side, tree_of_commit(project, sha, Path(folder, side)))
            for side, sha in zip(("BASE", "HEAD"), shas, strict=True)
        )
        what = f"BASE = {names[0]} ({shas[0][:8]}), HEAD = {names[1]} ({shas[1][:8]})"
        machine = machine_name()
        said = consents.between(project, machine, *shas)
        report = Report(project, base, head, what, exact_only=arguments.exact, details=arguments.details, consents=said)
        report.notes += filter(None, [beside.note(project.here.parent)])
        if shas[0] == shas[1]:
            report.notes.append("both are one commit; HEAD~1 is the one before, --worktree of bench measures edits")

        def choose_from(differ: Changes) -> Choice | None:
            if arguments.all:
                return choose(project, timed(project), set(project.rungs()), differ.rungs)
            return by_pattern(project, only, differ.rungs, unmatched(arguments, timed(project))) if only else None

        began: dict[int, float] = {}  # by the turns before it, when a turn began

        def work(tell: Callable[[str], None]) -> None:
            def noted(text: str) -> None:
                if report.comparison:
                    began.setdefault(report.comparison.turns, time.monotonic())
                tell(text)

            compare(report, choose_from, arguments.budget, arguments.within, noted)

        code = finish(report, work, console, arguments.markdown, arguments.comment, quiet=arguments.json)
        if arguments.json:
            both = (names[0], names[1]), (shas[0], shas[1])
            print(json.dumps(documents.versus(report, *both, machine, code, _turn_s(began))))
        return code


def _turn_s(began: Mapping[int, float]) -> float | None:
    """What a turn took, from when each began; None if there are not two."""
    first, last = min(began, default=0), max(began, default=0)
    return (began[last] - began[first]) / (last - first) if last > first else None


def environments(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Measure one commit, or the working tree, in two environments, or two commits in both; print the report."""
    project.check()
    names, shas = arguments.commits, [resolve(project.root, name) for name in arguments.commits]
    with status(console, "making the environments ...") as tell:
        both = [interpreters.interpreter(text, tell) for text in arguments.env]
    choice = _in_environments(project, arguments)
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        if len(shas) == 2:
            return _crossed(project, arguments, both, shas, choice, Path(folder), console)
        sha = shas[0] if shas else ""
        base, head = two.sides(project, both, sha, Path(folder))
        what = two.words(both, f"{names[0]} ({sha[:8]})" if sha else "the working tree")
        report = Report(project, base, head, what, exact_only=arguments.exact)
        if differ := interpreters.differences(*both):
            report.notes.append(f"packages: {two.packages_text(differ)}")

        work = partial(compare_environments, report, choice, arguments.budget, arguments.within)
        return finish(report, work, console, arguments.markdown, arguments.comment)


def _in_environments(project: Project, arguments: argparse.Namespace) -> Choice:
    """The cells that environments measure: all, or those that are chosen."""
    cells, only = timed(project), selected(arguments)
    if not only:
        return Choice(cells, {}, set(project.rungs()))
    choice = by_pattern(project, only, project.rungs(), unmatched(arguments, cells))
    return replace(choice, cells=[cell for cell in cells if re.search(only, cell.key)])


def _crossed(
    project: Project, arguments: argparse.Namespace, both: list[interpreters.Interpreter], shas: list[str],
    choice: Choice, folder: Path, console: Console,
) -> int:  # fmt: skip
    """Measure two commits in two environments, and print whose each change is."""
    said = consents.between(project, machine_name(), *shas)
    edges = crossed.edges(project, both, shas, folder, said, arguments.exact)
    commits = ", ".join(
        f"{side} = {name} ({sha[:8]})"
        for side, name, sha in zip(("BASE", "HEAD"), arguments.commits, shas, strict=True)
    )
    report = crossed.Crossed(two.words(both, commits), edges)
    work = partial(crossed.compare, report, choice, arguments.budget, arguments.within)
    return finish(report, work, console, arguments.markdown, arguments.comment, texts=crossed_text)


def finish(
    report: "Report | benchmarks.Report | crossed.Crossed",
    work: Callable[[Callable[[str], None]], None],
    console: Console,
    as_markdown: bool = False,
    comment: Path | None = None,
    *,
    quiet: bool = False,
    texts: ModuleType = report_text,
) -> int:
    """Fill a report by `work`, print it even after an interrupt, and return the exit code. `comment`: a file to which
    it is written as data, too; `quiet`: print no report; `texts`: the module that knows the report's texts."""
    interrupted = False
    try:
        with status(console, "compiling ...") as tell:
            work(tell)
        report.whole = True
    except KeyboardInterrupt:
        interrupted = True
    if comment:
        write_whole(comment, json.dumps(texts.document(report)))
    if quiet:
        pass
    elif as_markdown:
        print(report_text.as_markdown(texts.document(report)))
    else:
        texts.show(report, console)
    if interrupted:
        console.print("interrupted: that is what was known by then; nothing was saved")
    return 130 if interrupted else report.code


def _find(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Find the commit, or the package, that caused a change."""
    budget_s, within = arguments.budget, arguments.within
    if not arguments.env:
        return bisect.find(project, arguments.find, arguments.commits[0], budget_s, within, console)
    project.check()
    commit = resolve(project.root, arguments.commits[0]) if arguments.commits else ""
    return packages.find(project, arguments.find, arguments.env, commit, budget_s, within, console)


def within_of(text: str) -> float:
    """A share, from a text in percent."""
    value = float(text.removesuffix("%"))
    if not 0 < value < 100:
        raise ValueError(text)
    return value / 100


def add_output(parser: Parser) -> None:
    """Add the options that say which changes are none, and how the report is written."""
    parser.add_argument(
        "--within",
        type=within_of,
        metavar="PER_CENT",
        help='changes certainly smaller than this are "no change" (default: 1 on a GPU, 2 on a CPU)',
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for the summary of a job")
    parser.add_argument(
        "--comment",
        type=Path,
        metavar="FILE",
        help="write the report as data (JSON) too, of which kernelwatch-comment.yml makes a comment on a pull request",
    )


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument(
        "commits",
        nargs="*",
        metavar="COMMIT",
        help="BASE and HEAD; with --find a range GOOD..BAD; with --env one commit, by default the working tree, or "
        "BASE and HEAD to split what changed between the commit and the environment",
    )
    add_selection(parser, "these cells (default: those of the rungs whose binary or launch changed)")
    parser.add_argument("--all", action="store_true", help="compare every cell")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="time nothing, and judge by compile-time figures and counted accesses alone",
    )
    parser.add_argument("--details", action="store_true", help="show each figure of new rungs, however many there are")
    parser.add_argument(
        "--env",
        nargs=2,
        metavar=("A", "B"),
        help="compare two Python environments on one commit: each an interpreter, the folder of a virtual environment, "
        "or a file of requirements",
    )
    parser.add_argument(
        "--find",
        metavar="CELL",
        help="find the commit of GOOD..BAD that changed this cell or exact series to what it is in BAD; with --env, "
        "the package and its version that changed it to what it is in B",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"time limit; the first {LOOKS[0]} turns are always taken; with --find, or with two commits and --env, "
        f"for each comparison (default: {BUDGET_S:g})",
    )
    add_output(parser)
    parser.add_argument("--json", action="store_true", help="print data, as kernelwatch/schemas/versus.json describes")
    parsed = parser.parse_args(arguments)
    if sum((bool(selected(parsed)), parsed.all, bool(parsed.find))) > 1:
        parser.error("give one of a selection of cells, --all and --find")
    if parsed.env and (parsed.all or len(parsed.commits) > (1 if parsed.find else 2)):
        parser.error(
            "--env takes two commits at most, with --find one, and not --all: it compares all cells by default"
        )
    if parsed.find and parsed.comment:
        parser.error("--find compares several commits, and --comment is the report on two")
    if parsed.json and (parsed.find or parsed.env or parsed.markdown):
        parser.error("--json is the report on two commits, and takes the place of --markdown")
    if parsed.find and parsed.exact:
        parser.error("--find takes the name of a cell or of an exact series, which says what is compared")
    wanted = 1 if parsed.find else 2
    if parsed.env:
        pass
    elif len(parsed.commits) != wanted or (parsed.find and ".." not in parsed.commits[0]):
        parser.error("--find takes one range, GOOD..BAD" if parsed.find else "give two commits, BASE and HEAD")
    console = Output(stderr=parsed.markdown or parsed.json)
    stop_on_signals()
    if parsed.find:
        try:
            return _find(project, parsed, console)
        except KeyboardInterrupt:
            console.print("interrupted; what was tried by then is above")
            return 130
    return environments(project, parsed, console) if parsed.env else versus(project, parsed, console)
