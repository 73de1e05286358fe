"""Student's t distribution. SciPy has it too, and takes longer to import than most commands run."""

import math
from functools import cache
from statistics import NormalDist

CLOSE = 1e-14  # relative


@cache
def quantile(probability: float, freedom: float) -> float:
    """The value that a t distributed variable stays below with this probability; NaN without a degree of freedom.

    Newton's method for the logarithm of the tail as a function of the logarithm of the value. That function falls and
    is concave, so every step but the first one approaches the solution from the same side.
    """
    if not freedom > 0 or not 0 < probability < 1:
        return math.nan
    if probability <= 0.5:
        return -quantile(1 - probability, freedom) if probability < 0.5 else 0.0
    wanted, value = 1 - probability, NormalDist().inv_cdf(probability)
    for _ in range(100):
        tail = _tail(value, freedom)
        step = math.log(tail / wanted) * tail / (value * _density(value, freedom))
        value *= math.exp(min(step, 2.0))
        if abs(step) < CLOSE:
            break
    return value


def _density(value: float, freedom: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(value * value / freedom))


def _tail(value: float, freedom: float) -> float:
    """The probability of more than a positive value: half of the regularized incomplete beta function."""
    square = value * value
    if square > 3:
        return _beta(freedom / (freedom + square), freedom / 2, 0.5) / 2
    return 0.5 - _beta(square / (freedom + square), 0.5, freedom / 2) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b) by its continued fraction, which converges quickly for
    x < (a + 1) / (a + b + 2).

    Source: Press et al., Numerical Recipes, 6.4; NIST DLMF 8.17.22.
    """
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    fraction, c, d = 1.0, 1.0, 0.0
    for at in range(1000):
        m = at // 2
        if at == 0:
            factor = 1.0
        elif at % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + factor * d)
        c = 1 + factor / c
        fraction *= c * d
        if at and abs(c * d - 1) < 1e-16:
            break
    return math.exp(front) * (fraction - 1) / a
