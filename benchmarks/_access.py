"""What the warps of a rung ask of memory, counted on the CPU stand-in: exact, and the same with and without a GPU.

A worker has the stand-in (`_emulator`) compile the measured commit's source with g++ and run it; the counts are read
here. A commit whose package is older than what the stand-in needs of it has none.
"""

import math
import os
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from benchmarks._cells import Cell, key, label
from benchmarks._emulator import KINDS, count, run_checked
from benchmarks._group import Group, measure_once, save
from benchmarks._identity import COUNTED as COUNTED_BY
from benchmarks._ops import COMPUTES, OPS, Shape, entries, main_type, takes, types
from benchmarks._static import compiled
from benchmarks._suites import outcome_of, series
from benchmarks._visit import NotHere, WrongOutput, describe_wrong, packages

CHECKED = (33, 65, 31)  # extents at which a rung must be right before it is counted: no tile divides them
COUNTED = "counted"  # in the place of a cell's cache state: the stand-in has no caches


def places(op: str) -> list[tuple[str, Shape]]:
    """The types and shapes at which an op is counted: every type at the first shape, the other shapes with the main
    types of its rungs."""
    first, *others = OPS[op].counted_shapes
    known = {type for known in compiled(op).values() for type in known}
    mains = dict.fromkeys(main_type(op, rung) for rung in compiled(op))
    return [(type, first) for type in types(op) if type in known] + [(type, it) for it in others for type in mains]


def plan(op: str) -> list[Cell]:
    """What is counted of an op; $GPUKERNELS_CELLS takes some of it, as of cells."""
    found = [
        Cell(op, entry.name, type, shape, COUNTED, "access", entry.computes)
        for entry in entries(op)
        for type, shape in places(op)
        if type in compiled(op).get(entry.name, ()) and takes(entry, shape, type)
    ]
    return [cell for cell in found if re.search(os.environ.get("GPUKERNELS_CELLS", ""), cell.key)]


@cache
def stand_in() -> dict[str, str]:
    """What counts depend on besides the source: the version of the stand-in, the C++ compiler."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        said = ""
    return {COUNTED_BY.fact: COUNTED_BY.version, "compiler": said.partition("\n")[0]}


class Counter:
    """The device of a worker that counts."""

    def facts(self) -> dict[str, Any]:
        return {"packages": packages(), **stand_in()}

    def measure(self, cell: Cell, found: Any) -> dict[str, Any]:
        """The counts of one launch of a rung that is right. Raises: NotHere; WrongOutput; what the stand-in does where
        g++ does not compile it."""
        if found.source.suffix != ".cu":
            raise NotHere(f"at this commit {found} has no CUDA source")
        try:
            if why := _wrong(cell, found):
                raise WrongOutput(why)
            counts = count(found, cell.type, dict(zip(found.dims, cell.shape, strict=True)))
        except (ImportError, AttributeError) as error:
            raise NotHere(f"this commit's gpukernels is older than the stand-in: {error}") from error
        return {
            **{kind: vars(getattr(counts, kind)) for kind in KINDS},
            "moved_bytes": counts.moved_bytes,
            "compulsory_bytes": counts.compulsory_bytes,
            "blocks": counts.blocks,
            "barriers": counts.barriers,
        }


def _wrong(cell: Cell, found: Any) -> str:
    """Why a rung is not right: its first fault, or its output on small integers, of which every sum is exact; "" where
    it is."""
    computes, shape = COMPUTES[cell.computes], CHECKED[: len(found.dims)]
    *operands, _ = computes.operands(shape, cell.type)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 4, part).astype(dtype) for part, dtype in operands]
    faults, out = run_checked(found, cell.type, inputs)
    if faults:
        return f"{faults[0]}" + (f"; and {len(faults) - 1} more" if faults[1:] else "")
    return describe_wrong(replace(cell, shape=shape), out, computes.reference(*inputs), np)


def measure(op: str) -> Group:
    """The counts of an op's CUDA rungs at the installed commit."""
    group = measure_once(op, "access", plan(op))
    save(group)
    return group


