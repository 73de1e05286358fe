"""The first bad commit of a range for one cell or one exact series: bisection by confirmed comparisons with GOOD.

Commits that launch what the one before them launched are not tried: what the source, the entry and the shared code
are hashed to tells, and where those differ, what they compile to. A commit that cannot be judged is passed over.
"""

import argparse
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

from rich.console import Console

from benchmarks._cells import Cell, plan
from benchmarks._ops import OPS, entries
from scripts import _exact, _versus
from scripts._commits import changes, export, git
from scripts._exact import Series
from scripts._paired import SAME, Comparison, Judged, Side

BAD = ("worse", "better", "higher", "lower", "failed")  # of these the one that BAD shows is looked for


@dataclass
class Commit:
    """A commit of the range, exported where it is looked at."""

    sha: str
    folder: Path
    _package: str | None = field(default=None, repr=False)

    @property
    def package(self) -> str:
        if self._package is None:
            self._package = export(self.sha, self.folder / self.sha)
        return self._package

    @cached_property
    def subject(self) -> str:
        return git("log", "-1", "--format=%h %s", self.sha)


def first_bad(count: int, judge: Callable[[int], str]) -> tuple[int, int, list[int]]:
    """Of commits 0 (good) to `count` - 1 (bad): the last one that is good, the first one that is bad beyond doubt, and
    those between them that could not be judged. `judge(at)`: "good", "bad" or "cannot tell"."""
    good, bad, unknown = 0, count - 1, set[int]()
    while left := [at for at in range(good + 1, bad) if at not in unknown]:
        at = min(left, key=lambda one: abs(2 * one - good - bad))
        match judge(at):
            case "good":
                good = at
            case "bad":
                bad = at
            case _:
                unknown.add(at)
    return good, bad, sorted(at for at in unknown if good < at < bad)


# --- what commits have in common -----------------------------------------------------------------------------------


def _texts(sha: str, rung: str) -> str:
    """Hashes of all that a rung's launch comes from, as git keeps them: of its op's folder, of the ladder, of the code
    of all rungs."""
    folder = f"gpukernels/{rung.partition('/')[0]}"
    found = git("ls-tree", sha, "gpukernels/", folder).splitlines()
    return "\n".join(line for line in found if " blob " in line or line.endswith(f"\t{folder}"))


def _alike(before: Commit, after: Commit, rung: str, cpu: bool) -> bool:
    """Whether two commits launch the same for a rung, without doubt."""
    if not before.package or not after.package:
        return before.package == after.package
    found = changes(before.package, after.package)
    if found.shared or rung in found.launched:
        return False
    if rung not in found.compiled:
        return True
    read = _versus.binaries_of_cpu if cpu else _binaries
    one, other = (read(commit.package, [rung]).get(rung) for commit in (before, after))
    return one is not None and one == other


def _binaries(package: str, names: list[str]) -> dict[str, object]:
    return dict(_exact.measure(package, set(names), "track_registers").binaries)


# --- the command ---------------------------------------------------------------------------------------------------


def what(name: str) -> Cell | Series:
    """A cell by its key, or an exact series by its name. Raises: SystemExit."""
    cells = {cell.key: cell for op, device in _versus.DEVICES for cell in plan(op, device)}
    if name in cells:
        return cells[name]
    every = {f"{op}/{entry.name}" for op in OPS for entry in entries(op)}
    plain = re.sub(r"['\"\s]", "", name)
    series = {re.sub(r"\s", "", str(one)): one for one in _exact.series_of(every)}
    if plain in series:
        return series[plain]
    raise SystemExit(
        f"scripts/versus: no cell or exact series {name!r}; a cell is named like {next(iter(cells), 'op/rung')!r}, "
        f"a series like '{next(iter(series.values()))}'"
    )


