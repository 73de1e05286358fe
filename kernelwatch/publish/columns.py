"""A record in the form that is kept from one publication to the next: what the pages and the detector use of it, the
numbers as arrays. What most records share (the cells, their binaries, the conditions) is kept once."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwatch.history.records import Measured, Record, conditions, finite
from kernelwatch.history.store import Store
from kernelwatch.publish.record import median, parts_of, state

Json = dict[str, Any]
Numbers = NDArray[np.float64]

SHOWN = ("s", "low", "high", "clock_mhz", "temperature_c", "power_w", "launch_s")  # of a cell's history
CANARIES = ("memory", "compute")
NAN = math.nan


class Layout:
    """The cells of a record: their keys and groups; `timed`: the indices of the timed ones; `rungs`: of these, by
    "op/rung"; `ops`: the same, by op and device."""

    def __init__(self, content: bytes) -> None:
        self.keys, self.groups = json.loads(content)
        self.timed: list[int] = []
        self.rungs: dict[str, list[int]] = {}
        self.ops: dict[str, list[int]] = {}
        for at, (key, group) in enumerate(zip(self.keys, self.groups, strict=True)):
            if parts := parts_of(key, group):
                self.timed.append(at)
                self.rungs.setdefault(f"{parts['op']}/{parts['rung']}", []).append(at)
                self.ops.setdefault(f"{parts['op']} {parts['device']}", []).append(at)


@dataclass(frozen=True, eq=False)
class Columns:
    """A record; NaN stands for what is not known.

    `layout`: its cells. `numbers`: by name, a number for each of the cells: SHOWN as the pages round them,
    "median_s", the canaries, and the spread of each judged figure. `odd`: cells by index with a state that is not "ok",
    and the reason. `limits`: those that a cell met, by its index. `shared`: the digests of what is shared.
    """

    layout: Layout
    numbers: dict[str, Numbers]
    odd: dict[int, tuple[str, str]]
    limits: dict[int, list[str]]
    state: Json
    shared: dict[str, str]
    store: Store

    @cached_property
    def identities(self) -> list[str]:
        """Of the launches, by cell."""
        return list(self.store.decoded(self.shared["identities"], json.loads))

    @cached_property
    def binaries(self) -> dict[str, str]:
        return dict(self.store.decoded(self.shared["binaries"], json.loads))

    @cached_property
    def conditions(self) -> dict[str, Json]:
        """By group, as in history.records."""
        return dict(self.store.decoded(self.shared["conditions"], json.loads))


def names_of(judged: tuple[str, ...]) -> list[str]:
    return [*SHOWN, "median_s", *CANARIES, *judged]


def packed(record: Record, shown: dict[str, Json], judged: tuple[str, ...], store: Store) -> tuple[Json, Numbers]:
    """A record as a JSON object, and an array with a row for each name and a column for each cell. `shown`: what the
    pages show of its timed cells (publish/record.py); `judged`: the figures of measurements whose spread is needed."""
    cells = sorted(record.cells.values(), key=lambda cell: not cell.seconds)  # those without a number are last
    measured = [cell for cell in cells if cell.seconds]
    rows = [_numbers(cell, shown.get(cell.key, {}), judged) for cell in measured]
    numbers = np.array(rows, float).reshape(len(rows), len(names_of(judged))).T
    limits: dict[str, list[int]] = {}
    for at, cell in enumerate(cells):
        if cell.limits:
            limits.setdefault("\n".join(cell.limits), []).append(at)
    shared = {
        "cells": [[cell.key for cell in cells], [cell.group for cell in cells]],
        "identities": [cell.identity for cell in cells],
        "binaries": record.binaries,
        "conditions": {group: finite(conditions(record, group)) for group in record.facts},
    }
    head = {
        "measured": len(measured),
        "odd": {at: (cell.state, cell.reason) for at, cell in enumerate(cells) if cell.state != "ok"},
        "limits": limits,
        "state": state(record),
        "shared": {name: store.part(json.dumps(content).encode()) for name, content in shared.items()},
    }
    return head, np.ascontiguousarray(numbers)


def _numbers(cell: Measured, shown: Json, judged: tuple[str, ...]) -> list[float]:
    known = [
        *(shown.get(name) for name in SHOWN),
        cell.median_s,
        *(median(cell.readings[f"canary_{name}_s"]) for name in CANARIES),
    ]
    return [
        *(NAN if value is None else value for value in known),
        *(cell.error(name) for name in judged),
    ]


def unpacked(head: Json, rows: Numbers, judged: tuple[str, ...], store: Store) -> Columns:
    """The record that `packed` wrote."""
    layout = store.decoded(head["shared"]["cells"], Layout)
    names = names_of(judged)
    table = np.full((len(names), len(layout.keys)), NAN)
    table[:, : head["measured"]] = rows.reshape(len(names), head["measured"])
    return Columns(
        layout,
        dict(zip(names, table, strict=True)),
        {int(at): (state, reason) for at, (state, reason) in head["odd"].items()},
        {at: limits.split("\n") for limits, places in head["limits"].items() for at in places},
        head["state"],
        head["shared"],
        store,
    )
