#!/usr/bin/env python3
"""Builds the example project (examples/) with its history, and compares its recorded results with what was planted.

`build DIR` makes the repository, whose commit hashes are the same on every machine: layers of neural networks by
several launchers, described as any project that uses the engine. Measure it there with `kernelwatch bench`.
`launchers DIR` adds a commit with more launchers, which has no recorded results. `judge DIR` publishes its results and
prints which changes were flagged, on which commits: of the seconds if a GPU timed the commits, and of the exact
figures. With `--recorded` the results are those in examples/results. `demo DIR` writes the pages of the recorded
results into DIR. `figures DIR` writes the tables in examples/README.md from them.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from kernelwatch.history.records import Record, read, sidecars
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import record_text, time_text
from lab import planted
from lab.figures import write_block
from lab.planted import Change, Flag, changes_in, commit, commits, flags_on, publish, run

EXAMPLES = planted.ROOT / "examples"
NAME = "layers by several launchers"


def changes() -> list[Change]:
    """What the commits after the first one change."""
    return changes_in(EXAMPLES / "commits.toml")


def build(folder: Path) -> list[str]:
    """Make the repository in an empty folder; its commits, oldest first. Raises: SystemExit if it is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"scripts/lab/examples: {folder} is not empty; name a new folder")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLES / "repository", folder, dirs_exist_ok=True, ignore=ignore)
    run(folder, "git", "init", "-q", "-b", "main")
    commit(folder, "Layers by several launchers", 0)
    for at, change in enumerate(changes(), 1):
        _replace(folder, change)
        commit(folder, change.subject, at)
    return commits(folder)


def add_launchers(folder: Path) -> None:
    """Add the files of examples/launchers to a built repository, and make the replacements of examples/launchers.toml,
    in one commit. Raises: SystemExit if it is no such repository, or if it has them."""
    replacements = changes_in(EXAMPLES / "launchers.toml")
    for change in replacements:
        _replace(folder, change)
    shutil.copytree(EXAMPLES / "launchers", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    commit(folder, replacements[0].subject, len(commits(folder)))


def _replace(folder: Path, change: Change) -> None:
    path = folder / change.file
    path.write_text(change.apply(path.read_text(encoding="utf-8")), encoding="utf-8")


def judge(seconds: list[Flag] | None, exact: list[Flag], console: Console) -> bool:
    """Print which planted changes were flagged, by seconds (None if there are none) and by exact figures; whether each
    was, in the right direction, and nothing else."""
    right = True
    if seconds is None:
        console.print("no GPU timed these commits: judged by the exact figures alone")
    else:
        console.print("seconds")
        right = _compared(seconds, lambda change: change.effect, console)
    console.print("exact figures")
    return _compared(exact, lambda change: change.exact, console) and right


def _compared(flagged: list[Flag], effect: Callable[[Change], str], console: Console) -> bool:
    def right(change: Change, flags: list[Flag]) -> bool:
        what, cells = effect(change), change.rung.replace("/", " ") + " "
        if not what:
            return not flags
        return bool(flags) and all(flag.cell.startswith(cells) and flag.kind == planted.KINDS[what] for flag in flags)

    return planted.compare(changes(), flagged, effect, right, console)


def timed(results: Path) -> bool:
    """Whether a GPU timed any of the commits in a folder of results."""
    series = [
        row
        for path in results.glob("*/*-checkout-*.json")
        for name, row in json.loads(path.read_text(encoding="utf-8"))["results"].items()
        if name.endswith(".GPU.track_seconds") and row
    ]
    return any(value is not None and not math.isnan(value) for row in series for value in row[0] or ())


def on_a_gpu(results: Path, order: list[str]) -> list[Record]:
    """The records of the commits that a GPU timed, in this order of commits."""
    known = {record.commit: record for record in map(read, sidecars(results)) if _groups(record)}
    return [known[commit[:8]] for commit in order if commit[:8] in known]


def _groups(record: Record) -> list[str]:
    return [group for group, facts in record.facts.items() if facts and group.endswith(" gpu")]


def repeated(medians: list[float], step: int) -> float:
    """The coefficient of variation of a cell's medians over commits that do not change it. `step`: the first commit
    after a change of the cell, 0 if there is none; the medians before and after it vary about means of their own."""
    parts = [part for part in (medians[:step], medians[step:]) if part]
    squares = math.fsum((each / statistics.fmean(part) - 1) ** 2 for part in parts for each in part)
    return math.sqrt(squares / (len(medians) - len(parts)))


def tables(records: list[Record]) -> dict[str, str]:
    """The tables of the README: the times of the newest commit, and how far the medians of commits differ that do not
    change a cell."""
    steps = {change.rung: at for at, change in enumerate(changes(), 1) if change.effect}
    newest, rungs, times = records[-1], dict[str, list[float]](), []
    for key, cell in newest.cells.items():
        if cell.group not in _groups(newest) or cell.state != "ok":
            continue
        rung, type, shape, *_ = key.split(" ")
        medians = [record.cells[key].median_s for record in records]
        rungs.setdefault(rung.partition("/")[2], []).append(repeated(medians, steps.get(rung, 0)))
        times.append([rung, type, shape, time_text(cell.median_s), f"{100 * cell.spread:.2f} %"])
    spreads = [
        [rung, str(len(each)), f"{100 * statistics.median(each):.2f} %", f"{100 * max(each):.2f} %"]
        for rung, each in sorted(rungs.items())
    ]
    where = f"({record_text(newest, 'gpu')})"
    return {
        "times": f"**Time, cold, median of the processes' medians** {where}\n\n"
        + table(["rung", "type", "shape", "time", "spread of processes"], sorted(times)),
        "repeats": f"**The same cell at {len(records)} commits: coefficient of variation of its time**\n\n"
        + table(["rung", "cells", "median", "worst"], spreads),
    }


def write_tables(folder: Path) -> None:
    """Write the tables of the recorded results into the README. `folder`: the repository."""
    for name, text in tables(on_a_gpu(EXAMPLES / "results", commits(folder))).items():
        write_block(EXAMPLES / "README.md", name, text, "scripts/lab/examples figures")


def main(arguments: list[str] | None = None) -> int:
    """Build or judge; the exit code: 1 if the flags differ from the planted changes."""
    parser = Parser("scripts/lab/examples", __doc__)
    parser.add_argument("what", choices=("build", "launchers", "judge", "demo", "figures"))
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
        raise SystemExit(f"scripts/lab/examples: {folder} is not a repository; make it with scripts/lab/examples build")
    if options.what == "launchers":
        add_launchers(folder)
        console.print(f"one more commit in {folder}")
        return 0
    if options.what == "figures":
        write_tables(folder)
        return 0
    results = recorded if options.recorded else folder / "results"
    page = publish(folder, results, folder / ".asv" / "judged", NAME, explained=0)
    seconds = flags_on(page) if timed(results) else None
    return 0 if judge(seconds, flags_on(page, exact=True), console) else 1
