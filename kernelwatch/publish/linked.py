"""What the links of a history tell the pages: how far they reach, the level of each cell, and every session."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwatch.detect.chain import Chain
from kernelwatch.detect.linked import LinkedSeries
from kernelwatch.history import links
from kernelwatch.history.links import FULL_RUNS, Session
from kernelwatch.history.returned import bridged, uncompared
from kernelwatch.plan.cells import timed
from kernelwatch.plan.project import Project
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.publish.commits import Commit
from kernelwatch.publish.lines import Line
from kernelwatch.publish.record import Json, rounded
from kernelwatch.system.git import changing_commits, git

DIGITS = 6
WEEK_S = 7 * 86400
DEVICES = ("gpu", "cpu")  # of which links are made
FAILED = "failed"  # how the reason begins if a launch failed, or gave a wrong result


def read(results: Path, renamed: Renamed) -> tuple[dict[str, list[Session]], list[str]]:
    """The sessions by machine, and a message for each file that is not one."""
    found, unread = {}, []
    for folder in sorted(path for path in results.glob("*/") if path.is_dir()):
        sessions, messages = links.read(folder, renamed)
        unread += messages
        if sessions:
            found[folder.name] = sessions
    return found, unread


def unasked(
    sessions: Sequence[Session], line: Line, project: Project | None, runs: Sequence[Session] = ()
) -> list[str]:
    """The commits of a branch between the first and the newest session that change files on which launches may depend,
    and that no session asked. `runs`: of full runs, which may reach further."""
    own = along(sessions, line)
    if not own or not project:
        return []
    first, newest = _ends([*own, *runs], line)
    asked = {each.after for each in own}
    return sorted(_changing(project, first, newest) - asked, key=line.positions.__getitem__, reverse=True)


def along(sessions: Sequence[Session], line: Line) -> list[Session]:
    """The sessions of a line that asked what a commit changed; if it is no configured branch, one of its own."""
    known = line.positions
    own = [each for each in sessions if each.before in known and each.after in known and each.kind == "step"]
    return [each for each in own if line.own is None or each.after in line.own]


def _ends(sessions: Sequence[Session], line: Line) -> tuple[str, str]:
    where = line.positions.__getitem__
    return min((each.before for each in sessions), key=where), max((each.after for each in sessions), key=where)


def reach(
    machine: str, sessions: Sequence[Session], series: Sequence[LinkedSeries], line: Line, missing: Sequence[str],
    project: Project | None, accepted: Collection[str] = (),
) -> Json:  # fmt: skip
    """How far the links of a machine reach along a line of commits that has some.

    `first`, `newest`: the commits at both ends. `asked`: how many commits were asked what they change; `changing`: how
    many of them have links. `links`: how many. `undecided`: how many of the launches that they made are neither slower
    nor faster nor the same. `gpus`: those that measured them. `missing`: the commits between the ends that change files
    on which launches may depend, and that were not asked. `unjudged`: why changed launches have no link, and how many.
    `failed`: the launches that fail since a commit, as far as sessions tell; `gone`: those that are gone, unless the id
    of that is `accepted`. `compared`: whether any session tells of a launch. `since`: how each op compares with earlier
    commits. `still`: the ops of which no launch changed. `later`: how many commits after the newest one change such
    files.
    """
    own, renamed = along(sessions, line), project.renamed if project else NONE
    kept = [links.without(each, accepted, renamed) for each in own]  # without what is gone on purpose
    unlinked = _unlinked(own, line) | uncompared(kept, line.commits)
    first, newest = _ends(own, line)
    chains = [each.chain for each in series if each.chain]
    later = len(_changing(project, newest, line.commits[-1])) if project else 0
    earlier = compared_with(project, line, first) if project else {}
    if later:  # nobody knows how launches compare with those of a commit that was not asked
        earlier = {name: hash for name, hash in earlier.items() if line.positions[hash] < line.positions[newest]}
    words = [chain.word(node) for chain in chains for node in range(1, len(chain.nodes) + 1) if chain.at_node(node)]
    return {
        "machine": machine,
        "branch": line.name,
        "first": first,
        "newest": newest,
        "asked": len({each.after for each in own}),
        "changing": len({each.after for each in own if each.changed}),
        "links": sum(len(each.changed) for each in own),
        "undecided": words.count("cannot tell"),
        "gpus": sorted({each.gpu for each in own if each.links}),
        "missing": [{"at": line.positions[hash], "hash": hash} for hash in missing],
        "unjudged": [[why, count] for why, count in Counter(unlinked.values()).most_common()],
        "failed": failing(own, line.positions),
        "gone": lost(kept, line.positions, project),
        "compared": any(each.tells for each in own),
        "since": [
            {"name": name, "hash": hash, "ops": compared(chains, None if name == "first" else line.positions[hash])}
            for name, hash in earlier.items()
        ],
        "still": still(chains, unlinked, project) if project else [],
        "later": later,
    }


def still(chains: Sequence[Chain], unlinked: Collection[tuple[str, str]], project: Project) -> list[str]:
    """The described ops, each with its device, of which no launch changed. `unlinked`: commits, and the cells and rungs
    of which nobody knows whether they changed there."""
    own = [cell for cell in timed(project) if cell.device in DEVICES and not cell.reference]
    changed = {chain.cell.partition(" ")[0] for chain in chains} | {name.partition(" ")[0] for _, name in unlinked}
    old = {name.partition("/")[0] for name in changed - {cell.name for cell in own}}  # nobody knows of which device
    moved = {(cell.op, cell.device) for cell in own if cell.name in changed or cell.op in old}
    return sorted({f"{cell.op} {cell.device}" for cell in own if (cell.op, cell.device) not in moved})


def _unlinked(sessions: Sequence[Session], line: Line) -> dict[tuple[str, str], str]:
    """Why a launch that changed has no link, by commit and by cell or rung. What another session of the same commits
    linked, or asked if this one did not, is left out, and so is what one across a gap compared."""
    found: dict[tuple[str, str], str] = {}
    over = bridged(sessions, line.commits)
    for session in sessions:
        others = [each for each in sessions if each is not session and each.after == session.after]
        linked = {link.cell for each in others for link in each.changed}
        for name, why in session.unjudged.items():
            is_left = any(not each.why_left(name) for each in others) if session.why_left(name) else False
            is_left = is_left or why == links.UNDIRECTED  # no link could say that it is worse
            if is_left or (id(session), name) in over:
                continue
            if not any(cell == name or cell.startswith(f"{name} ") for cell in linked):
                found[session.after, name] = why
    return found


def failing(sessions: Sequence[Session], positions: Mapping[str, int]) -> list[Json]:
    """The launches that failed at a commit, and of which no later commit says anything better: `cell` (or rung), `why`,
    and the commit as `at` and `hash`. `sessions`: the steps of a line."""
    found: dict[str, Json] = {}
    trees: dict[tuple[str, str], Json] = {}  # broken as a whole, by commit and environment of asv
    for session in sorted(sessions, key=lambda each: (positions[each.after], each.at)):
        known = {*(link.cell for link in session.links), *session.new, *session.gone, *session.unjudged}
        environment = str(session.conditions.get(links.ENVIRONMENT))
        for name in [name for name in found if name in known or name.partition(" ")[0] in session.gone]:
            del found[name]  # it ran, it went, or it is told again below
        # A session tells of its own tree. Between a broken one and the next may lie commits that nobody asks.
        trees = {(commit, where): each for (commit, where), each in trees.items() if where != environment}
        for name, why in session.unjudged.items():
            if why.startswith(FAILED):
                place = {"at": positions[session.after], "hash": session.after}
                told = {"cell": name, "why": why.removeprefix(FAILED).strip(": ")} | place
                if name == session.after[:8]:
                    trees[name, environment] = told
                else:
                    found[name] = told
    return [*found.values(), *{name: each for (name, _), each in trees.items()}.values()]


def lost(sessions: Sequence[Session], positions: Mapping[str, int], project: Project | None) -> list[Json]:
    """The launches that are gone since a commit: `cell` (or rung), and the commit as `at` and `hash`. What is described
    no more is not missed."""
    ordered = sorted(sessions, key=lambda each: (positions[each.after], each.at))
    known = {*project.rungs(), *(cell.key for cell in timed(project))} if project else None
    return [
        {"cell": name, "at": positions[commit], "hash": commit}
        for name, commit in links.gone(ordered).items()
        if known is None or name in known
    ]


def compared_with(project: Project, line: Line, first: str) -> dict[str, str]:
    """The commits with which the newest one of a line is compared, by what they are: the first that links reach, the
    last release (a tag), the last one that is a week older, and the one before. Those that links do not reach are left
    out."""
    told = git(
        project.root, "log", "--first-parent", "--decorate-refs=refs/tags", "--format=%H %ct %D", line.commits[-1]
    )
    (_, newest, *_), *older = [row.split() for row in told.splitlines()]
    found = {
        "first": first,
        "release": next((hash for hash, _, *tags in older if tags), ""),
        "week": next((hash for hash, when, *_ in older if int(when) <= int(newest) - WEEK_S), ""),
        "commit": older[0][0] if older else "",
    }
    start = line.positions[first]
    return {name: hash for name, hash in found.items() if line.positions.get(hash, -1) >= start}


def compared(chains: Sequence[Chain], at: int | None) -> Json:
    """How the seconds of the newest launches compare with those at a position, None for the first one that links
    connect with it, by op and device: the mean logarithm of the ratio of the cells whose launch changed, the half-width
    of its 95 % interval, their number, and how many cells no links connect with that commit, or with any other."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for chain in chains:
        now = len(chain.nodes)
        then = chain.pieces[now] if at is None else chain.launch_at(at)
        if then != now or at is None:
            device = chain.edges[0].link.device if chain.edges else "gpu"
            is_linked = then != now and chain.pieces[then] == chain.pieces[now]
            span = (chain.span(then, now)[0], chain.half(then, now)) if is_linked else (math.nan, math.nan)
            spans.setdefault(f"{chain.cell.partition('/')[0]} {device}", []).append(span)
    found: Json = {}
    for op, own in sorted(spans.items()):
        known = [(log, half) for log, half in own if not math.isnan(log)]
        mean = math.fsum(log for log, _ in known) / len(known) if known else None
        half = math.sqrt(math.fsum(half**2 for _, half in known)) / len(known) if known else None
        found[op] = [
            None if mean is None else rounded(mean, DIGITS), None if half is None else rounded(half, 3), len(known),
            len(own) - len(known),
        ]  # fmt: skip
    return found


