"""Find the package, and the version of it, that made a cell or an exact series what it is in another environment.

Both environments are files of requirements. Their lines are exchanged one after another, those of the first file for
those of the second, and the environments on the way are compared with the first. If what is found is a package whose
two versions are pinned, the versions that its index has between them are searched in the same way.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kernelwatch.comparison import exact
from kernelwatch.comparison.bisect import exact_verdict, search, told, what
from kernelwatch.comparison.exact import ExactSeries
from kernelwatch.comparison.paired import Comparison, Judged, Side
from kernelwatch.plan.build import tree_of_checkout, tree_of_commit
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.interpreters import Interpreter, interpreter, requirement_lines, variables
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import UserError
from kernelwatch.system.waiting import status

NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(?=[=<>!~;@]|$)")
PIN = re.compile(r"[^;]*==\s*([^\s;,*]+)\s*(?:;.*)?$")
HASH = re.compile(r"[0-9a-f]{64}")  # of a file that a line names; pip is not told it
INDEX_TIMEOUT_S = 120


@dataclass(frozen=True)
class Requirements:
    """What a file of requirements says: the line of each distribution by its name, and all other lines."""

    lines: Mapping[str, str]
    others: tuple[str, ...]

    def pin(self, name: str) -> str:
        """The version to which a distribution is pinned, "" if to none."""
        found = PIN.match(self.lines.get(name, ""))
        return found[1] if found and "--hash" not in self.lines[name] else ""


def read(text: str) -> Requirements:
    """A file of requirements. Raises: UserError if it is none."""
    file = Path(text)
    if not file.is_file():
        raise UserError(f"{text} is no file of requirements: --find with --env exchanges the lines of two of them")
    lines, others = {}, []
    for line in _flat(file):
        if found := NAME.match(line):
            lines[re.sub(r"[-_.]+", "-", found[1]).lower()] = line
        else:
            others.append(line)
    return Requirements(lines, tuple(others))


def _flat(file: Path) -> Iterator[str]:
    """The lines of a file and of those that it names, whose paths hold from any folder."""
    for line in requirement_lines(file):
        if line in ("-r", "--requirement") or HASH.fullmatch(line):
            continue
        if line in ("-c", "--constraint"):
            raise UserError(f"{file} has constraints; --find with --env needs the versions in the file itself")
        head, separator, path = line.rpartition("=" if line.startswith("--") and "=" in line else " ")
        place = file.parent / path
        yield f"{head}{separator}{place.resolve()}" if place.exists() else line


def steps(first: Requirements, second: Requirements) -> list[str]:
    """The distributions whose lines differ, in the order of the second file; those that it lacks come last."""
    names = [*second.lines, *(name for name in first.lines if name not in second.lines)]
    return [name for name in names if first.lines.get(name) != second.lines.get(name)]


def exchanged(first: Requirements, second: Requirements, names: Sequence[str]) -> Requirements:
    """The first file with the lines of these distributions as the second has them."""
    lines = dict(first.lines)
    for name in names:
        lines.pop(name, None)
        if name in second.lines:
            lines[name] = second.lines[name]
    return Requirements(lines, tuple(dict.fromkeys((*first.others, *second.others))))


def between(python: str, requirements: Requirements, name: str, low: str, high: str) -> list[str]:
    """The versions of a distribution from `low` to `high` that pip finds for an interpreter, in that order; only these
    two if its index cannot be asked."""
    options = [word for line in requirements.others for word in line.split()]
    command = [python, "-m", "pip", "index", "versions", name, "--disable-pip-version-check", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables(python), timeout=INDEX_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return [low, high]
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    known = found[1].split(", ")[::-1] if found else []
    if low not in known or high not in known:
        return [low, high]
    one, other = known.index(low), known.index(high)
    return known[one : other + 1] if one < other else known[other : one + 1][::-1]


class _Search:
    """The search for one cell or series on one tree."""

    def __init__(
        self, project: Project, of: Cell | ExactSeries, commit: str, folder: Path, budget_s: float,
        within: float | None, console: Console,
    ) -> None:  # fmt: skip
        self.project, self.of, self.commit, self.folder = project, of, commit, folder
        self.budget_s, self.within, self.console = budget_s, within, console
        self.tree = ""

    def environment(self, requirements: Requirements) -> Interpreter:
        """The environment of some lines, made if it must be. Raises: UserError."""
        file = self.folder / "requirements.txt"
        file.write_text("\n".join([*requirements.others, *requirements.lines.values(), ""]), encoding="utf-8")
        with status(self.console, "making an environment ...") as tell:
            return interpreter(str(file), tell)

    def side(self, name: str, own: Interpreter) -> Side:
        """The tree in an environment. All share one tree, unless each environment builds its own."""
        if self.project.build or not self.tree:
            place = Path(tempfile.mkdtemp(dir=self.folder), "tree")
            if self.commit:
                self.tree = tree_of_commit(self.project, self.commit, place, own)
            else:
                self.tree = tree_of_checkout(self.project, place, own)
        return Side(name, self.tree, own.python)

    def compare(self, first: Side, requirements: Requirements, briefly: bool) -> Judged:
        """Compare the environment of some lines with the first one."""
        try:
            other = self.side("B", self.environment(requirements))
        except UserError as error:
            return Judged("cannot tell", re.sub(r"^\S+requirements.txt ", "", str(error)))
        of = self.of
        if isinstance(of, ExactSeries):
            values = [
                exact.figures_of(self.project, side.tree, {of.rung}, of.name.rpartition(".")[2], side.python).values[of]
                for side in (first, other)
            ]
            return exact_verdict(of, *values)
        comparison = Comparison(self.project, first, other, [of], {}, self.within, {of.name})
        with status(self.console, "timing ...") as tell:
            comparison.run(0.0 if briefly else self.budget_s, tell)
        return told(comparison.pairs[of.key], comparison.verdict(of.key))


def find(
    project: Project, name: str, texts: Sequence[str], commit: str, budget_s: float, within: float | None,
    console: Console,
) -> int:  # fmt: skip
    """Print the first package and version that made a cell or series what it is in the second environment and return 0,
    or print why there is none and return 2. `commit`: "" for the working tree. Raises: UserError."""
    of = what(project, name)
    first, second = (read(text) for text in texts)
    names = steps(first, second)
    if not names:
        console.print("both files ask for the same: there is nothing to look for")
        return 2
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        search_for = _Search(project, of, commit, Path(folder), budget_s, within, console)
        own = search_for.environment(exchanged(first, second, []))
        base = search_for.side("A", own)
        labels = ["A", *(_change(first, second, name) for name in names)]
        console.print(f"{len(names)} lines differ: {', '.join(labels[1:])}", markup=False, highlight=False)

        judged: dict[int, Judged] = {}  # by the number of lines exchanged

        def with_lines(at: int, briefly: bool) -> Judged:
            judged[at] = search_for.compare(base, exchanged(first, second, names[:at]), briefly)
            return judged[at]

        found = search(labels, with_lines, console)
        if found is None:
            return 2
        word, at = found
        name, said = names[at - 1], labels[at]
        low, high = first.pin(name), second.pin(name)
        known = between(own.python, second, name, low, high) if low and high else []
        if len(known) > 2:  # the versions between were never tried; the last one was, by its line
            lines_at = at
            console.print(f"{name} has {len(known) - 2} versions between {low} and {high}", highlight=False)
            before = exchanged(first, second, names[: at - 1])
            line = second.lines[name]

            def with_version(at: int, briefly: bool) -> Judged:
                if known[at] == high:
                    return judged[lines_at]
                lines = {**before.lines, name: line.replace(high, known[at])}
                return search_for.compare(base, Requirements(lines, before.others), briefly)

            versions = search([f"{name} {version}" for version in known], with_version, console)
            if versions is None:
                return 2
            word, at = versions
            said = f"{name} {known[at - 1]} -> {known[at]}"
        console.print(f"first {word}: {said}", style="bold", markup=False, highlight=False, soft_wrap=True)
        return 0


def _change(first: Requirements, second: Requirements, name: str) -> str:
    """How a distribution's line changes, in words."""
    old, new = (own.pin(name) or own.lines.get(name, "none") for own in (first, second))
    return f"{name} {old} -> {new}"
