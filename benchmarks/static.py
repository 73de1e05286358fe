"""The compile-time figures of every CUDA rung, by element type and architecture: exact, with and without a GPU."""

from benchmarks import _static
from benchmarks._group import Group


class VectorAdd(_static.Suite, op="vector_add"):
    def setup_cache(self) -> Group:
        return _static.measure("vector_add")


class VectorAddMix(_static.MixSuite, op="vector_add"):
    setup_cache = VectorAdd.setup_cache  # asv keys it by file and line: one compilation for both


class Transpose(_static.Suite, op="transpose"):
    def setup_cache(self) -> Group:
        return _static.measure("transpose")


class TransposeMix(_static.MixSuite, op="transpose"):
    setup_cache = Transpose.setup_cache


class Matmul(_static.Suite, op="matmul"):
    def setup_cache(self) -> Group:
        return _static.measure("matmul")


class MatmulMix(_static.MixSuite, op="matmul"):
    setup_cache = Matmul.setup_cache
