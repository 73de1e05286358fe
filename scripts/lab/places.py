#!/usr/bin/env python3
"""Shows that a kernel with long strides is faster at some places in memory, and how sets of buffers average over them.

The kernel is PyTorch's transposed copy of 2048 x 2048 floats, cold. Its sets of an input and an output lie in blocks of
memory, in each so many bytes apart. Each fresh process allocates several blocks and times each of them twice, the
second time in another order, and once more from half a set further on. The record goes to docs/places.json, and from
there to the table of docs/judge.md. It needs a GPU and PyTorch.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "places.json", ROOT / "docs" / "judge.md"
PROCESSES, BLOCKS, SETS, LAUNCHES = 3, 10, 30, 240
EDGE = 2048
ARRAY = 4 * EDGE * EDGE  # bytes
APART = (0, 2 << 20, 4 << 20, 6 << 20)  # bytes between two sets


def work() -> dict[str, Any]:
    """One process: bytes between two sets -> for each block the us of a launch: first, again, and from an array further
    on. Raises: what CuPy raises without a GPU; ImportError without PyTorch."""
    import cupy
    import torch

    from kernelwatch.api.capture import Captured, FunctionCalls
    from kernelwatch.api.gpu import Gpu

    gpu = Gpu()

    def turned(x: Any, out: Any) -> None:
        torch.mul(x.T, 1, out=out)  # one kernel, and no memory of its own

    with gpu.current():
        torch.empty(1, device="cuda")
        gpu._follow()  # PyTorch launches on the stream that is captured

        def us(block: Any, apart: int, begin: int) -> float:
            step = (2 * ARRAY + apart) // 4
            flat = torch.from_dlpack(block).view(torch.float32)[begin // 4 :]
            places = [[at * step + which * ARRAY // 4 for which in (0, 1)] for at in range(SETS)]
            sets = [tuple(flat[start : start + EDGE**2].view(EDGE, EDGE) for start in own) for own in places]
            graph = Captured(cupy, FunctionCalls(turned, sets, LAUNCHES), gpu.replayer.stream)
            return round(statistics.median(gpu.replayer.take(graph, 1, LAUNCHES, 5)["seconds"]) * 1e6, 3)

        found: dict[str, list[list[float]]] = {}
        for apart in APART:
            blocks = [gpu.allocate(SETS * (2 * ARRAY + apart) + ARRAY) for _ in range(BLOCKS)]
            for block in blocks:
                torch.from_dlpack(block).view(torch.float32).uniform_(-1, 1)
            first = [us(block, apart, 0) for block in blocks]
            again = [us(block, apart, 0) for block in reversed(blocks)][::-1]
            further = [us(block, apart, ARRAY) for block in blocks]
            found[str(apart)] = [list(each) for each in zip(first, again, further, strict=True)]
            blocks.clear()
    facts = {"gpu": gpu.name, "driver": gpu.replayer.nvml_facts.get("driver"), "torch": torch.__version__}
    return {**facts, "us": found}


def text(processes: list[dict[str, Any]]) -> str:
    """The table of a record."""
    rows = []
    for apart in APART:
        blocks = [own for process in processes for own in process["us"][str(apart)]]
        begins = [us for first, _, further in blocks for us in (first, further)]
        least, most = min(begins), max(begins)
        same = max(abs(again / first - 1) for first, again, _ in blocks)
        shifted = max(abs(further / first - 1) for first, _, further in blocks)
        alike = max(
            max(own) / min(own) - 1
            for own in zip(*([block[0] for block in process["us"][str(apart)]] for process in processes), strict=True)
        )
        rows.append(
            [
                f"{(2 * ARRAY + apart) >> 20} MiB",
                f"{least:.2f} to {most:.2f} us",
                *(f"{100 * each:.2f} %" for each in (most / least - 1, same, alike, shifted)),
            ]
        )
    header = ["sets are apart", f"{BLOCKS} blocks", "range", "again", "another process", "16 MiB further on"]
    one = processes[0]
    where = f"{one['gpu']}, driver {one['driver']}, PyTorch {one['torch']}"
    return f"{where}; {len(processes)} processes, {SETS} sets a block.\n\n{table(header, rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/places", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/places.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    parser.add_argument("--work", action="store_true", help="be one of the processes")
    options = parser.parse_args(arguments)
    if options.work:
        print(json.dumps(work()), flush=True)
        return 0
    if not options.table:
        processes = []
        for _ in range(PROCESSES):
            done = subprocess.run([sys.executable, __file__, "--work"], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"scripts/lab/places: {done.stderr.strip()[-500:]}", file=sys.stderr)
                return CANNOT
            processes.append(json.loads(done.stdout.splitlines()[-1]))
        write_whole(options.out, json.dumps(processes, indent=1) + "\n")
    processes = json.loads(options.out.read_text(encoding="utf-8"))
    print(text(processes))
    if options.out == RECORD:
        write_block(PAGE, "places", text(processes), "scripts/lab/places")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
