"""What the harness says of a measurement on a GPU: clocks, limits, wrong output, retakes; on a GPU, that its figures
make sense."""

import contextlib
import dataclasses
import functools
import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from benchmarks.project import EXACT_BITS, PRODUCT, PROJECT
from kernelwatch.plan.cells import CACHES, Cell, plan
from kernelwatch.plan.package import Launch, NotHere, Package
from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung, dtypes
from kernelwatch.plan.project import Project
from kernelwatch.timing.check import Budget, WrongOutput, describe_wrong, poison, poisoned
from kernelwatch.timing.cpu import Cpu
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.nvml import Nvml, State
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import LOW_CLOCK, REST_S, RETAKES, SHORT_REST_S, Take, clock_mhz, throttled
from tests.fake_gpu import SILENT

MIB = 1 << 20


def cell(**changes: Any) -> Cell:
    values = {"op": "transpose", "rung": "padded", "type": "float32", "shape": (33, 65), "cache": "cold"}
    return Cell(**values | {"device": "gpu"} | changes)


def said_by_driver(reasons: int | None) -> State:
    return {**SILENT, "event_reasons": reasons}


# --- clocks and limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "mhz"),
    [
        ((1_000, 5_000, 7), (1_981_000, 1_005_000, 7), 1980.0),
        ((1_000, 5_000, 7), (1_981_000, 1_005_000, 8), None),  # each SM counts cycles of its own
        ((1_000, 5_000, 7), (1_981_000, 5_000, 7), None),
        ((1_000, 5_000, 7), (1_981_000, 4_000, 7), None),
        ((2**62, 2**62, 0), (2**62 + 3, 2**62 + 2, 0), 1500.0),  # no float64 holds these stamps
    ],
)
def test_clock(before: tuple[int, ...], after: tuple[int, ...], mhz: float | None) -> None:
    assert clock_mhz(np.array([before, after], np.int64)) == mhz


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (0x04, ["software power cap"]),
        (0x08, ["hardware slowdown"]),
        (0x20, ["software thermal slowdown"]),
        (0x40, ["hardware thermal slowdown"]),
        (0x80, ["hardware power brake"]),
        (0x48, ["hardware slowdown", "hardware thermal slowdown"]),
        (0x01 | 0x02 | 0x10 | 0x100, []),  # idle, clocks set by the user, sync boost, display: no limit was hit
        (0, []),
        (None, []),
    ],
)
def test_every_limit_by_its_name(reasons: int | None, said: list[str]) -> None:
    assert throttled(said_by_driver(reasons), 1980.0, 1980.0) == said


@pytest.mark.parametrize(
    ("clock", "highest", "said"),
    [
        (1484.0, 1980.0, ["SM clock 1484 MHz of 1980 MHz"]),
        (1485.0, 1980.0, []),  # three quarters
        (None, 1980.0, []),
        (345.0, None, []),
        (None, None, []),
    ],
)
def test_a_slow_clock_is_a_limit_where_the_driver_says_no_reasons(
    clock: float | None, highest: float | None, said: list[str]
) -> None:
    assert throttled(said_by_driver(None), clock, highest) == said
    assert throttled(said_by_driver(0x04), clock, highest) == ["software power cap"]
    assert throttled(said_by_driver(0), clock, highest) == []  # locked low on purpose


# --- wrong output --------------------------------------------------------------------------------------------------


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


# --- what a measurement does, with the device left out -------------------------------------------------------------


