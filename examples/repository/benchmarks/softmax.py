from kernelwatch.run.outcome import Group
from kernelwatch.suites import compiled, timed

from .project import PROJECT


class GPU(timed.GpuFlops, project=PROJECT, op="softmax"):
    def setup_cache(self) -> Group:
        return self.measure()


class CPU(timed.CpuFlops, project=PROJECT, op="softmax"):
    def setup_cache(self) -> Group:
        return self.measure()


class Static(compiled.Static, project=PROJECT, op="softmax"):
    def setup_cache(self) -> Group:
        return self.measure()
