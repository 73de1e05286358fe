"""The functions that scripts/lab/judged judges, each by its name in this module: the same in both modes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gpukernels


@dataclass
class Cell:
    """A rung at a shape. `run` is the function, `arrays` makes its arguments."""

    op: str
    rung: str
    type: str
    shape: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"{self.op}/{self.rung} {self.type} {'x'.join(map(str, self.shape))}"

    @cached_property
    def _kernel(self) -> Any:
        return gpukernels.load(self.op, self.rung, self.type)

    def run(self, *arrays: Any) -> None:
        """Enqueue the kernel; the last array is the output.

        It is bound, and the launch called: a kernel that is called refuses to be captured if its launch has memory. All
        that a launch of CELLS has is its operands, which both modes keep as long as their graphs.
        """
        self._kernel.bind(*arrays[:-1], out=arrays[-1])()

    def arrays(self) -> tuple[Any, ...]:
        """The inputs and the output, on the rung's device."""
        if gpukernels.rung(self.op, self.rung).device == "gpu":
            import cupy as xp
        else:
            import numpy as xp
        shapes = {
            "vector_add": (self.shape,) * 3,
            "transpose": (self.shape, self.shape[::-1]),
            "matmul": (self.shape, self.shape, self.shape),  # square
        }[self.op]
        found = [(2 * xp.random.rand(*shape) - 1).astype(self.type) for shape in shapes]
        return tuple(found)


@dataclass
class Torch:
    """A function of PyTorch on its tensors."""

    title: str
    function: Callable[..., object]
    shape: tuple[int, ...]
    inputs: int = 1

    def run(self, *arrays: Any) -> None:
        self.function(*arrays)

    def arrays(self) -> tuple[Any, ...]:
        import torch

        return tuple(2 * torch.rand(self.shape, device="cuda") - 1 for _ in range(self.inputs + 1))


def _softmax(x: Any, out: Any) -> None:
    import torch

    torch.softmax(x, 1, out=out)


def _transposed(x: Any, out: Any) -> None:
    """As scripts/lab/redteam has `transposed` judged: what the function returns is copied into an argument."""
    out.copy_(x.T.contiguous())


def _turned(x: Any, out: Any) -> None:
    """The same, with a kernel in place of a copy at the end."""
    import torch

    torch.mul(x.T.contiguous(), 1, out=out)


def _copied(x: Any, out: Any) -> None:
    """PyTorch's copy of a contiguous tensor is no kernel, but a copy by the driver."""
    out.copy_(x)


def _relu(x: Any, out: Any) -> None:
    import torch

    torch.clamp(x, min=0, out=out)


vector_add = Cell("vector_add", "elementwise", "float32", (1 << 24,))
transpose_512 = Cell("transpose", "padded", "float32", (512, 512))
transpose_1024 = Cell("transpose", "padded", "float32", (1024, 1024))
transpose_2048 = Cell("transpose", "padded", "float32", (2048, 2048))
transpose_8192 = Cell("transpose", "padded", "float32", (8192, 8192))
triton_4096 = Cell("transpose", "triton", "float32", (4096, 4096))
matmul_256 = Cell("matmul", "pipelined", "float32", (256, 256))
matmul_1024 = Cell("matmul", "pipelined", "float32", (1024, 1024))
matmul_4096 = Cell("matmul", "pipelined", "float32", (4096, 4096))
wgmma_4096 = Cell("matmul", "wgmma", "float16", (4096, 4096))
torch_softmax = Torch("torch.softmax float32 4096x4096", _softmax, (4096, 4096))
torch_relu = Torch("torch.clamp float32 512x512", _relu, (512, 512))

torch_copied = Torch("torch: a copy, float32 2048x2048", _copied, (2048, 2048))
torch_turned = Torch("torch: a transposed copy, multiplied, float32 2048x2048", _turned, (2048, 2048))
torch_kept = Torch("torch: a transposed copy, copied, float32 2048x2048", _transposed, (2048, 2048))

add_on_cpu = Cell("vector_add", "numpy", "float32", (1 << 20,))
transpose_on_cpu = Cell("transpose", "numpy", "float32", (512, 512))

CELLS = {
    "gpu": (
        *("vector_add", "transpose_512", "transpose_1024", "transpose_2048", "transpose_8192", "triton_4096"),
        *("matmul_256", "matmul_1024", "matmul_4096", "wgmma_4096", "torch_softmax", "torch_relu"),
        *("torch_copied", "torch_turned", "torch_kept"),
    ),
    "cpu": ("add_on_cpu", "transpose_on_cpu"),
}
