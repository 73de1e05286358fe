"""The events of the Regressions page and its feed, based on measured noise instead of a fixed percentage.

They take the place of asv's own detection. The judged series (see kernelwatch/suites/series.py) are judged by the
spread between processes and the conditions in the sidecars, and the changes of several series at one commit are joined
to an event. ``regressions_first_commits`` of asv.conf.json still sets the commit from which a series counts;
``regressions_thresholds`` has no effect.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from asv.console import log

from kernelwatch.detect import common, events
from kernelwatch.detect.chain import chains
from kernelwatch.detect.environments import events_of
from kernelwatch.detect.events import Change, Event, JudgedSeries
from kernelwatch.detect.evidence import Evidence, evidence
from kernelwatch.detect.linked import LinkedChange, LinkedSeries, verdict_on, verdicts_of
from kernelwatch.detect.linked import linked as links_of
from kernelwatch.detect.settled import Settled
from kernelwatch.detect.states import Consent, Outcome, Standing, States, headline, word_of
from kernelwatch.history import confirmations, decisions, expected
from kernelwatch.history.confirmations import Confirmation
from kernelwatch.history.decisions import Accepted, Decision
from kernelwatch.history.expected import Expected
from kernelwatch.history.links import Session
from kernelwatch.history.records import finite
from kernelwatch.plan.project import Project
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.publish import diffs, failed, full_runs, linked, linked_benchmarks, plain, values
from kernelwatch.publish.causes import Causes
from kernelwatch.publish.commits import Commit, commits_of
from kernelwatch.publish.feed import write_feed
from kernelwatch.publish.lines import Line, lines_of, newest_of
from kernelwatch.publish.publication import Publication
from kernelwatch.publish.recorded import History
from kernelwatch.publish.retired import retired
from kernelwatch.publish.series import series_of
from kernelwatch.report.documents import VERSION


@dataclass(frozen=True)
class Judged:
    """What was judged, and what was found. `unknown`: the measured commits that git does not know; `failures`: what
    failed as a whole, as events.json has it; `commits`: all that the others name; `verdicts`: by machine; `linked`: the
    series that links tell; `sessions`: those of the links, by machine; `unasked`: the commits between
    these that may have changed a launch."""

    series: Sequence[JudgedSeries]
    events: Sequence[Event]
    lines: Sequence[Line]
    unknown: Sequence[str]
    evidence: Sequence[Evidence]
    failures: Sequence[dict[str, Any]]
    commits: dict[str, Commit]
    states: States
    outcomes: Sequence[Outcome]
    damaged: str
    linked: Sequence[LinkedSeries]
    sessions: Mapping[str, Sequence[Session]]
    unasked: Mapping[tuple[str, str], Sequence[str]]
    retired: Sequence[dict[str, Any]]


def judge(publication: Publication) -> Judged:
    """Judge all series."""
    conf, repo, history = publication.conf, publication.repo, publication.history
    own = publication.benchmarks if publication.project else {}
    if own and not any("judged" in benchmark for benchmark in own.values()):
        log.warning("no benchmark says that it is judged; run `asv run`, which rewrites benchmarks.json")
    sessions = publication.sessions
    if publication.project is None:
        sessions = linked_benchmarks.by_environment(sessions)
    of_links = {commit for own in sessions.values() for each in own for commit in (each.before, each.after)}
    lines, unknown = lines_of(conf, repo, {recorded.commit for recorded in history.recorded} | of_links)
    settled = Settled.of(conf.project)
    judged = series_of(conf, repo, publication.benchmarks, history, lines)
    renamed = publication.renamed
    series = [dataclasses.replace(each, settled=settled, renamed=renamed) for each in judged]
    moves = common.moves(series)
    series = common.without(series, moves)
    by_links, unasked = _by_links(series, sessions, lines, publication.project, history)
    if publication.project is None:
        by_links = linked_benchmarks.named(by_links, series, sessions, publication.benchmarks)
    told = [change for each in by_links for change in each.changes()]
    twice = {_where(change) for change in told}  # a full run flagged what links tell
    flagged = common.drifts([change for each in series for change in each.changes()], series)
    changes = [change for change in flagged if _where(change) not in twice] + told
    found = events.events([*changes, *(change for move in moves for change in move.changes)])
    settled.write()
    found += _of_environments(sessions, lines, series, renamed)
    proof = evidence(series, newest_of(lines, history.recorded))
    heads = {(each.machine, each.newest) for each in proof}
    every = failed.failures(history, publication.benchmarks, publication.suites, heads)
    failures = list({json.dumps(each): each for each in every}.values())  # once for all environments
    hashes = [commit for event in found for commit in (event.first, event.last)]
    hashes += [each.newest for each in proof]
    full = linked.joining(by_links)
    hashes += [commit for commit in of_links if commit in lines[0].positions]
    hashes += [commit for each in full for commit in (each.before, each.after)]
    hashes += [commit for line in lines if not line.is_configured for commit in (line.commits[-1], line.fork) if commit]
    machines = {each.place.get("machine") or "" for each in (*series, *by_links)}
    verdicts = {machine: confirmations.read(Path(conf.results_dir, machine), renamed) for machine in machines}
    for machine in machines:
        own = [each for each in by_links if each.place.get("machine") == machine]
        verdicts[machine] |= verdicts_of(sessions.get(machine, ()), own)
    for change in told:
        verdicts[change.series.place.get("machine") or ""].update([verdict_on(change)])
    accepted, damaged = _decisions(Path(conf.results_dir))
    announced = _expected(repo, lines, renamed)
    states = States(found, verdicts, series, accepted, announced)
    branches = {line.name: line.commits for line in lines}
    outcomes = _once(states.outcomes(branches, [*series, *by_links]))
    hashes += [commit for each in outcomes for commit in (each.commit, each.expected.commit)]
    return Judged(
        series,
        states.once([*branches]),
        lines,
        unknown,
        proof,
        failures,
        commits_of(repo, hashes, history.store),
        states,
        outcomes,
        damaged,
        by_links,
        sessions,
        unasked,
        retired(history, publication.project, lines[0], verdicts),
    )


def _decisions(results: Path) -> tuple[dict[str, tuple[Decision, Accepted]], str]:
    """What was accepted, by the id of a change; and why the file cannot be read. Then nothing counts as accepted: a
    regression must not become green by a damaged file."""
    path = results / decisions.NAME
    try:
        return decisions.by_change(decisions.read(path.resolve())), ""
    except decisions.Damaged as error:
        log.warning(f"{error}; no regression counts as accepted")
        return {}, str(error)


def _expected(repo: Any, lines: Sequence[Line], renamed: Renamed) -> dict[str, list[tuple[Expected, int]]]:
    """What the commits of each line announce, with their positions there."""

    def ask(arguments: list[str]) -> str:
        return str(repo._run_git(arguments, dots=False))

    announced = expected.read(ask, [line.commits[-1] for line in lines if line.commits], renamed)
    found = {line.name: list(expected.positions(ask, announced, line.commits)) for line in lines if announced}
    on_branches = {each for line in lines if line.own is None for each, _ in found.get(line.name, ())}
    for line in lines:
        if line.own is not None and line.name in found:  # what a branch has is told of the branch
            found[line.name] = [(each, at) for each, at in found[line.name] if each not in on_branches]
    return found


def _by_links(
    series: Sequence[JudgedSeries],
    sessions: Mapping[str, Sequence[Session]],
    lines: Sequence[Line],
    project: Project | None,
    history: History,
) -> tuple[list[LinkedSeries], dict[tuple[str, str], list[str]]]:
    """The series that links tell, along each line of commits; and by machine and line, the commits that no session
    asked."""
    timed = [each for each in series if each.cell]
    renamed = project.renamed if project else NONE
    found: list[LinkedSeries] = []
    unasked = {}
    for line in lines:
        for machine, own in sessions.items():
            missing = linked.unasked(own, line, project)
            if linked.along(own, line):
                unasked[machine, line.name] = missing
                records = [each for each in history.recorded if each.machine == machine]
                runs = full_runs.sessions(records, line.positions)
                gaps = linked.unasked(own, line, project, runs)
                known = {machine: chains(own, line.positions, gaps, runs)}
                made = links_of(timed, known, line.name, line.own)
                found += [dataclasses.replace(each, renamed=renamed) for each in made]
    return found, unasked


def _of_environments(
    sessions: Mapping[str, Sequence[Session]], lines: Sequence[Line], series: Sequence[JudgedSeries], renamed: Renamed
) -> list[Event]:
    """The events of sessions that measured one commit in two environments, each on the first line that has it."""
    found = []
    left = {machine: list(own) for machine, own in sessions.items()}
    for line in lines:
        for machine, own in left.items():
            found += events_of(own, machine, line.name, line.positions, series, renamed)
            left[machine] = [each for each in own if each.after not in line.positions]
    return found


def _once(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What became of what commits expect, each on the first line that has its commit."""
    found: dict[tuple[Expected, str], Outcome] = {}
    for each in outcomes:
        found.setdefault((each.expected, each.commit), each)
    return [*found.values()]


