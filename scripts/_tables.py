"""The ladder as tables: in the terminal, or as Markdown; those of README.md and docs/ are written by it."""

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import _nvml
from benchmarks._cells import CACHES, label
from benchmarks._gpu import LOW_CLOCK
from benchmarks._ops import OPS, Shape, types
from scripts import _history
from scripts._history import Measured, Record, Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def time_text(seconds: float) -> str:
    """Seconds as people read them: 1.35 us."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def rate_text(rate: float) -> str:
    """Bytes or operations a second as GB/s or GFLOP/s, with three digits at least."""
    return f"{rate / 1e9:.0f}" if rate >= 1e11 else f"{rate / 1e9:.3g}"


def headers(op: str, device: str) -> tuple[str, ...]:
    """The columns of an op's tables on a device."""
    against = _history.held_against(op, device)
    unit = "GFLOP/s" if OPS[op].vendor else "GB/s"
    return ("rung", "time", "spread", unit, *([f"of {against}"] if against else []), "would show")


def percent(value: float, digits: int = 1) -> str:
    """A ratio in per cent, "" for NaN."""
    return "" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def would_show(change: float) -> str:
    """The smallest change that would have shown; beyond a factor of two its digits say nothing."""
    return "> 100 %" if change > 1 else percent(change, 2)


def cells_of(row: Row, columns: int) -> tuple[str, ...]:
    """A row's texts, in the order of its table's headers; of `columns` columns the share is left out of the shorter."""
    cell = row.cell
    if cell.state != "ok":
        return (row.rung, "failed", *[""] * (columns - 2))
    mark = " (low clock)" if cell.throttled == (LOW_CLOCK,) else " (throttled)" if cell.throttled else ""
    return (
        row.rung,
        time_text(cell.median_s) + mark,
        f"± {percent(cell.spread, 2)}" if cell.seconds[1:] else "",
        rate_text(row.rate),
        *([percent(row.share)] if columns == 6 else []),
        would_show(cell.smallest_change),
    )


def nvrtc(facts: dict[str, Any]) -> str:
    """The version of the CUDA compiler, under either of its packages' names."""
    found = facts.get("packages", {})
    return found.get("nvidia-cuda-nvrtc") or found.get("nvidia-cuda-nvrtc-cu12") or "n/a"


def device_text(record: Record, device: str) -> str:
    """Who measured, in a line."""
    facts: dict[str, Any] = next((f for group, f in record.facts.items() if group.endswith(device) and f), {})
    if device == "gpu":
        peak = facts.get("nvml_theoretical_bandwidth_bytes_per_s")
        bandwidth = f", {peak / 1e9:.0f} GB/s theoretical" if peak else ""
        return f"{facts.get('gpu')}{bandwidth}, driver {facts.get('nvml_driver') or 'n/a'}, NVRTC {nvrtc(facts)}"
    return f"{facts.get('cpu')}, {len(facts.get('cores', []))} cores, NumPy {facts.get('packages', {}).get('numpy')}"


def sections(
    record: Record, ops: list[str], shapes: list[Shape] | None = None, type: str | None = None
) -> list[tuple[str, str, str, list[Row]]]:
    """(title, op, device, rows) for each op, device, shape and cache state that has rows."""
    found = []
    for op in ops:
        for device in ("gpu", "cpu"):
            for shape in OPS[op].shapes if device == "gpu" else OPS[op].cpu_shapes:
                for cache in CACHES:
                    rows = _history.ladder(record, op, device, shape, cache, type)
                    if rows and (shapes is None or shape in shapes):
                        found.append(
                            (
                                f"{op} {type or types(op)[0]} {label(shape)}, {cache}, {device.upper()}",
                                op,
                                device,
                                rows,
                            )
                        )
    return found


def best_copy(rows: list[Row]) -> str:
    """Which of a section's copies is the fastest: shares are of vector_copy, which need not be."""
    copies = [row for row in rows if row.rung in ("memcpy", "vector_copy", "cupy_copy") and row.cell.seconds]
    best = max(copies, key=lambda row: row.rate, default=None)
    return f"best copy: {best.rung}, {best.rate / 1e9:.0f} GB/s" if best else ""


def show(record: Record, console: Console, ops: list[str], type: str | None = None) -> None:
    """Print a record's tables, then what has no figure and why."""
    shown = sections(record, ops, None, type)
    for device in dict.fromkeys(device for _, _, device, _ in shown):
        console.print(f"{device.upper()}: {device_text(record, device)}", markup=False)
    for said in dict.fromkeys(facts["nvml"] for facts in record.facts.values() if facts.get("nvml", "ok") != "ok"):
        console.print(
            f"note: measured without NVML's facts (clocks, limits, power): {said}", style="yellow", markup=False
        )
    for group, facts in record.facts.items():
        if why := _nvml.disturbed(facts.get("others")):
            console.print(f"note: {group}: {why}: its figures may be disturbed", style="yellow", markup=False)
    for title, op, device, rows in shown:
        table = Table(title=title, caption=best_copy(rows) or None, title_justify="left", caption_justify="left")
        columns = headers(op, device)
        for header in columns:
            table.add_column(header, justify="left" if header == "rung" else "right")
        for row in rows:
            table.add_row(*cells_of(row, len(columns)), style="red" if row.cell.state != "ok" else None)
        console.print(table)
    show_reasons(record.cells.values(), console)


