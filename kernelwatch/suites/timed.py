"""The timed suites. One measurement of a cell feeds all of its series."""

import math
import statistics
from collections.abc import Callable
from typing import ClassVar

from kernelwatch.identity import TIMED
from kernelwatch.plan.cells import CACHES, key, rungs
from kernelwatch.plan.problem import COPY, Shape, extents, label
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.suites.measured import Measured
from kernelwatch.suites.series import Samples, Suite, outcome_of, samples, series
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Measurement


class Timed(Measured, Suite):
    """The times of a problem's cells."""

    def cell(self, *where: str) -> str:
        return key(self.op, *self.place(*where))

    def place(self, *where: str) -> tuple[str, str, Shape, str]:
        """A combination of parameter values as (rung, type, shape, cache)."""
        rung, shape, cache = where
        return rung, self.problem.main_type(rung), extents(shape), cache

    def each(self, group: Group, where: tuple[str, ...], of: Callable[[float], float]) -> Samples:
        """A figure of the seconds of each process."""
        seconds = self.outcome(group, *where).by_process("seconds")
        return samples({process: of(value) for process, value in seconds.items()})

    def beside(self, group: Group, where: tuple[str, ...], other: str, of: Callable[[float, float], float]) -> Samples:
        """A figure of the seconds of each process, and of those of the cell with the key `other` in it."""
        seconds = self.outcome(group, *where).by_process("seconds")
        base = group.outcomes.get(other, Outcome()).by_process("seconds")
        return samples({process: of(value, base[process]) for process, value in seconds.items() if process in base})

    @series(TIMED, "seconds", higher_is_better=False, judged="seconds")
    def track_seconds(self, group: Group, *where: str) -> Samples:
        """Seconds of one pass."""
        return samples(self.outcome(group, *where).by_process("seconds"))