def _changing(project: Project, first: str, newest: str) -> set[str]:
    """The commits after `first` up to `newest` that change files on which launches may depend."""
    return changing_commits(project.root, f"{first}..{newest}", project.launch_paths(), project.named_files())


def joining(series: Sequence[LinkedSeries]) -> list[Session]:
    """The full runs that join launches which no link joins."""
    joins = [edge for each in series if each.chain for edge in each.chain.joins]
    return list({id(edge.session): edge.session for edge in joins}.values())


def told(
    machine: str,
    sessions: Sequence[Session],
    series: Sequence[LinkedSeries],
    positions: Mapping[str, int],
    commits: Mapping[str, Commit],
) -> Json:
    """The data file of a machine's links. `positions`: of the commits of the branch; `commits`: what git tells of
    them."""
    own = [each for each in sessions if each.before in positions and each.after in positions] + joining(series)
    number = {id(session): at for at, session in enumerate(own)}
    return {
        "machine": machine,
        "commits": {positions[hash]: _brief(commits[hash]) for each in own for hash in (each.before, each.after)},
        "sessions": [_session(session, positions) for session in own],
        "cells": {each.cell: _cell(each.chain, number) for each in series if each.chain},
    }


def _brief(commit: Commit) -> Json:
    return {name: commit[name] for name in ("hash", "date", "subject")}


