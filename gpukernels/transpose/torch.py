"""transpose/torch: out (N x M) = in (M x N) transposed by PyTorch, what its users call.

Source: PyTorch documentation: torch.Tensor.copy_, torch.from_dlpack.
"""

from typing import Any

import torch

from gpukernels.torch_stream import on_current_stream


def version() -> str:
    """The library, for the identity of a launch."""
    return f"PyTorch {torch.__version__}"


def transpose_torch(a: Any, out: Any) -> None:
    """out is overwritten: C-contiguous CuPy arrays, no dimension 0. Enqueued on CuPy's current stream."""
    with on_current_stream():
        torch.from_dlpack(out).copy_(torch.from_dlpack(a).T)
