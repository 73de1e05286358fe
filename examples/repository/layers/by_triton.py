"""Rungs that Triton launches. The engine's stream is PyTorch's current one, which Triton takes."""

import torch
import triton

from layers import kernels


def row_sum(x, out):
    x, out = map(torch.from_dlpack, (x, out))
    kernels.row_sum[(len(x),)](x, out, x.shape[1], **kernels.ROW_SUM)


def softmax(x, out):
    x, out = map(torch.from_dlpack, (x, out))
    kernels.softmax[(len(x),)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), **kernels.SOFTMAX)


def rms_norm(x, weight, out, eps):
    x, weight, out = map(torch.from_dlpack, (x, weight, out))
    block = triton.next_power_of_2(x.shape[1])
    kernels.rms_norm[(len(x),)](x, weight, out, x.shape[1], eps, BLOCK=block, **kernels.RMS_NORM)


def attention(q, k, v, out, scale):
    q, k, v, out = map(torch.from_dlpack, (q, k, v, out))
    heads, length, depth = q.shape
    grid = triton.cdiv(length, kernels.ATTENTION["ROWS"]), heads
    kernels.attention[grid](q, k, v, out, length, scale, DEPTH=depth, **kernels.ATTENTION)


def scaled_matmul(a, b, a_scale, b_scale, out):
    a, b, a_scale, b_scale, out = map(torch.from_dlpack, (a, b, a_scale, b_scale, out))
    (M, K), N = a.shape, len(b)
    settings = kernels.SCALED_MATMUL
    grid = triton.cdiv(N, settings["TILE_N"]), triton.cdiv(M, settings["TILE_M"])
    kernels.scaled_matmul[grid](a, b, a_scale, b_scale, out, M, N, K, **settings)