class Idle:
    """A package of kernels that nobody launches; `times`: how often one launch of them does the work."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def load(self, op: str, rung: str, type: str) -> "Idle":
        return self

    def repeats(self, op: str, rung: str) -> int:
        return self.times


def one_take(seconds: list[float], **changes: Any) -> Take:
    """A take over which no clock was read and no limit met."""
    found: dict[str, Any] = {"seconds": seconds, "launches": 1, "clock64_mhz": None, "state": SILENT, "throttled": []}
    return cast(Take, found | {"retakes": 0} | changes)


class Handless(Gpu):
    """A Gpu of 1 MiB of L2 and 64 MiB of memory whose every touch of the device is replaced by a note of it."""

    def __init__(
        self,
        takes: list[list[str]] | None = None,
        launch_s: float = 1e-6,
        sample_s: float = 0.002,
        repeats: int = 1,
    ) -> None:
        self.project = PROJECT
        self.package = cast(Package, Idle(repeats))
        self.budget = Budget(samples=9, sample_s=sample_s)
        self.l2_bytes = MIB
        self.arena = np.zeros(64 * MIB, np.uint8)
        self.stream = contextlib.nullcontext()
        self.takes = list(takes or [[]] * 9)
        self.launch_s = launch_s
        self.graphs: list[int] = []
        self.taken: list[tuple[int, int]] = []
        self.canaries: dict[str, Any] = {"memory": 1, "compute": 1}
        self.lead_ins: list[tuple[Any, ...]] = []
        self.best_clock_mhz = 0.0
        self.clocks: list[float] = []
        self.enqueue_s = 1.0

    def _fill(self, cell: Cell) -> None:
        pass

    def _bind(self, cell: Cell, kernel: Any, slot: int) -> tuple[Callable[[], object], str]:
        assert (kernel is None) is cell.reference
        return (lambda: None), "who"

    def _check(self, cell: Cell, launch: Callable[[], object]) -> tuple[Take, float]:
        return one_take([self.launch_s]), self.enqueue_s

    def graph(self, launches: list[Callable[[], object]], nodes: int) -> Any:
        self.graphs.append(nodes)
        return nodes

    def replay(
        self,
        graph: Any,
        replays: int,
        samples: int,
        during: Callable[[], Any] = lambda: None,
        lead_in: tuple[Any, ...] = (),
    ) -> tuple[list[float], float | None, Any]:
        return [self.launch_s * graph * replays] * samples, None, during()

    def take(self, graph: Any, replays: int, nodes: int, samples: int, lead_in: tuple[Any, ...] = ()) -> Take:
        """The n-th take reads about n seconds, so that the take that is kept can be told."""
        assert graph == nodes
        if lead_in:
            self.lead_ins.append(lead_in)
        self.taken.append((replays, nodes))
        at = len(self.taken)
        seconds = [at - 0.5, float(at), at + 0.5] if samples > 1 else [float(at)]
        clock = self.clocks[at - 1] if self.clocks else None
        self.best_clock_mhz = max(self.best_clock_mhz, clock or 0.0)
        launches = replays * nodes * samples
        return one_take(seconds, launches=launches, throttled=self.takes[at - 1], clock64_mhz=clock)

    def _captured(self, cell: Cell, launch: Callable[[], object]) -> Any:
        return launch

    def _look(self, cell: Cell, launch: Callable[[], object], measurement: Measurement) -> None:
        pass

    def _check_afterwards(self, cell: Cell, launches: list[Callable[[], object]], timed: Any) -> None:
        pass

    def _host_loop_seconds(self, launch: Callable[[], object], replayed: float) -> float:
        return 10.0

    def canary_seconds(self) -> dict[str, float]:
        return {"memory": 1.0, "compute": 2.0}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is waited for."""
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    return asked


def test_a_clean_take_is_the_only_one(pauses: list[float]) -> None:
    visit = Handless().measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"], pauses) == (0, 1.0, [], [])
    assert visit["canary_s"] == {"memory": 1.0, "compute": 2.0}
    assert visit["identity"] == "who"
    assert "launch_seconds" not in visit


def test_a_throttled_take_is_taken_again(pauses: list[float]) -> None:
    gpu = Handless([["software power cap"], ["hardware slowdown"], []])
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"]) == (2, 3.0, [])
    assert pauses == [REST_S] * 2


@pytest.mark.parametrize(("limit", "retakes"), [("hardware slowdown", RETAKES), ("software power cap", 1)])
def test_what_stays_throttled_is_marked(pauses: list[float], limit: str, retakes: int) -> None:
    """Heat may pass; a kernel that meets the power limit after a rest meets it always."""
    gpu = Handless([[limit]] * 10)
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["throttled"]) == (retakes, [limit])
    assert len(gpu.taken) == retakes + 1
    assert visit["seconds"] == len(gpu.taken)  # the last one


