"""Two Python environments that take turns in measuring one commit, or the working tree."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernelwatch.comparison.changes import Changes
from kernelwatch.comparison.linking import Step, link
from kernelwatch.comparison.paired import Side
from kernelwatch.comparison.verdict import some
from kernelwatch.history.links import Session
from kernelwatch.plan.build import tree_of_checkout, tree_of_commit
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.interpreters import Interpreter, differences
from kernelwatch.plan.project import Project

NAMES = ("A", "B")


def sides(project: Project, both: Sequence[Interpreter], commit: str, folder: Path) -> tuple[Side, Side]:
    """Both sides, whose trees are the same one unless each environment builds its own. `commit`: "" for the working
    tree; `folder`: in which trees are made. Raises: UserError."""

    def tree(name: str, own: Interpreter) -> str:
        place = folder / name
        return tree_of_commit(project, commit, place, own) if commit else tree_of_checkout(project, place, own)

    first = tree(NAMES[0], both[0])
    second = tree(NAMES[1], both[1]) if project.build else first
    return Side(NAMES[0], first, both[0].python), Side(NAMES[1], second, both[1].python)


def words(both: Sequence[Interpreter], tree: str) -> str:
    """Which environments measure a tree, in one line. `tree`: what it is called."""
    differ = differences(*both)
    if not differ:
        return f"{tree} in A = {both[0].name} and B = {both[1].name}, whose packages are the same"
    texts = []
    for side, own in enumerate(both):
        named = [f"{name} {versions[side]}" if versions[side] else f"no {name}" for name, versions in differ.items()]
        texts.append(f"{NAMES[side]} = the environment with {some(named)} ({own.name})")
    return f"{tree} in {' and '.join(texts)}"


def packages_text(differ: Mapping[str, tuple[str, str]]) -> str:
    """The packages that differ, with both versions."""
    return ", ".join(f"{name} {before or 'none'} -> {after or 'none'}" for name, (before, after) in differ.items())


def session(
    project: Project, commit: str, both: Sequence[Interpreter], cells: Sequence[Cell], folder: Path, budget_s: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Session:  # fmt: skip
    """Measure cells of a commit in two environments. What they launch is not known to be the same, whatever the sources
    say: the links have no identities. Raises: UserError."""
    one = Step(commit, commit, Changes(), cells)
    found = link(project, one, sides(project, both, commit, folder), budget_s, "environment", tell)
    links = tuple(replace(each, identities=("", "")) for each in found.links)
    return replace(found, links=links, environments=differences(*both))
