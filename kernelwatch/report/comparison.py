"""Print a comparison of two packages, in the terminal or as Markdown for a pull request."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from kernelwatch.comparison.exact import Difference, Value
from kernelwatch.comparison.paired import FALSE_ALARMS, SAME, Judged, Pairs
from kernelwatch.comparison.verdict import FEW, Report, plural, some
from kernelwatch.plan.problem import label
from kernelwatch.report import texts
from kernelwatch.report.rows import by_reason
from kernelwatch.timing import clocks

STYLES = {"gone": "yellow", "accepted": "yellow"} | {
    "worse": "red",
    "failed": "red",
    "better": "green",
    "repaired": "green",
    "cannot tell": "yellow",
}


def interval_text(judged: Judged) -> str:
    """The bounds of a change. An undecided cell has a digit more, since its bounds may lie next to a limit."""
    if not judged.ratio.half < 5:
        return "unknown"
    return texts.bounds_text(*judged.bounds, 3 if judged.word == "cannot tell" else 2)


def row(pairs: Pairs, judged: Judged, same: str = "", text: Callable[[float], str] = texts.time_text) -> list[str]:
    """A row of a table, after the name: both sides, the change, its interval, what could have been detected, and the
    verdict. `same`: what is added to it if both sides launch the same; `text`: of a figure."""
    if not pairs.measurements:
        return ["", text(pairs.seconds(1)), "", "", "", judged.word]
    times = [text(pairs.seconds(side)) for side in (0, 1)]
    as_factor = judged.bounds[1] >= 1 and judged.ratio.half < 5  # one unit for the whole row
    change = f"x{1 + judged.change:.3g}" if as_factor else texts.change_text(judged.change)
    detectable = "> 100 %" if judged.detectable > 1 else texts.change_text(judged.detectable).lstrip("+")
    word = f"{judged.word} {same}" if judged.why == SAME else judged.word
    return [*times, change, interval_text(judged), detectable, word]


@dataclass(frozen=True)
class _Beside:
    """A figure of a new rung, and that of the rung before it. `kind`: which figure it is; `place`: where it was
    taken."""

    kind: str
    rung: str
    place: str
    before: float
    new: float

    @property
    def text(self) -> Callable[[float], str]:
        return texts.time_text if self.kind == TIME else "{:g}".format


def _beside(report: Report) -> Iterator[_Beside]:
    """The figures of new rungs beside those of the rung before each: times, then exact figures that differ."""
    times = {pairs.cell: pairs.seconds(1) for pairs, _ in report.judged()}
    for rung, before in report.new.items():
        if not before:
            continue
        name = before.partition("/")[2]
        for cell, seconds in times.items():
            old = times.get(replace(cell, rung=name), math.nan)
            if cell.name == rung and seconds > 0 and old > 0:
                yield _Beside(TIME, rung, f"{cell.type} {label(cell.shape)} {cell.cache}", old, seconds)
        values = report.figures.values if report.figures else {}
        for series, value in values.items():
            beside = values.get(replace(series, where=(name, *series.where[1:])))
            if series.rung == rung and isinstance(value, float) and isinstance(beside, float) and value != beside:
                kind = f"{series.name.rpartition('.track_')[2]} ({series.unit})"
                if not (math.isnan(value) or math.isnan(beside)):
                    yield _Beside(kind, rung, " ".join(series.where[1:]), beside, value)


def _new_kinds(report: Report) -> list[list[_Beside]]:
    """The figures of new rungs by the rows of their table: those of a rung and a kind together if there are many."""
    every = list(_beside(report))
    if report.details or len(every) <= NEW_MOST:
        return [[each] for each in every]
    kinds: dict[tuple[str, str], list[_Beside]] = {}
    for each in every:
        kinds.setdefault((each.rung, each.kind), []).append(each)
    return [*kinds.values()]


def _new_rows(report: Report) -> list[list[str]]:
    rows = []
    for kind in _new_kinds(report):
        one = kind[0]
        is_ratio = (one.kind == TIME or len(kind) > 1) and all(each.before > 0 for each in kind)
        ratios = [each.new / each.before for each in kind] if is_ratio else []
        where = f"{one.rung} {_where([each.place for each in kind])}"
        both = [_range([each.before for each in kind], one.text), _range([each.new for each in kind], one.text)]
        rows.append([one.kind, where, *both, _range(ratios, "x{:.3g}".format)])
    return rows


def _range(values: list[float], text: Callable[[float], str]) -> str:
    """The least and the greatest of some values; one text if these look the same."""
    return " to ".join(dict.fromkeys(text(value) for value in (min(values), max(values)))) if values else ""


TIME = "time"  # the kind of figure that times are
NEW_MOST = 16  # rows of the table of new rungs; of more figures it has a row for each kind
NEW_TITLE = "new rungs, and the rung before each in the ladder"
NEW_HEADERS = ("figure", "where", "before", "new", "ratio")


def _reasons(judged: Iterable[tuple[Pairs, Judged]], word: str) -> dict[str, list[str]]:
    """The cells with this verdict, by the reason for it."""
    keys: dict[str, list[str]] = {}
    for pairs, verdict in judged:
        if verdict.word == word and verdict.why and "never hot" not in verdict.why:
            keys.setdefault(verdict.why, []).append(pairs.cell.key)
    return keys


def _cells_text(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{len(keys)} cells ({keys[0]}, ...)"


def _lines(report: Report) -> Iterator[str]:
    """The lines below the tables."""
    timed = report.judged()
    yield from report.absent
    for word in ("worse", "accepted", "cannot tell", "gone", "repaired", "new", "n/a"):
        for why, keys in _reasons(timed, word).items():
            yield f"{word}: {_cells_text(keys)}: {why}"
    for pair in report.differences:
        if pair.why:
            yield f"{pair.verdict}: {pair.series}: {pair.why}"
    if report.consents.damaged:
        yield f"note: {report.consents.damaged}; no regression counts as accepted"
    limits = {
        limit: pairs.cell.key
        for pairs, _ in timed
        for side in zip(*pairs.measurements.values(), strict=True)
        for limit in clocks.clock(side).limits
    }
    for limit, key in limits.items():
        yield f"limit met: {limit} (last at {key})"
    kinds = _new_kinds(report)
    if (count := sum(map(len, kinds))) > len(kinds):
        rows = plural(len(kinds), "row")
        yield f"new rungs: {count} figures in {rows}, one for each kind; --details shows all of them"
    yield from launch_lines(report)
    for rung, files in list(report.changed.items())[:FEW]:
        yield f"changed: {rung}: {some(files)}"
    if len(report.changed) > FEW:
        yield f"changed: {len(report.changed) - FEW} more launches"
    if report.evidence:
        yield f"evidence: {report.evidence}"
    yield from (f"note: {note}" for note in report.notes)
    if report.comparison and any(pairs.measurements for pairs, _ in timed):
        yield (
            f"{report.comparison.turns} turns; intervals are in percent or factors, and hold for all cells together in "
            f"{100 - 100 * FALSE_ALARMS:g} % of runs; detectable: the smallest change that this run could have shown; "
            "=: both sides launch the same"
        )


def launch_lines(report: Report) -> Iterator[str]:
    """What to know of how cells were launched: those timed by events, new choices of autotuners, and memory."""
    by_events = []
    for pairs, _ in report.judged():
        sides = list(zip(*pairs.measurements.values(), strict=True))
        if any("timed_by" in measurement for side in sides for measurement in side):
            by_events.append(pairs.cell.key)
        chosen = [
            "; ".join(sorted({choice for each in side for choice in each.get("configurations", ())})) or "nothing"
            for side in sides
        ]
        if len(set(chosen)) > 1:
            yield f"autotuned anew: {pairs.cell.key}: {' -> '.join(chosen)}"
        peaks = [max((each.get("peak_allocated_bytes", 0) for each in side), default=0) for side in sides]
        if len(set(peaks)) > 1:
            yield f"allocates otherwise: {pairs.cell.key}: {' -> '.join(map(str, peaks))} bytes at once"
    if by_events:
        yield f"timed by events, with the host's part: {_cells_text(by_events)}"


def _places(differences: list[Difference]) -> dict[tuple[str, str, str, str, str], list[str]]:
    """Exact figures that differ in the same way form one row: (series, rung, base, head, verdict) -> places."""
    rows: dict[tuple[str, str, str, str, str], list[str]] = {}
    for difference in differences:
        series = difference.series
        base, head = map(_value_text, (difference.base, difference.head))
        name = series.name.rpartition(".track_")[2]
        row = (f"{name} ({series.unit})", series.rung, base, head, difference.verdict)
        rows.setdefault(row, []).append(" ".join(series.where[1:]))
    return rows


def _value_text(value: Value) -> str:
    if not isinstance(value, float):
        return "failed"
    return "n/a" if math.isnan(value) else f"{value:g}"


def _where(places: list[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _table(title: str, headers: tuple[str, ...]) -> Table:
    """An empty table that fits 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, title=title, title_justify="left")
    for header in headers:
        table.add_column(header, justify="left" if header in ("cell", "figure", "series", "where", "") else "right")
    return table


