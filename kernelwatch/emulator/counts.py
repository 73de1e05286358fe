"""Access counts: `count(source, extents)` computes the exact, repeatable cost of the warps' loads and stores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from kernelwatch.emulator.build import GLOBAL, EmulatedKernel, RawTally
from kernelwatch.emulator.faults import Faulty, faults_of
from kernelwatch.emulator.sites import Traced
from kernelwatch.plan.package import CudaSource

KINDS = ("global_load", "global_store", "shared_load", "shared_store")


@dataclass(frozen=True)
class Tally:
    """The accesses of one kind.

    `requests`: each access of a warp is one request.
    `cost`: the 32-byte sectors of global memory that the requests touch, or the wavefronts of shared memory they take.
    `ideal`: the minimum cost for the same number of bytes.
    """

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
    """The memory accesses of one launch. Atomics count as stores, texture fetches as loads; constant memory is ignored.

    `compulsory_bytes`: the bytes of each operand, once.
    `stored_bytes`: the bytes of global memory that all requests together write.
    `barriers`: how often a block waited at a barrier, summed over all blocks.
    `by_line`: the tallies by source line and kind (global_load, ...).
    `unpaired`: the kinds with an access that lanes of a warp made unequally often, such as one with a guard in a loop.
    It is not known which of a lane's accesses the hardware serves together with which of its neighbor's. The first
    accesses of all lanes are counted as one request, the second as another, and so on.
    `split`: how many sectors of shared memory the asynchronous copies of 16 bytes a lane (cp.async.cg) fill, beyond the
    sectors that they read: summed over the 128-byte lines of global memory that a warp reads at a time.
    """

    global_load: Tally
    global_store: Tally
    shared_load: Tally
    shared_store: Tally
    compulsory_bytes: int
    stored_bytes: int
    blocks: int
    barriers: int
    by_line: Mapping[tuple[int, str], Tally] = field(default_factory=dict)
    unpaired: tuple[str, ...] = ()
    split: int = 0

    @property
    def moved_bytes(self) -> int:
        """The bytes of all requested sectors, including those that a GPU's caches would serve."""
        return 32 * (self.global_load.cost + self.global_store.cost)


def count(source: CudaSource, extents: Mapping[str, int]) -> Counts:
    """The accesses of a kernel at these extents (name -> extent), on operands of zeros.

    Raises: Faulty if the kernel accesses memory outside its operands; CompileError; ToolMissing.
    """
    return _count(Traced(EmulatedKernel(source), dict(extents)))


def count_on(kernel: EmulatedKernel, inputs: Sequence[NDArray[Any]], out: NDArray[Any]) -> Counts:
    """The accesses of a kernel on these inputs; `out` is overwritten.

    Raises: Faulty if the kernel accesses memory outside its operands; ValueError if the inputs do not match the source.
    """
    run = Traced(kernel, kernel.extents(*inputs))
    run.fill([*inputs, out])
    counts = _count(run)
    out[...] = run.out
    return counts


def _count(run: Traced) -> Counts:
    launched = run.run("count")
    if faults := faults_of(launched, run):
        raise Faulty(faults)
    raws: list[RawTally] = launched.tallies[: launched.tally_count]
    lines = run.lines(raw.site for raw in raws)
    by_line: dict[tuple[int, str], Tally] = {}
    unpaired = set()
    for raw in raws:
        kind = KINDS[2 * (raw.region_kind != GLOBAL) + (raw.access != 0)]
        key = lines.get(raw.site, 0), kind
        by_line[key] = by_line.get(key, Tally()) + Tally(raw.requests, raw.cost, raw.ideal)
        if raw.unpaired:
            unpaired.add(kind)
    totals = dict.fromkeys(KINDS, Tally())
    for (_, kind), tally in by_line.items():
        totals[kind] += tally
    return Counts(
        **totals,
        compulsory_bytes=sum(run.sizes),
        stored_bytes=sum(raw.bytes for raw in raws if raw.region_kind == GLOBAL and raw.access),
        blocks=math.prod(launched.grid),
        barriers=launched.barriers,
        by_line=dict(sorted(by_line.items())),
        unpaired=tuple(sorted(unpaired)),
        split=sum(raw.split for raw in raws),
    )
