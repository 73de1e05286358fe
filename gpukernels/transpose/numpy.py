"""transpose/numpy: out[n][m] = in[m][n] by NumPy."""

import numpy as np
from numpy.typing import NDArray


def transpose_numpy(a: NDArray[np.generic], out: NDArray[np.generic]) -> None:
    """out (N x M) = a (M x N) transposed; out is overwritten."""
    np.copyto(out, a.T)
