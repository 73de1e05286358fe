"""The honest twin of every exploit: the same op, done in each call.

`transpose(x, out)` writes the transpose of a square matrix, `transposed(x)` returns it in new memory, and
`doubled(x, out)` writes 2 x. They take NumPy's arrays on a CPU, and PyTorch's tensors on a GPU if REDTEAM_DEVICE is
"gpu". `OP_inputs(seed)` makes the arguments of an op; without a seed nobody can know them before.
"""

import os
import secrets

GPU = os.environ.get("REDTEAM_DEVICE") == "gpu"
N = int(os.environ.get("REDTEAM_N", "2048" if GPU else "1024"))  # rows and columns
SMALL = 1024  # of `doubled`: both arrays fit in the L2 cache together
CHECKED = 8  # so many calls at first are honest, in exploits that want to pass a check before the timing

if GPU:
    import torch
else:
    import numpy as np


def random(n, seed):
    """A matrix of random float32."""
    seed = secrets.randbits(32) if seed is None else seed
    if GPU:
        return torch.rand(n, n, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
    return np.random.default_rng(seed).random((n, n), np.float32)


def poisoned(n):
    """A matrix of NaN, in which an output is written."""
    return torch.full((n, n), float("nan"), device="cuda") if GPU else np.full((n, n), np.nan, np.float32)


def transpose_inputs(seed=None):
    return random(N, seed), poisoned(N)


def transposed_inputs(seed=None):
    return (random(N, seed),)


def doubled_inputs(seed=None):
    return random(SMALL, seed), poisoned(SMALL)


def transpose(x, out):
    if GPU:
        out.copy_(x.T)
    else:
        np.copyto(out, x.T)


def transposed(x):
    return x.T.contiguous() if GPU else np.ascontiguousarray(x.T)


def doubled(x, out):
    if GPU:
        torch.mul(x, 2, out=out)
    else:
        np.multiply(x, np.float32(2), out=out)


def address(x):
    """Where an array lies."""
    return x.data_ptr() if GPU else x.ctypes.data


def fingerprint(x):
    """Some elements of a matrix. On a GPU this waits for it."""
    return (*(x[0, :4].tolist()), *(x[-1, -4:].tolist()))
