"""Records Nsight Compute's counters for the rungs of a ladder, which explain why a rung beats the previous one or not.

The record is results/<machine>/counters.jsonl with a line for each cell, from which scripts/figures writes a table in
docs/.
"""

import json

from rich.table import Table

from benchmarks.project import PROJECT
from kernelwatch.analysis import nsight
from kernelwatch.asv.identity import identity, who
from kernelwatch.commands.arguments import Output, Parser
from kernelwatch.plan.cells import key
from kernelwatch.plan.project import import_package
from kernelwatch.system.files import write_whole
from kernelwatch.system.tools import ncu

# Nsight Compute's metric -> its title in a table.
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
    """Keys of the CUDA rungs of matmul with float32, at all SHAPES; without `constant`, which takes only a small A, and
    without those whose launch is several kernels."""
    return [
        key("matmul", rung.name, "float32", shape, "cold")
        for shape in SHAPES
        for rung in PROJECT.op("matmul").rungs
        if rung.is_cuda and "float32" in rung.types and rung.name not in ("constant", "bf16x6", "fp16x3")
    ]


def text(metric: str, value: float) -> str:
    """A counter as the tables show it, in the unit of its title."""
    name = METRICS[metric]
    if name == "blocks":
        return f"{value:.0f}"
    return f"{value / (1e6 if name.endswith(' M') else 1e3 if name == 'us' else 1):.4g}"


def main(arguments: list[str] | None = None) -> int:
    """Record the counters of the cells in the arguments; the exit code."""
    parser = Parser("scripts/counters", __doc__)
    parser.add_argument("cell", nargs="*", help="keys of cells (default: the CUDA rungs of matmul)")
    options = parser.parse_args(arguments)
    record(options.cell or cells())
    return 0


def record(keys: list[str]) -> None:
    """Record the counters of cells by key, and print them. Raises: UserError."""
    ncu()
    package = import_package(PROJECT, str(PROJECT.root))
    path = PROJECT.results / identity()["machine"] / "counters.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {json.loads(line)["key"]: line for line in lines}
    table = Table("cell", *METRICS.values())
    for name in keys:
        cell = nsight.find(PROJECT, name)
        values = nsight.counters(PROJECT, package, cell, list(METRICS), flush="none", skip=SKIP, count=COUNT)
        known[cell.key] = json.dumps({"key": cell.key, "metrics": values, "who": who()})
        # After each cell, so that an interruption loses nothing.
        write_whole(path, "".join(f"{line}\n" for line in known.values()))
        table.add_row(cell.key, *(text(name, value) for name, value in values.items()))
    Output().print(table)
