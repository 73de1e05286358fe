"""Measure what commits change, and publish it. The first time on a machine, and with --all, measure everything.

Of each commit the launches that differ from its parent's are measured on both sides in turns, as the command link does
(docs/links.md). A machine without a record of the project makes a full run of the newest commit first, since ratios
alone give no GB/s. --worktree compares the dirty tree with HEAD, and saves nothing.

Exit code: 0; 1 if a launch became slower, or a full run shows a new regression, and it is not refuted, accepted or
fixed; 2 if a cell or a suite failed, could not be measured, or is not decided, or if a full run has no figure, or none
that can be compared with those of earlier commits, which were measured under other conditions. The full runs of the
first commits, whose history is too short to be judged, end with 0 and say so.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from rich.console import Console

from kernelwatch.asv import running
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.commands import full, link, publishing, versus
from kernelwatch.commands.confirming import BUDGET_S
from kernelwatch.comparison.changes import Changes
from kernelwatch.comparison.choice import Choice, by_pattern, cells_of, choose, main_types
from kernelwatch.comparison.paired import Side
from kernelwatch.comparison.verdict import Report, compare
from kernelwatch.plan import beside
from kernelwatch.plan.build import tree_of_checkout, tree_of_commit
from kernelwatch.plan.cells import timed
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import (
    Output,
    Parser,
    add_selection,
    regular_expression,
    selected,
    stop_on_signals,
    unmatched,
)
from kernelwatch.system import lifeline
from kernelwatch.system.errors import UserError

WORKTREE_BUDGET_S = 60.0


def run(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Measure what the commits of a range change, after a full run of the newest one if this machine has no record; the
    exit code. Raises: UserError."""
    full.check_described(project)
    publishing.check_plugin(project.configuration)
    newest = full.commits_in(project, arguments.range)[0]
    code, machine = 0, machine_name()
    with running.alone(project.results):
        if arguments.cluster:
            with full.fleet(project, arguments.cluster, console) as fleet:
                return link.run(project, link.defaults(arguments.range), console, fleet)
        if publishing.has_record(project.results / machine):
            full.note_uncommitted(project, console)
        else:
            console.print(
                f"no full run on {machine} yet: one of {newest[:8]} comes first", highlight=False, soft_wrap=True
            )
            alone = argparse.Namespace(**vars(arguments) | {"range": f"{newest}^!"})
            code = full.run(project, alone, console)
        return max(code, link.run(project, link.defaults(arguments.range), console))


def worktree(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Compare the dirty tree with HEAD as the command versus compares commits; the exit code. Nothing is saved."""
    full.check_described(project)
    names = {name: name.partition("/") for name in project.rungs()}
    if arguments.worktree and arguments.worktree not in names:
        raise UserError(f"no rung {arguments.worktree}; the ladder has {', '.join(names)}")
    only, every = selected(arguments), {name: project.op(op).rung(rung).types for name, (op, _, rung) in names.items()}
    if not cells_of(project, every, only):
        # It refuses what matches no figure either.
        by_pattern(project, only, (), unmatched(arguments, timed(project)))
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        head = Side("HEAD", tree_of_commit(project, "HEAD", Path(folder, "HEAD")))
        tree = Side("tree", tree_of_checkout(project, Path(folder, "tree")))

        def choose_from(differ: Changes) -> Choice | None:
            if not arguments.worktree:
                return None
            rungs = main_types(project, [arguments.worktree])
            cells = cells_of(
                project, rungs | {rung: differ.types[rung] for rung in rungs if rung in differ.types}, only
            )
            return choose(project, cells, {arguments.worktree}, differ.rungs)

        report = Report(project, head, tree, "the dirty tree against HEAD", only, arguments.exact, arguments.details)
        report.notes += filter(None, [beside.note(project.here.parent)])
        return versus.finish(report, partial(compare, report, choose_from, WORKTREE_BUDGET_S, None), console)


def parsed(prog: str, arguments: list[str] | None = None) -> argparse.Namespace:
    """The arguments of a call. Each option of a full run implies `all`."""
    parser = Parser(prog, __doc__)
    parser.add_argument(
        "range", nargs="?", default="HEAD^!", help="a range of commits as in git, such as A..B (default: HEAD alone)"
    )
    parser.add_argument(
        "--cluster",
        default="",
        metavar="ADDRESS",
        help="measure on the workers of this Dask scheduler; local: on all GPUs of this machine (docs/fleet.md)",
    )
    whole = parser.add_argument_group("full runs", "Each of these options makes a full run: it implies --all.")
    whole.add_argument(
        "--all", action="store_true", help="measure all cells of each commit, for absolute and exact figures"
    )
    whole.add_argument(
        "--quick", action="store_true", help="a first look: few cells and processes, results kept out of the history"
    )
    whole.add_argument(
        "--bench",
        action="append",
        type=regular_expression,
        default=[],
        metavar="REGEX",
        help="only some suites, as asv's --bench",
    )
    whole.add_argument("--again", action="store_true", help="measure again what already has results")
    whole.add_argument(
        "--changed",
        action="store_true",
        help="only the commits of the range that change more than documents and the description, and the newest one",
    )
    whole.add_argument("--no-gate", action="store_true", help="skip the gate")
    whole.add_argument(
        "--no-confirm", action="store_true", help="do not compare the commits of new events in turns at the end"
    )
    whole.add_argument(
        "--confirm-budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"time limit for confirming all new events (default: {BUDGET_S:g})",
    )
    dirty = parser.add_argument_group("the dirty tree")
    dirty.add_argument(
        "--worktree",
        nargs="?",
        const="",
        metavar="OP/RUNG",
        help="compare the dirty tree with HEAD, without saving: the rungs that differ, or this one",
    )
    dirty.add_argument(
        "--exact", action="store_true", help="with --worktree: time nothing, judge by the exact figures alone"
    )
    dirty.add_argument(
        "--details", action="store_true", help="with --worktree: show each figure of new rungs, however many there are"
    )
    add_selection(parser, "only some cells, with --quick or --worktree")
    found = parser.parse_args(arguments)
    if found.changed and found.range == parser.get_default("range"):
        parser.error("--changed chooses among the commits of a range: name one, as A..B")
    if found.exact and found.worktree is None:
        parser.error(
            "--exact needs --worktree; a run measures what --bench chooses, such as --bench '^(static|access)'"
        )
    if found.details and found.worktree is None:
        parser.error("--details needs --worktree: it is about the table of new rungs")
    if found.cluster and (found.quick or found.worktree is not None):
        parser.error("--cluster measures commits for the history: without --quick and --worktree")
    if selected(found) and not found.quick and found.worktree is None:
        parser.error(
            "some cells only would leave holes in the results: choose cells together with --quick or --worktree, or "
            "with the command link"
        )
    found.all = any(getattr(found, each.dest) != each.default for each in whole._group_actions)
    return found


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    asked = parsed(prog, arguments)
    console = Output()
    stop_on_signals()
    try:
        with lifeline.tied():
            if asked.worktree is not None:
                return worktree(project, asked, console)
            return full.run(project, asked, console) if asked.all else run(project, asked, console)
    except KeyboardInterrupt:
        kept = running.GOES_ON
        if asked.worktree is not None or asked.quick:
            kept = "nothing was saved"
        console.print(f"interrupted; {kept}{' (without --again)' if asked.again else ''}")
        return 130
