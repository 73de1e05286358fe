"""The suites of row_sum, one for each device."""

from kernelwatch.run.outcome import Group
from kernelwatch.suites import timed

from .project import PROJECT


class CPU(timed.CpuFlops, project=PROJECT, op="row_sum"):
    def setup_cache(self) -> Group:
        return self.measure()


class GPU(timed.GpuFlops, project=PROJECT, op="row_sum"):  # with a GPU
    def setup_cache(self) -> Group:  # with a GPU
        return self.measure()  # with a GPU
