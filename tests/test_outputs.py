"""Whether an output is right: exactly, within a bound, written everywhere; of one output and of several."""

import functools
import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from benchmarks.project import EXACT_BITS, PRODUCT, PROJECT
from kernelwatch.plan.cells import CACHES, Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Launch, Package
from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung, dtypes
from kernelwatch.plan.project import Project
from kernelwatch.timing.check import WrongOutput, describe_wrong, poison, poisoned
from kernelwatch.timing.cpu import Cpu
from kernelwatch.timing.gpu import Gpu
from tests.test_gpu_timing import cell
from tests.test_on_a_gpu import BUDGET


def pair(type: str = "float32", shape: tuple[int, ...] = (65, 33)) -> tuple[NDArray[Any], NDArray[Any]]:
    """An output and what is expected of it, equal and of no value that is also the poison."""
    expected = (np.arange(np.prod(shape)) % 100).astype(type).reshape(shape)
    return expected.copy(), expected


KEY = (7, 3)


def judged(where: Cell, out: Any, expected: Any) -> str:
    """What is said of one output that is compared bit for bit."""
    moves = Computation(lambda shape, type: Operands((), ()), lambda: expected)
    return describe_wrong(where, moves, [], [out], {}, np, key=KEY)


FLOATS = ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("type", [*FLOATS, "float8_e4m3fnuz"])
def test_the_poison_of_a_float_is_no_number(type: str) -> None:
    """What adds to it, keeps it or leaves elements out is wrong in each of them."""
    where, zeros = cell(type=type, shape=(5, 7)), np.zeros((5, 7), type)
    for seed in range(20):
        out = np.empty((5, 7), type)
        poisoned(out, (seed,))
        with np.errstate(invalid="ignore"):
            wide = out.astype("complex128" if type.startswith("complex") else "float64")
            more = (wide + 1).astype(type)
        assert np.isnan(wide.real).all()
        assert np.isnan(wide.imag).all() or wide.dtype.kind != "c"
        assert "35 of 35 elements wrong" in judged(where, more, zeros)


@pytest.mark.parametrize("type", ["uint8", "int8", "uint16", "int32", "uint64", "bool"])
def test_the_poison_of_an_integer_is_never_zero(type: str) -> None:
    values = {int(poison(np.dtype(type), seed)) for seed in range(2000)}
    assert 0 not in values
    assert len(values) > 200
    if type == "bool":
        assert min(values) > 1  # no value that a right output has


@pytest.mark.parametrize("type", ["uint32", "float16", "bfloat16", "float32", "float64", "complex128"])
def test_the_poison_follows_from_its_key(type: str) -> None:
    values = [int(poison(np.dtype(type), seed, place)) for seed in range(4) for place in range(4)]
    assert values == [int(poison(np.dtype(type), seed, place)) for seed in range(4) for place in range(4)]
    assert len(set(values)) > 6


@pytest.mark.parametrize("type", ["uint8", "uint16", "float32", "float64", "complex128"])
def test_right_output_has_nothing_to_say(type: str) -> None:
    assert judged(cell(type=type), *pair(type)) == ""


def test_message_of_a_wrong_output() -> None:
    out, expected = pair()
    out[4, 31:] += 1
    out[50, :10] -= 1
    want = "transpose/padded at (33, 65) float32: 12 of 2145 elements wrong, the first at [4, 31]; 0 never written"
    assert judged(cell(), out, expected) == want


def test_message_of_one_dimension() -> None:
    out, expected = pair(shape=(7,))
    out[6] = 0
    want = "vector_add/c at (7,) float32: 1 of 7 elements wrong, the first at [6]; 0 never written"
    where = cell(op="vector_add", rung="c", shape=(7,))
    assert judged(where, out, expected) == want


def test_nan_is_wrong_and_written() -> None:
    out, expected = pair()
    out[0, 0] = out[64, 32] = np.nan
    assert judged(cell(), out, expected).endswith(": 2 of 2145 elements wrong, the first at [0, 0]; 0 never written")


