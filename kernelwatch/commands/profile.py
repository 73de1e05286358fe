"""Show why a rung is slow: the memory accesses of its warps by source line, and the figures of its compiled code.

The emulator counts the accesses, without a GPU. If Nsight Compute is available, its counters are shown beside them. For
an op without a rung, all rungs are shown at the shapes of the op's suite of counted accesses; `--record` then keeps
Nsight Compute's counters as access.jsonl among the machine's results.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernelwatch.analysis import compiled
from kernelwatch.analysis.counted import counts_of, plan
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.analysis.sass import CLASSES
from kernelwatch.asv.machine_names import machine_name, who
from kernelwatch.comparison.linking import architecture
from kernelwatch.emulator import KINDS, Counts, Tally
from kernelwatch.emulator.build import headers_beside
from kernelwatch.extras.nsight import profiler
from kernelwatch.plan.cells import COUNTED, Cell
from kernelwatch.plan.package import Absent, NotHere, Package
from kernelwatch.plan.problem import dtypes, label
from kernelwatch.plan.project import Project, check_described, import_package
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.system.errors import ToolMissing, UserError
from kernelwatch.system.files import replace_lines
from kernelwatch.system.tools import cxx_compiler, ncu
from kernelwatch.timing.launches import ATTRIBUTES, CHILD
from kernelwatch.timing.record import Measurement

ARCH = "sm_90"  # if there is no GPU to ask

# Nsight Compute's metrics for each compared count; several are added. For shared memory these are the wavefronts of the
# instructions themselves: its requests include instructions without an active lane, and l1tex's own counter of
# wavefronts includes those that arbitration adds.
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
    "blocks": ("launch__grid_size",),
}
METRICS = tuple(name for names in COMPARED.values() for name in names)
# The known reasons why a count differs from the hardware's; docs/access.md explains each.
RULES = TEXTURE, MERGED, SELECTED, ASYNCHRONOUS, SPLIT, GUARDED, GRID = (
    *("texture", "merged", "selected"),
    *("asynchronous", "split", "guarded", "grid"),
)
COSTS = {  # count -> the kind of access whose cost it is
    "load sectors": "global_load",
    "store sectors": "global_store",
    "shared load wavefronts": "shared_load",
    "shared store wavefronts": "shared_store",
}


def compared(counts: Counts) -> dict[str, int]:
    """The emulator's counts under the names of COMPARED."""
    return {
        "load requests": counts.global_load.requests,
        "load sectors": counts.global_load.cost,
        "store requests": counts.global_store.requests,
        "store sectors": counts.global_store.cost,
        "shared load wavefronts": counts.shared_load.cost,
        "shared store wavefronts": counts.shared_store.cost,
        "blocks": counts.blocks,
    }


Comparison = dict[str, tuple[int, float, str]]  # by count: the emulator's, Nsight Compute's, why they differ


