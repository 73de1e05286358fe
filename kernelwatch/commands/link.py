"""Link commits: measure what each of them launches otherwise than its parent, and add it to the history.

Both sides of a link are measured in turns on the GPU at hand. So links of any GPU, driver and version of the packages
make one history (docs/links.md). What did not change is not measured.

Exit code: 0; 1 if a launch became slower, unless that is accepted or fixed; 2 if one failed, could not be measured, is
not decided or is gone, or if nothing could be compared. Commits of the range that are linked already count, too; a
commit that --limit leaves is not measured.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kernelwatch.asv import running
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.commands.confirming import Event, Events
from kernelwatch.commands.phases import duration
from kernelwatch.commands.publishing import check_plugin, have_results, publish
from kernelwatch.commands.shown import show_damaged, show_events, show_expected, show_unread
from kernelwatch.comparison import environments as two
from kernelwatch.comparison import linking
from kernelwatch.comparison.linking import Step, Trees
from kernelwatch.comparison.verdict import some
from kernelwatch.detect.chain import chains
from kernelwatch.detect.judging import Judged, judge, relative
from kernelwatch.detect.linked import linked
from kernelwatch.history import decisions, links
from kernelwatch.history.links import ENVIRONMENT, NOT_ASKED, NOT_HERE, UNDIRECTED, Session
from kernelwatch.history.returned import is_across, returned
from kernelwatch.plan import beside, interpreters
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.project import CONFIGURATION, Project, check_described
from kernelwatch.report.arguments import Output, Parser, add_selection, selected, stop_on_signals, unmatched
from kernelwatch.report.texts import change_text
from kernelwatch.system import lifeline
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import check_range, git, resolve
from kernelwatch.system.git import commits as commits_of
from kernelwatch.system.waiting import status

if TYPE_CHECKING:
    from kernelwatch.extras.fleet.dispatch import Fleet

Pair = tuple[str, str]  # a commit's parent and the commit
Standing = dict[tuple[str, str], bool]  # by commit and cell of a published regression, whether it is open
TOGETHER = 12  # commits whose trees are asked what they launch at the same time
SHOWN = 3  # launches of a commit that are not decided, and that are not measured


def run(project: Project, arguments: argparse.Namespace, console: Console, fleet: "Fleet | None" = None) -> int:
    """Link the commits of a range here or on a fleet, and publish; the exit code. Raises: UserError."""
    project.check()
    if not arguments.no_publish:
        check_plugin(project.configuration)
    paths, named = (arguments.paths, []) if arguments.paths else (project.launch_paths(), project.named_files())
    commits = commits_of(project.root, arguments.range, paths, named)
    check_range(arguments.range, commits, partial(resolve, project.root))
    for path in arguments.paths:
        if not git(project.root, "rev-list", "-n", "1", commits[0], "--", path):
            raise UserError(f"no commit up to {commits[0][:8]} has the file or folder {path} (--path)")
    pairs = linking.pairs_of(project, commits)
    asked = asked_of(project, arguments)
    lacking = len(pairs) < len(commits) and git(project.root, "rev-parse", "--is-shallow-repository") == "true"
    if lacking:
        console.print(
            "note: this clone is shallow, and lacks parents; `git fetch --unshallow` gets them", style="yellow"
        )
    if not pairs:
        console.print(f"nothing to link: no commit of {arguments.range} has a parent here and may change a launch")

    earlier: list[Session] = []
    accepted = decisions.ids(project.results / decisions.NAME)
    described = linking.described(project, {cell.name for cell in asked})

    def left_of(machine: str) -> dict[Pair, list[Cell]]:
        known, messages = links.read(project.results / machine, project.renamed)
        for message in messages:
            console.print(f"note: {message}", style="yellow", markup=False)
        left = {pair: asked if arguments.again else unlinked(asked, known, pair, described) for pair in pairs}
        if done := sum(not cells for cells in left.values()):
            console.print(f"{done} of {len(pairs)} commits are linked already (`link --again` links them anew)")
        afters = {after for _, after in left}
        own = [_only(project, one, asked) for one in known if one.kind == "step" and one.after in afters]
        own = [links.without(one, accepted, project.renamed) for one in own]
        for session in (one for one in own if not arguments.again and code_of([one])):
            _show_commit(project, session, console)
        earlier.extend(own)
        return left

    if fleet:
        sessions = (
            fleet.link(pairs, left_of, arguments.budget, partial(_show_commit, project, console=console))
            if pairs
            else []
        )
        machines = fleet.machines
    else:
        machines = [machine_name()]
        sessions = _link_here(project, left_of(machines[0]), arguments, project.results / machines[0], console)
    folders = [project.results / machine for machine in machines]
    show_left([one for one in sessions if not any(have_results(each, [one.after]) for each in folders)], console)
    order = {after: at for at, (_, after) in enumerate(pairs)}
    if about := beside.note(project.here.parent):
        console.print(f"note: {about}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    fresh = (links.without(_only(project, one, asked), accepted, project.renamed) for one in sessions)
    told = [*earlier, *fresh]
    found = sorted(told, key=lambda session: order[session.after])
    code = _told(project, arguments, machines, found, console, commits[0])
    left = {*pairs} - {(one.before, one.after) for one in found}  # a limit was over
    return code or (2 if lacking or left else 0)


def asked_of(project: Project, arguments: argparse.Namespace) -> list[Cell]:
    """The cells that may be linked and were asked for. Raises: UserError if there are none."""
    devices = [arguments.device] if arguments.device else list(linking.NARROW)
    asked = linking.asked_of(project, selected(arguments), devices)
    if not asked:
        check_described(project, linking.asked_of(project))
        every = linking.asked_of(project, devices=devices)
        raise UserError(unmatched(arguments, every) or f"no cell is timed on the {arguments.device.upper()}")
    return asked


def _only(project: Project, session: Session, asked: Sequence[Cell]) -> Session:
    """What a session tells of the cells that are asked for, and of those that are described no more."""
    keys = {cell.key for cell in asked}
    names = keys | {cell.name for cell in asked} | {session.before[:8], session.after[:8]}
    others = {name for cell in linking.asked_of(project) for name in (cell.key, cell.name)} - names
    links = tuple(link for link in session.links if link.control or link.cell in keys)
    new, gone = (tuple(name for name in own if name not in others) for own in (session.new, session.gone))
    unjudged = {key: why for key, why in session.unjudged.items() if key in names}
    return replace(session, links=links, new=new, gone=gone, unjudged=unjudged)


def _link_here(
    project: Project,
    left: Mapping[Pair, Sequence[Cell]],
    arguments: argparse.Namespace,
    folder: Path,
    console: Console,
) -> list[Session]:
    """Link pairs of commits on this machine. `left`: the cells that are not linked; `folder`: of the machine."""
    waiting = [pair for pair in left if left[pair]]
    known, _ = links.read(folder, project.renamed)
    if len(waiting) > 1:
        console.print(foretold(len(waiting), known, arguments.budget))
    sessions: list[Session] = []
    began = time.monotonic()
    with linking.trees(project) as made:
        for at, (before, after) in enumerate(waiting):
            if arguments.limit and time.monotonic() - began > arguments.limit:
                console.print(f"{len(waiting) - at} commits are left: {arguments.limit:g} s are over", style="yellow")
                break
            if at % TOGETHER == 0:
                made.only({commit for pair in waiting[at : at + TOGETHER] for commit in pair})
                with status(console, f"asking what the commits from {after[:8]} on launch ..."):
                    linking.ask_ahead(project, made, {pair: left[pair] for pair in waiting[at : at + TOGETHER]})
            with status(console, f"asking what {after[:8]} changed ..."):
                one = linking.step(project, before, after, made, left[before, after])
            sessions += _link(project, one, [*known, *sessions], made, arguments, folder, console)
        else:
            sessions += _link_across(project, left, [*known, *sessions], made, arguments, folder, console)
    return sessions


def _link_across(
    project: Project,
    pairs: Iterable[Pair],
    known: Sequence[Session],
    made: Trees,
    arguments: argparse.Namespace,
    folder: Path,
    console: Console,
) -> list[Session]:
    """Compare what is back at these commits with the last commits that had it, where no session did: one that was
    interrupted, or whose machine did not know what others had measured before."""
    found: list[Session] = []
    wanted = {cell.key for cell in asked_of(project, arguments)}
    for one in [each for each in known if each.kind == "step" and (each.before, each.after) in pairs]:
        line = git(project.root, "rev-list", "--first-parent", "--reverse", one.after).splitlines()
        for before, names in returned(one, known, line).items():
            asked = [cell.key for cell in linking.across_of(project, names)]
            if any(is_across(each, one, before) for each in [*known, *found]) or not wanted.issuperset(asked):
                continue  # a part of it would seem to be all
            made.only({before, one.after})
            with status(console, "timing ...") as tell:
                found.append(linking.across(project, before, one.after, asked, made, arguments.budget, tell))
            links.save(folder, found[-1])
            _show_commit(project, found[-1], console)
    return found


def environments(project: Project, arguments: argparse.Namespace, console: Console) -> int:
    """Measure a commit in two environments, save it as a session, and publish; the exit code. Raises: UserError."""
    project.check()
    machine = machine_name()
    sha = resolve(project.root, arguments.range.removesuffix("^!"))
    asked = asked_of(project, arguments)
    with (
        status(console, "making the environments ...") as tell,
        tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder,
    ):
        both = [interpreters.interpreter(text, tell) for text in arguments.env]
        session = two.session(project, sha, both, asked, Path(folder), arguments.budget, tell)
    console.print(two.words(both, sha[:8]), markup=False, highlight=False, soft_wrap=True)
    if session.links or NOT_HERE not in session.unjudged.values():
        links.save(project.results / machine, session)
    _show_commit(project, session, console)
    return _told(project, arguments, [machine], [session], console, sha)


def _told(
    project: Project,
    arguments: argparse.Namespace,
    machines: Sequence[str],
    sessions: Sequence[Session],
    console: Console,
    tip: str,
) -> int:
    """Publish, unless that is not wanted, and show what was found; the exit code. `tip`: the newest commit. Raises:
    UserError."""
    if arguments.no_publish:
        line = git(project.root, "rev-list", "--first-parent", "--reverse", tip).splitlines()
        return code_of(sessions, standing_along(sessions, line, console))
    _list_benchmarks(project)
    page = publish(project, project.root / CONFIGURATION, console)
    shown: list[Event] = []
    unread: list[str] = []
    for machine in machines:
        told = Events(page.parent / "data" / "events.json", [session.after for session in sessions], machine)
        found = [event for event in told.now() if event["last"]["hash"] in told.commits]
        show_events(found, console)
        show_expected(told.expected(), console)
        show_damaged([told.damaged()], console)
        shown += found
        unread += told.unread()
    show_unread(unread, console)
    console.print(f"pages: {page.as_uri()}", soft_wrap=True)
    return code_of(sessions, standing_of(shown))


def foretold(commits: int, known: Sequence[Session], budget_s: float) -> str:
    """How many links commits that may change a launch will have, and how long these take, as the commits that were
    linked before tell it. `budget_s`: the most for a commit, if none was."""
    steps = [session for session in known if session.kind == "step" and (session.links or session.same)]
    if not steps:
        return f"{commits} commits may change a launch: at most {duration(commits * budget_s)} of measuring"
    seconds, links = (
        commits * statistics.fmean(values)
        for values in ([each.seconds for each in steps], [len(each.changed) for each in steps])
    )
    return (
        f"{commits} commits may change a launch: some {links:.0f} links in {duration(seconds)} of measuring, "
        f"if they are like the {len(steps)} that were linked before"
    )


def standing_of(events: Sequence[Event]) -> Standing:
    """Whether published regressions are open, by commit and cell; else they are accepted, as expected, or fixed. One
    that is open on one of several machines, or in one of several environments, is open."""
    changes = [change for event in events if event["kind"] == "regression" for change in event["changes"]]
    standing = {(change["to"], change["cell"]): False for change in changes}
    return standing | {(change["to"], change["cell"]): True for change in changes if change["open"]}


def standing_along(sessions: Sequence[Session], line: Sequence[str], console: Console) -> Standing:
    """The regressions that are open as far as these sessions tell, such as one of several sessions or in small steps,
    which is printed. `line`: the commits, the oldest first."""
    positions = {commit: at for at, commit in enumerate(line)}
    known = {name: chains(own, positions) for name, own in _by_environment(sessions).items()}
    changes = [change for series in linked([], known, "") for change in series.changes()]
    found = [change for change in changes if change.kind == "regression" and change.back is None]
    for change in (each for each in found if each.step.since is not None):
        size, since = change_text(change.step.change), change.first.commit[:8]
        text = f"worse: {change.series.cell} {size} in small steps from {since} to {change.last.commit[:8]}"
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    return {(change.last.commit, change.series.cell): True for change in found}


def _by_environment(sessions: Sequence[Session]) -> dict[str, list[Session]]:
    found: dict[str, list[Session]] = {}
    for session in sessions:
        found.setdefault(session.conditions.get(ENVIRONMENT, ""), []).append(session)
    return found


def _list_benchmarks(project: Project) -> None:
    """Have asv write the list of benchmarks that `asv publish` needs, if no run did. Raises: UserError."""
    if (project.results / "benchmarks.json").exists():
        return
    command = running.run_command(project.root / CONFIGURATION, "--bench", "just-discover")
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"asv finds no benchmarks: {(done.stdout + done.stderr).strip()}")


def unlinked(
    asked: Sequence[Cell], known: Sequence[Session], pair: tuple[str, str], described: Mapping[str, str]
) -> list[Cell]:
    """The cells that no session has asked about these two commits. `described`: by rung, as in a session."""
    own = [session for session in known if (session.before, session.after) == pair and session.kind == "step"]

    def is_left(cell: Cell, session: Session) -> bool:
        return bool(session.why_left(cell.key)) or session.lacks(cell.key, described[cell.name])

    return [cell for cell in asked if all(is_left(cell, session) for session in own)]


def _link(
    project: Project,
    one: Step,
    known: Sequence[Session],
    made: Trees,
    arguments: argparse.Namespace,
    folder: Path,
    console: Console,
) -> list[Session]:
    """Measure and save the links of a step, and the anchors that are due; what was measured, printed."""
    with status(console, "timing ...") as tell:
        session = linking.link(project, one, made, arguments.budget, tell=tell)
        if session.links or NOT_HERE not in session.unjudged.values():  # else it knows nothing
            links.save(folder, session)
        found = [session]
        _show_commit(project, session, console)
        line = git(project.root, "rev-list", "--first-parent", "--reverse", one.after).splitlines()
        for before, names in returned(session, known, line).items():
            found.append(linking.across(project, before, one.after, names, made, arguments.budget, tell))
            links.save(folder, found[-1])
            _show_commit(project, found[-1], console)
        for before, keys in linking.anchors_of(session, known, line).items():
            found.append(linking.anchor(project, one, before, keys, made, arguments.budget, tell))
            links.save(folder, found[-1])
            _show_commit(project, found[-1], console)
    return found


def _show_commit(project: Project, session: Session, console: Console) -> None:
    show(git(project.root, "log", "-1", "--format=%h %s", session.after), session, console)


def show(subject: str, session: Session, console: Console) -> None:
    """Print a session of a commit: one line, one for each cell that became slower or faster, and some for those that
    are not decided or have no link."""
    changed, signs = _changed(session), {link.cell: link.sign for link in session.changed}
    undecided = {cell: judged for cell, judged in changed.items() if judged.word == "cannot tell"}
    undirected = [name for name, why in session.unjudged.items() if why == UNDIRECTED]
    without = {name: why for name, why in session.unjudged.items() if not why.endswith((NOT_ASKED, UNDIRECTED))}
    unasked = len(session.unjudged) - len(without) - len(undirected)
    done = {"step": "linked", "anchor": "anchored", "environment": "measured in both environments"}
    what = f"{len(session.changed)} {done[session.kind]}"
    parts = [what, f"{session.same} the same"] if session.kind == "step" else [what]
    parts += [f"{session.represented} by the same binary"] if session.represented else []
    parts += [f"{len(own)} {name}" for name, own in (("new", session.new), ("gone", session.gone)) if own]
    parts += [f"{len(undecided)} not decided"] if undecided else []
    parts += [f"{len(without)} not measured"] if without else []
    parts += [f"{unasked} not asked for"] if unasked else []
    parts += [f"{some(undirected)} without a better direction"] if undirected else []
    line = f"{subject}: {', '.join(parts)}, {duration(session.seconds)}"

    def tell(text: str, style: str = "yellow") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    tell(line, "")
    for cell, judged in changed.items():
        if judged.word in ("worse", "better"):
            style = "red" if judged.word == "worse" else "green"
            tell(f"  {judged.word}: {cell} {_text_of(judged, signs[cell])}", style)
    for cell, judged in list(undecided.items())[:SHOWN]:
        tell(f"  not decided: {cell} {_text_of(judged, signs[cell])}{f': {judged.why}' if judged.why else ''}")
    if len(undecided) > SHOWN:
        tell(f"  not decided: {len(undecided) - SHOWN} more")
    for name, why in list(without.items())[:SHOWN]:
        tell(f"  not measured: {name}: {why}")
    if len(without) > SHOWN:
        tell(f"  not measured: {len(without) - SHOWN} more")
    if session.gone:
        tell(f"  gone: {some(session.gone)}")
    if not session.tells:
        tell("  nothing could be compared: neither commit gives a time of what was asked for")


def show_left(sessions: Sequence[Session], console: Console) -> None:
    """Print what a full run would measure of what links leave. `sessions`: of commits that no full run measured."""
    if any(session.new for session in sessions):
        console.print(
            "note: new launches have nothing to be compared with: `bench --all` measures them", style="yellow"
        )
    if any(NOT_HERE in session.unjudged.values() for session in sessions):
        console.print("note: without a GPU, `bench --all` records the exact figures of a commit", style="yellow")


def _text_of(judged: Judged, sign: float) -> str:
    size, bounds = relative(judged.log, judged.half(), sign)
    low, high = map(change_text, bounds)
    return f"{change_text(size)} ({low} to {high})"


def _changed(session: Session) -> dict[str, Judged]:
    judged = judge(session)
    return {link.cell: judged[link.cell] for link in session.changed}


def code_of(sessions: Sequence[Session], standing: Standing | None = None) -> int:
    """The exit code of what was measured. `sessions`: in the order of their commits, those of one commit in the order
    in which they were measured: of those that asked for the same, the newest counts. `standing`: whether published
    regressions are open, such as one that came in many small steps, of which no session tells."""
    known = standing or {}
    alike: dict[tuple[object, ...], list[Session]] = {}
    for session in sessions:
        alike.setdefault(_place(session), []).append(session)

    def counts(session: Session, name: str) -> bool:
        return session.kind != "step" or _counts(session, name, alike[_place(session)])

    told = [(session, name, why) for session in sessions for name, why in session.unjudged.items()]
    told = [(session, name, why) for session, name, why in told if counts(session, name)]
    if any(why.startswith("failed") for _, _, why in told):
        return 2
    steps = [session for session in sessions if session.kind != "anchor"]
    changed = [
        (session.after, cell, judged.word)
        for session in steps
        for cell, judged in _changed(session).items()
        if counts(session, cell)
    ]
    words = {word for commit, cell, word in changed if word != "worse" or known.get((commit, cell), True)}
    if "worse" in words or any(known.get((session.after, link.cell)) for session in steps for link in session.changed):
        return 1
    reasons = [why for session, _, why in told if session.kind != "anchor"]
    unmeasured = any(not why.endswith((NOT_ASKED, UNDIRECTED)) and not why.startswith("repaired") for why in reasons)
    nothing = bool(steps) and not any(each.tells for each in steps)
    gone = any(map(links.gone, _by_environment(steps).values()))  # what one environment has, another one may lack
    return 2 if nothing or unmeasured or "cannot tell" in words or gone else 0


def _counts(session: Session, name: str, alike: Sequence[Session]) -> bool:
    """Whether what a session says of a cell or a rung counts: no newer one asked for it, and none at all if this one
    did not. `alike`: those that measure the same, the oldest first."""
    at = next(at for at, each in enumerate(alike) if each is session)
    rivals = [*(alike[:at] if session.why_left(name) else ()), *alike[at + 1 :]]
    return all(each.why_left(name) for each in rivals)


def _place(session: Session) -> tuple[object, ...]:
    """What two sessions that measure the same have in common."""
    return session.kind, session.before, session.after, *map(session.conditions.get, (ENVIRONMENT, "gpu", "cpu"))


def defaults(range: str) -> argparse.Namespace:
    """The arguments of a call with a range alone."""
    return _parser("link").parse_args([range])


def _parser(prog: str) -> Parser:
    parser = Parser(prog, __doc__)
    parser.add_argument("range", nargs="?", default="HEAD^!", help="a range of commits, such as A..B (default: HEAD)")
    parser.add_argument(
        "--again", action="store_true", help="link again what is linked already, such as on another GPU"
    )
    parser.add_argument(
        "--path",
        dest="paths",
        action="append",
        default=[],
        metavar="PATH",
        help="only commits that change this file or folder",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=linking.BUDGET_S,
        metavar="SECONDS",
        help=f"time limit for each commit; the first look is always taken (default: {linking.BUDGET_S:g})",
    )
    parser.add_argument(
        "--env",
        nargs=2,
        metavar=("A", "B"),
        help="measure one commit in two Python environments, as versus --env does, and keep it in the history",
    )
    parser.add_argument("--device", choices=tuple(linking.NARROW), help="only the cells of this device")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin no further commit after this time")
    parser.add_argument("--no-publish", action="store_true", help="measure only, and make no pages")
    add_selection(parser, "only some cells")
    return parser


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = _parser(prog)
    parsed = parser.parse_args(arguments)
    parsed.range = parsed.range if ".." in parsed.range or parsed.range.endswith("!") else f"{parsed.range}^!"
    if parsed.env and (not parsed.range.endswith("^!") or parsed.again or parsed.paths):
        parser.error("--env takes one commit, and neither --again nor --path: each call measures it")
    console = Output()
    stop_on_signals()
    try:
        with lifeline.tied(), running.alone(project.results):
            return environments(project, parsed, console) if parsed.env else run(project, parsed, console)
    except KeyboardInterrupt:
        console.print("interrupted; the commits that were linked are kept, and the same command goes on there")
        return 130
