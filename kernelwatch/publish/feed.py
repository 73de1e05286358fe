"""The feed of the Regressions page, and the verdicts that it and the page tell."""

import datetime
import html
import math
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asv import feed

from kernelwatch.detect.events import Change, Event
from kernelwatch.detect.evidence import Evidence
from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation, Verdicts, Word
from kernelwatch.publish.commits import Commit
from kernelwatch.report.texts import confirmation_text


def verdict_of(change: Change, verdicts: Mapping[str, Verdicts]) -> Confirmation | None:
    """The stored verdict on a change, if there is one."""
    known = verdicts.get(change.series.place.get("machine") or "", {})
    return known.get((change.series.cell, change.before.commit, change.last.commit))


def word_of(event: Event, verdicts: Mapping[str, Verdicts]) -> Word:
    """The verdict on an event. Exact figures need no confirmation."""
    if event.kind != "environment" and any(change.series.exact for change in event.changes):
        return "confirmed"
    found = (verdict_of(change, verdicts) for change in event.changes)
    return confirmations.overall(verdict.word if verdict else "not tried" for verdict in found)


def title(event: Event, commits: dict[str, Commit], word: Word) -> str:
    """An event in one line. `word`: the verdict on it."""
    count = len(event.changes)
    largest = event.changes[0].step.change
    amount = f"{largest:+.2%}" if math.isfinite(largest) else "from 0"
    changes = f"{count} series, up to {amount}" if count > 1 else f"{event.changes[0].series.benchmark} {amount}"
    return f"{event.kind}, {word}: {changes}: {event.last[:8]} {commits[event.last]['subject']}"


def write_feed(
    site: Path,
    project: str,
    regressions: Sequence[Event],
    commits: dict[str, Commit],
    verdicts: Mapping[str, Verdicts],
    proof: Sequence[Evidence] = (),
    failures: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the regressions as an Atom feed, one entry per event that was not refuted. An empty feed would say that all
    is well: so it has an entry for each newest commit at which nothing is judged or a suite failed."""
    entries = [*_of_nothing_judged(proof, commits), *_of_failed_suites(proof, failures, commits)]
    for event in regressions:
        date = datetime.datetime.fromtimestamp(commits[event.last]["date"] / 1000, datetime.UTC)
        word = word_of(event, verdicts)
        if word == "refuted":
            continue
        lines = [f"<li>{_line(change, verdict_of(change, verdicts))}</li>" for change in event.changes]
        body = f"<p>{html.escape(event.why)}</p><ul>{''.join(lines)}</ul>"
        context = [event.kind, event.first, event.last]
        entries.append(
            feed.FeedEntry(
                _xml(title(event, commits, word)), date, f"index.html#/event?id={event.id}", _xml(body), context, date
            )
        )
    feed.write_atom(
        str(site / "regressions.xml"),
        sorted(entries, key=lambda entry: entry.updated, reverse=True),
        title=f"{project} performance regressions",
        author="Airspeed Velocity",
        address=f"{project}.asv",
    )


def _entry(text: str, body: str, commit: Commit, *context: str) -> feed.FeedEntry:
    date = datetime.datetime.fromtimestamp(commit["date"] / 1000, datetime.UTC)
    return feed.FeedEntry(_xml(text), date, "index.html#/status", _xml(f"<p>{html.escape(body)}</p>"), context, date)


def _of_nothing_judged(proof: Sequence[Evidence], commits: dict[str, Commit]) -> Iterator[feed.FeedEntry]:
    for each in proof:
        if not each.judged:
            reasons = "; ".join(f"{count} series: {why}" for why, count in each.unjudged)
            text = f"nothing judged: {each.newest[:8]} on {each.machine}, {each.branch}"
            yield _entry(text, reasons, commits[each.newest], "nothing judged", each.machine, each.branch, each.newest)


def _of_failed_suites(
    proof: Sequence[Evidence], failures: Sequence[Mapping[str, Any]], commits: dict[str, Commit]
) -> Iterator[feed.FeedEntry]:
    newest = {(each.machine, each.newest) for each in proof}
    for told in failures:
        if (told["machine"], told["commit"]) in newest:
            text = f"failed: {told['suite']} at {told['commit'][:8]} on {told['machine']}"
            context = "failed", told["machine"], told["commit"], told["suite"]
            yield _entry(
                text, f"{told['reason']}; output: {told['log'] or 'not kept'}", commits[told["commit"]], *context
            )


def _line(change: Change, verdict: Confirmation | None) -> str:
    series, step = change.series, change.step
    params = {f"p-{name}": value for name, value in series.params.items()}
    place = {name: value for name, value in series.place.items() if value}
    commits = f"{change.before.commit}-{change.last.commit}"
    query = urllib.parse.urlencode(params | place | {"commits": commits}, quote_via=urllib.parse.quote)
    link = f"index.html#{urllib.parse.quote(series.benchmark)}?{query}"
    values = f"{step.before:.4g} to {step.after:.4g}"
    amount = f"{step.change:+.2%}" if math.isfinite(step.change) else "from 0"
    text = f"{series.benchmark}({', '.join(series.params.values())})"
    told = f"; {confirmation_text(verdict)}" if verdict else ""
    return f'<a href="{html.escape(link)}">{html.escape(text)}</a>: {amount} ({values}){html.escape(told)}'


def _xml(text: str) -> str:
    """The text with every character that XML forbids replaced."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
