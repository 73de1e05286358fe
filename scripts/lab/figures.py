#!/usr/bin/env python3
"""Writes the figures in README.md and docs/ from results/, between marks; no figure is typed by hand."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.project import PROJECT
from kernelwatch.commands.noise import beside
from kernelwatch.history import links
from kernelwatch.history.records import Record, read, sidecars
from kernelwatch.plan.problem import Shape, label
from kernelwatch.report import rows, terminal
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import markdown, table
from kernelwatch.report.rows import Row, ladder
from kernelwatch.report.texts import rate_text, record_text
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from lab import bars, picture
from lab import counters as ncu

MATMUL = PROJECT.op("matmul")
TURNED = (4096, 4096)
VERSUS = PROJECT.root / "docs" / "versus.txt"  # the output of scripts/versus on a GPU
CUBES = tuple(shape for shape in MATMUL.shapes if len(set(shape)) == 1)
OTHERS = tuple(shape for shape in MATMUL.shapes if shape not in CUBES)
CLIMBS = {  # type -> rungs that differ from the one before by one idea each
    "float32": (
        "thread_tile_2d",
        "vector_loads",
        "double_buffer",
        "async_stages",
        "serpentine",
        "pipelined",
        "raster",
        "split_tail",
    ),
    "float16->float32": (
        "wmma",
        "wgmma_plain",
        "wgmma_tma",
        "wgmma_stages",
        "wgmma_tma_store",
        "wgmma_specialized",
        "wgmma_persistent",
        "wgmma_cache_hints",
        "wgmma",
    ),
}
FLOAT8 = {  # what each is held against
    "wgmma_fp8": "torch_fp8",
    "wgmma_fp8_promoted": "torch_fp8_promoted",
    "wgmma_fp8_64x128": "torch_fp8",
    "wgmma_fp8_64x64": "torch_fp8",
}
STORES = {  # commit -> what it did to the stores of vectors; the rungs from vector_loads on have these steps one by one
    "9602e747": "joined",
    "042bf0a4": "sums copied",
    "fa7dcc58": "as integers",
    "bcd524dd": "joined, sums copied",
    "c2815845": "parts joined",
}
PRINTED = ((4096, 4096), (16411, 8209))  # the shapes of the transposes in README.md
WRITER = "scripts/lab/figures"


def marks(name: str, writer: str = WRITER) -> tuple[str, str]:
    """The marks at the beginning and the end of a block."""
    return f"<!-- {name}: written by {writer} -->", f"<!-- end of {name} -->"


def write_block(path: Path, name: str, text: str, writer: str = WRITER) -> None:
    """Replace the text between a block's marks in a file. Raises: SystemExit if the file lacks the marks."""
    old = path.read_text(encoding="utf-8")
    begin, end = marks(name, writer)
    start, stop = old.find(begin), old.find(end)
    if start < 0 or stop < start:
        raise SystemExit(f"{path.name}: no place for {name}; put {begin} and {end} where it belongs")
    path.write_text(f"{old[: start + len(begin)]}\n\n{text}\n\n{old[stop:]}", encoding="utf-8")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a laboratory's record as JSON in which each list of numbers is a line."""
    lines = json.dumps(record, indent=1)
    write_whole(path, re.sub(r"\n( {4,}| {3}(?=\]))", " ", lines) + "\n")


def who(record: Record, device: str) -> str:
    """The device and the commit of a record, in parentheses."""
    return f"({record_text(record, device)})"


def rate(row: Row | None, digits: int = 0) -> str:
    """A row's rate and its share, such as of the vendor's rate, with so many decimals; "n/a" without a time."""
    if row is None or not row.cell.seconds:
        return "n/a"
    share = "" if math.isnan(row.share) else f" ({100 * row.share:.{digits}f} %)"
    mark = " *" if row.cell.limits else ""
    return f"{rate_text(row.rate)}{share}{mark}"


def taught(published: Mapping[str, float], n: int) -> str:
    """The lecture's figure for n as GFLOP/s, "" if there is none. `published`: milliseconds by n."""
    return rate_text(2 * n**3 / (published[str(n)] * 1e-3)) if str(n) in published else ""


