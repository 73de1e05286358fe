#!/usr/bin/env python3
"""Shows in which steps the SM clock moves at its highest, and which cells are faster once copies ran before them.

One process prepares a few cold cells that run at the highest SM clock. It takes the samples of a measurement of each
many times: right after one another, then each time after copies, then right after one another again. It never rests.
The record goes to docs/ticks.json, and from there to the tables of docs/research/measuring.md. It needs a GPU.
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
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.timing.launch import current
from lab.figures import write_block, write_record
from lab.quiet import variation
from lab.visits import BUDGET, Visiting

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "ticks.json", ROOT / "docs" / "research" / "measuring.md"
CHOSEN = (
    "transpose/tiled float32 4096x4096 cold",
    "transpose/torch float32 8192x8192 cold",
    "matmul/tiled_32 float32 1024x1024x1024 cold",
    "matmul/pipelined float32 1024x1024x1024 cold",
    "matmul/pipelined float32 4096x4096x64 cold",
    "matmul/double_buffer float32 128x4096x4096 cold",
    "matmul/cublas float32 512x512x512 cold",
    "matmul/thread_tile_2d float32 2048x2048x2048 cold",
)
WAYS = {"alone": 0, "after copies": 16, "alone again": 0}  # -> lead-ins of copies before each take: 16 take some 5 ms
TAKES, UNUSED = 40, 3  # of each way: all, and the first ones, which the tables leave out
MOVED_MHZ = 1.5  # clocks that differ by less are the same level
ABOVE = 0.005  # a take that is so much slower than the fastest tenth is at another level


class Timed(NamedTuple):
    """A take. `ms`: when it began, since the first one of its cell; `seconds`: the median of its samples."""

    ms: float
    seconds: float
    mhz: float


class Ticking(Visiting):
    """A device that takes a cell many times in a row."""

    def taken(self, cell: Cell) -> dict[str, list[tuple[Any, ...]]]:
        """Way -> the takes of a cell, as in `Timed`, but the clock is None if unknown."""
        one = self._prepared(cell, self.measure(cell)["seconds"])
        takes: dict[str, list[tuple[Any, ...]]] = {}
        with current(self.stream):
            began = time.monotonic()
            for way, lead_ins in WAYS.items():
                takes[way] = []
                for _ in range(TAKES):
                    for _ in range(lead_ins):
                        self.lead_in[0].launch(self.stream)
                    self.stream.synchronize()
                    ms = round(1e3 * (time.monotonic() - began), 3)
                    taken = self.take(one.graph, one.replays, one.count, one.samples)
                    takes[way].append((ms, statistics.median(taken["seconds"]), taken["clock64_mhz"]))
        return takes


def work() -> dict[str, Any]:
    """The record. Raises: what CuPy raises without a GPU."""
    planned = {cell.key: cell for problem in PROJECT.problems for cell in plan(problem, "gpu")}
    cells = [planned[key] for key in CHOSEN]
    gpu = Ticking(PROJECT, import_package(PROJECT, str(ROOT)), cells, BUDGET, 1)
    takes = {cell.key: gpu.taken(cell) for cell in cells}
    return {"gpu": gpu.gpu, "driver": gpu.nvml_facts.get("driver"), "cells": takes}


def used(takes: Sequence[Sequence[Any]]) -> list[Timed]:
    """The takes of a way in a record that the tables use. A take whose clock is unknown is none of them."""
    return [Timed(*each) for each in takes[UNUSED:] if each[2]]


def in_levels(takes: Sequence[Timed]) -> list[list[Timed]]:
    """Stretches of at least two takes in a row at one level of the clock. A take that agrees with neither of its
    neighbors saw the clock move, and is in none."""
    stretches: list[list[Timed]] = []
    for take in takes:
        if stretches and abs(take.mhz - stretches[-1][-1].mhz) < MOVED_MHZ:
            stretches[-1].append(take)
        else:
            stretches.append([take])
    return [stretch for stretch in stretches if len(stretch) > 1]


def distinct(clocks: Sequence[float]) -> list[float]:
    """The levels among some clocks, the lowest first: each is that far above the one before."""
    levels: list[float] = []
    for mhz in sorted(clocks):
        if not levels or mhz - levels[-1] >= MOVED_MHZ:
            levels.append(mhz)
    return levels


def lasting(stretches: Sequence[Sequence[Timed]], clocks: Sequence[float]) -> str:
    """The median of how long a level stayed, from its first take to that of the next one. The first and the last level
    are left out, since one began before the takes and the other ended after them."""
    pairs = itertools.pairwise(zip(stretches, clocks, strict=True))
    begins = [now[0].ms for (_, before), (now, after) in pairs if abs(after - before) >= MOVED_MHZ]
    stayed = [end - begin for begin, end in itertools.pairwise(begins)]
    return f"{statistics.median(stayed):.0f} ms" if stayed else "n/a"


def row_of_clock(takes: Sequence[Timed]) -> list[str]:
    """What the first table shows of the takes of a cell; n/a for what needs a clock that moves, or one that stays."""
    seconds, mhz = [take.seconds for take in takes], [take.mhz for take in takes]
    stretches = in_levels(takes)
    clocks = [statistics.median(take.mhz for take in own) for own in stretches]
    ends = [f"{min(clocks):.0f} MHz", f"{max(clocks):.0f} MHz"] if clocks else ["n/a"] * 2
    moved = len(distinct(mhz)) > 1 and len(set(seconds)) > 1
    squares = sum((len(own) - 1) * variation([take.seconds for take in own]) ** 2 for own in stretches)
    return [
        percent(variation(seconds), 3),
        str(len(distinct(clocks))),
        ends[0],
        f"{statistics.median(mhz):.0f} MHz",
        ends[1],
        lasting(stretches, clocks),
        f"{statistics.correlation(seconds, mhz):+.2f}" if moved else "n/a",
        percent(math.sqrt(squares / sum(len(own) - 1 for own in stretches)), 3) if stretches else "n/a",
    ]


def ticks(cells: dict[str, Any]) -> str:
    """The table of the clock: a row for each cell, of its takes alone."""
    shown = "spread|levels|lowest|median|highest|a level lasts|with the clock|within a level"
    rows = [[key.removesuffix(" cold"), *row_of_clock(used(ways["alone"]))] for key, ways in cells.items()]
    return table(["", *shown.split("|")], rows)


def settled(cells: dict[str, Any]) -> str:
    """The table of the copies: a row for each cell, with the median of each way, and how many of its takes are above
    the fastest tenth of all takes of the cell."""
    rows = []
    for key, ways in cells.items():
        seconds = [[take.seconds for take in used(ways[way])] for way in WAYS]
        medians = [statistics.median(own) for own in seconds]
        slow = (1 + ABOVE) * statistics.quantiles(itertools.chain.from_iterable(seconds), n=10)[0]
        row = [key.removesuffix(" cold"), *(f"{1e6 * median:.2f} us" for median in medians)]
        row.append(f"{100 * (medians[1] / medians[0] - 1):+.2f} %")
        rows.append([*row, *(f"{sum(each > slow for each in own)} of {len(own)}" for own in seconds)])
    return table(["", *WAYS, "copies change it by", *(f"above, {way}" for way in WAYS)], rows)


def text(record: dict[str, Any], name: str) -> str:
    """A block of the page."""
    shown = {"ticks": ticks, "settled": settled}[name](record["cells"])
    return f"{record['gpu']}, driver {record['driver']}.\n\n{shown}"


BLOCKS = ("ticks", "settled")


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/ticks", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/ticks.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the tables from the record")
    options = parser.parse_args(arguments)
    if not options.table:
        write_record(options.out, work())
    record = json.loads(options.out.read_text(encoding="utf-8"))
    for name in BLOCKS:
        print(text(record, name))
        if options.out == RECORD:
            write_block(PAGE, name, text(record, name), "scripts/lab/ticks")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
