"""The vector_add suites: the ladder on the GPU, by element type, what a launch costs, the ladder on the CPU."""

from benchmarks import _suites
from benchmarks._group import Group, measure


class GPU(_suites.GpuSuite, op="vector_add"):
    def setup_cache(self) -> Group:
        return measure("vector_add", "gpu")


class ElementTypes(_suites.ElementSuite, op="vector_add"):
    setup_cache = GPU.setup_cache  # asv keys it by file and line: one measurement for all three


class Launch(_suites.LaunchSuite, op="vector_add"):
    setup_cache = GPU.setup_cache


class CPU(_suites.CpuSuite, op="vector_add"):
    def setup_cache(self) -> Group:
        return measure("vector_add", "cpu")