def test_seconds_are_of_one_pass() -> None:
    visit = Handless(repeats=64).measure(cell())
    assert (visit["seconds"], visit["quartiles_s"]) == (1 / 64, [0.5 / 64, 1.5 / 64])
    once = Handless(repeats=1).measure(cell(repeats=64))  # the measured commit's count, not the checkout's
    assert once["seconds"] == 1.0
    line = Handless(repeats=64).measure(cell(rung="memcpy", reference=True))
    assert line["seconds"] == 1.0


def test_launch_cost_is_the_loop_less_the_graph() -> None:
    visit = Handless().measure(cell(launch_cost=True))
    assert (visit["host_loop_seconds"], visit["launch_seconds"]) == (10.0, 10.0 - 1.0)


@pytest.mark.parametrize(
    ("launch_s", "looked", "nodes", "replays", "samples"),
    [
        (1e-6, 256, 512, 4, 9),  # 2 ms are 2,000 launches; a graph holds 512 at most
        (1e-5, 200, 256, 1, 7),  # 200 launches: all the buffers once, and so a sample less or two
        (1e-9, 256, 512, 3906, 9),
        (1e-4, 20, 256, 1, 2),  # a turn over the buffers is dearer than all nine samples should be: the least
    ],
)
def test_a_graph_goes_round_all_buffers(launch_s: float, looked: int, nodes: int, replays: int, samples: int) -> None:
    gpu = Handless(launch_s=launch_s)
    visit = gpu.measure(cell(shape=(32, 64)))  # 16 KiB a set; 4 x 1 MiB are 256 of them
    assert visit["slots"] == 256
    assert gpu.graphs == [looked, nodes]
    assert gpu.taken == [(replays, nodes)]
    assert visit["launches"] == replays * nodes * samples


@pytest.mark.parametrize(("launch_s", "samples"), [(0.006, 8), (0.02, 2), (1.0, 1)])
def test_a_slow_launch_is_a_sample(launch_s: float, samples: int) -> None:
    """Behind the canaries, which keep the host's delays out of it: itself once more would cost as much as a sample."""
    gpu = Handless(launch_s=launch_s)
    visit = gpu.measure(cell(shape=(32, 64)))
    assert gpu.graphs == [1]
    assert gpu.taken == [(1, 1)]
    assert gpu.lead_ins == [(1, 1)]
    assert visit["launches"] == samples


def test_a_launch_that_is_dear_is_timed_by_its_check() -> None:
    gpu = Handless(launch_s=1.0)
    gpu.enqueue_s = 1e-5  # the host had nothing to load
    visit = gpu.measure(cell(shape=(32, 64)))
    assert (visit["seconds"], visit["launches"], visit["slots"], gpu.taken, gpu.graphs) == (1.0, 1, 1, [], [])


@pytest.mark.parametrize("spoilt", [{"throttled": ["software power cap"]}, {"clock64_mhz": 1700.0}])
def test_a_check_under_a_limit_is_no_sample(spoilt: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Handless(launch_s=1.0)
    gpu.enqueue_s, gpu.best_clock_mhz = 1e-5, 1980.0
    first = one_take([1.0], **spoilt)
    monkeypatch.setattr(gpu, "_check", lambda _cell, _launch: (first, gpu.enqueue_s))
    gpu.measure(cell(shape=(32, 64)))
    assert gpu.taken == [(1, 1)]


def test_a_clock_that_recovers_is_waited_for(pauses: list[float]) -> None:
    """What ran before had drawn much power: 10 % below, 5 % below, then as high as it has been."""
    gpu = Handless()
    gpu.best_clock_mhz, gpu.clocks = 1980.0, [1780.0, 1880.0, 1975.0]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"]) == (2, 3.0, [])
    assert pauses == [REST_S, SHORT_REST_S]


@pytest.mark.parametrize(("clock", "rest"), [(1790.0, REST_S), (1900.0, SHORT_REST_S)])
def test_a_clock_that_its_own_work_holds_down_is_marked(pauses: list[float], clock: float, rest: float) -> None:
    """Power holds it at 90 % of the highest, a step of tensor cores at 96 %: one rest shows that it stays there."""
    gpu = Handless()
    gpu.best_clock_mhz, gpu.clocks = 1980.0, [clock, clock + 1, clock + 2]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"]) == (1, 2.0, [LOW_CLOCK])
    assert pauses == [rest]


def test_a_clock_that_other_processes_found_comes_after_a_rest(pauses: list[float]) -> None:
    gpu = Handless()
    gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz={cell().key: 1800.0})
    gpu.best_clock_mhz, gpu.clocks = 1980.0, [1790.0]
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["throttled"], pauses) == (0, [LOW_CLOCK], [REST_S])
    gpu.taken.clear()
    pauses.clear()
    gpu.clocks = [1750.0, 1795.0]  # lower than theirs: what ran before holds it down still
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], pauses) == (1, 2.0, [REST_S] * 2)
    gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz={cell().key: 1980.0})
    gpu.taken.clear()
    pauses.clear()
    gpu.clocks = [1980.0]
    assert (gpu.measure(cell())["retakes"], pauses) == (0, [])


