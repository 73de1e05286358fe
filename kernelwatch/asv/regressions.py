"""asv plugin: the events of the Regressions page and its feed, based on measured noise instead of a fixed percentage.

It takes the place of asv's own detection. It judges the judged series (see kernelwatch/suites/series.py) by the spread
between processes and the conditions in the sidecars, and joins the changes of several series at one commit to an event.
``regressions_first_commits`` of asv.conf.json still sets the commit from which a series counts;
``regressions_thresholds`` has no effect.

It uses a private name of asv: Git._run_git.
"""

import dataclasses
import datetime
import html
import json
import math
import re
import shutil
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from asv import feed
from asv.console import log

from kernelwatch.asv import diffs, failed
from kernelwatch.asv.lines import Line, lines_of, newest_of
from kernelwatch.asv.patches import replace
from kernelwatch.asv.plain import is_described
from kernelwatch.asv.publication import publication, site_of
from kernelwatch.asv.series import series_of
from kernelwatch.detect import common, events
from kernelwatch.detect.events import Change, Event, JudgedSeries
from kernelwatch.detect.evidence import Evidence, evidence
from kernelwatch.detect.settled import Settled
from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation, Verdicts, Word
from kernelwatch.history.store import Store
from kernelwatch.plan import project as projects
from kernelwatch.report.texts import confirmation_text
from kernelwatch.site.data import Commit
from kernelwatch.site.values import write as write_values

HERE = Path(__file__).resolve().parent
BATCH = 1000  # commits that git is asked about at once
SCRIPT = "regressions.js"  # it replaces asv's script of that name


# What git tells of a commit: hash, date, author and subject, each after a NUL, which none can hold, and two lines for
# each file: one with git's letter, one with the lines that were added and removed ("-" for a binary file).
COMMIT = re.compile(r"\0([0-9a-f]{40,64})\0(\d+)\0([^\0]*)\0([^\0\n]*)((?:\n[:\d-][^\n]*|\n)*)")
LETTER = re.compile(r"(?m)^:.* ([A-Z])\t(.*)$")
LINES = re.compile(r"(?m)^(\d+|-)\t(\d+|-)\t(.*)$")


def commits_of(repo: Any, hashes: Iterable[str], store: Store) -> dict[str, Commit]:
    """What git records about commits, by hash."""
    wanted = sorted(set(hashes))
    known = cast(dict[str, Commit], store.commits(wanted))
    missing = [commit for commit in wanted if commit not in known]
    for start in range(0, len(missing), BATCH):
        told = _told_by_git(repo, missing[start : start + BATCH])
        store.add_commits(told)
        known |= told
    return known


def _told_by_git(repo: Any, wanted: Iterable[str]) -> dict[str, Commit]:
    layout = ("--format=%x00%H%x00%at%x00%an%x00%s", "--raw", "--numstat", "--no-renames")
    output = repo._run_git(["log", "--no-walk=unsorted", "--no-show-signature", *layout, *wanted, "--"], dots=False)
    found: dict[str, Commit] = {}
    for commit, date, author, subject, lines in COMMIT.findall(output):
        changed = {path: (_count(added), _count(removed)) for added, removed, path in LINES.findall(lines)}
        files = [(letter, path, *changed.get(path, (None, None))) for letter, path in LETTER.findall(lines)]
        found[commit] = {
            "hash": commit, "date": 1000 * int(date), "author": author, "subject": subject, "files": files
        }  # fmt: skip
    return found


def _count(lines: str) -> int | None:
    return None if lines == "-" else int(lines)


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


def as_json(event: Event, commits: dict[str, Commit], verdicts: Mapping[str, Verdicts]) -> dict[str, object]:
    """An event in the form that the pages read (docs/data.md)."""

    def told(change: Change) -> dict[str, object] | None:
        verdict = verdict_of(change, verdicts)
        return dataclasses.asdict(verdict) if verdict else None

    return {
        "kind": event.kind,
        "verdict": word_of(event, verdicts),
        "gradual": event.first != event.last,
        "first": commits[event.first],
        "last": commits[event.last],
        "branch": event.narrowest.series.place.get("branch"),
        "configured": event.narrowest.series.own is None,
        "before": event.narrowest.before.commit,
        "commits": event.narrowest.commits,
        "why": event.why,
        "changes": [
            {
                **_named(change.series),
                "before": change.step.before,
                "after": change.step.after,
                "change": finite(change.step.change),
                "interval": list(map(finite, change.interval)),
                "smallest": finite(change.step.smallest),
                "from": change.before.commit,
                "to": change.last.commit,
                "now": change.series.points[-1].value,
                "undone": change.undone,
                "limits": list(change.last.limits),
                "exact": change.series.exact,
                "cell": change.series.cell,
                "suspects": change.suspects,
                "later": len(change.series.results) - change.step.at,
                "verdict": told(change),
            }
            for change in event.changes
        ],
    }


def _line_as_json(line: Line, commits: dict[str, Commit]) -> dict[str, object]:
    """A line of commits. If it is no configured branch: its tip, the last commit that it shares with a branch, and the
    measured commits that are its own."""
    if line.own is None:
        return {"name": line.name, "configured": True}
    return {
        "name": line.name,
        "configured": False,
        "merged": line.merged,
        "tip": commits[line.commits[-1]],
        "fork": commits.get(line.fork),
        "commits": [commit for commit in line.commits if commit in line.own],
    }


