"""Access counts: `count(rung, type, shape)` says what the warps' loads and stores cost, exactly and repeatably."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks._emulator.machine.build import RawTally
    from gpukernels import Rung

KINDS = ("global_load", "global_store", "shared_load", "shared_store")


@dataclass(frozen=True)
class Tally:
    """A warp's access is one request. Its cost: the 32-byte sectors that it touches of global memory, the wavefronts
    that it takes of shared memory; `ideal`: the least that as many bytes could have cost."""

    requests: int = 0
    cost: int = 0
    ideal: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.requests + other.requests, self.cost + other.cost, self.ideal + other.ideal)

    @property
    def per_request(self) -> float:
        return self.cost / self.requests if self.requests else 0.0

    @property
    def ideal_per_request(self) -> float:
        return self.ideal / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Counts:
    """What one launch does to memory. Atomics count as stores, texture fetches as loads, constant memory not at all.

    `by_line`: the same by source line and kind (global_load, ...). `compulsory_bytes`: each operand once. `barriers`:
    that all blocks together wait at.
    """

    global_load: Tally
    global_store: Tally
    shared_load: Tally
    shared_store: Tally
    compulsory_bytes: int
    blocks: int
    barriers: int
    by_line: Mapping[tuple[int, str], Tally] = field(default_factory=dict)

    @property
    def moved_bytes(self) -> int:
        """Of the sectors that the requests ask for; caches may answer them."""
        return 32 * (self.global_load.cost + self.global_store.cost)


def count(found: "Rung", type: str, shape: Mapping[str, int], edge: int | None = None) -> Counts:
    """The accesses of a rung at these extents (dimension -> extent): a function of the source and the compiler alone.

    Raises: KernelError where the kernel leaves its memory (`check` says where) or is not compiled; ToolMissing.
    """
    from benchmarks._emulator.machine.build import GLOBAL, EmulatedKernel
    from benchmarks._emulator.machine.sites import Traced
    from gpukernels import KernelError

    run = Traced(EmulatedKernel(found, type, edge, traced=True), dict(shape))
    launched = run.run("count")
    if launched.stopped:
        raise KernelError(f"{found} {type} at {dict(shape)}: an access leaves the operands and shared memory; check it")
    raws: list[RawTally] = launched.tallies[: launched.tally_count]
    lines = run.lines(raw.site for raw in raws)
    by_line: dict[tuple[int, str], Tally] = {}
    for raw in raws:
        kind = KINDS[2 * (raw.region_kind != GLOBAL) + (raw.access != 0)]
        key = lines.get(raw.site, 0), kind
        by_line[key] = by_line.get(key, Tally()) + Tally(raw.requests, raw.cost, raw.ideal)
    totals = {kind: sum((each for (_, of), each in by_line.items() if of == kind), Tally()) for kind in KINDS}
    return Counts(
        **totals,
        compulsory_bytes=sum(run.sizes),
        blocks=math.prod(launched.grid),
        barriers=launched.barriers,
        by_line=dict(sorted(by_line.items())),
    )
