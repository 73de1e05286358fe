"""What failed or was gone and is back: it is compared with the last commit that had it."""

from collections.abc import Iterable, Mapping, Sequence

from kernelwatch.history.links import ENVIRONMENT, Session

UNCOMPARED = "it is back, and nothing compares it with the last commit that had it"


def returned(one: Session, known: Iterable[Session], line: Sequence[str]) -> Mapping[str, list[str]]:
    """The cells and rungs of a session that its parent lacks, or that failed there, by the last commit that had them;
    [] stands for all, if nothing of the parent can be imported. `known`: the other sessions, of which those of the same
    commit do not tell what was lost before it; `line`: the commits before the session's, the oldest first."""
    positions = {commit: at for at, commit in enumerate(line) if commit != one.after}
    own = [each for each in known if each.kind == "step" and each.before in positions and each.after in positions]
    lost: dict[str, str] = {}
    for session in sorted(own, key=lambda each: positions[each.after]):
        for name in (*_back(session), *(link.cell for link in session.changed)):
            lost.pop(name, None)
        for name in (*session.gone, *(name for name, why in session.unjudged.items() if why.startswith("failed"))):
            lost.setdefault("" if name == session.after[:8] else name, session.before)
    found: dict[str, list[str]] = {}
    for name in _back(one):
        if name in lost:
            found.setdefault(lost[name], []).extend([name] if name else [])
    return found


def _back(session: Session) -> set[str]:
    """The cells and rungs that a session finds new or repaired; "" if nothing of its parent could be imported."""
    repaired = {name for name, why in session.unjudged.items() if why.startswith("repaired")}
    is_mended = session.before[:8] in session.unjudged and session.after[:8] not in session.unjudged
    return {*session.new, *repaired, *([""] if is_mended else [])}


def is_across(session: Session, one: Session, before: str) -> bool:
    """Whether a session compares the commit of another one with the last commit that had something."""
    return session.kind == "step" and (session.before, session.after) == (before, one.after)


def uncompared(sessions: Sequence[Session], line: Sequence[str]) -> dict[tuple[str, str], str]:
    """Why what is new at a commit is not: by commit, and by cell or rung, what was gone before and is back, unless a
    session compares it with the last commit that had it. `line`: the commits, the oldest first."""
    found: dict[tuple[str, str], str] = {}
    for one in sessions:
        if not one.new:
            continue
        for before, names in returned(one, sessions, line[: line.index(one.after) + 1]).items():
            if not any(is_across(each, one, before) for each in sessions):
                found |= {(one.after, name): UNCOMPARED for name in names if name in one.new}
    return found


def bridged(sessions: Sequence[Session], line: Sequence[str]) -> set[tuple[int, str]]:
    """What sessions could not compare, and one across the gap did: the `id` of the session, and what failed, was gone
    or came back there: a cell, a rung or, as a whole, a commit. `line`: the commits, the oldest first."""
    positions = {commit: at for at, commit in enumerate(line)}
    found = set()
    for one in [each for each in sessions if _back(each)]:
        own = [each for each in sessions if each.conditions.get(ENVIRONMENT) == one.conditions.get(ENVIRONMENT)]
        for before, names in returned(one, own, line[: positions[one.after] + 1]).items():
            if any(is_across(each, one, before) for each in own):
                for each in own:
                    is_within = positions[before] <= positions[each.before] < positions[each.after]
                    is_within = is_within and positions[each.after] <= positions[one.after]
                    if is_within and not is_across(each, one, before):
                        found |= {(id(each), name) for name in names or (each.before[:8], each.after[:8])}
    return found
