"""The links of a history: how much the time of a launch changed from one commit to another, measured in turns.

A session compares two commits on one GPU under one driver, with the same packages and the same harness on both sides.
So a link is comparable with every other link, whichever GPU and versions each was measured with. A session is one file
beside the results of a machine, <machine>/<commit>.<session>.links.jsonl: sessions of several people, or of several
GPUs, are added to a history without a conflict.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.system.files import write_whole

Kind = Literal["step", "anchor", "environment", "full runs"]
Word = Literal["worse", "better", "no change", "cannot tell"]  # a verdict on a link
FULL_RUNS: Kind = "full runs"  # derived from records (publish/full_runs.py): no file has one
SUFFIX = ".links.jsonl"
DIGITS = 7  # of a log ratio: 1e-7 is a hundred times less than the noise of any cell
MOST_BYTES = 2**25  # of a session's file; a commit that changes 1,000 cells takes 1 MB
MOST_LOG = 100.0  # of a ratio: a larger one is no measurement
COMMIT = re.compile(r"[0-9a-f]{40,64}")
ENVIRONMENT = "environment"  # a condition: the environment of asv whose commits took turns
TEXTS = ("gpu", "cpu", "nvml_uuid_sha256", "nvml_driver", "harness", ENVIRONMENT)  # conditions that are read
BROKEN = (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError)  # reading one
NOT_ASKED = "not asked for"  # the end of a reason: another call may measure it
NOT_HERE = "there is no GPU here"  # another machine may measure it
RENAMED = f"it was renamed, and a comparison was {NOT_ASKED}"
NOT_DESCRIBED = "the description has no such rung"
NOT_TIMED = "no suite times it"
UNDIRECTED = "no better direction is declared (higher_is_better)"  # of a benchmark: no change of it is worse


@dataclass(frozen=True)
class Link:
    """The seconds of a cell after a commit over those before it.

    `log`, `error`, `freedom`: the logarithm of the ratio, its standard error, and the degrees of freedom of that.
    `logs`: the logarithm of the ratio in each turn.
    `rate`: whether more of it is better. Then `log` and `logs` are of the inverse: more than 0 is always worse.
    `seconds`, `clocks_mhz`, `identities`: of the launches before and after: medians over the turns, and hashes.
    `control`: whether both sides launch the cell alike, which shows how quiet the session was.
    `device`: "gpu" or "cpu".
    """

    cell: str
    log: float
    error: float
    freedom: int
    logs: tuple[float, ...]
    seconds: tuple[float, float]
    identities: tuple[str, str] = ("", "")
    clocks_mhz: tuple[float | None, float | None] = (None, None)
    control: bool = False
    device: str = "gpu"
    rate: bool = False

    @property
    def sign(self) -> float:
        """The logarithm of the ratio of the values over `log`."""
        return -1.0 if self.rate else 1.0


@dataclass(frozen=True)
class Session:
    """The comparison of two commits on one GPU: which launches differ, and their links.

    `kind`: "step" if `after` follows `before` on a line of commits, as its parent or, if what is linked failed or was
    gone between them, as the last commit that had it; "anchor" if `before` is an older commit, from which
    a few cells are measured again, so that the links between cannot drift; "environment" if both are one commit, which
    two Python environments measured; "full runs" if nothing took turns, and both commits have a record of this GPU.
    `before`, `after`: the commits; `at`: when it ended, in ISO format; `seconds`: how long it took.
    `conditions`: GPU, driver, packages and harness, as in a record.
    `same`: how many launches are known to be the same on both sides: rungs by their sources, cells by their identity.
    `represented`: how many cells have a binary that is the same on both sides, and whose host code differs: one cell of
    each rung was measured for them.
    `new`, `gone`: the cells that only one side has; `unjudged`: why a changed launch has no link, by cell or rung.
    `described`: by changed rung, a hash of the cells that the description gave it, and of which this session tells; of
    a project without a description, by each benchmark that its suite had, a hash of that suite.
    `environments`: of two environments, the packages that differ, with both versions, "" where there is none.
    """

    kind: Kind
    before: str
    after: str
    at: str
    seconds: float
    conditions: Mapping[str, Any]
    same: int
    represented: int = 0
    links: tuple[Link, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    unjudged: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> list[Link]:
        """The links of the launches that differ."""
        return [link for link in self.links if not link.control]

    @cached_property
    def noise(self) -> dict[str, float]:
        """By device, the largest logarithm by which a control moved."""
        found: dict[str, float] = {}
        for link in self.links:
            if link.control:
                found[link.device] = max(abs(link.log), found.get(link.device, 0.0))
        return found

    @property
    def tells(self) -> bool:
        """Whether it tells anything of what it was asked for. It does not if neither commit has such a launch."""
        asked = any(not why.endswith((NOT_ASKED, UNDIRECTED)) for why in self.unjudged.values())
        return asked or any((self.links, self.same, self.represented, self.new, self.gone))

    def why_left(self, cell: str) -> str:
        """Why this session leaves a cell to another one, which asks for more or has a GPU; "" if it does not."""
        reasons = (self.unjudged.get(name, "") for name in (cell, cell.partition(" ")[0]))
        return next((why for why in reasons if why.endswith(NOT_ASKED) or why == NOT_HERE), "")

    def lacks(self, cell: str, described: str) -> bool:
        """Whether the description had no such cell of a changed rung yet, or no suite timed it. `described`: as the
        session's, of the rung as it is described now."""
        rung = cell.partition(" ")[0]
        if self.unjudged.get(rung) in (NOT_DESCRIBED, NOT_TIMED):
            return True
        told = {*(link.cell for link in self.links), *self.new, *self.gone, *self.unjudged}
        return self.described.get(rung, described) != described and not told & {cell, rung}

    @property
    def gpu(self) -> str:
        """Which GPU it was: its name, and the first digits of its hashed UUID; without one, the CPU."""
        uuid = str(self.conditions.get("nvml_uuid_sha256") or "")
        name = self.conditions.get("gpu") or self.conditions.get("cpu") or ""
        return " ".join(filter(None, (str(name), uuid[:8])))


