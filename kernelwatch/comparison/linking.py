"""Link the commits of a history: measure what each of them launches otherwise than the one before it.

A launch that did not change is not measured. One that changed is measured on both sides in turns, in fresh processes on
the GPU at hand, until the interval of the ratio is narrow. A few cells that both sides launch alike are measured beside
it as controls. After every EVERY links of a cell, its newest launch is compared with that from before them, the anchor:
the errors of single links add up along a chain, and an anchor ends that.

If the first look at a large session would exceed BUDGET_S, launches that are surely unchanged after two turns are not
measured again.
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from kernelwatch.analysis import compiled
from kernelwatch.comparison.changes import Changes, changes, launches
from kernelwatch.comparison.choice import Choice, choose
from kernelwatch.comparison.paired import Comparison, Pairs, Side, identity_of, trimmed_mean
from kernelwatch.comparison.used import has_driver
from kernelwatch.detect import judging
from kernelwatch.history.links import NOT_ASKED, NOT_DESCRIBED, NOT_HERE, NOT_TIMED, Kind, Link, Session
from kernelwatch.plan.build import tree_of_commit
from kernelwatch.plan.cells import Cell, timed
from kernelwatch.plan.project import Project
from kernelwatch.run import outcome
from kernelwatch.run.group import measure_once
from kernelwatch.system.git import git
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Measurement, number

NARROW = {"gpu": 0.001, "cpu": 0.02}  # the half-width of the 95 % interval of a ratio that is known well enough
EVERY = 10  # links of a cell after which it is compared with its anchor
CONTROLS = 2  # for each op and device: the fewest cells that show whether a session was quiet
BUDGET_S = 40.0  # of measuring a commit, so that it takes a minute with its pages; the first look is always taken


@dataclass(frozen=True)
class Step:
    """Two commits to link, and how the launches of their trees differ. `cells`: those to measure; `represented`: how
    many more have the binary of one of these, on both sides; `left`: why others are not measured, by cell or rung."""

    before: str
    after: str
    differ: Changes
    cells: Sequence[Cell]
    represented: int = 0
    alike: int = 0
    left: Mapping[str, str] = field(default_factory=dict)
    launches: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Trees:
    """The trees of commits, each made once in a temporary folder."""

    project: Project
    folder: Path
    made: dict[str, str] = field(default_factory=dict)
    _differ: dict[tuple[str, str], Changes] = field(default_factory=dict)

    def changes(self, before: str, after: str) -> Changes:
        """How the launches of two commits differ, by their sources. Raises: UserError."""
        if (before, after) not in self._differ:
            self._differ[before, after] = changes(self.project, self.of(before), self.of(after), launch=False)
        return self._differ[before, after]

    def of(self, commit: str) -> str:
        """The folder of a commit's tree. Raises: UserError."""
        if commit not in self.made:
            self.made[commit] = tree_of_commit(self.project, commit, self.folder / commit)
        return self.made[commit]

    def only(self, commits: Collection[str]) -> None:
        """Remove the trees of other commits: a long range takes no more room than a short one."""
        for commit in [commit for commit in self.made if commit not in commits]:
            shutil.rmtree(self.folder / commit, ignore_errors=True)
            del self.made[commit]


