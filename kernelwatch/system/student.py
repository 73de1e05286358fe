"""Student's t distribution."""

from functools import cache


@cache
def quantile(probability: float, freedom: float) -> float:
    """The value that a t distributed variable stays below with this probability."""
    from scipy.special import stdtrit  # here, since the import takes longer than most commands, which never ask

    return float(stdtrit(freedom, probability))
