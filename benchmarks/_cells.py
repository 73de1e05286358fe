"""What is measured: a cell is one rung or reference line, for one type, at one shape, cold or hot."""

import os
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks._ops import OPS, Shape, entries, main_type, takes, types

CACHES = ("cold", "hot")


@dataclass(frozen=True)
class Cell:
    """One thing to time. `cache`: "cold" rotates over buffers several times the size of the last-level cache, "hot"
    runs over one set of buffers that fits in it. `repeats`: how often one launch does the work."""

    op: str
    rung: str
    type: str
    shape: Shape
    cache: str
    device: str
    computes: str
    reference: bool = False
    repeats: int = 1
    threads: str = "1"
    launch_cost: bool = False

    @property
    def key(self) -> str:
        return key(self.op, self.rung, self.type, self.shape, self.cache)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Cell":
        return cls(**values | {"shape": tuple(values["shape"])})


def label(shape: Shape) -> str:
    """A shape as the pages show it: 4096x4096."""
    return "x".join(map(str, shape))


def key(op: str, rung: str, type: str, shape: Shape, cache: str) -> str:
    """A cell's name in results and messages."""
    return f"{op}/{rung} {type} {label(shape)} {cache}"


def rungs(op: str, device: str) -> list[str]:
    """The rungs of an op on a device, in the ladder's order, and on the GPU its reference lines after them."""
    names = [entry.name for entry in entries(op) if entry.device == device and entry.operands == "device"]
    return names + list(OPS[op].references if device == "gpu" else ())


def _of_rung(op: str, device: str, quick: bool) -> list[Cell]:
    found = []
    shapes, hot = OPS[op].timed(device, quick), OPS[op].hot_shapes
    for entry in entries(op):
        if entry.device != device or entry.operands == "host":  # on host operands: not a launch, a suite of its own
            continue
        main = main_type(op, entry.name)
        if entry.repeats == 1:
            wanted = [(main, shape, cache) for shape in shapes for cache in CACHES if cache == "cold" or shape in hot]
        else:  # its data is in a cache whatever came before; it stands beside the cost of a launch, where that is taken
            wanted = [(main, shapes[0], "hot")]
        if device == "gpu" and not quick and entry.repeats == 1:
            wanted += [(type, OPS[op].element_shape, CACHES[0]) for type in entry.types if type != types(op)[0]]
        found += [
            Cell(
                op,
                entry.name,
                type,
                shape,
                cache,
                device,
                entry.computes,
                repeats=entry.repeats,
                threads=entry.threads,
                launch_cost=device == "gpu" and shape == shapes[0] and cache == "hot" and entry.repeats == 1,
            )
            for type, shape, cache in dict.fromkeys(wanted)
            if takes(entry, shape, type)
        ]
    return found


def _of_vendor(op: str, device: str, like: list[Cell]) -> list[Cell]:
    """The vendor's rung at every type, shape and cache state at which another is timed and it is not yet."""
    name = OPS[op].vendor.get(device)
    mine = [cell for cell in like if cell.rung == name]
    there = {(cell.type, cell.shape, cell.cache) for cell in mine}
    places = dict.fromkeys((cell.type, cell.shape, cell.cache) for cell in like)
    return [
        replace(mine[0], type=type, shape=shape, cache=cache, launch_cost=False)
        for type, shape, cache in places
        if mine and (type, shape, cache) not in there
    ]


def _of_references(op: str, like: list[Cell]) -> list[Cell]:
    """The reference lines at every type, shape and cache state at which a rung is timed."""
    places = dict.fromkeys((cell.type, cell.shape, cell.cache) for cell in like)
    return [
        Cell(op, name, type, shape, cache, "gpu", computes, reference=True)
        for type, shape, cache in places
        for name, computes in OPS[op].references.items()
    ]


def plan(op: str, device: str, *, quick: bool = False) -> list[Cell]:
    """The cells of an op on a device; $GPUKERNELS_CELLS, a regular expression on their keys, takes some of them."""
    found = _of_rung(op, device, quick)
    found += _of_vendor(op, device, found)
    if device == "gpu":
        found += _of_references(op, found)
    return [cell for cell in found if re.search(os.environ.get("GPUKERNELS_CELLS", ""), cell.key)]
