#!/usr/bin/env python3
"""A/A of the judge's mode: the same honest functions, measured by a judge and in the open mode.

Each function is measured in the open mode, then by a judge, then in the open mode again, each time in a fresh process,
as a user's first measurement is. The record goes to docs/judged.json, from which the table of docs/judge.md is written.
With --device cpu it measures CPU functions, prints the table, and records nothing.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelwatch.api.judged import judge
from kernelwatch.api.measuring import measure
from kernelwatch.api.named import known, made
from kernelwatch.api.processes import each
from kernelwatch.api.result import Measured, MeasureError
from kernelwatch.api.statistics import level
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import bounds_text, change_text, time_text
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import write_whole
from lab import judged_cells
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
JSON, PAGE = ROOT / "docs" / "judged.json", ROOT / "docs" / "judge.md"
UNCAPTURED = "cannot be captured in a CUDA graph"  # in a warning of either mode
AGREES = 0.01  # so far apart the figures of both modes count as the same
BUDGET_S = 330.0  # after which no further function is begun


def ratio(judged: Measured, open_samples: list[float]) -> tuple[float, tuple[float, float]]:
    """The judge's figure over that of the open mode, and its 95 % interval."""
    middle, (low, high) = level(open_samples)
    own = math.log(judged.interval[1] / judged.interval[0]) / 2 if judged.interval[0] > 0 else math.inf
    half = math.hypot(own, math.log(high / low) / 2 if low > 0 else math.inf)
    size = judged.seconds / middle
    return size, (size * math.exp(-half), size * math.exp(half) if half < 700 else math.inf)


def measured_here(function: str, maker: str, seconds: float, device: str) -> Measured:
    """The open mode, in a fresh process."""
    return measure(known(function), *made(maker)[0], seconds=seconds, device=device)  # type: ignore[arg-type]


def aa(name: str, device: str, seconds: float) -> dict[str, Any]:
    """One function in both modes. Raises: MeasureError."""
    module = judged_cells.__name__
    function, maker = f"{module}:{name}.run", f"{module}:{name}.arrays"
    began = time.monotonic()

    def opened() -> Measured:
        (found,) = each(measured_here, (function, maker), (seconds, device), {}, 1)
        return found  # type: ignore[no-any-return]

    before = opened()
    found = judge(function, function, args=maker, seconds=seconds, rtol=1e-5, atol=1e-5, device=device)  # type: ignore[arg-type]
    assert isinstance(found, Measured)
    after = opened()
    size, bounds = ratio(found, [*before.samples, *after.samples])
    assert found.judged
    return {
        "name": getattr(judged_cells, name).title,
        "device": found.device,
        "open_s": level([*before.samples, *after.samples])[0],
        "open_apart": after.seconds / before.seconds,
        "judged_s": found.seconds,
        "ratio": size,
        "interval": bounds,
        "judged": asdict(found.judged),
        "warnings": found.warnings,
        "open_warnings": tuple(dict.fromkeys((*before.warnings, *after.warnings))),
        "conditions": found.conditions,
        "took_s": time.monotonic() - began,
    }


def run(device: str, seconds: float, only: str, budget_s: float) -> Iterator[dict[str, Any]]:
    """The functions, one after the other; one that cannot be measured is told, and left out."""
    began = time.monotonic()
    for name in judged_cells.CELLS[device]:
        if not any(part in name for part in only.split(",")):
            continue
        if time.monotonic() - began > budget_s:
            print(f"{name}: not begun, {budget_s:g} s are over", flush=True)
            continue
        try:
            found = aa(name, device, seconds)
        except MeasureError as error:
            print(f"{time.monotonic() - began:6.1f} s  {name}: {error}", flush=True)
            continue
        told = f"open {time_text(found['open_s'])}, judged {time_text(found['judged_s'])}: {found['ratio']:.4f}"
        warnings = "".join(f"\n          {text}" for text in (*found["warnings"], *found["open_warnings"]))
        fixed = f"fixed costs {time_text(found['judged']['fixed_s'] * found['judged']['sets'])} a round"
        print(f"{time.monotonic() - began:6.1f} s  {found['name']}: {told}, {fixed}{warnings}", flush=True)
        yield found


def summary(cells: list[dict[str, Any]]) -> str:
    """How far the judge's figures are from those of the open mode, for the functions that both captured in a graph."""
    both = [one for one in cells if not any(UNCAPTURED in told for told in (*one["warnings"], *one["open_warnings"]))]
    if len(both) < 2:
        return ""
    *others, most = sorted(both, key=lambda one: abs(math.log(one["ratio"])))
    low, high = (change_text(pick(one["ratio"] for one in others) - 1) for pick in (min, max))
    rest = [one["name"] for one in cells if one not in both]
    near = [one for one in both if abs(one["ratio"] - 1) <= AGREES]
    least = min(near, key=lambda one: one["open_s"], default=None)
    shortest = f", the shortest of them {least['name']} of {time_text(least['open_s'])}" if least else ""
    return (
        f"On {cells[0]['device']} the judge's figure is {low} to {high} away from that of the open mode. That is of "
        f"the functions that both modes captured in a graph, without the one that is furthest apart, {most['name']} "
        f"({change_text(most['ratio'] - 1)}). Within {100 * AGREES:g} % are {len(near)} of {len(both)}{shortest}. "
        f"Not captured: {', '.join(rest) or 'none'}."
    )


def text(cells: list[dict[str, Any]]) -> str:
    """The table, and what it comes to."""
    rows = []
    for one in cells:
        low, high = one["interval"]
        judged = one["judged"]
        rows.append(
            [
                one["name"],
                time_text(one["open_s"]),
                time_text(one["judged_s"]),
                f"{change_text(one['ratio'] - 1)} ({bounds_text(low - 1, high - 1)})",
                str(judged["sets"]),
                time_text(judged["fixed_s"]),
                time_text(judged["resolution_s"]),
                time_text(judged["shortest_s"]),
            ]
        )
    header = [
        cells[0]["device"],
        "open",
        "judged",
        "apart",
        "sets",
        "fixed costs a call",
        "resolution",
        "shortest call",
    ]
    return "\n\n".join(filter(None, (table(header, rows), summary(cells))))


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/judged", __doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each figure (default: 0.5)")
    parser.add_argument("--only", default="", help="functions with one of these in their name: A,B")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help=f"seconds of it all (default: {BUDGET_S:g})")
    parser.add_argument("--out", default=str(JSON), help="the record to write (default: docs/judged.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    options = parser.parse_args(arguments)
    if options.table:
        write_block(
            PAGE, "judged", text(json.loads(Path(options.out).read_text(encoding="utf-8"))), "scripts/lab/judged"
        )
        return 0
    cells: list[dict[str, Any]] = []
    for one in run(options.device, options.seconds, options.only, options.budget):
        cells.append(one)
        if options.device == "gpu":
            write_whole(Path(options.out), json.dumps(cells, indent=1) + "\n")
    if not cells:
        print("nothing could be measured", file=sys.stderr)
        return CANNOT
    print(text(cells))
    return 0
