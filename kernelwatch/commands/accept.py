"""Accept a regression: it is meant to be, or it is worth its price. It comes back as open if it gets worse. A commit
without an open regression stands for the launches and benchmarks that are gone since then.

The decision is kept in results/decisions.toml: commit that file. A commit that makes something slower on purpose can
say so itself, by a trailer: git commit --trailer "Perf-Expected: transpose/padded +3%" (docs/pages.md).

Exit code: 0.
"""

import argparse
import datetime
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelwatch.commands.publishing import publish
from kernelwatch.history import decisions
from kernelwatch.history.decisions import Accepted, Decision
from kernelwatch.history.links import gone_id
from kernelwatch.plan.project import CONFIGURATION, Repository
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.report.texts import event_text, interval_text, size_text
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import locked
from kernelwatch.system.git import git, resolve

Event = dict[str, Any]  # as in data/events.json
SHOWN = 8  # events of a message


def published(project: Repository) -> tuple[list[Event], list[dict[str, Any]]]:
    """The events of the pages as they were published last, and what is gone since a commit, as in `links` of
    events.json. Raises: UserError."""
    path = Path(project.root, str(project.configuration.get("html_dir", "html")), "data", "events.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if all("state" in event for event in content["events"]):
            return list(content["events"]), [each for reach in content["links"] for each in reach["gone"]]
    except FileNotFoundError:
        raise UserError(f"no pages in {path.parent.parent}: publish them first (asv publish)") from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path} is none of this version's: publish the pages again (asv publish)")


def chosen(project: Repository, events: list[Event], name: str) -> Event:
    """The regression that a name stands for: an id of an event or of one of its changes, or the beginning of one, or a
    commit. Raises: UserError."""
    found = [event for event in events if name in (event["id"], *(change["id"] for change in event["changes"]))]
    if not found:
        ids = [(event, (event["id"], *(change["id"] for change in event["changes"]))) for event in events]
        found = [event for event, own in ids if name and any(each.startswith(name) for each in own)]
    if not found:
        try:
            commit = resolve(project.root, name)
        except UserError:
            raise UserError(
                f"no event and no commit is named {name!r}; the page Regressions and data/events.json have the ids"
            ) from None
        found = [event for event in events if event["last"]["hash"] == commit]
        if not found:
            raise UserError(f"the commit {commit[:8]} has no event")
    regressions = [event for event in found if event["kind"] == "regression"]
    if not regressions:
        raise UserError(f"{name} is no regression: {_listed(found)}")
    still = [event for event in regressions if event["state"] not in ("refuted", "fixed")]
    if not still:
        raise UserError(f"{name} is not open, so there is nothing to accept: {_listed(regressions)}")
    if len(still) > 1:
        raise UserError(f"{name} may be one of several regressions; name one by its id: {_listed(still)}")
    return still[0]


def _listed(events: list[Event]) -> str:
    texts = [f"{event['id']} ({event_text(event)})" for event in events[:SHOWN]]
    return "; ".join(texts) + ("; ..." if len(events) > SHOWN else "")


def accepted(change: dict[str, Any]) -> Accepted:
    """A change as it is accepted: with the size that it has now. If the interval of that is not known, what the series
    cannot tell from it stands in."""
    size, (low, high) = change["size"], change["interval"]
    name = change["cell"] or f"{change['benchmark']}({', '.join(map(str, change['params'].values()))})"
    what = f"{change['place'].get('machine') or ''}: {name}"
    bounds = None if low is None or high is None else (float(low), float(high))
    if bounds is None and size is not None and not change["exact"] and change["smallest"]:
        bounds = size - change["smallest"], size + change["smallest"]
    if bounds is not None and not bounds[0] <= size <= bounds[1]:
        bounds = min(size, bounds[0]), max(size, bounds[1])
    return Accepted(change["id"], what, size, bounds)


def decide(project: Repository, event: Event, reason: str) -> Decision:
    """The decision to accept what is left of an event, by the one whom git knows. Raises: UserError."""
    changes = [change for change in event["changes"] if change["state"] in ("new", "confirmed", "accepted")]
    return _decision(project, event["id"], reason, map(accepted, changes))


def _decision(project: Repository, event: str, reason: str, changes: Iterable[Accepted]) -> Decision:
    try:
        who = git(project.root, "var", "GIT_AUTHOR_IDENT").rpartition("> ")[0] + ">"
    except UserError:
        raise UserError("git does not know who you are: git config user.name ..., git config user.email ...") from None
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Decision(event, who, at, reason, tuple(changes))


def _gone(
    project: Repository, events: Sequence[Event], missing: Sequence[dict[str, Any]], name: str
) -> list[dict[str, Any]]:
    """What is gone since a commit that `name` is, if no regression of it is open."""
    try:
        commit = resolve(project.root, name)
    except UserError:
        return []
    if any(event["open"] and event["last"]["hash"] == commit for event in events):
        return []
    return [each for each in missing if each["hash"] == commit]


def run(project: Repository, arguments: argparse.Namespace, console: Output) -> int:
    reason = " ".join(arguments.reason.split())
    if not reason:
        raise UserError("a decision needs a reason: --reason 'the new tile is worth it at large sizes'")
    path = project.results / decisions.NAME
    decisions.read(path)  # before anything else is said
    events, missing = published(project)
    gone = _gone(project, events, missing, arguments.event)
    if gone:
        commit = gone[0]["hash"]
        ids = {each["cell"]: gone_id(commit, each["cell"], project.renamed) for each in gone}
        what = tuple(Accepted(name, f"gone: {cell}", None) for cell, name in ids.items())
        decision = _decision(project, min(each.id for each in what), reason, {each.id: each for each in what}.values())
    else:
        event = chosen(project, events, arguments.event)
        commit, decision = event["last"]["hash"], decide(project, event, reason)
    (project.root / ".asv").mkdir(exist_ok=True)
    with locked(project.root / ".asv" / "decisions.lock", lambda holder: None):  # another one reads, adds and writes
        decisions.add(path, decision)

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    tell(f"accepted: {decision.event}, {git(project.root, 'log', '-1', '--format=%h (%s)', '--abbrev=8', commit)}")
    for change in decision.changes:
        interval = "" if change.bounds is None or math.inf in change.bounds else f" ({interval_text(change.bounds)})"
        tell(f"  {change.what}" if gone else f"  {change.what} {size_text(change.size)}{interval}")
    tell(f"commit it: {path.relative_to(project.root) if path.is_relative_to(project.root) else path}")
    if not arguments.no_publish:
        page = publish(project, project.root / CONFIGURATION, console)
        tell(f"pages: {page.as_uri()}")
    return 0


def main(project: Repository, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument(
        "event",
        help="the id of an event, as on the page Regressions, or its beginning; or a commit with one regression, "
        "or since which something is gone",
    )
    parser.add_argument("--reason", required=True, help="why it is all right, for those who read the pages")
    parser.add_argument("--no-publish", action="store_true", help="write the decision only, and make no pages")
    parsed = parser.parse_args(arguments)
    return run(project, parsed, Output())
