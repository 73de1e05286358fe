#!/usr/bin/env python3
"""Measures what the best rungs are to reach: their rates beside the vendor's in one run, cold, by several processes.

The record is results/<machine>/bars.jsonl with a line for each cell. scripts/lab/figures writes from it the table in
docs/research/README.md; without it, from the newest record of all cells, which has no other type than the first at most
shapes.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.project import PROJECT
from kernelwatch.asv.machine_names import machine_name, who
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.problem import Shape, label
from kernelwatch.report.arguments import Parser, regular_expression
from kernelwatch.report.markdown import table
from kernelwatch.run.group import doubtful, retake
from kernelwatch.run.outcome import Outcome
from kernelwatch.run.processes import Run
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import replace_lines
from kernelwatch.system.git import resolve
from kernelwatch.timing import nvml
from lab.ahead import compile_ahead

RECORD = "bars.jsonl"  # in a machine's folder of results/
PROCESSES = 5


@dataclass(frozen=True)
class Bar:
    """The rate that the best of some rungs is to have, in percent of that of the best of others.

    `why`: the section of docs/research/ that says what limits it, if it is not reached; `what`: the rungs of a table's
    row, if there are others of the type.
    """

    op: str
    type: str
    shape: Shape
    percent: int
    own: tuple[str, ...]
    others: tuple[str, ...]
    why: str
    what: str = ""

    @property
    def title(self) -> str:
        """What is compared, in words."""
        return f"{self.op} {self.type}{self.what and f', {self.what}'}"

    def cell(self, name: str) -> Cell:
        """The cell of one of its rungs or lines."""
        reference = name in PROJECT.op(self.op).lines
        return Cell(self.op, name, self.type, self.shape, "cold", "gpu", reference=reference)

    @property
    def cells(self) -> list[Cell]:
        """The cells of all."""
        return [self.cell(name) for name in (*self.own, *self.others)]


def _of_type(names: tuple[str, ...], type: str, op: str = "matmul") -> tuple[str, ...]:
    return tuple(name for name in names if type in PROJECT.op(op).rung(name).types)


def _square(n: int) -> Shape:
    return (n, n, n)


RAGGED, RAGGED_TURNED = (4000, 4104, 4040), (16411, 8209)
HALVES = ("float16->float32", "bfloat16->float32", "float16", "bfloat16")
WGMMA = "matmul.md#wgmma"
TURNED = ("vectorized", "raster", "padded", "sector_aligned", "sector_words")
COPIES = ("memcpy", "vector_copy", "cupy_copy")
OF_HALVES: dict[Shape, tuple[int, tuple[str, ...], str]] = {  # shape -> percent, rungs, why
    _square(512): (100, ("wgmma_split_k", "wgmma_64x64"), "matmul.md#wgmma_split_k"),
    _square(1024): (100, ("wgmma_64x128", "wgmma_128x128"), "matmul.md#wgmma_64x128"),
    _square(2048): (105, ("wgmma", "wgmma_cache_hints"), WGMMA),
    _square(4096): (105, ("wgmma",), WGMMA),
    _square(8192): (105, ("wgmma",), WGMMA),
    RAGGED: (100, ("wgmma_multicast", "wgmma"), "matmul.md#wgmma_multicast"),
}
OF_SINGLES: dict[int, tuple[str, str]] = {  # n -> the rung that is ahead, why
    1024: ("pipelined_64x128", "matmul.md#pipelined"),
    2048: ("split_tail", "matmul.md#split_tail"),
    4096: ("split_tail", "matmul.md#pipelined"),
    8192: ("split_tail", "matmul.md#pipelined"),
}
CUBLAS = ("cublas", "torch")
BARS = (
    *(
        Bar("matmul", type, shape, percent, _of_type(own, type), ("cublas",), why)
        for type in HALVES
        for shape, (percent, own, why) in OF_HALVES.items()
    ),
    *(
        Bar("matmul", "float32", _square(n), 105, (own, "serpentine", "raster", "pipelined"), CUBLAS, why)
        for n, (own, why) in OF_SINGLES.items()
    ),
    Bar("matmul", "float8_e4m3fn->bfloat16", RAGGED, 100, ("wgmma_fp8",), ("torch_fp8",), "matmul.md#wgmma_fp8"),
    *(
        Bar("matmul", "float32", _square(n), 450, ("fp16x3",), CUBLAS, "matmul.md#bf16x6-and-fp16x3", "fp16x3")
        for n in (4096, 8192)
    ),
    Bar("matmul", "float32", _square(2048), 250, ("bf16x6",), CUBLAS, "matmul.md#bf16x6-and-fp16x3", "bf16x6"),
    *(
        Bar("transpose", type, shape, percent, _of_type(TURNED, type, "transpose"), COPIES, f"transpose.md#{why}")
        for type in ("float32", "uint8", "uint16", "float64", "complex128")
        for shape, percent, why in (
            *(((n, n), 98, "vectorized") for n in (4096, 8192, 16384)),
            (RAGGED_TURNED, 95, "sector_aligned"),
        )
    ),
)

Seconds = Mapping[str, Sequence[float]]  # of each process, by the key of a cell


def _held(bar: Bar, records: Sequence[Seconds]) -> tuple[Seconds, Seconds]:
    """The seconds of a bar's rungs and lines by name, of the record that has most of its rungs; of several the first
    one."""

    def of(names: tuple[str, ...], seconds: Seconds) -> Seconds:
        return {name: seconds[key] for name in names if (key := bar.cell(name).key) in seconds}

    seconds = max(records, key=lambda each: len(of(bar.own, each)) if of(bar.others, each) else 0)
    return of(bar.own, seconds), of(bar.others, seconds)


def text(records: Sequence[Seconds], source: str) -> str:
    """The table of the bars; "" without a cell of them. `source`: the records, in words. A rung is held against a line
    of the same one."""
    lines: list[list[str]] = []
    missing: dict[str, list[str]] = {}  # title -> shapes
    for bar in BARS:
        own, others = _held(bar, records)
        if not own or not others:
            missing.setdefault(bar.title, []).append(label(bar.shape))
            continue
        best, vendor = (min(side, key=lambda name: statistics.median(side[name])) for side in (own, others))
        percent = 100 * statistics.median(others[vendor]) / statistics.median(own[best])
        link = "" if percent >= bar.percent else f"[{bar.why.partition('#')[2].replace('-', ' ')}]({bar.why})"
        processes = min(len(own[best]), len(others[vendor]))
        lines.append(
            [
                *(bar.title, label(bar.shape), f"{bar.percent} %", f"{percent:.1f} %"),
                *("yes" if not link else "no", best, vendor, str(processes), link),
            ]
        )
    if not lines:
        return ""
    header = ["what", "shape", "bar", "rate", "reached", "rung", "held against", "processes", "what limits it"]
    parts = [f"**Rates over those of the best vendor's line or copy, cold** {source}", table(header, lines)]
    if missing:
        parts.append(f"Not in this record ({len(BARS) - len(lines)} of {len(BARS)} bars):")
        parts.append("\n".join(f"- {title}: {', '.join(shapes)}" for title, shapes in missing.items()))
    return "\n\n".join(parts)


def read(path: Path) -> dict[str, list[float]]:
    """The seconds in a record."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["key"]: line["seconds"] for line in lines}


