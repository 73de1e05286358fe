"""Statistics of a series that a few outliers or steps hardly change."""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def spread(differences: Values) -> float:
    """The standard deviation of differences around zero, without outliers."""
    if not len(differences):
        return 0.0
    deviation = 1.4826 * float(np.median(np.abs(differences)))
    for _ in range(2):  # the mean over all but the outliers is surer than the median
        if deviation:
            deviation = float(np.sqrt(np.mean(differences[np.abs(differences) <= 3.5 * deviation] ** 2)))
    return deviation


def roughness(values: Values, distance: int) -> float:
    """How much a series moves, from one point to the next and over `distance` points; a step adds little."""
    far = values[distance:] - values[:-distance]
    return float(np.abs(np.diff(values)).mean() + (np.abs(far).mean() if len(far) else 0.0))


def smooth(values: Values, width: int) -> Values:
    """The running median over `width` points (an odd number), which keeps edges."""
    padded = np.pad(values, width // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))
