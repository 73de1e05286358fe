"""The Triton kernels, and what each is launched with. They need no GPU to be compiled.

Source of the attention: Dao 2023, FlashAttention-2; the others follow the Triton tutorials in what they teach.
"""

import triton
import triton.language as tl

ROW_SUM = {"BLOCK": 4096, "num_warps": 4}
SOFTMAX = {"num_warps": 4}  # and BLOCK: the power of two from the row's length on
RMS_NORM = {"num_warps": 1}
ATTENTION = {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3}
SCALED_MATMUL = {"TILE_M": 128, "TILE_N": 256, "TILE_K": 128, "num_warps": 8, "num_stages": 3}


@triton.jit
def row_sum(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        sums += tl.load(x + row * columns + at, at < columns, 0.0)
    tl.store(out + row, tl.sum(sums, 0))


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, float("-inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), at < columns)


@triton.jit
def rms_norm(x, weight, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, 0.0)
    factors = tl.load(weight + at, at < columns, 0.0)
    scale = 1 / tl.sqrt(tl.sum(values * values, 0) / columns + eps)
    tl.store(out + row * columns + at, values * scale * factors, at < columns)


@triton.jit
def attention(q, k, v, out, length, scale, DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * length * DEPTH
    depth = tl.arange(0, DEPTH)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row[:, None] * DEPTH + depth[None, :]
    queries = tl.load(q + head + here, row[:, None] < length, 0.0)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DEPTH), tl.float32)
    for start in range(0, length, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        keys = tl.load(k + head + column[None, :] * DEPTH + depth[:, None], column[None, :] < length, 0.0)
        scores = tl.dot(queries, keys) * scale
        scores = tl.where(column[None, :] < length, scores, float("-inf"))
        next_largest = tl.maximum(largest, tl.max(scores, 1))
        shrunk = tl.exp(largest - next_largest)
        powers = tl.exp(scores - next_largest[:, None])
        total = total * shrunk + tl.sum(powers, 1)
        values = tl.load(v + head + column[:, None] * DEPTH + depth[None, :], column[:, None] < length, 0.0)
        sums = tl.dot(powers.to(values.dtype), values, sums * shrunk[:, None])
        largest = next_largest
    tl.store(out + head + here, (sums / total[:, None]).to(out.dtype.element_ty), row[:, None] < length)


@triton.jit
def scaled_matmul(
    a, b, a_scale, b_scale, out, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):
    m = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), tl.int32)
    for start in range(0, K, TILE_K):
        left = K - start
        rows = tl.load(a + m[:, None] * K + start + k[None, :], (m[:, None] < M) & (k[None, :] < left), 0)
        columns = tl.load(b + n[None, :] * K + start + k[:, None], (n[None, :] < N) & (k[:, None] < left), 0)
        total = tl.dot(rows, columns, total, out_dtype=tl.int32)
    of_rows = tl.load(a_scale + m, m < M, 0.0)
    of_columns = tl.load(b_scale + n, n < N, 0.0)
    results = total.to(tl.float32) * of_rows[:, None] * of_columns[None, :]
    tl.store(out + m[:, None] * N + n[None, :], results, (m[:, None] < M) & (n[None, :] < N))
