"""What git tells of commits. It uses a private name of asv: Git._run_git."""

import re
from collections.abc import Iterable
from typing import Any, TypedDict, cast

from kernelwatch.history.store import Store

BATCH = 1000  # commits that git is asked about at once

# What git tells of a commit: hash, date, author and subject, each after a NUL, which none can hold, and two lines for
# each file: one with git's letter, one with the lines that were added and removed ("-" for a binary file).
COMMIT = re.compile(r"\0([0-9a-f]{40,64})\0(\d+)\0([^\0]*)\0([^\0\n]*)((?:\n[:\d-][^\n]*|\n)*)")
LETTER = re.compile(r"(?m)^:.* ([A-Z])\t(.*)$")
LINES = re.compile(r"(?m)^(\d+|-)\t(\d+|-)\t(.*)$")


class Commit(TypedDict):
    """A commit. `date`: when it was authored, in ms since 1970; `files`: git's letter, path, number of lines added and
    removed, None for a binary file."""

    hash: str
    date: int
    author: str
    subject: str
    files: list[tuple[str, str, int | None, int | None]]


def commits_of(repo: Any, hashes: Iterable[str], store: Store) -> dict[str, Commit]:
    """What git records about commits, by hash."""
    wanted = sorted(set(hashes))
    known = cast(dict[str, Commit], store.commits(wanted))
    missing = [commit for commit in wanted if commit not in known]
    for start in range(0, len(missing), BATCH):
        told = _told_by_git(repo, missing[start : start + BATCH])
        store.add_commits(told)
        known |= told
    return known


def _told_by_git(repo: Any, wanted: Iterable[str]) -> dict[str, Commit]:
    layout = ("--format=%x00%H%x00%at%x00%an%x00%s", "--raw", "--numstat", "--no-renames")
    output = repo._run_git(["log", "--no-walk=unsorted", "--no-show-signature", *layout, *wanted, "--"], dots=False)
    found: dict[str, Commit] = {}
    for commit, date, author, subject, lines in COMMIT.findall(output):
        changed = {path: (_count(added), _count(removed)) for added, removed, path in LINES.findall(lines)}
        files = [(letter, path, *changed.get(path, (None, None))) for letter, path in LETTER.findall(lines)]
        found[commit] = {
            "hash": commit, "date": 1000 * int(date), "author": author, "subject": subject, "files": files
        }  # fmt: skip
    return found


def _count(lines: str) -> int | None:
    return None if lines == "-" else int(lines)
