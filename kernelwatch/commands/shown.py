"""What a command says of what was published: events, what is judged and why not, the newest ladder, the exit code."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelwatch.commands.confirming import Event
from kernelwatch.detect.evidence import ABSENT, TURNED
from kernelwatch.history import records
from kernelwatch.plan.project import Project
from kernelwatch.report import terminal
from kernelwatch.report.texts import size_text
from kernelwatch.system.git import git


def code_of(events: Iterable[Event]) -> int:
    """1 if an event is an open regression, else 0."""
    return int(any(event["open"] for event in events))


def show_events(events: Iterable[Event], console: Console) -> None:
    """Print events of the Regressions page, one per line, as the page tells them."""
    for event in events:
        kind = "disturbed run" if event["state"] == "refuted" else f"{event['kind']}, {event['words']}"
        # A cell that no full run of this line of commits measured has no benchmark.
        names = (change["benchmark"] or change["cell"].partition(" ")[0] for change in event["changes"])
        series = ", ".join(dict.fromkeys(names))
        where = f"{event['last']['hash'][:8]} ({event['last']['subject']})"
        size = f"{'up to ' if len(event['changes']) > 1 else ''}{size_text(event['size'])}"
        reason = f"; {event['decision']['reason']}" if event["decision"] else ""
        text = f"{kind} at {where}: {len(event['changes'])} series of {series}, {size}{reason}"
        style = "red" if event["open"] else "green" if event["kind"] == "improvement" else "yellow"
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_damaged(told: Iterable[str], console: Console) -> None:
    """Print why the decisions cannot be read, if so. `told`: as in events.json, once for each machine."""
    for text in dict.fromkeys(filter(None, told)):
        console.print(f"{text}; no regression counts as accepted", style="red", markup=False, soft_wrap=True)


def show_unread(told: Iterable[str], console: Console) -> None:
    """Print which files of the results are not judged. `told`: as in events.json, once for each machine."""
    for text in dict.fromkeys(told):
        console.print(f"note: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def show_expected(expected: Iterable[dict[str, Any]], console: Console) -> None:
    """Print what became of the changes that commits announced; `expected`: as in events.json."""
    for each in expected:
        text = f"expected at {each['at'][:8]}: {each['text']}; {each['words']}"
        style = {"came": "", "larger": "red"}.get(each["state"], "yellow")
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_failures(failures: list[dict[str, Any]], console: Console) -> None:
    """Print the suites that gave no results, each with the last line that it said and its log."""
    for told in failures:
        log = f"; its output: {told['log']}" if told["log"] else ""
        text = f"suite {told['suite']} failed at {told['commit'][:8]}: {told['reason']}{log}"
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def alone(evidence: list[dict[str, Any]]) -> bool:
    """Whether series were not judged because no earlier commit was measured under the same conditions."""
    return any(why == TURNED for told in evidence for why, _ in told["unjudged"])


def show_evidence(evidence: list[dict[str, Any]], console: Console) -> None:
    """Print how many series were judged at the newest commit of each line, and why others were not."""
    for told in evidence:
        text = (
            f"evidence: {told['judged']} of {told['series']} series judged at {told['newest'][:8]} ({told['branch']})"
        )
        reasons = "; ".join(f"{count} not: {why}" for why, count in told["unjudged"])
        console.print(f"{text}; {reasons}" if reasons else text, markup=False, highlight=False, soft_wrap=True)


def verdict(code: int, events: list[Event], failures: list[dict[str, Any]], judged: int | None = None) -> str:
    """What a run says. `code`: asv's exit code; `events`: those that are new; `failures`: the suites that gave no
    results; `judged`: the number of series that could show a regression, None if it is not known."""
    said = ["some cells failed"] if code and not failures else []
    if failures:
        said = [f"{len(failures)} suite{'s' if len(failures) > 1 else ''} failed"]
    for kind in ("regression", "improvement"):
        own = [event["state"] for event in events if event["kind"] == kind]
        still = [state for state in own if state in ("new", "confirmed")]
        if still:
            sure = f", {still.count('confirmed')} confirmed"
            said.append(f"{len(still)} new {kind}{'s' if len(still) > 1 else ''}{sure}")
        elif kind == "regression":
            said.append("nothing was judged" if judged == 0 else "no new regression")
        said += [f"{own.count(state)} {state}" for state in ("accepted", "fixed") if state in own]
    return "; ".join(said)


def has_figures(
    results: Path, machines: Iterable[str], commits: Iterable[str], evidence: Iterable[dict[str, Any]]
) -> bool:
    """Whether a cell of one of these commits was measured on one of these machines. If no cell was asked for, whether
    one of asv's own benchmarks has a value."""
    short = {commit[:8] for commit in commits}
    paths = [path for machine in machines for path in records.sidecars(results, machine) if path.name[:8] in short]
    if cells := [cell for path in paths for cell in records.read(path).cells.values()]:
        return any(cell.measurements for cell in cells)
    return any(told["series"] > dict(told["unjudged"]).get(ABSENT, 0) for told in evidence)


def show_newest(
    project: Project, results: Path, commits: list[str], console: Console, machine: str, events: Sequence[Event] = ()
) -> None:
    """Print the ladder of the newest of these commits, and its changes since the last earlier commit with results.
    `events`: the new ones, whose sizes are told."""
    order = [sha[:8] for sha in reversed(commits)]  # commits may have one date: history tells which is newer
    paths = [path for path in records.sidecars(results, machine) if path.name[:8] in order]
    paths.sort(key=lambda path: order.index(path.name[:8]))
    if not paths:
        return
    newest = records.read(paths[-1], project.renamed)
    terminal.show(newest, project, console, list(project.ops))
    ancestors = git(project.root, "rev-list", "--first-parent", newest.commit).splitlines()[1:]
    earlier = records.before(paths[-1], ancestors)
    if earlier:
        before = records.read(earlier, project.renamed)
        terminal.show_changes(before, newest, console, _sizes(events, before.commit, newest.commit, machine))


def _sizes(events: Sequence[Event], before: str, after: str, machine: str) -> dict[str, float]:
    """By cell, the sizes of what events say of two neighboring commits on a machine."""
    changes = [change for event in events if event["kind"] != "environment" for change in event["changes"]]
    return {
        change["cell"]: change["size"]
        for change in changes
        if change["cell"] and change["size"] is not None and change["state"] != "refuted"
        if change["place"].get("machine") == machine
        if change["from"].startswith(before) and change["to"].startswith(after)
    }
