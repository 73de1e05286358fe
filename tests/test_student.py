"""Student's quantiles, held against SciPy's."""

import math

import pytest

from kernelwatch.system.student import quantile

pytestmark = pytest.mark.xdist_group("student")  # one process imports SciPy

FREEDOMS = (0.5, 1, 2, 3, 4, 5, 7, 10, 20, 50, 100, 300, 1000, 10_000)
ABOVE = (0.6, 0.75, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999, 1 - 1e-5, 1 - 1e-6, 1 - 1e-8, 1 - 1e-10)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_it_is_scipys(freedom: float) -> None:
    from scipy.special import stdtrit  # here, since it takes longer to import than all of this takes

    for probability in ABOVE:
        value = float(stdtrit(freedom, probability))
        assert quantile(probability, freedom) == pytest.approx(value, rel=1e-10), probability
        assert quantile(1 - probability, freedom) == pytest.approx(float(stdtrit(freedom, 1 - probability)), rel=1e-10)
    assert quantile(0.5, freedom) == 0


def test_near_the_middle_it_is_probability_over_density() -> None:
    """With four degrees of freedom the density is 3/8 in the middle."""
    assert quantile(0.5 + 1e-9, 4) == pytest.approx(1e-9 / 0.375, rel=1e-6)


@pytest.mark.parametrize(("probability", "freedom"), [(0.9, 0), (0.9, math.nan), (math.nan, 3), (1.0, 3), (0.0, 3)])
def test_without_an_answer_there_is_no_number(probability: float, freedom: float) -> None:
    assert math.isnan(quantile(probability, freedom))
