"""matmul/torch_fp8: C = A B^T on float8 by torch._scaled_mm with scales of 1: cuBLASLt, as PyTorch's users call it.

With `promote` the library adds sums of the tensor cores, which keep 14 bits, in float32 from time to time. Without it
(PyTorch's use_fast_accum) all sums stay in the tensor cores, as those of matmul/wgmma_fp8 do.
Source: PyTorch documentation: torch.nn.functional.scaled_mm; NVIDIA, cuBLAS documentation: cublasLtMatmul,
CUBLASLT_MATMUL_DESC_FAST_ACCUM.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from gpukernels.torch_stream import on_current_stream

ALIGNMENT = 16  # bytes at multiples of which cuBLASLt lets an 8-bit matrix and its rows begin


def version() -> str:
    """The library, for the identity of a launch."""
    return f"PyTorch {torch.__version__}"


@cache
def _one(device: int) -> torch.Tensor:
    return torch.tensor(1.0, device=f"cuda:{device}")


def _operand(matrix: Any, row_step: int = 1) -> torch.Tensor:
    """A matrix, or, if cuBLASLt does not take it, a copy padded with zeros to a multiple of `row_step` rows."""
    numbers = torch.from_dlpack(matrix.view(np.uint8))  # CuPy has no float8 for DLPack
    rows, columns = (-extent % step for extent, step in zip(matrix.shape, (row_step, ALIGNMENT), strict=True))
    if rows or columns or matrix.data.ptr % ALIGNMENT:
        numbers = torch.nn.functional.pad(numbers, (0, columns, 0, rows))
    return numbers.view(torch.float8_e4m3fn)


def matmul_torch_fp8(a: Any, b: Any, out: Any, *, promote: int = 0) -> None:
    """out (M x N) = a (M x K) times the transpose of b (N x K): C-contiguous CuPy arrays, no dimension 0.

    out is overwritten. Enqueued on CuPy's current stream, not synchronized.
    """
    with on_current_stream():
        into = torch.from_dlpack(out)
        left, right = _operand(a), _operand(b, ALIGNMENT)
        fits = out.shape[1] == len(right) and out.data.ptr % ALIGNMENT == 0
        result = into if fits else into.new_empty((len(into), len(right)))
        one = _one(out.device.id)
        torch._scaled_mm(*(left, right.t(), one, one), out_dtype=into.dtype, use_fast_accum=not promote, out=result)
        if not fits:
            into.copy_(result[:, : out.shape[1]])
