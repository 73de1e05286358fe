"""Find the rungs that two trees may launch differently.

What a rung is made from is first read from the sources of both trees. A rung for which that differs, or cannot be told,
is then launched on each side, if this machine can, with each of its types at each of its shapes, and its process says
what it loaded and read. Several rungs are launched at a time. What C code and other processes open in a tree is seen of
all of them, so a rung that seems to differ is launched once more, alone.
"""

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelwatch.analysis import identified
from kernelwatch.plan import sources
from kernelwatch.plan.build import environment
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Parts
from kernelwatch.plan.project import Project
from kernelwatch.plan.tree import BUILT, COMPILED, EXPORTED, Places
from kernelwatch.run.group import CELLS_LEAST, measure_once
from kernelwatch.run.processes import Run
from kernelwatch.system import cache
from kernelwatch.system.holding import holding
from kernelwatch.system.machine import first_gpu
from kernelwatch.system.options import Options
from kernelwatch.timing.cpu import cpu_name

LAUNCHING_MOST = max(2, (os.cpu_count() or 1) // 2)  # processes that launch at a time; they mostly compile
ENDLESS_S = 120.0  # a rung whose first launch does not end is told by its sources
# Variables that differ between terminals and runs, and that no kernel reads.
OF_A_SESSION = re.compile(
    r"^(_|PWD|OLDPWD|SHLVL|TERM.*|COLUMNS|LINES|WINDOWID|COLORTERM|NO_COLOR|LS_COLORS|LESS.*|PAGER|EDITOR|PS1|HIST.*)$"
    r"|^(SSH|XDG_SESSION|DBUS|TMUX|STY|VTE|PYTEST|KERNELWATCH|ASV|GIT|GITHUB|RUNNER|CI)(_|$)"
)
VERSION = 7  # of the kept answers: raised when they have another meaning
ENTRY = "its entry in the table of rungs"


@dataclass(frozen=True)
class Launch:
    """What decides the launch of a rung in a tree.

    `files`: file -> digest of what counts of it. `entry`: how the tree declares the rung. `binaries`: the identity of
    what was launched here by type and shape ("float32 64x64"), "" if that is one of sources. `skipped`: why it was not
    launched here, by type and shape. `whole`: whether there is certainly nothing else; if not, `files` has all files of
    the tree. `accounted`: files for which the entry stands. `maybe`: those of `files` that it may read or not.
    """

    files: Mapping[str, str]
    entry: str = ""
    binaries: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True
    accounted: frozenset[str] = frozenset()
    maybe: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Changes:
    """How the launches of two trees differ, by rung ("op/rung").

    `same`: certainly launched alike. `launched`: launched otherwise, with the files that differ. `compiled`: only
    sources for a compiler differ, so that the binaries may be equal. `types`: of a rung in `compiled` that was launched
    here, the types whose binaries differ, or are not known. `new`, `gone`: the rungs that only the second or the first
    tree has, some of which the checkout may not describe. `rebuilt`: those of `same` of which sources that differ were
    compiled to the same binaries; `skipped`: of these, by type and shape, why a launch is not known. `broken`: why the
    package of either tree cannot be imported, or "".
    """

    same: frozenset[str] = frozenset()
    launched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    skipped: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
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
            {rung: types for rung, types in self.types.items() if rung in wanted},
            tuple(rung for rung in self.new if rung in wanted),
            tuple(rung for rung in self.gone if rung in wanted),
            tuple(rung for rung in self.rebuilt if rung in wanted),
            {rung: places for rung, places in self.skipped.items() if rung in wanted},
            self.broken,
        )


