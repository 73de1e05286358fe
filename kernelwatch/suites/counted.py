"""The suites of counted accesses: exact counts of every CUDA rung's memory accesses, with and without a GPU."""

import math
from typing import Any, ClassVar, cast

from kernelwatch.analysis.counted import DEVICE, cuda, places, plan
from kernelwatch.emulator import KINDS
from kernelwatch.identity import COUNTED as IDENTITY
from kernelwatch.plan.cells import COUNTED, key
from kernelwatch.plan.problem import extents, label
from kernelwatch.plan.project import Project
from kernelwatch.run.group import measure_once, save
from kernelwatch.run.outcome import Group
from kernelwatch.suites.series import Suite, series
from kernelwatch.system.options import Options


def measure(project: Project, op: str, options: Options | None = None) -> Group:
    """Count the accesses of an op's CUDA rungs at the commit under test, and save the group. `options`: by default
    those of this process."""
    options = options or Options.here()
    group = measure_once(project, op, DEVICE, plan(project.op(op), options.only), options)
    save(group, options)
    return group


class Access(Suite):
    """The counts by rung, and by element type and shape together."""

    param_names: ClassVar[list[str]] = ["rung", "operands"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        problem = cls.project.op(cls.op)
        return [list(cuda(problem)), [f"{type} {label(shape)}" for type, shape in places(problem)]]

    def measure(self, options: Options | None = None) -> Group:
        return measure(self.project, self.op, options)

    def cell(self, *where: str) -> str:
        rung, operands = where
        type, shape = operands.split()
        return key(self.op, rung, type, extents(shape), COUNTED)

    def counts(self, group: Group, *where: str) -> dict[str, Any]:
        """The counts of one cell, {} if there are none. Raises: RuntimeError if the cell failed."""
        measurements = self.outcome(group, *where).measurements
        return cast(dict[str, Any], measurements[0]) if measurements else {}

    def ratio(self, group: Group, where: tuple[str, ...], over: str, of: str, *kinds: str) -> float:
        """The sum of `over` divided by the sum of `of`, both over kinds of access; NaN if there are no such accesses.

        Raises: RuntimeError if the cell failed.
        """
        tallies = [self.counts(group, *where).get(kind, {over: 0, of: 0}) for kind in kinds]
        divisor = sum(tally[of] for tally in tallies)
        return sum(tally[over] for tally in tallies) / divisor if divisor else math.nan

    def figure(self, group: Group, where: tuple[str, ...], over: str, of: str) -> float:
        """One figure of a launch divided by another; NaN if there are none. Raises: RuntimeError if the cell failed."""
        counts = self.counts(group, *where)
        return counts[over] / counts[of] if counts else math.nan

    @series(IDENTITY, "sectors/request", higher_is_better=False, judged="exact")
    def track_load_sectors(self, group: Group, *where: str) -> float:
        """32-byte sectors of global memory per load of a warp."""
        return self.ratio(group, where, "cost", "requests", "global_load")

    @series(IDENTITY, "sectors/request", higher_is_better=False, judged="exact")
    def track_store_sectors(self, group: Group, *where: str) -> float:
        """32-byte sectors of global memory per store of a warp."""
        return self.ratio(group, where, "cost", "requests", "global_store")

    @series(IDENTITY, "x ideal", higher_is_better=False)
    def track_sectors_over_ideal(self, group: Group, *where: str) -> float:
        """Sectors of all loads and stores, divided by the fewest that hold as many bytes."""
        return self.ratio(group, where, "cost", "ideal", "global_load", "global_store")

    @series(IDENTITY, "wavefronts/request", higher_is_better=False, judged="exact")
    def track_shared_load_wavefronts(self, group: Group, *where: str) -> float:
        """Passes through the banks of shared memory per load of a warp."""
        return self.ratio(group, where, "cost", "requests", "shared_load")

    @series(IDENTITY, "wavefronts/request", higher_is_better=False, judged="exact")
    def track_shared_store_wavefronts(self, group: Group, *where: str) -> float:
        """Passes through the banks of shared memory per store of a warp."""
        return self.ratio(group, where, "cost", "requests", "shared_store")

    @series(IDENTITY, "x ideal", higher_is_better=False)
    def track_wavefronts_over_ideal(self, group: Group, *where: str) -> float:
        """Wavefronts of all loads and stores, divided by the fewest that move as many bytes."""
        return self.ratio(group, where, "cost", "ideal", "shared_load", "shared_store")

    @series(IDENTITY, "x compulsory bytes", higher_is_better=False, judged="exact")
    def track_moved(self, group: Group, *where: str) -> float:
        """Bytes of all requested sectors, divided by the compulsory bytes; caches may serve some of them."""
        return self.figure(group, where, "moved_bytes", "compulsory_bytes")

    @series(IDENTITY, "requests", higher_is_better=False, judged="exact")
    def track_requests(self, group: Group, *where: str) -> float:
        """Loads and stores of global and shared memory; one for a whole warp counts once."""
        requests = [self.counts(group, *where).get(kind, {"requests": math.nan})["requests"] for kind in KINDS]
        return float(sum(requests))

    @series(IDENTITY, "barriers/block", higher_is_better=False, judged="exact")
    def track_barriers(self, group: Group, *where: str) -> float:
        """Barriers that a block passes."""
        return self.figure(group, where, "barriers", "blocks")