@dataclass(frozen=True, eq=False)
class Profiler:
    """Counts and compiles the rungs of the checkout."""

    project: Project
    package: Package

    @cache  # noqa: B019 (a command has one profiler)
    def counts(self, cell: Cell) -> Counts:
        """The emulator's counts of a cell."""
        return counts_of(cell, self.package.cuda_source(cell.op, cell.rung, cell.type))

    @cache  # noqa: B019
    def figures(self, op: str, rung: str, type: str, arch: str) -> Measurement:
        """The compile-time figures of a rung. Raises: UserError if its cubin cannot be read."""
        target = compiled.target(op, rung, type, arch)
        measurement = compiled.Compiler(self.project, self.package).measure(target)
        wrong, _ = compiled.read({target.key: (arch, measurement)})
        if wrong:
            raise UserError(f"{target.key}: {wrong[target.key]}")
        return measurement

    def source(self, cell: Cell) -> Path:
        return self.package.cuda_source(cell.op, cell.rung, cell.type).path

    def text(self, cell: Cell) -> str:
        """The source of a rung, with the headers that it includes."""
        path = self.source(cell)
        return "".join([path.read_text(encoding="utf-8"), *headers_beside(path).values()])

    def rule(self, cell: Cell, name: str, here: int, there: float, arch: str) -> str:
        """The rule of docs/access.md that explains why a count differs from the hardware's; "" if none does."""
        source, size = self.text(cell), dtypes(cell.type)[0].itemsize
        if name.startswith("load") and "cudaTextureObject_t" in source:
            return TEXTURE
        if name == "shared store wavefronts" and there < here and "cp.async.c" in source:
            return ASYNCHRONOUS
        figures = self.figures(cell.op, cell.rung, cell.type, arch)
        if name == "shared load wavefronts" and there < here and figures["shared_load_bytes"] > size:
            return MERGED
        if name == "shared store wavefronts" and there < here and cell.type.startswith(("float16", "bfloat16")):
            return SELECTED
        counts, kind = self.counts(cell), COSTS.get(name, "")
        if kind in counts.unpaired and getattr(counts, kind).ideal <= there < here:
            return GUARDED
        only_split = name == "load sectors" and "cp.async.cg" in source and there == here + counts.split
        return SPLIT if only_split else ""

    def compare(self, cell: Cell, there: dict[str, float], arch: str) -> Comparison:
        """Each count by the emulator and by ncu, and why they differ: "=" if they do not, "?" if no rule says."""
        figures = self.figures(cell.op, cell.rung, cell.type, arch)
        here = compared(self.counts(cell))
        here |= {name: figures[name] for name in ATTRIBUTES}  # type: ignore[literal-required]
        here["dynamic shared bytes"] = figures["dynamic_shared_bytes"]
        prepared = self.package.cuda_source(cell.op, cell.rung, cell.type).arguments is not None
        another = GRID if prepared and here["blocks"] != there["blocks"] else ""

        def why(name: str, value: int) -> str:
            if value == there[name]:
                return "="
            return another or self.rule(cell, name, value, there[name], arch) or "?"

        return {name: (value, there[name], why(name, value)) for name, value in here.items()}

    def ask(self, cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
        """ncu's counters of one launch of each cell, and the attributes of its loaded kernel, by key. One process
        launches all cells. Raises: UserError with ncu's message."""
        root = self.project.root
        symbols = {self.package.cuda_source(cell.op, cell.rung, cell.type).entry for cell in cells}
        as_json = json.dumps([cell.as_json() for cell in cells])
        with tempfile.TemporaryDirectory() as folder:
            attributes = Path(folder, "attributes")
            child = (*CHILD, "each", str(root), as_json, str(attributes))
            rows = profiler.profile(child, METRICS, sorted(symbols), flush="all", folder=root)
            loaded = [json.loads(line) for line in attributes.read_text().splitlines()]
        if not len(rows) == len(loaded) == len(cells):
            raise UserError(f"ncu reported {len(rows)} launches, not {len(cells)}")
        return {
            cell.key: {count: sum(row[name] for name in names) for count, names in COMPARED.items()} | own
            for cell, row, own in zip(cells, rows, loaded, strict=True)
        }


def has_ncu() -> bool:
    """Whether Nsight Compute is here."""
    try:
        ncu()
    except ToolMissing:
        return False
    return True


# --- tables --------------------------------------------------------------------------------------------------------


def explained(comparison: Comparison) -> bool:
    return all(why != "?" for *_, why in comparison.values())


def name_of(cell: Cell) -> str:
    return cell.key.removesuffix(f" {COUNTED}")


def per_request(tally: Tally, unit: str) -> str:
    return f"{tally.per_request:.4g} {unit} (ideal {tally.ideal_per_request:.4g})" if tally.requests else "none"


def unit_of(kind: str) -> str:
    return "sectors" if kind.startswith("global") else "wavefronts"


def show_counts(cell: Cell, counts: Counts, console: Console) -> None:
    """Print the accesses of the warps."""
    console.print(f"{name_of(cell)}, counted on the emulator", style="bold", highlight=False)
    table = Table("access", "requests", "a request costs")
    for kind in KINDS:
        tally: Tally = getattr(counts, kind)
        table.add_row(kind.replace("_", " "), str(tally.requests), per_request(tally, unit_of(kind)))
    console.print(table)
    moved = counts.moved_bytes / counts.compulsory_bytes
    console.print(
        f"{counts.moved_bytes} bytes requested, {moved:.4g} x the {counts.compulsory_bytes} compulsory ones; "
        f"{counts.blocks} blocks, {counts.barriers / counts.blocks:.4g} barriers each",
        highlight=False,
    )


def show_comparison(comparison: Comparison, arch: str, console: Console) -> None:
    """Print the counts and the compiled figures beside ncu's."""
    console.print(f"against Nsight Compute, {arch}", style="bold", highlight=False)
    table = Table("", "without a GPU", "Nsight Compute", "")
    for name, (here, there, why) in comparison.items():
        table.add_row(name.replace("_", " "), str(here), f"{there:.0f}", why)
    console.print(table)


def show_lines(source: Path, counts: Counts, console: Console) -> None:
    """Print the accesses by source line, those with the greatest avoidable cost first."""
    text = source.read_text(encoding="utf-8").splitlines()
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


def show_figures(profiler: Profiler, cell: Cell, arches: Sequence[str], console: Console) -> None:
    """Print the figures of the compiled code, one architecture per line."""
    names = ("registers", "spill bytes", "shared bytes", "occupancy", "instructions", *CLASSES)
    console.print(f"{cell.name} {cell.type}, compiled", style="bold", highlight=False)
    table = Table("arch", *names)
    for arch in arches:
        try:
            figures = profiler.figures(cell.op, cell.rung, cell.type, arch)
        except Exception as error:  # whatever the package raises if its compiler fails
            console.print(f"{arch}: {error}", style="red", markup=False)
            continue
        disassembled = "mix" in figures
        spills = str(figures["spill_load_bytes"] + figures["spill_store_bytes"]) if disassembled else "n/a"
        table.add_row(
            arch,
            str(figures["registers"]),
            spills,
            str(figures["shared_bytes"]),
            f"{figures['occupancy_percent']:.4g} %" if "occupancy_percent" in figures else "n/a",
            str(figures.get("instructions", "n/a")),
            *(str(figures["mix"][kind]) if disassembled else "n/a" for kind in CLASSES),
        )
    console.print(table)


def show_all(profiler: Profiler, cells: Sequence[Cell], comparisons: dict[str, Comparison], console: Console) -> None:
    """Print one line per cell. `comparisons`: empty without ncu."""
    table = Table("cell", "load", "store", "shared load", "shared store", "moved")
    if comparisons:
        table.add_column("against ncu")
    for cell in cells:
        counts = profiler.counts(cell)
        texts = [
            f"{tally.per_request:.4g} / {tally.ideal_per_request:.4g}" if tally.requests else ""
            for tally in (getattr(counts, kind) for kind in KINDS)
        ]
        line = [name_of(cell), *texts, f"{counts.moved_bytes / counts.compulsory_bytes:.4g} x"]
        if comparisons:
            differ = [
                f"{name}: {there:.0f} for {here} ({why})"
                for name, (here, there, why) in comparisons[cell.key].items()
                if why != "="
            ]
            line.append(", ".join(differ) or "equal")
        table.add_row(*line)
    console.print(table)
    console.print("sectors or wavefronts per request / the ideal; bytes requested over compulsory ones")


def chosen(profiler: Profiler, arguments: argparse.Namespace) -> list[Cell]:
    """The cells that the arguments choose. Raises: UserError if there are none."""
    project = profiler.project
    problems = [project.op(arguments.op)] if arguments.op else project.problems
    cells = [cell for problem in problems for cell in plan(problem)]
    if not cells and not arguments.rung:
        every = f"{', '.join(problem.name for problem in problems)} {'has' if len(problems) == 1 else 'have'}"
        raise UserError(f"nothing can be counted: {every} no rung of a CUDA source")
    if not arguments.rung:
        return cells
    problem = project.op(arguments.op)
    names = [rung.name for rung in problem.rungs]
    if arguments.rung not in names:
        raise UserError(f"no rung {arguments.op}/{arguments.rung}; the ladder has {', '.join(names)}")
    rung = problem.rung(arguments.rung)
    mine = [cell for cell in cells if cell.rung == arguments.rung]
    if not mine:
        source = rung.source.name if rung.source else "without a source"
        raise UserError(f"{arguments.op}/{arguments.rung} is {source}: only CUDA sources can be counted")
    cell = mine[0]
    if arguments.type:
        if arguments.type not in rung.types:
            raise UserError(
                f"{arguments.op}/{arguments.rung} has no type {arguments.type}; it has {', '.join(rung.types)}"
            )
        cell = replace(cell, type=arguments.type)
    if arguments.shape:
        extents = arguments.shape.split("x")
        dims = profiler.package.cuda_source(cell.op, cell.rung, cell.type).dims
        if len(extents) != len(dims) or not all(extent.isdigit() and int(extent) for extent in extents):
            wanted = f"{'x'.join(dims)}, such as {label(cell.shape)}"
            raise UserError(f"{arguments.op}/{arguments.rung}: a shape is {wanted}; got {arguments.shape}")
        cell = replace(cell, shape=tuple(map(int, extents)))
    return [cell]


def countable(profiler: Profiler, cells: Sequence[Cell], console: Console) -> list[Cell]:
    """The cells that the emulator can count; of the others it says why not. Raises: UserError if none is left."""
    left, reasons = [], {}
    for cell in cells:
        try:
            profiler.package.cuda_source(cell.op, cell.rung, cell.type)
            left.append(cell)
        except (Absent, NotHere) as error:
            reasons[name_of(cell)] = str(error)
    for why in dict.fromkeys(reasons.values()):
        console.print(f"not counted: {why}", style="dim")
    if not left:
        raise UserError("no cell can be counted")
    return left


def record(project: Project, comparisons: dict[str, Comparison], arch: str) -> None:
    """Record comparisons, in place of older ones of the same cells."""
    facts = {"arch": arch, "compiler": cxx_compiler().title, "who": who()}
    fresh = {key: {**facts, "compared": comparison} for key, comparison in comparisons.items()}
    replace_lines(project.results / machine_name() / "access.jsonl", fresh)


def profile(profiler: Profiler, arguments: argparse.Namespace, console: Console) -> int:
    """Print the profile. Returns 2 if a count differs from ncu's and no rule explains it, else 0."""
    cells = chosen(profiler, arguments)
    if not arguments.rung:
        cells = countable(profiler, cells, console)
    here = architecture() if has_ncu() else ""
    arch = here or ARCH
    if arguments.record and (not here or arguments.rung):
        why = "only whole ops are recorded" if here else "ncu and a GPU are needed"
        raise UserError(f"--record: {why}")
    there = profiler.ask(cells) if here else {}
    comparisons = {cell.key: profiler.compare(cell, there[cell.key], arch) for cell in cells if here}
    if arguments.record:
        record(profiler.project, comparisons, arch)
    if arguments.rung:
        (cell,) = cells
        counts = profiler.counts(cell)
        show_counts(cell, counts, console)
        if here:
            show_comparison(comparisons[cell.key], arch, console)
        show_lines(profiler.source(cell), counts, console)
        show_figures(profiler, cell, [arch] if here else ARCHES, console)
    else:
        show_all(profiler, cells, comparisons, console)
    return 0 if all(map(explained, comparisons.values())) else 2


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("op", nargs="?", metavar="op[/rung]", help=f"of {', '.join(project.ops)} (default: all)")
    parser.add_argument("rung", nargs="?", help="one of its rungs")
    parser.add_argument("--type", help="an element type of the rung (default: its main one)")
    parser.add_argument("--shape", help="extents, such as 256x256 (default: the suite's); larger ones take longer")
    parser.add_argument("--record", action="store_true", help="keep ncu's counters among the results")
    parsed = parser.parse_args(arguments)
    if parsed.op and "/" in parsed.op and not parsed.rung:
        parsed.op, parsed.rung = parsed.op.split("/", 1)
    check_described(project, project.rungs())
    if parsed.op and parsed.op not in project.ops:
        parser.error(f"no op {parsed.op}; there are {', '.join(project.ops)}")
    profiler = Profiler(project, import_package(project, str(project.repository)))
    try:
        return profile(profiler, parsed, Output())
    except (Absent, NotHere) as error:
        raise UserError(str(error)) from None