def squares(record: Record, device: str) -> str:
    """The ladder of matmul at the square shapes, next to the lecture's figures."""
    sizes = [shape for shape in CUBES if shape in MATMUL.timed(device, quick=False)]
    by_size = {shape: rows_of(record, device, shape) for shape in sizes}
    published = {rung.name: rung.published_ms for rung in MATMUL.rungs}
    header, rows = ["rung"], []
    for shape in sizes:
        header += [f"n = {shape[0]}", *(["lecture"] if any(str(shape[0]) in ms for ms in published.values()) else [])]
    for name in dict.fromkeys(name for rows_at_size in by_size.values() for name in rows_at_size):
        line = [name]
        for shape in sizes:
            line.append(rate(by_size[shape].get(name)))
            if any(str(shape[0]) in ms for ms in published.values()):
                line.append(taught(published[name.split(" ")[0]], shape[0]))
        rows.append(line)
    title = f"**matmul n x n x n, cold, {device.upper()}: GFLOP/s (share of {held_against(device)})**"
    return f"{title} {who(record, device)}\n\n{table(header, rows)}"


def held_against(device: str) -> str:
    """What the shares of a device's tables are of."""
    others = ", ".join(name for name in MATMUL.vendors if MATMUL.rung(name).device == device)
    return f"{MATMUL.held_against(device)}{f', or of {others} for what it does not compute' if others else ''}"


def rows_of(record: Record, device: str, shape: Shape, type: str | None = None) -> dict[str, Row]:
    """The rows of matmul's ladder at one shape, cold, by rung."""
    return {row.rung: row for row in ladder(record, MATMUL, device, shape, "cold", type)}


def shapes(record: Record) -> str:
    """The table of the shapes that are not square."""
    by_shape = {shape: rows_of(record, "gpu", shape) for shape in OTHERS}
    names = dict.fromkeys(name for rows in by_shape.values() for name in rows)
    lines = [[name, *(rate(by_shape[shape].get(name)) for shape in OTHERS)] for name in names]
    title = f"**matmul M x N x K, cold, GPU: GFLOP/s (share of {held_against('gpu')})** {who(record, 'gpu')}\n\n"
    return title + table(["rung", *(label(shape) for shape in OTHERS)], lines)


def float8(record: Record) -> str:
    """The table of the products of float8, each rung beside the vendor's that sums alike; "" without a cell."""
    lines = [[name] for name in FLOAT8]
    for shape in MATMUL.shapes:
        rows_here = {name.partition(" ")[0]: row for name, row in rows_of(record, "gpu", shape).items()}
        for line, (name, vendor) in zip(lines, FLOAT8.items(), strict=True):
            row = rows_here.get(name)
            if row and vendor in rows_here:
                row = replace(row, share=row.rate / rows_here[vendor].rate)
            line.append(rate(row))
    lines = [line for line in lines if set(line[1:]) != {"n/a"}]
    if not lines:
        return ""
    title = f"**matmul, float8, cold, GPU: GFLOP/s (share of the vendor's like)** {who(record, 'gpu')}\n\n"
    return title + table(["rung", *map(label, MATMUL.shapes)], lines)


def by_type(record: Record) -> str:
    """The table of the element types that were timed, at the shape at which all of them are."""
    shape = MATMUL.element_shape
    rows_by_type = {type: rows for type in MATMUL.types if (rows := rows_of(record, "gpu", shape, type))}
    names = dict.fromkeys(name for rows in rows_by_type.values() for name in rows)
    lines = [[name, *(rate(rows_by_type[type].get(name)) for type in rows_by_type)] for name in names]
    title = f"**matmul {label(shape)}, cold, GPU: GFLOP/s (share of {held_against('gpu')})** {who(record, 'gpu')}\n\n"
    return title + table(["rung", *rows_by_type], lines)


