"""Find the first bad commit of a range for one cell or one exact series, by comparing commits with GOOD.

A commit that launches the same as the one before it is not tried: what the rung is made from shows that, or the
compiled binaries if sources differ. A commit that cannot be judged is skipped.
"""

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from rich.console import Console

from kernelwatch.comparison import exact
from kernelwatch.comparison.changes import changes
from kernelwatch.comparison.choice import choose
from kernelwatch.comparison.exact import ExactSeries, Value
from kernelwatch.comparison.paired import SAME, Comparison, Judged, Pairs, Side
from kernelwatch.plan.build import tree_of_commit
from kernelwatch.plan.cells import Cell, timed
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import check_range, git, resolve, tree_hash
from kernelwatch.system.waiting import status

JUDGED_BAD = ("worse", "better", "higher", "lower")
BAD = (*JUDGED_BAD, "failed")  # the search is for the one of these that the last commit shows


@dataclass
class Commit:
    """A commit of the range, exported when its package is first needed."""

    project: Project
    sha: str
    folder: Path
    _tree: str | None = field(default=None, repr=False)
    _figures: dict[ExactSeries, Value] = field(default_factory=dict, repr=False)

    @property
    def tree(self) -> str:
        """The folder of its files."""
        if self._tree is None:
            self._tree = tree_of_commit(self.project, self.sha, self.folder / self.sha)
        return self._tree

    def figure(self, of: ExactSeries) -> Value:
        """The figure of an exact series, measured once."""
        if of not in self._figures:
            name = of.name.rpartition(".")[2]
            self._figures[of] = exact.figures_of(self.project, self.tree, {of.rung}, name).values[of]
        return self._figures[of]

    @cached_property
    def subject(self) -> str:
        return git(self.project.root, "log", "-1", "--format=%h %s", self.sha)


def first_bad(count: int, judge: Callable[[int], str]) -> tuple[int, int, list[int]]:
    """Search commits 0 (good) to `count` - 1 (bad). Returns the last good one, the first one that is certainly bad, and
    those between them that could not be judged. `judge(at)`: "good", "bad" or "cannot tell"."""
    good, bad, unknown = 0, count - 1, set[int]()
    while True:
        untried = [at for at in range(good + 1, bad) if at not in unknown]
        if not untried:
            return good, bad, sorted(at for at in unknown if good < at < bad)
        at = min(untried, key=lambda candidate: abs(2 * candidate - good - bad))
        match judge(at):
            case "good":
                good = at
            case "bad":
                bad = at
            case _:
                unknown.add(at)


# --- what commits have in common -----------------------------------------------------------------------------------


def same_launches(before: Commit, after: Commit, rung: str, type: str = "") -> bool:
    """Whether two commits certainly launch the same for a rung, or for this type of it."""
    differ = changes(before.project, before.tree, after.tree, [rung])
    if type and type not in differ.types.get(rung, (type,)):
        return True
    if rung in differ.compiled:
        old, new = (
            exact.figures_of(commit.project, commit.tree, {rung}, "track_registers").binaries.get(rung)
            for commit in (before, after)
        )
        return old is not None and old == new
    return rung in differ.same or not (rung in differ.rungs or rung in differ.gone)


# --- verdicts ------------------------------------------------------------------------------------------------------


def exact_verdict(of: ExactSeries, base: Value, head: Value) -> Judged:
    """The verdict on an exact series that was asked for by name, also if the pages do not judge it."""
    word = of.verdict(base, head)
    if word == "changed" and isinstance(base, float) and isinstance(head, float):
        if of.higher_is_better is None:
            word = "higher" if head > base else "lower"
        else:
            word = "better" if (head > base) == of.higher_is_better else "worse"
    return Judged(word, f"{base} -> {head}")


def told(pairs: Pairs, judged: Judged) -> Judged:
    """A verdict on a cell that says the change, if it was measured."""
    if not judged.why and pairs.measurements:
        low, high = (100 * bound for bound in judged.bounds)
        return replace(judged, why=f"{100 * judged.change:+.2f} %, {low:+.2f} to {high:+.2f}")
    return judged


def search(names: Sequence[str], compare: Callable[[int, bool], Judged], console: Console) -> tuple[str, int] | None:
    """The word of the last of some steps, and the first step that has it; None, after printing why, if the last shows
    nothing to look for or if steps before cannot be judged.

    `names`: of the steps, of which the first is good. `compare(at, briefly)`: a step with the first one; briefly if a
    single turn is enough.
    """

    changes: dict[int, float] = {}

    def compared(at: int, briefly: bool = False) -> str:
        judged = compare(at, briefly)
        changes[at] = judged.change
        why = f" ({judged.why})" if judged.why else ""
        console.print(f"{names[at]}: {judged.word}{why}", markup=False, highlight=False, soft_wrap=True)
        return judged.word

    word = compared(len(names) - 1)
    if word not in BAD:
        console.print(f"{word}: the last one shows nothing to look for", markup=False)
        return None
    good_words = [*JUDGED_BAD, "no change"]
    if word == "failed":
        good_words.append("cannot tell")  # what does not fail is good; one turn shows that

    def judge(at: int) -> str:
        own = compared(at, word == "failed")
        if own == word:
            return "bad"
        return "good" if own in good_words else "cannot tell"

    _, bad, unknown = first_bad(len(names), judge)
    if unknown:
        candidates = ", ".join(names[at] for at in [*unknown, bad])
        console.print(f"cannot tell: it is one of {candidates}", markup=False, highlight=False, soft_wrap=True)
        return None
    if abs(changes[bad]) < abs(changes[len(names) - 1]) / 2:
        sizes = " of ".join(f"{100 * changes[at]:+.2f} %" for at in (bad, len(names) - 1))
        console.print(f"note: that is {sizes}; search again from there for what came later", markup=False)
    return word, bad


