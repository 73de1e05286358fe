#!/usr/bin/env python3
"""Shows that only the first CUDA graphs of a process are fast, and what the harness does about it.

Two fresh processes, one of which has loaded a dozen modules before, keep fourteen graphs of the same launches: a cold
transpose of 512 x 512 floats. They time them one after the other, again, after one `Replayer.refresh`, and with a
refresh before each. The record goes to docs/graphs.json, and from there to the table of docs/research/measuring.md. It
needs a GPU.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "graphs.json", ROOT / "docs" / "research" / "measuring.md"
MODULES = (0, 12)  # that a process loads before
GRAPHS, LAUNCHES, SETS, EDGE = 14, 512, 128, 512
ALIKE = 0.05  # of the fastest graph: how much slower one of the same level may be
WAYS = {
    "first": "one after the other",
    "again": "again",
    "after": "after one refresh",
    "each": "with a refresh before each",
}


def work(modules: int) -> dict[str, Any]:
    """One process: way -> us a launch of each graph. Raises: what CuPy raises without a GPU."""
    import cupy

    import gpukernels
    from kernelwatch.timing.nvml import Nvml
    from kernelwatch.timing.replay import Replayer

    replayer = Replayer(Nvml(cupy.cuda.Device().pci_bus_id))
    replayer.warm_up()
    kept = [_loaded(cupy, at) for at in range(modules)]
    kernel = gpukernels.load("transpose", "padded")
    arrays = [cupy.random.rand(2, EDGE, EDGE).astype("f4") for _ in range(SETS)]
    launches: list[Callable[[], object]] = [kernel.bind(x, out=out) for x, out in arrays]

    def us(graph: Any) -> float:
        seconds, _, _ = replayer.replay(graph, 2, 3)
        return round(min(seconds) * 1e6 / (2 * LAUNCHES), 3)

    with replayer.stream:
        launches[0]()
        graphs = [replayer.graph(launches, LAUNCHES) for _ in range(GRAPHS)]
        refresh, replayer.refresh = replayer.refresh, lambda: None  # type: ignore[method-assign]
        times = {way: [us(graph) for graph in graphs] for way in ("first", "again")}
        refresh()
        times["after"] = [us(graph) for graph in graphs]
        replayer.refresh = refresh  # type: ignore[method-assign]
        times["each"] = [us(graph) for graph in graphs]
    facts = {"gpu": replayer.gpu, "driver": replayer.nvml_facts.get("driver"), "cupy": cupy.__version__}
    return {**facts, "modules": len(kept), "us": times}


def _loaded(cupy: Any, at: int) -> list[Any]:
    """A module whose kernel was launched, and the stream: every fourth has one of its own."""
    module = cupy.RawModule(code=f'extern "C" __global__ void own_{at}(float *y) {{ y[threadIdx.x] = {at}; }}')
    stream = cupy.cuda.Stream(non_blocking=True) if at % 4 == 0 else cupy.cuda.Stream.null
    with stream:
        module.get_function(f"own_{at}")((1,), (32,), (cupy.zeros(32, "f4"),))
    return [module, stream]


def told(us: Sequence[float], fastest: float) -> str:
    """The times of graphs in their order, those of a level together."""
    levels = itertools.groupby(us, lambda each: each <= fastest * (1 + ALIKE))
    parts = []
    for _, group in levels:
        own = list(group)
        least, most = f"{min(own):.2f}", f"{max(own):.2f}"
        parts.append(f"{len(own)} of {least if least == most else f'{least} to {most}'} us")
    return ", then ".join(parts)


def text(processes: list[dict[str, Any]]) -> str:
    """The table of a record."""
    one, header = processes[0], ["the graphs are timed", *(f"{each['modules']} modules before" for each in processes)]
    fastest = min(us for each in processes for own in each["us"].values() for us in own)
    rows = [
        [title, *(told(each["us"][way], fastest) if way in each["us"] else "" for each in processes)]
        for way, title in WAYS.items()
    ]
    return f"{one['gpu']}, driver {one['driver']}, CuPy {one['cupy']}.\n\n{table(header, rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/graphs", __doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/graphs.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    parser.add_argument("--work", type=int, metavar="MODULES", help="be one of the processes")
    options = parser.parse_args(arguments)
    if options.work is not None:
        print(json.dumps(work(options.work)), flush=True)
        return 0
    if not options.table:
        processes = []
        for modules in MODULES:
            command = [sys.executable, __file__, "--work", str(modules)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{modules} modules: {done.stderr.strip()[-500:]}", file=sys.stderr)
                return CANNOT
            processes.append(json.loads(done.stdout.splitlines()[-1]))
        write_whole(options.out, json.dumps(processes, indent=1) + "\n")
    processes = json.loads(options.out.read_text(encoding="utf-8"))
    print(text(processes))
    if options.out == RECORD:
        write_block(PAGE, "graphs", text(processes), "scripts/lab/graphs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
