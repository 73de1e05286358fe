"""Look at the kernels of events, on both sides: compile them without a GPU, and count their accesses on the emulator.

Each kernel of a commit is looked at once: what was found is kept in the engine's cache. A publication looks at the
kernels of a few events, the newest open regressions first, and the next one at those of more. Only commits of the
configured branches are compiled, since that runs their code. Nothing here fails a publication: what cannot be done has
a reason.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asv.console import log

from kernelwatch.analysis import compiled
from kernelwatch.analysis.explained import DEVICE
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.analysis.sass import listing
from kernelwatch.detect.events import Event
from kernelwatch.identity import COMPILED, COUNTED
from kernelwatch.plan.build import environment, tree_of_commit
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.project import Project
from kernelwatch.run.processes import Run
from kernelwatch.system import cache
from kernelwatch.system.tools import digest

VERSION = 1  # of what is kept: raised when it has another meaning
SUFFIX = ".explained"
EVENTS = 8  # looked at in one publication; "explained_events" in asv.conf.json is another number
KERNELS = 3  # of an event
LIMIT_S = 120.0  # for all that a publication looks at
SILENCE_S = 30.0
ENDLESS_S = 60.0
ARCH = "sm_90"  # if nothing says for which architecture a change was measured

Side = Mapping[str, Any]  # what was found of a kernel at a commit: see `_found`


@dataclass(frozen=True)
class Kernel:
    """A kernel of an event. `cell`: its rung, type and architecture; `before`, `after`: what was found at both
    commits; `why`: why that is nothing, or ""."""

    cell: Cell
    before: Side = field(default_factory=dict)
    after: Side = field(default_factory=dict)
    why: str = ""


def kernels_of(event: Event, keys: Iterable[str], project: Project | None, arch: str) -> tuple[list[Cell], str]:
    """The kernels whose cells have these keys, and if there are none, why. `arch`: that of the machine, or ""."""
    if not project:
        return [], "this project has no description, so it is not known how its kernels are compiled"
    if event.kind == "environment":
        return [], "no commit caused it"
    if event.narrowest.series.own is not None:
        return [], "only commits of the configured branches are compiled"
    found: dict[tuple[str, str, str, str], Cell] = {}
    others: list[str] = []
    for key in keys:
        name, _, rest = key.partition(" ")
        op, _, rung = name.partition("/")
        type, _, place = rest.partition(" ")
        if op not in project.ops or rung not in compiled.compiled(project.ops[op]):
            others.append(name)
            continue
        own = place if place in ARCHES else arch or ARCH
        found.setdefault((op, rung, type, own), compiled.target(op, rung, type, own))
    if not found:
        named = ", ".join(dict.fromkeys(filter(None, others)))
        return [], f"no compiled rung: {named or 'the figures that changed'} cannot be compiled without a GPU"
    return list(found.values())[:KERNELS], ""


class Explaining:
    """The looks of one publication. `most`: how many events it looks at anew."""

    def __init__(self, project: Project | None, most: int = EVENTS) -> None:
        self.project, self.left, self.until = project, most, time.monotonic() + LIMIT_S
        self.most = most
        self._seen: dict[tuple[str, str], Side] = {}

    def explain(self, before: str, after: str, cells: Sequence[Cell]) -> list[Kernel]:
        """These kernels at both commits."""
        if not self.project or not cells:
            return []
        if self.project.build or self.project.wheels:
            return [Kernel(cell, why="the project's trees are built, which publishing does not do") for cell in cells]
        missing = {commit: [cell for cell in cells if self._side(commit, cell) is None] for commit in (before, after)}
        if any(missing.values()):
            if self.left <= 0 or time.monotonic() > self.until:
                why = (
                    f"one publication looks at {self.most} events (explained_events in asv.conf.json), "
                    "the newest open regressions first; the next one looks at more"
                )
                return [Kernel(cell, why=why) for cell in cells]
            self.left -= 1
        for commit, wanted in missing.items():
            if wanted:
                self._look(commit, wanted)
        return [self._kernel(cell, before, after) for cell in cells]

    def _kernel(self, cell: Cell, before: str, after: str) -> Kernel:
        sides = [self._side(commit, cell) or {} for commit in (before, after)]
        reasons = [side.get("why") for side in sides]
        why = next((f"{commit[:8]}: {why}" for commit, why in zip((before, after), reasons, strict=True) if why), "")
        return Kernel(cell, sides[0], sides[1], why)

    def _side(self, commit: str, cell: Cell) -> Side | None:
        place = commit, self._key(commit, cell)
        if place not in self._seen and (kept := cache.noted(place[1], SUFFIX)) is not None:
            self._seen[place] = kept
        return self._seen.get(place)

    def _key(self, commit: str, cell: Cell) -> str:
        assert self.project
        description = hashlib.sha256(self.project.here.read_bytes()).hexdigest()
        engine = VERSION, COMPILED.version, COUNTED.version, environment()
        # A commit says the same in each clone; of two projects in one repository each is in a folder of its own.
        folder = os.path.relpath(self.project.root, self.project.repository)
        return digest("explained", engine, folder, commit, cell.key, description)

    def _look(self, commit: str, cells: Sequence[Cell]) -> None:
        assert self.project
        try:
            with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
                tree = tree_of_commit(self.project, commit, Path(folder, "tree"))
                found = _found(self.project, tree, cells)
        except Exception as error:  # whatever the error, it must not end the publication
            found = {cell.key: {"why": f"{type(error).__name__}: {error}"} for cell in cells}
        for cell in cells:
            side, key = found[cell.key], self._key(commit, cell)
            self._seen[commit, key] = side
            if not side.get("why"):  # what failed may succeed the next time
                cache.note(key, SUFFIX, side)


def _found(project: Project, tree: str, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """By key, what a tree's package says of these kernels (analysis/explained.py): `static` and `counted`, the figures
    as a sidecar has them; `listing`, the SASS as nvdisasm prints it, and `code`, a digest of it; `lines`, `text`,
    `source`, `counted_at`, `grids`, `block`; `no_binary` and `no_lines`, why there are none; or only `why`."""
    run = Run(project, [*cells], DEVICE, tree, Budget(0, 0.0), SILENCE_S, ENDLESS_S)
    run.note = log.debug
    run.measure_all(0)
    found = {}
    for cell in cells:
        outcome = run.group.outcomes[cell.key]
        if not outcome.measurements:
            found[cell.key] = {"why": outcome.reason or outcome.state}
            continue
        told: dict[str, Any] = dict(outcome.measurements[0])
        found[cell.key] = {**_counted(told), **_compiled(told, cell)}
    return found


def _counted(told: Mapping[str, Any]) -> dict[str, Any]:
    names = "source", "text", "lines", "counted_at", "grids", "block", "no_lines"
    kinds = "global_load", "global_store", "shared_load", "shared_store", "blocks", "barriers"
    known = {name: told[name] for name in names if name in told}
    return known | ({"counted": {kind: told[kind] for kind in kinds}} if "lines" in told else {})


def _compiled(told: dict[str, Any], cell: Cell) -> dict[str, Any]:
    if "cubin" not in told:
        return {"no_binary": told.get("no_binary", "")}
    if cell.arch not in ARCHES:
        return {"no_binary": f"the figures of a kernel for {cell.arch} are not known"}
    names = "cubin", "symbol", "block_threads", "dynamic_shared_bytes"
    content, symbol = Path(told["cubin"]).read_bytes(), told["symbol"]
    figures: Any = {name: told[name] for name in names}
    unreadable, missing = compiled.read({cell.key: (cell.arch, figures)})
    if unreadable:
        return {"no_binary": unreadable[cell.key]}
    found: dict[str, Any] = {"static": figures}
    if "instructions" in figures:
        code = read_cubin(content, symbol, cell.arch).code
        found["listing"], found["code"] = listing([code], cell.arch), hashlib.sha256(code).hexdigest()
    else:
        found["no_binary"] = "; ".join(missing.values())
    return found
