"""Statistics of a series that a few outliers or steps hardly change."""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
OUTLIER = 3.5  # standard deviations beyond which a difference is left out


def spread(differences: Values) -> float:
    """The standard deviation of differences around zero, without outliers."""
    if not len(differences):
        return 0.0
    deviation = 1.907 * float(np.quantile(np.abs(differences), 0.4))  # with two levels, half may be large
    for _ in range(2):  # the mean over all but the outliers is surer than a quantile
        if deviation:
            deviation = float(np.sqrt(np.mean(differences[np.abs(differences) <= OUTLIER * deviation] ** 2)))
    return deviation


def roughness(values: Values, distance: int) -> float:
    """How much a series moves, from one point to the next and over `distance` points; a step adds little."""
    far = values[distance:] - values[:-distance]
    return float(np.abs(np.diff(values)).mean() + (np.abs(far).mean() if len(far) else 0.0))


def smooth(values: Values, width: int) -> Values:
    """The running median over `width` points (an odd number), which keeps edges. At both ends, where points lack, those
    on the other side count twice."""
    padded = np.pad(values, width // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return np.asarray(np.partition(windows, width // 2, axis=1)[:, width // 2])


def median(values: Values) -> float:
    """As np.median, which takes five times as long for a few values."""
    half, odd = divmod(len(values), 2)
    if odd:
        return float(np.partition(values, half)[half])
    ordered = np.partition(values, (half - 1, half))
    return float(ordered[half - 1] + ordered[half]) / 2


def weighted_median(values: Values, weights: Values) -> float:
    order = values.argsort()
    heavy = weights[order].cumsum()
    return float(values[order[heavy.searchsorted(heavy[-1] / 2)]])