def _of_line(judged: Judged, machine: str, line: Line) -> list[LinkedSeries]:
    own = (each for each in judged.linked if each.place.get("machine") == machine)
    return [each for each in own if each.place.get("branch") == line.name]


def _where(change: Change) -> tuple[str | None, str, str]:
    """The machine, the cell or benchmark, and the commit of a change."""
    own = change.series
    return own.place.get("machine"), own.cell or plain.key(own.benchmark, [*own.params.values()]), change.last.commit


def write(publication: Publication, judged: Judged) -> None:
    """Write the data files of the events and series, the diffs of the commits that they name, and the feed."""
    writer, commits = publication.writer, judged.commits
    found = [as_json(event, commits, judged.states) for event in judged.events]
    writer.write(
        "events",
        {
            "schema": "kernelwatch/events",
            "version": VERSION,
            "events": found,
            "turns": [dataclasses.asdict(turn) for turn in events.turns(judged.series)],
            "expected": [_outcome_as_json(outcome, commits) for outcome in judged.outcomes],
            "damaged": judged.damaged,
            "lines": [_line_as_json(line, commits) for line in judged.lines],
            "unknown": judged.unknown,
            "unread": publication.unread,
            "evidence": [dataclasses.asdict(each) for each in judged.evidence],
            "failures": judged.failures,
            "retired": judged.retired,
            "links": _reach(publication, judged),
        },
    )
    for machine, sessions in judged.sessions.items():
        own = _of_line(judged, machine, judged.lines[0])
        writer.write(f"links/{machine}", linked.told(machine, sessions, own, judged.lines[0].positions, commits))
    series = [*judged.series, *judged.linked] if publication.project is None else judged.series
    told = [_series_as_json(each) for each in series]
    kinds = publication.history.judged
    is_plain = [publication.project is None or kinds.get(each.benchmark) == plain.JUDGED for each in series]
    values.write(writer, compress(zip(series, told, strict=True), is_plain), judged.lines[0].name)
    writer.write("series", _shared(told))
    where = publication.project.pathspecs() if publication.project else []
    for commit in dict.fromkeys(event.last for event in judged.events if event.kind != "environment"):
        asked = " ".join([*diffs.OPTIONS, *where])
        if not writer.keep(f"diffs/{commit}", asked):
            writer.write(f"diffs/{commit}", diffs.diff_of(publication.repo, commit, where), asked)
    by_id = dict(zip((event.id for event in judged.events), found, strict=True))
    Causes(publication, by_id, judged.sessions, commits, judged.states.verdicts).write(judged.events)
    write_feed(
        publication.site, publication.conf.project, found, commits, judged.evidence, judged.failures, judged.damaged
    )


