"""matmul/triton: C (M x N) = A (M x K) B (K x N) by a Triton kernel, a tile of C for each program.

A program walks along K, a tile of A and one of B at a time, and sums in float32; Triton stages the tiles in shared
memory some steps ahead. Programs that run at the same time take the tiles of GROUP rows of tiles, column by column, so
that they share operands in the L2 cache. A float32 product is one in float32 ("ieee"), never in TF32.
Source: Triton documentation, tutorial 3: matrix multiplication.
"""

from typing import Any

import triton
import triton.language as tl

from gpukernels.compiler import in_and_out
from gpukernels.specialization import POINTERS, Specialization
from gpukernels.torch_stream import on_current_stream

GROUP = 8
# Type of the inputs -> TILE_M, TILE_N, TILE_K, warps, stages.
TILES = {"float32": (64, 64, 32, 4, 3), "float16": (128, 256, 64, 8, 3)}


@triton.jit
def matmul_tile(
    a, b, c, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr
):
    down, across = tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N)
    group = tl.program_id(0) // (GROUP * across)
    rows_of_tiles = min(down - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    m = (group * GROUP + within % rows_of_tiles) * TILE_M + tl.arange(0, TILE_M)
    n = within // rows_of_tiles * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    # 64 bits: an operand may have more than 2^31 elements.
    rows, columns, depths = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    of_a = a + rows[:, None] * K + depths[None, :]
    of_b = b + depths[:, None] * N + columns[None, :]
    step = tl.full((), TILE_K, tl.int64) * N
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in range(0, K, TILE_K):
        left = K - start
        a_tile = tl.load(of_a, (m[:, None] < M) & (k[None, :] < left), 0.0)
        b_tile = tl.load(of_b, (k[:, None] < left) & (n[None, :] < N), 0.0)
        total = tl.dot(a_tile, b_tile, total, input_precision="ieee")
        of_a += TILE_K
        of_b += step
    tl.store(c + rows[:, None] * N + columns[None, :], total, (m[:, None] < M) & (n[None, :] < N))


def version() -> str:
    """The compiler, for the identity of a launch."""
    return f"Triton {triton.__version__}"


def specialized(type: str) -> Specialization:
    """What a launch compiles if M, N and K are multiples of 16. For others Triton compiles another kernel."""
    into, out = in_and_out(type)
    tile_m, tile_n, tile_k, warps, stages = TILES[into]
    return Specialization(
        matmul_tile,
        {"a": POINTERS[into], "b": POINTERS[into], "c": POINTERS[out], "M": "i32", "N": "i32", "K": "i32"},
        {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": tile_k, "GROUP": GROUP},
        divisible=("a", "b", "c", "M", "N", "K"),
        options={"num_warps": warps, "num_stages": stages},
    )


def matmul_triton(a: Any, b: Any, out: Any) -> None:
    """out is overwritten: C-contiguous CuPy arrays, no dimension 0. Enqueued on CuPy's current stream."""
    import torch  # not above: without PyTorch the kernel can still be compiled

    (M, K), N = a.shape, b.shape[1]
    tile_m, tile_n, tile_k, warps, stages = TILES[a.dtype.name]
    grid = (triton.cdiv(M, tile_m) * triton.cdiv(N, tile_n),)
    operands = (torch.from_dlpack(array) for array in (a, b, out))
    with on_current_stream():
        matmul_tile[grid](*operands, M, N, K, tile_m, tile_n, tile_k, GROUP, num_warps=warps, num_stages=stages)
