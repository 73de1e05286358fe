"""Commits of this repository: git's answers, a commit's package in a folder, which rungs two packages differ in."""

import filecmp
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._ops import OPS, entries

ROOT = Path(__file__).resolve().parent.parent
WORDS = ("idea", "origin", "published_ms")  # of an entry: they say something, and launch nothing


def git(*arguments: str) -> str:
    """git's answer here. Raises: SystemExit with git's words."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"scripts/{Path(sys.argv[0]).name}: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.rstrip()  # a line of `status` may begin with a space


def of_range(commits: str, changed: bool = False) -> list[str]:
    """The first-parent commits of a range, the newest first; where `changed`, those that change gpukernels/ (what is
    between runs the very same kernels), and the newest whatever it does."""
    every = git("rev-list", "--first-parent", commits).splitlines()
    if not changed:
        return every
    differ = set(git("rev-list", "--first-parent", commits, "--", "gpukernels").splitlines())
    return [commit for commit in every if commit in differ or commit == every[0]]


def export(commit: str, folder: Path) -> str:
    """A commit's package into a folder, which is returned; "" where the commit has none."""
    if not git("ls-tree", commit, "gpukernels/__init__.py"):
        return ""
    archive = subprocess.run(["git", "archive", commit, "gpukernels"], cwd=ROOT, capture_output=True, check=True)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return str(folder)


def _files(package: str) -> Iterator[Path]:
    folder = Path(package, "gpukernels")
    for path in folder.rglob("*") if package else ():
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder)


def _ladder(package: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(package, "gpukernels", "ladder.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def known_rungs() -> list[str]:
    """All of the checkout's ladder, "op/rung"."""
    return [f"{op}/{entry.name}" for op in OPS for entry in entries(op)]


@dataclass(frozen=True)
class Changes:
    """How two packages differ. `launched`: the rungs ("op/rung") whose entry or preparation does, of an op all where
    what they share does; `compiled`: those of which only what is compiled does, all others too where `shared` names
    files of every rung (but for the ladder)."""

    launched: list[str]
    compiled: list[str]
    shared: list[str]

    @property
    def rungs(self) -> list[str]:
        """In the ladder's order."""
        return [rung for rung in known_rungs() if rung in self.launched or rung in self.compiled]


def changes(base: str, head: str) -> Changes:
    """How the packages in two folders differ, by the rungs of the checkout's ladder."""
    ladders = [_ladder(package) for package in (base, head)]
    sources = {f"{op}/{entry.name}": {f"{op}/{entry.source}"} for op in OPS for entry in entries(op)}
    for ladder in ladders:
        for op, table in ladder.items():
            for rung in table.get("rungs", ()):
                stem = Path(rung.get("source", rung["name"])).stem
                sources.get(f"{op}/{rung['name']}", set()).add(f"{op}/{stem}")
    differ = {
        path
        for path in {*_files(base), *_files(head)}
        if not all(Path(package, "gpukernels", path).is_file() for package in (base, head))
        or not filecmp.cmp(Path(base, "gpukernels", path), Path(head, "gpukernels", path), shallow=False)
    }
    shared = sorted(str(path) for path in differ if len(path.parts) == 1 and path.name != "ladder.toml")
    stems = {path: f"{path.parent.name}/{path.stem}" for path in differ if len(path.parts) > 1}
    texts = {stem for path, stem in stems.items() if path.suffix in (".cu", ".c")}
    others = {stem for path, stem in stems.items() if path.suffix not in (".cu", ".c")}
    # Another file of an op, or a word of what its rungs have in common, is all of it.
    whole = {stem.split("/")[0] for stem in {*texts, *others}.difference(*sources.values())}
    launched = {rung for rung, own in sources.items() if own & others}
    for op in {op for ladder in ladders for op in ladder}:
        old, new = ({"rungs": []} | ladder.get(op, {}) for ladder in ladders)
        of_old, of_new = ({rung["name"]: _bare(rung) for rung in table["rungs"]} for table in (old, new))
        launched |= {f"{op}/{name}" for name in {*of_old, *of_new} if of_old.get(name) != of_new.get(name)}
        if {**old, "rungs": []} != {**new, "rungs": []}:
            whole.add(op)
    return Changes(
        found := [rung for rung in sources if rung in launched or rung.split("/")[0] in whole],
        [rung for rung, own in sources.items() if rung not in found and (shared or own & texts)],
        shared,
    )


def _bare(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in WORDS}
