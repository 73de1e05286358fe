"""What is recorded of each machine, by the position of the commit, with the exact figures of asv's result files."""

import functools
import itertools
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kernelwatch.history.records import noise_of
from kernelwatch.publish import data
from kernelwatch.publish.columns import Columns
from kernelwatch.publish.data import Exact, Machine
from kernelwatch.publish.record import Json
from kernelwatch.publish.recorded import Entry, Params, Recorded, Shape
from kernelwatch.publish.series import cell_of

EXACT = re.compile(r" (counted|sm_\w+)$")  # the end of the keys of cells that are not timed


class Series:
    """The series of exact figures, and where a result file has their values."""

    def __init__(self, folder: Path, benchmarks: Any) -> None:
        self.rows: list[tuple[str, Params]] = []
        told = []
        for name, op, places in _exact_series(folder, benchmarks):
            for params, (rung, where) in zip(itertools.product(*benchmarks[name]["params"]), places, strict=True):
                if rung:
                    self.rows.append((name, params))
                    told.append((name, op, rung, where))
        self.exact = Exact(told)
        self._found: dict[tuple[int, ...], Any] = {}

    def load(self, recorded: Recorded, entry: Entry) -> tuple[Columns, Any, Any]:
        """The record of an entry; for each row, whether the entry has its series, and the value."""
        shapes = [recorded.shape(entry, exact) for exact in (False, True)]
        key = tuple(map(id, shapes))
        if key not in self._found:
            self._found[key] = self._places(shapes)
        has, (others, judged) = self._found[key]
        values, record = recorded.load(entry)
        assert record is not None  # machines_of takes entries that have one
        exact = np.append(recorded.exact(entry), math.nan)[judged]
        return record, has, np.where(np.isnan(exact), np.append(values, math.nan)[others], exact)

    def _places(self, shapes: list[Shape]) -> tuple[Any, list[Any]]:
        has = np.array([any(name in shape.series for shape in shapes) for name, _ in self.rows], bool)
        return has, [np.array([shape.place(*row) for row in self.rows], np.int64) for shape in shapes]


def machines_of(recorded: Recorded, exact: Series, at: dict[str, int]) -> list[Machine]:
    """The recorded machines, the one with the newest commit first. Results of another environment of asv on the same
    machine are a machine of their own."""
    found: dict[tuple[str, str], dict[int, Entry]] = {}
    for entry in recorded.entries:
        if entry.head.get("record") and entry.commit in at:
            found.setdefault((entry.machine, entry.head["env_name"]), {})[at[entry.commit]] = entry
    machines: list[Machine] = []
    for (name, environment), entries in sorted(found.items()):
        known = [machine.name for machine in machines]
        full = f"{name} ({environment})" if name in known else name
        folder = folder_of(full, [machine.folder for machine in machines])
        commits = {
            position: data.Recorded(
                entry.digest,
                functools.partial(exact.load, recorded, entry),
                functools.partial(recorded.snapshot, entry),
            )
            for position, entry in entries.items()
        }
        noise = noise_of(next(iter(entries.values())).path.parent)
        machines.append(Machine(full, folder, commits, noise))
    return sorted(machines, key=lambda machine: (-max(machine.commits), -len(machine.commits), machine.name))


def folder_of(name: str, taken: Collection[str]) -> str:
    """A folder's name for a machine, like no other one's: people may call a machine what no folder can be called."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".") or "_"
    numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
    return next(folder for folder in numbered if folder not in taken)


def _exact_series(folder: Path, benchmarks: Any) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """The series of exact figures: name, op, and for each of its values the rung and its other parameters."""
    for name, benchmark in benchmarks.items():
        if benchmark["param_names"][:1] != ["rung"]:
            continue
        places, op = [], ""
        for params in itertools.product(*benchmark["params"]):
            key = cell_of(folder, name, params)[0]
            rung, *others = (param.strip("'") for param in params)
            places.append((rung, " ".join(others)) if EXACT.search(key) else ("", ""))
            op = op or key.partition("/")[0]
        if any(rung for rung, _ in places):
            yield name, op, places


def measured_on(recorded: Recorded, at: dict[str, int]) -> dict[str, set[int]]:
    """The positions of the measured commits of each machine, the one with the newest commit first."""
    found: dict[str, set[int]] = {}
    for entry in recorded.entries:
        if entry.commit in at:
            found.setdefault(entry.machine, set()).add(at[entry.commit])
    return dict(sorted(found.items(), key=lambda item: (-max(item[1]), -len(item[1]), item[0])))


def plain_machine(name: str, positions: set[int], head: int) -> Json:
    """What the pages say of a machine of a project without a description."""
    newest = max(positions)
    unknown: Json = {"gpu": "", "cpu": "", "cells": 0, "failed": [], "limited": [], "trend": {}}
    return {"name": name, "newest": newest, "commits": len(positions), "behind": head - newest} | unknown