@contextmanager
def trees(project: Project) -> Iterator[Trees]:
    """Trees that are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as folder:
        yield Trees(project, Path(folder))


def pairs_of(project: Project, commits: Iterable[str]) -> list[tuple[str, str]]:
    """Each commit with its first parent, the oldest first; a root has none, and is left out. `commits`: the newest
    first. Raises: UserError."""
    parents = (git(project.root, "rev-list", "--parents", "-n", "1", commit).split()[1:2] for commit in commits)
    found = [(parent[0], commit) for parent, commit in zip(parents, commits, strict=True) if parent]
    return found[::-1]


def asked_of(project: Project, only: str = "", devices: Collection[str] = tuple(NARROW)) -> list[Cell]:
    """The cells that may be linked. `only`: a regular expression on their keys; `devices`: on which they are
    measured."""
    return [cell for cell in timed(project, only=only) if cell.device in devices and not cell.reference]


def described(project: Project, rungs: Iterable[str]) -> dict[str, str]:
    """By rung, a hash of the cells that may be linked, which is the same after a rung is renamed."""
    keys: dict[str, list[str]] = {rung: [] for rung in rungs}
    for cell in asked_of(project):
        if cell.name in keys:
            keys[cell.name].append(project.renamed.first(cell.key))
    return {rung: hashlib.sha256(json.dumps(sorted(own)).encode()).hexdigest()[:8] for rung, own in keys.items()}


def step(project: Project, before: str, after: str, made: Trees, asked: Sequence[Cell]) -> Step:
    """What there is to link between two commits. `asked`: the cells that are measured if they changed. Raises:
    UserError.

    The sources of both trees tell which rungs may be launched otherwise. Where compiling gives the same binary for a
    type, nothing differs if only the source of that binary does, and the launch takes nothing else. If code of the host
    differs, or another source, one cell of the rung is measured: that of the least work, which shows most of what the
    host does.
    """
    differ = made.changes(before, after)
    cells = _changed(project, differ, asked)
    rungs = {cell.name for cell in cells}
    folders = made.of(before), made.of(after)
    with ThreadPoolExecutor(len(folders)) as pool:
        old, new = pool.map(lambda folder: _binaries(project, folder, rungs), folders)
        functions = [cell for cell in cells if cell.device == "gpu" and (cell.name, cell.type) not in old]
    told = launches(project, dict.fromkeys(folders, functions))
    known = {
        key: (told[folders[0]][key], launch) for key, launch in told[folders[1]].items() if key in told[folders[0]]
    }
    alike = {place for place, binary in old.items() if binary == new.get(place)}
    same = {place for place in alike if differ.compiled.get(place[0]) == (old[place].plain,)}
    unlike = [
        cell
        for cell in cells
        if (cell.name, cell.type) not in same and (cell.key not in known or known[cell.key][0] != known[cell.key][1])
    ]
    least: dict[str, Cell] = {}
    for cell in sorted(unlike, key=lambda each: project.op(each.op).bytes_moved(each.rung, each.type, each.shape)):
        if (cell.name, cell.type) in alike and cell.device == "gpu":
            least.setdefault(cell.name, cell)
    measured = [cell for cell in unlike if (cell.name, cell.type) not in alike or cell == least.get(cell.name)]
    left = _left(project, [*differ.launched, *differ.compiled], asked)
    represented = len(unlike) - len(measured)
    return Step(before, after, differ, measured, represented, len(cells) - len(unlike), left, known)


def ask_ahead(project: Project, made: Trees, asked: Mapping[tuple[str, str], Sequence[Cell]]) -> None:
    """Have the trees of several pairs of commits told what they launch, at the same time; `step` then finds it.
    `asked`: by pair, the cells that are measured if they changed. Raises: UserError."""
    wanted: dict[str, dict[str, Cell]] = {}
    for (before, after), cells in asked.items():
        changed = _changed(project, made.changes(before, after), cells)
        compiled_here = {(target.name, target.type) for target in _targets(project, {cell.name for cell in changed})}
        for commit in (before, after):
            own = {cell.key: cell for cell in changed if cell.device == "gpu"}
            own = {key: cell for key, cell in own.items() if (cell.name, cell.type) not in compiled_here}
            wanted.setdefault(commit, {}).update(own)
    launches(project, {made.of(commit): [*own.values()] for commit, own in wanted.items() if own})


def _changed(project: Project, differ: Changes, asked: Sequence[Cell]) -> list[Cell]:
    """The cells of rungs that may be launched otherwise."""
    described, changed = set(project.rungs()), {*differ.launched, *differ.compiled}
    return [cell for cell in asked if cell.name in changed and cell.name in described]


def _left(project: Project, changed: Iterable[str], asked: Sequence[Cell]) -> dict[str, str]:
    """Why cells of changed rungs are not measured, by rung; by cell if others of the rung are. `asked`: the cells that
    are measured if they changed."""
    every, keys, devices = asked_of(project), {cell.key for cell in asked}, {cell.device for cell in asked}
    found: dict[str, str] = {}
    for rung in changed:
        own = [cell for cell in every if cell.name == rung]
        without = {cell.key: f"it was {NOT_ASKED}" for cell in own if cell.key not in keys}
        if rung not in project.rungs():
            found[rung] = NOT_DESCRIBED
        elif not own:
            found[rung] = NOT_TIMED
        elif len(without) == len(own):
            device = own[0].device
            found[rung] = f"it was {NOT_ASKED}" if device in devices else f"{device.upper()} cells were {NOT_ASKED}"
        else:
            found |= without
    return found


@dataclass(frozen=True)
class Binary:
    """What a tree compiles for a rung and type. `plain`: the source, as differences name it, if a launch takes nothing
    but what is made of it and the operands; else ""."""

    sha256: str
    block_threads: int
    dynamic_shared_bytes: int
    plain: str


def _binaries(project: Project, folder: str, rungs: Collection[str]) -> dict[tuple[str, str], Binary]:
    """By rung and type, the binary that a tree compiles for the GPU at hand. What does not compile without being
    launched is left out."""
    targets = _targets(project, rungs)
    if not targets:
        return {}
    group, places = (
        measure_once(project, "links", compiled.DEVICE, targets, Options(tree=folder)),
        project.places(folder),
    )
    return {
        (target.name, target.type): Binary(
            hashlib.sha256(Path(told["cubin"]).read_bytes()).hexdigest(),
            told["block_threads"],
            told["dynamic_shared_bytes"],
            places.name(Path(told["plain"])) if told["plain"] else "",
        )
        for target in targets
        for told in group.outcomes[target.key].measurements
    }


def _targets(project: Project, rungs: Collection[str]) -> list[Cell]:
    """What these rungs are compiled for the GPU at hand without being launched; [] without a GPU."""
    arch = architecture()
    found = [target for problem in project.problems for target in compiled.plan(problem, f" {arch}$")] if arch else []
    return [target for target in found if target.name in rungs]


def architecture() -> str:
    """The compilation target of CUDA's first GPU, such as "sm_90"; "" without a GPU."""
    if not has_driver():  # to import CuPy takes long
        return ""
    try:
        import cupy

        return f"sm_{cupy.cuda.Device().compute_capability}"
    except Exception:  # no CuPy, no driver, no GPU: each has an error of its own
        return ""


