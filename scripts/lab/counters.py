#!/usr/bin/env python3
"""Records Nsight Compute's counters for the rungs of a ladder, which explain why a rung beats the previous one or not.

The record is results/<machine>/counters.jsonl with a line for each cell. scripts/lab/figures writes from it the tables
in docs/ that TABLES describes. An interrupted run goes on with --missing.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as Printed

from benchmarks.project import PROJECT
from kernelwatch.asv.machine_names import machine_name, who
from kernelwatch.extras.nsight import profiler
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.package import Package
from kernelwatch.plan.problem import Shape, label
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import replace_lines
from kernelwatch.system.tools import ncu

# Title of a column -> Nsight Compute's metric, and what one of its units is divided by.
METRICS = {
    "us": ("gpu__time_duration.sum", 1e3),
    "blocks": ("launch__grid_size", 1),
    "warps, %": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "issue slots, %": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "L1 data, %": ("l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", 1),
    "L1 hits, %": ("l1tex__t_sector_hit_rate.pct", 1),
    "shared wavefronts, M": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1e6),
    "bank conflicts, M": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1e6),
    "L2 sectors read, M": ("lts__t_sectors_op_read.sum", 1e6),
    "L2 sectors written, M": ("lts__t_sectors_op_write.sum", 1e6),
    "memory read, MB": ("dram__bytes_read.sum", 1e6),
    "memory written, MB": ("dram__bytes_write.sum", 1e6),
    "memory, %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "tensor pipe, %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    "clock, MHz": ("sm__cycles_elapsed.avg.per_second", 1e6),
    "instructions, M": ("smsp__inst_executed.sum", 1e6),
    # For how many cycles a warp waits between two of its instructions, by what it waits for.
    "wait: memory": ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", 1),
    "wait: shared": ("smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio", 1),
    "wait: barrier": ("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", 1),
    "wait: dispatch": ("smsp__average_warps_issue_stalled_dispatch_stall_per_issue_active.ratio", 1),
}
SKIP, COUNT = 2, 3


@dataclass(frozen=True)
class Table:
    """Rungs of an op that are explained by the same counters. `columns`: titles in METRICS."""

    op: str
    type: str
    shape: Shape
    rungs: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def cells(self) -> list[Cell]:
        """Its cells. Not all of them are in a suite, which has most types at few shapes."""
        return [Cell(self.op, rung, self.type, self.shape, "cold", "gpu") for rung in self.rungs]

    @property
    def keys(self) -> list[str]:
        """The keys of its cells."""
        return [cell.key for cell in self.cells]

    @property
    def title(self) -> str:
        """What its rows have in common."""
        return f"{label(self.shape)}, {self.type}"


def _rungs(op: str, type: str, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The CUDA rungs of an op that take a type and do their work once, without some."""
    rungs = [rung for rung in PROJECT.op(op).rungs if rung.is_cuda and type in rung.types and rung.repeats == 1]
    return tuple(rung.name for rung in rungs if rung.name not in but)


