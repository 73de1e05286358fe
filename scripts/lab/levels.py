#!/usr/bin/env python3
"""What begins and ends the state of a process in which each launch takes some tenths of a microsecond longer.

Each of several fresh processes does one thing after the other, such as loading a module, in an order of its own. After
each it times launches of a kernel that does nothing, in a fresh CUDA graph. The record goes to docs/levels.jsonl, a
line for each process, and from there to the table of docs/research/measuring.md. It needs a GPU.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "levels.jsonl", ROOT / "docs" / "research" / "measuring.md"
LAUNCHES, GRID, BLOCK = 256, (132,), (32,)
NOTHING = 'extern "C" __global__ void nothing(const float *x, float *y) {}'
SPIN = 'extern "C" __global__ void spin(long long n) { for (long long t = clock64(); clock64() - t < n;); }'
MANY = 300  # kernels of a module of many
SPUN = 400_000  # cycles, while the host queues what is timed
APART_US = 0.08  # between the two levels
STEPS = {  # what is done, by the name in the record
    "module": "another module is loaded, and its kernel launched",
    "graph": "another graph is kept, after it ran",
    "upload": "another graph is uploaded, and never launched",
    "malloc": "memory is allocated, 64 KiB to 1 GiB",
    "stream": "another stream is made, and launched on",
    "limit": "a limit of the device is set (stack, print buffer, heap)",
    "rand": "CuPy's random numbers",
    "astype": "CuPy's conversion to float16",
    "sort": "CuPy's sort, which brings a module of many kernels",
    "again": "the sort again, which brings nothing",
    "many": "a module of many small kernels is loaded, and one launched",
    "dot": "a product by cuBLAS",
    "release": "a third of what was kept is freed",
}
Look = tuple[str, float]  # the name of a step, or "start", "same" (the first graph again) or "end", and us a launch


@dataclass
class Process:
    """One process on a GPU. `looks`: what it has seen; `kept`: modules, graphs, memory and streams."""

    dice: random.Random

    def __post_init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.looks: list[Look] = []
        self.kept: list[Any] = []
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.x, self.y = cupy.zeros(1024, "f4"), cupy.zeros(1024, "f4")
        self.nothing, self.spin = cupy.RawKernel(NOTHING, "nothing"), cupy.RawKernel(SPIN, "spin")
        self._launch()
        self.spin((1,), (1,), (SPUN,))
        self._wait()
        self.first = self._graph()

    def _launch(self) -> None:
        self.nothing(GRID, BLOCK, (self.x, self.y))

    def _wait(self) -> None:
        self.cupy.cuda.runtime.deviceSynchronize()

    def _graph(self, launches: int = LAUNCHES) -> Any:
        with self.stream:
            self.stream.begin_capture()
            for _ in range(launches):
                self._launch()
            return self.stream.end_capture()

    def _some_graph(self) -> Any:
        return self._graph(64 * self.dice.randrange(1, 17))

    def look(self, what: str, graph: Any = None) -> None:
        """Time launches of a graph, by default a fresh one."""
        graph = graph or self._graph()
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        taken = []
        with self.stream:
            graph.launch(self.stream)
            for _ in range(3):
                self.spin((1,), (1,), (SPUN,))
                begin.record(self.stream)
                graph.launch(self.stream)
                graph.launch(self.stream)
                end.record(self.stream)
                end.synchronize()
                taken.append(self.cupy.cuda.get_elapsed_time(begin, end) * 1e3 / (2 * LAUNCHES))
        self.looks.append((what, round(statistics.median(taken), 3)))

    def module(self, at: int) -> None:
        code = f'extern "C" __global__ void own_{at}(float *y) {{ y[threadIdx.x] = {at}; }}'
        module = self.cupy.RawModule(code=code)
        self.kept.append(module)
        module.get_function(f"own_{at}")((1,), BLOCK, (self.y,))

    def many(self, at: int) -> None:
        code = "".join(f'extern "C" __global__ void many_{at}_{i}(float *y) {{ y[i] = {i}; }}\n' for i in range(MANY))
        module = self.cupy.RawModule(code=code.replace("y[i]", "y[threadIdx.x]"))
        self.kept.append(module)
        module.get_function(f"many_{at}_0")((1,), BLOCK, (self.y,))

    def graph(self, _at: int) -> None:
        self.kept.append(self._some_graph())
        self.kept[-1].launch(self.stream)

    def upload(self, _at: int) -> None:
        self.kept.append(self._some_graph())
        self.kept[-1].upload(self.stream)

    def malloc(self, _at: int) -> None:
        with self.cupy.cuda.using_allocator(None):
            self.kept.append(self.cupy.empty(1 << self.dice.randrange(16, 31), "u1"))

    def new_stream(self, _at: int) -> None:
        self.kept.append(self.cupy.cuda.Stream(non_blocking=True))
        with self.kept[-1]:
            self._launch()

    def limit(self, at: int) -> None:
        self.cupy.cuda.runtime.deviceSetLimit(*((0, 2048), (0, 8192), (1, 1 << 22), (2, 1 << 25), (0, 1024))[at])

    def release(self, _at: int) -> None:
        del self.kept[: max(1, len(self.kept) // 3)]

    def several(self, what: str, step: Callable[[int], None], times: int) -> None:
        for at in range(times):
            step(at)
            self._wait()
            self.look(what)

    def loose(self) -> None:
        """Calls of CuPy, each of which loads what it needs."""
        numbers = self.cupy.random.rand(256, 256)
        calls = {
            "rand": lambda: numbers,
            "astype": lambda: numbers.astype("f2"),
            "sort": lambda: self.cupy.sort(numbers),
            "again": lambda: self.cupy.sort(numbers),
            "dot": lambda: numbers @ numbers,
        }
        for name, call in calls.items():
            call()  # type: ignore[no-untyped-call]
            self._wait()
            self.look(name)

    def live(self, index: int) -> list[Look]:
        """Everything, in the order of STEPS in process 0; some processes begin with CuPy's calls."""
        self.several("start", lambda _at: None, 3)
        self.look("same", self.first)
        parts: list[Callable[[], None]] = [
            lambda: self.several("module", self.module, 40),
            lambda: self.several("many", self.many, 3),
            lambda: self.several("graph", self.graph, 20),
            lambda: self.several("upload", self.upload, 12),
            lambda: self.several("malloc", self.malloc, 12),
            lambda: self.several("stream", self.new_stream, 10),
            lambda: self.several("limit", self.limit, 5),
            self.loose,
            lambda: self.several("release", self.release, 6),
        ]
        if index % 4:
            self.dice.shuffle(parts)
        if index % 2:
            self.loose()
        for part in parts:
            part()
            self.look("same", self.first)
        return self.looks


