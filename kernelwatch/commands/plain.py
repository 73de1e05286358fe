"""Compare and link commits of a project that asv benchmarks and that has no description (docs/asv.md).

Both commits are installed into environments of asv, and their benchmarks are measured in turns.

Exit code: 0, no change or better; 1, something is worse; 2, undecided, or a benchmark of the second commit fails.
"""

import argparse
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from asv import util
from asv.config import Config
from asv.machine import Machine, MachineCollection
from asv.plugin_manager import plugin_manager
from asv.repo import NoSuchNameError, get_repo
from rich.console import Console

from kernelwatch.asv import running
from kernelwatch.asv.machine_names import who
from kernelwatch.commands.confirming import Events
from kernelwatch.commands.link import Standing, code_of, show, standing_along, standing_of
from kernelwatch.commands.publishing import check_plugin, publish
from kernelwatch.commands.shown import show_damaged, show_events, show_unread
from kernelwatch.commands.versus import add_output, finish
from kernelwatch.comparison import benchmarks
from kernelwatch.comparison.benchmarks import Place, Report
from kernelwatch.comparison.linking import anchors_of
from kernelwatch.comparison.paired import LOOKS
from kernelwatch.history import decisions, links
from kernelwatch.history.links import ENVIRONMENT, Kind, Session
from kernelwatch.history.returned import returned
from kernelwatch.plan.project import CONFIGURATION, PLUGIN, Repository
from kernelwatch.report import benchmarks as report_text
from kernelwatch.report.arguments import Output, Parser, regular_expression, stop_on_signals
from kernelwatch.system import lifeline
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import check_range, git
from kernelwatch.system.machine import machine_id
from kernelwatch.system.waiting import status
from kernelwatch.timing.cpu import cpu_name

SHALLOW = "this clone is shallow, and lacks parents; `git fetch --unshallow` gets them"
LISTED = "benchmarks.json"  # asv's list of benchmarks, without which it makes no pages
# Options of these commands that are about kernels.
DESCRIBED = {
    "versus": "all cache details env exact find json shape type",
    "link": """all cache changed cluster confirm-budget details device env exact no-confirm no-gate path quick shape
    type worktree""",
}
BUDGETS = {"versus": 300.0, "link": 300.0}  # for two commits; an asv suite takes minutes


def configuration() -> Any:
    """asv's configuration in the current folder, with the kinds of environments that its plugins add."""
    conf = Config.load(None)
    for plugin in conf.plugins:
        if plugin != PLUGIN:  # which changes what asv publishes and nothing that is measured
            plugin_manager.import_plugin(plugin)
    return conf


def commit_of(repo: Any, name: str) -> str:
    """The hash of a commit, which is fetched if asv's copy of the repository lacks it. Raises: UserError."""
    if ".." in name or name.startswith("^"):  # asv would take the first commit that git tells of a range, its end
        raise UserError(f"{name} is a range, where one commit is expected, such as main or HEAD~1; link takes ranges")
    for pull in (False, True):
        try:
            if pull:
                repo.pull()
            return str(repo.get_hash_from_name(name))
        except NoSuchNameError:
            continue
    more = f"; {SHALLOW}" if is_shallow(repo) else ""
    raise UserError(f"the repository has no commit {name}{more}")


def is_shallow(repo: Any) -> bool:
    """Whether asv's repository lacks the history before some commits. Only a clone by git may."""
    with suppress(UserError, AttributeError):
        return git(Path(repo._path), "rev-parse", "--is-shallow-repository") == "true"
    return False


def versus(arguments: argparse.Namespace, console: Console) -> int:
    """Compare two commits and print the report; the exit code. Raises: UserError."""
    conf = configuration()
    repo = get_repo(conf)
    names = arguments.commits
    commits = [commit_of(repo, name) for name in names]
    places = benchmarks.places_of(conf, arguments.environment)
    what = f"BASE = {names[0]} ({commits[0][:8]}), HEAD = {names[1]} ({commits[1][:8]})"
    report = Report(("BASE", "HEAD"), what)
    if commits[0] == commits[1]:
        report.notes.append("both are one commit; HEAD~1 is the one before")
    work = partial(
        benchmarks.compare, report, conf, repo, places, commits, arguments.only, arguments.budget, arguments.within
    )
    with running.not_beside(Path(conf.results_dir)):
        return finish(report, work, console, arguments.markdown, arguments.comment, texts=report_text)


