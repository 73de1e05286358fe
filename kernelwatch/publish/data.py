"""The data files of the pages, from what is recorded of a project. docs/data.md describes each file.

Every file is JSON. A commit is named by its position on the branch, 0 for the oldest, which does not change when more
commits are measured. A cell is named by its key, such as "transpose/padded float32 4096x4096 cold". What grows with the
commits is in blocks of BLOCK positions, so that one commit more changes one block, and a page loads what it shows.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwatch.analysis.compiled import DEVICE as COMPILED
from kernelwatch.analysis.counted import DEVICE as COUNTED
from kernelwatch.detect import instruments
from kernelwatch.detect.conditions import differences
from kernelwatch.detect.events import INSTRUMENTS
from kernelwatch.history.records import rung_and_type
from kernelwatch.identity import TIMED
from kernelwatch.plan.cells import rungs
from kernelwatch.plan.problem import Kind, Problem, Rung, extents, label
from kernelwatch.plan.project import Project
from kernelwatch.publish.columns import SHOWN, Columns, Layout, Numbers
from kernelwatch.publish.exact import Exact
from kernelwatch.publish.record import Json, parts_of, rounded
from kernelwatch.publish.recorded import Recorded
from kernelwatch.publish.writer import Writer
from kernelwatch.run.outcome import alike, may_lack

VERSION = 5  # of the files; raised when a field changes its meaning or goes
BLOCK = 250  # positions whose histories share a file
TREND = 500  # the most points of a trend


@dataclass
class Machine:
    """What was recorded on one machine, in one environment of asv, by the position of the commit."""

    name: str
    folder: str
    commits: Mapping[int, Recorded]
    noise: dict[str, float] = field(default_factory=dict)  # cell -> coefficient of variation in an A/A
    roofs: Mapping[str, list[Json]] = field(default_factory=dict)  # by GPU, as history.roofs reads them


# --- what the checkout says ---------------------------------------------------------------------------------------


def ops(project: Project) -> list[Json]:
    """The ladders: what is measured, in which order, and what it is compared with."""
    return [_op(project, problem) for problem in project.problems]


def _op(project: Project, problem: Problem) -> Json:
    return {
        "name": problem.name,
        "unit": "GFLOP/s" if problem.computation.flops else "GB/s",
        "types": list(problem.types),
        "shapes": {device: list(map(label, problem.timed(device, quick=False))) for device in ("gpu", "cpu")},
        "element_shape": label(problem.element_shape),
        "order": {device: rungs(problem, device) for device in ("gpu", "cpu")},
        "against": {device: problem.held_against(device) for device in ("gpu", "cpu")},
        "lines": list(problem.lines),
        "rungs": [
            {
                "name": rung.name,
                "device": rung.device,
                "idea": rung.idea,
                "types": list(rung.types),
                "source": rung.source.relative_to(project.root).as_posix() if rung.source else "",
                "published_ms": dict(rung.published_ms),
                "plain": _is_plain(problem, rung),
            }
            for rung in problem.rungs
        ],
    }


def _is_plain(problem: Problem, rung: Rung) -> bool:
    """Whether a rung does its work once a launch, and all of the op's: a copy beside a transpose does less."""
    own = rung.computes in ("", problem.name) or bool(problem.computes(rung.name).flops)
    return rung.repeats == 1 and own


def add_cells(project: Project, cells: dict[str, Json], layout: Layout) -> None:
    """Add the timed cells of a record: their parts, and the bytes and operations of one pass, None for a rung that the
    checkout does not know."""
    for at in layout.timed:
        key = layout.keys[at]
        if key not in cells and (parts := parts_of(key, layout.groups[at])):
            cells[key] = parts | _work(project, parts)