def _session(session: Session, positions: Mapping[str, int]) -> Json:
    controls = [link for link in session.links if link.control]
    worst = max(controls, key=lambda link: abs(link.log), default=None)
    return {
        "kind": session.kind,
        "from": positions[session.before],
        "at": positions[session.after],
        "measured": session.at,
        "seconds": session.seconds,
        "gpu": session.gpu,
        "driver": session.conditions.get("nvml_driver"),
        "harness": session.conditions.get("harness"),
        "same": session.same,
        "represented": session.represented,
        "linked": len(session.changed),
        "new": len(session.new),
        "gone": len(session.gone),
        "unjudged": dict(session.unjudged),
        "controls": [] if worst is None else [len(controls), worst.cell, rounded(worst.log, DIGITS)],
    }


def _cell(chain: Chain, number: Mapping[int, int]) -> Json:
    """The launches of a cell, and its links: each launch with the logarithm of its seconds over those of the first one
    of its piece and over those of the launch before it, and the half-widths of their 95 % intervals."""
    pieces, sign = chain.pieces, -1.0 if chain.rate else 1.0
    levels = sign * chain.levels
    launches: list[dict[str, Any]] = [
        {"at": chain.nodes[0].before_at if chain.nodes else 0, "log": 0.0, "half": 0.0, "piece": 0, "word": ""}
    ]
    for node, own in enumerate(chain.nodes, 1):
        launches.append(
            {
                "at": own.at,
                "log": rounded(float(levels[node]), DIGITS),
                "half": rounded(chain.half(pieces[node], node) if pieces[node] != node else 0.0, 3),
                "piece": pieces[node],
                "word": FULL_RUNS if _is_of_full_runs(chain, node) else chain.word(node),
                **_step_of(chain, node),
                **({"why": own.why} if own.why else {}),
            }
        )
    named = [number[id(edge.session)] for edge, _ in chain.disagreeing()]
    return {
        "launches": launches,
        "links": [
            [
                number[id(edge.session)], edge.before, edge.after, rounded(edge.link.sign * edge.link.log, DIGITS),
                rounded(edge.judged.half(), 3), len(edge.link.logs), edge.judged.word,
            ]
            for edge in [*chain.edges, *chain.joins]
        ],
        "disagree": named,
    }  # fmt: skip


def _is_of_full_runs(chain: Chain, node: int) -> bool:
    """Whether full runs alone tell how a launch compares with the one before it."""
    return not chain.at_node(node) and any((edge.before, edge.after) == (node - 1, node) for edge in chain.joins)


def _step_of(chain: Chain, node: int) -> Json:
    """How a launch compares with the one before it; {} if nothing links them."""
    start = chain.start(node)
    log, _ = chain.span(start, node)
    return (
        {"step": [rounded(-log if chain.rate else log, DIGITS), rounded(chain.half(start, node), 3)]}
        if math.isfinite(log)
        else {}
    )
