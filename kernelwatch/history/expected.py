"""Changes that commits announce: the trailer `Perf-Expected: transpose/padded +3%` of their messages."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernelwatch.plan.renamed import NONE, Renamed

Ask = Callable[[list[str]], str]  # what git answers to these arguments
KEY = "Perf-Expected"
VALUE = re.compile(r"(?P<subject>\S.*?)\s+(?P<size>[+\u2212-]\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Expected:
    """A change that a commit announces. `subject`: a cell, the beginning of some, or a figure of asv; `size`: the
    relative change, None if the text cannot be read; `author`: of the commit."""

    commit: str
    author: str
    text: str
    subject: str = ""
    size: float | None = None

    def is_about(self, names: Iterable[str]) -> bool:
        """Whether it names something by one of its names: by the whole of it, or by its beginning up to the end of a
        word."""
        return any(
            name == self.subject or name.startswith(tuple(self.subject + end for end in " /(")) for name in names
        )


def read(ask: Ask, tips: Iterable[str], renamed: Renamed = NONE) -> list[Expected]:
    """What the commits announce from which these can be reached, the oldest first."""
    layout = f"--format=%x00%H%n%an%n%(trailers:key={KEY},valueonly,unfold,separator=%x0A)"
    wanted = ["log", "--reverse", "-i", f"--grep=^{KEY}:", "--no-show-signature", layout, *dict.fromkeys(tips), "--"]
    found: list[Expected] = []
    for entry in ask(wanted).split("\0")[1:]:
        commit, author, *texts = entry.split("\n")
        found += [parsed(commit, author, text.strip()) for text in texts if text.strip()]
    return [replace(each, subject=renamed.now(each.subject)) for each in found]


def parsed(commit: str, author: str, text: str) -> Expected:
    match = VALUE.fullmatch(text)
    if not match:
        return Expected(commit, author, text)
    size = float(match["size"].replace("\u2212", "-")) / 100
    return Expected(commit, author, text, match["subject"].strip("\"'"), size)


def positions(ask: Ask, expected: Iterable[Expected], line: Sequence[str]) -> Iterator[tuple[Expected, int]]:
    """Those that lie on a line of commits, with the position of the first commit there that has them: of one of a
    merged branch, the merge."""
    known = {commit: at for at, commit in enumerate(line)}
    for each in expected:
        if each.commit in known:
            yield each, known[each.commit]
        elif line and _has(ask, line[-1], each.commit):
            low, high = -1, len(line) - 1  # the commit at `high` has it
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _has(ask, line[middle], each.commit) else (middle, high)
            yield each, high


def _has(ask: Ask, commit: str, ancestor: str) -> bool:
    """Whether a commit has another one among its ancestors."""
    return not ask(["rev-list", "--max-count=1", ancestor, f"^{commit}", "--"]).strip()