def test_a_clock_locked_low_is_as_high_as_it_gets(pauses: list[float]) -> None:
    gpu = Handless()
    gpu.clocks = [1500.0] * 3
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["throttled"], pauses) == (0, [], [])


def test_a_first_run_that_waited_for_something_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Handless(launch_s=1e-6)
    loaded = one_take([0.5])  # a library was, in it
    monkeypatch.setattr(gpu, "_check", lambda _cell, _launch: (loaded, 0.5))
    take = gpu.take

    def quick(*what: Any) -> Take:
        found = take(*what)
        return {**found, "seconds": [1e-6 for _ in found["seconds"]]}

    monkeypatch.setattr(gpu, "take", quick)
    visit = gpu.measure(cell(shape=(32, 64)))
    assert gpu.graphs == [1, 256, 512]
    assert gpu.taken == [(1, 1), (4, 512)]
    assert (visit["seconds"], visit["launches"], visit["slots"]) == (1e-6, 4 * 512 * 9, 256)


def test_hot_is_the_mean_of_settlings_of_their_own(pauses: list[float]) -> None:
    """Each sample has buffers brought in anew, in a graph of its own; a throttled one is taken again."""
    gpu = Handless([[], ["software power cap"], [], [], [], [], [], [], [], []])
    visit = gpu.measure(cell(shape=(33, 65), cache="hot"))
    assert len(gpu.taken) == gpu.budget.samples + 1
    assert gpu.graphs == [visit["slots"], *[gpu.taken[0][1]] * gpu.budget.samples]
    assert visit["seconds"] == pytest.approx((1 + sum(range(3, 11))) / 9)
    assert (visit["retakes"], visit["throttled"]) == (1, [])
    assert visit["launches"] == gpu.taken[0][0] * gpu.taken[0][1] * gpu.budget.samples


def test_a_settling_that_stays_throttled_marks_the_cell(pauses: list[float]) -> None:
    gpu = Handless([[], *[["hardware slowdown"]] * (RETAKES + 1), *[[]] * 9])
    assert gpu.measure(cell(shape=(33, 65), cache="hot"))["throttled"] == ["hardware slowdown"]


@pytest.mark.parametrize(("columns", "slots"), [(2 * MIB, 1), (174_720, 4), (5_184, 102), (640, 820)])
def test_a_graph_is_whole_rounds(columns: int, slots: int) -> None:
    gpu = Handless()
    assert gpu.measure(cell(shape=(1, columns)))["slots"] == slots
    assert gpu.taken[0][1] % slots == 0


# --- buffers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["uint8", "float32", "complex128"])
@pytest.mark.parametrize(("op", "shape"), [("transpose", (33, 65)), ("transpose", (256, 256)), ("vector_add", (1001,))])
def test_cold_buffers_are_four_times_the_l2_and_aligned(op: str, shape: tuple[int, ...], type: str) -> None:
    gpu = Handless()
    where = cell(op=op, rung={"transpose": "padded", "vector_add": "elementwise"}[op], shape=shape, type=type)
    starts, size = gpu._slot_bytes(where)
    assert len(starts) == {"transpose": 1, "vector_add": 2}[op] + 1
    assert all(start % 256 == 0 for start in [*starts, size])
    slots = gpu._slots(where)
    assert slots * size >= 4 * gpu.l2_bytes
    assert (slots - 1) * size < 4 * gpu.l2_bytes  # and not a set more
    ranges = []
    for slot in range(slots):
        inputs, (out,) = gpu._operands(where, slot)
        assert len(inputs) == len(starts) - 1
        assert out.shape == (shape[::-1] if op == "transpose" else shape)
        for operand in (*inputs, out):
            assert operand.dtype == np.dtype(type)
            assert np.shares_memory(operand, gpu.arena)
            ranges.append((operand.ctypes.data, operand.ctypes.data + operand.nbytes))
    ranges.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize(("shape", "slots"), [((33, 65), 15), ((128, 256), 1), ((256, 256), 1)])
