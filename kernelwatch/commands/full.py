"""A full run: pass the gate, measure all of some commits with asv, and publish their history.

At its end a run confirms what is new on the Regressions page: the commits on both sides of an event take turns, as with
the command versus. A change that less than half of is left was a disturbed run, whose commits are measured again.

Exit code of a run: 0; 1 if a regression is new, and not refuted, accepted or fixed; 2 if a cell or a suite failed, or
if nothing could be judged since the earlier commits were measured under other conditions.
"""

import argparse
import json
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kernelwatch.asv import running
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.commands.confirming import (
    ROUNDS,
    Events,
    again_arguments,
    confirm_new,
    disturbed,
    untried,
)
from kernelwatch.commands.gate import gate
from kernelwatch.commands.phases import Phases
from kernelwatch.commands.publishing import QUICK, check_plugin, configuration, have_results, publish
from kernelwatch.commands.shown import (
    alone,
    code_of,
    has_figures,
    show_damaged,
    show_events,
    show_evidence,
    show_expected,
    show_failures,
    show_newest,
    show_unread,
    verdict,
)
from kernelwatch.commands.watching import run_asv
from kernelwatch.comparison.confirm import Flag
from kernelwatch.plan import project as plan_project
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import selected, unmatched
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import check_range, git, resolve
from kernelwatch.system.git import commits as commits_of

if TYPE_CHECKING:
    from kernelwatch.extras.fleet.dispatch import Fleet


def measuring_order(commits: list[str]) -> list[str]:
    """Commits (the oldest first) in an order that soon shows where something changed: the oldest, the newest, then
    always the middle of a widest gap that is left."""
    order = list(dict.fromkeys([*commits[:1], *commits[-1:]]))
    gaps = deque([(0, len(commits) - 1)])
    while gaps:
        low, high = gaps.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            order.append(commits[middle])
            gaps.extend([(low, middle), (middle, high)])
    return order


class Here:
    """Measures on this machine, as a fleet does on others."""

    def __init__(self) -> None:
        self.machines = [machine_name()]
        self.measure = run_asv


@contextmanager
def measuring(project: Project, arguments: argparse.Namespace, console: Console) -> "Iterator[Here | Fleet]":
    """What measures the commits: this machine, or a cluster. Raises: UserError."""
    if not arguments.cluster:
        yield Here()
        return
    with fleet(project, arguments.cluster, console) as workers:
        yield workers


def fleet(project: Project, address: str, console: Console) -> "Fleet":
    """The workers of a cluster. Raises: UserError."""
    try:
        from kernelwatch.extras.fleet.dispatch import Fleet  # Dask is needed for nothing else
    except ModuleNotFoundError as error:
        raise UserError(f"--cluster needs Dask ({error}); install kernelwatch[fleet]") from None
    return Fleet(project, address, console)


def results_folder(project: Project, quick: bool) -> Path:
    """The folder for the results of a run."""
    return project.root / QUICK["results_dir"] if quick else project.results