_COMMON = ("us", "blocks", "warps, %")
_SHARED = ("shared wavefronts, M", "bank conflicts, M")
# `constant` takes only a small A. A launch of the products by parts, of rounded operands or of split tiles is several
# kernels, of which the counters are of the products alone.
_PRODUCTS = _rungs("matmul", "float32", ("constant", "split_tail", "bf16x6", "fp16x3", "tf32", "tf32_64x128"))
_WAITS = tuple(title for title in METRICS if title.startswith("wait: "))
_TENSOR_COLUMNS = (
    *("us", "blocks", "tensor pipe, %", "clock, MHz", "instructions, M"),
    *("L2 sectors read, M", "memory read, MB", "memory, %"),
)
_LARGE_COLUMNS = (
    *("us", "blocks", "issue slots, %", "clock, MHz", *_WAITS),
    *("L2 sectors read, M", "memory read, MB", "memory, %"),
)
_TURNED_COLUMNS = (
    *("us", "warps, %", "issue slots, %", "L1 data, %", *_SHARED),
    *("L2 sectors read, M", "L2 sectors written, M", "memory read, MB", "memory written, MB", "memory, %"),
)
_RAGGED = (16411, 8209)
_TENSOR = tuple(name for name in _rungs("matmul", "float16->float32") if name.startswith("w"))
_LARGE_CLIMB = ("async_stages", "serpentine", "pipelined", "raster", "split_tail")
# The waits of those that copy tiles for sums in registers.
_CLIMB = ("thread_tile_2d", "vector_loads", "double_buffer", "async_stages", "serpentine", "pipelined", "raster")
_STORES = ("wgmma_stages", "wgmma_tma_store", "wgmma_specialized", "wgmma_persistent", "wgmma_cache_hints", "wgmma")
_CACHES = ("wgmma_persistent", "wgmma_cache_hints", "wgmma")
# The best rungs of the other 16-bit types, at the shapes of the bars.
_HALVES = (
    ("bfloat16->float32", (2048, 2048, 2048), ("wgmma_cache_hints", "wgmma")),
    *((type, (2048, 2048, 2048), ("wgmma",)) for type in ("float16", "bfloat16")),
    *(
        (type, shape, (rung,))
        for type in ("bfloat16->float32", "float16", "bfloat16")
        for shape, rung in (
            ((4096, 4096, 4096), "wgmma"),
            ((8192, 8192, 8192), "wgmma"),
            ((4000, 4104, 4040), "wgmma_multicast"),
        )
    ),
)
# File -> its tables.
TABLES = {
    "docs/research/matmul.md": [
        *(
            Table(
                *("matmul", "float32", (n, n, n), _PRODUCTS),
                (
                    *_COMMON,
                    "issue slots, %",
                    "L1 data, %",
                    "L1 hits, %",
                    *_SHARED,
                    "L2 sectors read, M",
                    "instructions, M",
                ),
            )
            for n in (256, 2048)
        ),
        Table("matmul", "float32", (2048, 2048, 2048), _CLIMB, ("us", "issue slots, %", "clock, MHz", *_WAITS)),
        *(
            Table(*("matmul", type, shape, rungs), _TENSOR_COLUMNS)
            for type, shape, rungs in (
                ("float16->float32", (4096, 4096, 4096), _TENSOR),
                ("float16->float32", (2048, 2048, 2048), _STORES),
                ("float16->float32", (8192, 8192, 8192), _CACHES),
                ("float16->float32", (4000, 4104, 4040), ("wgmma", "wgmma_128x128", "wgmma_multicast")),
                ("float32", (2048, 2048, 2048), ("tf32", "bf16x6", "fp16x3")),
                ("float32", (4096, 4096, 4096), ("tf32", "bf16x6", "fp16x3")),
                ("float32", (8192, 8192, 8192), ("tf32", "bf16x6", "fp16x3")),
                *_HALVES,
            )
        ),
        *(Table("matmul", "float32", (n, n, n), _LARGE_CLIMB, _LARGE_COLUMNS) for n in (2048, 4096, 8192)),
    ],
    "docs/research/transpose.md": [
        Table(
            *("transpose", "float32", (4096, 4096), _rungs("transpose", "float32")),
            (*_COMMON, "L1 data, %", *_SHARED, "L2 sectors read, M", "L2 sectors written, M", "memory, %"),
        ),
        *(
            Table(*("transpose", type, shape, rungs), _TURNED_COLUMNS)
            for type, shape, rungs in (
                ("float32", (8192, 8192), ("copy", "padded", "vectorized", "raster")),
                ("float32", _RAGGED, ("copy", "naive_write", "padded", "vectorized", "sector_aligned")),
                *(
                    (type, (4096, 4096), ("copy", "padded", "vectorized", "raster", "sector_aligned"))
                    for type in ("uint16", "uint8", "float64", "complex128")
                ),
                ("uint16", (8192, 8192), ("copy", "padded", "vectorized", "raster")),
                *(("uint8", (n, n), ("copy", "vectorized", "raster")) for n in (8192, 16384)),
                *(
                    (type, (n, n), ("copy", "padded", "vectorized", "raster"))
                    for type in ("float64", "complex128")
                    for n in (8192, 16384)
                ),
                *(
                    (
                        type,
                        _RAGGED,
                        ("copy", "padded", "sector_aligned", *(("sector_words",) if type == "uint8" else ())),
                    )
                    for type in ("uint16", "uint8", "float64", "complex128")
                ),
            )
        ),
    ],
}


def text(title: str, value: float) -> str:
    """A counter as the tables show it, in the unit of its title."""
    return f"{value:.0f}" if title == "blocks" else f"{value / METRICS[title][1]:.4g}"


def main(arguments: list[str] | None = None) -> int:
    """Record the counters of the cells in the arguments; the exit code: 2 if those of a cell could not be taken."""
    parser = Parser("scripts/lab/counters", __doc__)
    parser.add_argument("cell", nargs="*", help="keys of cells (default: all that docs/ has tables of)")
    parser.add_argument(
        "--missing", action="store_true", help="only cells whose counters lack a metric, or are of another binary"
    )
    options = parser.parse_args(arguments)
    keys = options.cell or [key for tables in TABLES.values() for table in tables for key in table.keys]
    return record(list(dict.fromkeys(keys)), options.missing)


def lacks(line: Mapping[str, Any] | None, binary: str) -> bool:
    """Whether a line of the record is not there, has not all metrics, or has those of another binary."""
    if line is None or line.get("binary") != binary:
        return True
    return not {metric for metric, _ in METRICS.values()} <= set(line["metrics"])


def binary_of(package: Package, cell: Cell) -> str:
    """The digest of what a rung compiles to on this GPU."""
    import cupy

    binary = package.binary(cell.op, cell.rung, cell.type, f"sm_{cupy.cuda.Device().compute_capability}")
    return hashlib.sha256(binary.path.read_bytes()).hexdigest()[:16]


def find(name: str) -> Cell:
    """The cell of a key: one of the tables, or of the suites. Raises: UserError if there is none."""
    cells = {cell.key: cell for tables in TABLES.values() for table in tables for cell in table.cells}
    return cells.get(name) or profiler.find(PROJECT, name)


def record(keys: Sequence[str], missing: bool = False) -> int:
    """Record the counters of cells by key, and print them; the exit code. `missing`: only what the record lacks.
    Raises: UserError."""
    ncu()
    package = import_package(PROJECT, str(PROJECT.repository))
    path = PROJECT.results / machine_name() / "counters.jsonl"
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else [])
    known = {line["key"]: line for line in lines}
    metrics = [metric for metric, _ in METRICS.values()]
    printed, failed = Printed("cell", *METRICS), False
    for name in keys:
        cell = find(name)
        binary = binary_of(package, cell)
        if missing and not lacks(known.get(name), binary):
            continue
        try:
            values = profiler.counters(PROJECT, package, cell, metrics, flush="none", skip=SKIP, count=COUNT)
        except UserError as error:  # costs its own cell alone
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        # After each cell, so that an interruption loses nothing.
        replace_lines(path, {name: {"metrics": values, "binary": binary, "who": who()}})
        print(name, flush=True)
        printed.add_row(name, *(text(title, values[metric]) for title, (metric, _) in METRICS.items()))
    Output().print(printed)
    return 2 if failed else 0
