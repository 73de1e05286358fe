"""Why a rung is slow: what its warps ask of memory, by source line, and what the compiler made of it.

Counted on the CPU stand-in, without a GPU; where Nsight Compute is at hand, its counters stand beside the counts. With
an op alone: all its rungs at the shapes that the suite `access` has. `--record` keeps Nsight Compute's counters of
those as results/<machine>/access.jsonl: docs/access.md is made of it.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import gpukernels
from benchmarks import _static
from benchmarks._access import COUNTED, plan, stand_in
from benchmarks._cells import Cell, label
from benchmarks._emulator import KINDS, Counts, Tally, count
from benchmarks._files import write_whole
from benchmarks._group import Group, Outcome
from benchmarks._ops import OPS, dtypes
from benchmarks._visit import NotHere
from scripts import _environment, _ncu
from scripts.asv_plugins.recording import identity

ROOT = _ncu.ROOT
ARCH = "sm_90"  # where there is no GPU to ask

# Nsight Compute's names of each of the counts that are compared, which are summed. Of shared memory the wavefronts, of
# the instructions themselves: its requests hold instructions without any active lane as well, and l1tex's own counter
# of wavefronts also what arbitration adds.
GLOBAL, SHARED = (
    "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum",
)
COMPARED = {
    "load requests": (GLOBAL.format("requests", "ld"),),
    "load sectors": (GLOBAL.format("sectors", "ld"),),
    "store requests": (GLOBAL.format("requests", "st"),),
    "store sectors": (GLOBAL.format("sectors", "st"),),
    "shared load wavefronts": (SHARED.format("ld"), SHARED.format("ldsm")),
    "shared store wavefronts": (SHARED.format("st"), SHARED.format("stsm")),
    "dynamic shared bytes": ("launch__shared_mem_per_block_dynamic",),
}
METRICS = tuple(name for names in COMPARED.values() for name in names)
# The compile-time figures, and CUDA's names of them as attributes of the loaded kernel.
ATTRIBUTES = {"registers": "num_regs", "static_shared_bytes": "shared_size_bytes", "stack_bytes": "local_size_bytes"}

# Why a count may differ from hardware's, by what can be read off the rung: docs/access.md explains each.
RULES = TEXTURE, MERGED, SELECTED = "texture", "merged", "selected"


def counted(cell: Cell) -> Counts:
    """The stand-in's counts of a cell."""
    found = gpukernels.rung(cell.op, cell.rung)
    return count(found, cell.type, dict(zip(found.dims, cell.shape, strict=True)))


def compared(counts: Counts) -> dict[str, int]:
    """The counts by the names of COMPARED."""
    return {
        "load requests": counts.global_load.requests,
        "load sectors": counts.global_load.cost,
        "store requests": counts.global_store.requests,
        "store sectors": counts.global_store.cost,
        "shared load wavefronts": counts.shared_load.cost,
        "shared store wavefronts": counts.shared_store.cost,
    }


@cache
def figures(op: str, rung: str, type: str, arch: str) -> dict[str, Any]:
    """The compile-time figures of a rung. Raises: gpukernels.KernelError."""
    target = _static.Target(op, rung, type, (), "", "static", "", arch=arch)
    visit = _static.Compiler(gpukernels).measure(target, gpukernels.rung(op, rung))
    group = Group("", {target.key: Outcome("ok", "", [visit])}, {})
    _static.read(group, [target])
    return group.outcomes[target.key].visits[0]


def rule(cell: Cell, name: str, here: int, there: float, arch: str) -> str:
    """The rule of docs/access.md by which a count differs from hardware's, "" where none is known."""
    source = gpukernels.rung(cell.op, cell.rung).source.read_text(encoding="utf-8")
    size = dtypes(cell.type)[0].itemsize
    if name.startswith("load") and "cudaTextureObject_t" in source:
        return TEXTURE
    if name == "shared load wavefronts" and there < here and figures(*_of(cell), arch)["shared_load_bytes"] > size:
        return MERGED
    if name == "shared store wavefronts" and there < here and cell.type.startswith(("float16", "bfloat16")):
        return SELECTED
    return ""


