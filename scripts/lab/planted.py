#!/usr/bin/env python3
"""Builds a history with known changes (data/planted), measures it on a GPU, and compares it with the page's flags.

`build DIR` makes the repository; its commit hashes are the same on every machine. `measure DIR` lets asv measure the
cells of each commit on this machine, one op after another, and resumes if it was interrupted. `link DIR` links the
commits that no machine has linked yet, or with `--part I/N` those of one of N GPUs, over which a seed spreads them.
`exact DIR` needs no GPU: asv compiles the kernels of each commit and counts their memory accesses, and the figures are
added to the results in data/planted. `judge DIR` publishes the results, and prints which changes of seconds were
flagged, on which commits, and which flags are false. With `--recorded` it uses the results in data/planted instead of
DIR's own, with `--recorded links` the links there. `demo DIR` writes the pages of those results into DIR: what caught
regressions look like.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import environment
from benchmarks.project import PROJECT
from kernelwatch.comparison.linking import BUDGET_S
from kernelwatch.history import links
from kernelwatch.plan.cells import plan
from kernelwatch.plan.problem import label
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.run.outcome import group_of
from kernelwatch.system.options import Options

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "data" / "planted"
CELLS = {
    "transpose": r"^transpose/(copy|tiled|padded|dynamic) float32 (1024x1024|4096x4096) cold$",
    "matmul": r"^matmul/(tiled_32|conflict_free|unrolled|thread_tile_1d|thread_tile_2d) float32 1024x1024x1024 cold$",
}
# The exact figures that stand beside the seconds: of the same rungs, for the GPU that they were measured on.
FIGURES = (
    r"^(static\.(Transpose|Matmul)\.track_(registers|spill_bytes|shared_bytes|instructions|occupancy)"
    r"|access\.(Transpose|Matmul)\.track_(load_sectors|store_sectors|shared_load_wavefronts|shared_store_wavefronts"
    r"|moved|requests|barriers))"
)
EXACT_CELLS = (
    r"^(transpose/(copy|tiled|padded|dynamic) float32 (sm_90|256x256 counted)"
    r"|matmul/(tiled_32|conflict_free|unrolled|thread_tile_1d|thread_tile_2d) float32 (sm_90|128x128x128 counted))$"
)
# Taken from the checkout, whatever the commit.
HARNESS = ("benchmarks", "kernelwatch", "scripts", "asv.conf.json", "pyproject.toml")
# The history's own .gitignore. It is part of the commit hashes, to which the recorded results belong: do not change it.
IGNORED = ("benchmarks", "scripts", "asv.conf.json", "pyproject.toml", "results", ".asv")
# The copy of the description asks rungs what they need, which the history's own ladder does not tell yet.
NEEDS = "rung.needs", 'getattr(rung, "needs", ())'
LINKED = (0, 1, 2)  # exit codes of `kernelwatch link` that say something of a commit
WHO = {f"GIT_{role}_{what}": "gpukernels" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
START = 1_767_225_600  # the date of the first commit; fixed dates, an hour apart, make the hashes the same everywhere
HOUR = 3600


@dataclass(frozen=True)
class Change:
    """A commit of the history: it replaces `old` by `new` in `file` once, or everywhere.

    `effect`: "slower" or "faster" if it changes the time of `rung`, else "".
    `exact`: "worse" or "better" if it changes judged exact figures of `rung`, else "".
    """

    subject: str
    file: str
    old: str
    new: str
    everywhere: bool = False
    rung: str = ""
    effect: str = ""
    exact: str = ""

    def apply(self, text: str) -> str:
        """The text of the file after the change. Raises: SystemExit if `old` is not in it."""
        if self.old not in text:
            raise SystemExit(f"{self.file} has no {self.old!r}, which {self.subject!r} is to replace")
        return text.replace(self.old, self.new, -1 if self.everywhere else 1)


def changes_in(path: Path) -> list[Change]:
    """The changes that a file lists, in order."""
    return [Change(**commit) for commit in tomllib.loads(path.read_text(encoding="utf-8"))["commits"]]


def history() -> tuple[str, list[Change]]:
    """The commit of this repository from which the history starts, and its changes in order."""
    path = DATA / "commits.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["base"], changes_in(path)


def run(folder: Path, *command: str, **environment: str) -> str:
    """The output of a command in a folder. Raises: SystemExit if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last_words = (done.stdout + done.stderr).strip()[-2000:]
        raise SystemExit(f"{' '.join(command[:4])} failed with exit code {done.returncode}: {last_words}")
    return done.stdout


