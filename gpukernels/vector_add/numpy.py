"""vector_add/numpy: out[i] = a[i] + b[i] by NumPy."""

import numpy as np
from numpy.typing import NDArray


def vector_add_numpy(a: NDArray[np.float64], b: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """out (N) = a (N) + b (N); out is overwritten."""
    np.add(a, b, out=out)
