"""The figures in README.md and docs/: written between marks, from results/, never typed."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks._cells import label
from benchmarks._ops import OPS, Shape, entries, types
from scripts import _counters, _history, _tables
from scripts._history import Record, Row

CUBES = tuple(shape for shape in OPS["matmul"].shapes if len(set(shape)) == 1)
OTHERS = tuple(shape for shape in OPS["matmul"].shapes if shape not in CUBES)


LADDER = "scripts/ladder --readme"


def marks(name: str, writer: str = LADDER) -> tuple[str, str]:
    """What a block stands between."""
    return f"<!-- {name}: written by {writer} -->", f"<!-- end of {name} -->"


def write_block(path: Path, name: str, text: str, writer: str = LADDER) -> None:
    """Put a text between the marks of a file. Raises: SystemExit where the marks are not there."""
    old = path.read_text(encoding="utf-8")
    begin, end = marks(name, writer)
    start, stop = old.find(begin), old.find(end)
    if start < 0 or stop < start:
        raise SystemExit(f"{path.name}: no place for {name}; put {begin} and {end} where it belongs")
    path.write_text(f"{old[: start + len(begin)]}\n\n{text}\n\n{old[stop:]}", encoding="utf-8")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table: names on the left, figures on the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def who(record: Record, device: str) -> str:
    return f"({_tables.device_text(record, device)}; commit {record.commit})"


def rate(row: Row | None) -> str:
    """GFLOP/s and the share of the vendor's."""
    if row is None or not row.cell.seconds:
        return "n/a"
    share = "" if math.isnan(row.share) else f" ({100 * row.share:.0f} %)"
    mark = " *" if row.cell.throttled else ""
    return f"{_tables.rate_text(row.rate)}{share}{mark}"


def taught(published: dict[str, float], n: int) -> str:
    """What the lecture printed for n, as GFLOP/s."""
    return _tables.rate_text(2 * n**3 / (published[str(n)] * 1e-3)) if str(n) in published else ""


def squares(record: Record, device: str) -> str:
    """The ladder of the products at square sizes, each beside the lecture's figure."""
    sizes = [shape for shape in CUBES if shape in OPS["matmul"].timed(device, quick=False)]
    by_size = {shape: rows_of(record, device, shape) for shape in sizes}
    published = {entry.name: entry.published_ms for entry in entries("matmul")}
    header, rows = ["rung"], []
    for shape in sizes:
        header += [f"n = {shape[0]}", *(["lecture"] if any(str(shape[0]) in ms for ms in published.values()) else [])]
    for name in dict.fromkeys(name for found in by_size.values() for name in found):
        line = [name]
        for shape in sizes:
            line.append(rate(by_size[shape].get(name)))
            if any(str(shape[0]) in ms for ms in published.values()):
                line.append(taught(published[name.split(" ")[0]], shape[0]))
        rows.append(line)
    against = _history.held_against("matmul", device)
    return (
        f"**matmul n x n x n, cold, {device.upper()}: GFLOP/s (share of {against})** {who(record, device)}\n\n"
        + table(header, rows)
    )


def rows_of(record: Record, device: str, shape: Shape, type: str | None = None) -> dict[str, Row]:
    """The rows of the products' ladder at one shape, by rung and type."""
    return {row.rung: row for row in _history.ladder(record, "matmul", device, shape, "cold", type)}


def shapes(record: Record) -> str:
    """The shapes that are not square."""
    found = {shape: rows_of(record, "gpu", shape) for shape in OTHERS}
    names = dict.fromkeys(name for rows in found.values() for name in rows)
    lines = [[name, *(rate(found[shape].get(name)) for shape in OTHERS)] for name in names]
    title = f"**matmul M x N x K, cold, GPU: GFLOP/s (share of cublas)** {who(record, 'gpu')}\n\n"
    return title + table(["rung", *(label(shape) for shape in OTHERS)], lines)


def by_type(record: Record) -> str:
    """The types, at the shape where all are timed."""
    place = OPS["matmul"].element_shape
    found = {type: rows_of(record, "gpu", place, type) for type in types("matmul")}
    names = dict.fromkeys(name for rows in found.values() for name in rows)
    lines = [[name, *(rate(found[type].get(name)) for type in found)] for name in names]
    title = f"**matmul {label(place)}, cold, GPU: GFLOP/s (share of cublas)** {who(record, 'gpu')}\n\n"
    return title + table(["rung", *found], lines)