def gone_id(commit: str, cell: str, renamed: Renamed = NONE) -> str:
    """By what a decision names that a cell, rung or benchmark is gone since a commit, in whatever environment."""
    name = renamed.first(re.sub(r" \[[^][]*\]$", "", cell))
    return f"{commit[:12]}-{hashlib.sha256(f'gone {name}'.encode()).hexdigest()[:8]}"


def without(session: Session, accepted: Collection[str], renamed: Renamed = NONE) -> Session:
    """A session without what is gone on purpose. `accepted`: the ids of decisions."""
    left = tuple(cell for cell in session.gone if gone_id(session.after, cell, renamed) not in accepted)
    return replace(session, gone=left)


def gone(sessions: Iterable[Session]) -> dict[str, str]:
    """The cells and rungs that are gone, with the commit since which they are. What is new or linked later is back.
    `sessions`: those that asked what commits changed, in the order of the commits."""
    found: dict[str, str] = {}
    for session in sessions:
        back = {*session.new, *(link.cell for link in session.changed)}
        rungs = {name.partition(" ")[0] for name in back}
        for name in [name for name in found if name in back | rungs or name.partition(" ")[0] in session.new]:
            del found[name]
        for name in session.gone:
            found.setdefault(name, session.after)
    return found


def save(folder: Path, session: Session) -> Path:
    """Write a session into a machine's folder; its path. Raises: OSError."""
    text = text_for(session)
    path = folder / name_of(session, text)
    write_whole(path, text)
    return path


def text_for(session: Session) -> str:
    """The text of a session's file."""
    head = {name: value for name, value in asdict(session).items() if name != "links"}
    for name in ("environments", "described"):
        if not head[name]:
            del head[name]  # as before there were any
    lines = [json.dumps({"record": "session", **head})]
    lines += [json.dumps({"record": "link", **_rounded(link)}) for link in session.links]
    return "".join(f"{line}\n" for line in lines)


def name_of(session: Session, text: str) -> str:
    """How the file of a session with this text is called."""
    return f"{session.after[:8]}.{hashlib.sha256(text.encode()).hexdigest()[:8]}{SUFFIX}"


def _rounded(link: Link) -> dict[str, Any]:
    values = asdict(link)
    values |= {name: round(values[name], DIGITS) for name in ("log", "error")}
    if not link.rate:
        del values["rate"]  # as before there were any
    return values | {"logs": [round(each, DIGITS) for each in link.logs]}


def by_now(session: Session, renamed: Renamed) -> Session:
    """A session by the names that rungs have today. What it has as gone by an old name and as new by another one, since
    nobody had said that it was renamed, was not compared: another session may do so."""
    if not renamed.was:
        return session
    new, gone = (tuple(map(renamed.now, names)) for names in (session.new, session.gone))
    both = {*new} & {*gone}
    return replace(
        session,
        links=tuple(
            replace(link, cell=cell)
            for cell, link in renamed.by_now({each.cell: each for each in session.links}).items()
        ),
        new=tuple(name for name in new if name not in both),
        gone=tuple(name for name in gone if name not in both),
        unjudged={**renamed.by_now(session.unjudged), **dict.fromkeys(sorted(both), RENAMED)},
        described=renamed.by_now(session.described),
    )


def read(folder: Path, renamed: Renamed = NONE) -> tuple[list[Session], list[str]]:
    """The sessions in a machine's folder by today's names, in the order in which they were measured, and a message for
    each file that is not one as a whole: half a session would hide what the other half says."""
    sessions, messages = [], []
    known: dict[str, Path] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            text = text_of(path)
            session = parsed(text.splitlines())
            name = name_of(session, text)
            if path.name != name:
                raise ValueError(f"it was changed or cut: by its commit and content it should be called {name}")
            if session.links and (other := known.setdefault(_measurement(session), path)) != path:
                raise ValueError(f"it is the measurement of {other.name} once more, in other words")
            sessions.append(by_now(session, renamed))
        except BROKEN as error:
            messages.append(f"{path}: it is not read: {type(error).__name__}: {error}")
    return sorted(sessions, key=lambda session: (session.at, session.after)), messages


