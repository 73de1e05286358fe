"""asv plugin: the Regressions page and its feed, from what was measured rather than from a fixed percentage.

It takes the place of asv's own: the judged series (see `series` in benchmarks/_suites.py), by the spread between
processes and the conditions that lie beside the results, with what several series did at one commit as one event.
``regressions_first_commits`` of asv.conf.json still says from which commit on a series counts;
``regressions_thresholds`` says nothing here.

asv is patched under one name, Regressions.publish, and used under three that it may change: _GraphDataFilter and its
_get_start_revision, and Git._run_git. tests/test_regressions.py fails when one of them is gone.
"""

import datetime
import html
import importlib
import itertools
import json
import math
import pkgutil
import re
import shutil
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asv import feed
from asv.console import log
from asv.graph import Graph
from asv.plugins.regressions import Regressions, _GraphDataFilter
from asv.results import get_filename, iter_results

if TYPE_CHECKING:
    from scripts._events import Change, Event, Result, Series
    from scripts._history import Record

HERE = Path(__file__).resolve().parent
FILES = ("regressions.js", "regressions.css")  # in place of asv's
Commit = dict[str, Any]  # hash, subject, author, date in ms


def series_of(conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> "list[Series]":
    """The judged series of all results, as asv files them."""
    from scripts import _events

    judged = {name: item for name, item in benchmarks.items() if item.get("judged")}
    if benchmarks and not judged:
        log.warning("no benchmark says that it is judged: asv run writes benchmarks.json anew")
    places = {branch: _places(repo, branch) for branch in conf.branches}
    names = graphs.get_params()
    start = _GraphDataFilter(conf, repo, revisions)._get_start_revision
    found: dict[tuple[Any, ...], dict[int, Result]] = {}
    for results in iter_results(conf.results_dir):
        if results.commit_hash not in revisions:
            continue
        record = _sidecar(conf, results)
        filed = {**dict.fromkeys(names), **results.params}
        filed |= {f"env-{name}": value for name, value in results.env_vars.items()}
        for name, (branch, place) in itertools.product(results.get_result_keys(judged), places.items()):
            if results.commit_hash not in place:
                continue
            graph = Graph(name, filed | {"branch": repo.get_branch_name(branch)})
            for index, (params, value) in enumerate(_values(results, judged[name])):
                text = f"{name}({', '.join(params)})" if params else name
                first = start(graph, judged[name], text)
                if first is None or revisions[results.commit_hash] < first or not _is_number(value):
                    continue
                cell, op = _cell(name, params)
                at = place[results.commit_hash]
                point = _events.result(results.commit_hash, at, value, record, cell, judged[name]["judged"], op)
                which = (name, index, params, tuple(graph.params.items()), results.env_name)
                found.setdefault(which, {})[at] = point
    return [
        _events.Series(
            name,
            dict(zip(judged[name]["param_names"], params, strict=True)),
            dict(filed),
            judged[name].get("higher_is_better"),
            judged[name]["judged"] == "exact",
            tuple(point for _, point in sorted(points.items())),
        )
        for (name, _, params, filed, _), points in found.items()
    ]


def _places(repo: Any, branch: str) -> dict[str, int]:
    """The commits of a branch by hash, counted from the oldest."""
    return {commit: at for at, commit in enumerate(reversed(repo.get_branch_commits(branch)))}


def _sidecar(conf: Any, results: Any) -> "Record | None":
    from scripts import _history

    stem = Path(conf.results_dir, get_filename(results.params["machine"], results.commit_hash, results.env_name))
    path = stem.with_suffix(".facts.jsonl")
    return _history.read(path) if path.is_file() else None


def _values(results: Any, benchmark: dict[str, Any]) -> "Iterator[tuple[tuple[str, ...], Any]]":
    """A benchmark's results by its parameters."""
    values = results.get_result_value(benchmark["name"], benchmark["params"])
    return zip(itertools.product(*benchmark["params"]), values, strict=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@cache
def _cell(benchmark: str, params: tuple[str, ...]) -> tuple[str, str]:
    """The key in the sidecar of what a series shows, and its op; "" where it is no cell of the checkout's suites."""
    import benchmarks

    module, _, suite = benchmark.rpartition(".")[0].partition(".")
    if module.startswith("_") or module not in {found.name for found in pkgutil.iter_modules(benchmarks.__path__)}:
        return "", ""
    known = getattr(importlib.import_module(f"benchmarks.{module}"), suite, None)
    try:
        return str(known().cell(*(param.strip("'") for param in params))), str(known.op)  # type: ignore[misc, union-attr]
    except (AttributeError, TypeError, ValueError, LookupError):
        return "", ""  # of another checkout, or no cells


def commits_of(repo: Any, hashes: Iterable[str]) -> dict[str, Commit]:
    """What git says of commits."""
    wanted = sorted(set(hashes))
    if not wanted:
        return {}
    layout = "--format=%H%x00%at%x00%an%x00%s"
    told = repo._run_git(["log", "--no-walk=unsorted", "--no-show-signature", layout, *wanted, "--"], dots=False)
    lines = [line.split("\0", 3) for line in told.split("\n") if "\0" in line]
    return {
        commit: {"hash": commit, "date": 1000 * int(date), "author": author, "subject": subject}
        for commit, date, author, subject in lines
    }


def as_json(event: "Event", commits: dict[str, Commit]) -> dict[str, Any]:
    """An event as the page reads it."""
    return {
        "kind": event.kind,
        "creep": event.first != event.last,
        "first": commits[event.first],
        "last": commits[event.last],
        "before": event.narrowest.before.commit,
        "commits": event.narrowest.commits,
        "why": event.why,
        "changes": [
            {
                **_named(change.series),
                "before": change.step.before,
                "after": change.step.after,
                "change": finite(change.step.change),
                "smallest": finite(change.step.smallest),
                "from": change.before.commit,
                "to": change.last.commit,
                "now": change.series.points[-1].value,
                "undone": change.undone,
                "limits": list(change.last.limits),
            }
            for change in event.changes
        ],
    }


def _named(series: "Series") -> dict[str, Any]:
    return {"benchmark": series.benchmark, "params": series.params, "place": series.place}


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def title(event: "Event", commits: dict[str, Commit]) -> str:
    """An event in a line."""
    count = len(event.changes)
    largest = event.changes[0].step.change
    amount = f"{largest:+.2%}" if math.isfinite(largest) else "from 0"
    of = f"{count} series, up to {amount}" if count > 1 else f"{event.changes[0].series.benchmark} {amount}"
    return f"{event.kind}: {of}: {event.last[:8]} {commits[event.last]['subject']}"


def write_feed(conf: Any, events: "Sequence[Event]", commits: dict[str, Commit]) -> None:
    """The regressions as an Atom feed: an entry an event."""
    entries = []
    for event in events:
        date = datetime.datetime.fromtimestamp(commits[event.last]["date"] / 1000, datetime.UTC)
        lines = [f"<li>{_line(change)}</li>" for change in event.changes]
        body = f"<p>{html.escape(event.why)}</p><ul>{''.join(lines)}</ul>"
        context = [event.kind, event.first, event.last]
        entries.append(
            feed.FeedEntry(_xml(title(event, commits)), date, "index.html#/regressions", _xml(body), context, date)
        )
    feed.write_atom(
        str(Path(conf.html_dir, "regressions.xml")),
        sorted(entries, key=lambda entry: entry.updated, reverse=True),
        title=f"{conf.project} performance regressions",
        author="Airspeed Velocity",
        address=f"{conf.project}.asv",
    )


def _line(change: "Change") -> str:
    series, step = change.series, change.step
    params = {f"p-{name}": value for name, value in series.params.items()}
    place = {name: value for name, value in series.place.items() if value}
    commits = f"{change.before.commit}-{change.last.commit}"
    query = urllib.parse.urlencode(params | place | {"commits": commits}, quote_via=urllib.parse.quote)
    link = f"index.html#{urllib.parse.quote(series.benchmark)}?{query}"
    values = f"{step.before:.4g} to {step.after:.4g}"
    amount = f"{step.change:+.2%}" if math.isfinite(step.change) else "from 0"
    text = f"{series.benchmark}({', '.join(series.params.values())})"
    return f'<a href="{html.escape(link)}">{html.escape(text)}</a>: {amount} ({values})'


def _xml(text: str) -> str:
    """Without the characters that no XML may have."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _publish(cls: Any, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
    """asv.plugins.regressions.Regressions.publish."""
    sys.path.insert(0, str(HERE.parents[1]))  # asv has taken the folder of its plugins off the path again
    try:
        from scripts import _events

        series = series_of(conf, repo, benchmarks, graphs, revisions)
        found = _events.events(change for one in series for change in one.changes())
        turns = _events.turns(series)
    finally:
        sys.path.pop(0)
    commits = commits_of(repo, (commit for event in found for commit in (event.first, event.last)))
    data = {
        "events": [as_json(event, commits) for event in found],
        "turns": [asdict(turn) for turn in turns],
        "series": [{**_named(one), "commits": len(one.results), "smallest": finite(one.smallest)} for one in series],
    }
    Path(conf.html_dir, "regressions.json").write_text(json.dumps(data, allow_nan=False), encoding="utf-8")
    write_feed(conf, [event for event in found if event.kind == "regression"], commits)
    for name in FILES:
        shutil.copy(HERE / name, conf.html_dir)


def setup() -> None:
    """Called by asv when it loads the plugin."""
    Regressions.publish = classmethod(_publish)