def climbs(record: Record) -> str:
    """The tables of the steps in CLIMBS at large squares: rates, and each step's gain, as its rate over the one before;
    "" without a cell."""
    parts = []
    for type, names in CLIMBS.items():
        by_shape = {shape: rows_of(record, "gpu", shape, type) for shape in CUBES[-3:]}
        header = ["rung", *(title for shape in by_shape for title in (f"n = {shape[0]}", "gain"))]
        lines = []
        for before, name in zip(("", *names), names, strict=False):
            cells = [(rows.get(before), rows.get(name)) for rows in by_shape.values()]
            lines.append(
                [name, *(text for old, new in cells for text in (rate(new), gain(old, new) if before else ""))]
            )
        if any(name in rows for rows in by_shape.values() for name in names):
            title = f"**matmul n x n x n, {type}, cold, GPU: GFLOP/s (share of {MATMUL.held_against('gpu')})**"
            parts.append(f"{title} {who(record, 'gpu')}\n\n{table(header, lines)}")
    return "\n\n".join(parts)


def climber(records: list[Record]) -> Record | None:
    """The newest record that has every step of CLIMBS, on whatever GPU."""
    steps = {f"matmul/{name} {type} " for type, names in CLIMBS.items() for name in names}

    def has_all(record: Record) -> bool:
        known = {key[: key.rindex(" ", 0, key.rindex(" ")) + 1] for key, cell in record.cells.items() if cell.seconds}
        return steps <= known

    return next(filter(has_all, reversed(records)), None)


def gain(before: Row | None, row: Row | None) -> str:
    """How many times the rate of another row a row has."""
    if before is None or row is None or not before.cell.seconds or not row.cell.seconds:
        return "n/a"
    return f"x {row.rate / before.rate:.2f}"


def stores(folder: Path) -> str:
    """The table of what the commits in STORES changed, by rung: the median of its linked cold shapes, the least and the
    most; "" without a link. If several sessions linked a cell of a commit, the newest counts."""
    changes: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))  # rung, commit, cell: log
    gpus = []
    for session in sorted(links.read(folder)[0], key=lambda each: each.at):
        if session.kind == "step" and session.after[:8] in STORES:
            for link in session.changed:
                if link.cell.endswith(" cold"):
                    changes[link.cell.split()[0].partition("/")[2]][session.after[:8]][link.cell] = link.log
            gpus.append(f"{session.gpu} of {session.at[:10]}")

    def told(logs: Sequence[float]) -> str:
        low, middle, high = (100 * math.expm1(value) for value in (min(logs), statistics.median(logs), max(logs)))
        return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"

    rows = []
    for rung, by_commit in sorted(changes.items(), key=lambda one: ladder_place(one[0])):
        for commits in (tuple(STORES)[:3], *((commit,) for commit in tuple(STORES)[3:])):
            own = [by_commit[commit] for commit in commits if commit in by_commit]
            if own:
                cells = set.intersection(*map(set, own))
                together = told([sum(one[cell] for one in own) for cell in cells])
                steps = "; ".join(f"{STORES[commit]}: {told([*by_commit[commit].values()])}" for commit in commits)
                rows.append([rung, str(len(cells)), steps if len(own) > 1 else STORES[commits[0]], together])
    heads = ["rung", "cold shapes", "commits", "all of it"]
    return f"{', '.join(dict.fromkeys(gpus))}\n\n{table(heads, rows)}" if rows else ""


def ladder_place(rung: str) -> int:
    """Where a product's rung stands in the ladder; after all others if it has left it."""
    names = [each.name for each in MATMUL.rungs]
    return names.index(rung) if rung in names else len(names)


def transposed(record: Record, places: Mapping[str, tuple[str, Shape]], title: str) -> str:
    """A table of the transposes, cold, with shares of the fastest copy of any kind; "" without a cell. `places`: the
    type and shape of a column by its header."""
    problem = PROJECT.op("transpose")
    copies = [name for name, line in problem.lines.items() if line.computes == "copy"]
    columns: dict[str, dict[str, str]] = {}
    for header, (type, shape) in places.items():
        found = {row.rung: row for row in ladder(record, problem, "gpu", shape, "cold", type) if row.cell.seconds}
        if best := max((found[name].rate for name in copies if name in found), default=0.0):
            columns[header] = {name: rate(replace(row, share=row.rate / best), 1) for name, row in found.items()}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    if not names:
        return ""
    lines = [[name, *(column.get(name, "n/a") for column in columns.values())] for name in names]
    head = f"**transpose {title}, cold, GPU: GB/s (share of the best copy)** {who(record, 'gpu')}\n\n"
    return head + table(["rung", *columns], lines)


