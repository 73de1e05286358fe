"""Run `asv run` over commits and show how far it is."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernelwatch.analysis import compiled, counted
from kernelwatch.asv.running import run_command
from kernelwatch.commands.phases import Minutes, duration
from kernelwatch.plan.cells import plan
from kernelwatch.plan.project import Project, suite_modules
from kernelwatch.report.arguments import selected
from kernelwatch.suites import timed
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import git
from kernelwatch.system.options import Options

STATES = {"ok": "ok", "failed": "failed", "na": "n/a", "waiting": "not measured"}
# The series of a quick look: the table derives the others from the same samples.
QUICK = {
    "track_seconds": (timed.Gpu, timed.GpuFlops, timed.Cpu, timed.CpuFlops),
    "track_launch": (timed.Launch,),
}


def quick_series(project: Project) -> list[str]:
    """Regular expressions for the project's series that a quick look measures, whatever its suites are called."""
    return [
        rf"^{module.__name__.partition('.')[2]}\.{name}\.{series}\b"
        for module in suite_modules(project.here.parent)
        for name, suite in vars(module).items()
        if isinstance(suite, type) and suite.__module__ == module.__name__
        for series, kinds in QUICK.items()
        if issubclass(suite, kinds)
    ]


def run_asv(
    project: Project,
    configuration: Path,
    commits: list[str],
    known: int,
    arguments: argparse.Namespace,
    console: Console,
) -> int:
    """Run `asv run` over commits in this order, and show a progress bar and a line for each finished commit. `known`:
    how many of them were measured before. Returns asv's exit code (2: some cells failed). Raises: UserError."""
    state = project.root / ".asv"
    state.mkdir(exist_ok=True)
    log = state / "bench.log"
    with tempfile.TemporaryDirectory() as folder:
        hashes, progress = Path(folder, "commits"), Path(folder, "progress")
        hashes.write_text("\n".join(commits))
        progress.touch()
        options = replace(
            Options.here(),
            quick=arguments.quick,
            again=arguments.again,
            only=selected(arguments),
            progress=str(progress),
        )
        command = run_command(configuration)
        if not (arguments.again or arguments.quick):
            command.append("--skip-existing-successful")
        for suite in arguments.bench or (quick_series(project) if arguments.quick else []):
            command += ["--bench", suite]
        command.append(f"HASHFILE:{hashes}")
        with log.open("w") as file:
            asv = subprocess.Popen(
                command,
                cwd=project.root,
                env=options.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                watch(project, asv, progress, len(commits) - known, options, console)
            except BaseException:
                _stop(asv)
                raise
    if asv.returncode not in (0, 2):
        last = log.read_text(errors="replace").splitlines(keepends=True)[-20:]
        console.print("".join(last), markup=False, highlight=False)
        raise UserError(
            f"asv run failed with exit code {asv.returncode}; its last lines are above, the whole output is in {log}"
        )
    return asv.returncode


def _stop(asv: "subprocess.Popen[bytes]") -> None:
    """Interrupt asv as Ctrl-C would, so that it ends what it started; kill it if it does not."""
    for signal_number, patience_s in ((signal.SIGINT, 10), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):  # asv has ended by itself
            os.killpg(asv.pid, signal_number)
        try:
            asv.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue


def done_text(root: Path, commit: str, counts: dict[str, int], taken: list[float], left: int) -> str:
    """One progress line for a finished commit. `counts`: cells by state; `taken`: seconds of every commit so far;
    `left`: how many remain."""
    subject = textwrap.shorten(git(root, "log", "-1", "--format=%s", commit), 60, placeholder=" ...")
    cells = ", ".join(f"{counts[state]} {name}" for state, name in STATES.items() if counts.get(state)) or "no cells"
    rest = f"; {left} to go, about {duration(left * statistics.mean(taken))}" if left else ""
    line = f"{commit[:8]} {subject}: {duration(taken[-1])}, {cells}{rest}"
    return "".join(letter if letter.isprintable() else "?" for letter in line)  # a subject can hold anything


def _expected(project: Project, options: Options) -> int:
    """How many measurements a commit takes."""
    only, total = options.only, 0
    for problem in project.problems:
        for device in project.timed:
            processes = device.quick_processes if options.quick else device.processes
            total += len(plan(problem, device.name, quick=options.quick, only=only)) * processes
        if not options.quick:
            total += len(compiled.plan(problem, only)) + len(counted.plan(problem, only))
    return total


def watch(
    project: Project,
    asv: "subprocess.Popen[bytes]",
    progress: Path,
    commits: int,
    options: Options,
    console: Console,
) -> None:
    """Show the progress of a run until it ends. `progress`: the file to which asv's processes append events."""
    total = commits * _expected(project, options)
    columns = (
        TextColumn("{task.description:>18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("done,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    minutes = Minutes(console)
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown as bar, progress.open() as lines:
        task = bar.add_task("starting", total=total or None)
        before, last = 0, 0  # measurements of the finished groups; of the running group
        taken: list[float] = []
        began, noted, group = time.monotonic(), "", "starting"
        while True:
            ended = asv.poll() is not None  # asked before the lines are read, so that none is lost
            for line in lines:
                event = json.loads(line)
                if "commit" in event:
                    taken.append(time.monotonic() - began)
                    began = time.monotonic()
                    left = max(0, commits - len(taken))
                    text = done_text(project.root, event["commit"], event["counts"], taken, left)
                    console.print(text, markup=False, highlight=False)
                    if event.get("lost"):
                        text = f"the run ends, {left} commits are not measured: {event['lost']}"
                        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
                    continue
                if event.get("note", noted) != noted:
                    noted = event["note"]
                    console.print(f"{event['group']}: {noted}", style="yellow", markup=False, highlight=False)
                group, last = event["group"], event["done"]
                bar.update(task, description=group, completed=before + last)
                if event.get("ended"):  # before that, a few cells may be measured again
                    before, last = before + last, 0
            if ended:
                return
            minutes.tell(group, before + last, total)
            time.sleep(0.1)