def link(
    project: Project,
    one: Step,
    made: Trees | tuple[Side, Side],
    budget_s: float = BUDGET_S,
    kind: Kind = "step",
    tell: Callable[[str], None] = lambda _: None,
) -> Session:
    """Measure the links of a step. `made`: the trees, or both sides if these are two environments: then nothing is
    known to be the same on both, and there are no controls. Raises: UserError."""
    began = time.monotonic()
    comparison = _comparison(project, one, made)
    base, head = comparison.sides
    if one.cells:
        comparison.run(budget_s, tell)
    links: list[Link] = []
    told: dict[str, list[str]] = {"new": [], "gone": []}
    old, new = one.differ.broken  # a package that cannot be imported has failed, at the commit itself
    unjudged = {base.name: old} if old else {}
    unjudged |= {head.name: f"failed: {new}"} if new else {}
    same = len(one.differ.same) + one.alike
    for pairs, judged in comparison.verdicts() if one.cells else ():
        key = pairs.cell.key
        is_control = key not in comparison.judged
        if is_control and (pairs.left_out or not pairs.measurements):
            continue
        if judged.word in told:
            told[judged.word].append(key)
        elif pairs.left_out and "no GPU here" in judged.why:
            unjudged[pairs.cell.name] = NOT_HERE
        elif pairs.left_out:
            unjudged[key] = f"{judged.word}: {judged.why}" if judged.why else judged.word
        elif not is_control and pairs.same and (pairs.is_alike or judged.word == "no change"):
            same += 1
        elif found := link_of(pairs, is_control):
            links.append(found)
        elif not is_control:
            unjudged[key] = judged.why or "it was measured in too few turns"
    # A machine may have some cells of a rung only: a hot one needs a cache that it fits into.
    here = {pairs.cell.name for pairs in comparison.pairs.values() if pairs.measurements}
    for pairs in comparison.pairs.values():
        if pairs.cell.name in here and pairs.left_out and pairs.left_out.word == "n/a":
            unjudged.pop(pairs.cell.key, None)
    if kind == "step":
        unjudged |= one.left
    return Session(
        kind,
        one.before,
        one.after,
        datetime.now(UTC).isoformat(timespec="seconds"),
        round(time.monotonic() - began, 1),
        outcome.conditions(comparison.facts),
        0 if kind == "anchor" else same,
        one.represented,
        tuple(links),
        tuple([*told["new"], *one.differ.new]),
        tuple([*told["gone"], *one.differ.gone]),
        unjudged,
        described=described(project, sorted({*one.differ.launched, *one.differ.compiled})) if kind == "step" else {},
    )


class Links(Comparison):
    """Turns for links. What is surely unchanged is told by the verdict on links, which takes their noise together."""

    def unchanged(self) -> Collection[str]:
        """The cells that need no further turn; none if a control moved."""
        links = [link_of(pairs, key not in self.judged) for key, pairs in self.pairs.items()]
        return judging.unchanged([link for link in links if link])


def _comparison(project: Project, one: Step, made: Trees | tuple[Side, Side]) -> Links:
    if isinstance(made, Trees):
        changed = [*one.differ.launched, *one.differ.compiled, *one.differ.new]
        choice, differ = few_controls(choose(project, one.cells, set(), changed)), set[str]()
        base, head = (Side(sha[:8], made.of(sha)) for sha in (one.before, one.after))
    else:
        choice, differ = Choice([*one.cells], {}, set()), {cell.name for cell in one.cells}
        base, head = made
    return Links(
        project, base, head, choice.cells, choice.controls, differ=differ, narrow=NARROW, launches=one.launches
    )