def link(arguments: argparse.Namespace, console: Console) -> int:
    """Link the commits of a range with their parents, and publish; the exit code. Raises: UserError."""
    conf = configuration()
    if not arguments.no_publish:
        check_plugin(vars(conf))
    repo = get_repo(conf)
    folder = machine_folder(conf)
    known, messages = links.read(folder)
    for message in messages:
        console.print(f"note: {message}", style="yellow", markup=False)
    try:
        commits = repo.get_hashes_from_range(arguments.range)[::-1]
    except util.ProcessError as error:
        raise UserError(f"no range of commits {arguments.range}: {benchmarks.error_text(error)}") from None
    check_range(arguments.range, commits, partial(commit_of, repo))
    places = benchmarks.places_of(conf, arguments.environment)
    pairs = [*_pairs(repo, commits)]
    lacking = len(pairs) < len(commits) and is_shallow(repo)
    if lacking:
        console.print(f"note: {SHALLOW}", style="yellow")
    asked = [(place, *pair) for pair in pairs for place in places]
    accepted = decisions.ids(Path(conf.results_dir, decisions.NAME))
    earlier = [links.without(_matching(each, arguments.only), accepted) for each in _about(known, asked)]
    with running.alone(Path(conf.results_dir)):
        for message in running.set_aside_broken(Path(conf.results_dir), LISTED):
            console.print(f"note: {message}", style="yellow", markup=False)
        added, unknown = ({}, False) if arguments.again else _added(conf, repo, known, asked, console)
        left = [[] if arguments.again else _left(known, *each, arguments.only, added) for each in asked]
        waiting = [(*each, cells) for each, cells in zip(asked, left, strict=True) if cells is not None]
        if not asked:
            console.print(f"nothing to link: no commit of {arguments.range} has a parent")
        elif len(waiting) < len(asked):
            console.print(f"{len(asked) - len(waiting)} of {len(asked)} are linked already (--again links them anew)")
        pending = {(before, after) for _, before, after, _ in waiting}
        for session in earlier:
            is_known = session.tells or (session.before, session.after) not in pending
            if not arguments.again and code_of([session]) and is_known:
                show(repo.get_decorated_hash(session.after, 8), session, console)
        sessions = _measured(conf, repo, folder, waiting, known, arguments, console)
        if not (arguments.no_publish or Path(conf.results_dir, LISTED).exists()):
            with status(console, "asking for the benchmarks ...") as tell, benchmarks.errors():
                benchmarks.discover(conf, repo, places[0], commits[-1], tell)
    fresh = (links.without(each, accepted) for each in sessions)
    found = sorted([*earlier, *fresh], key=lambda session: commits.index(session.after))
    if arguments.no_publish:
        line = list(reversed(repo.get_hashes_from_range(commits[-1])))
        standing = standing_along(found, line, console)
    else:
        standing = _published(conf, folder.name, found, console)
    asked_anew = [(place, before, after) for place, before, after, _ in waiting]
    is_left = any(not _steps(sessions, [each]) for each in asked_anew)  # a limit was over
    return code_of(found, standing) or (2 if lacking or is_left or unknown else 0)


def _added(
    conf: Any, repo: Any, known: Sequence[Session], asked: Sequence[tuple[Place, str, str]], console: Console
) -> tuple[dict[str, list[str]], bool]:
    """The benchmarks that the suite has now, by environment, if sessions of these pairs of commits were made with
    another suite; and whether some could not be told. They are asked of the newest commit alone."""
    now = benchmarks.suite(conf)
    added: dict[str, list[str]] = {}
    stale: dict[str, Place] = {}
    for each in asked:
        suites = {suite for session in _steps(known, [each]) for suite in session.described.values()}
        if suites and now not in suites:  # earlier versions told no suite
            stale[each[0].name] = each[0]
    unknown = False
    for name, place in stale.items():
        try:
            with status(console, "asking for the benchmarks ...") as tell, benchmarks.errors():
                added[name] = benchmarks.discover(conf, repo, place, asked[-1][-1], tell)
        except UserError as error:
            console.print(f"the suite changed since commits were linked: {error}", style="yellow", markup=False)
            unknown = True
    return added, unknown


