"""Builds the example project (examples/) with its history, and compares its recorded results with what was planted.

`build DIR` makes the repository, whose commit hashes are the same on every machine: layers of neural networks by
several launchers, described as any project that uses the engine. Measure it there with `kernelwatch bench`. `judge DIR`
publishes its results and prints which changes of seconds were flagged, on which commits; with `--recorded` those in
examples/results. `demo DIR` writes the pages of the recorded results into DIR.
"""

import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernelwatch.commands.arguments import Output, Parser
from lab import planted
from lab.planted import Change, Flag, changes_in, commit, commits, flags_on, publish, run

EXAMPLES = planted.ROOT / "examples"
NAME = "layers by several launchers"


def changes() -> list[Change]:
    """What the commits after the first one change."""
    return changes_in(EXAMPLES / "commits.toml")


def build(folder: Path) -> list[str]:
    """Make the repository in an empty folder; its commits, oldest first. Raises: SystemExit if it is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"scripts/examples: {folder} is not empty; name a new folder")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLES / "repository", folder, dirs_exist_ok=True, ignore=ignore)
    run(folder, "git", "init", "-q", "-b", "main")
    commit(folder, "Layers by several launchers", 0)
    for at, change in enumerate(changes(), 1):
        path = folder / change.file
        path.write_text(change.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        commit(folder, change.subject, at)
    return commits(folder)


def judge(flagged: list[Flag], console: Console) -> bool:
    """Print which planted changes were flagged; whether each was, in the right direction, and nothing else."""
    table = Table("commit", "effect", "flagged")
    right = True
    listed = changes()
    for change in listed:
        here = [flag for flag in flagged if flag.subject == change.subject]
        expected = [flag for flag in here if _is_planted(flag, change)]
        good = len(expected) == len(here) and bool(expected) == bool(change.effect)
        right &= good
        if here or change.effect:
            cells = ", ".join(f"{flag.cell} {flag.change:+.2%}" for flag in here) or "nothing"
            effect = f"{change.rung} {change.effect}" if change.effect else "none"
            table.add_row(change.subject, effect, cells, style="" if good else "red")
    others = [flag for flag in flagged if flag.subject not in {change.subject for change in listed}]
    for flag in others:
        table.add_row(flag.subject, "none", f"{flag.cell} {flag.change:+.2%}", style="red")
    console.print(table)
    right = right and not others
    count = sum(bool(change.effect) for change in listed)
    verdict = "exactly what was planted" if right else "NOT what was planted"
    console.print(f"{len(listed) + 1} commits, {count} of them planted: flagged is {verdict}")
    return right


def _is_planted(flag: Flag, change: Change) -> bool:
    op, _, rung = change.rung.partition("/")
    return bool(change.effect) and flag.cell.startswith(f"{op} {rung} ") and flag.kind == planted.KINDS[change.effect]


def main(arguments: list[str] | None = None) -> int:
    """Build or judge; the exit code: 1 if the flags differ from the planted changes."""
    parser = Parser("scripts/examples", __doc__)
    parser.add_argument("what", choices=("build", "judge", "demo"))
    parser.add_argument("folder", type=Path, help="of the repository, or of the pages; build needs a new one")
    parser.add_argument("--recorded", action="store_true", help="judge the results in examples/results")
    options = parser.parse_args(arguments)
    console, folder, recorded = Output(), options.folder.resolve(), EXAMPLES / "results"
    if options.what == "build":
        console.print(f"{len(build(folder))} commits in {folder}")
        return 0
    if options.what == "demo":
        with tempfile.TemporaryDirectory() as temporary:
            build(Path(temporary, "repository"))
            console.print(f"pages: {publish(Path(temporary, 'repository'), recorded, folder, NAME).as_uri()}")
        return 0
    if not (folder / ".git").is_dir():
        raise SystemExit(f"scripts/examples: {folder} is not a repository; make it with scripts/examples build")
    results = recorded if options.recorded else folder / "results"
    return 0 if judge(flags_on(publish(folder, results, folder / ".asv" / "judged", NAME)), console) else 1
