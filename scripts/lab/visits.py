#!/usr/bin/env python3
"""Shows how far the figures of a cell differ within one process that comes back to it several times.

One process prepares some cold cells that run at the highest SM clock: it measures each, and captures a graph of it.
Then it visits all of them in turns, each turn in an order of its own. A visit fills the buffers and takes the samples
of a measurement, so visits of one cell are as far apart as a turn takes. At last it takes many samples of each cell
back to back. The record goes to docs/visits.json, and from there to the table of docs/research/measuring.md. It needs a
GPU.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import itertools
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.asv.machine_names import slug_of
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import DEVICES
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.timing.gpu import SLOW_S, Gpu
from kernelwatch.timing.launch import current
from kernelwatch.timing.record import quartiles
from kernelwatch.timing.replay import Graph
from lab.figures import write_block, write_record
from lab.quiet import SHORT_S, cold, quantiles, recorded, variation
from lab.sampling import factor

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "visits.json", ROOT / "docs" / "research" / "measuring.md"
VISITS = 20
BACK_TO_BACK = 100  # samples
LAGS = (1, 5, 20)
CHOSEN = {  # op -> rungs, shapes
    "transpose": ("copy padded vectorized raster", "256x256 1024x1024 4096x4096"),
    "vector_add": ("elementwise vectorized vector_copy", "65536 1048576 16777216"),
    "matmul": (
        "tiled_32 pipelined double_buffer thread_tile_2d cublas",
        "512x512x512 1024x1024x1024 2048x2048x2048 4096x4096x64 128x4096x4096",
    ),
}
BUDGET = replace(DEVICES["gpu"].budget, takes=1)  # nobody asks this device for further takes


@dataclass(frozen=True)
class Prepared:
    """A cell that can be visited. `launches`: over its sets of buffers, kept for the memory that they may hold;
    `count`: how many the graph has; `replays`: in a sample."""

    cell: Cell
    launches: list[Any]
    graph: Graph
    count: int
    replays: int
    samples: int


class Visiting(Gpu):
    """A device that comes back to its cells."""

    def visited(self, cells: Sequence[Cell], visits: int) -> dict[str, dict[str, Any]]:
        """Key -> the figures of a cell's visits, and of samples back to back. Cells that are slow, or that a process
        rests before, are left out."""
        known = {cell: self.measure(cell) for cell in cells}
        prepared = [
            self._prepared(cell, one["seconds"])
            for cell, one in known.items()
            if one["seconds"] < SLOW_S and not self.rest_s(one["clock64_mhz"], one["throttled"])
        ]
        figures: dict[str, dict[str, Any]] = {
            one.cell.key: {"samples": one.samples, "seconds": [], "quartiles_s": [], "clock64_mhz": [], "retakes": 0}
            for one in prepared
        }
        draw = random.Random(self.seed)
        with current(self.stream):
            for _ in range(visits):
                for one in draw.sample(prepared, len(prepared)):
                    self._visit(one, figures[one.cell.key])
            for one in prepared:
                self._fill(one.cell)
                seconds, _, _ = self.replay(one.graph, one.replays, BACK_TO_BACK)
                figures[one.cell.key]["back_to_back_s"] = [value / (one.replays * one.count) for value in seconds]
        return figures

    def _prepared(self, cell: Cell, seconds: float) -> Prepared:
        """Prepare a cell as a process does that knows its `seconds`. It must have been measured before."""
        kernel = self._loaded(cell)
        with current(self.stream):
            self._fill(cell)
            launches = [self._bind(cell, kernel, slot)[0] for slot in range(self._slots(cell))]
            launches[0]()  # loads what a capture must not load
            self.stream.synchronize()
            count, replays, samples = self._enough(len(launches), seconds)
            return Prepared(cell, launches, self.graph(launches, count), count, replays, samples)

    def _visit(self, one: Prepared, figures: dict[str, Any]) -> None:
        self._fill(one.cell)
        taken = self.take_quietly(one.graph, one.replays, one.count, one.samples)
        figures["seconds"].append(statistics.median(taken["seconds"]))
        figures["quartiles_s"].append(quartiles(taken["seconds"]))
        figures["clock64_mhz"].append(taken["clock64_mhz"])
        figures["retakes"] += taken["retakes"]


def work(visits: int) -> dict[str, Any]:
    """The record, with the spread of each cell between the processes of this GPU model's newest full run. Raises: what
    CuPy raises without a GPU."""
    planned = {cell.key: cell for problem in PROJECT.problems for cell in plan(problem, "gpu")}
    cells = [
        planned[f"{op}/{rung} float32 {shape} cold"]
        for op, (rungs, shapes) in CHOSEN.items()
        for rung, shape in itertools.product(rungs.split(), shapes.split())
    ]
    gpu = Visiting(PROJECT, import_package(PROJECT, str(ROOT)), cells, BUDGET, 1)
    figures = gpu.visited(cells, visits)
    newest = recorded(f"{slug_of(gpu.gpu)}.")[-1:]
    spreads = {cell.key: cell.spread for record in newest for cell in cold(record)}
    return {
        "gpu": gpu.gpu,
        "driver": gpu.nvml_facts.get("driver"),
        "visits": visits,
        "left_out": [cell.key for cell in cells if cell.key not in figures],
        "full_run": newest[0].commit if newest else None,
        "cells": {key: {"between_processes": spreads.get(key), **one} for key, one in figures.items()},
    }


def sampling_error(one: dict[str, Any]) -> float:
    """The relative standard error of a cell's figure in a visit, from the quartiles of its samples: the root mean
    square over the visits."""
    pairs = zip(one["seconds"], one["quartiles_s"], strict=True)
    apart = statistics.fmean(((upper - lower) / middle) ** 2 for middle, (lower, upper) in pairs)
    return factor(one["samples"]) * math.sqrt(apart)


def middle_correlation(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> str:
    """The median of the correlations of such pairs, without those of which one side is constant."""
    varying = [(a, b) for a, b in pairs if len(set(a)) > 1 and len(set(b)) > 1]
    return f"{statistics.median(statistics.correlation(a, b) for a, b in varying):+.2f}" if varying else "n/a"


def text(record: dict[str, Any]) -> str:
    """The table of a record: a row for the short and one for the long cells of each op, and one for all."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for key, one in record["cells"].items():
        length = "below" if statistics.median(one["seconds"]) < SHORT_S else "above"
        kinds.setdefault(f"{key.partition('/')[0]}, {length} {1e6 * SHORT_S:.0f} us", []).append(one)
    rows = []
    for kind, cells in [*kinds.items(), ("all", list(record["cells"].values()))]:
        long = [one["back_to_back_s"] for one in cells]
        row = [kind, str(len(cells)), *quantiles([variation(one["seconds"]) for one in cells], 3)[:2]]
        row.append(percent(statistics.median(map(sampling_error, cells)), 3))
        row.append(quantiles([spread for one in cells if (spread := one["between_processes"]) is not None], 3)[0])
        row += [middle_correlation([(each[:-lag], each[lag:]) for each in long]) for lag in LAGS]
        clocks = [
            [(each, mhz) for each, mhz in zip(one["seconds"], one["clock64_mhz"], strict=True) if mhz] for one in cells
        ]
        row.append(middle_correlation([([s for s, _ in own], [mhz for _, mhz in own]) for own in clocks]))
        rows.append(row)
    spreads = ["between visits", "90 %", "sampling", "between processes"]
    header = ["", "cells", *spreads, *(f"lag {lag}" for lag in LAGS), "with the clock"]
    retakes = sum(one["retakes"] for one in record["cells"].values())
    told = f"{record['gpu']}, driver {record['driver']}; {record['visits']} visits of each cell, {retakes} retakes;"
    left = len(record["left_out"])
    return f"{told} {left} cells left out. The processes are those of {record['full_run']}.\n\n{table(header, rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/visits", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/visits.json)")
    parser.add_argument("--visits", type=int, default=VISITS, help=f"of each cell (default: {VISITS})")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    options = parser.parse_args(arguments)
    if not options.table:
        write_record(options.out, work(options.visits))
    record = json.loads(options.out.read_text(encoding="utf-8"))
    print(text(record))
    if options.out == RECORD:
        write_block(PAGE, "visits", text(record), "scripts/lab/visits")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
