"""transpose/triton: out (N x M) = in (M x N) transposed by a Triton kernel, a tile for each program.

A tile is read row by row and written column by column of in; between the two Triton turns it in shared memory, and
chooses the layout that avoids bank conflicts.
Source: Tillet, Kung and Cox 2019, Triton; Triton documentation: triton.language.trans.
"""

from typing import Any

import triton
import triton.language as tl

from gpukernels.specialization import POINTERS, Specialization
from gpukernels.torch_stream import on_current_stream

TILE_M, TILE_N, WARPS = 64, 64, 8


@triton.jit
def transpose_tile(a, out, M, N, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    across = tl.cdiv(N, TILE_N)
    m = tl.program_id(0) // across * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(0) % across * TILE_N + tl.arange(0, TILE_N)
    # 64 bits: a matrix may have more than 2^31 elements.
    rows, columns = m.to(tl.int64), n.to(tl.int64)
    tile = tl.load(a + rows[:, None] * N + columns[None, :], (m[:, None] < M) & (n[None, :] < N))
    tl.store(out + columns[:, None] * M + rows[None, :], tl.trans(tile), (n[:, None] < N) & (m[None, :] < M))


def version() -> str:
    """The compiler, for the identity of a launch."""
    return f"Triton {triton.__version__}"


def specialized(type: str) -> Specialization:
    """What a launch compiles if M and N are multiples of 16. For other extents, such as 16411 x 8209, Triton compiles
    another kernel."""
    return Specialization(
        transpose_tile,
        {"a": POINTERS[type], "out": POINTERS[type], "M": "i32", "N": "i32"},
        {"TILE_M": TILE_M, "TILE_N": TILE_N},
        divisible=("a", "out", "M", "N"),
        options={"num_warps": WARPS},
    )


def transpose_triton(a: Any, out: Any) -> None:
    """out is overwritten: C-contiguous CuPy arrays, no dimension 0. Enqueued on CuPy's current stream."""
    import torch  # not above: without PyTorch the kernel can still be compiled

    M, N = a.shape
    grid = (triton.cdiv(M, TILE_M) * triton.cdiv(N, TILE_N),)
    with on_current_stream():
        transpose_tile[grid](torch.from_dlpack(a), torch.from_dlpack(out), M, N, TILE_M, TILE_N, num_warps=WARPS)
