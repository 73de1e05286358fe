"""Student's t distribution. SciPy has it as well, and takes twice as long to import as NumPy."""

import math
from functools import cache

ENOUGH = 1e-8  # relative: Newton's next step would be smaller than the rounding


@cache
def quantile(probability: float, freedom: int) -> float:
    """The value that a t distributed variable stays below with this probability, which is at least 0.5."""
    log_peak = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    value = 0.0
    while True:  # the distribution is concave from here on, so that no step of Newton's goes too far
        log_density = log_peak - (freedom + 1) / 2 * math.log1p(value * value / freedom)
        step = (2 * probability - 1 - _within(value, freedom)) / (2 * math.exp(log_density))
        value += step
        if step <= ENOUGH * value:
            return value


def _within(value: float, freedom: int) -> float:
    """The probability that a t distributed variable lies between -value and value.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(value / math.sqrt(freedom))
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for power in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return (angle + sine * total) * 2 / math.pi if odd else sine * total
