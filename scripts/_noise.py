"""A/A: the GPU suites of this checkout in several separate runs, and how far each cell's recorded seconds differ.

Nothing changes between the runs: what they show is the machine's noise, and with it the smallest change worth
believing. Recorded as results/<machine>/noise.jsonl, one line a cell: the seconds of each process of each run, the
medians of the runs and their coefficient of variation (standard deviation over mean).
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._files import write_whole
from benchmarks._group import measure
from benchmarks._ops import OPS
from scripts.asv_plugins.recording import identity

ROOT = Path(__file__).resolve().parent.parent

# Of an op whose suite is dear: the cells that are taken, unless $GPUKERNELS_CELLS says which.
SUBSETS = {
    "matmul": "/(thread_tile_2d|cublas) float32 1024x.* cold|/wmma float16->float32 1024x.* cold"
    "|/cublas float32 4096x4096x4096 cold"
}


def read(path: Path) -> dict[str, str]:
    """The lines of a record by cell: cells that are not measured again stay."""
    return {json.loads(line)["key"]: line for line in path.read_text(encoding="utf-8").splitlines()}


@contextmanager
def _cells_of(op: str) -> Iterator[None]:
    """Only the op's subset, where it has one and none is asked for."""
    if op not in SUBSETS or "GPUKERNELS_CELLS" in os.environ:
        yield
        return
    os.environ["GPUKERNELS_CELLS"] = SUBSETS[op]
    try:
        yield
    finally:
        del os.environ["GPUKERNELS_CELLS"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/noise", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("op", nargs="*", help=f"of {', '.join(OPS)} (default: all; of matmul a subset of the cells)")
    given = parser.parse_args(arguments)
    if unknown := [op for op in given.op if op not in OPS]:
        parser.error(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    if given.runs < 2:
        parser.error(f"--runs must be at least 2, to differ; got {given.runs}")
    machine = identity()["machine"]
    path = ROOT / "results" / machine / "noise.jsonl"
    processes: dict[str, list[list[float]]] = {}
    facts: dict[str, object] = {}
    for run in range(given.runs):
        began = time.monotonic()
        for op in given.op or OPS:
            with _cells_of(op):
                group = measure(op, "gpu")
            facts |= group.facts
            for key, outcome in group.outcomes.items():
                if outcome.state == "failed":
                    raise SystemExit(f"scripts/noise: {key} failed: {outcome.reason}")
                if outcome.visits:
                    processes.setdefault(key, []).append([*outcome.by_process("seconds").values()])
        if not processes:
            break
        print(f"run {run + 1} of {given.runs}: {time.monotonic() - began:.1f} s", flush=True)
    if not processes:
        print(f"scripts/noise: nothing to record: {next(iter(group.outcomes.values())).reason}", file=sys.stderr)
        return 1
    medians = {key: [statistics.median(run) for run in runs] for key, runs in processes.items()}
    variation = {key: statistics.stdev(values) / statistics.mean(values) for key, values in medians.items()}
    who = {name: facts.get(name) for name in ("gpu", "nvml_uuid_sha256", "nvml_driver", "harness")}
    fresh = {
        key: json.dumps({"key": key, "cv": variation[key], "medians_s": medians[key], "processes_s": runs, "who": who})
        for key, runs in processes.items()
    }
    kept = read(path) if path.exists() else {}
    write_whole(path, "".join(f"{line}\n" for line in (kept | fresh).values()))
    for key in sorted(variation, key=variation.__getitem__, reverse=True):
        print(f"{100 * variation[key]:7.3f} %  {statistics.median(medians[key]) * 1e6:12.3f} us  {key}")
    print(
        f"{len(variation)} cells: median {100 * statistics.median(variation.values()):.3f} %, "
        f"worst {100 * max(variation.values()):.3f} %; recorded in {path.relative_to(ROOT)}"
    )
    return 0
