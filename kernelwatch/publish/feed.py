"""The feed of the Regressions page."""

import datetime
import html
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asv import feed

from kernelwatch.detect.evidence import Evidence
from kernelwatch.publish.commits import Commit
from kernelwatch.report.texts import event_text, interval_text, size_text

Json = Mapping[str, Any]


def title(event: Json) -> str:
    """An event in one line."""
    return f"{event_text(event)}: {event['last']['hash'][:8]} {event['last']['subject']}"


def write_feed(
    site: Path,
    project: str,
    events: Sequence[Json],
    commits: Mapping[str, Commit],
    proof: Sequence[Evidence] = (),
    failures: Sequence[Json] = (),
    damaged: str = "",
) -> None:
    """Write the regressions as an Atom feed, one entry per event that was not refuted. An empty feed would say that all
    is well: so it has an entry for each newest commit at which nothing is judged or a suite failed, and for a file of
    decisions that is damaged. `events`: as in events.json."""
    entries = [*_of_nothing_judged(proof, commits), *_of_failed_suites(proof, failures, commits)]
    if damaged and (newest := max((commits[each.newest] for each in proof), key=lambda one: one["date"], default=None)):
        entries.append(_entry("the decisions cannot be read", damaged, newest, "damaged", damaged))
    for event in events:
        if event["kind"] != "regression" or event["state"] == "refuted":
            continue
        date = datetime.datetime.fromtimestamp(event["last"]["date"] / 1000, datetime.UTC)
        lines = [f"<li>{_line(change)}</li>" for change in event["changes"]]
        said = event["decision"] and f"{event['words']}: {event['decision']['reason']}"
        about = [f"<p>{html.escape(text)}</p>" for text in (event["why"], said) if text]
        context = [event["kind"], event["first"]["hash"], event["last"]["hash"]]
        entries.append(
            feed.FeedEntry(
                _xml(title(event)), date, f"index.html#/event?id={event['id']}",
                _xml(f"{''.join(about)}<ul>{''.join(lines)}</ul>"), context, date,
            )
        )  # fmt: skip
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


def _of_nothing_judged(proof: Sequence[Evidence], commits: Mapping[str, Commit]) -> Iterator[feed.FeedEntry]:
    for each in proof:
        if not each.judged:
            reasons = "; ".join(f"{count} series: {why}" for why, count in each.unjudged)
            text = f"nothing judged: {each.newest[:8]} on {each.machine}, {each.branch}"
            yield _entry(text, reasons, commits[each.newest], "nothing judged", each.machine, each.branch, each.newest)


def _of_failed_suites(
    proof: Sequence[Evidence], failures: Sequence[Json], commits: Mapping[str, Commit]
) -> Iterator[feed.FeedEntry]:
    newest = {(each.machine, each.newest) for each in proof}
    for told in failures:
        if (told["machine"], told["commit"]) in newest:
            text = f"failed: {told['suite']} at {told['commit'][:8]} on {told['machine']}"
            context = "failed", told["machine"], told["commit"], told["suite"]
            yield _entry(
                text, f"{told['reason']}; output: {told['log'] or 'not kept'}", commits[told["commit"]], *context
            )


def _line(change: Json) -> str:
    params = {f"p-{name}": value for name, value in change["params"].items()}
    place = {name: value for name, value in change["place"].items() if value}
    commits = f"{change['from']}-{change['to']}"
    query = urllib.parse.urlencode(params | place | {"commits": commits}, quote_via=urllib.parse.quote)
    link = f"index.html#{urllib.parse.quote(change['benchmark'])}?{query}"
    values = f"{change['before']:.4g} to {change['after']:.4g}"
    text = f"{change['benchmark']}({', '.join(change['params'].values())})"
    interval = interval_text(change["interval"])
    told = f"{size_text(change['size'])}{f' ({interval})' if interval else ''}, {change['words']}; {values}"
    return f'<a href="{html.escape(link)}">{html.escape(text)}</a>: {html.escape(told)}'


def _xml(text: str) -> str:
    """The text with every character that XML forbids replaced."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