def changes(
    project: Project, base: str, head: str, rungs: Iterable[str] | None = None, *, launch: bool = True
) -> Changes:
    """How two trees differ. `base`, `head`: their folders, "" for a tree without anything; `rungs`: those that are
    asked, by default all that the checkout describes or a tree lists; `launch`: whether rungs whose sources differ are
    launched to see what they use. Raises: UserError."""
    asked = list(dict.fromkeys(project.rungs() if rungs is None else rungs))
    broken = why_broken(project, base), why_broken(project, head)
    if any(broken):
        return Changes(broken=broken)
    before, after = read(project, base, asked), read(project, head, asked)
    unclear = [rung for rung in asked if rung in before and rung in after and _differ(before[rung], after[rung])]
    unclear = unclear if launch else []
    told = {**before}, {**after}
    for alone in (True,) if len(unclear) < 2 * CELLS_LEAST else (False, True):
        seen = [ran(project, folder, unclear, alone=alone) for folder in (base, head)]
        for side, known, launches_seen in zip((before, after), told, seen, strict=True):
            for rung, launched in launches_seen.items():
                if launched is None:
                    del side[rung]
                else:
                    side[rung] = _merged(known[rung], launched)
        both = [rung for rung in unclear if seen[0].get(rung) and seen[1].get(rung)]
        unclear = [rung for rung in both if _differ(before[rung], after[rung])]
    found = classify(before, after, described=set(asked) if rungs is not None else None)
    if not (base and head):
        return found
    made_from = _MadeFrom(project.places(base), project.places(head))
    return replace(found, launched={rung: made_from.told(files) for rung, files in found.launched.items()})


def why_broken(project: Project, folder: str) -> str:
    """Why the measured package cannot be imported from a tree; "" if it can, or if it is not there."""
    if not folder:
        return ""
    tree = str(project.here), folder, project.places(folder).content(whole=True)
    if tree not in _why_broken:  # a search for a commit compares the same trees again and again
        probe = Run(project, [], "static", folder, Budget(0, 0.0)).probe()
        _why_broken[tree] = probe.unavailable if probe.broken else ""
    return _why_broken[tree]


_why_broken: dict[tuple[str, str, str], str] = {}  # by description, folder and content of the tree


def classify(base: Mapping[str, Launch], head: Mapping[str, Launch], described: set[str] | None = None) -> Changes:
    """How the launches on two sides differ. `described`: the only rungs that count, None for all."""
    same, rebuilt = set(), []
    launched, compiled, types = {}, {}, dict[str, tuple[str, ...]]()
    skipped = {}
    names = [rung for rung in dict.fromkeys((*head, *base)) if described is None or rung in described]
    for rung in names:
        if rung not in base or rung not in head:
            continue
        before, after = base[rung], head[rung]
        differ = _differ(before, after)
        if not differ:
            same.add(rung)
        elif before.whole and after.whole and all(Path(name).suffix in COMPILED for name in differ):
            others = _other_binaries(before, after)
            if others == ():
                same.add(rung)
                rebuilt.append(rung)
                skipped[rung] = {**before.skipped, **after.skipped}
            else:
                compiled[rung] = differ
                types |= {rung: others} if others else {}
        else:
            launched[rung] = differ
    new = tuple(rung for rung in names if rung not in base)
    gone = tuple(rung for rung in names if rung not in head)
    return Changes(frozenset(same), launched, compiled, types, new, gone, tuple(rebuilt), skipped)


def _other_binaries(before: Launch, after: Launch) -> tuple[str, ...] | None:
    """The types of which a binary differs, or is not known; None if nothing was launched."""
    if not (before.binaries and after.binaries):
        return None
    pairs: dict[str, list[tuple[str, str]]] = {}
    for place in {**before.binaries, **after.binaries, **before.skipped, **after.skipped}:
        both = pairs.setdefault(place.partition(" ")[0], [])
        if place in before.binaries and place in after.binaries:
            both.append((before.binaries[place], after.binaries[place]))
    return tuple(type for type, both in pairs.items() if not both or any(not old or old != new for old, new in both))


def _differ(before: Launch, after: Launch) -> tuple[str, ...]:
    """What differs between two launches."""
    files = sorted(
        name for name in before.files.keys() | after.files.keys() if before.files.get(name) != after.files.get(name)
    )
    return (*([ENTRY] if before.entry != after.entry else []), *files)