def build(folder: Path) -> list[str]:
    """Make the repository in an empty folder, and copy the checkout's harness into it; its commits, oldest first.

    Raises: SystemExit if the folder is not empty, or if this clone lacks the first commit.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"scripts/lab/planted: {folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    base, changes = history()
    archive = subprocess.run(["git", "archive", base, "gpukernels"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(
            f"scripts/lab/planted: this clone has no commit {base}; if it is shallow, run git fetch --unshallow"
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    (folder / "README.md").write_text("Kernels, and known changes of them.\n", encoding="utf-8")
    (folder / ".gitignore").write_text("".join(f"/{name}\n" for name in IGNORED), encoding="utf-8")
    run(folder, "git", "init", "-q", "-b", "main")
    (folder / ".git" / "info" / "exclude").write_text("".join(f"/{name}\n" for name in HARNESS), encoding="utf-8")
    for at, change in enumerate([None, *changes]):
        if change:
            path = folder / change.file
            path.write_text(change.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        commit(folder, change.subject if change else "The kernels as they are", at)
    for name in HARNESS:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    description = folder / "benchmarks" / "project.py"
    description.write_text(description.read_text(encoding="utf-8").replace(*NEEDS), encoding="utf-8")
    return commits(folder)


def commit(folder: Path, subject: str, at: int) -> None:
    """Commit all files of a repository, as its commit number `at`: with a hash that is the same everywhere."""
    when = f"{START + at * HOUR} +0000"
    run(folder, "git", "add", "-A")
    run(
        folder,
        *("git", "-c", "commit.gpgsign=false", "commit", "-q", "--no-verify", "-m", subject),
        **WHO,
        GIT_AUTHOR_DATE=when,
        GIT_COMMITTER_DATE=when,
    )


def commits(folder: Path) -> list[str]:
    """The hashes of the history's commits, oldest first. Raises: SystemExit."""
    return run(folder, "git", "rev-list", "--reverse", "main").split()


def measure(folder: Path, ops: Iterable[str], console: Console) -> None:
    """Run asv over all commits, one op at a time; commits that have results are skipped. Raises: SystemExit without a
    GPU."""
    if not environment.driver_cuda():
        raise SystemExit("scripts/lab/planted: there is no NVIDIA driver; measuring needs a GPU")
    for op in ops:
        console.print(f"{op}: {CELLS[op]}", markup=False)
        _asv_run(folder, rf"^{op}\.GPU\.track_seconds", CELLS[op])


def _asv_run(folder: Path, series: str, cells: str) -> None:
    """Let asv measure these series and cells of every commit; those that have results are skipped."""
    with tempfile.NamedTemporaryFile("w", suffix=".commits") as hashes:
        hashes.write("\n".join(commits(folder)))
        hashes.flush()
        subprocess.run(
            [
                *(sys.executable, "-m", "asv", "run", "-E", "checkout", "--skip-existing-successful"),
                *("--bench", series, f"HASHFILE:{hashes.name}"),
            ],
            cwd=folder,
            env=Options(only=cells).environment(),
            check=False,
        )


def part_of(listed: Sequence[str], at: int, of: int, seed: int) -> list[str]:
    """The commits that GPU number `at` of `of` links, in a random order. The first commit has no parent."""
    return random.Random(seed).sample(listed[1:], len(listed) - 1)[at::of]


def link(folder: Path, chosen: Iterable[str], limit_s: float, budget_s: float) -> int:
    """Link commits on this machine, but those that any machine has linked; how many are left, after `limit_s` or since
    they could not be linked. `budget_s`: the most for a commit."""
    began, left = time.monotonic(), 0
    for each in chosen:
        if any(folder.glob(f"results/*/{each[:8]}.*{links.SUFFIX}")):
            continue
        command = [sys.executable, "-m", "kernelwatch", "link", f"{each}^!", "--no-publish", f"--budget={budget_s:g}"]
        command += ["--only", "|".join(CELLS.values())]
        is_over = time.monotonic() - began > limit_s
        left += is_over or subprocess.run(command, cwd=folder, check=False).returncode not in LINKED
    return left


def add_exact(measured: Path, results: Path) -> int:
    """Add the exact figures of one results folder to the commits in another; how many commits got some.

    Raises: SystemExit if a commit has no results to add to.
    """
    added = 0
    for path in sorted(measured.glob("*/*-checkout-*.json")):
        fresh = _results(path)
        figures = {name: row for name, row in fresh["results"].items() if re.match(FIGURES, name)}
        if not figures:
            continue
        target = next(iter(results.glob(f"*/{path.name[:8]}-checkout-*.json")), None)
        known = _results(target) if target else {}
        if target is None or known["result_columns"] != fresh["result_columns"]:
            raise SystemExit(
                f"scripts/lab/planted: {results} has no results of the commit {path.name[:8]} in this layout"
            )
        known["results"] |= figures
        target.write_text(json.dumps(known, separators=(",", ":")), encoding="utf-8")
        _replace_groups(path.with_suffix(".facts.jsonl"), target.with_suffix(".facts.jsonl"))
        added += 1
    described, known = _results(measured / "benchmarks.json"), _results(results / "benchmarks.json")
    known |= {name: series for name, series in described.items() if re.match(FIGURES, name)}
    (results / "benchmarks.json").write_text(json.dumps(known, indent=4, sort_keys=True) + "\n", encoding="utf-8")
    return added


