"""Write the ladder as Markdown, for a README or an issue."""

from kernelwatch.history.records import Record
from kernelwatch.plan.problem import Shape
from kernelwatch.plan.project import Project
from kernelwatch.report.rows import sections
from kernelwatch.report.texts import best_copy, headers, record_text, row_texts


def markdown(
    record: Record,
    project: Project,
    ops: list[str],
    shapes: list[Shape] | None = None,
    type: str | None = None,
    device: str = "",
) -> str:
    """The tables of a record as Markdown, of all devices or of the one that is named."""
    parts = []
    every = sections(record, project, ops, shapes, type, device)
    for section in (own for mixed in every for own in mixed.by_kind()):
        columns = headers(section)
        lines = [
            f"**{section.title}** ({record_text(record, section.device)})",
            "",
            "| " + " | ".join(columns) + " | what it does |",
            "| --- |" + " ---: |" * (len(columns) - 1) + " --- |",
        ]
        lines += ["| " + " | ".join((*row_texts(row, len(columns)), row.idea)) + " |" for row in section.rows]
        parts.append("\n".join([*lines, "", best_copy(section.rows)]).strip())
    return "\n\n".join(parts)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table: names on the left, figures on the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
