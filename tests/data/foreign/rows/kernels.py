"""One function a kernel."""

import numpy as np


def einsum(a, out, scale):
    np.einsum("ij->i", a, out=out)
    np.multiply(out, np.float32(scale), out=out)


def numpy(a, out):
    low, high = out
    a.min(axis=1, out=low)
    a.max(axis=1, out=high)


KERNELS = {("scaled_sum", "einsum"): einsum, ("extremes", "numpy"): numpy}
