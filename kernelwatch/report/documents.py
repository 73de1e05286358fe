"""What commands print with --json, in the form of the schemas in kernelwatch/schemas: for other tools, and for programs
that optimize kernels. A number that is not finite is null."""

import statistics
from collections.abc import Sequence
from typing import Any

from kernelwatch.comparison.exact import Difference, Value
from kernelwatch.comparison.paired import FALSE_ALARMS, Judged, Pairs
from kernelwatch.comparison.verdict import Report
from kernelwatch.history.records import finite
from kernelwatch.plan.problem import label
from kernelwatch.report.deciding import turns_to_decide
from kernelwatch.timing.record import Measurement

VERSION = 1  # of the schemas: raised when a key that is there changes its meaning or goes


def versus(
    report: Report,
    names: tuple[str, str],
    commits: tuple[str, str],
    machine: str,
    code: int,
    turn_s: float | None = None,
) -> dict[str, Any]:
    """A comparison of two commits, as schemas/versus.json describes it. `code`: the exit code; `turn_s`: what a turn
    took, if that is known."""
    cells = [_cell(report, pairs, judged) for pairs, judged in report.verdicts()]
    open_cells = [cell["turns_to_decide"] for cell in cells if cell["verdict"] == "cannot tell" and not cell["control"]]
    decidable = bool(open_cells) and None not in open_cells
    return finite(  # type: ignore[no-any-return]
        {
            "schema": "kernelwatch/versus",
            "version": VERSION,
            "verdict": verdict_word(report),
            "exit_code": code,
            "whole": report.whole,
            "summary": report.summary,
            "machine": machine,
            "base": {"name": names[0], "commit": commits[0]},
            "head": {"name": names[1], "commit": commits[1]},
            "cells": cells,
            "figures": list(map(_figure, report.differences)),
            "figures_compared": report.compared,
            "failures": [{"what": what, "why": why} for what, why in report.failures.items()],
            "undecided": report.undecided,
            "seconds_to_decide": turn_s * max(open_cells) if turn_s and decidable else None,
            "changed": [{"rung": rung, "what": what} for rung, what in report.changed.items()],
            "same": report.same,
            "new": [{"rung": rung, "before": before} for rung, before in report.new.items()],
            "gone": report.gone,
            "evidence": report.evidence,
            "notes": [*report.notes, *([report.consents.damaged] if report.consents.damaged else [])],
        }
    )


def verdict_word(report: Report) -> str:
    """One word for all: of several, the one that decides the exit code."""
    counts = report.counts()
    if report.failures:
        return "failed"
    if any(counts["worse"]):
        return "worse"
    if report.undecided or not report.whole:
        return "cannot tell"
    rest = "figures alone" if report.exact_only and report.changed and not report.alike else "no change"
    if not report.is_compared:
        rest = "repaired" if any(counts["repaired"]) else "new"
    return next((word for word in ("accepted", "better") if any(counts[word])), rest)


def _cell(report: Report, pairs: Pairs, judged: Judged) -> dict[str, Any]:
    cell, measured = pairs.cell, [*pairs.measurements.values()]
    timed = bool(measured)
    return {
        "cell": cell.key,
        "op": cell.op,
        "rung": cell.rung,
        "type": cell.type,
        "shape": label(cell.shape),
        "cache": cell.cache,
        "device": cell.device,
        "control": report.comparison is None or cell.key not in report.comparison.judged,
        "verdict": judged.word,
        "why": judged.why,
        "base_s": pairs.seconds(0) if timed else None,
        "head_s": pairs.seconds(1) if timed else pairs.alone_s,
        "change": judged.change if timed else None,
        "interval": list(judged.bounds) if timed else None,
        "detectable": judged.detectable if timed else None,
        "turns": len(measured),
        "turns_to_decide": _turns_to_decide(report, pairs, judged),
        "base_clock_mhz": _clock_mhz([base for base, _ in measured]),
        "head_clock_mhz": _clock_mhz([head for _, head in measured]),
        "limits": sorted({limit for both in measured for one in both for limit in one.get("throttled", ())}),
    }


def _turns_to_decide(report: Report, pairs: Pairs, judged: Judged) -> int | None:
    if report.comparison is None:
        return None
    low, high = judged.bounds
    level = FALSE_ALARMS / report.comparison.tests
    return turns_to_decide((1 + low, 1 + high), len(pairs.measurements), judged.why, level)


def _clock_mhz(measurements: Sequence[Measurement]) -> float | None:
    """The median SM clock of some processes, if they know it."""
    known = [mhz for one in measurements if (mhz := one.get("clock64_mhz"))]
    return statistics.median(known) if known else None


def _figure(difference: Difference) -> dict[str, Any]:
    series = difference.series

    def value(of: Value) -> float | None:
        return of if isinstance(of, float) else None

    why = [each for each in (difference.base, difference.head) if isinstance(each, str)]
    return {
        "series": str(series),
        "rung": series.rung,
        "unit": series.unit,
        "base": value(difference.base),
        "head": value(difference.head),
        "verdict": difference.verdict,
        "why": difference.why or "; ".join(why),
    }