def _results(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _replace_groups(fresh: Path, sidecar: Path) -> None:
    """Write the groups of a fresh sidecar that hold exact figures into another, in the place of its own ones."""
    exact = [line for line in fresh.read_text(encoding="utf-8").splitlines() if _is_exact(line)]
    kept = [line for line in sidecar.read_text(encoding="utf-8").splitlines() if not _is_exact(line)]
    sidecar.write_text("".join(f"{line}\n" for line in kept + exact), encoding="utf-8")


def _is_exact(line: str) -> bool:
    return (group_of(line) or "").endswith((" static", " access"))


# --- what is flagged -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flag:
    """A change that the page flags. `change`: relative, such as 0.05."""

    kind: str
    subject: str
    cell: str
    rung: str
    change: float


def publish(
    folder: Path, results: Path, html: Path, name: str = "gpukernels, planted changes", explained: int | None = None
) -> Path:
    """Publish results of a built history as pages in the folder `html`, under a name; the path of the first page.
    `explained`: of how many events the kernels are looked at, by default as many as asv publish does.

    Raises: SystemExit if the results belong to other commits, or if asv fails.
    """
    conf = json.loads((folder / "asv.conf.json").read_text(encoding="utf-8"))
    conf |= {"results_dir": str(results), "html_dir": str(html), "project": name}
    conf |= {"explained_events": explained} if explained is not None else {}
    measured = {
        path.name[:8] for name in ("*-checkout-*.json", f"*{links.SUFFIX}") for path in results.glob(f"*/{name}")
    }
    if not measured & {commit[:8] for commit in commits(folder)}:
        raise SystemExit(
            f"{conf['results_dir']} has no results of the commits in {folder}; measure them, or "
            "pass --recorded and a folder that `build` made"
        )
    path = folder / ".planted.conf.json"
    with tempfile.TemporaryDirectory() as temporary:
        if not (results / "benchmarks.json").exists():  # asv writes the list when it measures, which links do without
            conf["results_dir"] = str(shutil.copytree(results, Path(temporary, "results")))
            shutil.copy(DATA / "results" / "benchmarks.json", conf["results_dir"])
        path.write_text(json.dumps(conf), encoding="utf-8")
        try:
            command = (sys.executable, "-m", "asv", "--config", str(path), "publish", "--no-pull")
            run(folder, *command, PYTHONPATH=str(ROOT))  # of the engine, where the folder has none of its own
        finally:
            path.unlink()
    return html / "index.html"


def flags(folder: Path, results: Path | None = None) -> list[Flag]:
    """Publish a built history, and read the page's flags. `results`: a folder, by default the history's own.

    Raises: as `publish`.
    """
    return flags_on(publish(folder, results or folder / "results", folder / ".asv" / "planted", explained=0))


def flags_on(page: Path, *, exact: bool = False) -> list[Flag]:
    """The changes of seconds that published pages flag, or those of exact figures."""
    events = json.loads((page.parent / "data" / "events.json").read_text(encoding="utf-8"))["events"]
    return [_flag(event, change) for event in events for change in event["changes"] if change["exact"] is exact]


def _flag(event: dict[str, Any], change: dict[str, Any]) -> Flag:
    if not change["params"]:  # of links, where no full run gave the series its name
        rung, _, shape, cache = change["cell"].split()
        op, _, rung = rung.partition("/")
        return Flag(event["kind"], event["last"]["subject"], f"{op} {rung} {shape} {cache}", rung, change["change"])
    params = {name: value.strip("'") for name, value in change["params"].items()}
    op, *_, figure = change["benchmark"].split(".")
    named = [figure.removeprefix("track_")] if change["exact"] else []  # a cell has one time, and several exact figures
    cell = " ".join([op, *params.values(), *named])
    return Flag(event["kind"], event["last"]["subject"], cell, params["rung"], change["change"] or float("inf"))


def timed(rung: str) -> list[str]:
    """The measured cells of a rung, as flags name them."""
    cells = [cell for op in CELLS for cell in plan(PROJECT.op(op), "gpu", only=CELLS[op]) if cell.rung == rung]
    return sorted(f"{cell.op} {cell.rung} {label(cell.shape)} {cell.cache}" for cell in cells)


KINDS = {"slower": "regression", "faster": "improvement", "worse": "regression", "better": "improvement"}


def judge(flagged: list[Flag], console: Console) -> bool:
    """Print which planted changes were flagged; whether exactly these were."""

    def right(change: Change, flags: list[Flag]) -> bool:
        expected = [flag.cell for flag in flags if change.effect and flag.kind == KINDS[change.effect]]
        return len(expected) == len(flags) and sorted(expected) == timed(change.rung)

    return compare(history()[1], flagged, lambda change: change.effect, right, console)


def compare(
    listed: list[Change],
    flagged: list[Flag],
    effect: Callable[[Change], str],
    right: Callable[[Change, list[Flag]], bool],
    console: Console,
) -> bool:
    """Print what was flagged on each commit that changes something; whether all flags are right.

    `effect`: of a change, "" if it has none. `right`: whether a change has the flags that it should have.
    """
    table = Table("commit", "effect", "flagged")
    good = True
    for change in listed:
        flags = [flag for flag in flagged if flag.subject == change.subject]
        as_planted = right(change, flags)
        good &= as_planted
        if flags or effect(change):
            what = f"{change.rung} {effect(change)}" if effect(change) else "none"
            table.add_row(change.subject, what, _cells(flags), style="" if as_planted else "red")
    others = [flag for flag in flagged if flag.subject not in {change.subject for change in listed}]
    for flag in others:
        table.add_row(flag.subject, "none", _cells([flag]), style="red")
    console.print(table)
    good = good and not others
    count = sum(bool(effect(change)) for change in listed)
    verdict = "exactly what was planted" if good else "NOT what was planted"
    console.print(f"{len(listed) + 1} commits, {count} of them planted: flagged is {verdict}")
    return good


def _cells(flags: list[Flag]) -> str:
    return ", ".join(f"{flag.cell} {flag.change:+.2%}" for flag in flags) or "nothing"


def part(text: str) -> tuple[int, int]:
    """A part such as 0/5. Raises: ValueError."""
    at, of = map(int, text.split("/"))
    if not 0 <= at < of:
        raise ValueError(text)
    return at, of


def main(arguments: list[str] | None = None) -> int:
    """Build, measure or judge; the exit code: 1 if the flags differ from the planted changes."""
    parser = Parser("scripts/lab/planted", __doc__)
    what = ("build", "measure", "link", "exact", "judge", "demo")
    parser.add_argument("what", choices=what, help="only measure and link need a GPU")
    parser.add_argument("folder", type=Path, help="of the repository, or of the pages; build needs a new one")
    parser.add_argument("op", nargs="*", help=f"measure only these ops (default: {', '.join(CELLS)})")
    parser.add_argument(
        "--recorded",
        nargs="?",
        const="results",
        choices=("results", "links"),
        help="judge the results in data/planted, or the links there",
    )
    parser.add_argument("--part", type=part, metavar="I/N", help="link the commits of GPU number I of N, from 0 on")
    parser.add_argument("--seed", type=int, default=1, help="which spreads the commits over GPUs (default: 1)")
    parser.add_argument("--limit", type=float, default=math.inf, help="link no further commit after these seconds")
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, help=f"seconds for a commit to link (default: {BUDGET_S:g})"
    )
    options = parser.parse_args(arguments)
    if unknown := [op for op in options.op if op not in CELLS]:
        parser.error(f"no op {', '.join(unknown)}; there are {', '.join(CELLS)}")
    console, folder = Output(), options.folder.resolve()
    if options.what == "build":
        console.print(f"{len(build(folder))} commits in {folder}")
        return 0
    if options.what == "demo":
        with tempfile.TemporaryDirectory() as temporary:
            build(Path(temporary, "repository"))
            console.print(f"pages: {publish(Path(temporary, 'repository'), DATA / 'results', folder).as_uri()}")
        return 0
    if not (folder / ".git").is_dir():
        raise SystemExit(f"scripts/lab/planted: {folder} is not a repository; make it with scripts/lab/planted build")
    if options.what == "measure":
        measure(folder, options.op or CELLS, console)
        return 0
    if options.what == "link":
        at, of = options.part or (0, 1)
        left = link(folder, part_of(commits(folder), at, of, options.seed), options.limit, options.budget)
        console.print(f"{left} commits are left")
        return 2 if left else 0
    if options.what == "exact":
        _asv_run(folder, FIGURES, EXACT_CELLS)
        console.print(f"{add_exact(folder / 'results', DATA / 'results')} commits have exact figures")
        return 0
    return 0 if judge(flags(folder, DATA / options.recorded if options.recorded else None), console) else 1
