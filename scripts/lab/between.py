#!/usr/bin/env python3
"""Compares matmul/between_grids, limited to a third of the matrices' bytes, with the same rung in the GPU's memory.

The matrices hold small integers, so that both results are exact and must be equal. The record is
results/<machine>/between_grids.jsonl, from which scripts/lab/figures writes a table in docs/.
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
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpukernels
from benchmarks.project import PROJECT
from kernelwatch.asv.machine_names import machine_name, who
from kernelwatch.report.arguments import Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole

RUNS = 3


Matrix = NDArray[np.float32]


def numbers(rng: np.random.Generator, n: int) -> Matrix:
    """An n x n matrix of integers from -3 to 3 as float32, so that sums of their products are exact. Its rows are
    pieces of one random row, since drawing every element would take longer than the matrix product."""
    row = rng.integers(-3, 4, 2 * n).astype(np.float32)
    matrix = np.empty((n, n), np.float32)
    for at, start in enumerate(rng.integers(0, n, n)):
        matrix[at] = row[start : start + n]
    return matrix


def in_core(inner: str, a: Matrix, b: Matrix) -> tuple[list[float], Matrix]:
    """The seconds of RUNS runs of the inner rung on n x n matrices in the GPU's memory, and its result."""
    import cupy

    kernel = gpukernels.load("matmul", inner)
    on_gpu = [cupy.asarray(operand) for operand in (a, b)]
    out = kernel(*on_gpu)
    launch, seconds = kernel.bind(*on_gpu, out=out), []
    for _ in range(RUNS):
        began, ended = cupy.cuda.Event(), cupy.cuda.Event()
        began.record()
        launch()
        ended.record()
        ended.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(began, ended) / 1e3)
    result: Matrix = cupy.asnumpy(out)
    del on_gpu, out, launch
    cupy.get_default_memory_pool().free_all_blocks()
    return seconds, result


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison, record it and print it; the exit code."""
    parser = Parser("scripts/lab/between", __doc__)
    parser.add_argument("--edge", type=int, default=49152, help="rows and columns of the matrices (default: 49152)")
    parser.add_argument("--inner", default="cublas", help="the rung that multiplies the tiles (default: cublas)")
    options = parser.parse_args(arguments)
    if options.edge < 1:
        parser.error(f"--edge must be at least 1, got {options.edge}")
    n, rng = options.edge, np.random.default_rng()
    limit_bytes = 4 * n * n  # a third of the three matrices
    try:
        reports: list[Any] = []
        streamed = gpukernels.load(
            "matmul", "between_grids", limit_bytes=limit_bytes, inner=options.inner, report=reports.append
        )
        gpukernels.load("matmul", options.inner)
        a, b = numbers(rng, n), numbers(rng, n)
        resident_s, expected = in_core(options.inner, a, b)
    except (gpukernels.ToolMissing, gpukernels.LadderError) as error:
        raise UserError(str(error)) from None
    out = np.zeros_like(expected)
    for run in range(RUNS + 1):  # the first run loads and allocates everything
        began = time.perf_counter()
        streamed(a, b, out=out)
        print(f"run {run} of {RUNS}: {time.perf_counter() - began:.3f} s", flush=True)
        if not np.array_equal(out, expected):
            raise UserError(f"matmul/between_grids is wrong at {n}: it differs from the result in memory")
        out.fill(0)
    middle = sorted(reports[1:], key=lambda figures: figures.seconds)[RUNS // 2]
    resident = statistics.median(resident_s)
    record: dict[str, Any] = {
        "who": who(),
        "edge": n,
        "inner": options.inner,
        "type": "float32",
        "limit_bytes": limit_bytes,
        "matrices_bytes": 3 * a.nbytes,
        "in_core_s": resident,
        "in_core_runs_s": resident_s,
        "runs_s": [figures.seconds for figures in reports[1:]],
        "share_of_in_core": resident / middle.seconds,
        "hidden_share": middle.hidden_share,
        "median_run": asdict(middle),
    }
    path = PROJECT.results / machine_name() / "between_grids.jsonl"
    write_whole(path, json.dumps(record) + "\n")
    print(
        f"{n}^3 float32 by {options.inner}, {record['matrices_bytes'] / 2**30:.1f} GiB of matrices through "
        f"{limit_bytes / 2**30:.1f} GiB: {middle.seconds:.3f} s, {2 * n**3 / middle.seconds / 1e12:.2f} TFLOP/s, "
        f"{100 * record['share_of_in_core']:.1f} % of the in-core rate; "
        f"{100 * middle.hidden_share:.1f} % of {middle.upload_seconds + middle.download_seconds:.3f} s of copies hidden"
    )
    return 0