def _measured(
    conf: Any, repo: Any, folder: Path, waiting: Sequence[tuple[Place, str, str, Sequence[str]]],
    known: Sequence[Session], arguments: argparse.Namespace, console: Console,
) -> list[Session]:  # fmt: skip
    """The sessions of these pairs of commits, which are saved one by one."""
    sessions: list[Session] = []
    began = time.monotonic()
    conditions = {**who(), "cpu": cpu_name(), "machine": machine_id(), "packages": None}
    for at, (place, before, after, keys_left) in enumerate(waiting):
        if arguments.limit and time.monotonic() - began > arguments.limit:
            console.print(f"{len(waiting) - at} are left: {arguments.limit:g} s are over", style="yellow")
            break
        for session in _linked(
            conf, repo, place, before, after, keys_left, [*known, *sessions], conditions, arguments, console
        ):
            links.save(folder, session)
            sessions.append(session)
            show(repo.get_decorated_hash(after, 8), session, console)
    return sessions


def _linked(
    conf: Any, repo: Any, place: Place, before: str, after: str, left: Sequence[str], known: Sequence[Session],
    conditions: Mapping[str, Any], arguments: argparse.Namespace, console: Console,
) -> Iterator[Session]:  # fmt: skip
    """A commit with its parent, then with the last commits that had what failed or was gone, and with anchors."""
    own = [each for each in known if each.conditions.get(ENVIRONMENT) == place.name]
    line = list(reversed(repo.get_hashes_from_range(after)))
    wanted: list[tuple[str, Kind, Sequence[str]]] = [(before, "step", left)]
    for older, kind, cells in wanted:
        with status(console, "timing ...") as tell, benchmarks.errors():
            session = benchmarks.link(
                conf, repo, place, older, after, arguments.only, cells, arguments.budget, conditions, kind, tell
            )
        if older == before:
            wanted += [(old, "step", names) for old, names in returned(session, own, line).items()]
            wanted += [(old, "anchor", keys) for old, keys in anchors_of(session, own, line).items()]
        elif kind == "step":  # what was not asked for is told by the step to the parent
            session = replace(session, unjudged=_told(session), new=(), gone=())
        yield session


def _published(conf: Any, machine: str, sessions: Sequence[Session], console: Console) -> Standing:
    """Publish, and show what was found of the commits of these sessions; which regressions are open. Raises:
    UserError."""
    page = publish(Repository(Path.cwd()), Path(CONFIGURATION), console)
    console.print(f"pages: {page.absolute().as_uri()}", soft_wrap=True)
    told = Events(Path(conf.html_dir, "data", "events.json"), [each.after for each in sessions], machine)
    events = [event for event in told.now() if event["last"]["hash"] in told.commits]
    show_events(events, console)
    show_damaged([told.damaged()], console)
    show_unread(told.unread(), console)
    return standing_of(events)


