"""Rungs that PyTorch launches: its functions, and what torch.compile makes of an expression."""

import torch
from torch.nn import functional


def row_sum(x, out):
    x, out = map(torch.from_dlpack, (x, out))
    torch.sum(x, dim=1, out=out)


def softmax(x, out):
    x, out = map(torch.from_dlpack, (x, out))
    torch.softmax(x, dim=1, out=out)


@torch.compile
def _softmax(x, out):
    powers = torch.exp(x - x.amax(dim=1, keepdim=True))
    out.copy_(powers / powers.sum(dim=1, keepdim=True))


def softmax_compiled(x, out):
    _softmax(*map(torch.from_dlpack, (x, out)))


def rms_norm(x, weight, out, eps):
    x, weight, out = map(torch.from_dlpack, (x, weight, out))
    out.copy_(functional.rms_norm(x, weight.shape, weight, eps))


@torch.compile
def _rms_norm(x, weight, out, eps):
    out.copy_(x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + eps) * weight)


def rms_norm_compiled(x, weight, out, eps):
    _rms_norm(*map(torch.from_dlpack, (x, weight, out)), eps)


def attention(q, k, v, out, scale):
    q, k, v, out = map(torch.from_dlpack, (q, k, v, out))
    result = functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)
    out.copy_(result[0])


def attention_eager(q, k, v, out, scale):
    q, k, v, out = map(torch.from_dlpack, (q, k, v, out))
    torch.bmm(torch.softmax(torch.bmm(q, k.mT).float() * scale, dim=2).to(v.dtype), v, out=out)


def scaled_matmul(a, b, a_scale, b_scale, out):
    a, b, a_scale, b_scale, out = map(torch.from_dlpack, (a, b, a_scale, b_scale, out))
    torch.mul(torch._int_mm(a, b.T) * a_scale[:, None], b_scale, out=out)
