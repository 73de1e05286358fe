"""The matmul suites: the ladder on the GPU, the element types, the cost of a launch, the ladder on the CPU, streaming
from the host, and several GPUs."""

from benchmarks.project import PROJECT
from kernelwatch.extras.several import suite as several
from kernelwatch.extras.streamed import suite as streamed
from kernelwatch.run.outcome import Group
from kernelwatch.suites import timed


class GPU(timed.GpuFlops, project=PROJECT, op="matmul"):
    def setup_cache(self) -> Group:
        return self.measure()


class ElementTypes(timed.ElementFlops, project=PROJECT, op="matmul"):
    setup_cache = GPU.setup_cache  # asv keys it by file and line, so all three share one measurement


class Launch(timed.Launch, project=PROJECT, op="matmul"):
    setup_cache = GPU.setup_cache


class CPU(timed.CpuFlops, project=PROJECT, op="matmul"):
    def setup_cache(self) -> Group:
        return self.measure()


class Streamed(streamed.Streamed, project=PROJECT, op="matmul"):
    def setup_cache(self) -> Group:
        return self.measure()


class Several(several.Several, project=PROJECT, op="matmul"):
    def setup_cache(self) -> Group:
        return self.measure()
