#!/usr/bin/env python3
"""Plants one mistake after the other in a copy of the repository, and runs the tests that must notice it.

The mistakes are those of data/mutants.toml: of the kernels, of the harness that measures them, of what judges the
figures. A run of all of them writes docs/mutants.md, and --new adds to it. The exit code is 1 if a mistake survives or
does not apply any more, and 2 if the tests fail without one.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "data" / "mutants.toml"
RECORD = ROOT / "docs" / "mutants.md"
TIME_LIMIT_S = 600  # of a mutant's tests: a mutant may loop for ever
CAUGHT, SURVIVED, NEEDS_GPU, GONE = "caught", "SURVIVED", "needs a GPU", "does not apply"
HEAD = """# Mutants

For developers of this repository: this page lists the mistakes that the tests must catch, and the tests that do. After
reading it you can check that your tests notice a mistake, and add one.

`scripts/lab/mutants` plants each mistake in a copy of this repository and runs the tests that must notice it. It is
run before a release and writes this page. `scripts/lab/mutants WORD ...` runs the mistakes whose room, change or file
has one of the words, and `--new` those that this page lacks, which it adds.
[data/mutants.toml](../data/mutants.toml) holds them all.

A general tool such as mutmut or cosmic-ray changes any operator of the Python code. It changes neither CUDA C++ nor
what people get wrong, and it does not know which test is meant to notice.
"""


@dataclass(frozen=True)
class Mutant:
    """A mistake: `old`, which `file` has once, becomes `new`.

    `room`: kernels, harness or judges. `change`: the mistake in words. `tests`: node ids; each must fail.
    """

    room: str
    change: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, folder: Path) -> bool:
        """Plant the mistake in a copy of the repository; whether it applies."""
        path = folder / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.old) != 1:
            return False
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return True


def mutants() -> list[Mutant]:
    """All mutants, in the order of the table."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [
        Mutant(room, entry["change"], entry["file"], entry["old"], entry["new"], tuple(entry["tests"]))
        for room, entries in table.items()
        for entry in entries
    ]


def copy_to(folder: Path) -> None:
    """Copy the repository's files, as they are in the working tree, without what git ignores."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)


def run_tests(folder: Path, tests: Iterable[str]) -> dict[str, set[str]]:
    """The outcomes of tests in a copy of the repository: by node id those of its cases ("passed", "failed", "skipped",
    "error"). A test that does not exist has none. In a run that does not end all have an error; in one that crashes,
    as an access out of bounds may make it, all fail."""
    asked = dict.fromkeys(tests)
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *asked]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {test: {"error"} for test in asked}
    if done.returncode < 0:  # by a signal
        return {test: {"failed"} for test in asked}
    outcomes: dict[str, set[str]] = {test: set() for test in asked}
    cases = ElementTree.parse(report).getroot().iter("testcase") if report.is_file() else ()
    for case in cases:
        file = case.get("classname", "").replace(".", "/")
        node = f"{file}.py::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = "failed" if "failure" in kinds else "skipped" if "skipped" in kinds else "passed"
        for test in asked:
            if node == test or node.startswith(f"{test}["):
                outcomes[test].add("error" if "error" in kinds else outcome)
    return outcomes


def verdict(mutant: Mutant, ready: Path) -> str:
    """What becomes of a mutant. `ready`: a copy of the repository."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name, "repository")
        shutil.copytree(ready, folder)
        if not mutant.apply(folder):
            return GONE
        outcomes = run_tests(folder, mutant.tests)
    if all("failed" in cases for cases in outcomes.values()):
        return CAUGHT
    return NEEDS_GPU if all(cases == {"skipped"} for cases in outcomes.values()) else SURVIVED


def page(verdicts: Sequence[tuple[Mutant, str]]) -> str:
    """docs/mutants.md."""
    counts = {word: sum(own == word for _, own in verdicts) for word in (CAUGHT, NEEDS_GPU, SURVIVED, GONE)}
    told = "; ".join(f"{word}: {count}" for word, count in counts.items() if count)
    lines = [HEAD, f"{len(verdicts)} mutants; {told}.", ""]
    for room in dict.fromkeys(mutant.room for mutant, _ in verdicts):
        lines += [f"## {room.capitalize()}", "", "| mistake | file | tests |", "| --- | --- | --- |"]
        for mutant, own in verdicts:
            if mutant.room == room:
                tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in mutant.tests)
                note = "" if own == CAUGHT else f"**{own}**: "
                lines.append(f"| {mutant.change} | `{mutant.file}` | {note}{tests} |")
        lines.append("")
    return "\n".join(lines)


def chosen(words: Sequence[str]) -> list[Mutant]:
    """The mutants whose room, change or file has one of these words; all if there are none."""
    return [
        mutant
        for mutant in mutants()
        if not words or any(word in f"{mutant.room} {mutant.change} {mutant.file}" for word in words)
    ]


def recorded(text: str) -> dict[Mutant, str]:
    """The mutants of the table that a page tells to be caught, or to need a GPU."""
    found = {}
    for mutant in mutants():
        _, row, rest = text.partition(f"| {mutant.change} | `{mutant.file}` | ")
        if row and not rest.startswith((f"**{SURVIVED}**", f"**{GONE}**")):
            found[mutant] = NEEDS_GPU if rest.startswith(f"**{NEEDS_GPU}**") else CAUGHT
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run mutants; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/lab/mutants", description=__doc__)
    parser.add_argument("word", nargs="*", help="only mutants whose room, change or file has this word")
    parser.add_argument(
        "--new", action="store_true", help="only mutants that docs/mutants.md does not tell to be caught"
    )
    parsed = parser.parse_args(arguments)
    known = recorded(RECORD.read_text(encoding="utf-8")) if parsed.new else {}
    named = chosen(parsed.word)
    if not named:
        parser.error(f"no mutant has {' or '.join(parsed.word)} in its room, change or file")
    wanted = [mutant for mutant in named if mutant not in known]
    if not wanted:
        print(f"{RECORD.name} tells all of them to be caught")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        ready = Path(name, "repository")
        copy_to(ready)
        unchanged = run_tests(ready, (test for mutant in wanted for test in mutant.tests))
        if broken := [test for test, cases in unchanged.items() if not cases or cases & {"failed", "error"}]:
            print("these tests are missing or fail without a mutant:", *broken, sep="\n", file=sys.stderr)
            return 2
        verdicts = []
        for mutant, own in zip(wanted, pool.map(lambda mutant: verdict(mutant, ready), wanted), strict=True):
            print(f"{own}: {mutant.change} ({mutant.file})", flush=True)
            verdicts.append((mutant, own))
    if parsed.new:
        told = known | dict(verdicts)
        verdicts = [(mutant, told[mutant]) for mutant in mutants() if mutant in told]
    if parsed.new or not parsed.word:
        RECORD.write_text(page(verdicts), encoding="utf-8")
    return 1 if any(own in (SURVIVED, GONE) for _, own in verdicts) else 0
