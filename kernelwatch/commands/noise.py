"""A/A: run the GPU suites of this checkout several times, and record how far each cell's seconds differ.

Nothing changes between the runs, so that they show the machine's noise, and hence the smallest credible change. The
record is noise.jsonl among the machine's results, one line per cell: the seconds of each process of each run, the
medians of the runs and their coefficient of variation (standard deviation over mean).
"""

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from kernelwatch.asv.identity import identity
from kernelwatch.commands.arguments import Parser, add_selection, selected
from kernelwatch.plan.project import Project
from kernelwatch.run.group import measure
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.options import Options

WHO = ("gpu", "nvml_uuid_sha256", "nvml_driver", "harness")


def read(path: Path) -> dict[str, str]:
    """The lines of a record by cell."""
    return {json.loads(line)["key"]: line for line in path.read_text(encoding="utf-8").splitlines()}


def _runs(
    project: Project, ops: list[str], count: int, only: str
) -> tuple[dict[str, list[list[float]]], dict[str, object]]:
    """The seconds of each process of each run by cell, and the facts of the machine. Raises: UserError if a cell fails
    or nothing can be measured."""
    processes: dict[str, list[list[float]]] = {}
    facts: dict[str, object] = {}
    why = "no cell is chosen"
    for run in range(count):
        began = time.monotonic()
        for op in ops:
            options = replace(Options.here(), only=only or project.op(op).noise_cells)
            group = measure(project, op, "gpu", options)
            facts |= group.facts
            for key, outcome in group.outcomes.items():
                if outcome.state == "failed":
                    raise UserError(f"{key} failed: {outcome.reason}")
                if outcome.measurements:
                    processes.setdefault(key, []).append([*outcome.by_process("seconds").values()])
                else:
                    why = outcome.reason
        if not processes:
            raise UserError(f"nothing to record: {why}")
        print(f"run {run + 1} of {count}: {time.monotonic() - began:.1f} s", flush=True)
    return processes, facts


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
    processes, facts = _runs(project, parsed.op or list(project.ops), parsed.runs, selected(parsed))
    medians = {key: [statistics.median(run) for run in runs] for key, runs in processes.items()}
    variation = {key: statistics.stdev(values) / statistics.mean(values) for key, values in medians.items()}
    who = {name: facts.get(name) for name in WHO}
    fresh = {
        key: json.dumps({"key": key, "cv": variation[key], "medians_s": medians[key], "processes_s": runs, "who": who})
        for key, runs in processes.items()
    }
    kept = read(path) if path.exists() else {}  # lines of cells that were not measured now
    write_whole(path, "".join(f"{line}\n" for line in (kept | fresh).values()))
    for key in sorted(variation, key=variation.__getitem__, reverse=True):
        print(f"{100 * variation[key]:7.3f} %  {statistics.median(medians[key]) * 1e6:12.3f} us  {key}")
    print(
        f"{len(variation)} cells: median {100 * statistics.median(variation.values()):.3f} %, "
        f"worst {100 * max(variation.values()):.3f} %; recorded in {path.relative_to(project.root)}"
    )
    return 0
