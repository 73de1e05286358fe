#!/usr/bin/env python3
"""Write gpukernels/best.toml: by GPU, op, type and kind of rows, the fastest rung at each shape that was measured cold.

`load(op, "best", type)` chooses from it. The figures of an op are those of the newest commit at which a GPU timed it.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
from pathlib import Path
from typing import Any

from benchmarks.project import PROJECT
from gpukernels import best, rung
from kernelwatch.history.records import Record, read, sidecars
from kernelwatch.plan.problem import Problem
from kernelwatch.report.arguments import Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole

HEAD = """\
# Written by scripts/lab/best from results/: by GPU, op, type and kind of rows (whole: of whole vectors of 16 bytes),
# the fastest rung at each shape that was measured, operands in memory. gpukernels/best.py reads it.
"""


def winners(record: Record, problem: Problem, capability: int) -> dict[str, dict[str, str]]:
    """ "type rows" -> shape -> the rung with the least median there, of those that `best` may take."""
    found: dict[str, dict[str, tuple[float, str]]] = {}
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
                known = by_shape.get(best.label(extents))
                by_shape[best.label(extents)] = min(known or (cell.median_s, own.name), (cell.median_s, own.name))
    return {name: {shape: winner for shape, (_, winner) in table.items()} for name, table in found.items()}


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
            entry[problem.name] = winners(record, problem, capability)
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
                lines += [f"{json.dumps(shape)} = {json.dumps(winner)}" for shape, winner in by_shape.items()] + [""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the table; the exit code."""
    Parser("scripts/lab/best", __doc__).parse_args(arguments)
    write_whole(best.TABLE, toml(tables()))
    print(f"written: {best.TABLE.relative_to(PROJECT.root)}")
    return 0
