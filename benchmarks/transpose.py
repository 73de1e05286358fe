"""The transpose suites: the ladder on the GPU, by element type, what a launch costs, the ladder on the CPU."""

from benchmarks import _suites
from benchmarks._group import Group, measure


class GPU(_suites.GpuSuite, op="transpose"):
    def setup_cache(self) -> Group:
        return measure("transpose", "gpu")


class ElementTypes(_suites.ElementSuite, op="transpose"):
    setup_cache = GPU.setup_cache  # asv keys it by file and line: one measurement for all three


class Launch(_suites.LaunchSuite, op="transpose"):
    setup_cache = GPU.setup_cache


class CPU(_suites.CpuSuite, op="transpose"):
    def setup_cache(self) -> Group:
        return measure("transpose", "cpu")
