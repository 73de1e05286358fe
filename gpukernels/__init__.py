"""GPU kernels and their CPU versions: vector addition, matrix transposition and product, rung by rung.

    >>> import cupy, gpukernels
    >>> padded = gpukernels.load("transpose", "padded", "float32")
    >>> out = padded(cupy.random.rand(33, 65, dtype="float32"))  # 65 x 33

The measuring stick in benchmarks/ runs against any commit of this package and may use of it only what
`__all__` names: `load`, `rung` and `compile_cuda`, the errors, and of what these return `Rung.types`, `Rung.repeats`,
`Kernel.bind` and a `Launch` with its `identity`; for the compile-time figures `Rung.source`, `Rung.edges`,
`Rung.block_threads` and `Rung.shared_bytes`; for the access counts what benchmarks/_emulator/machine/ imports. A commit
that lacks `load`, `rung` or `LadderError` shows n/a; without `compile_cuda`, or what the counts need, those do.
"""

from gpukernels.kernel import Kernel, KernelError, Launch, LimitError, ToolMissing, compile_cuda, load
from gpukernels.ladder import LadderError, Op, Rung, op, ops, rung

__all__ = [
    "Kernel",
    "KernelError",
    "LadderError",
    "Launch",
    "LimitError",
    "Op",
    "Rung",
    "ToolMissing",
    "compile_cuda",
    "load",
    "op",
    "ops",
    "rung",
]