def test_hot_buffers_lie_in_the_l2_together(shape: tuple[int, ...], slots: int) -> None:
    gpu = Handless()
    where = cell(cache="hot", shape=shape)
    assert gpu._slots(where) == slots
    assert gpu._arena_bytes(where) == slots * gpu._slot_bytes(where)[1] <= gpu.l2_bytes / 2


def test_what_is_larger_than_the_rotation_is_one_set() -> None:
    assert Handless()._slots(cell(shape=(4096, 4096))) == 1


def test_hot_is_at_most_half_of_the_l2() -> None:
    gpu = Handless()
    assert gpu.measure(cell(shape=(256, 256), cache="hot"))["slots"] == 1  # 512 KiB of 1 MiB
    why = r"its buffers \(4 MiB\) do not fit in half of the L2 cache \(1 MiB\): never hot"
    with pytest.raises(NotHere, match=why):
        gpu.measure(cell(shape=(512, 1024), cache="hot"))
    with pytest.raises(NotHere, match="never hot"):
        gpu.measure(cell(shape=(256, 257), cache="hot"))


def test_a_cell_larger_than_the_memory_is_not_here() -> None:
    gpu = Handless()

    class Runtime:
        @staticmethod
        def memGetInfo() -> tuple[int, int]:
            return 90 * MIB, 100 * MIB

    class Cuda:
        runtime = Runtime

    class Cupy:
        cuda = Cuda

    gpu.cupy = Cupy
    with pytest.raises(NotHere, match=r"it needs 128 MiB of GPU memory, 90 MiB are free"):
        gpu.measure(cell(shape=(4096, 4096)))


# --- replays -------------------------------------------------------------------------------------------------------


class Log:
    """CuPy as far as a replay needs it, with what was called in order; an event reads the milliseconds it is given."""

    def __init__(self, milliseconds: list[float]) -> None:
        self.calls: list[str] = []
        self.times = milliseconds
        self.cuda = self
        self.made = 0

    def Event(self) -> "Log._Event":
        self.made += 1
        return Log._Event(self, self.made - 1)

    def get_elapsed_time(self, a: "Log._Event", b: "Log._Event") -> float:
        return self.times[b.at] - self.times[a.at]

    def launch(self, stream: object) -> None:
        self.calls.append("launch")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def stamp(self, grid: object, block: object, arguments: tuple[str]) -> None:
        self.calls.append(f"stamp {arguments[0]}")

    class _Event:
        def __init__(self, log: "Log", at: int) -> None:
            self.log, self.at = log, at

        def record(self, stream: object) -> None:
            self.log.calls.append(f"event {self.at}")


class Stamps(list[str]):
    """The two stamps, named; read back they lie 1 ms and a million cycles apart, on one SM."""

    def get(self, stream: object) -> NDArray[np.int64]:
        return np.array([[0, 0, 3], [1_000_000, 1_000_000, 3]], np.int64)


def logged(milliseconds: list[float]) -> tuple[Gpu, Log]:
    gpu: Gpu = object.__new__(Gpu)
    log = Log(milliseconds)
    gpu.cupy = gpu.stream = log
    gpu.kernels, gpu.stamps, gpu.nvml_facts = {"stamp": log.stamp}, Stamps(["0", "1"]), {"sm_clock_max_mhz": None}
    return gpu, log


def test_replays_lie_between_events_behind_one_that_keeps_the_gpu_busy() -> None:
    gpu, log = logged([0.0, 2.0, 5.0])

    def during() -> str:
        log.calls.append("during")
        return "said"

    assert gpu.replay(log, 2, 2, during) == ([0.002, 0.003], 1000.0, "said")
    rounds = ["launch", "launch", "event 1", "launch", "launch", "event 2"]
    clock = ["stamp 0", "event 0", *rounds, "stamp 1"]  # over the samples, not over what comes before
    assert log.calls == ["launch", *clock, "during", "synchronize"]
    assert gpu.best_clock_mhz == 1000.0  # over 1 ms


