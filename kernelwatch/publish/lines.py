"""The lines of commits along which series are judged: the configured branches, and the first parents of each measured
commit that lies on none of them, such as one of a feature branch, of a detached HEAD, or of what a merge brought in.

asv drops the results of such commits.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kernelwatch.publish.recorded import Recorded

BATCH = 1000  # commits that git is asked about at once


@dataclass(frozen=True)
class Line:
    """A line of commits.

    `name`: of the branch. `commits`: the newest one and its first parents, the oldest first.
    `own`: the measured commits that no configured branch has; None if the line is a configured branch.
    `merged`: whether a configured branch contains it.
    """

    name: str
    commits: list[str] = field(repr=False)
    own: frozenset[str] | None = None
    merged: bool = False

    @property
    def is_configured(self) -> bool:
        return self.own is None

    @cached_property
    def positions(self) -> dict[str, int]:
        return {commit: at for at, commit in enumerate(self.commits)}

    @property
    def fork(self) -> str:
        """The last commit that it shares with a configured branch, "" if there is none."""
        shared = (commit for commit in reversed(self.commits) if commit not in (self.own or ()))
        return next(shared, "")


def lines_of(conf: Any, repo: Any, measured: Collection[str]) -> tuple[list[Line], list[str]]:
    """The lines that have these commits, the configured branches first; and the commits that git does not know."""
    branches = [Line(repo.get_branch_name(name), repo.get_branch_commits(name)[::-1]) for name in conf.branches]
    on_branches = {commit for line in branches for commit in line.commits}
    stray = sorted({*measured} - on_branches)
    if not stray:
        return branches, []
    known = _known(repo, stray)
    unknown = [commit for commit in stray if commit not in known]
    return [*branches, *_strays(repo, sorted(known), branches, on_branches)], unknown


def newest_of(lines: Iterable[Line], recorded: Sequence[Recorded]) -> dict[tuple[str, str], tuple[int, str]]:
    """The newest measured commit of each machine on each line that has one of its own: its position and hash."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for line in lines:
        own = [each for each in recorded if each.commit in line.positions]
        for machine in dict.fromkeys(each.machine for each in own):
            commits = [each.commit for each in own if each.machine == machine]
            if line.own is None or not line.own.isdisjoint(commits):
                found[machine, line.name] = max((line.positions[commit], commit) for commit in commits)
    return found


def _known(repo: Any, commits: list[str]) -> set[str]:
    """Those that lie in the repository, on whatever branch or on none."""
    found: set[str] = set()
    for start in range(0, len(commits), BATCH):
        asked = ["rev-list", "--no-walk", "--ignore-missing", *commits[start : start + BATCH], "--"]
        found.update(repo._run_git(asked, dots=False).split())
    return found.intersection(commits)


def _strays(repo: Any, stray: list[str], branches: list[Line], on_branches: set[str]) -> list[Line]:
    """The lines of commits that lie on no configured branch."""
    if not stray:
        return []
    output = repo._run_git(["rev-list", "--first-parent", "--parents", *stray, "--"], dots=False)
    parents = {commit: rest[0] if rest else "" for commit, *rest in map(str.split, output.splitlines())}
    below = {parent for commit in stray for parent in _chain(parents, parents[commit], on_branches)}
    tips = [commit for commit in stray if commit not in below]
    ends = [line.commits[-1] for line in branches if line.commits]
    unmerged = set(repo._run_git(["rev-list", *tips, "--not", *ends, "--"], dots=False).split())
    wanted, lines = set(stray), []
    for tip in tips:
        chain = list(_chain(parents, tip, set()))[::-1]
        own = frozenset(wanted.intersection(chain))
        lines.append(Line(_name(repo, tip), chain, own, tip not in unmerged))
    return sorted(lines, key=lambda line: (line.merged, line.name))


def _chain(parents: dict[str, str], commit: str, until: Collection[str]) -> Iterable[str]:
    """A commit and its first parents, as far as one that is in `until`."""
    while commit and commit not in until:
        yield commit
        commit = parents.get(commit, "")


def _name(repo: Any, tip: str) -> str:
    """What to call a line that ends with a commit: the branch that it is the head of, or lies on by first parents; else
    the beginning of its hash."""
    layout = "--format=%(objectname) %(refname:short)"
    refs = repo._run_git(["for-each-ref", layout, f"--contains={tip}", "refs/heads", "refs/remotes"], dots=False)
    heads = [line.partition(" ")[::2] for line in refs.splitlines()]
    for _, name in sorted(heads, key=lambda head: (head[0] != tip, head)):
        if not name.endswith("/HEAD") and tip in repo.get_hashes_from_range(name):
            return str(name)
    return tip[:8]
