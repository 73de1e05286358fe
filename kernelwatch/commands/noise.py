"""A/A: run the GPU suites of this checkout several times, and record how far each cell's seconds differ.

Nothing changes between the runs, so that they show the machine's noise, and hence the smallest credible change. The
record is noise.jsonl among the machine's results, one line per cell: the seconds of each process of each run, the
medians of the runs and their coefficient of variation (standard deviation over mean). It is written after each run; the
same command goes on where an interrupted one was.
"""

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kernelwatch.asv.identity import identity
from kernelwatch.commands.arguments import Parser, add_selection, selected
from kernelwatch.plan.project import Project
from kernelwatch.run.group import measure
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.options import Options
from kernelwatch.system.tools import digest

WHO = ("gpu", "nvml_uuid_sha256", "nvml_driver", "harness")


def read(path: Path) -> dict[str, str]:
    """The lines of a record by cell."""
    return {json.loads(line)["key"]: line for line in path.read_text(encoding="utf-8").splitlines()}


@contextmanager
def _kept(project: Project, run: int) -> Iterator[Options]:
    """The options of one run, whose groups are kept until all runs are done; a run that was interrupted goes on from
    them. They are kept for the package as it is: after an edit all runs are measured again."""
    files = sorted(path for path in Path(project.root, project.package).rglob("*") if path.is_file())
    texts = [path.read_bytes() for path in files if path.suffix != ".pyc"]
    own = {"ASV_COMMIT": f"noise{digest(*texts)[:8]}", "ASV_ENV_NAME": f"run{run + 1}"}  # as asv names a checkpoint
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield replace(Options.here(), kept=str(project.root / ".asv" / "kept"))
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _run(project: Project, ops: list[str], options: Options) -> tuple[dict[str, list[float]], dict[str, object]]:
    """The seconds of each process of one run by cell, and the facts of the machine. Raises: UserError if a cell fails
    or nothing can be measured."""
    processes: dict[str, list[float]] = {}
    facts: dict[str, object] = {}
    why = "no cell is chosen"
    for op in ops:
        group = measure(project, op, "gpu", replace(options, only=options.only or project.op(op).noise_cells))
        facts |= group.facts
        for key, outcome in group.outcomes.items():
            if outcome.state == "failed":
                raise UserError(f"{key} failed: {outcome.reason}")
            if outcome.measurements:
                processes[key] = [*outcome.by_process("seconds").values()]
            else:
                why = outcome.reason
    if not processes:
        raise UserError(f"nothing to record: {why}")
    return processes, facts


def _record(path: Path, runs: list[dict[str, list[float]]], facts: dict[str, object]) -> dict[str, float]:
    """Write what the runs so far show, in place of older lines of the same cells; the variation by cell."""
    by_cell = {key: [run[key] for run in runs if key in run] for run in runs for key in run}
    medians = {key: [statistics.median(run) for run in own] for key, own in by_cell.items() if len(own) > 1}
    variation = {key: statistics.stdev(values) / statistics.mean(values) for key, values in medians.items()}
    who = {name: facts.get(name) for name in WHO}
    fresh = {
        key: json.dumps({"key": key, "cv": cv, "medians_s": medians[key], "processes_s": by_cell[key], "who": who})
        for key, cv in variation.items()
    }
    kept = read(path) if path.exists() else {}  # lines of cells that were not measured now
    write_whole(path, "".join(f"{line}\n" for line in (kept | fresh).values()))
    return variation


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many runs (default: 10)")
    parser.add_argument("op", nargs="*", help=f"of {', '.join(project.ops)} (default: all)")
    add_selection(parser, "cells (default: all, or those that the description of an expensive op names)")
    parsed = parser.parse_args(arguments)
    unknown = [op for op in parsed.op if op not in project.ops]
    if unknown:
        parser.error(f"no op {', '.join(unknown)}; there are {', '.join(project.ops)}")
    if parsed.runs < 2:
        parser.error(f"--runs must be at least 2, to differ; got {parsed.runs}")
    path = project.results / identity()["machine"] / "noise.jsonl"
    runs: list[dict[str, list[float]]] = []
    variation: dict[str, float] = {}
    for number in range(parsed.runs):
        began = time.monotonic()
        with _kept(project, number) as options:
            seconds, facts = _run(project, parsed.op or list(project.ops), replace(options, only=selected(parsed)))
        runs.append(seconds)
        if len(runs) > 1:  # one run does not differ
            variation = _record(path, runs, facts)
        print(f"run {number + 1} of {parsed.runs}: {time.monotonic() - began:.1f} s", flush=True)
    for left in Path(options.kept).glob("noise*"):
        left.unlink(missing_ok=True)
    for key in sorted(variation, key=variation.__getitem__, reverse=True):
        median_s = statistics.median(statistics.median(run[key]) for run in runs if key in run)
        print(f"{100 * variation[key]:7.3f} %  {1e6 * median_s:12.3f} us  {key}")
    print(
        f"{len(variation)} cells: median {100 * statistics.median(variation.values()):.3f} %, "
        f"worst {100 * max(variation.values()):.3f} %; recorded in {path.relative_to(project.root)}"
    )
    return 0