def transposed_by_type(record: Record) -> str:
    """The table of the transposes' element types, at the shape at which all of them are timed."""
    return transposed(record, {type: (type, TURNED) for type in PROJECT.op("transpose").types}, label(TURNED))


def transposed_by_size(record: Record) -> str:
    """The table of the transposes of float32 at every shape."""
    type, *_ = PROJECT.op("transpose").types
    return transposed(record, {label(shape): (type, shape) for shape in PROJECT.op("transpose").shapes}, type)


def counters(record: Record, folder: Path, file: str) -> str:
    """The tables of Nsight Compute's counters in a file of docs/. A rung without counters is left out, and so is a
    column that no rung of a table has."""
    path = folder / record.machine / "counters.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {entry["key"]: entry["metrics"] for entry in map(json.loads, lines)}
    parts = []
    for wanted in ncu.TABLES[file]:
        counted = {rung: known[key] for key, rung in zip(wanted.keys, wanted.rungs, strict=True) if key in known}
        names = {title: ncu.METRICS[title][0] for title in wanted.columns}
        titles = [title for title, name in names.items() if any(name in metrics for metrics in counted.values())]
        rows = [
            [rung, *(ncu.text(title, metrics[names[title]]) if names[title] in metrics else "" for title in titles)]
            for rung, metrics in counted.items()
        ]
        if rows:
            parts.append(f"**{wanted.op} {wanted.title}**\n\n" + table(["rung", *titles], rows))
    return "\n\n".join(parts)