class Suite(ABC):
    """By rung, and by element type and shape together."""

    op: ClassVar[str]
    params: ClassVar[list[list[str]]]
    param_names: ClassVar[list[str]] = ["rung", "operands"]
    timeout = 1800

    def __init_subclass__(cls, op: str) -> None:
        cls.op = op
        cls.params = [list(compiled(op)), [f"{type} {label(shape)}" for type, shape in places(op)]]

    @abstractmethod
    def setup_cache(self) -> Group:
        """The counted group; abstract, so that asv takes this class for what it is and does not collect it."""

    def cell(self, rung: str, operands: str) -> str:
        """The cell's key, by the suite's parameters."""
        type, shape = operands.split()
        return key(self.op, rung, type, tuple(map(int, shape.split("x"))), COUNTED)

    def visit(self, group: Group, *where: str) -> dict[str, Any]:
        """What was counted, {} where nothing was. Raises: RuntimeError where it could not be."""
        visits = outcome_of(group, self.cell(*where)).visits
        return visits[0] if visits else {}

    def ratio(self, group: Group, where: tuple[str, ...], over: str, of: str, *kinds: str) -> float:
        """A sum over kinds of access over another; n/a where there is no such access."""
        tallies = [self.visit(group, *where).get(kind, {over: 0, of: 0}) for kind in kinds]
        below = sum(tally[of] for tally in tallies)
        return sum(tally[over] for tally in tallies) / below if below else math.nan

    def figure(self, group: Group, where: tuple[str, ...], over: str, of: str) -> float:
        """One figure of a launch over another."""
        found = self.visit(group, *where)
        return found[over] / found[of] if found else math.nan

    @series(COUNTED_BY, "sectors/request", higher_is_better=False, judged="exact")
    def track_load_sectors(self, group: Group, *where: str) -> float:
        """32-byte sectors of global memory that a warp's load touches."""
        return self.ratio(group, where, "cost", "requests", "global_load")

    @series(COUNTED_BY, "sectors/request", higher_is_better=False, judged="exact")
    def track_store_sectors(self, group: Group, *where: str) -> float:
        """32-byte sectors of global memory that a warp's store touches."""
        return self.ratio(group, where, "cost", "requests", "global_store")

    @series(COUNTED_BY, "x ideal", higher_is_better=False)
    def track_sectors_over_ideal(self, group: Group, *where: str) -> float:
        """Those sectors over the fewest that hold as many bytes."""
        return self.ratio(group, where, "cost", "ideal", "global_load", "global_store")

    @series(COUNTED_BY, "wavefronts/request", higher_is_better=False, judged="exact")
    def track_shared_load_wavefronts(self, group: Group, *where: str) -> float:
        """Passes through the banks of shared memory that a warp's load takes."""
        return self.ratio(group, where, "cost", "requests", "shared_load")

    @series(COUNTED_BY, "wavefronts/request", higher_is_better=False, judged="exact")
    def track_shared_store_wavefronts(self, group: Group, *where: str) -> float:
        """Passes through the banks of shared memory that a warp's store takes."""
        return self.ratio(group, where, "cost", "requests", "shared_store")

    @series(COUNTED_BY, "x ideal", higher_is_better=False)
    def track_wavefronts_over_ideal(self, group: Group, *where: str) -> float:
        """Those wavefronts over the fewest that move as many bytes."""
        return self.ratio(group, where, "cost", "ideal", "shared_load", "shared_store")

    @series(COUNTED_BY, "x compulsory bytes", higher_is_better=False, judged="exact")
    def track_moved(self, group: Group, *where: str) -> float:
        """Bytes of all sectors that are asked for, over each operand once; caches may answer them."""
        return self.figure(group, where, "moved_bytes", "compulsory_bytes")

    @series(COUNTED_BY, "requests", higher_is_better=False, judged="exact")
    def track_requests(self, group: Group, *where: str) -> float:
        """Loads and stores of global and shared memory, each of a warp at once."""
        found = [self.visit(group, *where).get(kind, {"requests": math.nan})["requests"] for kind in KINDS]
        return float(sum(found))

    @series(COUNTED_BY, "barriers/block", higher_is_better=False, judged="exact")
    def track_barriers(self, group: Group, *where: str) -> float:
        """How often a block waits for all its threads."""
        return self.figure(group, where, "barriers", "blocks")
