#!/usr/bin/env python3
"""Write gpukernels/best.toml: by GPU, op, type and kind of rows, the fastest rungs at each shape measured cold.

`load(op, "best", type)` chooses from it. The figures of an op are those of the newest commit at which a GPU timed it,
and those of `scripts/lab/shapes --train`. --check tells how good the choice is at each shape if that one was left out.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from gpukernels import best, rung
from kernelwatch.history.records import Record, read, sidecars
from kernelwatch.plan.problem import Problem
from kernelwatch.report.arguments import Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole

TRAINED = "shapes.jsonl"  # of scripts/lab/shapes --train, in a machine's folder of results/
HEAD = """\
# Written by scripts/lab/best from results/: by GPU, op, type and kind of rows (whole: of whole vectors of 16 bytes),
# the seconds of the fastest rungs at each shape that was measured, operands in memory, relative to the fastest.
# gpukernels/best.py reads it.
"""


Relative = dict[str, dict[str, dict[str, float]]]  # "type rows" -> shape -> rung -> seconds relative to the fastest


def relative(seconds: dict[str, float]) -> dict[str, float]:
    """The seconds of rungs relative to the fastest, in their order, without those that are SLOW."""
    least = min(seconds.values())
    ordered = sorted((value / least, name) for name, value in seconds.items())
    return {name: round(ratio, 3) for ratio, name in ordered if ratio < best.SLOW}


def fastest(record: Record, problem: Problem, capability: int) -> Relative:
    """The fastest rungs of a record, of those that `best` may take, by their medians."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for own in problem.rungs:
        entry = rung(problem.name, own.name)
        for type in own.types if own.device == "gpu" else ():
            for shape in problem.shapes if best.fits(entry, type, capability) else ():
                extents = dict(zip(entry.dims, shape, strict=True))
                cell = record.cells.get(f"{problem.name}/{own.name} {type} {best.label(extents)} cold")
                if cell is None or not cell.seconds:
                    continue
                kind = best.rows(type, extents, (*entry.inputs, entry.output))
                by_shape = found.setdefault(f"{type} {kind}", {})
                by_shape.setdefault(best.label(extents), {})[own.name] = cell.median_s
    return _relative(found)


def trained(paths: Iterable[Path], gpu: str, problem: Problem, capability: int) -> Relative:
    """The same of the records of scripts/lab/shapes --train. A rung that the ladder no longer has is left out."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for path in paths:
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if line.get("device") != gpu or line["op"] != problem.name:
                continue
            able = {each.name: each for each in map(partial(rung, problem.name), _known(problem, line))}
            seconds = {
                name: line["rungs"][name] for name, each in able.items() if best.fits(each, line["type"], capability)
            }
            if not seconds:
                continue
            each = next(iter(able.values()))
            extents = dict(zip(each.dims, line["shape"], strict=True))
            kind = best.rows(line["type"], extents, (*each.inputs, each.output))
            found.setdefault(f"{line['type']} {kind}", {})[best.label(extents)] = seconds
    return _relative(found)


def _known(problem: Problem, line: dict[str, Any]) -> list[str]:
    return [own.name for own in problem.rungs if own.name in line.get("rungs", {})]


def _relative(found: Relative) -> Relative:
    return {name: {shape: relative(seconds) for shape, seconds in by_shape.items()} for name, by_shape in found.items()}


def newest(folder: Path, group: str) -> Record | None:
    """The newest record of a machine that has a group, such as "matmul gpu"."""
    paths = [path for path in sidecars(PROJECT.results) if path.parent == folder]
    return next((record for path in reversed(paths) if group in (record := read(path)).facts), None)


def tables() -> dict[str, Any]:
    """The content of best.toml from the records of each GPU in results/. Raises: UserError if there is none."""
    found: dict[str, Any] = {}
    for folder in sorted({path.parent for path in sidecars(PROJECT.results)}):
        for problem in PROJECT.problems:
            if not (record := newest(folder, group := f"{problem.name} gpu")):
                continue
            facts = record.facts[group]
            capability = int(facts["compute_capability"])
            entry = found.setdefault(facts["gpu"], {"capability": capability, "commits": {}})
            entry["commits"][problem.name] = record.commit
            learned = trained(sorted(PROJECT.results.glob(f"*/{TRAINED}")), facts["gpu"], problem, capability)
            measured = fastest(record, problem, capability)
            kinds = dict.fromkeys((*measured, *learned))
            entry[problem.name] = {kind: learned.get(kind, {}) | measured.get(kind, {}) for kind in kinds}
    if not found:
        raise UserError(f"nothing recorded on a GPU under {PROJECT.results}; scripts/bench measures")
    return found


def toml(content: dict[str, Any]) -> str:
    lines = [HEAD]
    for gpu, entry in content.items():
        name = json.dumps(gpu)
        commits = ", ".join(f"{op} = {json.dumps(commit)}" for op, commit in entry["commits"].items())
        lines += [f"[{name}]", f"capability = {entry['capability']}", f"commits = {{ {commits} }}", ""]
        for op in entry["commits"]:
            for kind, by_shape in entry[op].items():
                lines.append(f"[{name}.{op}.{json.dumps(kind)}]")
                lines += [f"{json.dumps(shape)} = {_inline(by_rung)}" for shape, by_rung in by_shape.items()] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _inline(by_rung: dict[str, float]) -> str:
    return f"{{ {', '.join(f'{name} = {value:g}' for name, value in by_rung.items())} }}"


def check(content: dict[str, Any]) -> str:
    """How good the choice at each measured shape is if that shape was left out: a table by GPU, op, type and rows."""
    lines = []
    for gpu, entry in content.items():
        for op in entry["commits"]:
            for name in entry[op]:
                costs = left_out(entry[op], name)
                good = sum(cost <= 1.01 for cost in costs)
                about = f"{good} of {len(costs)} within 1 %, the worst {max(costs):.2f} of it" if costs else "alone"
                lines.append(f"{gpu} {op} {name}: {about}")
    return "\n".join(lines)


def left_out(measured: Relative, name: str) -> list[float]:
    """For each shape of a type and kind of rows, the seconds of what is chosen without it, over those of cuBLAS, or of
    the fastest rung if cuBLAS was not timed there or was slow."""
    type, kind = name.split()
    costs = []
    for shape, by_rung in measured[name].items():
        others = {key: {at: own for at, own in each.items() if at != shape} for key, each in measured.items()}
        known = best.relevant({key: each for key, each in others.items() if each}, type, kind)
        if not known:
            continue
        extents = {str(at): int(side) for at, side in enumerate(shape.split("x"))}
        chosen = best.ranked(extents, known)[0]
        costs.append(by_rung.get(chosen, best.SLOW) / by_rung.get(best.VENDOR, min(by_rung.values())))
    return costs


def main(arguments: list[str] | None = None) -> int:
    """Write the table, or check the choice; the exit code."""
    parser = Parser("scripts/lab/best", __doc__)
    parser.add_argument("--check", action="store_true", help="only tell how good the choice is at shapes left out")
    options = parser.parse_args(arguments)
    if options.check:
        print(check(tables()))
        return 0
    write_whole(best.TABLE, toml(tables()))
    print(f"written: {best.TABLE.relative_to(PROJECT.root)}")
    return 0
