"""matmul/parts.cuh on a GPU: float32 products from 16-bit tensor cores, element by element and beside SGEMM."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from tests.gate import SEED, load, product, split_bound

pytestmark = pytest.mark.gpu

Array = Any  # of CuPy
Fill = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float32]]

RAGGED = [(127, 129, 65), (300, 517, 1000), (128, 128, 64), (1, 1, 1), (65, 1, 4099)]
DEEP = (2048, 1024, 4096)  # a sum of many products, for which cuBLAS does not split K

FILLS: dict[str, Fill] = {
    "normal": lambda rng, shape: rng.standard_normal(shape, np.float32),
    "positive": lambda rng, shape: rng.random(shape, np.float32),
    "lognormal": lambda rng, shape: (rng.choice([-1, 1], shape) * rng.lognormal(0, 3, shape)).astype(np.float32),
    "wide": lambda rng, shape: np.ldexp(rng.standard_normal(shape, np.float32), rng.integers(-40, 40, shape)),
    "rows and columns of all sizes": lambda rng, shape: np.ldexp(
        rng.standard_normal(shape, np.float32),
        rng.integers(-30, 30, (shape[0], 1)) + rng.integers(-30, 30, (1, shape[1])),
    ),
}


def operands(kind: str, shape: tuple[int, int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng([SEED, *shape])
    m, n, k = shape
    return FILLS[kind](rng, (m, k)), FILLS[kind](rng, (k, n))


def run(name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> Any:
    import cupy

    kernel = load(gpukernels.rung("matmul", name), "float32", None)
    out = cupy.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    kernel(cupy.asarray(a), cupy.asarray(b), out=out)
    return cupy.asnumpy(out)


def error(name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> Any:
    """|C - AB|, NaN where C has one."""
    return np.abs(run(name, a, b) - product(a, b))


@pytest.mark.parametrize("kind", FILLS)
@pytest.mark.parametrize("name", ["bf16x6", "fp16x3"])
def test_each_element_is_within_the_bound(name: str, kind: str) -> None:
    found = gpukernels.rung("matmul", name)
    for shape in RAGGED:
        a, b = operands(kind, shape)
        wrong = ~(error(name, a, b) <= split_bound(found, a, b))
        assert not wrong.any(), f"{name} {kind} {shape}: {int(wrong.sum())} elements, GPUKERNELS_SEED={SEED}"


@pytest.mark.parametrize("kind", FILLS)
def test_bf16x6_is_no_less_accurate_than_sgemm(kind: str) -> None:
    """The largest error of any element, beside the sum of the products' sizes."""
    a, b = operands(kind, DEEP)
    sizes = abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    ours, theirs = ((error(name, a, b) / sizes).max() for name in ("bf16x6", "cublas"))
    assert ours <= theirs


SPECIAL = [np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, 2.0**-149, 2.0**-100, 2.0**62, 2.0**99, 2.0**100, -0.0]


@pytest.mark.parametrize("name", ["bf16x6", "fp16x3"])
@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("where", [0, 1])
def test_one_number_outside(name: str, value: float, where: int) -> None:
    """Infinities and NaN come out where they belong, and the row or column of a number that parts cannot hold is as
    right as any other."""
    both = operands("normal", (130, 140, 150))
    both[where][77, 88] = value
    other = both[1 - where]
    other[88 if where == 0 else 3, 5 if where == 0 else 77] = 0  # a product with 0: NaN, if the value is infinite
    with np.errstate(all="ignore"):
        expected, got = product(*both), run(name, *both)
        rounded = expected.astype(np.float32)
        assert (np.isfinite(got) == np.isfinite(rounded)).all()
        infinite = ~np.isfinite(rounded)
        assert np.array_equal(got[infinite], rounded[infinite], equal_nan=True)
        a, b = (np.where(np.isfinite(operand), operand, 0) for operand in both)
        bound = split_bound(gpukernels.rung("matmul", name), a, b) + 150 * 2.0**-24 * (
            abs(a).astype(np.float64) @ abs(b).astype(np.float64)
        )
        assert (abs(got - expected) <= bound)[~infinite].all()


def test_every_number_outside_is_summed_in_float32() -> None:
    """Subnormal operands: parts would lose all that they have."""
    a, b = operands("normal", (100, 90, 300))
    a *= np.float32(2.0**-135)
    b *= np.float32(2.0**20)
    sizes = abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    assert (error("bf16x6", a, b) <= 300 * 2.0**-24 * sizes).all()