# --- the search ----------------------------------------------------------------------------------------------------


def what(project: Project, name: str) -> Cell | ExactSeries:
    """The cell with this key, or the exact series with this name. Raises: UserError if there is none."""
    cells = {cell.key: cell for cell in timed(project)}
    if name in cells:
        return cells[name]
    plain = re.sub(r"['\"\s]", "", name)
    series = {re.sub(r"\s", "", str(known)): known for known in exact.series_of(project, set(project.rungs()))}
    if plain in series:
        return series[plain]
    like = [f"a cell is named like {next(iter(cells), 'op/rung type shape cold')!r}"]
    like += [f"a series like '{known}'" for known in list(series.values())[:1]]
    raise UserError(f"no cell or exact series {name!r}; {', '.join(like)}")


def _judge(
    good: Commit, other: Commit, of: Cell | ExactSeries, budget_s: float, within: float | None, console: Console
) -> Judged:
    """Compare a commit with GOOD."""
    project = good.project
    if isinstance(of, ExactSeries):
        return exact_verdict(of, good.figure(of), other.figure(of))
    if same_launches(good, other, of.name, of.type):
        return Judged("no change", SAME)
    differ = changes(project, good.tree, other.tree).rungs
    choice = choose(project, [of], set(), differ)
    sides = Side("GOOD", good.tree), Side(other.sha[:8], other.tree)
    comparison = Comparison(project, *sides, choice.cells, choice.controls, within, differ)
    with status(console, "timing ...") as tell:
        comparison.run(budget_s, tell)
    return told(comparison.pairs[of.key], comparison.verdict(of.key))


def _range(root: Path, text: str) -> list[str]:
    """GOOD and the first-parent commits after it up to BAD, oldest first. Raises: UserError if there are none."""
    good, bad = (resolve(root, part or "HEAD") for part in re.split(r"\.{2,3}", text, maxsplit=1))
    after = git(root, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}").splitlines()
    check_range(text, after, partial(resolve, root))
    if git(root, "rev-parse", f"{after[0]}^") != good:
        raise UserError(f"{text}: {good[:8]} is not a first-parent ancestor of {bad[:8]}")
    return [good, *after]


def _distinct(commits: list[Commit], of: Cell | ExactSeries, rung: str) -> list[Commit]:
    """The commits that may launch something different from the one before them. Each stands for the commits after it
    that launch the same."""
    hashes = [tree_hash(commit.project.root, commit.sha) for commit in commits]
    tried = [commit for at, commit in enumerate(commits) if not at or hashes[at] != hashes[at - 1]]
    distinct = tried[:1]
    for commit in tried[1:]:
        before = distinct[-1]
        alike = same_launches(before, commit, rung, of.type if isinstance(of, Cell) else "")
        if isinstance(of, ExactSeries):  # a source may count otherwise that compiles to the same
            alike = rung in changes(commit.project, before.tree, commit.tree, [rung]).same
        if not alike:
            distinct.append(commit)
    return distinct


def find(project: Project, name: str, range: str, budget_s: float, within: float | None, console: Console) -> int:
    """Print the first bad commit of a range and return 0, or print why there is none and return 2."""
    of = what(project, name)
    rung = of.rung if isinstance(of, ExactSeries) else of.name
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        every = [Commit(project, sha, Path(folder)) for sha in _range(project.root, range)]
        with status(console, "compiling ..."):
            tried = _distinct(every, of, rung)
        console.print(f"{len(every) - 1} commits after {every[0].subject}; {len(tried) - 1} may launch another {rung}")
        if len(tried) == 1:
            console.print("no commit changed its launch: if its time moved, the environment moved it")
            return 2

        def compare(at: int, briefly: bool) -> Judged:
            return _judge(every[0], tried[at], of, 0.0 if briefly else budget_s, within, console)

        found = search([commit.subject for commit in tried], compare, console)
        if found is None:
            return 2
        word, bad = found
        console.print(f"first {word}: {tried[bad].sha}", style="bold", highlight=False, soft_wrap=True)
        last = git(project.root, "log", "-1", "--format=%h %an %as%n    %s", tried[bad].sha)
        console.print(last, markup=False, highlight=False)
        return 0