def test_a_clock_over_a_short_time_is_not_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's nanoseconds come in steps: over microseconds they make any clock. Nor is one that it cannot have."""
    for last, highest in (([10_000, 4_000, 3], 0.0), ([5_000_000, 2_000_000, 3], 1980.0)):
        gpu, log = logged([0.0, 2.0])
        gpu.nvml_facts = {"sm_clock_max_mhz": 1980.0}
        stamps = np.array([[0, 0, 3], last])
        monkeypatch.setattr(gpu.stamps, "get", lambda stream, stamps=stamps: stamps)
        assert gpu.replay(log, 1, 1)[1] == 2500.0
        assert gpu.best_clock_mhz == highest


@pytest.mark.parametrize(
    ("reasons", "said"), [(0x20, ["software thermal slowdown"]), (None, ["SM clock 1000 MHz of 1980 MHz"])]
)
def test_a_take_divides_by_its_launches_and_reads_the_clocks(reasons: int | None, said: list[str]) -> None:
    class Driver:
        def state(self) -> State:
            return said_by_driver(reasons)

    gpu, log = logged([float(10 * at) for at in range(6)])
    gpu.budget = Budget(5, 0.01)
    gpu.nvml, gpu.nvml_facts = cast(Nvml, Driver()), {"sm_clock_max_mhz": 1980.0}
    taken = gpu.take(log, 4, 25, 5)
    assert taken["seconds"] == pytest.approx([0.01 / 100] * 5, rel=1e-12)
    assert taken["launches"] == 500
    assert (taken["clock64_mhz"], taken["throttled"], taken["state"]) == (1000.0, said, said_by_driver(reasons))


# --- on a GPU ------------------------------------------------------------------------------------------------------

SMALL = {op: problem.shapes[:2] for op, problem in PROJECT.ops.items()}
SMALL["matmul"] = ((256, 256, 256), (64, 65536, 256))  # the latter since the rung constant takes no other
BUDGET = Budget(samples=5, sample_s=0.001)


def small_cells() -> list[Cell]:
    return [
        found
        for op, problem in PROJECT.ops.items()
        for found in plan(problem, "gpu")
        if found.type == "float32" and found.shape in SMALL[op]
    ]


def ragged_references() -> list[Cell]:
    return [
        Cell(op, name, "float32", problem.counted_shapes[-1], "cold", "gpu", reference=True)
        for op, problem in PROJECT.ops.items()
        for name in problem.lines
    ]


@functools.cache
def device() -> Gpu:
    return Gpu(PROJECT, PROJECT.adapt(gpukernels), small_cells() + ragged_references(), BUDGET, seed=1)


@functools.cache
def measurements() -> dict[str, Measurement]:
    """One of each small cell; without those that this GPU's cache is too small for."""
    found = {}
    for where in small_cells():
        with contextlib.suppress(NotHere, gpukernels.LimitError):
            found[where.key] = device().measure(where)
    return found


class Planted:
    """A package of kernels each of whose launches is made of another's: `times` launches of it, none for 0."""

    def __init__(self, times: int) -> None:
        self.times = times

    def repeats(self, op: str, rung: str) -> int:
        return 1

    def load(self, op: str, rung: str, type: str) -> "PlantedKernel":
        return PlantedKernel(gpukernels.load(op, rung, type), self.times)


@dataclass(frozen=True)
class PlantedKernel:
    kernel: gpukernels.Kernel
    times: int

    def bind(self, *inputs: Any, out: Any) -> gpukernels.Launch:
        launch = self.kernel.bind(*inputs, out=out)

        def run() -> None:
            for _ in range(self.times):
                launch()

        return gpukernels.Launch(out, "planted", run)