@pytest.mark.parametrize("type", ["uint8", "uint16", "float32", "float64", "complex128"])
def test_what_was_never_written_is_counted(type: str) -> None:
    out, expected = pair(type)
    poisoned(out[64], KEY)
    out[0, 1] += 1
    assert judged(cell(type=type), out, expected).endswith(
        ": 34 of 2145 elements wrong, the first at [0, 1]; 33 never written"
    )


def test_poison_where_it_belongs_is_not_wrong() -> None:
    out, expected = pair("uint8")
    out[5, 5] = expected[5, 5] = poison(np.dtype("uint8"), *KEY)
    assert judged(cell(type="uint8"), out, expected) == ""
    out[0, 0] = 1
    assert judged(cell(type="uint8"), out, expected).endswith(
        ": 1 of 2145 elements wrong, the first at [0, 0]; 0 never written"
    )


# What is checked of a product: numbers of few bits, of which every sum is exact. The columns of B are many, so that the
# largest of their sums is seen.


def product_of(type: str, out: Any, depth: int = 8192) -> str:
    rng = np.random.default_rng(0)
    into, out_dtype = dtypes(type)
    what = PRODUCT.operands((4, 500, depth), type)
    assert PRODUCT.exact_bits is not None
    assert PRODUCT.exact_bits(type) == EXACT_BITS[into.name]
    a, b = (
        np.ldexp(rng.integers(-(1 << count), 1 << count, array.shape), -count).astype(into)
        for array, count in zip(what.inputs, PRODUCT.exact_bits(type), strict=True)
    )
    where = cell(op="matmul", rung="tiled_32", type=type, shape=(4, 500, depth))
    assert PROJECT.computes("matmul", "tiled_32") is PRODUCT
    return describe_wrong(where, PRODUCT, [a, b], [out(a, b).astype(out_dtype)], {}, np)


PRODUCTS = ["float32", "float64", "float16->float32", "bfloat16->float32", "float8_e4m3fn->float32"]


@pytest.mark.parametrize("type", PRODUCTS)
def test_a_checked_product_is_exact_in_any_order(type: str) -> None:
    total = dtypes(type)[1]

    def one_by_one(a: Any, b: Any, back: int) -> Any:
        found = np.zeros((len(a), b.shape[1]), total)
        for k in range(a.shape[1])[::back]:
            found += a[:, k, None].astype(total) * b[None, k].astype(total)
        return found

    assert product_of(type, lambda a, b: a.astype(total) @ b.astype(total)) == ""
    assert product_of(type, lambda a, b: one_by_one(a, b, 1)) == ""
    assert product_of(type, lambda a, b: one_by_one(a, b, -1)) == ""


@pytest.mark.parametrize("type", ["float16", "bfloat16"])
def test_a_checked_product_of_16_bits_is_rounded_once(type: str) -> None:
    def total(a: Any, b: Any) -> Any:
        return a.astype(np.float32) @ b.astype(np.float32)

    def in_two_parts(a: Any, b: Any) -> Any:
        half = len(b) // 2
        return sum(total(a[:, at], b[at]).astype(type) for at in (slice(half), slice(half, None)))

    assert product_of(type, total) == ""
    assert "elements" in product_of(type, in_two_parts)


def test_a_checked_product_of_float8_is_exact_in_14_bits() -> None:
    """Those that Hopper's tensor cores keep of a sum."""
    unit = 2.0 ** -sum(EXACT_BITS["float8_e4m3fn"])

    def in_order(a: Any, b: Any) -> Any:
        total = np.zeros((len(a), b.shape[1]))
        for k in range(0, len(b), 32):
            total += a[:, k : k + 32].astype(np.float64) @ b[k : k + 32].astype(np.float64)
            assert abs(total).max() < 2**14 * unit
        return total

    assert product_of("float8_e4m3fn->float32", in_order) == ""


