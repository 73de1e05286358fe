"""A history with known changes (data/planted): made, measured on a GPU, and held against what the page flags.

`build DIR` makes its repository, with the same commit hashes everywhere; `measure DIR` has asv measure the named cells
of each commit on this machine, one op after another, and goes on where it was interrupted; `judge DIR` publishes and
says which changes were flagged, on which commits, and what was flagged besides. `--recorded` takes the results in
data/planted in the place of DIR's own.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._cells import label
from benchmarks._cells import plan as cells_of
from scripts import _environment

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data" / "planted"
CELLS = {
    "transpose": r"^transpose/(copy|tiled|padded|dynamic) float32 (1024x1024|4096x4096) cold$",
    "matmul": r"^matmul/(tiled_32|conflict_free|unrolled|thread_tile_1d|thread_tile_2d) float32 1024x1024x1024 cold$",
}
STICK = ("benchmarks", "scripts", "asv.conf.json", "pyproject.toml")  # of the checkout, whatever the commit
WHO = {f"GIT_{role}_{what}": "gpukernels" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
START = 1_767_225_600  # the commits' dates, an hour apart: hashes are then the same everywhere
HOUR = 3600


@dataclass(frozen=True)
class Change:
    """A commit of the history; `effect`: "slower" or "faster", "" for none, of all timed cells of `rung`."""

    subject: str
    file: str
    old: str
    new: str
    everywhere: bool = False
    rung: str = ""
    effect: str = ""

    def apply(self, text: str) -> str:
        """Raises: SystemExit where the text is not there."""
        if self.old not in text:
            raise SystemExit(f"scripts/planted: {self.file} has no {self.old!r}, which {self.subject!r} is to replace")
        return text.replace(self.old, self.new, -1 if self.everywhere else 1)


def history() -> tuple[str, list[Change]]:
    """The commit that it begins with, and its changes in order."""
    told = tomllib.loads((DATA / "commits.toml").read_text(encoding="utf-8"))
    return told["base"], [Change(**one) for one in told["commits"]]


def _run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = (done.stdout + done.stderr).strip()[-2000:]
        raise SystemExit(f"scripts/planted: {' '.join(command[:4])} failed with exit code {done.returncode}: {words}")
    return done.stdout


def build(folder: Path) -> list[str]:
    """Make the repository in an empty folder, the checkout's stick beside it; its commits, oldest first."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"scripts/planted: {folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    base, changes = history()
    archive = subprocess.run(["git", "archive", base, "gpukernels"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"scripts/planted: this clone has no commit {base}; a shallow one: git fetch --unshallow")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    (folder / "README.md").write_text("Kernels, and known changes of them.\n", encoding="utf-8")
    (folder / ".gitignore").write_text("".join(f"/{name}\n" for name in (*STICK, "results", ".asv")), encoding="utf-8")
    _run(folder, "git", "init", "-q", "-b", "main")
    for at, change in enumerate([None, *changes]):
        if change:
            path = folder / change.file
            path.write_text(change.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        when = f"{START + at * HOUR} +0000"
        _run(folder, "git", "add", "-A")
        _run(
            folder,
            *("git", "-c", "commit.gpgsign=false", "commit", "-q", "--no-verify"),
            *("-m", change.subject if change else "The kernels as they are"),
            **WHO,
            GIT_AUTHOR_DATE=when,
            GIT_COMMITTER_DATE=when,
        )
    for name in STICK:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    return commits(folder)


def commits(folder: Path) -> list[str]:
    """Oldest first."""
    return _run(folder, "git", "rev-list", "--reverse", "main").split()


def measure(folder: Path, ops: Iterable[str], console: Console) -> None:
    """asv's run over all commits, an op at a time; what has results is skipped. Raises: SystemExit without a GPU."""
    if not _environment.driver_cuda():
        raise SystemExit("scripts/planted: no NVIDIA driver here, and without a GPU there is nothing to measure")
    with tempfile.NamedTemporaryFile("w", suffix=".commits") as hashes:
        hashes.write("\n".join(commits(folder)))
        hashes.flush()
        for op in ops:
            console.print(f"{op}: {CELLS[op]}", markup=False)
            subprocess.run(
                [
                    *(sys.executable, "-m", "asv", "run", "-E", "checkout", "--skip-existing-successful"),
                    *("--bench", rf"^{op}\.GPU\.track_seconds", f"HASHFILE:{hashes.name}"),
                ],
                cwd=folder,
                env=os.environ | {"GPUKERNELS_CELLS": CELLS[op]},
                check=False,
            )


# --- what is flagged -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flag:
    """A change on the page."""

    kind: str
    subject: str
    cell: str
    rung: str
    change: float


def flags(folder: Path, results: Path | None = None) -> list[Flag]:
    """What the published page flags of a built history, of these results or its own."""
    conf = json.loads((folder / "asv.conf.json").read_text(encoding="utf-8"))
    conf |= {"results_dir": str(results or folder / "results"), "html_dir": ".asv/planted"}
    measured = {path.name[:8] for path in Path(conf["results_dir"]).glob("*/*-checkout-*.json")}
    if not measured & {commit[:8] for commit in commits(folder)}:
        raise SystemExit(
            f"scripts/planted: {conf['results_dir']} has no results of the commits in {folder}: measure them, or judge "
            "--recorded a folder that scripts/planted build made"
        )
    path = folder / ".planted.conf.json"
    path.write_text(json.dumps(conf), encoding="utf-8")
    try:
        _run(folder, sys.executable, "-m", "asv", "--config", str(path), "publish", "--no-pull")
    finally:
        path.unlink()
    events = json.loads((folder / conf["html_dir"] / "regressions.json").read_text(encoding="utf-8"))["events"]
    return [_flag(event, change) for event in events for change in event["changes"]]


def _flag(event: dict[str, Any], change: dict[str, Any]) -> Flag:
    params = {name: value.strip("'") for name, value in change["params"].items()}
    cell = " ".join([change["benchmark"].split(".")[0], *params.values()])
    return Flag(event["kind"], event["last"]["subject"], cell, params["rung"], change["change"] or float("inf"))


def timed(rung: str) -> list[str]:
    """The cells of a rung that are measured, as a flag names them."""
    found = [
        cell for op in CELLS for cell in cells_of(op, "gpu") if re.search(CELLS[op], cell.key) and cell.rung == rung
    ]
    return sorted(f"{cell.op} {cell.rung} {label(cell.shape)} {cell.cache}" for cell in found)


KINDS = {"slower": "regression", "faster": "improvement"}


def judge(found: list[Flag], console: Console) -> bool:
    """Say what was flagged of what was planted; whether that is all of it and nothing else."""
    _, changes = history()
    table = Table("commit", "effect", "flagged")
    right = True
    for change in changes:
        mine = [flag for flag in found if flag.subject == change.subject]
        wanted = [flag.cell for flag in mine if change.effect and flag.kind == KINDS[change.effect]]
        good = len(wanted) == len(mine) and sorted(wanted) == timed(change.rung)
        right &= good
        if mine or change.effect:
            told = ", ".join(f"{flag.cell} {flag.change:+.2%}" for flag in mine) or "nothing"
            effect = f"{change.rung} {change.effect}" if change.effect else "none"
            table.add_row(change.subject, effect, told, style="" if good else "red")
    others = [flag for flag in found if flag.subject not in {change.subject for change in changes}]
    for flag in others:
        table.add_row(flag.subject, "none", f"{flag.cell} {flag.change:+.2%}", style="red")
    console.print(table)
    planted = [change for change in changes if change.effect]
    said = "exactly what was planted" if right and not others else "NOT what was planted"
    console.print(f"{len(changes) + 1} commits, {len(planted)} of them planted: flagged is {said}")
    return right and not others


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/planted", description=__doc__)
    parser.add_argument("what", choices=("build", "measure", "judge"), help="the first needs no GPU, nor does the last")
    parser.add_argument("folder", type=Path, help="of the repository; a new one to build it in")
    parser.add_argument("op", nargs="*", help=f"measure only these, of {', '.join(CELLS)}")
    parser.add_argument("--recorded", action="store_true", help="judge the results in data/planted")
    given = parser.parse_args(arguments)
    if unknown := [op for op in given.op if op not in CELLS]:
        parser.error(f"no cells of {', '.join(unknown)}; there are those of {', '.join(CELLS)}")
    console, folder = Console(width=None if sys.stdout.isatty() else 140), given.folder.resolve()
    if given.what == "build":
        console.print(f"{len(build(folder))} commits in {folder}")
        return 0
    if not (folder / ".git").is_dir():
        raise SystemExit(f"scripts/planted: {folder} is no repository; make it with scripts/planted build")
    if given.what == "measure":
        measure(folder, given.op or CELLS, console)
        return 0
    return 0 if judge(flags(folder, DATA / "results" if given.recorded else None), console) else 1