@pytest.mark.gpu
def test_every_rung_and_reference_line_is_right_and_takes_time() -> None:
    cold = {where.key for where in small_cells() if where.cache == "cold"}
    assert cold - set(measurements()) <= {where.key for where in small_cells() if where.rung == "constant"}  # too large
    for where, found in measurements().items():
        assert 0 < found["seconds"] < 0.1, where
        assert found["quartiles_s"][0] <= found["seconds"] <= found["quartiles_s"][1], where
        assert found["launches"] >= found["slots"], where
        assert all(value > 0 for value in found["canary_s"].values()), where
        assert set(found["canary_s"]) == {"memory", "compute"}


class Numbering:
    """A package of copies. Each launch counts itself in `counts` under the number of its set of buffers."""

    not_here: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        import cupy

        self.counts: Any = cupy.zeros(4096, cupy.int32)
        self.origin = self.set_bytes = 0
        once = "out = x; if (i == 0) atomicAdd(const_cast<int *>(&counts[number]), 1)"
        inputs = "float32 x, raw int32 counts, int32 number"
        self.kernel: Any = cupy.ElementwiseKernel(inputs, "float32 out", once, "numbering")

    def load(self, op: str, rung: str, type: str) -> "Numbering":
        return self

    def repeats(self, op: str, rung: str) -> int:
        return 1

    def bind(self, x: Any, *, out: Any) -> gpukernels.Launch:
        number = (out.data.ptr - self.origin) // self.set_bytes
        return gpukernels.Launch(out, "numbering", lambda: self.kernel(x, self.counts, number, out))


