"""What people decided about regressions: results/decisions.toml, a text that travels with the repository.

An entry accepts an event, by its id, with the size of each of its changes as it then was. Entries are sorted by the
event's id, so that two people who accept two events seldom write at the same place.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwatch.system.errors import UserError
from kernelwatch.system.files import read_regular, write_whole

NAME = "decisions.toml"
MOST_BYTES = 2**24
ENTRY = re.compile(r"[ \t]*\[\[[ \t]*accepted[ \t]*\]\][ \t]*(#.*)?")
ID = re.compile(r"[0-9a-f]{12}-[0-9a-f]{8}")
HEAD = """\
# Regressions that were accepted, written by `kernelwatch accept`. The pages, the feed and the exit codes go by it.
"""


class Damaged(UserError):
    """A file of decisions that cannot be read; the message names the file and the line."""


@dataclass(frozen=True)
class Accepted:
    """The size of a change that was accepted. `id`: of the change; `what`: its cell or figure, for readers of the file;
    `size`: the relative change, None if it starts from 0; `bounds`: the ends of its 95 % interval, or of what its
    series can tell from it."""

    id: str
    what: str
    size: float | None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Decision:
    """Accepts a regression. `event`: the id of the event; `by`, `at`, `reason`: who did so, when, and why."""

    event: str
    by: str
    at: str
    reason: str
    changes: tuple[Accepted, ...]


def read(path: Path) -> list[Decision]:
    """The decisions in a file; none if there is no file. Raises: Damaged, since half of the decisions would leave the
    reader without a word about the others."""
    text = _text(path)
    return _parsed(path, text) if text else []


def by_change(decisions: Iterable[Decision]) -> dict[str, tuple[Decision, Accepted]]:
    """What was accepted of each change, by its id. If two people decided, the newer decision counts."""
    return {each.id: (one, each) for one in sorted(decisions, key=lambda one: one.at) for each in one.changes}


def ids(path: Path) -> set[str]:
    """The ids of what was accepted; none if the file cannot be read, which the pages say."""
    try:
        return {*by_change(read(path))}
    except Damaged:
        return set()


def add(path: Path, decision: Decision) -> None:
    """Add a decision to a file, in place of an older one on the same event; all else in the file stays as it is.
    Raises: Damaged, OSError."""
    text = _text(path) or HEAD
    known = _parsed(path, text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = [at for at, line in enumerate(lines) if ENTRY.fullmatch(line.rstrip())]
    if len(starts) != len(known):
        raise Damaged(
            f"{path}: each entry must begin with a line [[accepted]]; {len(known)} entries, {len(starts)} lines"
        )
    ends = [*starts[1:], len(lines)][: len(starts)]
    entry = _written(decision)
    for one, start, end in zip(known, starts, ends, strict=True):
        if one.event == decision.event:
            lines[start:end] = [entry]
            break
        if one.event > decision.event:
            lines[start:start] = [entry, "\n"]
            break
    else:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines += ["\n", entry]
    fresh = "".join(lines)
    kept = [one for one in known if one.event != decision.event]
    if sorted(_parsed(path, fresh), key=repr) != sorted([*kept, decision], key=repr):
        raise Damaged(
            f"{path}: this decision cannot be added without a change of another one; add it by hand:\n{entry}"
        )
    write_whole(path, fresh)


def _text(path: Path) -> str:
    """The content of the file, "" if there is none. Raises: Damaged."""
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise Damaged(f"{path}: a file of decisions should have less than {MOST_BYTES} bytes, got {len(content)}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Damaged(f"{path}:{line}: it is not UTF-8") from None


def _parsed(path: Path, text: str) -> list[Decision]:
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = re.search(r"line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise Damaged(f"{path}:{line}: it is no TOML: {error or type(error).__name__}") from None
    lines = [at for at, line in enumerate(text.split("\n"), 1) if ENTRY.fullmatch(line.rstrip())]
    entries = content.get("accepted", [])
    if (unknown := [*content.keys() - {"accepted"}]) or not isinstance(entries, list):
        raise Damaged(
            f"{path}:1: it should have entries [[accepted]] only, got {', '.join(sorted(unknown)) or 'a value'}"
        )
    found = []
    for at, entry in enumerate(entries):
        try:
            found.append(_decision(entry))
        except (ValueError, KeyError, TypeError) as error:
            line = lines[at] if at < len(lines) else 1
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise Damaged(f"{path}:{line}: an entry that is no decision: {why}") from None
    return found


def _decision(entry: Mapping[str, Any]) -> Decision:
    """Raises: ValueError, KeyError, TypeError."""
    texts = event, by, at, reason = [entry[name] for name in ("event", "by", "at", "reason")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("event, by, at and reason should be texts")
    if not ID.fullmatch(event):
        raise ValueError(f"event should be an id such as 0123456789ab-01234567, got {event!r}")
    if not isinstance(entry["changes"], list) or not entry["changes"]:
        raise ValueError("changes should be a list of what was accepted")
    return Decision(event, by, at, reason, tuple(map(_accepted, entry["changes"])))


def _accepted(entry: Mapping[str, Any]) -> Accepted:
    """Raises: ValueError, KeyError, TypeError."""
    name, what, size, bounds = entry["id"], entry["what"], entry.get("size"), entry.get("bounds")
    if not isinstance(name, str) or not isinstance(what, str) or not ID.fullmatch(name):
        raise ValueError(f"a change should have an id and a text `what`, got {name!r} and {what!r}")
    figures = [*([] if size is None else [size]), *([] if bounds is None else bounds)]
    if not all(
        isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each) for each in figures
    ):
        raise ValueError(f"size and bounds should be finite numbers, got {size!r} and {bounds!r}")
    if bounds is not None and (len(bounds) != 2 or size is None or not bounds[0] <= size <= bounds[1]):
        raise ValueError(f"bounds should be two numbers about the size, got {size!r} and {bounds!r}")
    return Accepted(name, what, size, None if bounds is None else (bounds[0], bounds[1]))


def _written(decision: Decision) -> str:
    """A decision as an entry of the file."""
    lines = ["[[accepted]]"]
    lines += [f"{name} = {_quoted(getattr(decision, name))}" for name in ("event", "by", "at", "reason")]
    lines.append("changes = [")
    for change in decision.changes:
        parts = [f"id = {_quoted(change.id)}", f"what = {_quoted(change.what)}"]
        parts += [] if change.size is None else [f"size = {float(change.size)!r}"]
        parts += [] if change.bounds is None else [f"bounds = [{change.bounds[0]!r}, {change.bounds[1]!r}]"]
        lines.append(f"    {{ {', '.join(parts)} }},")
    return "\n".join([*lines, "]", ""])


def _quoted(text: str) -> str:
    """A text as TOML's basic string, whose escapes are those of JSON and that has no lone halves of a character."""
    clean = text.encode("utf-16", "replace").decode("utf-16", "replace")
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
