"""The stick's seconds beside Nsight Compute's gpu__time_duration, for the same cells on the same rotating buffers.

ncu times one kernel by itself, from its start to its end; a graph replay also holds the step from one kernel to the
next (a little under 1 us). ncu runs with the clocks as they are; its own cache flush before every kernel ("flushed")
and the stick's rotation alone ("rotated") are both shown. Both write back what the kernel before left dirty, or not.
"""

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._cells import Cell, plan
from benchmarks._group import BUDGETS, Run
from benchmarks._ops import OPS
from scripts import _environment

ROOT = Path(__file__).resolve().parent.parent
CELLS = (
    "vector_add/elementwise float32 16777216 cold",
    "transpose/copy float32 4096x4096 cold",
    "transpose/naive_read float32 1024x1024 cold",
    "transpose/padded float32 1024x1024 cold",
    "transpose/padded float32 4096x4096 cold",
    "transpose/padded float32 16411x8209 cold",
)
SKIP, COUNT = 20, 15


def find(key: str) -> Cell:
    """A cell by its key. Raises: SystemExit."""
    for op in OPS:
        for cell in plan(op, "gpu"):
            if cell.key == key:
                return cell
    raise SystemExit(f"scripts/truth: no cell {key!r}; a cell is op/rung type shape cache, such as {CELLS[0]!r}")


def launch_for_ncu(cell: Cell) -> None:
    """In ncu's child: launch a cell over its rotating buffers, often enough to skip some and time some."""
    import cupy

    import gpukernels
    from benchmarks._gpu import Gpu

    gpu = Gpu([cell], BUDGETS["gpu"], seed=0)
    kernel = gpukernels.load(cell.op, cell.rung, cell.type)
    with gpu.stream:
        gpu._fill(cell)
        launches = [gpu._bind(cell, kernel, slot)[0] for slot in range(gpu._slots(cell))]
        for turn in range(SKIP + COUNT):
            launches[turn % len(launches)]()
    cupy.cuda.runtime.deviceSynchronize()


def ncu_seconds(ncu: str, cell: Cell, flush: str) -> float:
    """The median of ncu's durations. Raises: SystemExit with ncu's words."""
    command = [
        ncu,
        "--clock-control",
        "none",
        "--cache-control",
        flush,
        "--metrics",
        "gpu__time_duration.sum",
        "--kernel-name",
        f"regex:{cell.op}_{cell.rung}",
        "--launch-skip",
        str(SKIP),
        "--launch-count",
        str(COUNT),
        "--csv",
        "--print-units",
        "base",
        sys.executable,
        __file__,
        "--child",
        json.dumps(cell.as_json()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=_environment.with_root())
    table = done.stdout[done.stdout.find('"ID"') :].splitlines()
    rows = [row for row in csv.DictReader(table) if row.get("Metric Name") == "gpu__time_duration.sum"]
    if done.returncode or not rows:
        raise SystemExit(f"scripts/truth: ncu did not time {cell.key}: {(done.stdout + done.stderr).strip()[-800:]}")
    return statistics.median(float(row["Metric Value"].replace(",", "")) for row in rows) * 1e-9


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/truth", description=__doc__)
    parser.add_argument("cell", nargs="*", default=CELLS, help="cells by key (default: six of them)")
    given = parser.parse_args(arguments)
    ncu = shutil.which("ncu")
    if not ncu:
        print("scripts/truth: Nsight Compute's ncu is not on the PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 1
    table = Table("cell", "stick", "ncu, flushed", "ncu, rotated", "stick - flushed", "stick - rotated")
    for cell in map(find, given.cell):
        run = Run([cell], "gpu", str(ROOT), BUDGETS["gpu"])
        for process in range(3):
            run.visit_all(process)
        outcome = run.group.outcomes[cell.key]
        if not outcome.visits:
            raise SystemExit(f"scripts/truth: {cell.key}: {outcome.reason}")
        stick = statistics.median(outcome.by_process("seconds").values())
        ours = (stick, ncu_seconds(ncu, cell, "all"), ncu_seconds(ncu, cell, "none"))
        table.add_row(cell.key, *(f"{1e6 * value:.2f} us" for value in (*ours, stick - ours[1], stick - ours[2])))
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    launch_for_ncu(Cell.from_json(json.loads(sys.argv[2])))