def _work(project: Project, parts: Json) -> Json:
    try:
        problem, shape = project.ops[parts["op"]], extents(parts["shape"])
        kind = problem.kind(parts["rung"], parts["type"])
        is_usual = kind == Kind(kind.type)
        unit = problem.unit_of(parts["rung"], parts["type"])
        against = problem.held_against(parts["device"], kind)
        return {
            "bytes": problem.bytes_moved(parts["rung"], parts["type"], shape),
            "flops": problem.flops(parts["rung"], shape),
            **({} if is_usual else {"group": kind.title(problem.name)}),
            **({"variant": kind.variant} if kind.variant else {}),
            **({"against": against} if against != problem.held_against(parts["device"]) else {}),
            **({"unit": unit.name} if unit else {}),
            **({"operations": unit.operations} if unit and unit.operations > 1 else {}),
        }
    except (KeyError, ValueError, TypeError, IndexError):
        return {"bytes": None, "flops": None}


# --- what was recorded -------------------------------------------------------------------------------------------


def histories(block: Mapping[int, Columns]) -> dict[str, Json]:
    """By rung ("op/rung"), the history of each of its timed cells as columns: `at` holds the commits; a column that is
    None throughout is left out; `limits` and `failed` are by the index of the commit in `at`."""
    rows: dict[str, dict[str, list[tuple[int, int]]]] = {}  # rung -> cell -> commit, index of the cell in its record
    for at, columns in sorted(block.items()):
        for rung, places in columns.layout.rungs.items():
            for place in places:
                if _has_history(columns, place):
                    rows.setdefault(rung, {}).setdefault(columns.layout.keys[place], []).append((at, place))
    return {
        rung: {key: _history(block, found) for key, found in by_key.items()} for rung, by_key in sorted(rows.items())
    }


def _has_history(columns: Columns, place: int) -> bool:
    """Whether a cell was timed or failed, and is not one that this machine cannot run."""
    return columns.odd.get(place, ("ok",))[0] in ("ok", "failed")


def _history(block: Mapping[int, Columns], rows: list[tuple[int, int]]) -> Json:
    found: Json = {"at": [at for at, _ in rows]}
    for name in SHOWN:
        values = [float(block[at].numbers[name][place]) for at, place in rows]
        if not all(map(math.isnan, values)):
            found[name] = [None if math.isnan(value) else value for value in values]
    limits = {str(index): met for index, (at, place) in enumerate(rows) if (met := block[at].limits.get(place))}
    reasons = ((index, block[at].odd.get(place, ("", ""))[1]) for index, (at, place) in enumerate(rows))
    failed = {str(index): reason for index, reason in reasons if reason}
    return found | ({"limits": limits} if limits else {}) | ({"failed": failed} if failed else {})


def state(at: int, columns: Columns) -> Json:
    """A machine's state at a commit; of the cells that failed or met a limit, how many."""
    counts = {name: len(columns.state[name]) for name in ("failed", "limited")}
    return {"at": at, **columns.state, **counts}


class Tables:
    """The history of the exact figures by op: series -> rung -> place -> [commit, value] where the value changed. If no
    commit is to blame, a third entry says what is. A value holds until the next one; None where a measured commit has
    none. `at`: the commits that have any."""

    def __init__(self, exact: Exact) -> None:
        self.exact = exact
        self.tables: dict[str, Json] = {}
        self._values: Numbers = np.full(len(exact.rows), math.nan)
        self._begun: NDArray[np.bool_] = np.zeros(len(exact.rows), bool)
        self._before: dict[str, Columns] = {}  # the last record of each op's figures

    def add(self, at: int, has: NDArray[np.bool_], values: Numbers, record: Columns) -> None:
        """The commits come in their order. The arguments: see `Exact.load`."""
        for op, places in self.exact.ops.items():
            if has[places].any():
                self.tables.setdefault(op, {"at": [], "series": {}})["at"].append(at)
        same = (values == self._values) | (np.isnan(values) & np.isnan(self._values))
        for place in np.flatnonzero(has & ~(same & self._begun)).tolist():
            benchmark, op, rung, where = self.exact.rows[place]
            runs = self.tables[op]["series"].setdefault(benchmark, {}).setdefault(rung, {})
            run, value = runs.setdefault(where, []), rounded(float(values[place]), 9)
            if not run or run[-1][1] != value:
                both = run and run[-1][1] is not None and value is not None
                why = _instrument(self._before[op], record, op, rung, where) if both else ""
                run.append([at, value, why] if why else [at, value])
        self._before |= {op: record for op, places in self.exact.ops.items() if has[places].any()}
        self._values = np.where(has, values, self._values)
        self._begun = self._begun | has