def run(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Measure and publish, as the only run in the results folder; a quick look also keeps away from a recording run.
    Raises: UserError."""
    check_described(project)
    check_plugin(project.configuration)
    results = results_folder(project, arguments.quick)
    commits = _asked(project, arguments)  # before any file is written
    admitted = {project.results: running.not_beside} if arguments.quick else {}
    with ExitStack() as held:
        for folder, admit in {**admitted, results: running.alone}.items():
            held.enter_context(admit(folder))
        measurer = held.enter_context(measuring(project, arguments, console))
        return run_full(project, arguments, commits, results, console, measurer)


def commits_in(project: Project, range: str, changed: Sequence[str] = ()) -> list[str]:
    """The commits of a range as git tells them, the newest first. Raises: UserError if there are none."""
    resolve(project.root, "HEAD")  # in a repository without a commit, no range is wrong
    found = commits_of(project.root, range, changed)
    check_range(range, found, partial(resolve, project.root))
    return found


def _asked(project: Project, arguments: argparse.Namespace) -> list[str]:
    """The commits to measure, the newest first. Raises: UserError if there are none, or no cells."""
    commits = commits_in(project, arguments.range, project.pathspecs() if arguments.changed else ())
    if not _cells(project, arguments.quick, selected(arguments)):
        raise UserError(unmatched(arguments, _cells(project, arguments.quick)))
    return commits


def check_described(project: Project) -> None:
    """Raises: UserError if there is no package to measure, or if the description has no cell of it."""
    project.check()
    plan_project.check_described(project, _cells(project))


def note_uncommitted(project: Project, console: Console) -> None:
    """Say that changes that are not committed are not measured, if there are any."""
    if changed := git(project.root, "status", "--porcelain", "--", *project.pathspecs()).splitlines():
        console.print(
            f"note: uncommitted changes are not measured, such as of {changed[0][3:]} (--worktree measures them)",
            style="yellow",
        )


def _cells(project: Project, quick: bool = False, only: str = "") -> list[Cell]:
    return [
        cell
        for problem in project.problems
        for device in project.timed
        for cell in plan(problem, device.name, quick=quick, only=only)
    ]


def run_full(
    project: Project,
    arguments: argparse.Namespace,
    commits: list[str],
    results: Path,
    console: Console,
    measurer: "Here | Fleet",
) -> int:
    root, here = project.root, isinstance(measurer, Here)
    note_uncommitted(project, console)
    phases = Phases(root / ".asv" / "durations.json", "quick" if arguments.quick else "")
    for folder in [results / machine for machine in measurer.machines] if here else results.glob("*/"):
        for message in running.set_aside_broken(folder):
            console.print(f"note: {message}", style="yellow", markup=False)
    known = []
    if here and not (arguments.again or arguments.quick):
        known = have_results(results / measurer.machines[0], commits)
    parts = {"gate": int(not arguments.no_gate), "measuring": len(commits) - len(known), "publishing": 1}
    if expected := phases.expected({name: count for name, count in parts.items() if count}):
        console.print(f"expected from the last time here: {expected}")
    if not arguments.no_gate:
        with phases.phase("gate"):
            gate(project, console)
    if arguments.quick:  # remove the results of an earlier quick look
        shutil.rmtree(root / ".asv" / "quick" / "results", ignore_errors=True)
    with configuration(project, arguments.quick) as conf:
        if known:
            console.print(
                f"{len(known)} of {len(commits)} commits have results: only their missing or failed series are "
                "measured (--again measures all)"
            )
        with phases.phase("measuring", parts["measuring"]):
            code = measurer.measure(project, conf, measuring_order(commits[::-1]), len(known), arguments, console)
        console.print(
            f"{len(commits) - len(known)} new of {len(commits)} commits in {phases.taken_s['measuring']:.0f} s"
        )
        with phases.phase("publishing"):
            page = publish(project, conf, console)
        news = [Events(page.parent / "data" / "events.json", commits, machine) for machine in measurer.machines]
        if here and not (arguments.no_confirm or arguments.quick):
            with phases.phase("confirming"):
                _confirm(project, conf, news[0], results, arguments, console)
    for new in news:
        show_newest(project, results, commits, console, new.machine, new.now())
        show_events(new.now(), console)
    show_expected(list({json.dumps(each): each for new in news for each in new.expected()}.values()), console)
    show_damaged([new.damaged() for new in news], console)
    show_unread((text for new in news for text in new.unread()), console)
    events = [event for new in news for event in new.now()]
    evidence = [told for new in news for told in new.evidence()]
    judged = sum(told["judged"] for told in evidence)
    if not arguments.quick:  # a first look has nothing to compare with
        failures = [told for new in news for told in new.failures()]
        show_failures(failures, console)
        console.print(f"verdict: {verdict(code, events, failures, judged)}", soft_wrap=True)
        show_evidence(evidence, console)
        if not judged and alone(evidence):
            code = code or 2  # there is a history, and nothing of it could be compared
    if not has_figures(results, measurer.machines, commits, evidence):
        console.print("no cell gave a figure", style="yellow", soft_wrap=True)
        code = code or 2
    console.print(f"took {phases.taken()}", soft_wrap=True)
    console.print(f"pages: {page.as_uri()}", soft_wrap=True)
    return code or code_of(events)


def _confirm(
    project: Project, conf: Path, new: Events, results: Path, arguments: argparse.Namespace, console: Console
) -> None:
    """Confirm the new events, and measure again the runs that were disturbed, since a comparison refuted what they
    show. That may show further events, which a few more rounds confirm."""
    end = time.monotonic() + arguments.confirm_budget
    measured: set[tuple[str, str]] = set()  # suites, commit
    compared: set[Flag] = set()
    for _ in range(ROUNDS):
        flags = [flag for flag in untried(new.now(), new.machine) if flag not in compared]
        if flags:
            confirm_new(project, flags, results / new.machine, end - time.monotonic(), console)
            compared.update(flags)
            publish(project, conf, console)  # the pages show the verdicts
        again = [
            (item.suites, [commit for commit in item.commits if (item.suites, commit) not in measured])
            for item in disturbed(new.now(), results / "benchmarks.json")
        ]
        again = [(suites, commits) for suites, commits in again if commits]
        for suites, commits in again:
            console.print(f"disturbed runs: {len(commits)} commits are measured again", style="yellow")
            run_asv(project, conf, commits, 0, again_arguments(arguments, suites), console)
            measured.update((suites, commit) for commit in commits)
        if again:
            publish(project, conf, console)
        if not (flags or again):
            return
