"""Find the rungs that two trees may launch differently.

What a rung is made from is first read from the sources of both trees. A rung for which that differs, or cannot be told,
is then launched once on each side, if this machine can, and its process says what it loaded and read.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelwatch.analysis import identified
from kernelwatch.plan import sources
from kernelwatch.plan.build import environment
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.package import Parts
from kernelwatch.plan.project import Project
from kernelwatch.plan.tree import COMPILED, Places
from kernelwatch.run.group import measure_once
from kernelwatch.run.processes import Run
from kernelwatch.system import cache
from kernelwatch.system.options import Options
from kernelwatch.timing.check import Budget

ENDLESS_S = 120.0  # a rung that does not end when it is launched once is told by its sources
VERSION = 1  # of the kept answers: raised when they have another meaning
ENTRY = "its entry in the table of rungs"


@dataclass(frozen=True)
class Launch:
    """What decides the launch of a rung in a tree.

    `files`: file -> digest of what counts of it. `entry`: how the tree declares the rung. `binary`: the identity of
    what was launched here, "" if it was not launched, or if that is one of sources. `whole`: whether there is certainly
    nothing else; if not, `files` has all files of the tree. `accounted`: files for which the entry stands. `maybe`:
    those of `files` that it may read or not.
    """

    files: Mapping[str, str]
    entry: str = ""
    binary: str = ""
    whole: bool = True
    accounted: frozenset[str] = frozenset()
    maybe: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Changes:
    """How the launches of two trees differ, by rung ("op/rung").

    `same`: certainly launched alike. `launched`: launched otherwise, with the files that differ. `compiled`: only
    sources for a compiler differ, so that the binaries may be equal. `new`, `gone`: the rungs that only the second or
    the first tree has, some of which the checkout may not describe. `rebuilt`: those of `same` that sources which
    differ were compiled to the same binary. `broken`: why the package of either tree cannot be imported, or "".
    """

    same: frozenset[str] = frozenset()
    launched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    broken: tuple[str, str] = ("", "")

    @property
    def rungs(self) -> list[str]:
        """All that may be launched differently, without those that are gone."""
        return [*self.launched, *self.compiled, *self.new]

    def only(self, rungs: Iterable[str]) -> "Changes":
        """The same of these rungs only."""
        wanted = set(rungs)
        return Changes(
            self.same & wanted,
            {rung: files for rung, files in self.launched.items() if rung in wanted},
            {rung: files for rung, files in self.compiled.items() if rung in wanted},
            tuple(rung for rung in self.new if rung in wanted),
            tuple(rung for rung in self.gone if rung in wanted),
            tuple(rung for rung in self.rebuilt if rung in wanted),
            self.broken,
        )


def changes(project: Project, base: str, head: str, rungs: Iterable[str] | None = None) -> Changes:
    """How two trees differ. `base`, `head`: their folders, "" for a tree without anything; `rungs`: those that are
    asked, by default all that the checkout describes or a tree lists. Raises: UserError."""
    asked = list(dict.fromkeys(project.rungs() if rungs is None else rungs))
    broken = why_broken(project, base), why_broken(project, head)
    if any(broken):
        return Changes(broken=broken)
    before, after = read(project, base, asked), read(project, head, asked)
    unclear = [rung for rung in asked if rung in before and rung in after and _differ(before[rung], after[rung])]
    for side, folder in ((before, base), (after, head)):
        for rung, seen in ran(project, folder, unclear).items():
            if seen is None:
                del side[rung]
            else:
                side[rung] = _merged(side[rung], seen)
    return classify(before, after, described=set(asked) if rungs is not None else None)


def why_broken(project: Project, folder: str) -> str:
    """Why the measured package cannot be imported from a tree; "" if it can, or if it is not there."""
    if not folder:
        return ""
    tree = str(project.here), folder, _content(project, folder)
    if tree not in _why_broken:  # a search for a commit compares the same trees again and again
        probe = Run(project, [], "static", folder, Budget(0, 0.0)).probe()
        _why_broken[tree] = probe.unavailable if probe.broken else ""
    return _why_broken[tree]


_why_broken: dict[tuple[str, str, str], str] = {}  # by description, folder and content of the tree


def classify(base: Mapping[str, Launch], head: Mapping[str, Launch], described: set[str] | None = None) -> Changes:
    """How the launches on two sides differ. `described`: the only rungs that count, None for all."""
    same, launched, compiled, rebuilt = set(), {}, {}, []
    names = [rung for rung in dict.fromkeys((*head, *base)) if described is None or rung in described]
    for rung in names:
        if rung not in base or rung not in head:
            continue
        before, after = base[rung], head[rung]
        differ = _differ(before, after)
        if not differ:
            same.add(rung)
        elif before.whole and after.whole and all(Path(name).suffix in COMPILED for name in differ):
            if before.binary and before.binary == after.binary:
                same.add(rung)
                rebuilt.append(rung)
            else:
                compiled[rung] = differ
        else:
            launched[rung] = differ
    new = tuple(rung for rung in names if rung not in base)
    gone = tuple(rung for rung in names if rung not in head)
    return Changes(frozenset(same), launched, compiled, new, gone, tuple(rebuilt))


def _differ(before: Launch, after: Launch) -> tuple[str, ...]:
    """What differs between two launches."""
    files = sorted(
        name for name in before.files.keys() | after.files.keys() if before.files.get(name) != after.files.get(name)
    )
    return (*([ENTRY] if before.entry != after.entry else []), *files)


# --- from the sources ----------------------------------------------------------------------------------------------


def read(project: Project, folder: str, rungs: Iterable[str]) -> dict[str, Launch]:
    """What decides the launches of a tree's rungs, as far as its sources tell it: of these rungs, and of those that the
    tree lists besides. A rung of which nothing is known may depend on every file."""
    if not folder:
        return {}
    places = project.places(folder)
    if not project.is_in(places):
        return {}
    digests: dict[Path, str] = {}

    def of(paths: Iterable[Path]) -> dict[str, str]:
        digests.update({path: sources.digest(path) for path in paths if path not in digests})
        return {places.name(path): digests[path] for path in paths}

    parts = project.parts_in(places)
    everything: dict[str, str] = {}
    found: dict[str, Launch] = {}
    for rung in dict.fromkeys((*rungs, *parts)):
        part = parts.get(rung)
        if part is None and parts and project.parts:
            continue  # the tree lists its rungs, and has no such; code may add more to a table
        if part is not None and part.whole:
            certain = (set(part.sources) | places.included(part.sources)) - part.others
            data = set(sources.data(places)) - part.others - certain if part.data else set()
            files, maybe = of(sorted(certain | data)), frozenset(map(places.name, data))
            found[rung] = Launch(files, part.launch, accounted=_names(places, part), maybe=maybe)
            continue
        everything = everything or of(list(places.files()))
        accounted = _names(places, part) if part else frozenset()
        files = {name: value for name, value in everything.items() if name not in accounted}
        found[rung] = Launch(files, part.launch if part else "", whole=False, accounted=accounted)
    return found


def _names(places: Places, part: Parts) -> frozenset[str]:
    return frozenset(map(places.name, part.others))


# --- from the processes --------------------------------------------------------------------------------------------


def cell_of(project: Project, rung: str) -> Cell | None:
    """The smallest cell of a rung on one device; None if no suite times it."""
    op, _, name = rung.partition("/")
    if op not in project.ops or name not in {each.name for each in project.ops[op].rungs}:
        return None
    problem = project.ops[op]
    device = problem.rung(name).device
    cells = [cell for cell in plan(problem, device) if cell.rung == name and cell.type == problem.main_type(name)]
    return min(cells, key=lambda cell: (math.prod(cell.shape), cell.cache != "hot"), default=None)


def ran(project: Project, folder: str, rungs: Iterable[str]) -> dict[str, Launch | None]:
    """What decided the launches of rungs that were launched once here, None for a rung that the tree does not have.
    Those that cannot be launched are left out: their sources say what they are made from.

    The answers are kept by the tree's files, the description and the environment.
    """
    cells = [cell for rung in rungs if (cell := cell_of(project, rung))]
    gpu = gpu_here()
    cells = [cell for cell in cells if folder and (cell.device == "cpu" or gpu)]
    if not cells:
        return {}
    conditions = [VERSION, _content(project, folder), _described(project), environment(), gpu]
    keys = {cell.key: hashlib.sha256(json.dumps([cell.key, *conditions]).encode()).hexdigest() for cell in cells}
    answers = {key: answer for key, kept in keys.items() if (answer := cache.noted(kept, ".launch")) is not None}
    unknown = [cell for cell in cells if cell.key not in answers]
    for device in ("cpu", "gpu"):
        own = [cell for cell in unknown if cell.device == device]
        if own:
            group = measure_once(project, "launches", identified.DEVICE, own, Options(tree=folder), ENDLESS_S)
            for cell in own:
                for told in group.outcomes[cell.key].measurements:
                    answers[cell.key] = dict(told)
                    if not told["error"] or told["absent"]:
                        cache.note(keys[cell.key], ".launch", told)
    found: dict[str, Launch | None] = {}
    for cell in cells:
        answer = answers.get(cell.key, {"error": "it did not end"})
        if answer.get("absent"):
            found[cell.name] = None
        elif not answer["error"]:
            found[cell.name] = Launch(answer["files"], "", answer["identity"])
    return found


def _content(project: Project, folder: str) -> str:
    """A hash of the files of a tree on which a kernel may depend: of their bytes, since that is quicker than to parse
    them all, and a comment that changes costs one launch of the rungs that are asked."""
    digest = hashlib.sha256()
    for path in project.places(folder).files():
        content = os.fsencode(os.readlink(path)) if path.is_dir() else path.read_bytes()  # a link to a folder
        runs = os.access(path, os.X_OK)
        digest.update(os.fsencode(path.relative_to(folder)) + f"\0{runs}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _described(project: Project) -> str:
    """A hash of the description: its folder's modules, which may hold the table of rungs."""
    files = sorted(project.here.parent.rglob("*.py"))
    return hashlib.sha256("".join(map(sources.digest, files)).encode()).hexdigest()


def gpu_here() -> str:
    """The name and the driver of CUDA's first GPU, "" if there is none."""
    try:
        import cupy

        runtime = cupy.cuda.runtime
        return f"{runtime.getDeviceProperties(0)['name'].decode()} {runtime.driverGetVersion()}"
    except Exception:  # no CuPy, no driver, no GPU: each has an error of its own
        return ""


def _merged(known: Launch, seen: Launch) -> Launch:
    """What sources tell together with what a process used. Sources that tell all Python modules of a rung are more
    exact than its process, which may have loaded those of others as well; they do not tell which other files it reads.
    """
    files = {name: value for name, value in seen.files.items() if name not in known.accounted}
    if known.whole:
        certain = {name: value for name, value in known.files.items() if name not in known.maybe}
        files = certain | {name: value for name, value in files.items() if not name.endswith(".py")}
    return Launch(files, known.entry, seen.binary)
