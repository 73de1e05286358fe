#!/usr/bin/env python3
"""Compares ways of resting before the samples of matrix products that meet the GPU's power limit.

Each of several fresh processes takes every product in every way, in an order of its own, right after what came before.
The record goes to docs/rests.jsonl, a line for each process, and from there to the table of docs/research/measuring.md.
It needs a GPU.
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
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, key, plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.launch import current
from kernelwatch.timing.replay import Take
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "scripts" / "lab" / "rests"
RECORD, PAGE = ROOT / "docs" / "rests.jsonl", ROOT / "docs" / "research" / "measuring.md"
SECONDS = 120.0
START_S = 60.0  # for a process beyond its share: it imports PyTorch, and may compile
FP8, FP16 = "float8_e4m3fn->bfloat16", "float16->float32"
PRODUCTS = (  # rung, type, edge
    ("wgmma", FP16, 4096),
    ("wgmma", FP16, 8192),
    ("wgmma_fp8", FP8, 4096),
    ("fp16x3", "float32", 4096),
    ("bf16x6", "float32", 8192),
    ("tf32", "float32", 4096),
    ("cublas", FP16, 4096),
    ("cublas", "float32", 8192),
    ("torch_fp8", FP8, 8192),
)


@dataclass(frozen=True)
class Way:
    """A way of taking samples. `rest_s`: before them, or before each of them if they are `sliced`; `own_s`: seconds of
    the kernel itself after the rest; `title`: in the table; `first`: a row for each of these numbers of first samples,
    instead of one for all."""

    title: str
    rest_s: float = 0.0
    own_s: float = 0.0
    samples: int = 5
    sample_s: float = 0.002
    sliced: bool = False
    first: tuple[int, ...] = (0,)


WAYS = {
    "none": Way("no rest"),
    "own20": Way("the kernel itself for 20 ms", own_s=0.02),
    "own60": Way("the kernel itself for 60 ms", own_s=0.06),
    "own150": Way("the kernel itself for 150 ms", own_s=0.15),
    "rest30": Way("rest of 30 ms", 0.03),
    "rest30short": Way("rest of 30 ms, samples of 0.5 ms", 0.03, sample_s=0.0005),
    "rest100": Way("rest of 100 ms", 0.1),
    "rest100own5": Way("rest of 100 ms, then the kernel itself for 5 ms", 0.1, own_s=0.005),
    "rest100short": Way("rest of 100 ms, samples of 0.5 ms", 0.1, sample_s=0.0005),
    "rest300": Way("rest of 300 ms", 0.3),
    "slices": Way("rest of 20 ms before each sample", 0.02, samples=8, sliced=True, first=(3, 5, 8)),
    "slices10": Way("rest of 10 ms before each sample", 0.01, samples=8, sliced=True, first=(5, 8)),
    "slices10short": Way(
        "rest of 10 ms before each sample of 0.5 ms", 0.01, samples=8, sample_s=0.0005, sliced=True, first=(5, 8)
    ),
    "slices5short": Way(
        "rest of 5 ms before each sample of 0.5 ms", 0.005, samples=10, sample_s=0.0005, sliced=True, first=(5, 10)
    ),
}
LEVEL = "rest100"  # the way whose level the others are held against


# --- one process ---------------------------------------------------------------------------------------------------


class Resting(Gpu):
    """A device that takes a cell in several ways."""

    def take_in(self, ways: dict[str, Way], cell: Cell) -> dict[str, dict[str, Any]]:
        """The samples of a cell in each way, in the order of `ways`."""
        kernel = self._loaded(cell)
        with current(self.stream):
            self._fill(cell)
            launches = [self._bind(cell, kernel, slot)[0] for slot in range(self._slots(cell))]
            launches[0]()
            self.stream.synchronize()
            once_s = min(self.replay(self.graph(launches[:1], 1), 1, 2)[0])
            return {name: self._take_in(way, launches, once_s) for name, way in ways.items()}

    def _take_in(self, way: Way, launches: list[Callable[[], object]], once_s: float) -> dict[str, Any]:
        count = max(1, round(way.sample_s / once_s))
        if count >= len(launches):  # whole turns over the buffers
            count = round(count / len(launches)) * len(launches)
        graph = self.graph(launches, count)
        takes: list[Take] = []
        for _ in range(way.samples if way.sliced else 1):
            if way.rest_s:
                time.sleep(way.rest_s)
            for _ in range(max(1, round(way.own_s / (once_s * count))) if way.own_s else 0):
                graph.launch(self.stream)
            takes.append(self.take(graph, 1, count, 1 if way.sliced else way.samples))
        return {
            "seconds": [value for take in takes for value in take["seconds"]],
            "mhz": [take["clock64_mhz"] for take in takes],
            "power_w": takes[-1]["state"]["power_w"],
            "temperature_c": takes[-1]["state"]["temperature_c"],
        }


def cells() -> list[Cell]:
    """The products that are taken."""
    wanted = {key("matmul", rung, type, (edge,) * 3, "cold") for rung, type, edge in PRODUCTS}
    return [cell for cell in plan(PROJECT.op("matmul"), "gpu") if cell.key in wanted]


def work(seed: int, seconds: float) -> dict[str, Any]:
    """One line of the record. No product is begun after `seconds`. Raises: what CuPy raises without a GPU."""
    began, found = time.monotonic(), {}
    chosen = random.Random(seed).sample(cells(), len(cells()))
    device = Resting(PROJECT, import_package(PROJECT, str(ROOT)), chosen, Budget(0, 0.0), seed)
    for cell in chosen:
        if time.monotonic() - began > seconds:
            print(f"process {seed}: {seconds:.0f} s are over", file=sys.stderr, flush=True)
            break
        order = random.Random(f"{seed} {cell.key}").sample(sorted(WAYS), len(WAYS))
        found[cell.key] = device.take_in({name: WAYS[name] for name in order}, cell)
        print(f"process {seed}: {time.monotonic() - began:5.1f} s  {cell.key}", file=sys.stderr, flush=True)
    return {
        "gpu": device.gpu,
        "driver": device.nvml_facts.get("driver"),
        "cupy": device.cupy.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "seed": seed,
        "cells": found,
    }


def run(processes: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The lines of several processes, one after the other; one that fails is told on stderr, and left out."""
    until = time.monotonic() + seconds
    for seed in range(1, processes + 1):
        share = (until - time.monotonic()) / (processes + 1 - seed)
        if share <= 0:
            print(f"process {seed} is not begun: {seconds:.0f} s are over", file=sys.stderr, flush=True)
            return
        command = [sys.executable, str(PROGRAM), "--seconds", str(share), "--work", str(seed)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=share + START_S)
            line = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.SubprocessError, IndexError, ValueError) as error:
            print(f"process {seed}: {error}", file=sys.stderr, flush=True)
            continue
        yield line


