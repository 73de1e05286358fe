#!/usr/bin/env python3
"""Measures the same kernels with kernelwatch.measure and with the harnesses that people use, each in fresh processes.

The kernels are PyTorch's. Each process measures every kernel once with one harness, in turn with the other harnesses,
and has imported everything before the first of them begins. The figures go to docs/harnesses.json, and from there to
the tables of docs/research/harnesses.md and the example of docs/api.md. It needs a GPU, PyTorch, Triton and, for
nvbench, the package cuda-bench; what is not installed is left out.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent, time_text
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
JSON = ROOT / "docs" / "harnesses.json"
EXAMPLE, TABLES = ROOT / "docs" / "api.md", ROOT / "docs" / "research" / "harnesses.md"
MIB = 1 << 20

Case = tuple[Callable[..., object], tuple[Any, ...]]
Harness = Callable[[Callable[..., object], tuple[Any, ...], float], float]
Figures = dict[str, dict[str, float]]  # by kernel: the seconds of a call, and those that the measurement took


# --- the kernels ---------------------------------------------------------------------------------------------------


def cases() -> dict[str, Case]:
    """The kernels by name, each with its arguments."""
    import torch

    def random(*shape: int, dtype: Any = torch.float32) -> Any:
        return (2 * torch.rand(shape, device="cuda") - 1).to(dtype)

    def matmul(a: Any, b: Any, out: Any) -> None:
        torch.mm(a, b, out=out)

    def copy(x: Any, out: Any) -> None:
        out.copy_(x)

    def scale(x: Any, out: Any) -> None:
        torch.mul(x, 2.0, out=out)

    def operands(*shape: int, inputs: int, dtype: Any = torch.float32) -> tuple[Any, ...]:
        return (*(random(*shape, dtype=dtype) for _ in range(inputs)), torch.empty(shape, dtype=dtype, device="cuda"))

    return {
        "copy 64 MiB": (copy, operands(16 * MIB, inputs=1)),
        "matmul 2048 float32": (matmul, operands(2048, 2048, inputs=2)),
        "matmul 2048 float16": (matmul, operands(2048, 2048, inputs=2, dtype=torch.float16)),
        "scale 2 MiB": (scale, operands(MIB // 2, inputs=1)),
    }


# --- the harnesses: the seconds of a call, after about so many seconds of measuring --------------------------------


def cold(function: Callable[..., object], arguments: tuple[Any, ...], seconds: float) -> float:
    import kernelwatch

    found = kernelwatch.measure(function, *arguments, seconds=seconds)
    SHOWN.append(repr(found))
    return found.seconds


def hot(function: Callable[..., object], arguments: tuple[Any, ...], seconds: float) -> float:
    import kernelwatch

    try:
        return kernelwatch.measure(function, *arguments, seconds=seconds, cache="hot").seconds
    except kernelwatch.MeasureError as error:
        if "never hot" not in str(error):
            raise
        return math.nan


def do_bench(function: Callable[..., object], arguments: tuple[Any, ...], seconds: float) -> float:
    return _repeated(lambda: function(*arguments), seconds)


def do_bench_median(function: Callable[..., object], arguments: tuple[Any, ...], seconds: float) -> float:
    return _repeated(lambda: function(*arguments), seconds, return_mode="median")


def _repeated(call: Callable[[], object], seconds: float, **options: str) -> float:
    from triton.testing import do_bench

    return _median_until(seconds, lambda: float(do_bench(call, **options)) / 1000)


def _median_until(seconds: float, take: Callable[[], float]) -> float:
    """The median of as many figures as take so many seconds, to the nearest whole number of figures, at least one."""
    figures: list[float] = []
    began = time.perf_counter()
    while True:
        figures.append(take())
        took = time.perf_counter() - began
        if took + took / len(figures) / 2 > seconds:
            return statistics.median(figures)


def do_bench_cudagraph(function: Callable[..., object], arguments: tuple[Any, ...], seconds: float) -> float:
    from triton.testing import do_bench_cudagraph

    rep = max(1, round(100 * seconds))  # which it replays ten times
    return float(do_bench_cudagraph(lambda: function(*arguments), rep=rep)) / 1000


def benchmark(function: Callable[..., object], arguments: tuple[Any, ...], seconds: float) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("function(*arguments)", globals={"function": function, "arguments": arguments})
    return _median_until(seconds, lambda: float(timer.blocked_autorange(min_run_time=seconds / 4).median))


def nvbench(kernels: dict[str, Case], seconds: float, *, waiting: bool = False) -> Figures:
    """All kernels at once, since nvbench runs once in a process. `waiting`: they may wait for the GPU."""
    import cuda.bench
    import torch

    took = {}

    def measure(state: Any) -> None:
        name = state.get_string("kernel")
        function, arguments = kernels[name]
        function(*arguments)
        torch.cuda.synchronize()

        def launch(launcher: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launcher.get_stream().addressof())):
                function(*arguments)

        began = time.perf_counter()
        state.set_timeout(seconds)
        state.exec(launch, batched=False, **({"sync": True} if waiting else {}))
        took[name] = time.perf_counter() - began

    cuda.bench.register(measure).add_string_axis("kernel", list(kernels))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        cuda.bench.run_all_benchmarks(["nvbench", "--devices", "0", "--quiet", "--json", str(file)])
        states = json.loads(file.read_text(encoding="utf-8"))["benchmarks"][0]["states"]
    figures: Figures = {}
    for state in states:
        (axis,) = state["axis_values"]
        name = axis.get("value") or axis["input_string"]
        tags = {summary["tag"]: summary["data"] for summary in state["summaries"]}
        values = {entry["name"]: entry["value"] for entry in tags["nv/cold/time/gpu/mean"]}
        figures[name] = {"seconds": float(values["value"]), "took_s": took[name]}
    return figures


def one_by_one(harness: Harness, kernels: dict[str, Case], seconds: float) -> Figures:
    """The figures of a harness that measures one kernel in a call."""
    import torch

    figures: Figures = {}
    for name, (function, arguments) in kernels.items():
        function(*arguments)  # loads and compiles
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = harness(function, arguments, seconds)
        if not math.isnan(found):
            figures[name] = {"seconds": found, "took_s": time.perf_counter() - began}
    return figures


HARNESSES: dict[str, Callable[[dict[str, Case], float], Figures]] = {
    "kernelwatch.measure": partial(one_by_one, cold),
    "kernelwatch.measure, hot": partial(one_by_one, hot),
    "triton do_bench": partial(one_by_one, do_bench),
    "triton do_bench, median": partial(one_by_one, do_bench_median),
    "triton do_bench_cudagraph": partial(one_by_one, do_bench_cudagraph),
    "torch.utils.benchmark": partial(one_by_one, benchmark),
    "nvbench": nvbench,
}
SHOWN: list[str] = []  # how the results of kernelwatch.measure look in a terminal


# --- processes -----------------------------------------------------------------------------------------------------


def work(name: str, seconds: float) -> None:
    """One process: import everything, wait for a line on stdin, measure, and print a JSON line."""
    import cupy  # noqa: F401
    import torch
    import triton.testing  # noqa: F401

    import kernelwatch

    kernelwatch.measure  # noqa: B018 (imports the engine)
    if name == "nvbench":
        import cuda.bench  # noqa: F401
    print("ready", flush=True)
    sys.stdin.readline()
    found = HARNESSES[name](cases(), seconds)
    result = {"gpu": torch.cuda.get_device_name(), "versions": _versions(), "cases": found, "shown": SHOWN}
    print(json.dumps(result), flush=True)


def _versions() -> dict[str, str]:
    from kernelwatch.system.installed import versions

    return versions(["torch", "triton", "cuda-bench", "cupy-cuda13x", "cupy-cuda12x"])


def run(processes: int, seconds: float, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Measure with every harness in turn, in fresh processes; after each process the record so far."""
    command = [sys.executable, str(ROOT / "scripts" / "lab" / "harnesses"), "--seconds", str(seconds), "--work"]
    order = [name for _ in range(processes) for name in HARNESSES]
    workers = [
        (
            name,
            subprocess.Popen(
                [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ),
        )
        for name in order
    ]
    ready = {id(worker): worker.stdout.readline() == "ready\n" for _, worker in workers if worker.stdout}
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    who: dict[str, Any] = {}
    for name, worker in workers:
        output, errors = worker.communicate("go\n")
        lines = output.strip().splitlines()
        if not ready[id(worker)] or worker.returncode or not lines:
            tell(f"{name}: {(errors.strip().splitlines() or ['no message'])[-1]}")
            continue
        result = json.loads(lines[-1])
        who |= {"gpu": result["gpu"], "versions": result["versions"]}
        who["shown"] = who.get("shown") or result["shown"]
        for case, figure in result["cases"].items():
            figures.setdefault(case, {}).setdefault(name, []).append(figure)
        tell(f"{name}: " + ", ".join(f"{case} {time_text(one['seconds'])}" for case, one in result["cases"].items()))
        yield {**who, "seconds": seconds, "figures": figures}


# --- the table -----------------------------------------------------------------------------------------------------


def spread(figures: list[dict[str, float]]) -> float:
    """The standard deviation over the mean of the figures of the processes."""
    seconds = [figure["seconds"] for figure in figures]
    return statistics.stdev(seconds) / statistics.mean(seconds) if len(seconds) > 1 else math.nan


def example(result: dict[str, Any]) -> str:
    """How the first results of kernelwatch.measure look in a terminal."""
    shown = "\n\n".join(result["shown"])
    return f"```\n{shown}\n```"


def text(result: dict[str, Any]) -> str:
    """The tables of a run, one for each kernel."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    counts = {len(figures) for by_harness in result["figures"].values() for figures in by_harness.values()}
    parts = [
        f"{result['gpu']}; {versions}; {' to '.join(map(str, sorted({min(counts), max(counts)})))} processes each."
    ]
    for case, by_harness in result["figures"].items():
        own = spread(by_harness.get("kernelwatch.measure", []))
        rows = []
        for name, figures in by_harness.items():
            median_s = statistics.median(figure["seconds"] for figure in figures)
            took_s = statistics.median(figure["took_s"] for figure in figures)
            ratio = f"{spread(figures) / own:.3g}" if own > 0 else ""
            rows.append([name, time_text(median_s), percent(spread(figures), 3), ratio, f"{took_s:.2f} s"])
        parts.append(table([case, "figure", "spread", "times ours", "time taken"], rows))
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/harnesses", __doc__)
    parser.add_argument("--processes", type=int, default=5, help="fresh processes for each harness (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each kernel and harness (default: 0.2)")
    parser.add_argument("--out", default=str(JSON), help="the record to write (default: docs/harnesses.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from docs/harnesses.json")
    parser.add_argument("--work", choices=HARNESSES, help="be one of the processes")
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work, options.seconds)
        return 0
    if options.table:
        result = json.loads(Path(options.out).read_text(encoding="utf-8"))
        write_block(EXAMPLE, "example", example(result), "scripts/lab/harnesses")
        write_block(TABLES, "harnesses", text(result), "scripts/lab/harnesses")
        return 0
    began, result = time.monotonic(), {}
    for result in run(
        options.processes, options.seconds, lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)
    ):
        write_whole(Path(options.out), json.dumps(result, indent=1) + "\n")
    if not result:
        print("nothing could be measured", file=sys.stderr)
        return CANNOT
    print(text(result))
    return 0
