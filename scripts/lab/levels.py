#!/usr/bin/env python3
"""Shows after what a cold cell at the highest SM clock takes another time: what an L2 cache settles into.

Each cell is taken again and again, with something else before each take: nothing, a rest, a graph captured anew, other
kernels, or buffers filled anew. The samples of a take come back to back. The record goes to docs/levels.json, and from
there to the table of docs/research/measuring.md. It needs a GPU.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import DEVICES
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.launch import current
from lab.figures import write_block, write_record
from lab.quiet import variation

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "levels.json", ROOT / "docs" / "research" / "measuring.md"
TAKES, SAMPLES = 16, 2
REST_S = 0.2
CAPTURED = "a graph captured anew"
WAYS = ("nothing", "a rest of 0.2 s", CAPTURED, "other kernels", "buffers filled anew")
CELLS = (
    "matmul/thread_tile_2d float32 2048x2048x2048 cold",
    "matmul/split_tail float32 256x256x256 cold",
    "matmul/cublas float32 256x256x256 cold",
    "matmul/pipelined_32x64 float32 64x65536x256 cold",
    "transpose/naive_read float32 1024x1024 cold",
    "transpose/padded float32 4096x4096 cold",
    "vector_add/vectorized float32 16777216 cold",
)


class Settling(Gpu):
    """A device that takes a cell in several ways."""

    def taken(self, cell: Cell) -> dict[str, list[list[float]]]:
        """Way -> the seconds of a launch in each sample of each take."""
        kernel, seconds = self._loaded(cell), self.measure(cell)["seconds"]
        with current(self.stream):
            self._fill(cell)
            launches = [self._bind(cell, kernel, slot)[0] for slot in range(self._slots(cell))]
            launches[0]()  # loads what a capture must not load
            self.stream.synchronize()
            count, replays, _ = self._enough(len(launches), seconds)
            graph = self.graph(launches, count)

            works: dict[str, Callable[[], object]] = {
                "a rest of 0.2 s": partial(time.sleep, REST_S),
                "other kernels": self.canary_seconds,
                "buffers filled anew": partial(self._fill, cell),
            }

            def take(way: str) -> list[float]:
                """The seconds of a launch in each sample, after what a way puts before them."""
                if before := works.get(way):
                    before()
                taken = self.graph(launches, count) if way == CAPTURED else graph
                return [value / (count * replays) for value in self.replay(taken, replays, SAMPLES)[0]]

            self.replay(graph, replays, SAMPLES)
            return {way: [take(way) for _ in range(TAKES)] for way in WAYS}


def work() -> dict[str, Any]:
    """The record. Raises: what CuPy raises without a GPU."""
    planned = {cell.key: cell for problem in PROJECT.problems for cell in plan(problem, "gpu")}
    cells = [planned[key] for key in CELLS]
    gpu = Settling(PROJECT, import_package(PROJECT, str(ROOT)), cells, DEVICES["gpu"].quick_budget, 1)
    found = {cell.key: gpu.taken(cell) for cell in cells}
    return {"gpu": gpu.gpu, "driver": gpu.nvml_facts.get("driver"), "cells": found}


def between(takes: Sequence[Sequence[float]]) -> float:
    """The coefficient of variation of the takes' means."""
    return variation([statistics.fmean(take) for take in takes])


def inside(takes: Sequence[Sequence[float]]) -> float:
    """The same of the samples within a take: the root mean square."""
    return math.sqrt(statistics.fmean(variation(take) ** 2 for take in takes))


def text(record: dict[str, Any]) -> str:
    """The table of a record: a row for each cell."""
    rows = []
    for key, ways in record["cells"].items():
        samples = inside([take for takes in ways.values() for take in takes])
        rows.append([f"`{key}`", percent(samples, 2), *(percent(between(ways[way]), 2) for way in WAYS)])
    told = f"{record['gpu']}, driver {record['driver']}; {TAKES} takes of {SAMPLES} samples in each way."
    return f"{told}\n\n{table(['', 'samples of a take', *WAYS], rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/levels", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/levels.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    options = parser.parse_args(arguments)
    if not options.table:
        write_record(options.out, work())
    record = json.loads(options.out.read_text(encoding="utf-8"))
    print(text(record))
    if options.out == RECORD:
        write_block(PAGE, "levels", text(record), "scripts/lab/levels")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