class _MadeFrom:
    """What the files that a build made of two trees may be made from, of what differs between their commits."""

    def __init__(self, *trees: Places) -> None:
        self.trees = trees
        self.exported = [_exported(places.folder) for places in trees]

    def told(self, differ: tuple[str, ...]) -> tuple[str, ...]:
        """What differs, with the files that it is made from before what was made."""
        made = [name for name in differ if self._is_made(name)]
        found = dict.fromkeys(name for name in differ if name not in made)
        for name in made:
            copied = [each for each in self._sources if f"/{each}".endswith(f"/{name.removeprefix(f'{BUILT}/')}")]
            read = [each for each in self._sources if not each.endswith(".py")] or list(self._sources)
            found |= dict.fromkeys(copied or [*read, name])
        return tuple(found)

    def _is_made(self, name: str) -> bool:
        if None in self.exported:  # nothing was built, or that was not kept yet
            return False
        is_there = any((places.folder / name).is_file() for places in self.trees)
        return is_there and not any(name in (names or ()) for names in self.exported)

    @functools.cached_property
    def _sources(self) -> tuple[str, ...]:
        """The files of the commits that differ, and on which a kernel may depend."""
        before, after = (
            {name: sources.digest(path) for path in places.files() if (name := places.name(path)) in (names or ())}
            for places, names in zip(self.trees, self.exported, strict=True)
        )
        return tuple(sorted(name for name in before | after if before.get(name) != after.get(name)))


def _exported(folder: Path) -> frozenset[str] | None:
    """The names of the files of a tree's commit; None if nothing else was made in the tree."""
    try:
        text = (folder / EXPORTED).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    return frozenset(text.split("\0"))


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
        if not everything:
            counted = set(places.files())
            everything = of([*counted, *(sources.named(places, counted) - counted)])
        accounted = _names(places, part) if part else frozenset()
        files = {name: value for name, value in everything.items() if name not in accounted}
        found[rung] = Launch(files, part.launch if part else "", whole=False, accounted=accounted)
    return found


def _names(places: Places, part: Parts) -> frozenset[str]:
    return frozenset(map(places.name, part.others))


# --- from the processes --------------------------------------------------------------------------------------------


def ran(project: Project, folder: str, rungs: Iterable[str], *, alone: bool) -> dict[str, Launch | None]:
    """What decided the launches of rungs that were launched here, None for a rung that the tree does not have. Those
    that cannot be launched are left out: their sources say what they are made from. `alone`: one rung at a time; else
    a rung may be said to use files that a rung beside it opened.

    The answers are kept by all files of the tree, the description, what is launched, and the environment.
    """
    gpu = gpu_here()
    places = {rung: identified.cells_of(project, rung) for rung in rungs if folder}
    first = {rung: cells[0] for rung, cells in places.items() if cells and (cells[0].device == "cpu" or gpu)}
    if not first:
        return {}
    here = [environment(), _variables(), cpu_name(), gpu]
    conditions = [VERSION, alone, project.places(folder).content(whole=True), _described(project), *here]
    keys = {
        rung: hashlib.sha256(json.dumps([[cell.key for cell in places[rung]], *conditions]).encode()).hexdigest()
        for rung in first
    }
    answers = {rung: answer for rung, kept in keys.items() if (answer := cache.noted(kept, ".launch")) is not None}
    unknown = {rung: cell for rung, cell in first.items() if rung not in answers}
    for device in ("cpu", "gpu"):
        own = {rung: cell for rung, cell in unknown.items() if cell.device == device}
        if own:
            cells = list(own.values())
            options, count = Options(tree=folder), 1 if alone else 0
            group = measure_once(project, "launches", identified.DEVICE, cells, options, ENDLESS_S, count)
            for rung, cell in own.items():
                for told in group.outcomes[cell.key].measurements:
                    answers[rung] = dict(told)
                    if not told["error"] or told["absent"]:
                        cache.note(keys[rung], ".launch", told)
    found: dict[str, Launch | None] = {}
    for rung in first:
        answer = answers.get(rung, {"error": "it did not end"})
        if answer.get("absent"):
            found[rung] = None
        elif not answer["error"]:
            found[rung] = Launch(answer["files"], "", answer["identities"], answer["skipped"])
    return found