def _instrument(before: Columns, after: Columns, op: str, rung: str, where: str) -> str:
    """Why no commit is to blame for the change of an exact figure between two records, as the judged series say it; ""
    if one may be."""
    is_compiled = where.rpartition(" ")[2].startswith("sm_")
    group, key = f"{op} {COMPILED if is_compiled else COUNTED}", rung_and_type(f"{op}/{rung} {where}")
    old, new = (
        {name: value for name, value in each.conditions.get(group, {}).items() if name != TIMED.fact}
        for each in (before, after)
    )
    if old and new and not alike(old, new):
        both = old.keys() & new.keys()
        less = [
            {name: value for name, value in each.items() if name in both or not may_lack(name)} for each in (old, new)
        ]
        return ", ".join(differences(*less))
    binaries = before.binaries.get(key), after.binaries.get(key)
    return INSTRUMENTS["compiler" if is_compiled else "emulator"] if binaries[0] and binaries[0] == binaries[1] else ""


class Turns:
    """By group, the conditions that must be alike for two commits to be compared: [commit, conditions] where they
    changed."""

    def __init__(self) -> None:
        self.turns: dict[str, list[Any]] = {}
        self._last = ""

    def add(self, at: int, columns: Columns) -> None:
        if columns.shared["conditions"] == self._last:
            return
        self._last = columns.shared["conditions"]
        for group, known in columns.conditions.items():
            run = self.turns.setdefault(group, [])
            if not run or run[-1][1] != known:
                run.append([at, known])


class Trend:
    """By "op device", how its time moved since its conditions last changed: the geometric mean over the cells that a
    commit and the commit before it have in common, chained."""

    def __init__(self) -> None:
        self._conditions: dict[str, Json] = {}
        self._last = ""
        self._places: dict[str, int] = {}  # cell -> place in the arrays
        self._before: dict[str, tuple[NDArray[np.int64], Numbers]] = {}
        self._levels: dict[str, list[tuple[int, float]]] = {}

    def add(self, at: int, columns: Columns) -> None:
        if columns.shared["conditions"] != self._last:
            self._last = columns.shared["conditions"]
            self._begin_anew(columns.conditions)
        times, layout = columns.numbers["median_s"], columns.layout
        for name, cells in layout.ops.items():
            measured = [cell for cell in cells if times[cell] > 0]
            if not measured:
                continue
            keys = (layout.keys[cell] for cell in measured)
            places = np.array([self._places.setdefault(key, len(self._places)) for key in keys])
            logs = np.log(times[measured])
            level = self._levels.setdefault(name, [])
            before, old = self._before.get(name, (places[:0], logs[:0]))
            if np.array_equal(before, places):
                moved = logs - old
            else:
                _, mine, theirs = np.intersect1d(places, before, return_indices=True)
                moved = logs[mine] - old[theirs]
            last = level[-1][1] if level else 0.0
            level.append((at, last + (float(moved.mean()) if len(moved) else 0.0)))
            self._before[name] = places, logs

    def _begin_anew(self, conditions: Mapping[str, Json]) -> None:
        """Forget what was measured under other conditions, such as on another GPU."""
        for name, known in conditions.items():
            if name in self._conditions and not alike(self._conditions[name], known):
                self._before.pop(name, None)
                self._levels.pop(name, None)
            self._conditions[name] = known

    def told(self) -> dict[str, list[tuple[int, float]]]:
        """1 at the newest commit. The first and the newest point, and as many between as fit into TREND."""
        return {
            name: [(at, round(math.exp(log - run[-1][1]), 6)) for at, log in _thinned(run)]
            for name, run in self._levels.items()
        }


