"""What a group's GPU cells need compiled, so that parallel workers compile it before the first process measures.

Else each first process compiles one rung after another, while it holds the GPU. A worker compiles in the environment of
the processes that measure, so the package finds in its own cache what it would compile itself.
"""

import hashlib
import json
import os
from pathlib import Path

from kernelwatch.analysis.compiled import target
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.project import Project
from kernelwatch.run.outcome import Group
from kernelwatch.run.processes import Run
from kernelwatch.system import cache
from kernelwatch.timing.check import packages

TARGETS_LEAST = 2  # for a worker: it starts about as fast as a kernel compiles
WORKERS_MOST = 32  # each takes some 100 MiB
ENDLESS_S = 120.0  # what compiles for longer is left to its own cell
DONE = ".ahead"


def targets(project: Project, cells: list[Cell], arch: str) -> list[Cell]:
    """What the cells need compiled for an architecture: each CUDA rung and type once, in the order of the cells.

    What compiles in another way, such as Triton's rungs, keeps it where only its own launch finds it.
    """
    found = {
        compiled.key: compiled
        for cell in cells
        if not cell.reference and project.ops[cell.op].rung(cell.rung).is_cuda
        for compiled in [target(cell.op, cell.rung, cell.type, arch)]
    }
    return list(found.values())


def workers(targets: list[Cell]) -> int:
    """How many workers compile these; fewer than two save no time."""
    return min(len(os.sched_getaffinity(0)), WORKERS_MOST, len(targets) // TARGETS_LEAST)


def _key(run: Run, targets: list[Cell]) -> str:
    """Of all that decides where the tree's cubins lie, as far as it is known here."""
    named = [run.project.places(run.tree).content(), *(cell.key for cell in targets)]
    return hashlib.sha256(json.dumps([named, packages(run.project.conditions)]).encode()).hexdigest()


def known(run: Run, targets: list[Cell]) -> bool:
    """Whether these were compiled before, and what was made then is still there."""
    noted = cache.noted(_key(run, targets), DONE)
    return noted is not None and all(Path(path).is_file() for path in noted["cubins"])


def note(run: Run, targets: list[Cell], compiled: Group) -> None:
    """Remember which cubins there are. Those that do not compile are not tried ahead again: their cells tell why."""
    measured = [one for outcome in compiled.outcomes.values() for one in outcome.measurements]
    cache.note(_key(run, targets), DONE, {"cubins": [one["cubin"] for one in measured]})