def _shared(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The file of the series. Every page loads it, and thousands of series have few places and levels: each of these
    stands there once, and a series has its index."""
    places: dict[str, int] = {}
    levels: dict[tuple[str, str], int] = {}
    series = []
    for each in told:
        own = {key: value for key, value in each.items() if key not in ("place", "since", "until")}
        place = places.setdefault(json.dumps(each["place"]), len(places))
        level = levels.setdefault((each["since"], each["until"]), len(levels))
        series.append({**own, "place": place, "level": level})
    return {"series": series, "places": list(map(json.loads, places)), "levels": list(levels)}


def _reach(publication: Publication, judged: Judged) -> list[dict[str, Any]]:
    """How far the links of each machine reach along each line of commits."""
    found = []
    for line in judged.lines:
        for machine, sessions in judged.sessions.items():
            if (machine, line.name) in judged.unasked:
                missing = judged.unasked[machine, line.name]
                own = _of_line(judged, machine, line)
                known = publication.project, judged.states.accepted
                found.append(linked.reach(machine, sessions, own, line, missing, *known))
    return found


def as_json(event: Event, commits: Mapping[str, Commit], states: States) -> dict[str, Any]:
    """An event in the form that the pages and the feed read (docs/data.md)."""
    return {
        "id": event.id,
        "kind": event.kind,
        **_standing(states.of(event)),
        "largest": headline(event).id,
        "verdict": word_of(event, states.verdicts),
        "gradual": event.first != event.last,
        "first": commits[event.first],
        "last": commits[event.last],
        "branch": event.narrowest.series.place.get("branch"),
        "configured": event.narrowest.series.own is None,
        "before": event.narrowest.before.commit,
        "commits": event.narrowest.commits,
        "why": event.why,
        "changes": [_change_as_json(change, states.of(change)) for change in event.changes],
    }


def _change_as_json(change: Change, standing: Standing) -> dict[str, Any]:
    return {
        "id": change.id,
        **_named(change.series),
        **_standing(standing),
        "before": change.step.before,
        "after": change.step.after,
        "change": finite(change.step.change),
        "smallest": finite(change.step.smallest),
        "tests": [test._asdict() for test in change.step.tests],
        "from": change.before.commit,
        "to": change.last.commit,
        "now": change.series.points[-1].value,
        "limits": list(change.last.limits),
        "exact": change.series.exact,
        "cell": change.series.cell,
        "rung": change.series.shows.partition(" ")[0],
        "suspects": change.suspects,
        "later": len(change.series.results) - change.step.at,
        "verdict": _verdict(standing.verdict) if standing.verdict else None,
        "linked": isinstance(change.series, LinkedSeries),
        "links": len(change.edges) if isinstance(change, LinkedChange) else 0,
        "gpus": change.gpus if isinstance(change, LinkedChange) else [],
    }


def _verdict(verdict: Confirmation) -> dict[str, Any]:
    """What measuring again said; the page of the event has each turn."""
    return {name: value for name, value in dataclasses.asdict(verdict).items() if name != "logs"}


def _standing(standing: Standing) -> dict[str, Any]:
    """How an event or a change stands: what all readers tell of it."""
    return {
        "state": standing.state,
        "open": standing.is_open,
        "words": standing.words,
        "size": finite(standing.size),
        "interval": list(map(finite, standing.interval)),
        "decision": _consent_as_json(standing.consent) if standing.consent else None,
        "ended": dataclasses.asdict(standing.ended) if standing.ended else None,
    }


def _consent_as_json(consent: Consent) -> dict[str, Any]:
    return dataclasses.asdict(consent) | {"bounds": consent.bounds and list(consent.bounds)}


def _outcome_as_json(outcome: Outcome, commits: Mapping[str, Commit]) -> dict[str, Any]:
    announced = outcome.expected
    return {
        "commit": announced.commit,
        "at": outcome.commit,
        "date": commits[outcome.commit]["date"],
        "author": announced.author,
        "branch": outcome.branch,
        "text": announced.text,
        "subject": announced.subject,
        "size": announced.size,
        "state": outcome.state,
        "words": outcome.words,
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
