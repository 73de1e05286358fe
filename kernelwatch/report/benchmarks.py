"""Print the comparison of two commits of a project that asv benchmarks, in the terminal or as Markdown."""

from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.table import Table

from kernelwatch.comparison.benchmarks import Report
from kernelwatch.comparison.paired import FALSE_ALARMS, Judged
from kernelwatch.report import texts
from kernelwatch.report.comparison import STYLES, Document, made, row
from kernelwatch.report.rows import by_reason

REASONS = ("failed", "cannot tell", "gone", "repaired", "new", "n/a")
HEADERS = ("change", "interval", "detectable, turns", "verdict")


def value_text(unit: str, value: float) -> str:
    """A value of a benchmark with its unit, scaled if that is seconds or bytes."""
    if unit == "seconds":
        return texts.time_text(value)
    if unit == "bytes" and value >= 1e6:
        return f"{value / 1e6:.4g} MB"
    return f"{value:.4g} {unit}"


def _rows(report: Report) -> Iterator[tuple[str, Judged, list[str]]]:
    """The benchmarks that have values, with their verdicts and the texts of their rows."""
    for place, turns in report.turns.items():
        for pairs, judged in turns.verdicts():
            if pairs.measurements or pairs.alone_s:
                unit = turns.cells[pairs.cell.key].unit
                yield report.named(place, pairs.cell.key), judged, row(pairs, judged, text=partial(value_text, unit))


def _lines(report: Report) -> Iterator[str]:
    """The lines below the table."""
    for word in REASONS:
        named = {
            report.named(place, pairs.cell.key): judged.why
            for place, pairs, judged in report.judged()
            if judged.word == word and judged.why
        }
        for why, keys in by_reason(named.items()).items():
            name = keys[0] if len(keys) == 1 else f"{len(keys)} benchmarks ({keys[0]}, ...)"
            yield f"{word}: {name}: {why}"
    yield from (f"note: {note}" for note in report.notes)
    if taken := max((turns.turns for turns in report.turns.values()), default=0):
        yield (
            f"{taken} turns; intervals are in percent or factors, and hold for all benchmarks together in "
            f"{100 - 100 * FALSE_ALARMS:g} % of runs; detectable: the smallest change that this run could have "
            "shown"
        )


def document(report: Report) -> Document:
    """The report as data, as `comparison.document`."""
    rows = [[name, *own] for name, _, own in _rows(report)]
    heads = ["benchmark", *report.names, *HEADERS]
    tables = [{"title": "", "headers": heads, "figures": [1, 2, 3, 4, 5], "rows": rows}] if rows else []
    return made(report.summary, report.what, tables, list(_lines(report)))


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.print(report.what, markup=False, highlight=False)
    rows = list(_rows(report))
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
        for header in ("benchmark", *report.names, *HEADERS):
            table.add_column(
                header.replace(", ", "\n"), justify="left" if header in ("benchmark", "verdict") else "right"
            )
        for name, judged, own in rows:
            table.add_row(name, *own, style=STYLES.get(judged.word))
        console.print(table, markup=False)
    for line in _lines(report):
        style = next((STYLES[word] for word in ("failed", "cannot tell") if line.startswith(word)), None)
        console.print(line, markup=False, highlight=False, style=style)
    console.print(report.summary, markup=False, highlight=False, style="bold")