def _of(cell: Cell) -> tuple[str, str, str]:
    return cell.op, cell.rung, cell.type


# --- Nsight Compute ------------------------------------------------------------------------------------------------


def ask(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """ncu's counters of one launch of each cell, and its loaded kernel's attributes, all in one process, by key.

    Raises: SystemExit with ncu's words.
    """
    symbols = {gpukernels.rung(cell.op, cell.rung).symbol for cell in cells}
    told = json.dumps([cell.as_json() for cell in cells])
    with tempfile.TemporaryDirectory() as folder:
        attributes = Path(folder, "attributes")
        command = [
            *(shutil.which("ncu") or "ncu", "--clock-control", "none", "--cache-control", "all"),
            *("--metrics", ",".join(METRICS), "--kernel-name", f"regex:^({'|'.join(sorted(symbols))})$"),
            *("--csv", "--page", "raw", "--print-units", "base"),
            *(sys.executable, __file__, "--child", told, str(attributes)),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=_environment.with_root()
        )
        loaded = [json.loads(line) for line in attributes.read_text().splitlines()] if attributes.exists() else []
    rows = [row for row in csv.DictReader(done.stdout[done.stdout.find('"ID"') :].splitlines()) if row["ID"].isdigit()]
    if done.returncode or not len(rows) == len(loaded) == len(cells):
        words = (done.stdout[:2000] + done.stderr).strip()[-1500:]
        raise SystemExit(f"scripts/profile: ncu told of {len(rows)} launches, not {len(cells)}: {words}")
    return {
        cell.key: {what: sum(float(row[name].replace(",", "")) for name in names) for what, names in COMPARED.items()}
        | own
        for cell, row, own in zip(cells, rows, loaded, strict=True)
    }


def launch_each(cells: Sequence[Cell], attributes: Path) -> None:
    """In ncu's child: launch each cell once, and write what CUDA says of its kernel."""
    import cupy

    for cell in cells:
        kernel = gpukernels.load(cell.op, cell.rung, cell.type)
        found = kernel.rung
        extents = dict(zip(found.dims, cell.shape, strict=True))
        inputs = [
            cupy.ones(tuple(extents[dim] for dim in pattern.split()), "float32").astype(kernel.in_dtype)
            for pattern in found.inputs
        ]
        kernel(*inputs)
        cupy.cuda.runtime.deviceSynchronize()
        path, symbol = gpukernels.compile_cuda(found, cell.type, f"sm_{cupy.cuda.Device().compute_capability}")
        own = cupy.RawModule(path=str(path)).get_function(symbol).attributes
        with attributes.open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: own[told] for name, told in ATTRIBUTES.items()}) + "\n")


def arch_here() -> str | None:
    """The architecture of the GPU here, None where ncu cannot profile anything."""
    if not shutil.which("ncu") or not _environment.driver_cuda():
        return None
    import cupy

    try:
        return f"sm_{cupy.cuda.Device().compute_capability}"
    except cupy.cuda.runtime.CUDARuntimeError:
        return None


# --- tables --------------------------------------------------------------------------------------------------------


Comparison = dict[str, tuple[int, float, str]]


def compare(cell: Cell, counts: Counts, there: dict[str, float], arch: str) -> Comparison:
    """By count: the stand-in's, ncu's, and why they differ: "=" where they do not, "?" where no rule explains it."""
    known = figures(*_of(cell), arch)
    here = compared(counts) | {name: known[name] for name in ATTRIBUTES}
    here["dynamic shared bytes"] = known["dynamic_shared_bytes"]
    return {
        name: (value, there[name], "=" if value == there[name] else rule(cell, name, value, there[name], arch) or "?")
        for name, value in here.items()
    }


def explained(found: Comparison) -> bool:
    return all(why != "?" for *_, why in found.values())


def name_of(cell: Cell) -> str:
    return cell.key.removesuffix(f" {COUNTED}")


