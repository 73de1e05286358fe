"""GPU kernels and their CPU versions: vector addition, matrix transposition and product, rung by rung.

    >>> import cupy, gpukernels
    >>> padded = gpukernels.load("transpose", "padded", "float32")
    >>> out = padded(cupy.random.rand(33, 65, dtype="float32"))  # 65 x 33

The measuring stick in benchmarks/ runs against any commit of this package and may use of it only what
`__all__` names: `load` and `rung`, the errors, and of what these return `Rung.types`, `Rung.repeats`,
`Kernel.bind` and a `Launch` with its `identity`. A commit that lacks `load`, `rung` or `LadderError` shows n/a.
"""

from gpukernels.kernel import Kernel, KernelError, Launch, LimitError, ToolMissing, load
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
    "load",
    "op",
    "ops",
    "rung",
]
