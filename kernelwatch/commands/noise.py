"""A/A: run the GPU suites of this checkout several times, and record how far each cell's seconds differ.

Nothing changes between the runs, so that they show the machine's noise, and hence the smallest credible change. The
record is noise.jsonl among the machine's results, one line per cell: the seconds of each process of each run, the
medians of the runs and their coefficient of variation (standard deviation over mean). It is written after each run; the
same command goes on where an interrupted one was.

With --neighbors every other run has the other GPUs of this machine at work: whether a GPU measures as quietly beside
busy ones as alone. That record is neighbors.jsonl.

Exit code: 0; 2 if a cell failed, which is left out.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelwatch.asv.machine_names import machine_name
from kernelwatch.plan.cells import plan
from kernelwatch.plan.project import Project, check_described
from kernelwatch.report.arguments import Parser, add_selection, selected, unmatched
from kernelwatch.run.group import measure
from kernelwatch.system import machine
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import replace_lines
from kernelwatch.system.options import Options
from kernelwatch.timing import load

WHO = ("gpu", "nvml_uuid_sha256", "nvml_driver", "harness")
LOAD = Path(load.__file__)
Processes = dict[str, list[float]]  # the seconds of each process of a run, by cell


def read(path: Path) -> dict[str, str]:
    """The lines of a record by cell."""
    return {json.loads(line)["key"]: line for line in path.read_text(encoding="utf-8").splitlines()}


@contextmanager
def _kept(project: Project, run: str) -> Iterator[Options]:
    """The options of a run, whose groups are kept until all runs are done; a run that was interrupted goes on from
    them. They are kept for the checkout as it is: after an edit all runs are measured again."""
    content = project.places(str(project.root)).content()
    own = {"ASV_COMMIT": f"noise{content[:8]}", "ASV_ENV_NAME": run}  # as asv names a checkpoint
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield replace(Options.here(), kept=str(project.root / ".asv" / "kept"))
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _forget(options: Options) -> None:
    """Remove what was kept of the runs, which are all done."""
    for left in Path(options.kept).glob("noise*"):
        left.unlink(missing_ok=True)


class _Runs:
    """Runs of the cells of some ops, one after the other. `facts`: of the machine; `failed`: cell -> why it failed in
    one of them."""

    def __init__(self, project: Project, ops: list[str], only: str) -> None:
        self._project, self._ops, self._only = project, ops, only
        self.facts: dict[str, object] = {}
        self.failed: dict[str, str] = {}

    def run(self, options: Options) -> Processes:
        """What one run measures. Raises: UserError if that is nothing."""
        processes: Processes = {}
        why = "no cell is chosen"
        chosen = {op: self._only or self._project.op(op).noise_cells for op in self._ops}
        with TemporaryDirectory(prefix="kernelwatch-") as facts:  # through it ops share processes, as in a run of asv
            for op, only in chosen.items():
                together = [other for other in chosen if chosen[other] == only]
                group = measure(self._project, op, "gpu", replace(options, only=only, facts=facts), together)
                self.facts |= group.facts
                for key, outcome in group.outcomes.items():
                    if outcome.measurements:
                        processes[key] = [*outcome.by_process("seconds").values()]
                        continue
                    why = outcome.reason
                    if outcome.state == "failed":
                        self.failed[key] = why
                        why = f"{key} failed: {why}"
        if not processes.keys() - self.failed.keys():
            raise UserError(f"nothing to record: {why}")
        return processes

    def by_cell(self, runs: Sequence[Processes]) -> dict[str, list[list[float]]]:
        """The seconds of each process of each run, by cell; those of one that failed in any run are no noise."""
        return {key: [run[key] for run in runs if key in run] for run in runs for key in run if key not in self.failed}

    def end(self) -> int:
        """Say which cells failed; the exit code."""
        for key, why in self.failed.items():
            print(f"{key} failed: {why}", file=sys.stderr)
        return 2 if self.failed else 0


def _variation(values: Sequence[float]) -> float:
    """The coefficient of variation: standard deviation over mean."""
    return statistics.stdev(values) / statistics.mean(values)


def _write(path: Path, fresh: dict[str, dict[str, object]], facts: dict[str, object]) -> None:
    """Write a line for each cell, in place of its older line; those of other cells stay."""
    who = {name: facts.get(name) for name in WHO}
    replace_lines(path, {key: {**figures, "who": who} for key, figures in fresh.items()})


def _record(path: Path, by_cell: dict[str, list[list[float]]], facts: dict[str, object]) -> dict[str, float]:
    """Write what the runs so far show; the variation between runs, by cell."""
    medians = {key: [statistics.median(run) for run in own] for key, own in by_cell.items() if len(own) > 1}
    variation = {key: _variation(values) for key, values in medians.items()}
    fresh = {key: {"cv": cv, "medians_s": medians[key], "processes_s": by_cell[key]} for key, cv in variation.items()}
    _write(path, fresh, facts)
    return variation


# --- neighbors -----------------------------------------------------------------------------------------------------


@contextmanager
def _at_work(devices: Sequence[str]) -> Iterator[Callable[[], list[str]]]:
    """Keep these GPUs busy, as CUDA_VISIBLE_DEVICES names them; gives a function that tells those whose program has
    ended. Raises: UserError if one cannot be kept busy."""
    with ExitStack() as running:
        started = []
        for device in devices:
            process = subprocess.Popen(
                [sys.executable, "-P", str(LOAD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": device},
            )
            running.enter_context(process)
            running.callback(process.kill)
            started.append(process)
        for device, process in zip(devices, started, strict=True):
            if process.stdout is None or not process.stdout.readline():
                raise UserError(f"GPU {device} cannot be kept busy; why is said above")
        yield lambda: [device for device, process in zip(devices, started, strict=True) if process.poll() is not None]


def beside(alone: Sequence[Sequence[float]], busy: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """How much longer a cell takes beside busy GPUs (0.01 is 1 %), and its variation between processes alone and
    beside them, the median over the runs. `alone`, `busy`: the seconds of each process of each run."""
    medians = [statistics.median(map(statistics.median, runs)) for runs in (alone, busy)]
    quiet, loud = (statistics.median(map(_variation, runs)) for runs in (alone, busy))
    return medians[1] / medians[0] - 1, quiet, loud


def _neighbors(project: Project, own: _Runs, pairs: int) -> int:
    """Measure in turns alone and beside busy GPUs. Raises: UserError without a second GPU."""
    others = machine.gpus()[1:]
    if not others:
        raise UserError("--neighbors needs a second GPU: CUDA shows none")
    path = project.results / machine_name() / "neighbors.jsonl"
    runs: dict[bool, list[Processes]] = {False: [], True: []}
    for number in range(2 * pairs):
        busy = number % 4 in (1, 2)  # alone, beside, beside, alone: a drift counts for both
        with _kept(project, f"neighbors{number + 1}") as options, _at_work(others if busy else []) as ended:
            seconds = own.run(options)
            if idle := ended():
                _forget(options)  # what was measured beside idle GPUs is not to be taken up again
                raise UserError(f"GPU {', '.join(idle)} stopped working within run {number + 1}; run the command again")
        runs[busy].append(seconds)
        alone, loud = own.by_cell(runs[False]), own.by_cell(runs[True])
        loud = {key: seconds for key, seconds in loud.items() if key in alone}  # the others are n/a at times
        _write(
            path, {key: {"busy": len(others), "alone_s": alone[key], "beside_s": loud[key]} for key in loud}, own.facts
        )
        print(f"run {number + 1} of {2 * pairs}: {f'beside {len(others)} busy GPUs' if busy else 'alone'}", flush=True)
    _forget(options)
    found = {key: beside(alone[key], loud[key]) for key in loud}
    print("   longer   between processes, alone   and beside   cell")
    for key, figures in sorted(found.items(), key=lambda item: -abs(item[1][0])):
        longer, quiet, noisy = (100 * figure for figure in figures)
        print(f"{longer:+8.3f} % {quiet:25.3f} % {noisy:10.3f} %  {key}")
    longer, quiet, noisy = (100 * statistics.median(column) for column in zip(*found.values(), strict=True))
    print(
        f"{len(found)} cells beside {len(others)} busy GPUs: median {longer:+.3f} %, variation between processes "
        f"{quiet:.3f} % alone and {noisy:.3f} % beside them; recorded in {path.relative_to(project.root)}"
    )
    return own.end()


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many runs (default: 10)")
    parser.add_argument(
        "--neighbors", action="store_true", help="half of the runs beside the other GPUs of this machine at work"
    )
    parser.add_argument("op", nargs="*", help=f"of {', '.join(project.ops)} (default: all)")
    add_selection(parser, "cells (default: all, or those that the description of an expensive op names)")
    parsed = parser.parse_args(arguments)
    unknown = [op for op in parsed.op if op not in project.ops]
    if unknown:
        parser.error(f"no op {', '.join(unknown)}; there are {', '.join(project.ops)}")
    if parsed.neighbors and parsed.runs % 2:
        parser.error(f"--neighbors takes an even number of --runs, half of them alone; got {parsed.runs}")
    if parsed.runs < 2:
        parser.error(f"--runs must be at least 2, to differ; got {parsed.runs}")
    ops, only = parsed.op or list(project.ops), selected(parsed)
    cells = [cell for op in ops for cell in plan(project.op(op), "gpu")]
    check_described(project, project.rungs())
    if cells and not any(re.search(only, cell.key) for cell in cells):
        raise UserError(unmatched(parsed, cells))
    own = _Runs(project, ops, only)
    if parsed.neighbors:
        return _neighbors(project, own, parsed.runs // 2)
    path = project.results / machine_name() / "noise.jsonl"
    runs: list[Processes] = []
    variation: dict[str, float] = {}
    for number in range(parsed.runs):
        began = time.monotonic()
        with _kept(project, f"run{number + 1}") as options:
            runs.append(own.run(options))
        if len(runs) > 1:  # one run does not differ
            variation = _record(path, own.by_cell(runs), own.facts)
        print(f"run {number + 1} of {parsed.runs}: {time.monotonic() - began:.1f} s", flush=True)
    _forget(options)
    for key in sorted(variation, key=variation.__getitem__, reverse=True):
        median_s = statistics.median(statistics.median(run[key]) for run in runs if key in run)
        print(f"{100 * variation[key]:7.3f} %  {1e6 * median_s:12.3f} us  {key}")
    print(
        f"{len(variation)} cells: median {100 * statistics.median(variation.values()):.3f} %, "
        f"worst {100 * max(variation.values()):.3f} %; recorded in {path.relative_to(project.root)}"
    )
    return own.end()
