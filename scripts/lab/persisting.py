#!/usr/bin/env python3
"""Shows what lines that persist in the L2 cache do to the next cell, and what the harness does about it.

One process measures some cells, each right after a product that lets the cache keep what it reads, and right after one
that does not; once without the reset of such lines that comes before each timing, and once with it. It knows the times
and clocks of the cells, as all but the first process of a run do. The record goes to docs/persisting.json, and from
there to the table of docs/research/measuring.md. It needs a GPU.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import DEVICES
from kernelwatch.plan.project import import_package
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.system.files import write_whole
from kernelwatch.timing import l2
from kernelwatch.timing.gpu import Gpu
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "persisting.json", ROOT / "docs" / "research" / "measuring.md"
PRODUCT = "float16->float32 1024x1024x1024 cold"
KEEPS, PLAIN = f"matmul/wgmma_128x128 {PRODUCT}", f"matmul/wgmma_persistent {PRODUCT}"
TIMED = (
    "vector_add/vector_copy float32 16777216 cold",
    "vector_add/vectorized float32 1048576 cold",
    "transpose/padded float32 1024x1024 cold",
    "transpose/vector_copy uint8 4096x4096 cold",
    "transpose/vectorized float32 4096x4096 cold",
    "matmul/initial float32 64x65536x256 cold",
    "matmul/initial float16->float32 4096x4096x4096 cold",
    "matmul/coalesced float32 1024x1024x1024 cold",
    "matmul/pipelined float32 1024x1024x1024 cold",
    "matmul/cublas float16->float32 4096x4096x64 cold",
    "matmul/wgmma_persistent float16->float32 4096x4096x64 cold",
    "matmul/torch_fp8 float8_e4m3fn->bfloat16 4096x4096x64 cold",
)
ROUNDS = 3
RESETS = 50  # that are timed by themselves


def work() -> dict[str, Any]:
    """The record. Raises: what CuPy raises without a GPU."""
    cells = {cell.key: cell for problem in PROJECT.problems for cell in plan(problem, "gpu")}
    timed = [cells[key] for key in TIMED]
    package, budget = import_package(PROJECT, str(ROOT)), replace(DEVICES["gpu"].budget, takes=1)
    gpu = Gpu(PROJECT, package, [*timed, cells[KEEPS], cells[PLAIN]], budget, 1)
    reset, waits = l2.reset_persisting, []
    for _ in range(RESETS):
        start = time.perf_counter()
        why = reset()
        waits.append(time.perf_counter() - start)
    known = {cell.key: gpu.measure(cell) for cell in (*timed, cells[KEEPS], cells[PLAIN])}
    gpu.budget = replace(
        budget,
        clocks_mhz={key: mhz for key, one in known.items() if (mhz := one["clock64_mhz"])},
        seconds={key: one["seconds"] for key, one in known.items()},
    )
    found = {}
    try:
        for way, done in (("kept", lambda: ""), ("reset", reset)):
            l2.reset_persisting = done
            found[way] = _measured(gpu, timed, cells)
    finally:
        l2.reset_persisting = reset
    facts = {"gpu": gpu.gpu, "driver": gpu.nvml_facts.get("driver"), "why_not": why}
    return {**facts, "reset_us": round(1e6 * statistics.median(waits), 2), "us": found}


def _measured(gpu: Gpu, timed: list[Cell], cells: dict[str, Cell]) -> dict[str, dict[str, float]]:
    """Key -> us by what was measured before it."""
    found: dict[str, dict[str, float]] = {}
    for cell in timed:
        taken: dict[str, list[float]] = {PLAIN: [], KEEPS: []}
        for before in [PLAIN, KEEPS] * ROUNDS:
            gpu.measure(cells[before])
            taken[before].append(gpu.measure(cell)["seconds"])
        found[cell.key] = {before: round(1e6 * statistics.median(own), 4) for before, own in taken.items()}
    return found


def change(us: dict[str, float]) -> float:
    """What a product before it that lets the cache keep lines changes."""
    return us[KEEPS] / us[PLAIN] - 1


def text(record: dict[str, Any]) -> str:
    """The table of a record."""
    header = ["", "after a plain product", "after one that keeps lines", "changes it by", "with a reset by"]
    rows = [
        [
            key.removesuffix(" cold"),
            *(f"{us[before]:.2f} us" for before in (PLAIN, KEEPS)),
            f"{100 * change(us):+.2f} %",
            f"{100 * change(record['us']['reset'][key]):+.2f} %",
        ]
        for key, us in record["us"]["kept"].items()
    ]
    told = f"{record['gpu']}, driver {record['driver']}. A reset takes the host {record['reset_us']:.0f} us."
    return f"{told}\n\n{table(header, rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/persisting", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/persisting.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    options = parser.parse_args(arguments)
    if not options.table:
        write_whole(options.out, json.dumps(work(), indent=1) + "\n")
    record = json.loads(options.out.read_text(encoding="utf-8"))
    print(text(record))
    if options.out == RECORD:
        write_block(PAGE, "persisting", text(record), "scripts/lab/persisting")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
