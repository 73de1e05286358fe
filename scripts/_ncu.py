"""Ask Nsight Compute about a cell: the kernel on the stick's rotating buffers, under ncu, the clocks as they are."""

import csv
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._cells import Cell, plan
from benchmarks._group import BUDGETS
from benchmarks._ops import OPS
from scripts import _environment

ROOT = Path(__file__).resolve().parent.parent
MISSING = "Nsight Compute's ncu is not on the PATH; it comes with the CUDA toolkit"


def find(key: str) -> Cell:
    """A cell by its key. Raises: SystemExit."""
    for op in OPS:
        for cell in plan(op, "gpu"):
            if cell.key == key:
                return cell
    raise SystemExit(
        f"no cell {key!r}; a cell is op/rung type shape cache, such as {plan('transpose', 'gpu')[0].key!r}"
    )


def launch_all(cell: Cell, count: int) -> None:
    """In ncu's child: launch a cell over its rotating buffers."""
    import cupy

    import gpukernels
    from benchmarks._gpu import Gpu

    gpu = Gpu([cell], BUDGETS["gpu"], seed=0)
    kernel = gpukernels.load(cell.op, cell.rung, cell.type)
    with gpu.stream:
        gpu._fill(cell)
        launches = [gpu._bind(cell, kernel, slot)[0] for slot in range(gpu._slots(cell))]
        for turn in range(count):
            launches[turn % len(launches)]()
    cupy.cuda.runtime.deviceSynchronize()


def ask(cell: Cell, metrics: Sequence[str], *, flush: str, skip: int, count: int) -> dict[str, float]:
    """The median of each of ncu's metrics over `count` launches, in base units (ns, bytes).

    `flush`: ncu's cache control, "all" or "none". Raises: SystemExit with ncu's words.
    """
    import gpukernels

    ncu = shutil.which("ncu")
    assert ncu, MISSING
    command = [
        ncu,
        *("--clock-control", "none"),
        *("--cache-control", flush),
        *("--metrics", ",".join(metrics)),
        *("--kernel-name", f"regex:{gpukernels.rung(cell.op, cell.rung).symbol}"),
        *("--launch-skip", str(skip)),
        *("--launch-count", str(count)),
        *("--csv", "--print-units", "base"),
        *(sys.executable, __file__, "--child", json.dumps(cell.as_json()), str(skip + count)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=_environment.with_root())
    found: dict[str, list[float]] = {name: [] for name in metrics}
    for row in csv.DictReader(done.stdout[done.stdout.find('"ID"') :].splitlines()):
        if row.get("Metric Name") in found:
            found[row["Metric Name"]].append(float(row["Metric Value"].replace(",", "")))
    if done.returncode or not all(found.values()):
        lacking = ", ".join(name for name, values in found.items() if not values)
        words = (done.stdout + done.stderr).strip()[-800:]
        raise SystemExit(f"ncu did not measure {cell.key} ({lacking}): {words}")
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    launch_all(Cell.from_json(json.loads(sys.argv[2])), int(sys.argv[3]))