def _pairs(repo: Any, commits: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each commit with its first parent; a root has none."""
    for commit in commits:
        with suppress(NoSuchNameError, util.ProcessError):
            yield repo.get_hash_from_parent(commit), commit


def _left(
    known: Sequence[Session], place: Place, before: str, after: str, only: str, added: Mapping[str, Sequence[str]]
) -> list[str] | None:
    """The benchmarks that sessions of two commits left, of those that `only` matches; [] for all if there is no session
    yet, None if nothing is left. `added`: as `_added`."""
    own = _steps(known, [(place, before, after)])
    if not own:
        return []

    def leaves(session: Session, key: str) -> bool:
        return bool(session.why_left(key) or (session.described and key not in session.described))

    known_keys = dict.fromkeys([*(key for each in own for key in each.unjudged), *added.get(place.name, ())])
    return [key for key in known_keys if re.search(only, key) and all(leaves(each, key) for each in own)] or None


def _steps(known: Sequence[Session], asked: Collection[tuple[Place, str, str]]) -> list[Session]:
    """The sessions that asked what commits changed, of these environments and pairs of commits."""
    own = {(place.name, before, after) for place, before, after in asked}
    steps = [each for each in known if each.kind == "step"]
    return [each for each in steps if (each.conditions.get(ENVIRONMENT), each.before, each.after) in own]


def _about(known: Sequence[Session], asked: Collection[tuple[Place, str, str]]) -> list[Session]:
    """The sessions about the second commits of these pairs, with their parents or across a gap."""
    own = {(place.name, after) for place, _, after in asked}
    return [each for each in known if each.kind == "step" and (each.conditions.get(ENVIRONMENT), each.after) in own]


def _told(session: Session) -> dict[str, str]:
    """Why a session has no link of benchmarks, without those that it was not asked for."""
    return {key: why for key, why in session.unjudged.items() if not session.why_left(key)}


def _matching(session: Session, only: str) -> Session:
    """What a session tells of the benchmarks that `only` matches."""
    links = tuple(link for link in session.links if re.search(only, link.cell))
    new, gone = (tuple(key for key in keys if re.search(only, key)) for keys in (session.new, session.gone))
    broken = session.before[:8], session.after[:8]
    unjudged = {key: why for key, why in session.unjudged.items() if key in broken or re.search(only, key)}
    return replace(session, links=links, new=new, gone=gone, unjudged=unjudged)


def machine_folder(conf: Any) -> Path:
    """The folder of this machine's results, as asv names it. Raises: UserError if asv does not know the machine."""
    name = Machine.get_unique_machine_name()
    try:
        machine = Machine()
        machine.__dict__.update(MachineCollection.load(name))
    except util.UserError:
        raise UserError(f"asv does not know this machine, {name}: run `asv machine --yes`") from None
    machine.save(conf.results_dir)
    return Path(conf.results_dir, machine.machine)


class _NeedsDescription(argparse.Action):
    """An option that a project without a description does not have."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            f"{self.option_strings[0]} needs a description of kernels, and this project has none: `kernelwatch "
            "init` writes one"
        )


def main(name: str, prog: str, arguments: list[str] | None = None) -> int:
    """Run "versus" or "link" in the current folder, that of asv's configuration; the exit code. Raises: UserError."""
    parser = Parser(prog, __doc__)
    if name == "versus":
        parser.add_argument("commits", nargs=2, metavar="COMMIT", help="BASE and HEAD")
        add_output(parser)
    else:
        parser.add_argument("range", nargs="?", default="HEAD^!", help="a range of commits, A..B (default: HEAD)")
        parser.add_argument("--again", action="store_true", help="link again what is linked already")
        parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin no further commit after this time")
        parser.add_argument("--no-publish", action="store_true", help="measure only, and make no pages")
    parser.add_argument(
        "--bench", "--only", dest="only", type=regular_expression, default="", metavar="REGEX",
        help="only benchmarks that match, as name(parameters)",
    )  # fmt: skip
    parser.add_argument(
        "-E", "--environment", action="append", default=[], metavar="SPEC",
        help='an environment, as of asv run; "checkout" is this interpreter with each commit first on its path',
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=float, default=BUDGETS[name], metavar="SECONDS",
        help=f"time limit for two commits; the first {LOOKS[0]} turns are always taken (default: {BUDGETS[name]:g})",
    )  # fmt: skip
    for option in DESCRIBED[name].split():
        parser.add_argument(f"--{option}", action=_NeedsDescription, nargs="*", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if name == "link" and ".." not in parsed.range and not parsed.range.endswith("!"):
        parsed.range = f"{parsed.range}^!"
    console = Output(stderr=name == "versus" and parsed.markdown)
    stop_on_signals()
    try:
        with lifeline.tied(), benchmarks.errors():
            return versus(parsed, console) if name == "versus" else link(parsed, console)
    except KeyboardInterrupt:
        console.print("interrupted; the commits that were linked are kept, and the same command goes on there")
        return 130
