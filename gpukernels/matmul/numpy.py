"""matmul/numpy: C[m][n] = sum over k of A[m][k] B[k][n] by NumPy, whose BLAS uses every core that it may."""

import numpy as np
from numpy.typing import NDArray


def matmul_numpy(a: NDArray[np.generic], b: NDArray[np.generic], out: NDArray[np.generic]) -> None:
    """out (M x N) = a (M x K) times b (K x N); out is overwritten."""
    np.matmul(a, b, out=out)
