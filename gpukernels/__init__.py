"""GPU kernels and their CPU versions: vector addition, matrix transposition and product, rung by rung.

    >>> import cupy, gpukernels
    >>> padded = gpukernels.load("transpose", "padded", "float32")
    >>> out = padded(cupy.random.rand(33, 65, dtype="float32"))  # 65 x 33

The harness (kernelwatch/ and benchmarks/ of the checkout) runs against any commit of this package. It uses only
`load`, `rung`, `compile_cuda`, `specialized` and the errors from `__all__`, and these members of what they return:

- for timing, `Rung.types`, `Rung.repeats`, `Rung.operands`, `Kernel.bind`, and a `Launch` with its `identity`;
- for compile-time figures, `Rung.source`, `Rung.edges`, `Rung.block_threads` and `Rung.shared_bytes`;
- for those of Triton's kernels, `specialized` and the members of the `Specialization` that it returns;
- for access counts, the members that `cuda_source` in benchmarks/project.py reads.

All cells of a commit that lacks `load`, `rung` or `LadderError` are n/a. If a commit lacks only `compile_cuda`,
`specialized`, or what the access counts need, those figures alone are n/a.
"""

from gpukernels.best import load
from gpukernels.compiler import KernelError, LimitError, ToolMissing, compile_cuda
from gpukernels.kernel import Kernel, Launch, specialized
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
    "specialized",
]
