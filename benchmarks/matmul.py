"""The matmul suites: the ladder on the GPU, by element type, what a launch costs, the ladder on the CPU."""

from benchmarks import _suites
from benchmarks._group import Group, measure


class GPU(_suites.GpuFlopsSuite, op="matmul"):
    def setup_cache(self) -> Group:
        return measure("matmul", "gpu")


class ElementTypes(_suites.ElementFlopsSuite, op="matmul"):
    setup_cache = GPU.setup_cache  # asv keys it by file and line: one measurement for all three


class Launch(_suites.LaunchSuite, op="matmul"):
    setup_cache = GPU.setup_cache


class CPU(_suites.CpuFlopsSuite, op="matmul"):
    def setup_cache(self) -> Group:
        return measure("matmul", "cpu")
