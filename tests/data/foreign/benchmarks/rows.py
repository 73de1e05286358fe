"""Both ops on the CPU."""

from kernelwatch.run.outcome import Group
from kernelwatch.suites import timed

from .project import PROJECT


class ScaledSum(timed.CpuFlops, project=PROJECT, op="scaled_sum"):
    def setup_cache(self) -> Group:
        return self.measure()


class Extremes(timed.Cpu, project=PROJECT, op="extremes"):
    def setup_cache(self) -> Group:
        return self.measure()
