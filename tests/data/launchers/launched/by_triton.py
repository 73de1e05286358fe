import torch
import triton
import triton.language as tl


@triton.jit
def axpy_triton(x, y, out, alpha, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, alpha * tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


CONFIGURATIONS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (256, 2048) for warps in (1, 8)]
TUNED = triton.autotune(CONFIGURATIONS, key=["n"])(axpy_triton)


def axpy(x, y, out, alpha):
    x, y, out = map(torch.from_dlpack, (x, y, out))
    axpy_triton[(triton.cdiv(len(x), 1024),)](x, y, out, alpha, len(x), BLOCK=1024)


def tuned(x, y, out, alpha):
    x, y, out = map(torch.from_dlpack, (x, y, out))
    TUNED[lambda chosen: (triton.cdiv(len(x), chosen["BLOCK"]),)](x, y, out, alpha, len(x))


class Nowhere:
    """A pointer to where no memory is."""

    dtype = torch.float32

    def data_ptr(self):
        return 64


def far(x, y, out, alpha):
    axpy_triton[(1,)](torch.from_dlpack(x), torch.from_dlpack(y), Nowhere(), alpha, len(x), BLOCK=1024)