def source(path: Path) -> str:
    """Where a record comes from, in parentheses."""
    lines = list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    parts = [sorted({line["who"][name] for line in lines}) for name in ("gpu", "nvml_driver")]
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    return f"({', '.join(parts[0])}, driver {', '.join(parts[1])}; commit {commits})"


class Every(Outcome):
    """Of a cell that each process measures, however well it is known."""

    def wanted(self, process: int) -> bool:
        """Whether this process should measure the cell."""
        measured = any(each["process"] == process for each in self.measurements)
        return self.state == "waiting" or (self.state == "ok" and not measured)


def record(only: str, processes: int) -> int:
    """Measure the cells of the bars that `only` is found in, and record them; the exit code. Raises: UserError."""
    cells = {cell.key: cell for bar in BARS for cell in bar.cells if re.search(only, cell.key)}
    if not cells:
        raise UserError(f"no cell of a bar matches {only!r}")
    run = Run(PROJECT, [*cells.values()], "gpu", str(PROJECT.repository), PROJECT.devices["gpu"].budget)
    run.group.outcomes = {key: Every() for key in cells}
    if arch := nvml.architecture():
        rungs = {(cell.op, cell.rung, cell.type) for cell in cells.values() if not cell.reference}
        compile_ahead(sorted(rungs), arch)
    try:
        for process in range(processes):
            run.measure_all(process, more=processes - 1 - process + bool(doubtful(run)))
            print(f"process {process + 1} of {processes} is done", flush=True)
        retake(run, processes)
    finally:
        run.workers.close()
    outcomes = run.group.outcomes
    known = {key: each for key, each in outcomes.items() if each.measurements}
    common = {"commit": resolve(PROJECT.root, "HEAD")[:8], "who": who()}
    fresh = {
        key: {
            "seconds": [*each.by_process("seconds").values()],
            "clocks_mhz": [*each.by_process("clock64_mhz").values()],
            "throttled": sorted({str(limit) for one in each.measurements for limit in one.get("throttled", ())}),
            **common,
        }
        for key, each in known.items()
    }
    if fresh:
        replace_lines(PROJECT.results / machine_name() / RECORD, fresh)
    else:
        raise UserError(f"nothing was measured: {next(iter(outcomes.values())).reason}")
    for key, each in outcomes.items():
        if key not in known:
            print(f"{key}: {each.state}: {each.reason}", file=sys.stderr)
    return 2 if any(each.state == "failed" for each in outcomes.values()) else 0


def main(arguments: list[str] | None = None) -> int:
    """Measure the bars; the exit code: 2 if a cell failed."""
    parser = Parser("scripts/lab/bars", __doc__)
    parser.add_argument("--only", type=regular_expression, default="", help="cells by their keys, such as ^transpose/")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"of each cell (default: {PROCESSES})")
    options = parser.parse_args(arguments)
    return record(options.only, options.processes)
