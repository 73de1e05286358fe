"""The suites of compile-time figures: every rung of CUDA C++ and Triton by element type and architecture, exact."""

from benchmarks.project import PROJECT
from kernelwatch.run.outcome import Group
from kernelwatch.suites import compiled


class VectorAdd(compiled.Static, project=PROJECT, op="vector_add"):
    def setup_cache(self) -> Group:
        return self.measure()


class VectorAddMix(compiled.Mix, project=PROJECT, op="vector_add"):
    setup_cache = VectorAdd.setup_cache  # asv keys it by file and line, so both share one compilation


class Transpose(compiled.Static, project=PROJECT, op="transpose"):
    def setup_cache(self) -> Group:
        return self.measure()


class TransposeMix(compiled.Mix, project=PROJECT, op="transpose"):
    setup_cache = Transpose.setup_cache


class Matmul(compiled.Static, project=PROJECT, op="matmul"):
    def setup_cache(self) -> Group:
        return self.measure()


class MatmulMix(compiled.Mix, project=PROJECT, op="matmul"):
    setup_cache = Matmul.setup_cache
