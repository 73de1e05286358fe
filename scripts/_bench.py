"""The main job: gate, measure commits through asv, publish; or the dirty tree against HEAD, with nothing saved."""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import _access, _static
from benchmarks._cells import plan
from benchmarks._files import Busy
from benchmarks._group import PROCESSES, QUICK_PROCESSES
from benchmarks._ops import OPS
from scripts import _history, _lifeline, _tables, _versus
from scripts._commits import changes, export, git, known_rungs, of_range
from scripts._paired import Side
from scripts.asv_plugins import running
from scripts.asv_plugins.recording import identity

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".asv"
GROUPS = [(op, device) for op in OPS for device in ("gpu", "cpu")]
WORKTREE_BUDGET_S = 60.0
STATES = {"ok": "ok", "failed": "failed", "na": "n/a", "waiting": "not measured"}
QUICK = {"results_dir": ".asv/quick/results", "html_dir": ".asv/quick/html"}
QUICK_BENCH = [r"(GPU|CPU)\.track_seconds", "track_launch"]  # the table derives the rest from the same samples


def gate(console: Console) -> None:
    """The kernels' tests: nothing is timed before they pass. Raises: SystemExit."""
    console.print("gate: every rung against its reference ...")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "tests/test_kernels.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()]
    if done.returncode:
        console.print(done.stdout + done.stderr, markup=False, highlight=False)
        raise SystemExit("scripts/bench: the gate failed; nothing was measured (its words are above)")
    console.print(f"gate: {last[0].strip('= ')}", markup=False)


# --- one asv run ---------------------------------------------------------------------------------------------------


@contextmanager
def configuration(quick: bool) -> Iterator[Path]:
    """asv's configuration: the project's own; for a quick look, one whose results stay out of the history."""
    own = ROOT / "asv.conf.json"
    if not quick:
        yield own
        return
    values = json.loads(own.read_text()) | QUICK
    path = ROOT / ".asv.quick.conf.json"  # asv works in its configuration's folder: it must lie here
    path.write_text(json.dumps(values))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _asv(conf: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "asv", "--config", str(conf), *arguments]


def spread(commits: list[str]) -> list[str]:
    """Commits, the oldest first, in an order that soon shows where something happened: the oldest, the newest, then
    what lies in the middle of the widest gap that is left."""
    order = list(dict.fromkeys([*commits[:1], *commits[-1:]]))
    gaps = [(0, len(commits) - 1)]
    for low, high in gaps:  # grows; halves of a gap come after all that are as wide
        if high - low > 1:
            middle = (low + high) // 2
            order.append(commits[middle])
            gaps += [(low, middle), (middle, high)]
    return order


def measure(conf: Path, commits: list[str], known: int, given: argparse.Namespace, console: Console) -> int:
    """`asv run` over commits in this order, `known` of them measured before, with a bar and a line for each that is
    done; asv's exit code (2: some cells failed)."""
    STATE.mkdir(exist_ok=True)
    log = STATE / "bench.log"
    with tempfile.TemporaryDirectory() as folder:
        hashes, progress = Path(folder, "commits"), Path(folder, "progress")
        hashes.write_text("\n".join(commits))
        progress.touch()
        environment = os.environ | {
            "GPUKERNELS_PROGRESS": str(progress),
            "GPUKERNELS_QUICK": "1" if given.quick else "",
            "GPUKERNELS_AGAIN": "1" if given.again else "",
        }
        command = _asv(
            conf,
            "run",
            "-E",
            "checkout",
            "--show-stderr",
            *(["--skip-existing-successful"] if not (given.again or given.quick) else []),
            *(word for one in given.bench or (QUICK_BENCH if given.quick else []) for word in ("--bench", one)),
            f"HASHFILE:{hashes}",
        )
        with log.open("w") as file:
            worker = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                _watch(worker, progress, len(commits) - known, given.quick, console)
            except BaseException:
                _stop(worker)
                raise
    if worker.returncode not in (0, 2):
        console.print(
            "".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]), markup=False, highlight=False
        )
        raise SystemExit(
            f"scripts/bench: asv run failed with exit code {worker.returncode}; its last words are above, all in {log}"
        )
    return worker.returncode


