"""Print the ladder in the terminal: tables, changes since an earlier commit, and why cells have no figure."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table

from kernelwatch.history.records import CellChange, Measured, Record, conditions
from kernelwatch.plan.cells import rungs
from kernelwatch.plan.problem import Shape, label
from kernelwatch.plan.project import Project
from kernelwatch.report.rows import Section, reasons, sections
from kernelwatch.report.texts import (
    best_copy,
    detectable,
    headers,
    percent,
    rate_and_share,
    record_text,
    row_texts,
    size_text,
)
from kernelwatch.run.outcome import alike
from kernelwatch.timing import nvml


def show(
    record: Record,
    project: Project,
    console: Console,
    ops: list[str],
    type: str | None = None,
    shape: Shape | None = None,
    device: str = "",
) -> None:
    """Print a record's tables, then why cells have no figure.

    `shape`: tables of this shape with everything that is known of a cell; None for one table of all shapes for each op
    and cache state. `device`: "gpu" or "cpu", "" for the GPU if it was measured.
    """
    every = sections(record, project, ops, [shape] if shape else None, type)
    device = device or ("gpu" if any(section.device == "gpu" for section in every) else "cpu")
    shown = [section for section in every if section.device == device]
    for device in dict.fromkeys(section.device for section in shown):
        console.print(f"{device.upper()}: {record_text(record, device)}", markup=False, highlight=False)
    for error in dict.fromkeys(facts["nvml"] for facts in record.facts.values() if facts.get("nvml", "ok") != "ok"):
        console.print(
            f"note: measured without NVML's facts (clocks, limits, power): {error}", style="yellow", markup=False
        )
    for group, facts in record.facts.items():
        why = nvml.disturbed(facts.get("others"))
        if why:
            console.print(f"note: {group}: {why}: its figures may be disturbed", style="yellow", markup=False)
    groups: dict[str, list[Section]] = {}
    for section in (own for mixed in shown for own in mixed.by_kind()):
        groups.setdefault(section.group, []).append(section)
    for title, found in groups.items():
        if len(found) == 1:
            print_section(found[0], console)
        else:
            print_shapes(title, found, console)
    show_reasons((cell for cell in record.cells.values() if cell.key.partition("/")[0] in ops), console)


def print_shapes(title: str, group: list[Section], console: Console) -> None:
    """Print the sections of several shapes as one table, or as several if the terminal is narrow: rates, and what share
    they are of the rate that they are held against."""
    problem, device = group[0].problem, group[0].device
    unit, *against = headers(group[0])[3:-1]
    order = rungs(problem, device)
    names = dict.fromkeys(row.rung for section in group for row in section.rows)
    in_order = sorted(names, key=lambda name: order.index(name.split(" ")[0]))
    texts = {
        label(section.shape): {row.rung: rate_and_share(row) for row in section.rows} for section in group
    }  # by shape, then by rung
    spreads = [row.cell.spread for section in group for row in section.rows if len(row.cell.seconds) > 1]
    notes = [f"spread between processes: at most {percent(max(spreads), 2)}"] if spreads else []
    if any("*" in text for column in texts.values() for text in column.values()):
        notes.append("*: under a clock or power limit")
    if any("~" in text for column in texts.values() for text in column.values()):
        notes.append("~: timed by events, with the host's part; it cannot be captured in a CUDA graph")
    if against and any(row.share > 1 for section in group for row in section.rows):
        notes.append(f"above 100 %: faster than {against[0].removeprefix('of ')}, which is no bound")
    notes.append("one shape in detail: --shape")
    parts: list[list[str]] = [[]]
    width = names_width = max(map(len, in_order)) + 4
    for shape, column in texts.items():
        own = max(len(shape), *(len(text) for text in column.values())) + 3
        if parts[-1] and width + own > console.width:
            parts.append([])
            width = names_width
        parts[-1].append(shape)
        width += own
    share = f" and share {against[0]}" if against else ""
    console.print(f"{title}: {unit}{share}", style="italic", markup=False)
    for shapes in parts:
        table = Table()
        table.add_column("rung")
        for shape in shapes:
            table.add_column(shape, justify="right", no_wrap=True)
        for rung in in_order:
            table.add_row(rung, *(texts[shape].get(rung, "") for shape in shapes))
        console.print(table)
    console.print("; ".join(notes), style="dim", markup=False)


def print_section(section: Section, console: Console) -> None:
    """Print one table."""
    caption = best_copy(section.rows) or None
    table = Table(title=section.title, caption=caption, title_justify="left", caption_justify="left")
    columns = headers(section)
    for header in columns:
        table.add_column(header, justify="left" if header == "rung" else "right")
    for row in section.rows:
        table.add_row(*row_texts(row, len(columns)), style="red" if row.cell.state != "ok" else None)
    console.print(table)
    for row in section.rows:
        for note in row.cell.notes:
            console.print(f"{row.rung}: {note}", style="dim", markup=False)


def show_changes(before: Record, after: Record, console: Console, sizes: Mapping[str, float] | None = None) -> None:
    """Print the cells that changed since an earlier record by more than the minimum detectable change, one per line,
    the largest change first. `sizes`: by cell, those of the events at this commit, which are told as the pages do."""
    same = {group: alike(conditions(before, group), conditions(after, group)) for group in after.facts}
    compared = [
        (cell, before.cells[cell.key])
        for cell in after.cells.values()
        if cell.seconds and cell.key in before.cells and before.cells[cell.key].seconds and same.get(cell.group)
    ]
    other = sorted(group for group, known in same.items() if not known and before.facts.get(group))
    if other:
        why = "another GPU, CPU, driver, compiler, package or harness"
        console.print(f"since {before.commit}: {', '.join(other)} not compared: {why}", markup=False)
    if not compared:
        return
    changes = [(cell.key, CellChange.between(old, cell)) for cell, old in compared]
    changed = [(key, change) for key, change in changes if change.verdict]
    changed.sort(key=lambda pair: -abs(pair[1].ratio - 1))
    console.print(
        f"since {before.commit}: {len(changed)} of {len(changes)} cells changed by more than two runs detect",
        markup=False,
    )
    for key, change in changed:
        size = (sizes or {}).get(key)
        console.print(
            f"  {key}: {size_text(change.ratio - 1 if size is None else size)}, {change.verdict} "
            f"({'an event; ' if size is not None else ''}two runs detect {detectable(change.detectable)})",
            style="red" if change.ratio > 1 else "green",
            markup=False,
        )
    for cell, old in compared:
        if cell.configurations != old.configurations:
            was, now = ("; ".join(each.configurations) or "nothing" for each in (old, cell))
            console.print(f"  {cell.key}: autotuned anew: {was} -> {now}", style="yellow", markup=False)


def show_reasons(cells: Iterable[Measured], console: Console) -> None:
    """Print why cells failed or are n/a, one line per reason."""
    every = list(cells)
    for state, words in (("failed", "failed"), ("na", "n/a")):
        for reason, keys in reasons(every, state).items():
            if state == "failed" or "never hot" not in reason:
                what = keys[0] if len(keys) == 1 else f"{len(keys)} cells ({keys[0]}, ...)"
                console.print(
                    f"{words}: {what}: {reason}", style="red" if state == "failed" else "yellow", markup=False
                )