def per_request(tally: Tally, unit: str) -> str:
    return f"{tally.per_request:.4g} {unit} (ideal {tally.ideal_per_request:.4g})" if tally.requests else "none"


def unit_of(kind: str) -> str:
    return "sectors" if kind.startswith("global") else "wavefronts"


def show_counts(cell: Cell, counts: Counts, console: Console) -> None:
    """What the warps ask for."""
    console.print(f"{name_of(cell)}, counted on the CPU stand-in", style="bold", highlight=False)
    table = Table("access", "requests", "a request costs")
    for kind in KINDS:
        tally: Tally = getattr(counts, kind)
        table.add_row(kind.replace("_", " "), str(tally.requests), per_request(tally, unit_of(kind)))
    console.print(table)
    moved = counts.moved_bytes / counts.compulsory_bytes
    console.print(
        f"{counts.moved_bytes} bytes asked for, {moved:.4g} x the {counts.compulsory_bytes} compulsory ones; "
        f"{counts.blocks} blocks, {counts.barriers / counts.blocks:.4g} barriers each",
        highlight=False,
    )


def show_comparison(found: Comparison, arch: str, console: Console) -> None:
    """The counts and the compiled figures beside ncu's."""
    console.print(f"against Nsight Compute, {arch}", style="bold", highlight=False)
    table = Table("", "without a GPU", "Nsight Compute", "")
    for name, (here, seen, why) in found.items():
        table.add_row(name.replace("_", " "), str(here), f"{seen:.0f}", why)
    console.print(table)


def show_lines(cell: Cell, counts: Counts, console: Console) -> None:
    """Where it comes from: the source lines, those that cost more than they must first."""
    text = gpukernels.rung(cell.op, cell.rung).source.read_text(encoding="utf-8").splitlines()
    rows = sorted(counts.by_line.items(), key=lambda item: item[1].ideal - item[1].cost)
    console.print("by source line", style="bold", highlight=False)
    table = Table("line", "access", "a request costs", "too many", "source")
    for (line, kind), tally in rows:
        table.add_row(
            str(line or "?"),
            kind.replace("_", " "),
            f"{tally.per_request:.4g}, ideal {tally.ideal_per_request:.4g}",
            str(tally.cost - tally.ideal),
            text[line - 1].strip() if line else "",
            style="" if tally.cost == tally.ideal else "yellow",
        )
    console.print(table, markup=False)


def show_figures(cell: Cell, arches: Sequence[str], console: Console) -> None:
    """What the compiler made of it, an architecture a line."""
    names = ("registers", "spill bytes", "shared bytes", "occupancy", "instructions", *_static.CLASSES)
    console.print(f"{cell.op}/{cell.rung} {cell.type}, compiled", style="bold", highlight=False)
    table = Table("arch", *names)
    for arch in arches:
        try:
            found = figures(*_of(cell), arch)
        except gpukernels.KernelError as error:
            console.print(f"{arch}: {error}", style="red", markup=False)
            continue
        known = "occupancy_percent" in found, "mix" in found
        spills = str(found["spill_load_bytes"] + found["spill_store_bytes"]) if known[1] else "n/a"
        table.add_row(
            arch,
            str(found["registers"]),
            spills,
            str(found["shared_bytes"]),
            f"{found['occupancy_percent']:.4g} %" if known[0] else "n/a",
            str(found.get("instructions", "n/a")),
            *(str(found["mix"][kind]) if known[1] else "n/a" for kind in _static.CLASSES),
        )
    console.print(table)


def show_all(cells: Sequence[Cell], comparisons: dict[str, Comparison], console: Console) -> None:
    """A line a cell."""
    table = Table("cell", "load", "store", "shared load", "shared store", "moved", *["against ncu"][: len(comparisons)])
    for cell in cells:
        counts = counted(cell)
        texts = [
            f"{tally.per_request:.4g} / {tally.ideal_per_request:.4g}" if tally.requests else ""
            for tally in (getattr(counts, kind) for kind in KINDS)
        ]
        line = [name_of(cell), *texts, f"{counts.moved_bytes / counts.compulsory_bytes:.4g} x"]
        if comparisons:
            found = comparisons[cell.key]
            differ = [
                f"{name}: {seen:.0f} for {here} ({why})" for name, (here, seen, why) in found.items() if why != "="
            ]
            line.append(", ".join(differ) or "equal")
        table.add_row(*line)
    console.print(table)
    console.print("sectors or wavefronts a request / the ideal; bytes asked for over compulsory ones")