def _stop(worker: "subprocess.Popen[bytes]") -> None:
    """Interrupt asv as Ctrl-C would, so that it ends what it started; kill it where it does not."""
    for signal_number, patience_s in ((signal.SIGINT, 10), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(worker.pid, signal_number)
        try:
            worker.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue


def duration(seconds: float) -> str:
    """A time to wait, as people read it."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def done_text(commit: str, counts: dict[str, int], taken: list[float], left: int) -> str:
    """The line of a commit that is done, the last of those that took so long, `left` of them to come."""
    subject = textwrap.shorten(git("log", "-1", "--format=%s", commit), 60, placeholder=" ...")
    cells = ", ".join(f"{counts[state]} {name}" for state, name in STATES.items() if counts.get(state)) or "no cells"
    rest = f"; {left} to go, about {duration(left * statistics.mean(taken))}" if left else ""
    words = f"{commit[:8]} {subject}: {duration(taken[-1])}, {cells}{rest}"
    return "".join(letter if letter.isprintable() else "?" for letter in words)  # a subject is anybody's


def _watch(worker: "subprocess.Popen[bytes]", progress: Path, commits: int, quick: bool, console: Console) -> None:
    """Show how far a run is until it ends."""
    processes = QUICK_PROCESSES if quick else PROCESSES
    total = commits * sum(len(plan(op, device, quick=quick)) * processes[device] for op, device in GROUPS)
    total += 0 if quick else commits * sum(len(_static.plan(op)) + len(_access.plan(op)) for op in OPS)
    columns = (
        TextColumn("{task.description:>18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar, progress.open() as lines:
        task = bar.add_task("starting", total=total or None)
        before, last = 0, 0  # of the groups that have ended; of the one that runs
        taken: list[float] = []
        began, noted = time.monotonic(), ""
        while True:
            ended = worker.poll() is not None
            for line in lines:
                said = json.loads(line)
                if "commit" in said:
                    taken.append(time.monotonic() - began)
                    began = time.monotonic()
                    left = max(0, commits - len(taken))
                    console.print(done_text(said["commit"], said["counts"], taken, left), markup=False, highlight=False)
                    continue
                if said.get("note", noted) != noted:
                    noted = said["note"]
                    console.print(f"{said['group']}: {noted}", style="yellow", markup=False, highlight=False)
                bar.update(task, description=said["group"], completed=before + said["done"])
                last = said["done"]
                if said["done"] == said["total"]:
                    before, last = before + last, 0
            if ended:
                return
            time.sleep(0.1)


def publish(conf: Path, console: Console) -> Path:
    """`asv publish`; where the pages lie. Raises: SystemExit."""
    done = subprocess.run(_asv(conf, "publish", "--no-pull"), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(done.stdout + done.stderr, markup=False, highlight=False)
        raise SystemExit(f"scripts/bench: asv publish failed with exit code {done.returncode}; its words are above")
    return Path(ROOT, json.loads(conf.read_text())["html_dir"], "index.html")


def have_results(folder: Path, commits: list[str]) -> list[str]:
    """Those of the commits that a machine's folder has a result file of."""
    names = [path.name for path in folder.glob("*-checkout-*.json")]
    return [commit for commit in commits if any(name.startswith(commit[:8]) for name in names)]


def results_folder(quick: bool) -> Path:
    """Where the results of a run lie."""
    return ROOT / (QUICK["results_dir"] if quick else json.loads((ROOT / "asv.conf.json").read_text())["results_dir"])


def run(given: argparse.Namespace, console: Console) -> int:
    """Gate, measure, publish, table; alone in the results folder. Raises: SystemExit."""
    results = results_folder(given.quick)
    try:
        with running.alone(results):
            return _run(given, results, console)
    except Busy as error:
        raise SystemExit(f"scripts/bench: {running.busy_text(results, error)}") from None


def _run(given: argparse.Namespace, results: Path, console: Console) -> int:
    commits = of_range(given.range, given.changed) if given.range else [git("rev-parse", "HEAD")]
    if not commits:
        raise SystemExit(f"scripts/bench: no commits in {given.range}")
    if os.environ.get("GPUKERNELS_CELLS") and not given.quick:
        raise SystemExit(
            "scripts/bench: GPUKERNELS_CELLS is set: it would leave holes in results/; unset it, or use --quick"
        )
    if not any(plan(op, device, quick=given.quick) for op, device in GROUPS):
        raise SystemExit(
            f"scripts/bench: no cell matches GPUKERNELS_CELLS={os.environ['GPUKERNELS_CELLS']}; nothing to do"
        )
    if git("status", "--porcelain", "--", "gpukernels"):
        console.print(
            "note: gpukernels/ has uncommitted changes; commits are measured, not they "
            "(scripts/bench --worktree measures them)",
            style="yellow",
        )
    if not given.no_gate:
        gate(console)
    began = time.monotonic()
    if given.quick:  # what an earlier look left is not of this one
        shutil.rmtree(ROOT / ".asv" / "quick" / "results", ignore_errors=True)
    with configuration(given.quick) as conf:
        for said in running.set_aside_broken(results / identity()["machine"]):
            console.print(f"note: {said}", style="yellow", markup=False)
        known = [] if given.again or given.quick else have_results(results / identity()["machine"], commits)
        if known:
            console.print(
                f"{len(known)} of {len(commits)} commits have results: only what is missing or failed there is "
                "measured (--again measures all)"
            )
        code = measure(conf, spread(commits[::-1]), len(known), given, console)
        console.print(f"{len(commits) - len(known)} new of {len(commits)} commits in {time.monotonic() - began:.0f} s")
        page = publish(conf, console)
    paths = [
        path
        for path in _history.sidecars(results, identity()["machine"])
        if path.name.startswith(tuple(sha[:8] for sha in commits))
    ]
    if paths:
        newest = _history.read(paths[-1])
        _tables.show(newest, console, list(OPS))
        earlier = _history.before(paths[-1], git("rev-list", "--first-parent", commits[0]).splitlines()[1:])
        if earlier:
            _tables.show_changes(_history.read(earlier), newest, console)
    show_events(page.with_name("regressions.json"), commits, console)
    console.print(f"pages: {page.as_uri()}", soft_wrap=True)
    return code


def show_events(path: Path, commits: list[str], console: Console) -> None:
    """What the Regressions page says of these commits, a line an event."""
    for event in json.loads(path.read_text(encoding="utf-8"))["events"]:
        if event["last"]["hash"] in commits and event["kind"] != "environment":
            series = ", ".join(dict.fromkeys(change["benchmark"] for change in event["changes"]))
            where = f"{event['last']['hash'][:8]} ({event['last']['subject']})"
            said = f"{event['kind']} at {where}: {len(event['changes'])} series of {series}"
            style = "red" if event["kind"] == "regression" else "green"
            console.print(said, style=style, markup=False, highlight=False, soft_wrap=True)


# --- the daily loop ------------------------------------------------------------------------------------------------


def worktree(given: argparse.Namespace, console: Console) -> int:
    """The dirty tree against HEAD, as scripts/versus compares commits; its exit code. Nothing is saved."""
    known = known_rungs()
    if given.worktree and given.worktree not in known:
        raise SystemExit(f"scripts/bench: no rung {given.worktree}; the ladder has {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="gpukernels-") as folder:
        head, tree = Side("HEAD", export("HEAD", Path(folder))), Side("tree", str(ROOT))
        differ = changes(head.package, tree.package)
        choice = None
        if given.worktree:
            choice = _versus.choose(_versus.cells_of([given.worktree]), {given.worktree}, differ.rungs)
        elif not differ.rungs:
            console.print(
                "gpukernels/ is as it is in HEAD: nothing to compare (name a rung to compare it all the same)"
            )
            return 0
        report = _versus.Report(head, tree, "the dirty tree against HEAD")
        return _versus.finish(report, choice, console, WORKTREE_BUDGET_S)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure commits and publish their history: environment, gate, asv run, asv publish, table.",
    )
    parser.add_argument("range", nargs="?", help="commits as git names them, A..B (default: HEAD)")
    parser.add_argument("--quick", action="store_true", help="a first look in seconds: few cells, kept out of results/")
    parser.add_argument(
        "--bench", action="append", default=[], metavar="REGEX", help="some suites only, as asv's --bench"
    )
    parser.add_argument("--again", action="store_true", help="measure also what has results already")
    parser.add_argument(
        "--changed", action="store_true", help="of a range only the commits that change gpukernels/, and its newest"
    )
    parser.add_argument("--no-gate", action="store_true", help="the gate has just passed")
    parser.add_argument(
        "--worktree",
        nargs="?",
        const="",
        metavar="OP/RUNG",
        help="the dirty tree against HEAD, nothing saved: the rungs that differ, or this one",
    )
    given = parser.parse_args(arguments)
    if given.changed and not given.range:
        parser.error("--changed chooses among the commits of a range: name one, as A..B")
    console = Console()
    for name in ("SIGTERM", "SIGHUP"):  # as Ctrl-C: what was started ends with this process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
    try:
        with _lifeline.tied():
            return worktree(given, console) if given.worktree is not None else run(given, console)
    except KeyboardInterrupt:
        kept = (
            "nothing was saved" if given.worktree is not None or given.quick else f"{running.GOES_ON} (without --again)"
        )
        console.print(f"interrupted; {kept}")
        return 130