def show_changes(before: Record, after: Record, console: Console) -> None:
    """What changed since an earlier record by more than would have shown, in a line a cell, the largest first."""
    alike = {group: _history.conditions(before, group) == _history.conditions(after, group) for group in after.facts}
    compared = [
        (cell, before.cells[cell.key])
        for cell in after.cells.values()
        if cell.seconds and cell.key in before.cells and before.cells[cell.key].seconds and alike.get(cell.group)
    ]
    other = sorted(group for group, same in alike.items() if not same and before.facts.get(group))
    if other:
        why = "another GPU, CPU, driver, compiler, package or harness"
        console.print(f"since {before.commit}: {', '.join(other)} not compared: {why}", markup=False)
    if not compared:
        return
    changes = [(cell.key, _history.Change.between(old, cell)) for cell, old in compared]
    found = sorted((pair for pair in changes if pair[1].verdict), key=lambda pair: -abs(pair[1].ratio - 1))
    console.print(
        f"since {before.commit}: {len(found)} of {len(changes)} cells changed by more than would show", markup=False
    )
    for key, change in found:
        console.print(
            f"  {key}: {100 * change.ratio - 100:+.2f} %, {change.verdict} "
            f"(would show {would_show(change.would_show)})",
            style="red" if change.ratio > 1 else "green",
            markup=False,
        )


def show_reasons(cells: Iterable[Measured], console: Console) -> None:
    """One line a reason why cells failed or are n/a."""
    found = list(cells)
    for state, words in (("failed", "failed"), ("na", "n/a")):
        for reason, keys in _history.reasons(found, state).items():
            if state == "failed" or "never hot" not in reason:
                what = keys[0] if len(keys) == 1 else f"{len(keys)} cells ({keys[0]}, ...)"
                console.print(
                    f"{words}: {what}: {reason}", style="red" if state == "failed" else "yellow", markup=False
                )


def markdown(record: Record, ops: list[str], shapes: list[Shape] | None = None, type: str | None = None) -> str:
    """The same tables for a README or an issue."""
    parts = []
    for title, op, device, rows in sections(record, ops, shapes, type):
        columns = headers(op, device)
        lines = [
            f"**{title}** ({device_text(record, device)}; commit {record.commit})",
            "",
            "| " + " | ".join(columns) + " | what it does |",
            "| --- |" + " ---: |" * (len(columns) - 1) + " --- |",
        ]
        lines += ["| " + " | ".join((*cells_of(row, len(columns)), row.idea)) + " |" for row in rows]
        parts.append("\n".join([*lines, "", best_copy(rows)]).strip())
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/ladder", description=__doc__)
    parser.add_argument("op", nargs="*", help=f"of {', '.join(OPS)} (default: all)")
    parser.add_argument("--machine", help="a folder of results/ (default: the one with the newest commit)")
    parser.add_argument("--commit", help="the first digits of a commit (default: the newest)")
    every = list(dict.fromkeys(name for op in OPS for name in types(op)))
    parser.add_argument(
        "--type", help="element type (default: float32; the others at one shape, cold); in quotes where it has a '>'"
    )
    parser.add_argument("--markdown", action="store_true", help="as Markdown")
    parser.add_argument(
        "--readme",
        action="store_true",
        help="write the figures in README.md and docs/ from the newest records with a GPU",
    )
    given = parser.parse_args(arguments)
    if given.type and given.type not in every:
        quote = " (in quotes: '>' is the shell's)" if given.type.endswith("-") else ""
        parser.error(f"no type {given.type}; there are {', '.join(every)}{quote}")
    if unknown := [op for op in given.op if op not in OPS]:
        parser.error(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    paths = [path for path in _history.sidecars(RESULTS, given.machine) if path.name.startswith(given.commit or "")]
    records = [_history.read(path) for path in paths]
    if given.readme:
        records = [
            record for record in records if any(facts for group, facts in record.facts.items() if "gpu" in group)
        ]
    if not records:
        known = sorted({path.parent.name for path in _history.sidecars(RESULTS)})
        print(
            f"scripts/ladder: nothing recorded for this under {RESULTS}, which has {', '.join(known) or 'no machine'}; "
            "scripts/bench measures",
            file=sys.stderr,
        )
        return 1
    if given.readme:
        from scripts import _papers

        _papers.write(records, ROOT, RESULTS)
    elif given.markdown:
        print(markdown(records[-1], given.op or list(OPS), None, given.type))
    else:
        show(records[-1], Console(), given.op or list(OPS), given.type)
    return 0