def access(path: Path) -> str:
    """The emulator's counts and the compile-time figures next to Nsight Compute's, as scripts/profile recorded them."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {name: None for entry in entries for name in entry["compared"]}
    reasons = Counter(reason for entry in entries for *_, reason in entry["compared"].values())
    rows = []
    for entry in entries:
        texts = [
            str(own) if reason == "=" else f"{own} ({nsight:.0f}: {reason})"
            for own, nsight, reason in (entry["compared"][name] for name in names)
        ]
        rows.append([entry["key"].rpartition(" ")[0], *texts])
    others = ", ".join(f"{count} by the rule *{reason}*" for reason, count in reasons.items() if reason != "=")
    where = f"{entries[0]['arch']}, {path.parent.name.split('.')[0]}; {entries[0]['compiler']}"
    summary = (
        f"{len(entries)} launches ({where}): {reasons['=']} of {reasons.total()} figures are equal; {others} differ."
    )
    return f"{summary}\n\n" + table(["launch", *(name.replace("_", " ") for name in names)], rows)


def between(record: Record, folder: Path) -> str:
    """The table of the record of scripts/lab/between, "" if there is none."""
    path = folder / record.machine / "between_grids.jsonl"
    if not path.exists():
        return ""
    measured = json.loads(path.read_text(encoding="utf-8"))
    run, n = measured["median_run"], measured["edge"]
    copies = run["upload_seconds"] + run["download_seconds"]
    lines = [
        ["matrices", f"3 of {n} x {n} {measured['type']}, {measured['matrices_bytes'] / 2**30:.1f} GiB"],
        ["device memory allowed", f"{measured['limit_bytes'] / 2**30:.1f} GiB"],
        ["inner rung", measured["inner"]],
        ["whole product", f"{run['seconds']:.3f} s, {2 * n**3 / run['seconds'] / 1e12:.2f} TFLOP/s"],
        ["the same with all three on the GPU", f"{2 * n**3 / measured['in_core_s'] / 1e12:.2f} TFLOP/s"],
        ["share of the in-core rate", f"{100 * measured['share_of_in_core']:.1f} %"],
        ["products, by events", f"{run['compute_seconds']:.3f} s"],
        ["uploaded", f"{run['upload_bytes'] / 2**30:.1f} GiB in {run['upload_seconds']:.3f} s"],
        ["downloaded", f"{run['download_bytes'] / 2**30:.1f} GiB in {run['download_seconds']:.3f} s"],
        ["copy time hidden", f"{100 * measured['hidden_share']:.1f} % of {copies:.3f} s"],
    ]
    return table([f"between grids, {record.machine.split('.')[0]}", "figure"], lines)


def reached(records: Sequence[Record], folder: Path) -> str:
    """The table of what the best rungs are to reach, of the record of scripts/lab/bars on these records' machine. What
    that does not have, such as a rung that is newer, is of the records themselves."""
    path = folder / records[0].machine / bars.RECORD
    cells = {key: cell.seconds for record in records for key, cell in record.cells.items() if cell.seconds}
    sources = dict.fromkeys(record_text(record, "gpu") for record in records)
    if path.exists():
        return bars.text([bars.read(path), cells], f"{bars.source(path)}, else ({'; '.join(sources)})")
    return bars.text([cells], f"({'; '.join(sources)})")


def several(record: Record, folder: Path) -> str:
    """The table of the product over several GPUs, "" if nothing of it is recorded: TFLOP/s, and the share of as many
    times the rate of cuBLAS on one GPU, in the same run unless that has none."""
    path = folder / record.machine / "several.jsonl"
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    if not entries:
        return ""
    anywhere = {(each["type"], each["n"]): each for each in entries if each["rung"] == "cublas"}
    alone = {(each["type"], each["n"], each["gpus"]): each for each in entries if each["rung"] == "cublas"}
    parts = {(each["type"], each["gpus"], each["n"]): each for each in entries if each["rung"] == "nccl"}
    sizes = sorted({n for *_, n in parts})
    rows = []
    for type, gpus in sorted({place[:2] for place in parts}, reverse=True):
        row = [f"{type}, {gpus} GPUs"]
        for n in sizes:
            found = parts[type, gpus, n]
            one = alone.get((type, n, gpus), anywhere[type, n])
            share = one["seconds"] / found["seconds"] / gpus
            mark = " *" if found["first_launch"] or one["first_launch"] else ""
            row.append(f"{2e-12 * n**3 / found['seconds']:.4g} ({100 * share:.0f} %){mark}")
        rows.append(row)
    return table([f"TFLOP/s, {record.machine.split('.')[0]}", *(f"n = {n}" for n in sizes)], rows)


def neighbors(path: Path) -> str:
    """The table of the cells that were measured alone and beside busy GPUs, those that took the longest first."""
    cells = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [(*beside(cell["alone_s"], cell["beside_s"]), cell) for cell in cells]
    lines = [
        [cell["key"], str(cell["busy"]), f"{100 * longer:+.2f} %", *(f"{100 * cv:.2f} %" for cv in (quiet, loud))]
        for longer, quiet, loud, cell in sorted(found, key=lambda one: -one[0])
    ]
    gpus = ", ".join(sorted({cell["who"]["gpu"] for cell in cells}))
    title = f"**{gpus}: alone, and beside busy GPUs of the same machine**\n\n"
    return title + table(["cell", "busy GPUs", "longer", "between processes, alone", "beside them"], lines)


def on_device(record: Record, device: str) -> str:
    """The table of the transposes on one device."""
    facts = {group: each for group, each in record.facts.items() if group.endswith(f" {device}")}
    cells = {key: cell for key, cell in record.cells.items() if cell.group in facts}
    return markdown(replace(record, facts=facts, cells=cells), PROJECT, ["transpose"], [TURNED])


def printed(record: Record) -> str:
    """The output of scripts/ladder for the transposes on a GPU, cold, at some shapes, without the reference lines."""
    sections = rows.sections(record, PROJECT, ["transpose"], list(PRINTED))
    shown = [
        replace(section, rows=[row for row in section.rows if row.idea != "reference line"])
        for section in sections
        if section.device == "gpu" and section.cache == "cold"
    ]
    if not shown:
        return ""
    out = StringIO()
    console = Console(file=out, width=100)
    console.print(f"GPU: {record_text(record, 'gpu')}")
    terminal.print_shapes(shown[0].group, shown, console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "```\n" + "\n".join([*lines, "pages: file:///.../.asv/html/index.html"]) + "\n```"


def write(records: list[Record], root: Path, results: Path, others: list[Record] | None = None) -> None:
    """Write every block from the newest record that has its figures; a block without figures stays unchanged.

    `records`: of the machine whose figures are shown; `others`: of all machines, for the climb, whose steps few records
    have.

    Raises: SystemExit if a file lacks a block's marks.
    """

    def newest(group: str) -> Record | None:
        return next((record for record in reversed(records) if record.facts.get(group)), None)

    turned, multiplied, on_cpu = newest("transpose gpu"), newest("matmul gpu"), newest("matmul cpu")
    turned_on_cpu = newest("transpose cpu")
    makers: dict[tuple[str, str], Callable[[], str]] = {}
    if turned:
        makers |= {
            ("README.md", "bench"): lambda: printed(turned),
            ("docs/transpose.md", "transpose"): lambda: on_device(turned, "gpu"),
            ("docs/transpose.md", "types"): lambda: transposed_by_type(turned),
            ("docs/transpose.md", "sizes"): lambda: transposed_by_size(turned),
            ("docs/research/transpose.md", "counters"): lambda: counters(turned, results, "docs/research/transpose.md"),
        }
    if turned_on_cpu:
        makers["docs/transpose.md", "cpu"] = lambda: on_device(turned_on_cpu, "cpu")
    if multiplied:
        makers |= {
            ("docs/matmul.md", "matmul"): lambda: squares(multiplied, "gpu"),
            ("docs/matmul.md", "shapes"): lambda: shapes(multiplied),
            ("docs/matmul.md", "types"): lambda: by_type(multiplied),
            ("docs/matmul.md", "float8"): lambda: float8(multiplied),
            ("docs/research/matmul.md", "climb"): lambda: climbs(climber(others or records) or multiplied),
            ("docs/research/matmul.md", "counters"): lambda: counters(multiplied, results, "docs/research/matmul.md"),
            ("docs/research/matmul.md", "stores"): lambda: stores(results / multiplied.machine),
            ("docs/matmul.md", "between"): lambda: between(multiplied, results),
            ("docs/matmul.md", "several"): lambda: several(multiplied, results),
        }
    if turned and multiplied:
        makers["docs/research/README.md", "bars"] = lambda: reached([turned, multiplied], results)
    if VERSUS.exists():
        makers["docs/comparing.md", "versus"] = lambda: f"```\n{VERSUS.read_text(encoding='utf-8').strip()}\n```"
    if on_cpu:
        makers["docs/matmul.md", "cpu"] = lambda: squares(on_cpu, "cpu")
    if paths := sorted(results.glob("*/neighbors.jsonl")):
        makers["docs/research/fleet.md", "neighbors"] = lambda path=paths[-1]: neighbors(path)  # type: ignore[misc]
    if paths := sorted(results.glob("*/access.jsonl")):
        makers["docs/research/access.md", "access"] = lambda: access(paths[-1])
    for (file, name), make in makers.items():
        if text := make():
            write_block(root / file, name, text)


def main(arguments: list[str] | None = None) -> int:
    """Write the figures; the exit code. Raises: UserError if nothing is recorded on a GPU."""
    parser = Parser("scripts/lab/figures", __doc__)
    parser.add_argument("--picture", action="store_true", help="also take the picture in README.md; needs chromium")
    options = parser.parse_args(arguments)
    if options.picture:
        picture.take(PROJECT.root)
    paths = sidecars(PROJECT.results)
    usual = [folder for folder, _ in Counter(path.parent for path in paths).most_common(1)]
    known = [(path, read(path)) for path in paths]
    on_gpus = [
        (path, record)
        for path, record in known
        if any(facts for group, facts in record.facts.items() if "gpu" in group)
    ]
    records = [record for path, record in on_gpus if path.parent in usual]  # of the machine with the most records
    if not records:
        raise UserError(f"nothing recorded on a GPU under {PROJECT.results}; scripts/bench measures")
    write(records, PROJECT.root, PROJECT.results, [record for _, record in on_gpus])
    return 0