def _thinned(run: list[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    count = min(len(run), TREND)
    places = (round(at * (len(run) - 1) / max(count - 1, 1)) for at in range(count))
    return (run[place] for place in places)


# --- the files -----------------------------------------------------------------------------------------------------


def write_machine(
    machine: Machine, exact: Exact, project: Project, cells: dict[str, Json], writer: Writer, head: int
) -> Json:
    """Write the files of one machine into its folder, and add its cells to `cells`; what site.json says of it. `head`:
    the position of the newest commit of the branch."""
    numbers: dict[str, int] = {}  # rung -> folder of its history
    blocks: dict[str, list[int]] = {}  # rung -> blocks
    tables, turns, trend = Tables(exact), Turns(), Trend()
    layouts: set[str] = set()
    quiet: list[tuple[int, Json]] = []
    last: Columns | None = None
    for block, positions in itertools.groupby(sorted(machine.commits), key=lambda at: at // BLOCK):
        found: dict[int, Columns] = {}
        for at in positions:
            recorded = machine.commits[at]
            last, has, values = exact.load(recorded)
            found[at] = last
            if not writer.keep(name := f"{machine.folder}/at/{at}", recorded.digest):
                writer.write_text(name, recorded.snapshot(), recorded.digest)
            if last.shared["cells"] not in layouts:
                layouts.add(last.shared["cells"])
                add_cells(project, cells, last.layout)
            tables.add(at, has, values, last)
            turns.add(at, last)
            trend.add(at, last)
            quiet.append((at, last.state))
        for rung in _write_block(machine, block, found, numbers, writer):
            blocks.setdefault(rung, []).append(block)
    names = {op: f"exact/{index}" for index, op in enumerate(tables.tables)}
    for op, name in names.items():
        writer.write(f"{machine.folder}/{name}", {"op": op, **tables.tables[op]})
    writer.write(
        f"{machine.folder}/machine",
        {
            "name": machine.name,
            "commits": sorted(machine.commits),
            "history": {rung: [f"history/{numbers[rung]}/{block}" for block in blocks[rung]] for rung in numbers},
            "exact": names,
            "states": [f"states/{block}" for block in dict.fromkeys(at // BLOCK for at in sorted(machine.commits))],
            "turns": turns.turns,
            "instrument": [
                {
                    "figure": each.figure,
                    "at": each.at,
                    "before": rounded(each.before, 3),
                    "after": rounded(each.after, 3),
                }
                for each in instruments.judge(quiet)
            ],
            "noise": {key: rounded(value, 3) for key, value in machine.noise.items()},
            "roofs": machine.roofs,
        },
    )
    return _summary(machine, last, trend, head) if last else {}


def _write_block(
    machine: Machine, block: int, found: Mapping[int, Columns], numbers: dict[str, int], writer: Writer
) -> list[str]:
    """Write the histories and states of a block of commits; the rungs of which it has a history."""
    made_of = hashlib.sha256(
        json.dumps([(at, machine.commits[at].digest) for at in sorted(found)]).encode()
    ).hexdigest()
    name = f"{machine.folder}/states/{block}"
    if not writer.keep(name, made_of):
        writer.write(name, [state(at, found[at]) for at in sorted(found)], made_of)
    kept: dict[str, Json] | None = None
    written = sorted(
        {
            rung
            for columns in found.values()
            for rung, places in columns.layout.rungs.items()
            if any(_has_history(columns, place) for place in places)
        }
    )
    for rung in written:
        name = f"{machine.folder}/history/{numbers.setdefault(rung, len(numbers))}/{block}"
        if not writer.keep(name, f"{made_of} {rung}"):
            kept = histories(found) if kept is None else kept
            writer.write(name, {"rung": rung, "cells": kept.get(rung, {})}, f"{made_of} {rung}")
    return written


def _summary(machine: Machine, newest: Columns, trend: Trend, head: int) -> Json:
    """What the status page says of a machine."""
    at = max(machine.commits)
    groups: Iterable[Json] = json.loads(machine.commits[at].snapshot())["facts"].values()
    facts = {name: value for group in groups for name, value in group.items()}
    return {
        "name": machine.name,
        "folder": machine.folder,
        "gpu": facts.get("gpu", ""),
        "cpu": facts.get("cpu", ""),
        "compute_capability": facts.get("compute_capability", ""),
        "newest": at,
        "commits": len(machine.commits),
        "behind": head - at,
        "trend": trend.told(),
        **newest.state,
    }
