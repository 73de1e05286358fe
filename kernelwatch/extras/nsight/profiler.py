"""Measure launches with Nsight Compute, without its control of the clocks, and read its tables."""

import csv
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.package import Package
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import UserError
from kernelwatch.system.tools import ncu
from kernelwatch.timing.launches import CHILD


def profile(
    child: Sequence[str],
    metrics: Sequence[str],
    symbols: Sequence[str],
    *,
    flush: str,
    skip: int = 0,
    count: int | None = None,
    folder: Path,
) -> list[dict[str, float]]:
    """Profile a Python child process with ncu. Returns one dict (metric -> value) for each profiled launch.

    `child`: the arguments of the child.
    `metrics`: ncu's names; values are in base units (ns, bytes).
    `symbols`: the names of the kernels whose launches are profiled.
    `flush`: ncu's cache control, "all" or "none".
    `skip`: launches to skip before the first that is profiled; used only with `count`.
    `count`: how many launches are profiled; None for all.

    Raises: ToolMissing; UserError with ncu's output.
    """
    command = [
        *(ncu(), "--clock-control", "none", "--cache-control", flush, "--metrics", ",".join(metrics)),
        *("--kernel-name", f"regex:^({'|'.join(map(re.escape, sorted(symbols)))})$"),
        *(("--launch-skip", str(skip), "--launch-count", str(count)) if count is not None else ()),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *(sys.executable, *child),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    table = done.stdout[max(done.stdout.find('"ID"'), 0) :].splitlines()
    rows = [row for row in csv.DictReader(table) if (row.get("ID") or "").isdigit()]
    try:
        launches = [{name: float(row[name].replace(",", "")) for name in metrics} for row in rows]
    except (KeyError, ValueError) as error:
        raise UserError(f"ncu did not report {error}: {_output(done)}") from None
    if done.returncode or not launches:
        raise UserError(f"ncu measured {len(launches)} launches: {_output(done)}")
    return launches


def _output(done: "subprocess.CompletedProcess[str]") -> str:
    return (done.stdout[:2000] + done.stderr).strip()[-1500:]


def counters(
    project: Project, package: Package, cell: Cell, metrics: Sequence[str], *, flush: str, skip: int, count: int
) -> dict[str, float]:
    """The median of each metric over `count` launches of a cell over its rotating buffers, after `skip` launches.

    Raises: ToolMissing; UserError with ncu's output.
    """
    import cupy

    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    symbol = base_name(package.binary(cell.op, cell.rung, cell.type, arch).symbol)
    child = (*CHILD, "rotating", str(project.root), json.dumps(cell.as_json()), str(skip + count))
    rows = profile(child, metrics, [symbol], flush=flush, skip=skip, count=count, folder=project.root)
    return {name: statistics.median(row[name] for row in rows) for name in metrics}


def base_name(symbol: str) -> str:
    """The name of a function in the source, of its symbol: "scale" of "_Z5scalePf", and of "scale"."""
    length = re.match(r"_Z(\d+)", symbol)
    return symbol[length.end() :][: int(length[1])] if length else symbol


def find(project: Project, key: str) -> Cell:
    """The cell of the GPU with this key. Raises: UserError if there is none."""
    cells = {cell.key: cell for problem in project.problems for cell in plan(problem, "gpu")}
    if key not in cells:
        raise UserError(f"no cell {key!r}; a cell is op/rung type shape cache, such as {next(iter(cells))!r}")
    return cells[key]