def show(report: Report, console: Console) -> None:
    """Print a report; if something failed, only that."""
    console.print(report.what, markup=False, highlight=False)
    if report.failures:
        _show_failures(report, console)
        return
    by_rung: dict[str, list[tuple[Pairs, Judged]]] = {}
    for pairs, judged in _timed(report):
        name = f"{pairs.cell.name} {pairs.cell.type}, {pairs.cell.device.upper()}"
        if report.comparison and pairs.cell.key not in report.comparison.judged:
            name += " (control)"
        by_rung.setdefault(name, []).append((pairs, judged))
    for name, rows in by_rung.items():
        table = _table(
            name, ("cell", report.base.name, report.head.name, "change", "interval", "detectable\nturns", "")
        )
        for pairs, judged in rows:
            where = f"{label(pairs.cell.shape)} {pairs.cell.cache}"
            table.add_row(where, *row(pairs, judged, "="), style=STYLES.get(judged.word))
        console.print(table)
    if report.differences:
        table = _table("exact figures", ("series", "where", report.base.name, report.head.name, ""))
        for (series, rung, base, head, verdict), places in _places(report.differences).items():
            table.add_row(series, f"{rung} {_where(places)}", base, head, verdict, style=STYLES.get(verdict))
        console.print(table)
    if new := _new_rows(report):
        table = _table(NEW_TITLE, NEW_HEADERS)
        for texts_of_row in new:
            table.add_row(*texts_of_row)
        console.print(table)
    if report.compared:
        console.print(f"{report.compared} exact figures compared, {len(report.differences)} differ", highlight=False)
    for line in _lines(report):
        console.print(line, markup=False, highlight=False, style="yellow" if line.startswith("cannot tell") else None)
    console.print(report.summary, markup=False, highlight=False, style="bold")