def _measurement(session: Session) -> str:
    """What two files of one measurement have in common, such as if one was written again with fewer digits: a GPU has
    one session at a time."""
    own = session.kind, session.before, session.after, session.at, session.seconds, session.conditions
    return json.dumps([*own, sorted(link.cell for link in session.links)], sort_keys=True)


def text_of(path: Path) -> str:
    """The text of a session's file. Raises: OSError; ValueError if it is no file, such as a FIFO, which would be waited
    for, or far too large."""
    _check(path.is_file(), "a path that is no file")
    _check(path.stat().st_size <= MOST_BYTES, f"a file of more than {MOST_BYTES} bytes")
    return path.read_text(encoding="utf-8")


def parsed(lines: Iterable[str]) -> Session:
    """A session from the lines of its file. Raises: one of BROKEN if it is not one."""
    entries = [json.loads(line) for line in lines]
    if not entries or entries[0]["record"] != "session":
        raise ValueError("its first line is not that of a session")
    head = entries[0]
    _check(all(isinstance(head[name], list) for name in ("new", "gone")), "what is new or gone")
    texts = [head[name] for name in ("before", "after", "at")]
    texts += [*head["new"], *head["gone"], *head["unjudged"], *head["unjudged"].values()]
    _check(all(isinstance(text, str) for text in texts), "a text of the session")
    _check(all(COMMIT.fullmatch(head[name]) for name in ("before", "after")), "a commit of the session")
    _check(isinstance(head["conditions"], dict), "the conditions")
    named = (head["conditions"].get(name) for name in TEXTS)
    _check(all(value is None or isinstance(value, str) for value in named), "a condition")
    _check(all(_finite(head[name]) and head[name] >= 0 for name in ("same", "represented", "seconds")), "a number")
    _check(head["kind"] in get_args(Kind) and head["kind"] != FULL_RUNS, "the kind of the session")
    _check((head["kind"] == "environment") is (head["before"] == head["after"]), "the commits of the session")
    environments = head.get("environments", {})
    _check(isinstance(environments, dict), "the environments of the session")
    both = [isinstance(each, list) and len(each) == 2 for each in environments.values()]
    _check(all(both), "an environment of the session")
    _check(all(isinstance(text, str) for each in environments.values() for text in each), "a version of a package")
    described = head.get("described", {})
    _check(isinstance(described, dict), "what was described")
    _check(all(isinstance(text, str) for text in described.values()), "what was described")
    links = tuple(map(_link, entries[1:]))
    _check(len({link.cell for link in links}) == len(links), "a cell that has two links")
    return Session(
        cast(Kind, head["kind"]),
        head["before"],
        head["after"],
        head["at"],
        float(head["seconds"]),
        head["conditions"],
        int(head["same"]),
        int(head["represented"]),
        links,
        tuple(head["new"]),
        tuple(head["gone"]),
        head["unjudged"],
        {name: (before, after) for name, (before, after) in environments.items()},
        described,
    )


def _link(entry: dict[str, Any]) -> Link:
    before_after = [entry[name] for name in ("seconds", "identities", "clocks_mhz")]
    _check(entry["record"] == "link", "the kind of a line")
    _check(isinstance(entry["control"], bool), "whether a link is a control")
    _check(isinstance(entry.get("rate", False), bool), "whether a link is of a rate")
    _check(all(isinstance(pair, list) and len(pair) == 2 for pair in before_after), "a pair of a link")
    texts = (entry["cell"], *entry["identities"])
    _check(all(isinstance(text, str) for text in texts), "a text of a link")
    numbers = (entry["log"], entry["error"], entry["freedom"], *entry["logs"], *entry["seconds"])
    numbers += tuple(clock for clock in entry["clocks_mhz"] if clock is not None)
    _check(all(map(_finite, numbers)), "a number of a link")
    _check(bool(entry["logs"]), "the turns of a link")
    _check(entry["error"] >= 0 and entry["freedom"] >= 1 and min(entry["seconds"]) > 0, "a number of a link")
    _check(max(map(abs, (entry["log"], entry["error"], *entry["logs"]))) < MOST_LOG, "the ratio of a link")
    _check(entry.get("device", "gpu") in ("gpu", "cpu"), "the device of a link")  # GPUs were linked first, without it
    return Link(
        entry["cell"],
        float(entry["log"]),
        float(entry["error"]),
        int(entry["freedom"]),
        tuple(map(float, entry["logs"])),
        (float(entry["seconds"][0]), float(entry["seconds"][1])),
        (entry["identities"][0], entry["identities"][1]),
        (entry["clocks_mhz"][0], entry["clocks_mhz"][1]),
        entry["control"],
        entry.get("device", "gpu"),
        entry.get("rate", False),
    )


def _check(is_sound: bool, what: str) -> None:
    if not is_sound:
        raise ValueError(f"{what} is not what it should be")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
