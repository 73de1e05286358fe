"""The suites of counted accesses: every CUDA rung by element type and shape, exact, with and without a GPU."""

from benchmarks.project import PROJECT
from kernelwatch.run.outcome import Group
from kernelwatch.suites import counted


class VectorAdd(counted.Access, project=PROJECT, op="vector_add"):
    def setup_cache(self) -> Group:
        return self.measure()


class Transpose(counted.Access, project=PROJECT, op="transpose"):
    def setup_cache(self) -> Group:
        return self.measure()


class Matmul(counted.Access, project=PROJECT, op="matmul"):
    def setup_cache(self) -> Group:
        return self.measure()