@pytest.mark.parametrize("depth", [64, 8192])
def test_a_check_tells_a_narrower_type_at_every_depth(depth: int) -> None:
    def tf32(a: Any, b: Any) -> Any:
        cut = [(operand.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for operand in (a, b)]
        return cut[0] @ cut[1]

    def halves(a: Any, b: Any) -> Any:
        return (a[:, :, None] * b[None, :, :10]).sum(1, dtype=np.float16).repeat(50, 1)

    def less_one(a: Any, b: Any) -> Any:
        return a[:, :-1].astype(np.float64) @ b[:-1].astype(np.float64)

    assert "elements wrong" in product_of("float32", tf32, depth)
    assert "elements wrong" in product_of("float64", lambda a, b: a.astype("f4") @ b.astype("f4"), depth)
    assert "elements wrong" in product_of("float16->float32", halves, depth)
    for type in PRODUCTS:
        assert "elements wrong" in product_of(type, less_one, depth)


# What is rounded: each element may be off by its own bound.


def rounded(out: Any, expected: Any, bound: Any, type: str = "float32", xp: Any = np, dtype: str = "float64") -> str:
    """What is said of one output that may be off by a bound."""
    what = Computation(
        lambda shape, type: Operands((), ()), lambda: xp.asarray(expected, dtype), bound=lambda type: bound
    )
    where, outs = cell(type=type, shape=np.shape(expected)), [xp.asarray(out, type)]
    return describe_wrong(where, what, [], outs, {}, xp, key=KEY)


BOUNDED: list[tuple[list[Any], list[Any], Any, str]] = [
    ([1.5, 2.0], [1.0, 2.0], 0.5, ""),  # the bound itself is allowed
    ([1.5, 2.5], [1.0, 2.0], 0.25, "2 of 2 elements wrong, the first at [0], off by 0.5 where 0.25 is allowed"),
    ([1.0, 2.5], [1.0, 2.0], 0, "1 of 2 elements wrong, the first at [1], off by 0.5 where 0 is allowed"),
    ([1.0, 2.0], [1.0, 2.0], 0, ""),
    ([1.5, 2.5], [1.0, 2.0], [1.0, 0.25], "1 of 2 elements wrong, the first at [1], off by 0.5 where 0.25 is allowed"),
    ([math.nan, 2.0], [1.0, 2.0], 1e9, "1 of 2 elements wrong, the first at [0], off by nan where 1e+09 is allowed"),
    ([1.0, math.nan], [1.0, math.nan], 0.0, ""),  # the reference has none either
    ([1.0, 5.0], [1.0, math.nan], 1e9, "1 of 2 elements wrong, the first at [1], off by nan where 1e+09 is allowed"),
    ([math.inf, -math.inf], [math.inf, -math.inf], 0.0, ""),
    ([math.nan, 2.5], [math.nan, 2.0], 0.25, "1 of 2 elements wrong, the first at [1], off by 0.5 where 0.25"),
    ([math.inf, 2.5], [math.inf, 2.0], 0.25, "1 of 2 elements wrong, the first at [1], off by 0.5 where 0.25"),
    ([math.inf, 1.0], [-math.inf, 1.0], 1e9, "1 of 2 elements wrong, the first at [0], off by inf where"),
    ([math.inf, 1.0], [3e38, 1.0], 1e30, "1 of 2 elements wrong, the first at [0], off by inf where 1e+30 is allowed"),
    ([1.0, 2.0], [1.0, 2.1], math.nan, "1 of 2 elements wrong, the first at [1], off by 0.1 where nan is allowed"),
]


@pytest.mark.parametrize(("out", "expected", "bound", "said"), BOUNDED)
def test_an_output_may_be_off_by_its_bound(out: list[Any], expected: list[Any], bound: Any, said: str) -> None:
    given = np.array(bound) if isinstance(bound, list) else bound
    told = rounded(out, expected, given)
    assert told.startswith(f"transpose/padded at (2,) float32: {said}" if said else "")
    assert bool(told) is bool(said)
    assert told == "" or told.endswith("; 0 never written")
    if not isinstance(bound, list):
        assert rounded(out, expected, np.float32(bound)) == told
        assert rounded(out, expected, np.full(2, bound)) == told


@pytest.mark.parametrize("type", ["float16", "bfloat16", "float32", "float64"])
def test_a_bound_is_of_exact_differences(type: str) -> None:
    """Not of differences that the type has rounded: 1 and 1 + eps are eps apart, in no type less."""
    step = 2.0 ** -{"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[type]
    assert rounded([1 + step, 4.0], [1.0, 4.0], step, type) == ""
    assert "off by" in rounded([1 + step, 4.0], [1.0, 4.0], 0.99 * step, type)
    assert rounded([1 + step, 4.0], [1 + step / 4, 4.0], step, type) == ""


def test_a_difference_is_none_of_the_type() -> None:
    """Which may have no number for it: 0 - 255 is 1 as uint8, and 60000 + 60000 is infinite as float16."""
    said = rounded([0, 7], [255, 7], 1, "uint8", dtype="uint8")
    assert "1 of 2 elements wrong, the first at [0], off by 255 where 1 is allowed" in said
    assert "off by 1.2e+05 where 1 is allowed" in rounded([6e4, 7], [-6e4, 7], 1, "float16", dtype="float16")
    assert rounded([6e4, 7], [-6e4, 7], 1.3e5, "float16", dtype="float16") == ""


def test_a_bound_holds_for_both_parts_of_a_complex_number() -> None:
    assert rounded([1 + 1e-3j, 2], [1, 2], 1e-2, "complex128", dtype="complex128") == ""
    said = rounded([1 + 1j, 2], [1, 2], 1e-2, "complex128", dtype="complex128")
    assert "1 of 2 elements wrong, the first at [0], off by 1 where 0.01 is allowed" in said


def test_what_was_never_written_is_counted_beside_a_bound() -> None:
    out, expected = pair()
    poisoned(out[64], KEY)
    out[0, 1] += 1
    said = rounded(out, expected, 0.5)
    assert said.endswith(
        ": 34 of 2145 elements wrong, the first at [0, 1], off by 1 where 0.5 is allowed; 33 never written"
    )


# Several outputs, scalars, and an input of values of its own: out0 = scale x[at], out1 = x[at] + scale.


def gathered(x: Any, at: Any, scale: Any) -> tuple[Any, Any]:
    wide = x[at].astype(np.float64)
    return wide * float(scale), wide + float(scale)


GATHER = Computation(
    lambda shape, type: Operands(
        (
            Operand(shape, np.dtype(type)),
            Operand(shape, np.dtype("int32"), lambda random, shape, dtype: random.permutation(shape[0]).astype(dtype)),
        ),
        (Operand(shape, np.dtype(type)), Operand(shape, np.dtype(type))),
        {"scale": np.float32(0.1)},
    ),
    gathered,
    bound=lambda type, x, at, scale: tuple(abs(part) * 2.0**-24 for part in gathered(x, at, scale)),  # half a unit
)
GATHERING = Problem(
    "gather", GATHER, (Rung("both", "gpu", ("float32",)), Rung("first", "gpu", ("float32",))), shapes=((1001,),)
)
GATHER_PROJECT = Project("gather", PROJECT.here, (GATHERING,))


@functools.cache
def gather_kernel() -> Any:
    import cupy

    return cupy.ElementwiseKernel(
        "raw float32 x, int32 at, float32 scale",
        "float32 scaled, float32 moved",
        "scaled = scale * x[at]; moved = x[at] + scale",
        "gather",
    )


class Gathering:
    """A package of these kernels, one of which forgets its second output, for NumPy and CuPy."""

    not_here: tuple[type[Exception], ...] = ()

    def load(self, op: str, rung: str, type: str) -> "Gatherer":
        return Gatherer(rung)

    def repeats(self, op: str, rung: str) -> int:
        return 1


@dataclass(frozen=True)
class Gatherer:
    rung: str

    def bind(self, x: Any, at: Any, *, out: tuple[Any, Any], scale: Any) -> Launch:
        writes = out if self.rung == "both" else (out[0], out[1].copy())
        if isinstance(x, np.ndarray):

            def run() -> None:
                np.multiply(x[at], scale, out=writes[0])
                np.add(x[at], scale, out=writes[1])
        else:
            kernel = gather_kernel()

            def run() -> None:
                kernel(x, at, scale, *writes)

        return gpukernels.Launch(out, f"gather {self.rung}", run)


def gather_cell(rung: str, cache: str = "cold") -> Cell:
    return Cell("gather", rung, "float32", (1001,), cache, "gpu")


FORGOTTEN = (
    r"gather/first at \(1001,\) float32: 1001 of 1001 elements of output 1 wrong, the first at \[0\], off by .* where "
    r".* is allowed; 1001 never written"
)


def test_every_output_is_judged() -> None:
    x, at = np.arange(5, dtype=np.float32) / 4, np.arange(5)[::-1].astype(np.int32)
    scale = np.float32(0.1)
    outs = [x[at] * scale, x[at] + scale]
    where = Cell("gather", "both", "float32", (5,), "cold", "gpu")

    def said(*given: Any) -> str:
        return describe_wrong(where, GATHER, [x, at], given, {"scale": scale}, np)

    assert said(*outs) == ""
    for number, name in enumerate(("output 0", "output 1")):
        wrong = [out.copy() for out in outs]
        wrong[number][3] += 9.5
        want = f"gather/both at (5,) float32: 1 of 5 elements of {name} wrong, the first at [3], off by 9.5"
        assert said(*wrong).startswith(want)
    with pytest.raises(ValueError, match=r"reference returns 2 arrays, the bound 2; .* inputs are 1"):
        said(outs[0])


@pytest.mark.parametrize("cache", CACHES)
def test_the_cpu_takes_several_outputs_and_scalars(cache: str) -> None:
    cells = [gather_cell("both", cache), gather_cell("first", cache)]
    cpu = Cpu(GATHER_PROJECT, cast(Package, Gathering()), cells, Budget(3, 0.0002), seed=1)
    found = cpu.measure(cells[0])
    assert found["seconds"] > 0
    assert found["identity"] == "gather both"
    with pytest.raises(WrongOutput, match=FORGOTTEN):
        cpu.measure(cells[1])
    inputs, _ = cpu._operands(cells[0], found["slots"] - 1)
    assert sorted(inputs[1]) == list(range(1001))  # in every set of buffers


@pytest.mark.gpu
@pytest.mark.parametrize("cache", CACHES)
def test_the_gpu_takes_several_outputs_and_scalars(cache: str) -> None:
    cells = [gather_cell("both", cache), gather_cell("first", cache)]
    gpu = Gpu(GATHER_PROJECT, cast(Package, Gathering()), cells, BUDGET, seed=1)
    found = gpu.measure(cells[0])
    assert found["seconds"] > 0
    assert found["identity"] == "gather both"
    inputs, outs = gpu._operands(cells[0], found["slots"] - 1)
    assert sorted(inputs[1].get()) == list(range(1001))  # in every set of buffers
    assert -1 <= float(inputs[0].min()) < float(inputs[0].max()) < 1
    scaled, moved = gathered(inputs[0].get(), inputs[1].get(), 0.1)
    assert np.allclose(outs[0].get(), scaled, atol=1e-6)
    assert np.allclose(outs[1].get(), moved, atol=1e-6)
    with pytest.raises(WrongOutput, match=FORGOTTEN):
        gpu.measure(cells[1])


@pytest.mark.gpu
@pytest.mark.parametrize(("out", "expected", "bound", "said"), BOUNDED)
def test_outputs_on_the_gpu_are_judged_alike(out: list[Any], expected: list[Any], bound: Any, said: str) -> None:
    import cupy

    host, gpu = (rounded(out, expected, xp.asarray(bound, xp.float64), xp=xp) for xp in (np, cupy))
    assert gpu == host
    assert bool(gpu) is bool(said)
    if not isinstance(bound, list):
        assert rounded(out, expected, bound, xp=cupy) == gpu