class _ByShape(Timed):
    """All rungs and reference lines of a problem, each with its main type, by shape, cold and hot."""

    param_names: ClassVar[list[str]] = ["rung", "shape", "cache"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        problem = cls.project.op(cls.op)
        shapes = problem.timed(cls.device, Options.here().quick)
        return [rungs(problem, cls.device), [label(shape) for shape in shapes], list(CACHES)]


class _ByType(Timed):
    """The rungs on the GPU by element type, at one large shape, cold."""

    device = "gpu"
    param_names: ClassVar[list[str]] = ["rung", "type"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        problem = cls.project.op(cls.op)
        repeated = {rung.name for rung in problem.rungs if rung.repeats > 1}  # timed with the first type only
        names = [rung for rung in rungs(problem, cls.device) if rung not in repeated]
        return [names, [type for type in problem.types if type != problem.types[0]]]

    def place(self, *where: str) -> tuple[str, str, Shape, str]:
        rung, type = where
        return rung, type, self.problem.element_shape, CACHES[0]


class _Bandwidth(Timed):
    """A problem that only moves data, whose rate is in bytes per second."""

    @series(TIMED, "GB/s", higher_is_better=True)
    def track_bandwidth(self, group: Group, *where: str) -> Samples:
        """Effective bandwidth: compulsory bytes over time, in GB/s."""
        rung, type, shape, _ = self.place(*where)
        moved_bytes = self.problem.bytes_moved(rung, type, shape)
        return self.each(group, where, lambda seconds: moved_bytes / seconds / 1e9)


class _Allocating(Timed):
    """Rungs on the GPU, of which a launch may allocate device memory."""

    device = "gpu"

    @series(TIMED, "bytes", higher_is_better=False, judged="exact")
    def track_peak_allocated(self, group: Group, *where: str) -> float:
        """The most device memory that a launch allocates at once, in bytes; n/a if it allocates none."""
        return max(self.outcome(group, *where).by_process("peak_allocated_bytes").values(), default=math.nan)


class _GpuBandwidth(_Allocating, _Bandwidth):
    @series(TIMED, "% of copy", higher_is_better=True)
    def track_share_of_copy(self, group: Group, *where: str) -> Samples:
        """Effective bandwidth over that of the harness's vector copy in the same process, in percent."""
        rung, type, shape, cache = self.place(*where)
        copy = key(self.op, COPY, type, shape, cache)
        if not (self.outcome(group, *where).measurements and group.outcomes.get(copy, Outcome()).measurements):
            return samples({})  # an op may have no such line
        ratio = self.problem.bytes_moved(rung, type, shape) / self.problem.bytes_moved(COPY, type, shape)
        return self.beside(group, where, copy, lambda seconds, base: 100 * ratio * base / seconds)

    @series(TIMED, "% of theoretical", higher_is_better=True)
    def track_share_of_theoretical(self, group: Group, *where: str) -> Samples:
        """Effective bandwidth over the theoretical bandwidth of the memory, in percent; above 100 only from a cache."""
        rung, type, shape, _ = self.place(*where)
        moved_bytes = self.problem.bytes_moved(rung, type, shape)
        peak = group.facts.get("nvml_theoretical_bandwidth_bytes_per_s")
        if not (self.outcome(group, *where).measurements and peak):
            return samples({})
        return self.each(group, where, lambda seconds: 100 * moved_bytes / seconds / peak)


class Flops(Timed):
    """A problem with arithmetic, whose rate is in operations per second."""

    @series(TIMED, "GFLOP/s", higher_is_better=True)
    def track_flops(self, group: Group, *where: str) -> Samples:
        """Operations over time, in GFLOP/s."""
        rung, _, shape, _ = self.place(*where)
        flops = self.problem.flops(rung, shape)
        return self.each(group, where, lambda seconds: flops / seconds / 1e9)


class _AgainstVendor(Flops):
    """A problem with arithmetic that a vendor's library computes as well."""

    @series(TIMED, "% of vendor", higher_is_better=True)
    def track_share_of_vendor(self, group: Group, *where: str) -> Samples:
        """The rate over that of the vendor's library for the same type in the same process, in percent."""
        _, type, shape, cache = self.place(*where)
        vendor = key(self.op, self.problem.vendor.get(self.device, ""), type, shape, cache)
        return self.beside(group, where, vendor, lambda seconds, base: 100 * base / seconds)


class Gpu(_ByShape, _GpuBandwidth):
    """A problem that only moves data, on the GPU."""


class Elements(_ByType, _GpuBandwidth):
    """A problem that only moves data, on the GPU, by element type."""


class Cpu(_ByShape, _Bandwidth):
    """A problem that only moves data, on the CPU."""

    device = "cpu"


class GpuFlops(_ByShape, _Allocating, _AgainstVendor):
    """A problem with arithmetic, on the GPU."""


class ElementFlops(_ByType, _Allocating, _AgainstVendor):
    """A problem with arithmetic, on the GPU, by element type."""


class CpuFlops(_ByShape, _AgainstVendor):
    """A problem with arithmetic, on the CPU."""

    device = "cpu"


class Launch(Measured, Suite):
    """The cost of a launch: its time in a loop of the host minus its time in a graph, hot, at the smallest shape."""

    device = "gpu"
    param_names: ClassVar[list[str]] = ["rung"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        problem = cls.project.op(cls.op)
        smallest = problem.shapes[0]
        measured = {
            rung.name
            for rung in problem.rungs
            if rung.repeats == 1 and problem.within(rung, smallest, problem.main_type(rung.name))
        }
        return [[rung for rung in rungs(problem, "gpu") if rung in measured]]

    def cell(self, *where: str) -> str:
        (rung,) = where
        return key(self.op, rung, self.problem.main_type(rung), self.problem.shapes[0], "hot")

    @series(TIMED, "seconds", higher_is_better=False, judged="launch_seconds")
    def track_launch(self, group: Group, *where: str) -> Samples:
        """Cost of a launch in seconds."""
        return samples(outcome_of(group, self.cell(*where)).by_process("launch_seconds"))


def per_process(group: Group, read: Callable[[Measurement], float | None]) -> Samples:
    """For each process, the median of `read(measurement)` over all cells; NaN if `read` gives None for all of them."""
    by_process: dict[int, list[float]] = {}
    for outcome in group.outcomes.values():
        for measurement in outcome.measurements:
            value = read(measurement)
            if value is not None:
                by_process.setdefault(measurement["process"], []).append(value)
    return samples({process: statistics.median(values) for process, values in by_process.items()})