def _series_as_json(series: JudgedSeries) -> dict[str, object]:
    """A judged series, and the commits at both ends of the level that its minimum detectable change follows from."""
    ends = series.results[series.since], series.results[-1]
    return {
        **_named(series),
        "configured": series.own is None,
        "cell": series.cell,
        "commits": len(series.results),
        "smallest": finite(series.smallest),
        "since": ends[0].commit,
        "until": ends[1].commit,
    }


def _named(series: JudgedSeries) -> dict[str, object]:
    return {"benchmark": series.benchmark, "params": series.params, "place": series.place}


def finite(value: float) -> float | None:
    """The value, or None if it is not finite: JSON has no infinity."""
    return value if math.isfinite(value) else None


def title(event: Event, commits: dict[str, Commit], word: Word) -> str:
    """An event in one line. `word`: the verdict on it."""
    count = len(event.changes)
    largest = event.changes[0].step.change
    amount = f"{largest:+.2%}" if math.isfinite(largest) else "from 0"
    changes = f"{count} series, up to {amount}" if count > 1 else f"{event.changes[0].series.benchmark} {amount}"
    return f"{event.kind}, {word}: {changes}: {event.last[:8]} {commits[event.last]['subject']}"


def write_feed(
    conf: Any,
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
                _xml(title(event, commits, word)), date, "index.html#/regressions", _xml(body), context, date
            )
        )
    feed.write_atom(
        str(site_of(conf) / "regressions.xml"),
        sorted(entries, key=lambda entry: entry.updated, reverse=True),
        title=f"{conf.project} performance regressions",
        author="Airspeed Velocity",
        address=f"{conf.project}.asv",
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


def _publish(cls: Any, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
    """asv.plugins.regressions.Regressions.publish."""
    settled, own = Settled.of(conf.project), publication(conf)
    if benchmarks and not any(own.recorded.judged.values()):
        log.warning("no benchmark says that it is judged; run `asv run`, which rewrites benchmarks.json")
    lines, unknown = lines_of(conf, repo, {entry.commit for entry in own.recorded.entries})
    judged = series_of(conf, repo, benchmarks, own.recorded, lines)
    series = [dataclasses.replace(each, settled=settled) for each in judged]
    moves = common.moves(series)
    series = common.without(series, moves)
    changes = [change for each in series for change in each.changes()]
    all_events = events.events([*changes, *(change for move in moves for change in move.changes)])
    settled.write()
    turns = events.turns(series)
    proof = evidence(series, newest_of(lines, own.recorded.entries))
    heads = {(each.machine, each.newest) for each in proof}
    every = failed.failures(own.recorded, benchmarks, Path(conf.benchmark_dir), heads)
    failures = list({json.dumps(each): each for each in every}.values())  # once for all environments
    hashes = [commit for event in all_events for commit in (event.first, event.last)]
    hashes += [each.newest for each in proof]
    hashes += [commit for line in lines if not line.is_configured for commit in (line.commits[-1], line.fork) if commit]
    commits = commits_of(repo, hashes, own.recorded.store)
    machines = {each.place.get("machine") or "" for each in series}
    verdicts = {machine: confirmations.read(Path(conf.results_dir, machine)) for machine in machines}
    own.writer.write(
        "events",
        {
            "events": [as_json(event, commits, verdicts) for event in all_events],
            "turns": [dataclasses.asdict(turn) for turn in turns],
            "lines": [_line_as_json(line, commits) for line in lines],
            "unknown": unknown,
            "evidence": [dataclasses.asdict(each) for each in proof],
            "failures": failures,
        },
    )
    told = [_series_as_json(each) for each in series]
    where: list[str] = []
    if is_described(Path(conf.benchmark_dir).absolute()):
        where = projects.load(Path(conf.benchmark_dir).resolve().parent).pathspecs()
    else:
        write_values(own.writer, series, told, lines[0].name)
    own.writer.write("series", {"series": told})
    for commit in dict.fromkeys(event.last for event in all_events if event.kind != "environment"):
        if not own.writer.keep(f"diffs/{commit}", " ".join(where)):
            own.writer.write(f"diffs/{commit}", diffs.diff_of(repo, commit, where), " ".join(where))
    write_feed(conf, [event for event in all_events if event.kind == "regression"], commits, verdicts, proof, failures)
    shutil.copy(HERE / SCRIPT, conf.html_dir)


def _newest_only(graph: Any, pool: object = None) -> None:
    """asv.graph.Graph.detect_steps. asv's list takes values and changes from these steps: the newest value of each
    series is its only one, so that the list shows it and judges nothing, which the events do."""
    columns = [(at, values if isinstance(values, list) else [values]) for at, values, _ in graph.get_data()]
    newest: list[list[tuple[int, int, float, float, float]]] = [[] for _ in range(graph.n_series)]
    for at, values in columns:
        for index, value in enumerate(values):
            if value is not None and not math.isnan(value):
                newest[index] = [(at, at + 1, value, value, 0.0)]
    graph._steps = newest


def _steps(graph: Any) -> Any:
    """asv.graph.Graph.get_steps, after `_newest_only`, which leaves nothing to wait for."""
    if graph._steps is None:
        graph.detect_steps()
    return graph._steps[0] if graph.scalar_series else graph._steps


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.graph:Graph.detect_steps", _newest_only)
    replace("asv.graph:Graph.get_steps", _steps)
    replace("asv.plugins.regressions:Regressions.publish", classmethod(_publish))
