"""Student's t distribution, for whole degrees of freedom."""

import math
from functools import cache
from statistics import NormalDist


def _within(value: float, freedom: int) -> float:
    """The probability that the magnitude of a t distributed variable stays below `value`.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(value, math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for at in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * at / (at + 1)
    inner = math.sin(angle) * total
    return 2 / math.pi * (angle + inner) if odd else inner


def _density(value: float, freedom: int) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi * freedom) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(value * value / freedom))


@cache
def quantile(probability: float, freedom: int) -> float:
    """The value that a t distributed variable stays below with this probability, above 0.5."""
    value, before = NormalDist().inv_cdf(probability), -math.inf
    # Newton's steps rise to the quantile, since it lies above the normal one and the distribution is concave there.
    while value > before:
        before = value
        value += (probability - 0.5 - _within(value, freedom) / 2) / _density(value, freedom)
    return value