@pytest.mark.gpu
@pytest.mark.parametrize("cache", CACHES)
def test_launches_go_round_buffers_of_random_numbers(cache: str) -> None:
    """What the kernel itself saw: every set of buffers as often as any other."""
    package, where = Numbering(), cell(op="transpose", rung="copy", shape=(256, 256), cache=cache)
    gpu = Gpu(PROJECT, cast(Package, package), [where], BUDGET, seed=1)
    package.origin, package.set_bytes = gpu.arena.data.ptr, gpu._slot_bytes(where)[1]
    measured = gpu.measure(where)
    counts = package.counts.get()
    assert (counts > 0).sum() == measured["slots"] == gpu._slots(where)
    assert counts[: measured["slots"]].min() > counts[1:].max() / 2  # the first set has the checks besides
    inputs = [gpu._operands(where, slot)[0][0].get() for slot in range(measured["slots"])]
    assert all(0.5 < values.std() < 0.65 and abs(values.mean()) < 0.02 for values in inputs)  # uniform in [-1, 1)
    assert len({values.tobytes() for values in inputs}) == len(inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(("short", "arguments"), [("", ()), ("_short", (np.int32(4),))])
def test_numbers_of_float8_are_those_of_float32_cut_toward_zero(short: str, arguments: tuple[Any, ...]) -> None:
    import cupy

    count, gpu = 100_003, device()
    filled = {"fill": cupy.empty(count, np.float32), "fill_float8": cupy.empty(count, np.uint8)}
    with gpu.stream:
        for name, memory in filled.items():
            gpu.kernels[name + short]((64,), (256,), (memory, np.int64(count), np.uint64(7), *arguments))
        wide, codes = (memory.get() for memory in filled.values())
    sizes = np.arange(0x7F, dtype=np.uint8).view("float8_e4m3fn").astype(np.float32)
    cut = np.copysign(sizes[np.searchsorted(sizes, abs(wide), "right") - 1], wide)
    assert (codes.view("float8_e4m3fn").astype(np.float32) == cut).all()


def smallest_by_type() -> list[Cell]:
    """Of each op and element type the smallest cell."""
    found: dict[tuple[str, str], Cell] = {}
    for problem in PROJECT.problems:
        for one in plan(problem, "gpu"):
            if one.reference:
                continue
            known = found.setdefault((one.op, one.type), one)
            if math.prod(one.shape) < math.prod(known.shape):
                found[one.op, one.type] = one
    return list(found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("where", smallest_by_type(), ids=lambda where: where.key)
def test_the_first_process_looks_at_launches_of_every_type(where: Cell) -> None:
    """It copies the inputs to see whether they are written, checks the graph, and notes what a launch runs."""
    gpu = Gpu(PROJECT, PROJECT.adapt(gpukernels), [where], BUDGET, seed=0)
    not_here: tuple[type[Exception], ...] = (NotHere, *gpu.package.not_here)
    try:
        assert gpu.measure(where)["kernels"]
    except not_here as error:
        pytest.skip(str(error))


@pytest.mark.gpu
def test_hot_is_not_slower_than_cold() -> None:
    compared = 0
    for where in small_cells():
        hot, cold = (measurements().get(where.key.replace(where.cache, cache)) for cache in reversed(CACHES))
        if hot and cold:
            compared += 1
            assert hot["seconds"] <= 1.5 * cold["seconds"], where.key
    assert compared


QUANTUM_S = 0.15e-6  # half of what a graph that is uploaded in vain adds to each kernel of a cold graph on an H200


@pytest.mark.gpu
def test_launches_that_were_captured_and_not_replayed_slow_no_kernel_down() -> None:
    """One graph, replayed after each of other launches was captured to see whether it can be."""
    cells = plan(PROJECT.op("matmul"), "gpu")
    mixed = random.Random(5).sample(cells, len(cells))  # an order in which one of the first ten slowed all down
    others = [where for where in mixed if not gpukernels.rung("matmul", where.rung).needs][:60]
    timed = next(where for where in cells if where.key == "matmul/pipelined_32x64 float32 256x256x256 cold")
    gpu = Gpu(PROJECT, PROJECT.adapt(gpukernels), [timed, *others], BUDGET, seed=1)

    def launches(where: Cell) -> list[Callable[[], object]]:
        kernel = gpu.package.load(where.op, where.rung, where.type)
        return [gpu._bind(where, kernel, slot)[0] for slot in range(gpu._slots(where))]

    with gpu.stream:
        gpu._fill(timed)
        rotating = launches(timed)
        rotating[0]()
        graph, levels = gpu.graph(rotating, len(rotating)), []
        not_here: tuple[type[Exception], ...] = (NotHere, *gpu.package.not_here)
        for where in others:
            try:
                gpu._fits(where)
                other = launches(where)[0]
            except not_here:
                continue
            other()
            assert gpu._captured(where, other)
            levels.append(min(gpu.replay(graph, 1, 3)[0]) / len(rotating))
    assert len(levels) > 40
    assert max(levels) - min(levels) < QUANTUM_S, levels


@pytest.mark.gpu
def test_clock64_is_a_clock_that_the_gpu_has() -> None:
    clocks = [found["clock64_mhz"] for found in measurements().values() if found["clock64_mhz"]]
    highest = device().nvml_facts["sm_clock_max_mhz"]
    if highest is None:
        pytest.skip(f"NVML does not say the highest SM clock: {device().nvml.why_not or 'not answered'}")
    assert clocks, "the two stamps were never on the same SM"
    assert min(clocks) > 100
    assert max(clocks) < 1.05 * highest


@pytest.mark.gpu
def test_facts_say_who_measured() -> None:
    facts = device().facts()
    assert facts["gpu"]
    assert facts["l2_bytes"] > 0
    assert facts["multiprocessors"] > 0
    assert any(name.startswith("cupy") for name in facts["packages"])


@pytest.mark.gpu
def test_a_kernel_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device(), "package", Planted(0))
    for op, shapes in SMALL.items():
        where = next(found for found in small_cells() if (found.op, found.shape) == (op, shapes[0]))
        (out,) = PROJECT.computes(op, where.rung).operands(where.shape, where.type).outputs
        size = math.prod(out.shape)
        said = rf"{op}/{where.rung} at .* float32: {size} of {size} elements wrong, .* {size} never written"
        with pytest.raises(WrongOutput, match=said):
            device().measure(where)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ragged_references(), ids=lambda where: where.key)
def test_reference_lines_write_all_of_a_ragged_shape(where: Cell) -> None:
    assert device().measure(where)["seconds"] > 0  # measure raises for a wrong one


@pytest.mark.gpu
def test_twice_the_launches_read_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    where = next(found for found in small_cells() if found.rung == "naive_read" and found.cache == "hot")
    ratios = []
    for _ in range(3):
        seconds = []
        for times in (1, 2):
            monkeypatch.setattr(device(), "package", Planted(times))
            seconds.append(device().measure(where)["seconds"])
        ratios.append(seconds[1] / seconds[0])
    assert 1.6 < sorted(ratios)[1] < 2.4, ratios


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
