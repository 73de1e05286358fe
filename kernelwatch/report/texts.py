"""Format figures for people: units, shares, devices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwatch.history.confirmations import Confirmation
from kernelwatch.history.records import Record
from kernelwatch.report.rows import Row, Section
from kernelwatch.timing.record import Facts


def time_text(seconds: float) -> str:
    """Seconds as people read them: 1.35 us."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def rate_text(rate: float) -> str:
    """Bytes or operations per second as GB/s or GFLOP/s, with at least three digits."""
    return f"{rate / 1e9:.0f}" if rate >= 1e11 else f"{rate / 1e9:.3g}"


def change_text(change: float, unit: str = " %", digits: int = 2) -> str:
    """A relative change in percent, or as a factor if it is large; "" for NaN."""
    if math.isnan(change):
        return ""
    if change >= 1:
        return f"x{1 + change:.3g}"
    return f"{100 * change:+.{1 if abs(change) >= 0.1 else digits}f}{unit}"


def bounds_text(low: float, high: float, digits: int = 2) -> str:
    """Two bounds, both in percent or both as factors."""
    if high >= 1:
        return f"x{1 + low:.3g}..x{1 + high:.3g}"
    return f"{change_text(low, '', digits)}..{change_text(high, ' %', digits)}"


def confirmation_text(verdict: Confirmation) -> str:
    """The verdict on a flagged change in words, such as "confirmed: +1.02 % (+0.98..+1.06 %) in 4 turns"."""
    if verdict.change is None or verdict.low is None or verdict.high is None:
        return f"{verdict.word}: {verdict.why}"
    reason = f", {verdict.why}" if verdict.why else ""
    interval = bounds_text(verdict.low, verdict.high)
    return f"{verdict.word}: {change_text(verdict.change)} ({interval}) in {verdict.turns} turns{reason}"


def size_text(size: float | None) -> str:
    """The size of a change as the pages write it; None if it starts from 0."""
    return "from 0" if size is None else f"{100 * size:+.2f} %"


def interval_text(interval: Sequence[float | None]) -> str:
    """The interval of a size; "" if it is not known."""
    low, high = interval
    return "" if low is None or high is None else f"{size_text(low)} to {size_text(high)}"


def event_text(event: Mapping[str, Any]) -> str:
    """An event of data/events.json in a few words: its kind, state and size, and what it is about."""
    count = len(event["changes"])
    largest = next(change for change in event["changes"] if change["id"] == event["largest"])
    about = f"{count} series, up to" if count > 1 else largest["cell"] or largest["benchmark"]
    return f"{event['kind']}, {event['words']}: {about} {size_text(event['size'])}"


def headers(section: Section) -> tuple[str, ...]:
    """The columns of a section's table."""
    unit = "GFLOP/s" if section.problem.computation.flops else "GB/s"
    share = [f"of {section.against}"] if section.against else []
    return ("rung", "time", "spread", unit, *share, "detectable, two runs")


def percent(value: float, digits: int = 1) -> str:
    """A ratio in percent, "" for NaN."""
    return "" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def detectable(change: float) -> str:
    """A minimum detectable change; above 100 % its digits mean nothing."""
    return "> 100 %" if change > 1 else percent(change, 2)


def row_texts(row: Row, columns: int) -> tuple[str, ...]:
    """A row's texts in the order of `headers`. `columns`: 6, or 5 if the table has no share."""
    cell = row.cell
    if cell.state != "ok":
        return (row.rung, "failed", *[""] * (columns - 2))
    marks = {
        f"{cell.own_clock_mhz or 0:.0f} MHz": cell.own_clock_mhz is not None,
        "limited": bool(cell.limits),
        "by events": cell.by_events,
        "allocates": cell.peak_allocated_bytes > 0,
    }
    mark = ", ".join(name for name, applies in marks.items() if applies)
    return (
        row.rung,
        time_text(cell.median_s) + (f" ({mark})" if mark else ""),
        f"± {percent(cell.spread, 2)}" if len(cell.seconds) > 1 else "",
        rate_text(row.rate),
        *([percent(row.share)] if columns == 6 else []),
        detectable(cell.detectable),
    )


def rate_and_share(row: Row) -> str:
    """A row's rate, and its share in whole percent if it has one; "*" for a cell that met a limit, "~" for one
    that was timed by events."""
    if row.cell.state != "ok":
        return "failed"
    share = f" {percent(row.share, 0):>6}" if not math.isnan(row.share) else ""
    return f"{rate_text(row.rate)}{'*' if row.cell.limits else ''}{'~' if row.cell.by_events else ''}{share}"


def nvrtc(facts: Facts) -> str:
    """The version of the CUDA compiler, under either of its packages' names."""
    packages = facts.get("packages", {})
    return packages.get("nvidia-cuda-nvrtc") or packages.get("nvidia-cuda-nvrtc-cu12") or "n/a"


def device_text(record: Record, device: str) -> str:
    """The device and its software in one line."""
    of_device = (facts for group, facts in record.facts.items() if group.endswith(device) and facts)
    facts: Facts = next(of_device, Facts())
    if device == "gpu":
        peak = facts.get("nvml_theoretical_bandwidth_bytes_per_s")
        bandwidth = f", {peak / 1e9:.0f} GB/s theoretical" if peak else ""
        return f"{facts.get('gpu')}{bandwidth}, driver {facts.get('nvml_driver') or 'n/a'}, NVRTC {nvrtc(facts)}"
    return f"{facts.get('cpu')}, {len(facts.get('cores', []))} cores, NumPy {facts.get('packages', {}).get('numpy')}"


def record_text(record: Record, device: str) -> str:
    """The device, its software, and the commit."""
    return f"{device_text(record, device)}; commit {record.commit}"


def best_copy(rows: list[Row]) -> str:
    """The fastest of the copies that a section measured. Shares refer to vector_copy, which may be slower."""
    copies = [row for row in rows if row.rung in ("memcpy", "vector_copy", "cupy_copy") and row.cell.seconds]
    best = max(copies, key=lambda row: row.rate, default=None)
    return f"best copy measured: {best.rung}, {best.rate / 1e9:.0f} GB/s" if best else ""
