"""Confirm the new events of a run: compare the commits on both sides in turns, and measure disturbed runs again."""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from kernelwatch.asv.running import chosen
from kernelwatch.commands.phases import Minutes
from kernelwatch.comparison.confirm import Flag, confirm
from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation
from kernelwatch.plan.project import Project
from kernelwatch.report.texts import change_text, confirmation_text

ROUNDS = 4  # of confirming and measuring again
DECIDED = ("confirmed", "refuted")  # the next run tries again what has another verdict
LATE = 10  # results after a step's own by which it is flagged, or hardly ever
BUDGET_S = 300.0  # for all events of a run; the first look at each is always taken

Event = dict[str, Any]  # as in data/events.json


@dataclass(frozen=True)
class Again:
    """What to measure again: the suites by a regular expression for asv's --bench, and the commits."""

    suites: str
    commits: tuple[str, ...]


class Events:
    """The new events of a run: those at its commits, and those at a few commits before them on the same line of commits
    that no run has tried to confirm yet, since a step shows some commits after its own. Changes of the environment are
    none.

    `page`: the data of the Regressions page, which are read anew for each list; `commits`: those of the run.
    """

    def __init__(self, page: Path, commits: Iterable[str], machine: str) -> None:
        self.page, self.commits, self.machine = page, set(commits), machine
        self.late = {_name(event) for event in self._here() if self._is_late(event)}

    def _published(self) -> dict[str, Any]:
        return dict(json.loads(self.page.read_text(encoding="utf-8")))

    def failures(self) -> list[dict[str, Any]]:
        """The suites that gave no results at the run's commits."""
        return self._of_run("failures", "commit")

    def evidence(self) -> list[dict[str, Any]]:
        """For each line of commits whose newest measured commit is the run's: how many series were judged there."""
        return self._of_run("evidence", "newest")

    def _of_run(self, name: str, commit: str) -> list[dict[str, Any]]:
        every = self._published().get(name, [])
        return [told for told in every if told[commit] in self.commits and told["machine"] == self.machine]

    def expected(self) -> list[dict[str, Any]]:
        """What the run's commits announced, with what became of it."""
        return [each for each in self._published().get("expected", []) if each["at"] in self.commits]

    def damaged(self) -> str:
        """Why the decisions cannot be read; "" if they can."""
        return str(self._published().get("damaged", ""))

    def unread(self) -> list[str]:
        """Why files of the results are left out."""
        return list(self._published().get("unread", []))

    def _here(self) -> list[Event]:
        return [
            event
            for event in self._published()["events"]
            if event["kind"] != "environment"
            and any(change["place"].get("machine") == self.machine for change in event["changes"])
        ]

    def now(self) -> list[Event]:
        """The new events as they are published now."""
        return [event for event in self._here() if event["last"]["hash"] in self.commits or _name(event) in self.late]

    def _is_late(self, event: Event) -> bool:
        late = min(change["later"] for change in event["changes"]) <= LATE
        return late and bool(untried([event], self.machine)) and self._is_on_its_line(event)

    def _is_on_its_line(self, event: Event) -> bool:
        """Whether a commit of the run is on the event's line of commits."""
        lines = self._published().get("lines", [])
        elsewhere = {line["name"]: set(line["commits"]) for line in lines if not line["configured"]}
        if event.get("branch") in elsewhere:
            return bool(self.commits & elsewhere[event["branch"]])
        return not elsewhere or bool(self.commits.difference(*elsewhere.values()))


def _name(event: Event) -> tuple[str, str, str]:
    return event["kind"], event["first"]["hash"], event["last"]["hash"]


def untried(events: Iterable[Event], machine: str) -> list[Flag]:
    """The changes of timed cells on a machine of which no comparison has decided yet, each once."""
    flags = {
        (change["cell"], change["from"], change["to"]): change["change"]
        for event in events
        for change in event["changes"]
        if change["cell"] and change["change"] and change["place"].get("machine") == machine
        if not (change["verdict"] and change["verdict"]["word"] in DECIDED)
    }
    return [Flag(cell, before, after, change) for (cell, before, after), change in flags.items()]


def confirm_new(project: Project, flags: Sequence[Flag], folder: Path, budget_s: float, console: Console) -> None:
    """Compare the commits of flagged changes, and store the verdicts in a machine's folder."""
    pairs = list(dict.fromkeys((flag.before, flag.after) for flag in flags))
    began, minutes = time.monotonic(), Minutes(console)
    for at, (before, after) in enumerate(pairs, 1):
        left_s = max(0.0, budget_s - (time.monotonic() - began)) / (len(pairs) - at + 1)
        own = [flag for flag in flags if (flag.before, flag.after) == (before, after)]
        with console.status(f"confirming {at} of {len(pairs)} ...") as status:

            def tick(text: str, status: Status = status, done: int = at - 1) -> None:
                status.update(text)
                minutes.tell("confirming, pairs of commits", done, len(pairs))

            verdicts = confirm(project, own, left_s, tick)
        confirmations.save(folder, verdicts)
        _show(verdicts, console)
    if flags:
        pairs_text = "a pair of commits was" if len(pairs) == 1 else f"{len(pairs)} pairs of commits were"
        console.print(f"to confirm what is new, {pairs_text} compared in {time.monotonic() - began:.0f} s")


def _show(verdicts: list[Confirmation], console: Console) -> None:
    for verdict in verdicts:
        where = f"{verdict.before[:8]}..{verdict.after[:8]} {verdict.cell}"
        text = f"{where}: flagged {change_text(verdict.flagged)}; {confirmation_text(verdict)}"
        style = {"confirmed": "bold", "refuted": "dim"}.get(verdict.word)
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def disturbed(events: Iterable[Event], benchmarks: Path) -> list[Again]:
    """What refuted changes leave to be measured again: the commits whose runs were disturbed, with all suites that read
    the same measurement. `benchmarks`: asv's benchmarks.json."""
    known = json.loads(benchmarks.read_text(encoding="utf-8"))
    commits: dict[str, dict[str, None]] = {}
    for event in events:
        for change in event["changes"]:
            if change["verdict"] and change["verdict"]["word"] == "refuted" and change["benchmark"] in known:
                key = _key(known[change["benchmark"]])
                alike = (name for name, item in known.items() if isinstance(item, dict) and _key(item) == key)
                commits.setdefault(chosen(alike), {}).update(dict.fromkeys(change["suspects"]))
    return [Again(suites, tuple(wanted)) for suites, wanted in commits.items() if wanted]


def _key(benchmark: dict[str, Any]) -> object:
    """What benchmarks have in common that read the same measurement."""
    return benchmark.get("setup_cache_key")


def again_arguments(arguments: argparse.Namespace, suites: str) -> argparse.Namespace:
    """The arguments of a run that measures suites again."""
    return argparse.Namespace(**vars(arguments) | {"again": True, "bench": [suites]})
