"""What the gate of the kernels compares: operands between guard zones, references and bounds, shapes that hurt."""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from gpukernels import Rung
from kernelwatch.plan import checks

SEED = int(os.environ.get("GPUKERNELS_SEED") or int.from_bytes(os.urandom(4)))  # fresh inputs in every run

POISON = 0xA5  # what lies in an output before the kernel runs
POISON_NAN = 0xFF  # or, where an element need only be near to its reference, NaN: near to nothing
GUARD = 4096  # bytes before and after every operand that a kernel must leave alone; a multiple of any alignment
GUARD_BYTE = 0x3C

Array = Any  # of NumPy or CuPy


# --- what is right -------------------------------------------------------------------------------------------------


def random_bytes(rng: np.random.Generator, inputs: list[NDArray[Any]]) -> None:
    """Any bytes, so NaN of every payload too, except the poison: an element not written cannot be right by chance."""
    for operand in inputs:
        raw = bytes_of(operand)
        raw[...] = rng.integers(0, 256, raw.shape, np.uint8)
        raw[raw == POISON] = POISON ^ 0xFF


def addends(rng: np.random.Generator, inputs: list[NDArray[Any]]) -> None:
    """Normal numbers and, on half the elements at most, all pairs of the numbers that rounding treats specially."""
    limits = np.finfo(inputs[0].dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, limits.eps, limits.max, -limits.max, limits.tiny,
               limits.smallest_subnormal, -limits.smallest_subnormal]  # fmt: skip
    for operand in inputs:
        operand[...] = rng.standard_normal(operand.shape)
    pairs = rng.permutation(np.array(list(itertools.product(special, repeat=len(inputs)))))
    at = rng.permutation(inputs[0].size)[: min(len(pairs), inputs[0].size // 2)]
    for operand, column in zip(inputs, pairs.T, strict=True):
        operand.reshape(-1)[at] = column[: len(at)]


# The bits of integers of which every sum of products is exact in the type: in A more than a narrower type has. Of
# float8 it is exact in the 14 bits that Hopper's tensor cores keep.
EXACT = {"float32": (12, 3), "float64": (24, 18), "float16": (10, 3), "bfloat16": (7, 3), "float8_e4m3fn": (4, 0)}
EXACT_TF32 = {"float32": (10, 3)}


def exact_integers(
    rng: np.random.Generator, inputs: list[NDArray[Any]], exact: Mapping[str, tuple[int, ...]] = EXACT
) -> None:
    """Of which every sum of some ten thousand products is exact, in any order; and in no narrower type. Longer sums are
    exact too: the numbers are of both signs, so that sums grow with the root of the count."""
    for operand, bits in zip(inputs, exact[inputs[0].dtype.name], strict=True):
        operand[...] = rng.integers(-(1 << bits), 1 << bits, operand.shape, endpoint=True)


def signed_numbers(rng: np.random.Generator, inputs: list[NDArray[Any]]) -> None:
    """Uniform in [-1, 1), rounded to the operands' type: products cancel, so that an error is not lost in a sum."""
    for operand in inputs:
        operand[...] = rng.uniform(-1, 1, operand.shape)


def some_not_finite(
    rng: np.random.Generator, inputs: list[NDArray[Any]], exact: Mapping[str, tuple[int, ...]] = EXACT
) -> None:
    """Integers, and among them infinities, NaN and zeros of both signs."""
    exact_integers(rng, inputs, exact)
    for operand in inputs:
        at = rng.integers(0, operand.size, 1 + operand.size // 50)
        operand.reshape(-1)[at] = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, -0.0], at.size)


def product(a: Array, b: Array) -> Array:
    """The product in float64, a row of a after the other: no library that leaves out a product by 0."""
    if a.size * b.shape[1] > 10**6:
        return a.astype(np.float64) @ b.astype(np.float64)
    return np.einsum("mk,kn->mn", a.astype(np.float64), b.astype(np.float64))


def split_bound(found: Rung, a: Array, b: Array) -> Array:
    """How far the product by parts of matmul/parts.cuh may lie from the float64 one.

    Tensor cores cut (u = 2**-23) at most a quarter more often than there are products in SPAN of K; the products of
    smaller parts, together below 2**-5 of the others, are cut as often. Then a sum of each SPAN is added, rounded.
    What is left out: of bfloat16 two products of parts, each 2**-8 and 2**-16 of its number, and one smaller. Two
    float16 parts lack 2**-22 of their number, and the product of the second ones is 2**-22 of theirs; below 2**-38 of
    the largest number of its row or column in SPAN, a number is lost.
    """
    parts, span = (found.macros()[name] for name in ("PARTS", "SPAN"))
    depth = a.shape[1]
    wide_a, wide_b = (abs(operand.astype(np.float64)) for operand in (a, b))
    n = (min(depth, span) * 5 / 4 + 1) * (1 + 2.0**-5) * 2 + -(-depth // span)  # of u = 2**-24
    relative = n * 2.0**-24 / (1 - n * 2.0**-24) + depth * 2.0**-53
    if parts == 3:
        return (relative + 2.0**-23 * (1 + 2.0**-6)) * (wide_a @ wide_b)
    starts = np.arange(0, depth, span)
    most_a = np.maximum.reduceat(wide_a, starts, axis=1).repeat(span, axis=1)[:, :depth]
    most_b = np.maximum.reduceat(wide_b, starts, axis=0).repeat(span, axis=0)[:depth]
    return (relative + 3 * 2.0**-22) * (wide_a @ wide_b) + 2.0**-38 * (most_a @ wide_b + wide_a @ most_b)


def float8_error(found: Rung, depth: int) -> float:
    """How far a sum of `depth` products of float8 may be off, relative to the sum of their sizes.

    An instruction sums 32 products and what was before. It cuts each of these 33 where the largest has 14 bits, and
    their sum to 14 bits (u = 2**-13), so that it adds 33 errors of u, and one more, of what there is. Promoted sums of
    128 are added in float32.
    """
    promoted = found.source.name == "wgmma_fp8_promoted.cu"
    u, instructions = 2.0**-13, -(-(min(depth, 128) if promoted else depth) // 32)
    cut = ((1 + 33 * u) * (1 + u)) ** instructions - 1
    additions = -(-depth // 128) if promoted else 0
    return cut + (1 + cut) * additions * 2.0**-23


def product_bound(found: Rung, type: str, a: Array, b: Array) -> Array:
    """How far a product may lie from the float64 one: gamma(n) (|A| |B|), n the roundings on any path of a sum.

    A sum of K products has at most K of them, of u = 2**-24 in float32. Tensor cores (16-bit operands, TF32) are taken
    to cut where others round, and to add their own sum to C for every 4 products or more: K and a quarter, of 2**-23.
    TF32 cuts each operand by up to 2**-10 of it. Float8: see float8_error. An output of 16 bits is rounded once more.
    """
    if found.source.suffix == ".cu" and "PARTS" in found.macros():
        return split_bound(found, a, b)
    b = b.T if found.computes in ("matmul_nt", "matmul_tf32") else b
    into, _, out = type.partition("->")
    depth, tf32 = a.shape[1], found.computes == "matmul_tf32"
    tensor = tf32 or into in ("float16", "bfloat16")
    n, u = (depth + depth // 4 + 1, 2.0**-23) if tensor else (depth, 2.0**-53 if into == "float64" else 2.0**-24)
    gamma = n * u / (1 - n * u) + depth * 2.0**-53
    if into == "float8_e4m3fn":
        gamma = float8_error(found, depth) + depth * 2.0**-53
    if tf32:
        gamma += (2 * 2.0**-10 + 2.0**-20) * (1 + gamma)
    bound = gamma * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))
    if narrow := {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}.get(out or into):
        relative, subnormal = narrow
        bound += relative * (abs(a.astype(np.float64) @ b.astype(np.float64)) + bound) + subnormal
    return bound


@dataclasses.dataclass(frozen=True)
class Reference:
    """What rungs compute, with NumPy or CuPy arrays; what to compute it of; whether a NaN must be the same NaN; how far
    an element may lie from it (None: not at all).

    IEEE 754 leaves the payload and sign of a NaN result open, and processors differ: there NaN equals NaN. In a sum of
    products the order is open as well, and with it the sign of a zero: there zeros are equal.
    """

    function: Callable[..., Array]
    fill: Callable[[np.random.Generator, list[NDArray[Any]]], None]
    same_nan: bool
    same_zero: bool = True
    bound: Callable[..., Array] | None = None
    poison: int = POISON


def products(function: Callable[..., Array], exact: Mapping[str, tuple[int, int]] = EXACT) -> list[Reference]:
    """What a matrix product is held against: integers of so many bits, of which it is exact; numbers of both signs;
    infinities and NaN."""
    near = functools.partial(Reference, function, same_nan=False, same_zero=False)
    return [
        near(functools.partial(exact_integers, exact=exact), poison=POISON_NAN),
        near(signed_numbers, bound=product_bound, poison=POISON_NAN),
        near(functools.partial(some_not_finite, exact=exact)),
    ]


REFERENCES = {
    "transpose": [Reference(lambda a: a.T, random_bytes, same_nan=True)],
    "copy": [Reference(lambda a: a, random_bytes, same_nan=True)],
    "vector_add": [Reference(lambda a, b: a + b, addends, same_nan=False)],
    "matmul": products(product),
    "matmul_nt": products(lambda a, b: product(a, b.T)),
    "matmul_tf32": products(lambda a, b: product(a, b.T), EXACT_TF32),
}


def references(found: Rung) -> list[Reference]:
    assert found.computes in REFERENCES, (
        f"{found}: computes {found.computes}, for which the gate has no reference; "
        f"REFERENCES in tests/gate.py has {', '.join(REFERENCES)}"
    )
    return REFERENCES[found.computes]


def reference(found: Rung) -> Reference:
    return references(found)[0]


def patterns(found: Rung, type: str) -> list[tuple[str, np.dtype[Any]]]:
    """The dims and the type of each operand, the output last."""
    into, _, out = type.partition("->")
    return [*((pattern, np.dtype(into)) for pattern in found.inputs), (found.output, np.dtype(out or into))]


def on_gpu(found: Rung) -> bool:
    """Whether a rung finds its operands there."""
    return found.device == "gpu" and found.operands == "device"


# --- operands between guard zones ----------------------------------------------------------------------------------


def bytes_of(array: Array) -> Array:
    """The bytes of a C-contiguous array, one row an element."""
    return array.reshape(-1).view(np.uint8).reshape(array.size, array.dtype.itemsize)


class Operand:
    """An array whose first byte lies GUARD bytes and `shift` elements into `raw`, with a guard zone on both sides.

    On the host `raw` begins on a multiple of GUARD; CuPy's allocations begin on one of 512.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], shift: int = 0, poison: int = POISON) -> None:
        self.shape, self.dtype = shape, dtype
        self.start = GUARD + shift * dtype.itemsize
        self.stop = self.start + math.prod(shape) * dtype.itemsize
        memory = np.empty(self.stop + 2 * GUARD, np.uint8)
        aligned = -memory.ctypes.data % GUARD
        self.raw: Array = memory[aligned : aligned + self.stop + GUARD]
        self.raw[...] = GUARD_BYTE
        self.raw[self.start : self.stop] = poison

    @property
    def array(self) -> Array:
        return self.raw[self.start : self.stop].view(self.dtype).reshape(self.shape)


def compared(
    got: Array, expected: Array, right: Reference, bound: Array | None = None, first: int = 0
) -> tuple[int, int, int]:
    """How many elements are wrong, the flat index of the first counted from `first`, how many are still poison.

    The arrays are C-contiguous.
    """
    if bound is not None:
        bad = ~(abs(got - expected) <= bound).reshape(-1)
    else:
        bad = (bytes_of(got) != bytes_of(expected)).any(axis=1)
        if bad.any() and not right.same_nan:
            bad &= ~(np.isnan(got) & np.isnan(expected)).reshape(-1)
        if bad.any() and not right.same_zero:
            bad &= ~((got == 0) & (expected == 0)).reshape(-1)
    if not bad.any():
        return 0, -1, 0
    unwritten = bad & (bytes_of(got) == right.poison).all(axis=1)
    return int(bad.sum()), first + int(bad.argmax()), int(unwritten.sum())


def index(flat: int, shape: tuple[int, ...]) -> list[int]:
    return [int(at) for at in np.unravel_index(flat, shape)]


def mismatch(count: int, first: int, unwritten: int, shape: tuple[int, ...]) -> str:
    return (
        f"{count} of {math.prod(shape)} elements wrong, the first at {index(first, shape)}; {unwritten} never written"
    )


def guard_findings(name: str, raw: Array, start: int, stop: int) -> Iterator[str]:
    for zone, where in ((raw[:start], "before"), (raw[stop:], "after")):
        if count := int((zone != GUARD_BYTE).sum()):
            yield f"{count} bytes of the guard zone {where} {name} written"


def fail_on(findings: list[str], found: Rung, edge: int | None, extents: Mapping[str, int], type: str) -> None:
    who = f"{found} edge {edge}" if edge else str(found)
    shape = tuple(extents[dim] for dim in found.dims)
    if findings:  # the words alone: the frames of the gate say nothing of the kernel
        pytest.fail(f"{who} at {shape} {type}: {'; '.join(findings)} (GPUKERNELS_SEED={SEED})", pytrace=False)


def pick(pattern: str, extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extents[dim] for dim in pattern.split())


def check(
    kernel: Callable[..., object],
    found: Rung,
    type: str,
    extents: Mapping[str, int],
    *,
    edge: int | None = None,
    shift: int = 0,
) -> None:
    """Fails, in one sentence, unless `kernel(*inputs, out=out)` does at these extents what the rung says, and no more.

    `shift`: elements by which every operand begins after an aligned address. A GPU rung gets CuPy arrays.
    """
    for right in references(found):
        check_against(right, kernel, found, type, extents, edge, shift)


def check_against(
    right: Reference,
    kernel: Callable[..., object],
    found: Rung,
    type: str,
    extents: Mapping[str, int],
    edge: int | None,
    shift: int,
) -> None:
    rng = np.random.default_rng([SEED, *extents.values()])
    *inputs, out = (
        Operand(pick(pattern, extents), dtype, shift, right.poison) for pattern, dtype in patterns(found, type)
    )
    right.fill(rng, [operand.array for operand in inputs])
    before = [operand.raw.copy() for operand in inputs]
    with np.errstate(all="ignore"):  # inf - inf and overflow are among the inputs
        expected = np.ascontiguousarray(right.function(*(operand.array for operand in inputs)))
        assert expected.shape == out.shape, f"{found}: the reference gives {expected.shape}, ladder.toml {out.shape}"
        bound = right.bound(found, type, *(operand.array for operand in inputs)) if right.bound else None
        if bound is None:
            expected = expected.astype(out.dtype)  # exact, so that its bytes can be compared
        if on_gpu(found):
            import cupy

            for operand in (*inputs, out):
                operand.raw = cupy.asarray(operand.raw)
        kernel(*(operand.array for operand in inputs), out=out.array)
        if on_gpu(found):
            for operand in (*inputs, out):
                operand.raw = cupy.asnumpy(operand.raw)  # waits for the kernel

    findings = []
    with np.errstate(all="ignore"):
        count, first, unwritten = compared(out.array, expected, right, bound)
    if count:
        findings.append(mismatch(count, first, unwritten, out.shape))
    findings += guard_findings("out", out.raw, out.start, out.stop)
    for at, (operand, was) in enumerate(zip(inputs, before, strict=True)):
        findings += guard_findings(f"input {at}", operand.raw, operand.start, operand.stop)
        payload = slice(operand.start, operand.stop)
        changed = (operand.raw[payload] != was[payload]).reshape(-1, operand.dtype.itemsize).any(axis=1)
        if count := int(changed.sum()):
            findings.append(f"input {at} changed in {count} elements, the first at "
                            f"{index(int(changed.argmax()), operand.shape)}")  # fmt: skip
    fail_on(findings, found, edge, extents, type)


# --- shapes that hurt ----------------------------------------------------------------------------------------------


def steps(found: Rung, edge: int | None) -> tuple[int, ...]:
    """The extents of a rung's tile, in the order of its dims; of a usual one if it is not CUDA."""
    if found.source.suffix != ".cu":
        return (checks.STEP,) * len(found.dims)
    loop_step = found.macros().get("TILE_K", 0)
    return checks.steps(found.dims, lambda extents: found.grid(extents, edge), found.block_threads(edge), loop_step)


def shapes(found: Rung, edge: int | None, random_count: int = 3) -> Iterator[dict[str, int]]:
    """Around the rung's own tile, then some at random."""
    rng = np.random.default_rng(SEED)
    random = map(tuple, rng.integers(1, 400, (random_count, len(found.dims))).tolist())
    return taken(found, (*checks.around(steps(found, edge)), *random))


def long_shapes(found: Rung) -> Iterator[dict[str, int]]:
    """Beyond an index of 16 bits in each dimension, and over a million elements."""
    return taken(found, checks.LONG[len(found.dims)])


def taken(found: Rung, shapes: Iterable[tuple[int, ...]]) -> Iterator[dict[str, int]]:
    """Those of the shapes that the rung takes, by the names of its dims."""
    for shape in shapes:
        extents = dict(zip(found.dims, shape, strict=True))
        if fits(found, extents):
            yield extents


def fits(found: Rung, extents: Mapping[str, int], itemsize: int = 8) -> bool:
    """Whether the operands are no larger than the rung takes, of any type."""
    sizes = (math.prod(pick(pattern, extents)) * itemsize for pattern in found.inputs)
    return all(size <= most for size, most in zip(sizes, found.input_bytes_max, strict=False))


def cases(device: str | None = None) -> list[Any]:
    """Every rung, type and edge of the ladder, as parameters; those that need a GPU marked so. A rung of several GPUs
    takes a process for each: tests/test_nccl.py has its checks."""
    return [
        pytest.param(found.of(type), type, edge, id=f"{found}{f'@{edge}' if edge else ''}-{type}",
                     marks=[pytest.mark.gpu] if found.device == "gpu" else [])
        for op in gpukernels.ops()
        for found in op.rungs
        if device in (None, found.device) and found.operands != "several"
        for edge in (found.edges or (None,))
        for type in found.types
    ]  # fmt: skip


def load(found: Rung, type: str, edge: int | None) -> gpukernels.Kernel:
    """The kernel, or a test that ends here: skipped where this machine cannot compile it, failed with the compiler's
    words where the source is wrong."""
    try:
        return gpukernels.load(found.op, found.name, type, edge=edge)
    except gpukernels.ToolMissing as error:
        pytest.skip(str(error))
    except gpukernels.KernelError as error:
        pytest.fail(str(error), pytrace=False)


def narrowest(found: Rung) -> str:
    return min(found.types, key=itemsize)


def itemsize(type: str) -> int:
    """The bytes of an element of the input."""
    return np.dtype(type.partition("->")[0]).itemsize