def few_controls(choice: Choice) -> Choice:
    """A choice with CONTROLS controls for each op and device, which stand for the others."""
    kept: dict[tuple[str, str], list[str]] = {}
    controls, wanted = {}, {cell.key: cell for cell in choice.cells}
    for key, control in choice.controls.items():
        cell = wanted[key]
        own = kept.setdefault((cell.op, cell.device), [])
        if control not in wanted:
            continue
        if control not in own and len(own) < CONTROLS:
            own.append(control)
        controls[key] = control if control in own else own[-1]
    dropped = {*choice.controls.values()} - {*controls.values()} - {*choice.controls}
    return replace(choice, cells=[cell for cell in choice.cells if cell.key not in dropped], controls=controls)


def link_of(pairs: Pairs, is_control: bool = False) -> Link | None:
    """The link of a cell; None if it was measured in too few turns."""
    logs = [*pairs.logs().values()]
    middle, error, freedom = trimmed_mean(logs)
    if not freedom or pairs.left_out:
        return None
    sides = [[both[side] for both in pairs.measurements.values()] for side in (0, 1)]
    return Link(
        pairs.cell.key,
        middle,
        error,
        freedom,
        tuple(logs),
        (pairs.seconds(0), pairs.seconds(1)),
        pairs.launches or (_identity(sides[0]), _identity(sides[1])),
        (_clock(sides[0]), _clock(sides[1])),
        is_control,
        pairs.cell.device,
    )


def _identity(measurements: Sequence[Measurement]) -> str:
    known = dict.fromkeys(map(identity_of, measurements))
    return next(iter(known)) if len(known) == 1 else ""


def _clock(measurements: Sequence[Measurement]) -> float | None:
    known = sorted(mhz for each in measurements if (mhz := number(each, "clock64_mhz")))
    return round(known[len(known) // 2], 1) if known else None


def anchors_of(one: Session, known: Sequence[Session], line: Sequence[str]) -> Mapping[str, list[str]]:
    """The cells of a session that are due to be compared with an anchor, by the commit of the anchor. `known`: the
    other sessions; `line`: the commits before the session's, the oldest first. Sessions of other commits do not count,
    and several of one commit count once."""
    positions = {commit: at for at, commit in enumerate(line)}
    own = [session for session in known if session.before in positions and session.after in positions]
    due: dict[str, list[str]] = {}
    for cell in (link.cell for link in one.changed):
        linked = [session for session in own if any(link.cell == cell for link in session.changed)]
        ends = [positions[session.after] for session in linked if session.kind == "anchor"]
        steps = {positions[session.after]: session.before for session in linked if session.kind == "step"}
        since = [before for at, before in sorted(steps.items()) if at > max(ends, default=-1)]
        if len(since) + 1 >= EVERY:
            due.setdefault(since[0], []).append(cell)
    return due


def across_of(project: Project, names: Collection[str]) -> list[Cell]:
    """The cells of a step across a gap. `names`: of cells and rungs, as from `returned`."""
    return [cell for cell in asked_of(project) if not names or cell.key in names or cell.name in names]


def across(
    project: Project, before: str, after: str, names: Collection[str], made: Trees,
    budget_s: float = BUDGET_S, tell: Callable[[str], None] = lambda _: None,
) -> Session:  # fmt: skip
    """Compare a commit with the last one that had these cells and rungs, all if there are none. Raises: UserError."""
    one = step(project, before, after, made, across_of(project, names))
    return link(project, replace(one, differ=replace(one.differ, new=(), gone=()), left={}), made, budget_s, tell=tell)


def planned(new: Sequence[Session], known: Sequence[Session], line_of: Callable[[str], Sequence[str]]) -> list[Session]:
    """The anchors that are due of sessions, which ended in any order, as far as they are known before they are
    measured: both commits, and the cells. An anchor that is planned counts for later commits.

    `new`: the sessions in the order of their commits; `known`: all sessions; `line_of`: a commit and those before it,
    the oldest first.
    """
    anchors: list[Session] = []
    for one in new:
        others = [session for session in known if session != one]
        due = anchors_of(one, [*others, *anchors], line_of(one.after)) if one.kind == "step" else {}
        anchors += [
            replace(one, kind="anchor", before=before, links=tuple(link for link in one.changed if link.cell in keys))
            for before, keys in due.items()
        ]
    return anchors


def anchor(
    project: Project, one: Step, before: str, keys: Iterable[str], made: Trees,
    budget_s: float = BUDGET_S, tell: Callable[[str], None] = lambda _: None,
) -> Session:  # fmt: skip
    """Compare a commit's launches of some cells with those of an older commit. Raises: UserError."""
    wanted = set(keys)
    cells = [cell for cell in one.cells if cell.key in wanted]
    differ = replace(one.differ, same=frozenset(), new=(), gone=())
    older = replace(one, before=before, cells=cells, differ=differ, represented=0)
    return link(project, older, made, budget_s, "anchor", tell)