# --- the table -----------------------------------------------------------------------------------------------------


def medians(lines: list[dict[str, Any]], cell: str, way: str, first: int = 0) -> list[float]:
    """The median of a cell's samples in each process. `first`: of this number of first samples, of all if 0."""
    return [statistics.median(line["cells"][cell][way]["seconds"][: first or None]) for line in lines]


def spread(values: list[float]) -> float:
    """The standard deviation over the mean."""
    return statistics.stdev(values) / statistics.mean(values)


def text(lines: list[dict[str, Any]]) -> str:
    """The table of a record, of the cells that all of its processes took."""
    common = [cell for cell in lines[0]["cells"] if all(cell in line["cells"] for line in lines)]
    level = {cell: statistics.mean(medians(lines, cell, LEVEL)) for cell in common}
    rows = []
    known = [name for name in WAYS if all(name in line["cells"][cell] for line in lines for cell in common)]
    for way, first in ((name, count) for name in known for count in WAYS[name].first):
        figures = {cell: medians(lines, cell, way, first) for cell in common}
        spreads = [spread(values) for values in figures.values()]
        ratios = [statistics.mean(values) / level[cell] for cell, values in figures.items()]
        title = f"{WAYS[way].title}, the first {first}" if first else WAYS[way].title
        levels = [f"{value:.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios))]
        rows.append([title, percent(statistics.median(spreads), 2), percent(max(spreads), 2), *levels])
    one = lines[0]
    told = (
        f"{one['gpu']}, driver {one['driver']}, CuPy {one['cupy']}, {one['date']}; {len(lines)} processes, "
        f"{len(common)} products."
    )
    header = ["before the samples", "spread", "worst", "level", "lowest", "highest"]
    return f"{told}\n\n{table(header, rows)}"


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a record."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/rests", __doc__)
    parser.add_argument("--processes", type=int, default=4, help="fresh processes (default: 4; a spread needs two)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of it all (default: {SECONDS:.0f})")
    parser.add_argument("--out", default=str(RECORD), help="the record to write (default: docs/rests.jsonl)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    parser.add_argument("--work", type=int, metavar="SEED", help="be one of the processes")
    options = parser.parse_args(arguments)
    if options.work is not None:
        print(json.dumps(work(options.work, options.seconds)), flush=True)
        return 0
    if options.table:
        write_block(PAGE, "rests", text(read(Path(options.out))), "scripts/lab/rests")
        return 0
    lines: list[dict[str, Any]] = []
    for line in run(options.processes, options.seconds):
        lines.append(line)
        write_whole(Path(options.out), "".join(f"{json.dumps(one)}\n" for one in lines))
    if not lines:
        print("nothing could be measured", file=sys.stderr)
        return CANNOT
    with suppress(statistics.StatisticsError):  # of one process there is no spread
        print(text(lines))
    return 0