def run(seconds: float) -> Iterator[dict[str, Any]]:
    """The lines of fresh processes until the time is over; one that fails is told on stderr, and left out."""
    until, index = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        command = [sys.executable, __file__, "--work", str(index)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            yield json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            print(f"process {index}: {done.stderr.strip()[-500:]}", file=sys.stderr, flush=True)
        index += 1


def text(lines: list[dict[str, Any]]) -> str:
    """The table of a record: how often each step began the state, and ended it."""
    counts = {name: [0, 0, 0, 0] for name in STEPS}  # looks from the lower level, begun; from the upper level, ended
    low = statistics.median(line["looks"][0][1] for line in lines)
    upper: list[float] = []
    for line in lines:
        before = False
        for name, us in line["looks"]:
            after = us > low + APART_US
            upper += [us] * after
            if name in counts:
                counts[name][2 * before] += 1
                counts[name][2 * before + 1] += after != before
            before = after
    rows = [
        [STEPS[name], *(f"{changed} of {times}" if times else "" for times, changed in (own[:2], own[2:]))]
        for name, own in counts.items()
        if any(own)
    ]
    one = lines[0]
    told = (
        f"{one['gpu']}, driver {one['driver']}, CuPy {one['cupy']}; {len(lines)} processes. A launch takes "
        f"{low:.3f} us, and {statistics.median(upper):.3f} us in the state."
    )
    return f"{told}\n\n{table(['what was done', 'began the state', 'ended it'], rows)}"


def work(index: int) -> dict[str, Any]:
    """One line of the record. Raises: what CuPy raises without a GPU."""
    process = Process(random.Random(index))
    looks = process.live(index)
    properties = process.cupy.cuda.runtime.getDeviceProperties(0)
    driver = Path("/proc/driver/nvidia/version")
    version = re.search(r"\d+\.[\d.]+", driver.read_text()) if driver.is_file() else None
    return {
        "gpu": properties["name"].decode(),
        "driver": version[0] if version else "unknown",
        "cupy": process.cupy.__version__,
        "looks": looks,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/levels", __doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="of all processes (default: 45)")
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to write (default: docs/levels.jsonl)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    parser.add_argument("--work", type=int, metavar="INDEX", help="be one of the processes")
    options = parser.parse_args(arguments)
    if options.work is not None:
        print(json.dumps(work(options.work)), flush=True)
        return 0
    if not options.table:
        lines = list(run(options.seconds))
        if not lines:
            print("nothing could be measured", file=sys.stderr)
            return CANNOT
        write_whole(options.out, "".join(f"{json.dumps(line)}\n" for line in lines))
    lines = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    print(text(lines))
    if options.out == RECORD:
        write_block(PAGE, "levels", text(lines), "scripts/lab/levels")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
