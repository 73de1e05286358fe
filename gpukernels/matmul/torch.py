"""matmul/torch: C = A B by torch.mm, what PyTorch's users call. It calls cuBLAS; a float32 product takes no TF32, which
is PyTorch's default.

Source: PyTorch documentation: torch.mm.
"""

from typing import Any

import torch

from gpukernels.torch_stream import on_current_stream


def version() -> str:
    """The library, for the identity of a launch."""
    return f"PyTorch {torch.__version__}"


def matmul_torch(a: Any, b: Any, out: Any) -> None:
    """out is overwritten: C-contiguous CuPy arrays, no dimension 0. Enqueued on CuPy's current stream."""
    with on_current_stream():
        torch.mm(torch.from_dlpack(a), torch.from_dlpack(b), out=torch.from_dlpack(out))
