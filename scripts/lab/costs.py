#!/usr/bin/env python3
"""Times what a commit costs: `kernelwatch link`, and then `asv publish`, of commits whose changes are known.

The commits are made in a temporary clone, one on top of the other. A commit changes a line of the README, a comment of
one kernel, the binary of one kernel, or the binaries of all kernels; none changes what a kernel does. The clone has
this project's results, so the pages are made of these, too. What the parent of the first commit compiles and publishes
is made before. The record goes to docs/costs.jsonl, a line for each commit; --table writes the table of docs/links.md.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from gpukernels.ladder import rung
from kernelwatch.analysis import compiled
from kernelwatch.comparison import linking
from kernelwatch.history import links
from kernelwatch.plan.cells import Cell
from kernelwatch.report.arguments import Output, Parser, add_selection, selected
from kernelwatch.report.markdown import table
from kernelwatch.run.group import measure_once
from kernelwatch.system.options import Options
from lab.figures import write_block
from lab.planted import LINKED, ROOT, WHO, run

RECORD, PAGE = ROOT / "docs" / "costs.jsonl", ROOT / "docs" / "links.md"
KINDS = {  # what a commit changes -> as the table says it
    "nothing": "no kernel",
    "comment": "a comment of one kernel",
    "kernel": "the binary of one kernel",
    "everything": "the binaries of all kernels",
}
VARIABLE = {".cu": "__device__ int costs_{at};", ".c": "int costs_{at};"}  # which nothing reads, by a source's suffix


@dataclass(frozen=True)
class Commit:
    """A commit of the clone. `rungs`: those whose sources it changes."""

    kind: str
    hash: str
    rungs: tuple[str, ...]


def make(folder: Path, kind: str, count: int, cells: Sequence[Cell]) -> Iterator[Commit]:
    """So many commits of a kind on top of a clone's HEAD. `cells`: those that are linked. The kernels that are changed
    are at equal distances in the ladder; each is changed again if there are fewer of them than commits."""
    found = {cell.name: rung(cell.op, cell.rung).source.relative_to(ROOT) for cell in cells}
    sources = {name: path for name, path in found.items() if path.suffix in VARIABLE}
    names, few = [*sources], min(count, len(sources))
    for at in range(count):
        one = [names[at % few * len(names) // few]]
        own = {"nothing": [], "everything": names}.get(kind, one)
        for file in dict.fromkeys(sources[name] for name in own) or [Path("README.md")]:
            line = VARIABLE[file.suffix].format(at=at) if kind in ("kernel", "everything") else "//"
            with (folder / file).open("a", encoding="utf-8") as text:
                text.write(f"{line}\n")
        run(folder, "git", "commit", "-q", "--no-verify", "-a", "-m", f"{KINDS[kind]}, {at}", **WHO)
        yield Commit(kind, run(folder, "git", "rev-parse", "HEAD").strip(), tuple(own))


def warm(cells: Sequence[Cell]) -> None:
    """Compile the kernels of these cells for the GPU at hand, as `link` does; nothing without a GPU."""
    if arch := linking.architecture():
        rungs = {cell.name for cell in cells}
        targets = [target for problem in PROJECT.problems for target in compiled.plan(problem, f" {arch}$")]
        measure_once(PROJECT, "costs", compiled.DEVICE, [each for each in targets if each.name in rungs], Options())


def publish(folder: Path) -> None:
    run(folder, sys.executable, "-m", "asv", "publish", "--no-pull")


def cost(folder: Path, one: Commit, arguments: Sequence[str]) -> dict[str, Any]:
    """A line of the record. `arguments`: of `kernelwatch link`. Raises: SystemExit if the commit cannot be linked."""
    command = [sys.executable, "-m", "kernelwatch", "link", f"{one.hash}^!", "--no-publish", *arguments]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    linked = time.monotonic()
    if done.returncode not in LINKED:
        raise SystemExit(f"scripts/lab/costs: {one.kind}: {(done.stdout + done.stderr).strip()[-2000:]}")
    publish(folder)
    ended = time.monotonic()
    files = [*folder.glob(f"results/*/{one.hash[:8]}.*{links.SUFFIX}")]
    machines = dict.fromkeys(path.parent for path in files)
    own = [each for machine in machines for each in links.read(machine)[0] if each.after == one.hash]
    conditions = own[0].conditions if own else {}
    return {
        "kind": one.kind,
        "rungs": list(one.rungs) if len(one.rungs) == 1 else len(one.rungs),
        "link_s": round(linked - began, 2),
        "measured_s": round(sum(each.seconds for each in own), 1),
        "publish_s": round(ended - linked, 2),
        "cells": sum(len(each.changed) for each in own),
        "bytes": sum(path.stat().st_size for path in files),
        **{name: conditions.get(name) for name in ("gpu", "nvml_uuid_sha256", "nvml_driver")},
    }


def costs(lines: Sequence[dict[str, Any]]) -> str:
    """The table: a row for each kind of commit."""
    rows = []
    for kind, words in KINDS.items():
        if own := [line for line in lines if line["kind"] == kind]:
            whole = [line["link_s"] + line["publish_s"] for line in own]
            medians = [whole, *([line[name] for line in own] for name in ("measured_s", "publish_s"))]
            median, *parts = (f"{statistics.median(each):.0f} s" for each in medians)
            row = [words, str(len(own)), f"{statistics.median(line['cells'] for line in own):.0f}"]
            kilobytes = max(line["bytes"] for line in own) / 1000
            rows.append([*row, median, f"{max(whole):.0f} s", *parts, f"{kilobytes:.1f} KB"])
    heads = ["a commit changes", "commits", "launches", "all of it", "most", "measuring", "publishing", "record, most"]
    return table(heads, rows)


def main(arguments: list[str] | None = None) -> int:
    """Time commits, or write the table; the exit code."""
    parser = Parser("scripts/lab/costs", __doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--commits", type=int, default=10, metavar="N", help="of each kind (default: 10)")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help="begin no commit after this")
    parser.add_argument("--device", choices=tuple(linking.NARROW), default="gpu", help="default: gpu")
    parser.add_argument("--out", type=Path, default=RECORD, help="the record, which is added to")
    parser.add_argument("--table", action="store_true", help="only write the table from the record")
    add_selection(parser, "only some cells")
    options = parser.parse_args(arguments)
    if options.table:
        write_block(PAGE, "costs", costs(read(options.out)), "scripts/lab/costs")
        return 0
    if unknown := {*options.kinds} - {*KINDS}:
        parser.error(f"no kind {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    only, console, began = selected(options), Output(), time.monotonic()
    cells = linking.asked_of(PROJECT, only, [options.device])
    warm(cells)
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as temporary:
        folder = Path(temporary, "clone")
        run(ROOT, "git", "clone", "-q", str(ROOT), str(folder))
        publish(folder)  # the first time it makes every page
        for kind in options.kinds or KINDS:
            for one in make(folder, kind, options.commits, cells):
                if time.monotonic() - began > options.limit:
                    console.print(f"{options.limit:g} s are over", style="yellow")
                    return 0
                line = cost(folder, one, ["--device", options.device, *(["--only", only] if only else [])])
                with options.out.open("a", encoding="utf-8") as record:
                    record.write(f"{json.dumps(line)}\n")
                console.print(f"{kind}: {line['link_s']:.1f} s, and {line['publish_s']:.1f} s of publishing")
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
