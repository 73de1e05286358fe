"""The exact figures of a kernel on both sides of an event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kernelwatch.analysis.sass import CLASSES

Better = Literal["lower", "higher", ""]

ACCESSES = {
    "global_load": ("load of global memory", "sectors"),
    "global_store": ("store to global memory", "sectors"),
    "shared_load": ("load of shared memory", "wavefronts"),
    "shared_store": ("store to shared memory", "wavefronts"),
}
WORDS = {"sectors": ("touches", "sector"), "wavefronts": ("takes", "pass through the banks")}


@dataclass(frozen=True)
class Figure:
    """An exact figure before and after. `where`: "compiled" or "counted"; `kind`: of access, if it is one of these;
    `clause`: what it means, without numbers: "a block waits at {} barriers instead of {}"."""

    name: str
    unit: str
    where: str
    before: float
    after: float
    better: Better = ""
    kind: str = ""
    clause: str = ""

    @property
    def moved(self) -> bool:
        return self.before != self.after

    @property
    def verdict(self) -> str:
        """ "worse", "better", or "" if it did not move or neither direction is better."""
        if not self.moved or not self.better:
            return ""
        return "better" if (self.after < self.before) == (self.better == "lower") else "worse"

    def as_json(self) -> dict[str, Any]:
        names = "name", "unit", "where", "before", "after", "better", "kind"
        return {name: getattr(self, name) for name in names}


def compiled_figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Figure]:
    """Those of a binary: `before` and `after` as a sidecar has them."""
    found = []

    def add(name: str, unit: str, values: Sequence[float | None], better: Better = "", clause: str = "") -> None:
        old, new = values
        if old is not None and new is not None:
            found.append(Figure(name, unit, "compiled", old, new, better, clause=clause))

    def both(name: str) -> list[Any]:
        return [side.get(name) for side in (before, after)]

    spills = [_sum(side.get("spill_load_bytes"), side.get("spill_store_bytes")) for side in (before, after)]
    add("spill bytes", "bytes", spills, "lower", "a thread spills {} bytes instead of {}")
    add(
        "occupancy",
        "% of warps",
        both("occupancy_percent"),
        "higher",
        "{} % of the warps fit on a multiprocessor instead of {} %",
    )
    add("block threads", "threads", both("block_threads"), "", "a block has {} threads instead of {}")
    add("shared bytes", "bytes", both("shared_bytes"), "", "a block takes {} bytes of shared memory instead of {}")
    add("registers", "registers", both("registers"), "", "a thread has {} registers instead of {}")
    add("instructions", "instructions", both("instructions"), "", "the kernel has {} instructions instead of {}")
    for kind in CLASSES:
        counts = [(side.get("mix") or {}).get(kind) for side in (before, after)]
        add(f"{kind} instructions", "instructions", counts)
    return found


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def counted_figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Figure]:
    """Those of the accesses: `before` and `after` as a sidecar has them, {} if they are not known."""
    found = []
    for kind, (what, unit) in ACCESSES.items():
        old, new = before.get(kind) or {}, after.get(kind) or {}
        ratio_before, ratio_after = _ratio(old), _ratio(new)
        if ratio_before is not None and ratio_after is not None:
            verb, noun = WORDS[unit]
            clause = f"each warp\u2019s {what} {verb} {{}} {_plural(noun, ratio_after)} instead of {{}}"
            name = f"{kind.replace('_', ' ')} {unit}"
            unit_of = f"{unit}/request"
            found.append(Figure(name, unit_of, "counted", ratio_before, ratio_after, "lower", kind, clause))
        if old.get("requests") is not None and new.get("requests") is not None:
            name = f"{kind.replace('_', ' ')} requests"
            clause = f"the warps make {{}} {_plural(what, 2)} instead of {{}}"
            found.append(Figure(name, "requests", "counted", old["requests"], new["requests"], "lower", kind, clause))
    old_barriers, new_barriers = (_over(side.get("barriers"), side.get("blocks")) for side in (before, after))
    if old_barriers is not None and new_barriers is not None:
        clause = "a block waits at {} barriers instead of {}"
        found.append(Figure("barriers", "barriers/block", "counted", old_barriers, new_barriers, "lower", "", clause))
    if before.get("blocks") and after.get("blocks"):
        clause = "a launch has {} blocks instead of {}"
        found.append(Figure("blocks", "blocks", "counted", before["blocks"], after["blocks"], "", "", clause))
    return found


def _ratio(tally: Mapping[str, Any]) -> float | None:
    return _over(tally.get("cost"), tally.get("requests"))


def _over(value: float | None, divisor: float | None) -> float | None:
    return value / divisor if value is not None and divisor else None


def _plural(noun: str, count: float) -> str:
    if count == 1:
        return noun
    first, _, rest = noun.partition(" ")
    plural = f"{first}es" if first.endswith("s") else f"{first}s"
    return f"{plural} {rest}".strip()