def chosen(given: argparse.Namespace) -> list[Cell]:
    """What is asked for. Raises: SystemExit, LadderError."""
    cells = [cell for op in ([given.op] if given.op else OPS) for cell in plan(op)]
    if not given.rung:
        return cells
    found = gpukernels.rung(given.op, given.rung)
    mine = [cell for cell in cells if cell.rung == given.rung]
    if not mine:
        raise SystemExit(f"scripts/profile: {found} is {found.source.name}: only CUDA sources can be counted")
    one = mine[0]
    if given.type:
        if given.type not in found.types:
            raise SystemExit(f"scripts/profile: {found} has no type {given.type}; it has {', '.join(found.types)}")
        one = replace(one, type=given.type)
    if given.shape:
        extents = given.shape.split("x")
        if len(extents) != len(found.dims) or not all(extent.isdigit() and int(extent) for extent in extents):
            wanted = "x".join(found.dims)
            raise SystemExit(
                f"scripts/profile: {found}: a shape is {wanted}, such as {label(one.shape)}; got {given.shape}"
            )
        one = replace(one, shape=tuple(map(int, extents)))
    return [one]


def recorded() -> Path:
    return ROOT / "results" / identity()["machine"] / "access.jsonl"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/profile", description=__doc__)
    parser.add_argument("op", nargs="?", choices=list(OPS), help="an op (default: all)")
    parser.add_argument("rung", nargs="?", help="one of its rungs")
    parser.add_argument("--type", help="an element type of the rung (default: its main one)")
    parser.add_argument("--shape", help="extents, as 256x256 (default: the suite's); a count takes as long as the work")
    parser.add_argument("--record", action="store_true", help="keep ncu's counters under results/")
    given = parser.parse_args(arguments)
    try:
        return profile(given, Console(width=None if sys.stdout.isatty() else 160))
    except (gpukernels.KernelError, gpukernels.LadderError, NotHere) as error:
        print(f"scripts/profile: {error}", file=sys.stderr)
        return 1


def record(comparisons: dict[str, Comparison], arch: str) -> None:
    """Keep what was compared, in place of what was known of the same cells."""
    path = recorded()
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {json.loads(line)["key"]: line for line in lines}
    for key, found in comparisons.items():
        known[key] = json.dumps({"key": key, "arch": arch, "compiler": stand_in()["compiler"], "compared": found})
    write_whole(path, "".join(f"{line}\n" for line in known.values()))


def profile(given: argparse.Namespace, console: Console) -> int:
    """0; 2 where ncu counts something else, and no rule says why."""
    cells = chosen(given)
    here = arch_here()
    arch = here or ARCH
    if given.record and (not here or given.rung):
        why = "only whole ops are recorded" if here else "ncu and a GPU are needed"
        raise SystemExit(f"scripts/profile: --record: {why}")
    there = ask(cells) if here else {}
    comparisons = {cell.key: compare(cell, counted(cell), there[cell.key], arch) for cell in cells if here}
    if given.record:
        record(comparisons, arch)
    if given.rung:
        (cell,) = cells
        counts = counted(cell)
        show_counts(cell, counts, console)
        if here:
            show_comparison(comparisons[cell.key], arch, console)
        show_lines(cell, counts, console)
        show_figures(cell, [arch] if here else _static.ARCHES, console)
    else:
        show_all(cells, comparisons, console)
    return 0 if all(map(explained, comparisons.values())) else 2


if __name__ == "__main__":  # ncu's child
    launch_each([Cell.from_json(values) for values in json.loads(sys.argv[2])], Path(sys.argv[3]))
