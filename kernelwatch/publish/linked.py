"""What the links of a history tell the pages: how far they reach, the level of each cell, and every session."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asv.console import log

from kernelwatch.detect.chain import Chain
from kernelwatch.detect.linked import LinkedSeries
from kernelwatch.history import links
from kernelwatch.history.links import Session
from kernelwatch.plan.project import Project
from kernelwatch.publish.commits import Commit
from kernelwatch.publish.lines import Line
from kernelwatch.publish.record import Json, rounded
from kernelwatch.system.git import git

DIGITS = 6


def sessions_of(results: Path) -> dict[str, list[Session]]:
    """The sessions by machine. A file that is not one is named in a warning."""
    found = {}
    for folder in sorted(path for path in results.glob("*/") if path.is_dir()):
        sessions, messages = links.read(folder)
        for message in messages:
            log.warning(message)
        if sessions:
            found[folder.name] = sessions
    return found


def reach(machine: str, sessions: Sequence[Session], line: Line, project: Project | None) -> Json | None:
    """How far the links of a machine reach along a branch; None if none of them lies on it.

    `first`, `newest`: the commits at both ends. `asked`: how many commits were asked what they change; `changing`: how
    many of them have links. `links`: how many. `gpus`: those that measured them. `missing`: the commits between the
    ends that change files on which launches may depend, and that were not asked. `unjudged`: why changed launches have
    no link, and how many. `later`: how many commits after the newest one change such files.
    """
    positions = line.positions
    own = [each for each in sessions if each.before in positions and each.after in positions and each.kind == "step"]
    if not own:
        return None
    first = min((each.before for each in own), key=positions.__getitem__)
    newest = max(own, key=lambda each: (positions[each.after], each.at))
    asked = {each.after for each in own}
    reasons = Counter(why for each in own for why in each.unjudged.values())
    changing = _changing(project, first, newest.after) if project else []
    return {
        "machine": machine,
        "branch": line.name,
        "first": first,
        "newest": newest.after,
        "asked": len(asked),
        "changing": len({each.after for each in own if each.changed}),
        "links": sum(len(each.changed) for each in own),
        "gpus": sorted({each.gpu for each in own if each.links}),
        "missing": [commit for commit in changing if commit not in asked],
        "unjudged": [[why, count] for why, count in reasons.most_common()],
        "later": len(_changing(project, newest.after, line.commits[-1])) if project else 0,
    }


def _changing(project: Project, first: str, newest: str) -> list[str]:
    """The commits after `first` up to `newest` that change files on which launches may depend."""
    found = git(project.root, "rev-list", "--first-parent", f"{first}..{newest}", "--", *project.launch_paths())
    return found.splitlines()


def told(
    machine: str,
    sessions: Sequence[Session],
    series: Sequence[LinkedSeries],
    positions: Mapping[str, int],
    commits: Mapping[str, Commit],
) -> Json:
    """The data file of a machine's links. `positions`: of the commits of the branch; `commits`: what git tells of
    them."""
    own = [each for each in sessions if each.before in positions and each.after in positions]
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
    of its piece, and the half-width of its 95 % interval."""
    pieces, levels = chain.pieces, chain.levels
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
                "word": chain.word(node),
                **({"why": own.why} if own.why else {}),
            }
        )
    named = [number[id(edge.session)] for edge, _ in chain.disagreeing()]
    return {
        "launches": launches,
        "links": [
            [
                number[id(edge.session)], edge.before, edge.after, rounded(edge.link.log, DIGITS),
                rounded(edge.judged.half(), 3), len(edge.link.logs), edge.judged.word,
            ]
            for edge in chain.edges
        ],
        "disagree": named,
    }  # fmt: skip
