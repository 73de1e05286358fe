#!/usr/bin/env python3
"""Shows what a matrix product below the highest SM clock takes another time for: its L2 cache, or its place in memory.

One process comes back to some cells, each time in an order of its own. A visit rests and takes five samples, as a full
run does, in one of three ways: the buffers are filled once, or before each sample, or before each sample at a place of
the visit's own. The record goes to docs/draws.json, and from there to the table of docs/research/measuring.md. It needs
a GPU.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import DEVICES
from kernelwatch.plan.package import Kernel
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.launch import current
from kernelwatch.timing.record import typical
from kernelwatch.timing.replay import Graph
from lab.figures import write_block, write_record
from lab.quiet import variation

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "draws.json", ROOT / "docs" / "research" / "measuring.md"
VISITS, SAMPLES = 12, 5
ROOM_BYTES, STEP_BYTES = 560 << 20, 2 << 20  # within which a place is drawn, in steps of a page
MOVED_MOST = 60  # sets of buffers: more lie at so many places already
ONCE, ANEW, ELSEWHERE = "filled once", "filled before each sample", "and at another place"
F16, F8 = "float16->float32", "float8_e4m3fn->bfloat16"
CELLS = tuple(
    f"matmul/{rung} {type} {shape} cold"
    for rung, type, shape in (
        ("wgmma", F16, "4096x4096x4096"),
        ("cublas", F16, "4096x4096x4096"),
        ("wgmma_64x128", "bfloat16->float32", "4096x4096x4096"),
        ("wgmma_plain", F16, "2048x2048x2048"),
        ("wgmma_128x128", F16, "256x256x256"),
        ("wgmma_k_major", F16, "4096x4096x64"),
        ("cublas_k_major", F16, "4096x4096x64"),
        ("tf32_64x128", "float32", "2048x2048x2048"),
        ("tf32_64x128", "float32", "4096x4096x4096"),
        ("cublas_tf32", "float32", "128x4096x4096"),
        ("fp16x3", "float32", "512x512x512"),
        ("fp16x3", "float32", "64x65536x256"),
        ("bf16x6", "float32", "256x256x256"),
        ("bf16x6", "float32", "512x512x512"),
        ("wgmma_fp8_64x64", F8, "4000x4104x4040"),
        ("wgmma_fp8_64x128", F8, "4000x4104x4040"),
        ("wgmma_fp8_64x128", F8, "4096x4096x64"),
        ("torch_fp8", F8, "4096x4096x64"),
        ("torch_fp8_promoted", F8, "2048x2048x2048"),
        ("torch_fp8_promoted", F8, "64x65536x256"),
    )
)


@dataclass(frozen=True)
class Ready:
    """A cell that can be visited. `launches`: over its sets of buffers, kept for the memory that they may hold."""

    cell: Cell
    kernel: Kernel | None
    launches: list[Callable[[], object]]
    graph: Graph
    count: int
    replays: int
    clock_mhz: float


class Drawing(Gpu):
    """A device that visits cells in several ways."""

    def drawn(self, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
        """Key -> the samples of its visits in each way, in seconds, and its sets of buffers."""
        known = {cell: self.measure(cell) for cell in cells}
        whole = self.cupy.empty(max(map(self._arena_bytes, cells)) + ROOM_BYTES, self.cupy.uint8)
        self.arena = whole
        ready = [self._ready_for(cell, known[cell]["seconds"], known[cell]["clock64_mhz"]) for cell in cells]
        found: dict[str, dict[str, Any]] = {
            one.cell.key: {"sets": len(one.launches), ONCE: [], ANEW: [], ELSEWHERE: []} for one in ready
        }
        draw = random.Random(self.seed)
        for _ in range(VISITS):
            for one in draw.sample(ready, len(ready)):
                own = found[one.cell.key]
                for way in draw.sample((ONCE, ANEW), 2):
                    own[way].append(self._visit(one, one.graph, anew=way == ANEW))
                if len(one.launches) <= MOVED_MOST:
                    self.arena = whole[draw.randrange(ROOM_BYTES // STEP_BYTES) * STEP_BYTES :]
                    _moved, graph = self._bound(one.cell, one.kernel, one.count)
                    own[ELSEWHERE].append(self._visit(one, graph, anew=True))
                    self.arena = whole
        return found

    def _ready_for(self, cell: Cell, seconds: float, mhz: float | None) -> Ready:
        kernel = self._loaded(cell)
        with current(self.stream):
            self._fill(cell)
            count, replays, _ = self._enough(self._slots(cell), seconds)
        launches, graph = self._bound(cell, kernel, count)
        return Ready(cell, kernel, launches, graph, count, replays, mhz or 0.0)

    def _bound(self, cell: Cell, kernel: Kernel | None, count: int) -> tuple[list[Callable[[], object]], Graph]:
        """The launches over the sets of buffers where the arena is now, and a graph of them."""
        with current(self.stream):
            launches = [self._bind(cell, kernel, slot)[0] for slot in range(self._slots(cell))]
            launches[0]()  # loads what a capture must not load
            self.stream.synchronize()
            return launches, self.graph(launches, count)

    def _visit(self, one: Ready, graph: Graph, anew: bool) -> list[float]:
        """The samples of a visit. Its rest is that of a measurement of launches whose clock is known."""
        with current(self.stream):
            self.worked()
            self._fill(one.cell)
            how = self.rest_s(one.clock_mhz), graph, one.replays, one.count, SAMPLES, ()
            return self._rested(*how, partial(self._fill, one.cell) if anew else None)["seconds"]


def work() -> dict[str, Any]:
    """The record. Raises: what CuPy raises without a GPU."""
    planned = {cell.key: cell for cell in plan(PROJECT.op("matmul"), "gpu")}
    cells = [planned[key] for key in CELLS]
    gpu = Drawing(PROJECT, import_package(PROJECT, str(ROOT)), cells, DEVICES["gpu"].quick_budget, 1)
    return {"gpu": gpu.gpu, "driver": gpu.nvml_facts.get("driver"), "cells": gpu.drawn(cells)}


LEVEL: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {  # how a visit's figure comes from its samples
    ONCE: (ONCE, statistics.median),
    f"{ANEW}, median": (ANEW, statistics.median),
    f"{ANEW}, mean": (ANEW, typical),
    ELSEWHERE: (ELSEWHERE, typical),
}


def spread(cell: dict[str, Any], title: str) -> float | None:
    """The coefficient of variation of a cell's visits; None if there are none of this kind."""
    way, level = LEVEL[title]
    return variation([level(samples) for samples in cell[way]]) if cell[way] else None


def text(record: dict[str, Any]) -> str:
    """The table of a record: a row for each cell, and two for those of them that have all."""
    cells, rows = record["cells"], []
    for key, cell in cells.items():
        spreads = (spread(cell, title) for title in LEVEL)
        rows.append([f"`{key}`", str(cell["sets"]), *("" if one is None else percent(one, 2) for one in spreads)])
    whole = [own for cell in cells.values() if None not in (own := [spread(cell, title) for title in LEVEL])]
    for name, of in (("median", statistics.median), ("mean", statistics.fmean)):
        rows.append(
            [f"{name} of {len(whole)} with all", "", *(percent(of(each), 2) for each in zip(*whole, strict=True))]
        )
    told = f"{record['gpu']}, driver {record['driver']}; {VISITS} visits of {SAMPLES} samples in each way."
    return f"{told}\n\n{table(['', 'sets of buffers', *LEVEL], rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/draws", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/draws.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    options = parser.parse_args(arguments)
    if not options.table:
        write_record(options.out, work())
    record = json.loads(options.out.read_text(encoding="utf-8"))
    print(text(record))
    if options.out == RECORD:
        write_block(PAGE, "draws", text(record), "scripts/lab/draws")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