def _timed(report: Report) -> list[tuple[Pairs, Judged]]:
    """The cells that have times, with their verdicts."""
    return [(pairs, judged) for pairs, judged in report.verdicts() if pairs.measurements or pairs.alone_s]


def _show_failures(report: Report, console: Console) -> None:
    for why, keys in by_reason(report.failures.items()).items():
        text = f"{report.head.name} failed: {_cells_text(keys)}: {why}"
        console.print(text, style="red", markup=False, highlight=False)
    console.print("nothing else is compared before this is right")


Document = dict[str, Any]
VERSION = 1  # of what `document` returns


def document(report: Report) -> Document:
    """The report as data, of which each text is plain: its summary, what was compared, tables and lines.

    A table has a title, headers, rows, and the indexes of the columns that are figures.
    """
    names, tables = (report.base.name, report.head.name), []
    if report.failures:
        failed = by_reason(report.failures.items()).items()
        lines = [f"{', '.join(keys)}: {why}" for why, keys in failed]
        return made(f"{names[1]} failed", report.what, [], lines)
    if timed := _timed(report):
        heads = ["cell", *names, "change", "interval", "detectable, turns", "verdict"]
        rows = [[pairs.cell.key, *row(pairs, judged, f"({SAME})")] for pairs, judged in timed]
        tables.append({"title": "", "headers": heads, "figures": [1, 2, 3, 4, 5], "rows": rows})
    if report.differences:
        heads = ["exact figure", "where", *names, "verdict"]
        rows = [
            [series, f"{rung} {_where(places)}", base, head, verdict]
            for (series, rung, base, head, verdict), places in _places(report.differences).items()
        ]
        tables.append({"title": "", "headers": heads, "figures": [2, 3], "rows": rows})
    if new := _new_rows(report):
        tables.append({"title": NEW_TITLE, "headers": list(NEW_HEADERS), "figures": [1, 2, 3, 4], "rows": new})
    lines = [f"{report.compared} exact figures compared, {len(report.differences)} differ"] if report.compared else []
    return made(report.summary, report.what, tables, [*lines, *_lines(report)])


def made(summary: str, what: str, tables: list[dict[str, Any]], lines: list[str]) -> Document:
    return {"version": VERSION, "summary": summary, "what": what, "tables": tables, "lines": lines}


def as_markdown(found: Document) -> str:
    """A document as Markdown."""
    parts = [f"**{found['summary']}** ({found['what']})"]
    for table in found["tables"]:
        marks = ["---:" if at in table["figures"] else "---" for at in range(len(table["headers"]))]
        is_keyed = table["headers"][0] in ("cell", "benchmark")
        rows = [[f"`{each[0]}`", *each[1:]] if is_keyed else each for each in table["rows"]]
        lines = ["| " + " | ".join(line) + " |" for line in (table["headers"], marks, *rows)]
        parts.append("\n".join([*([f"{table['title']}:\n"] if table["title"] else []), *lines]))
    parts.append("\n".join(f"- {line}" for line in found["lines"]))
    return "\n\n".join(part for part in parts if part)
