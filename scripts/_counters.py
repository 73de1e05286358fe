"""Nsight Compute's counters for the rungs of a ladder: why one does, or does not, beat the one before it.

Recorded as results/<machine>/counters.jsonl, one line a cell; scripts/ladder --readme makes the table of docs/ of it.
"""

import argparse
import json
import shutil
import sys

from rich.console import Console
from rich.table import Table

import gpukernels
from benchmarks._cells import key
from benchmarks._files import write_whole
from scripts import _ncu
from scripts.asv_plugins.recording import identity

# What is asked, and its name in a table.
METRICS = {
    "gpu__time_duration.sum": "us",
    "launch__grid_size": "blocks",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps, %",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue slots, %",
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": "L1 data, %",
    "l1tex__t_sector_hit_rate.pct": "L1 hits, %",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "shared wavefronts, M",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank conflicts, M",
    "lts__t_sectors_op_read.sum": "L2 sectors read, M",
    "smsp__inst_executed.sum": "instructions, M",
}
SHAPES = ((256, 256, 256), (2048, 2048, 2048))
SKIP, COUNT = 2, 3


def cells() -> list[str]:
    """The CUDA rungs of the products that are of float32 and take any shape, small and large."""
    return [
        key("matmul", rung.name, "float32", shape, "cold")
        for shape in SHAPES
        for rung in gpukernels.op("matmul").rungs
        if rung.source.suffix == ".cu" and "float32" in rung.types and rung.name != "constant"
    ]


def text(metric: str, value: float) -> str:
    """A counter as the tables show it."""
    name = METRICS[metric]
    if name == "blocks":
        return f"{value:.0f}"
    return f"{value / (1e6 if name.endswith(' M') else 1e3 if name == 'us' else 1):.4g}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/counters", description=__doc__)
    parser.add_argument("cell", nargs="*", help="cells by key (default: the CUDA rungs of the products)")
    given = parser.parse_args(arguments)
    if not shutil.which("ncu"):
        print(f"scripts/counters: {_ncu.MISSING}", file=sys.stderr)
        return 1
    path = _ncu.ROOT / "results" / identity()["machine"] / "counters.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {json.loads(line)["key"]: line for line in lines}
    table = Table("cell", *METRICS.values())
    for cell in map(_ncu.find, given.cell or cells()):
        found = _ncu.ask(cell, list(METRICS), flush="none", skip=SKIP, count=COUNT)
        known[cell.key] = json.dumps({"key": cell.key, "metrics": found})
        write_whole(path, "".join(f"{line}\n" for line in known.values()))  # what is measured stays, whatever comes
        table.add_row(cell.key, *(text(name, value) for name, value in found.items()))
    Console(width=200).print(table)
    return 0
