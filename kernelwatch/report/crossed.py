"""Print how a step is split between a commit and an environment, in the terminal or as Markdown."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from kernelwatch.comparison.crossed import Crossed, blame
from kernelwatch.comparison.paired import Judged
from kernelwatch.report import comparison, texts
from kernelwatch.report.comparison import STYLES, Document, made

TITLE = "whose change it is"
WHOSE = "whose"


def _text(judged: Judged | None) -> str:
    """A verdict of an edge, with the change if it was measured."""
    if judged is None:
        return "same launch"
    known = judged.ratio.half < 5
    return f"{texts.change_text(judged.change)} {judged.word}" if known else judged.word


def _rows(crossed: Crossed) -> Iterator[list[str]]:
    for key, verdicts in crossed.verdicts().items():
        yield [key, *map(_text, verdicts), blame(verdicts)]


def _summary(crossed: Crossed) -> str:
    return "; ".join(f"{what}: {report.summary}" for what, report in crossed.edges.items())


def show(crossed: Crossed, console: Console) -> None:
    """Print the four comparisons, and whose each change is."""
    console.print(crossed.what, markup=False, highlight=False, soft_wrap=True)
    for report in crossed.edges.values():
        console.print()
        comparison.show(report, console)
    if rows := list(_rows(crossed)):
        console.print()
        table = Table(
            box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, title=TITLE, title_justify="left"
        )
        for header in ("cell", *crossed.edges, WHOSE):
            table.add_column(header, justify="left" if header in ("cell", WHOSE) else "right")
        for row in rows:
            table.add_row(*row, style=STYLES["cannot tell"] if row[-1] == "cannot tell" else None)
        console.print(table, markup=False)


def document(crossed: Crossed) -> Document:
    """The report as data, as `comparison.document`: the four comparisons in one."""
    tables, lines = [], []
    if rows := list(_rows(crossed)):
        headers = ["cell", *crossed.edges, WHOSE]
        tables.append({"title": TITLE, "headers": headers, "figures": [1, 2, 3, 4], "rows": rows})
    for what, report in crossed.edges.items():
        own = comparison.document(report)
        tables += [{**table, "title": f"{what}{table['title'] and ': '}{table['title']}"} for table in own["tables"]]
        lines += [f"{what}: {line}" for line in own["lines"]]
    return made(_summary(crossed), crossed.what, tables, lines)
