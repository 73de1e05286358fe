"""Student's t distribution."""

import math
from functools import cache


@cache
def quantile(probability: float, freedom: float) -> float:
    """The value that a t distributed variable stays below with this probability."""
    from scipy.special import stdtrit  # here, since the import takes longer than most commands, which never ask

    return float(stdtrit(freedom, probability))


def detectable(variation: float, count: int) -> float:
    """The minimum detectable change: the smallest relative change that a comparison of two runs, of `count` >= 2
    processes each, shows in 19 cases of 20, at a false-alarm rate of 1 in 100 (two-sided t-test). `variation`: the
    coefficient of variation between processes."""
    freedom = 2 * count - 2
    return (quantile(0.995, freedom) + quantile(0.95, freedom)) * math.sqrt(2 / count) * variation
