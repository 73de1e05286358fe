"""What every CUDA rung asks of memory, by element type and shape: exact, with and without a GPU."""

from benchmarks import _access
from benchmarks._group import Group


class VectorAdd(_access.Suite, op="vector_add"):
    def setup_cache(self) -> Group:
        return _access.measure("vector_add")


class Transpose(_access.Suite, op="transpose"):
    def setup_cache(self) -> Group:
        return _access.measure("transpose")


class Matmul(_access.Suite, op="matmul"):
    def setup_cache(self) -> Group:
        return _access.measure("matmul")
