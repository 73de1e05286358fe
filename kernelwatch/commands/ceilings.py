"""Measure the roofs of this GPU: how fast each unit repeats its instruction, how fast L2 and memory copy.

The kernels do nothing else, on random operands in registers or shared memory. The record is ceilings.jsonl among the
machine's results, one line per roof and GPU; the Roofline page reads it. A new measurement takes the place of the
older one.
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from kernelwatch.asv.machine_names import machine_name, who
from kernelwatch.history import roofs
from kernelwatch.plan.package import NotHere
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.machine import no_gpu
from kernelwatch.timing.ceilings import Bench, Ceiling


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--json", action="store_true", help="print the record, a JSON line for each roof")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parsed = parser.parse_args(arguments)
    try:
        bench = Bench()
    except (ImportError, NotHere) as error:
        raise UserError(f"nothing to measure: {no_gpu(error)}") from error
    except RuntimeError as error:  # CuPy's own errors
        raise UserError(f"nothing to measure: {no_gpu(error)}") from error
    own = {**who(), "measured_at": datetime.now(UTC).isoformat(timespec="seconds")}
    lines: list[dict[str, Any]] = []
    output, table = Output(), _table(bench)
    for ceiling in bench.all(lambda who: print(f"waiting: {who} is measuring on the GPU", file=sys.stderr, flush=True)):
        lines.append({**ceiling, "who": own})
        if parsed.json:
            print(json.dumps(lines[-1]), flush=True)
        table.add_row(*_row(ceiling))
    if not parsed.json:
        output.print(table)
    if not parsed.dry:
        path = project.results / machine_name() / roofs.FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in roofs.read(path.parent) if line["who"].get("gpu") != own.get("gpu")]
        write_whole(path, "".join(f"{json.dumps(line)}\n" for line in [*kept, *lines]))
        if not parsed.json:
            output.print(f"recorded in {path.relative_to(project.root)}")
    return 0


def _table(bench: Bench) -> Table:
    title = f"{bench.gpu}, {bench.multiprocessors} multiprocessors; random operands"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    table.add_column("roof", overflow="fold")
    for name in ("measured", "spread", "SM clock", "a cycle and SM", "datasheet", "share"):
        table.add_column(name, justify="right", no_wrap=name not in ("SM clock", "a cycle and SM"))
    return table


def _row(ceiling: Ceiling) -> tuple[str, ...]:
    scale, unit = (1e9, "GB/s") if ceiling["of"] == "B/s" else (1e12, f"T{ceiling['of']}")
    sheet, clock, per_clock = ceiling["datasheet"], ceiling["clock_mhz"], ceiling["per_clock"]
    limits = f", limited by {', '.join(ceiling['limits'])}" if ceiling["limits"] else ""
    return (
        f"{ceiling['title']} ({ceiling['instruction']}{limits})",
        f"{ceiling['rate'] / scale:.4g} {unit}",
        f"{100 * ceiling['spread']:.2f} %",
        f"{clock:.0f} MHz" if clock else "n/a",
        f"{per_clock:.1f}" if per_clock else "",
        f"{sheet / scale:.4g} {unit}" if sheet else "n/a",
        f"{100 * ceiling['rate'] / sheet:.1f} %" if sheet else "n/a",
    )