def _judge(
    good: Commit, other: Commit, of: Cell | Series, given: argparse.Namespace, budget_s: float, console: Console
) -> Judged:
    """A commit against GOOD."""
    if isinstance(of, Series):
        name = of.name.rpartition(".")[2]
        base, head = (_exact.measure(one.package, {of.rung}, name).values[of] for one in (good, other))
        word = of.verdict(base, head)
        if word == "changed":  # the pages do not judge it; asked for by name it is
            names = ("higher", "lower") if of.higher_is_better is None else ("worse", "better")
            word = names[(head > base) == bool(of.higher_is_better)]  # type: ignore[operator]
        return Judged(word, f"{base} -> {head}")
    if _alike(good, other, f"{of.op}/{of.rung}", of.device == "cpu"):
        return Judged("no change", SAME)
    differ = changes(good.package, other.package)
    choice = _versus.choose([of], set(), differ.rungs)
    sides = Side("GOOD", good.package), Side("it", other.package)
    compared = Comparison(*sides, choice.cells, choice.beside, given.within)
    with console.status("timing ...") as status:
        compared.run(budget_s, status.update)
    found = compared.verdict(of.key)
    if not found.why and compared.pairs[of.key].visits:
        low, high = (100 * bound for bound in found.bounds)
        return Judged(found.word, f"{100 * found.change:+.2f} %, {low:+.2f} to {high:+.2f}", found.ratio, found.floor)
    return found


def _range(text: str) -> list[str]:
    """GOOD and the first-parent commits after it up to BAD, oldest first. Raises: SystemExit."""
    good, bad = (_versus.resolve(part or "HEAD") for part in re.split(r"\.{2,3}", text, maxsplit=1))
    after = git("rev-list", "--first-parent", "--reverse", f"{good}..{bad}").splitlines()
    if not after:
        raise SystemExit(f"scripts/versus: no commits in {text}")
    if git("rev-parse", f"{after[0]}^") != good:
        raise SystemExit(f"scripts/versus: {text}: {good[:8]} is no first-parent ancestor of {bad[:8]}")
    return [good, *after]


def main(given: argparse.Namespace, console: Console) -> int:
    """Print the first bad commit: 0; or why there is none: 2."""
    of = what(given.find)
    rung = of.rung if isinstance(of, Series) else f"{of.op}/{of.rung}"
    with tempfile.TemporaryDirectory(prefix="gpukernels-") as folder:
        every = [Commit(sha, Path(folder)) for sha in _range(given.commits[0])]
        # One commit stands for those after it that launch the same; it is the one to blame.
        tried = [next(same) for _, same in groupby(every, lambda commit: _texts(commit.sha, rung))]
        if isinstance(of, Cell):
            distinct = tried[:1]
            with console.status("compiling ..."):
                for commit in tried[1:]:
                    if not _alike(distinct[-1], commit, rung, of.device == "cpu"):
                        distinct.append(commit)
            tried = distinct
        console.print(f"{len(every) - 1} commits after {every[0].subject}; {len(tried) - 1} may launch another {rung}")
        if len(tried) == 1:
            console.print("no commit changed it: what moved is the environment")
            return 2
        said: dict[int, Judged] = {}

        def judge(at: int) -> str:
            failing = len(tried) - 1 in said and said[len(tried) - 1].word == "failed"  # one turn tells
            said[at] = _judge(every[0], tried[at], of, given, 0.0 if failing else given.budget, console)
            why = f" ({said[at].why})" if said[at].why else ""
            console.print(f"{tried[at].subject}: {said[at].word}{why}", markup=False, highlight=False, soft_wrap=True)
            if said[at].word == said[len(tried) - 1].word:
                return "bad"
            known = (*BAD[:-1], "no change", *(("cannot tell",) if failing else ()))
            return "good" if said[at].word in known else "cannot tell"

        judge(len(tried) - 1)
        if (word := said[len(tried) - 1].word) not in BAD:
            console.print(f"{word}: the last of them shows nothing to look for", markup=False)
            return 2
        _, bad, unknown = first_bad(len(tried), judge)
        if unknown:
            console.print(
                f"cannot tell: it is one of {', '.join(tried[at].subject for at in [*unknown, bad])}",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
            return 2
        console.print(f"first {word}: {tried[bad].sha}", style="bold", highlight=False, soft_wrap=True)
        console.print(git("log", "-1", "--format=%h %an %as%n    %s", tried[bad].sha), markup=False, highlight=False)
        return 0
