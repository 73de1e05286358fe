"""What was said beforehand of a comparison's regressions: the decisions in results/decisions.toml, and what commits
announce by Perf-Expected. They cover the commits between both sides."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kernelwatch.detect.events import change_id
from kernelwatch.detect.states import CLOSE, percent
from kernelwatch.history import decisions, expected
from kernelwatch.history.decisions import Accepted, Decision
from kernelwatch.history.expected import KEY, Expected
from kernelwatch.plan.project import Project
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.system.git import git, run_command


@dataclass(frozen=True)
class Consent:
    """Why a regression is all right, or why what was said does not cover it. `covers`: whether it does."""

    words: str
    covers: bool


@dataclass(frozen=True)
class Consents:
    """`machine`: asv's name of this one; `commits`: those of which something was said, that the second side has and the
    first lacks, and that were not taken back, one of those that make the same change; `accepted`: by the id of a
    change; `announced`: by these commits; `damaged`: why decisions cannot be read. Then nothing counts as accepted.
    `renamed`: the rungs by whose oldest names a change has its id."""

    machine: str = ""
    commits: Sequence[str] = ()
    accepted: Mapping[str, tuple[Decision, Accepted]] = field(default_factory=dict)
    announced: Sequence[Expected] = ()
    damaged: str = ""
    renamed: Renamed = NONE

    def of(self, shown: Sequence[object], names: Iterable[str], least: float, sign: float = 1.0) -> Consent | None:
        """What was said of a regression; None if nothing was.

        `shown`: as in `change_id`. `names`: by which a commit may announce it. `least`: the relative change that it has
        at least. `sign`: 1 if more is worse, else -1. Of several commits, the sizes that were allowed multiply.
        """
        names, allowed, words = list(names), 1.0, []
        for commit in self.commits:
            known = self.accepted.get(change_id(self.machine, shown, commit))
            if known is not None:
                decision, own = known
                ends = own.bounds or (own.size, own.size)
                bound = math.inf * sign if None in ends else max(ends, key=lambda end: sign * (end or 0.0))
                words.append(f"{commit[:8]} accepted by {decision.by.partition(' <')[0]}: {decision.reason}")
            else:
                told = (one for one in self.announced if one.commit == commit and one.is_about(names))
                announced = next((one for one in told if one.size is not None), None)
                if announced is None:
                    continue
                bound = announced.size
                words.append(f"{commit[:8]} says {KEY}: {announced.text}")
            allowed *= 1 + (bound or 0.0)
        if not words:
            return None
        if sign * least > sign * (allowed - 1) + CLOSE:
            return Consent(f"more than {percent(allowed - 1)}: {'; '.join(words)}", covers=False)
        return Consent("; ".join(words), covers=True)


def between(project: Project, machine: str, base: str, head: str) -> Consents:
    """What was said of the commits that `head` has and `base` lacks. Raises: UserError."""
    commits = git(project.root, "rev-list", f"{base}..{head}", "--").split()
    own = set(commits)

    def ask(arguments: list[str]) -> str:
        return git(project.root, *arguments)

    announced = [one for one in expected.read(ask, [head], project.renamed) if one.commit in own] if commits else []
    try:
        accepted, damaged = decisions.by_change(decisions.read(project.results / decisions.NAME)), ""
    except decisions.Damaged as error:
        accepted, damaged = {}, str(error)
    told = {name.partition("-")[0] for name in accepted} | {one.commit[:12] for one in announced}
    standing = [commit for commit in commits if commit[:12] in told and not _is_taken_back(project, commit, head)]
    once = {_patch(project, commit): commit for commit in standing}
    return Consents(machine, [*once.values()], accepted, announced, damaged, project.renamed)


def _patch(project: Project, commit: str) -> str:
    """What two commits have in common that make the same change, as a cherry-pick does: it came once, and is allowed
    once."""
    change = run_command("git", "diff-tree", "-p", commit, root=project.root)
    return run_command("git", "patch-id", "--stable", root=project.root, given=change).decode()[:40].strip() or commit


def _is_taken_back(project: Project, commit: str, head: str) -> bool:
    """Whether all files on which launches may depend and that a commit changed were once more, up to `head`, as they
    were before it: what was said of its change says nothing of a later one."""
    if len(git(project.root, "rev-list", "--parents", "-n", "1", commit).split()) == 1:
        return False  # a root
    differ = ("diff", "--name-only", "--no-renames", "-z", f"{commit}^", commit, "--", *project.launch_paths())
    files = [f":(top,literal){name}" for name in git(project.root, *differ).split("\0") if name]
    if not files:
        return False
    before = git(project.root, "rev-parse", f"{commit}^^{{tree}}")
    touching = ("log", "--format=%T", "--full-history", "--ancestry-path", f"{commit}..{head}", "--", *files)
    trees = git(project.root, *touching).split()
    # One process for all: it tells the two trees of each pair, then a line with ":" for each file that differs.
    pairs = "".join(f"{before} {tree}\n" for tree in trees).encode()
    told = run_command("git", "diff-tree", "--stdin", "-r", "--raw", "--", *files, root=project.root, given=pairs)
    lines = [*told.splitlines(), b""] if trees else []
    return any(not line.startswith(b":") and not after.startswith(b":") for line, after in pairwise(lines))