def launches(project: Project, asked: Mapping[str, Sequence[Cell]]) -> dict[str, dict[str, str]]:
    """The identity of what trees launch for GPU cells whose rungs no cubin tells, by tree and key: the code of the
    kernels, their grids and arguments. Cells of which not all of that is known are left out. Nothing is timed, so that
    many processes launch at the same time; the answers are kept as those of `ran`. `asked`: by the folder of a tree."""
    gpu = gpu_here()
    found: dict[str, dict[str, str]] = {folder: {} for folder in asked}
    if not gpu:
        return found
    from kernelwatch.analysis import launched  # here, since it imports all that measures on a GPU

    here = [environment(), _variables(), gpu]
    keys: dict[tuple[str, str], str] = {}
    runs: list[Run] = []
    for folder, cells in asked.items():
        conditions = [VERSION, launched.DEVICE, project.places(folder).content(whole=True), _described(project), *here]
        parts: dict[str, list[Cell]] = {}
        for cell in cells:
            kept = hashlib.sha256(json.dumps([cell.key, *conditions]).encode()).hexdigest()
            answer = cache.noted(kept, ".launch")
            if answer is None:
                keys[folder, cell.key] = kept
                parts.setdefault(cell.op if len(asked) < LAUNCHING_MOST else "", []).append(cell)
            else:
                found[folder][cell.key] = answer["launch"]
        runs += [
            Run(project, part, launched.DEVICE, folder, Budget(0, 0.0), endless_s=ENDLESS_S, alone=False)
            for part in parts.values()
        ]
    if runs:
        with _holding_the_gpu(), ThreadPoolExecutor(LAUNCHING_MOST) as pool:
            list(pool.map(lambda run: run.measure_all(0), runs))
    for run in runs:
        for cell in run.cells:
            for told in run.group.outcomes[cell.key].measurements:
                found[run.tree][cell.key] = told["launch"]
                cache.note(keys[run.tree, cell.key], ".launch", {"launch": told["launch"]})
    return {folder: {key: launch for key, launch in own.items() if launch} for folder, own in found.items()}


@contextmanager
def _holding_the_gpu() -> Iterator[None]:
    """Hold the lock of CUDA's first GPU for processes that take none; other runs time nothing meanwhile."""
    import cupy

    def waiting(who: str) -> None:
        print(f"waiting: {who} is measuring on the GPU", file=sys.stderr, flush=True)

    with holding(cupy.cuda.Device(0).pci_bus_id, waiting):
        yield


def _variables() -> dict[str, str]:
    """The environment variables that a kernel may read: all but those of a terminal and of a single test."""
    return {name: value for name, value in sorted(os.environ.items()) if not OF_A_SESSION.search(name)}


def _described(project: Project) -> str:
    """A hash of the description: its folder's modules, which may hold the table of rungs."""
    files = sorted(project.here.parent.rglob("*.py"))
    return hashlib.sha256("".join(map(sources.digest, files)).encode()).hexdigest()


def gpu_here() -> str:
    """The name and the driver of CUDA's first GPU, "" if there is none."""
    gpu = first_gpu()
    return f"{gpu.name} {gpu.driver}" if gpu else ""


def _merged(known: Launch, seen: Launch) -> Launch:
    """What sources tell together with what a process used. Sources that tell all Python modules of a rung are more
    exact than its process, which may have loaded those of others as well; they do not tell which other files it reads.
    """
    files = {name: value for name, value in seen.files.items() if name not in known.accounted}
    if known.whole:
        certain = {name: value for name, value in known.files.items() if name not in known.maybe}
        files = certain | {name: value for name, value in files.items() if not name.endswith(".py")}
    if seen.skipped:  # what would have been launched may read any file
        return Launch({**known.files, **files}, known.entry, seen.binaries, seen.skipped, known.whole)
    return Launch(files, known.entry, seen.binaries)
