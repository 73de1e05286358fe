"""The transpose suites: the ladder on the GPU, the element types, the cost of a launch, the ladder on the CPU."""

from benchmarks.project import PROJECT
from kernelwatch.run.outcome import Group
from kernelwatch.suites import timed


class GPU(timed.Gpu, project=PROJECT, op="transpose"):
    def setup_cache(self) -> Group:
        return self.measure()


class ElementTypes(timed.Elements, project=PROJECT, op="transpose"):
    setup_cache = GPU.setup_cache  # asv keys it by file and line, so all three share one measurement


class Launch(timed.Launch, project=PROJECT, op="transpose"):
    setup_cache = GPU.setup_cache


class CPU(timed.Cpu, project=PROJECT, op="transpose"):
    def setup_cache(self) -> Group:
        return self.measure()
