"""The stick's seconds beside Nsight Compute's gpu__time_duration, for the same cells on the same rotating buffers.

ncu times one kernel by itself, from its start to its end; a graph replay also holds the step from one kernel to the
next (a little under 1 us). ncu runs with the clocks as they are; its own cache flush before every kernel ("flushed")
and the stick's rotation alone ("rotated") are both shown. Both write back what the kernel before left dirty, or not.
"""

import argparse
import shutil
import statistics
import sys

from rich.console import Console
from rich.table import Table

from benchmarks._group import BUDGETS, Run
from scripts import _ncu

CELLS = (
    "vector_add/elementwise float32 16777216 cold",
    "transpose/copy float32 4096x4096 cold",
    "transpose/naive_read float32 1024x1024 cold",
    "transpose/padded float32 1024x1024 cold",
    "transpose/padded float32 4096x4096 cold",
    "transpose/padded float32 16411x8209 cold",
)
DURATION = "gpu__time_duration.sum"
SKIP, COUNT = 20, 15


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/truth", description=__doc__)
    parser.add_argument("cell", nargs="*", default=CELLS, help="cells by key (default: six of them)")
    given = parser.parse_args(arguments)
    if not shutil.which("ncu"):
        print(f"scripts/truth: {_ncu.MISSING}", file=sys.stderr)
        return 1
    table = Table("cell", "stick", "ncu, flushed", "ncu, rotated", "stick - flushed", "stick - rotated")
    for cell in map(_ncu.find, given.cell):
        run = Run([cell], "gpu", str(_ncu.ROOT), BUDGETS["gpu"])
        for process in range(3):
            run.visit_all(process)
        outcome = run.group.outcomes[cell.key]
        if not outcome.visits:
            raise SystemExit(f"scripts/truth: {cell.key}: {outcome.reason}")
        stick = statistics.median(outcome.by_process("seconds").values())
        flushed, rotated = (
            _ncu.ask(cell, [DURATION], flush=flush, skip=SKIP, count=COUNT)[DURATION] * 1e-9
            for flush in ("all", "none")
        )
        figures = (stick, flushed, rotated, stick - flushed, stick - rotated)
        table.add_row(cell.key, *(f"{1e6 * value:.2f} us" for value in figures))
    Console(width=160).print(table)
    return 0