def counters(record: Record, folder: Path) -> str:
    """Nsight Compute's counters, a table a shape."""
    path = folder / record.machine / "counters.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    parts = []
    for shape in _counters.SHAPES:
        found = [entry for entry in map(json.loads, lines) if f" {label(shape)} " in entry["key"]]
        rows = [
            [entry["key"].split(" ")[0], *(_counters.text(name, value) for name, value in entry["metrics"].items())]
            for entry in found
        ]
        if rows:
            parts.append(f"**{label(shape)}, float32**\n\n" + table(["rung", *_counters.METRICS.values()], rows))
    return "\n\n".join(parts)


def access(path: Path) -> str:
    """The stand-in's counts and the compiled figures beside Nsight Compute's, as scripts/profile recorded them."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {name: None for entry in found for name in entry["compared"]}
    whys = Counter(why for entry in found for *_, why in entry["compared"].values())
    rows = []
    for entry in found:
        texts = [
            str(here) if why == "=" else f"{here} ({seen:.0f}: {why})"
            for here, seen, why in (entry["compared"][name] for name in names)
        ]
        rows.append([entry["key"].rpartition(" ")[0], *texts])
    others = ", ".join(f"{count} by the rule *{why}*" for why, count in whys.items() if why != "=")
    who = f"{found[0]['arch']}, {path.parent.name.split('.')[0]}; {found[0]['compiler']}"
    said = f"{len(found)} launches ({who}): {whys['=']} of {whys.total()} figures are equal; {others} differ."
    return f"{said}\n\n" + table(["launch", *(name.replace("_", " ") for name in names)], rows)


def between(record: Record, folder: Path) -> str:
    """What scripts/between measured."""
    path = folder / record.machine / "between_grids.jsonl"
    if not path.exists():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    run, n = found["median_run"], found["edge"]
    copies = run["upload_seconds"] + run["download_seconds"]
    lines = [
        ["matrices", f"3 of {n} x {n} {found['type']}, {found['matrices_bytes'] / 2**30:.1f} GiB"],
        ["device memory allowed", f"{found['limit_bytes'] / 2**30:.1f} GiB"],
        ["inner rung", found["inner"]],
        ["whole product", f"{run['seconds']:.3f} s, {2 * n**3 / run['seconds'] / 1e12:.2f} TFLOP/s"],
        ["the same with all three on the GPU", f"{2 * n**3 / found['in_core_s'] / 1e12:.2f} TFLOP/s"],
        ["share of the in-core rate", f"{100 * found['share_of_in_core']:.1f} %"],
        ["products, by events", f"{run['compute_seconds']:.3f} s"],
        ["uploaded", f"{run['upload_bytes'] / 2**30:.1f} GiB in {run['upload_seconds']:.3f} s"],
        ["downloaded", f"{run['download_bytes'] / 2**30:.1f} GiB in {run['download_seconds']:.3f} s"],
        ["copy time hidden", f"{100 * found['hidden_share']:.1f} % of {copies:.3f} s"],
    ]
    return table([f"between grids, {record.machine.split('.')[0]}", "figure"], lines)


def write(records: list[Record], root: Path, results: Path) -> None:
    """Write all blocks, each from the newest record that has its figures; a block without any stays as it is."""

    def newest(group: str) -> Record | None:
        return next((found for found in reversed(records) if found.facts.get(group)), None)

    turned, multiplied, on_cpu = newest("transpose gpu"), newest("matmul gpu"), newest("matmul cpu")
    makers: dict[tuple[str, str], Callable[[], str]] = {}
    if turned:
        makers["README.md", "transpose"] = lambda: _tables.markdown(turned, ["transpose"], [(4096, 4096)])
    if multiplied:
        makers |= {
            ("README.md", "matmul"): lambda: squares(multiplied, "gpu"),
            ("docs/matmul.md", "shapes"): lambda: shapes(multiplied),
            ("docs/matmul.md", "types"): lambda: by_type(multiplied),
            ("docs/matmul.md", "counters"): lambda: counters(multiplied, results),
            ("docs/matmul.md", "between"): lambda: between(multiplied, results),
        }
    if on_cpu:
        makers["docs/matmul.md", "cpu"] = lambda: squares(on_cpu, "cpu")
    if paths := sorted(results.glob("*/access.jsonl")):
        makers["docs/access.md", "access"] = lambda: access(paths[-1])
    for (file, name), make in makers.items():
        if text := make():
            write_block(root / file, name, text)
