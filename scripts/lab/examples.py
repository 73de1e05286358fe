"""Builds the example project (examples/) with its history, and compares its recorded results with what was planted.

`build DIR` makes the repository, whose commit hashes are the same on every machine: layers of neural networks by
several launchers, described as any project that uses the engine. Measure it there with `kernelwatch bench`. `judge DIR`
publishes its results and prints which changes of seconds and of exact figures were flagged, on which commits; with
`--recorded` those in examples/results. `demo DIR` writes the pages of the recorded results into DIR.
"""

import json
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


EXACT = {"worse": "regression", "better": "improvement"}


def judge(page: Path, console: Console) -> bool:
    """Print which planted changes published pages flag; whether each whose rung has figures is flagged, in the right
    direction, and nothing else is. Raises: SystemExit if no such rung has figures."""
    table = Table("commit", "planted", "flagged")
    flags = {exact: flags_on(page, exact=exact) for exact in (False, True)}
    measured = _measured(page)
    listed = changes()
    right, planted_count, judged = True, 0, 0
    for change in listed:
        for exact, word in ((False, change.effect), (True, change.exact)):
            here = [flag for flag in flags[exact] if flag.subject == change.subject]
            known = (change.rung, exact) in measured
            planted_count += bool(word)
            judged += bool(word) and known
            good = all(_is_planted(flag, change, word) for flag in here) and bool(here) == (bool(word) and known)
            right &= good
            if here or word:
                what = f"{change.rung} {word}{' exact figures' if exact else ''}" if word else "nothing"
                table.add_row(change.subject, what, _cells(here, known), style="" if good else "red")
    subjects = {change.subject for change in listed}
    for flag in [*flags[False], *flags[True]]:
        if flag.subject not in subjects:
            right = False
            table.add_row(flag.subject, "nothing", _cells([flag], True), style="red")
    if not judged:
        raise SystemExit("scripts/examples: these results have no figure of a rung with a planted change: measure it")
    console.print(table)
    verdict = "exactly what was planted" if right else "NOT what was planted"
    console.print(
        f"{len(listed) + 1} commits, {planted_count} planted effects, {judged} of them measured: flagged is {verdict}"
    )
    return right


def _measured(page: Path) -> set[tuple[str, bool]]:
    """The rungs that have a series, each with whether that is of an exact figure and not of seconds."""
    series = json.loads((page.parent / "data" / "series.json").read_text(encoding="utf-8"))["series"]
    return {
        (f"{one['benchmark'].split('.')[0]}/{one['params']['rung']}".replace("'", ""), ".Static." in one["benchmark"])
        for one in series
        if "rung" in one["params"]
    }


def _cells(flags: list[Flag], known: bool) -> str:
    cells = "\n".join(f"{flag.cell} {flag.change:+.2%}" for flag in flags)
    return cells or ("nothing" if known else "not measured")


def _is_planted(flag: Flag, change: Change, word: str) -> bool:
    op, _, rung = change.rung.partition("/")
    return flag.cell.startswith(f"{op} {rung} ") and flag.kind == (planted.KINDS | EXACT).get(word)


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
    return 0 if judge(publish(folder, results, folder / ".asv" / "judged", NAME), console) else 1
