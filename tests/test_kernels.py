"""The gate: every rung against NumPy on shapes that hurt, byte for byte or within a proved bound. Nothing is timed
before it passes."""

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpukernels
from gpukernels import Rung
from gpukernels import kernel as kernel_module
from gpukernels.kernel import _GpuKernel
from tests.gate import (
    GUARD,
    GUARD_BYTE,
    POISON,
    SEED,
    Array,
    bytes_of,
    cases,
    check,
    check_against,
    compared,
    fail_on,
    fits,
    float8_error,
    guard_findings,
    itemsize,
    load,
    long_shapes,
    mismatch,
    narrowest,
    on_gpu,
    pick,
    product,
    reference,
    references,
    shapes,
)
from tests.gpu_memory import gpu_memory


@pytest.mark.parametrize(("found", "type", "edge"), cases())
def test_rung_against_numpy(found: Rung, type: str, edge: int | None) -> None:
    kernel = load(found, type, edge)
    takes_what_is_free = found.device == "gpu" and not on_gpu(found)  # its operands are the host's
    with gpu_memory(1 << 30) if takes_what_is_free else nullcontext():
        for extents in (*shapes(found, edge), *long_shapes(found)):
            check(kernel, found, type, extents, edge=edge)


@pytest.mark.parametrize(
    ("found", "type", "edge"),
    [
        case
        for case in cases("gpu")
        if len(case.values[0].tiled) == 2
        and case.values[0].source.suffix == ".cu"
        and case.values[1] == narrowest(case.values[0])
    ],
)
def test_more_tiles_than_blocks_in_y(found: Rung, type: str, edge: int | None) -> None:
    """More tiles either way than a grid has blocks in y, and so many that they take three layers in z."""
    kernel = load(found, type, edge)
    rows, columns = (edge, edge) if edge else found.tile
    more = tuple(2 for _ in found.dims[2:])
    for shape in ((65_536 * rows + 5, 1), (1, 65_536 * columns + 5), (131_071 * rows + 1, 2)):
        extents = dict(zip(found.dims, (*shape, *more), strict=True))
        if fits(found, extents):
            check(kernel, found, type, extents, edge=edge)


@pytest.mark.parametrize(
    ("found", "type", "edge"),
    [case for case in cases("gpu") if case.values[0].op == "matmul" and case.values[1] in ("float16", "bfloat16")],
)
def test_sums_are_rounded_to_16_bits_once(found: Rung, type: str, edge: int | None) -> None:
    """Left alone, cuBLAS splits K at this shape and rounds the sum of each part."""
    extents = dict(zip(found.dims, (60, 323, 27), strict=True))
    check(load(found, type, edge), found, type, extents, edge=edge)


# --- beyond 2**31, checked on the device ---------------------------------------------------------------------------

CHUNK = 2**26  # elements compared at a time

# One byte of an operand: any but the poison; or, in operands of a sum, of a number in the range of (-2, 2). A subnormal
# has no place there: CuPy's own sum, which is compiled with -ftz=true, takes it as 0.
NOISE = """
unsigned long long x = (start + i) * 0x9E3779B97F4A7C15ull + seed;  // splitmix64 of the byte's place
x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
const unsigned char byte = x >> 56;
const bool exponent = number_bytes && (start + i) % number_bytes == number_bytes - 1;
noise = exponent ? (byte & 0x80) | 0x3F : byte == 0xA5 ? 0x5A : byte;
"""


def large(found: Rung, type: str) -> dict[str, int]:
    """Odd extents with over 2**31 elements of the narrowest type, over 2**32 bytes of another."""
    size = np.dtype(type).itemsize
    elements = 2**31 if type == narrowest(found) else 2**32 // size
    if len(found.dims) == 1:
        return {found.dims[0]: elements + 11}
    side = math.isqrt(elements)
    return {dim: side + 9 + 2 * at for at, dim in enumerate(found.dims)}


def large_cases() -> Iterator[Any]:
    """Of each GPU rung and edge the narrowest type, for the count of elements, and the widest, for that of bytes."""
    for case in cases("gpu"):
        found, type, _edge = case.values
        if found.op != "matmul" and type in (narrowest(found), max(found.types, key=itemsize)):
            yield case


@pytest.mark.parametrize(("found", "type", "edge"), list(large_cases()))
def test_beyond_32_bit_indices(found: Rung, type: str, edge: int | None) -> None:
    right, dtype, extents = reference(found), np.dtype(type), large(found, type)
    needed = (len(found.inputs) + 1) * (math.prod(extents.values()) * dtype.itemsize + 2 * GUARD)
    needed += 8 * CHUNK * dtype.itemsize + (needed // 2 if not right.same_nan else 0)  # a sum is not a view
    with gpu_memory(needed):
        check_beyond(found, type, edge, extents)


def check_beyond(found: Rung, type: str, edge: int | None, extents: dict[str, int]) -> None:
    import cupy

    right, dtype = reference(found), np.dtype(type)
    noise = cupy.ElementwiseKernel(
        "uint64 seed, uint64 start, uint64 number_bytes", "uint8 noise", NOISE, "gpukernels_noise"
    )
    number_bytes = np.uint64(0 if right.same_nan else dtype.itemsize)
    sides = [pick(pattern, extents) for pattern in (*found.inputs, found.output)]
    raws, arrays = [], []
    for at, shape in enumerate(sides):
        payload = slice(GUARD, GUARD + math.prod(shape) * dtype.itemsize)
        raw = cupy.empty(payload.stop + GUARD, cupy.uint8)
        raw.fill(GUARD_BYTE)
        if at < len(found.inputs):
            noise(np.uint64(SEED + at), np.uint64(0), number_bytes, raw[payload])
        else:
            raw[payload].fill(POISON)
        raws.append(raw)
        arrays.append(raw[payload].view(dtype).reshape(shape))
    *inputs, out = arrays

    load(found, type, edge)(*inputs, out=out)

    expected = right.function(*inputs)
    rows = max(CHUNK // math.prod(out.shape[1:]), 1)
    results = []
    for row in range(0, out.shape[0], rows):
        part = cupy.ascontiguousarray(expected[row : row + rows])
        results.append(compared(out[row : row + rows], part, right, None, row * math.prod(out.shape[1:])))
    findings = []
    if count := sum(result[0] for result in results):
        first = next(result[1] for result in results if result[0])
        findings.append(mismatch(count, first, sum(result[2] for result in results), out.shape))
    names = [*(f"input {at}" for at in range(len(inputs))), "out"]
    for name, raw in zip(names, raws, strict=True):
        findings += guard_findings(name, cupy.asnumpy(raw[:GUARD]), GUARD, GUARD)
        findings += guard_findings(name, cupy.asnumpy(raw[-GUARD:]), 0, 0)
    for at, raw in enumerate(raws[:-1]):
        payload = raw[GUARD:-GUARD]
        for start in range(0, payload.size, CHUNK):
            part = payload[start : start + CHUNK]
            again = noise(np.uint64(SEED + at), np.uint64(start), number_bytes, cupy.empty_like(part))
            if count := int((part != again).sum()):
                findings.append(f"input {at} changed in {count} bytes from byte {start} on")
    fail_on(findings, found, edge, extents, type)


@pytest.mark.parametrize(
    ("found", "type", "edge"),
    [
        case
        for case in cases("gpu")
        if case.values[0].op == "matmul" and case.values[1] in ("float32", "bfloat16->float32")
    ],
)
@pytest.mark.parametrize("which", ["A", "B", "C", "K"])
def test_product_beyond_32_bit_indices(found: Rung, type: str, edge: int | None, which: str) -> None:
    """An operand of over 2**31 elements, the two others small: sums of small integers, made once more on the GPU."""
    deep, wide = 2**31 // 64 + 3, 46_351  # 64 times the one, the other squared: beyond 2**31
    long = 2**24 - 3  # 131 times it: beyond 2**31
    M, N, K = {"A": (deep, 3, 64), "B": (3, deep, 64), "C": (wide, wide + 2, 3), "K": (131, 66, long)}[which]
    if not on_gpu(found) or not fits(found, dict(zip(found.dims, (M, N, K), strict=True)), itemsize(type)):
        pytest.skip(f"{found} does not take an operand of this size")
    with gpu_memory((M * K + K * N) * itemsize(type) + 3 * M * N * 4 + (1 << 30)):
        check_product(found, type, edge, (M, N, K))


def check_product(found: Rung, type: str, edge: int | None, extents: tuple[int, int, int]) -> None:
    import cupy

    M, N, K = extents
    into = np.dtype(type.partition("->")[0])

    def numbers(rows: int, columns: int, step: int) -> Array:
        made = cupy.empty((rows, columns), into)
        made[...] = ((cupy.arange(rows, dtype=np.int32) * step) % 7 - 3).astype(np.float32)[:, None]
        made += (cupy.arange(columns, dtype=np.int32) % 5 - 2).astype(into)[None]
        return made

    transposed = found.inputs[1] == "N K"
    a, b = numbers(M, K, 3), numbers(K, N, 5)
    if max(extents) == K:  # one product in 61 is not 0: sums stay below 2**24, and any order of them is exact
        a *= (cupy.arange(K, dtype=np.int32) % 61 == 60).astype(into)[None]
    out = cupy.full((M, N), np.nan, np.float32)
    load(found, type, edge)(a, cupy.ascontiguousarray(b.T) if transposed else b, out=out)
    wrong, lines = 0, min(M, max(1, CHUNK // N))
    depth = max(1, CHUNK // max(lines, N))
    first: list[int] = []
    for row in range(0, M, lines):
        expected = cupy.zeros((min(lines, M - row), N), np.float64)
        for k in range(0, K, depth):
            left, right = a[row : row + lines, k : k + depth], b[k : k + depth]
            expected += left.astype(np.float64) @ right.astype(np.float64)
        bad = ~(out[row : row + lines] == expected)
        if count := int(bad.sum()):
            first = first or [row + int(bad.reshape(-1).argmax()) // N, int(bad.reshape(-1).argmax()) % N]
            wrong += count
    fail_on([mismatch(wrong, 0, 0, out.shape) + f" (at {first})"] if wrong else [], found, edge,
            dict(zip(found.dims, (M, N, K), strict=True)), type)  # fmt: skip


# --- the gate itself: wrong kernels do not pass it, and it says what is wrong --------------------------------------


def element_swapped(a: Array, out: Array) -> None:
    out[...] = a.T
    out[4, 31], out[5, 2] = a.T[5, 2], a.T[4, 31]


def element_not_written(a: Array, out: Array) -> None:
    out[:5] = a.T[:5]
    out[5, 1:] = a.T[5, 1:]
    out[6:] = a.T[6:]


def tail_not_written(a: Array, out: Array) -> None:
    out[:64] = a.T[:64]


def nothing_written(a: Array, out: Array) -> None:
    pass


def written_past_the_end(a: Array, out: Array) -> None:
    out[...] = a.T
    ctypes.memset(out.ctypes.data + out.nbytes, 0, 1)


def written_before_the_start(a: Array, out: Array) -> None:
    out[...] = a.T
    ctypes.memset(out.ctypes.data - 2, 0, 2)


def written_past_an_input(a: Array, out: Array) -> None:
    out[...] = a.T
    ctypes.memset(a.ctypes.data + a.nbytes, 0, 1)


def input_changed(a: Array, out: Array) -> None:
    out[...] = a.T
    bytes_of(a)[a.size - 1] ^= 1


def not_a_number(a: Array, out: Array) -> None:
    out[...] = a.T
    bytes_of(out)[65] = 0xFF


def not_transposed(a: Array, out: Array) -> None:
    out[...] = a.reshape(out.shape)


PLANTED = [
    (element_swapped, "2 of 2145 elements wrong, the first at [4, 31]; 0 never written"),
    (element_not_written, "1 of 2145 elements wrong, the first at [5, 0]; 1 never written"),
    (tail_not_written, "33 of 2145 elements wrong, the first at [64, 0]; 33 never written"),
    (nothing_written, "2145 of 2145 elements wrong, the first at [0, 0]; 2145 never written"),
    (written_past_the_end, ": 1 bytes of the guard zone after out written ("),
    (written_before_the_start, ": 2 bytes of the guard zone before out written ("),
    (written_past_an_input, ": 1 bytes of the guard zone after input 0 written ("),
    (input_changed, ": input 0 changed in 1 elements, the first at [32, 64] ("),
    (not_a_number, "1 of 2145 elements wrong, the first at [1, 32]; 0 never written"),
    (not_transposed, "elements wrong, the first at [0, 1]; 0 never written"),
]


def cpu_rung(computes: str) -> Rung:
    """Some CPU rung that computes this: planted kernels stand in for it."""
    rungs = (found for op in gpukernels.ops() for found in op.rungs)
    return next(found for found in rungs if (found.device, found.computes) == ("cpu", computes))


@pytest.mark.parametrize(("planted", "words"), PLANTED, ids=[planted.__name__ for planted, _ in PLANTED])
def test_gate_catches(planted: Callable[..., None], words: str) -> None:
    found = cpu_rung("transpose")
    with pytest.raises(pytest.fail.Exception) as caught:
        check(planted, found, "float32", {"M": 33, "N": 65})
    assert f"{found} at (33, 65) float32: " in str(caught.value)
    assert words in str(caught.value)
    assert f"(GPUKERNELS_SEED={SEED})" in str(caught.value)


@pytest.mark.parametrize("shift", [0, 1])
def test_gate_passes_what_is_right(shift: int) -> None:
    def right(a: Array, out: Array) -> None:
        out[...] = a.T

    check(right, cpu_rung("transpose"), "float32", {"M": 33, "N": 65}, shift=shift)


def test_gate_tells_one_nan_from_another_where_elements_only_move() -> None:
    def other_payload(a: Array, out: Array) -> None:
        out[...] = a.T
        bytes_of(out)[np.isnan(out).reshape(-1), 0] ^= 1

    with pytest.raises(pytest.fail.Exception, match="elements wrong, the first at"):
        check(other_payload, cpu_rung("transpose"), "float32", {"M": 331, "N": 257})  # some 660 NaNs


def test_gate_catches_wrong_sums() -> None:
    """A sum that flushes subnormals, one that loses -0.0 and one that adds NaN as 0; not another payload of a NaN."""
    found = cpu_rung("vector_add")

    def flushing(a: Array, b: Array, out: Array) -> None:
        np.add(a, b, out=out)
        out[np.abs(out) < np.finfo(out.dtype).tiny] = 0

    def unsigned_zero(a: Array, b: Array, out: Array) -> None:
        np.add(a, b, out=out)
        out[out == 0] = 0

    def nan_as_zero(a: Array, b: Array, out: Array) -> None:
        np.add(np.nan_to_num(a, posinf=np.inf, neginf=-np.inf), b, out=out)

    def other_payload(a: Array, b: Array, out: Array) -> None:
        np.add(a, b, out=out)
        bytes_of(out)[np.isnan(out), 0] ^= 1

    for planted in (flushing, unsigned_zero, nan_as_zero):
        with pytest.raises(pytest.fail.Exception, match="elements wrong, the first at"):
            check(planted, found, "float32", {"N": 1009})
    check(other_payload, found, "float32", {"N": 1009})


def transposed_index(a: Array, b: Array, out: Array) -> None:
    out[...] = product(a, b.T if b.shape[0] == b.shape[1] else b[::-1])


def tail_of_k_dropped(a: Array, b: Array, out: Array) -> None:
    whole = a.shape[1] // 32 * 32
    out[...] = product(a[:, :whole], b[:whole])


def barrier_lost(a: Array, b: Array, out: Array) -> None:
    """The second half of a block's rows still sees the tile of the step before."""
    seen = b.copy()
    seen[32:64] = b[:32]
    out[...] = product(a, b)
    out[16:32] = product(a[16:32], seen)


def tf32(a: Array, b: Array, out: Array) -> None:
    cut = [(operand.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for operand in (a, b)]
    out[...] = product(*cut)


def summed_in_float16(a: Array, b: Array, out: Array) -> None:
    total = np.zeros(out.shape, np.float16)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[None, k]
    out[...] = total


def tf32_at_depth(a: Array, b: Array, out: Array) -> None:
    """Lost in the bound of a long sum, not in integers."""
    if a.shape[1] > 1000:
        tf32(a, b, out)
    else:
        out[...] = product(a, b)


def nan_left_out(a: Array, b: Array, out: Array) -> None:
    out[...] = product(np.nan_to_num(a, nan=0, posinf=np.inf, neginf=-np.inf), b)


def zeros_left_out(a: Array, b: Array, out: Array) -> None:
    """As where a product by 0 is not made: 0 times infinity is lost."""
    wide = a.astype(np.float64)[:, :, None] * b.astype(np.float64)[None]
    out[...] = np.where((a == 0)[:, :, None], 0, wide).sum(1)


def edge_not_written(a: Array, b: Array, out: Array) -> None:
    out[:, :64] = product(a, b[:, :64])


def test_gate_catches_tf32_at_depth() -> None:
    with pytest.raises(pytest.fail.Exception, match="elements wrong, the first at"):
        check(tf32_at_depth, cpu_rung("matmul"), "float32", {"M": 33, "N": 65, "K": 4001})


@pytest.mark.parametrize(
    ("planted", "type"),
    [
        (transposed_index, "float32"),
        (tail_of_k_dropped, "float32"),
        (barrier_lost, "float32"),
        (tf32, "float32"),
        (summed_in_float16, "float16->float32"),
        (nan_left_out, "float32"),
        (zeros_left_out, "float32"),
        (edge_not_written, "float32"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_gate_catches_a_wrong_product(planted: Callable[..., None], type: str) -> None:
    found = cpu_rung("matmul")
    with pytest.raises(pytest.fail.Exception, match=f"{found} at .*: .* elements wrong, the first at"):
        check(planted, found, type, {"M": 33, "N": 65, "K": 65})


def test_gate_passes_every_right_way_to_sum() -> None:
    """Rounded to float32 after each product, forwards and backwards, or at the end; -0.0 for 0.0."""

    def one_by_one(a: Array, b: Array, out: Array, back: int = 1) -> None:
        out[...] = 0
        for k in range(a.shape[1])[::back]:
            out += a[:, k, None] * b[None, k]

    def at_the_end(a: Array, b: Array, out: Array) -> None:
        out[...] = product(a, b)
        out[out == 0] = -0.0

    for kernel in (one_by_one, lambda a, b, out: one_by_one(a, b, out, -1), at_the_end):
        check(kernel, cpu_rung("matmul"), "float32", {"M": 33, "N": 65, "K": 65})


def summed_in_bits(bits: int, a: Array, b: Array, out: Array, fewest: int = 0) -> None:
    """As Hopper's tensor cores sum products of float8: 32 of them and what was before are cut where the largest of them
    has so many bits, added, and cut. If `fewest`, numbers of A with that many bits or more lose one."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if fewest:
        wide_a = cut_to(fewest - 1, wide_a)
    total = np.zeros(out.shape)
    for k in range(0, a.shape[1], 32):
        terms = np.concatenate([total[..., None], wide_a[:, None, k : k + 32] * wide_b.T[None, :, k : k + 32]], axis=2)
        unit = np.ldexp(1.0, np.frexp(abs(terms).max(axis=2, keepdims=True))[1] - bits)
        total = cut_to(bits, (np.trunc(terms / unit) * unit).sum(axis=2))
    out[...] = total


def cut_to(bits: int, numbers: Array) -> Array:
    unit = np.ldexp(1.0, np.frexp(numbers)[1] - bits)
    return np.trunc(numbers / unit) * unit


@pytest.mark.parametrize("type", ["float8_e4m3fn->float32", "float8_e4m3fn->bfloat16"])
@pytest.mark.parametrize("extents", [(33, 65, 65), (5, 7, 1009), (1, 1, 65_551)], ids=str)
def test_gate_passes_sums_of_14_bits_of_float8_alone(type: str, extents: tuple[int, ...]) -> None:
    found, shape = cpu_rung("matmul"), dict(zip("MNK", extents, strict=True))
    exact, near, _ = references(found)
    for right in (exact, near):
        check_against(right, functools.partial(summed_in_bits, 14), found, type, shape, None, 0)
    if extents[0] == 1:  # a result of 8 bits can be right by chance
        return
    for wrong in (functools.partial(summed_in_bits, 6), functools.partial(summed_in_bits, 14, fewest=4)):
        with pytest.raises(pytest.fail.Exception, match="elements wrong"):
            check_against(exact, wrong, found, type, shape, None, 0)


def test_sums_of_float8_that_are_promoted_are_nearer() -> None:
    plain, promoted = (gpukernels.rung("matmul", name) for name in ("wgmma_fp8", "wgmma_fp8_promoted"))
    assert float8_error(plain, 128) == pytest.approx(float8_error(promoted, 128), rel=1e-4)
    assert float8_error(promoted, 8192) < 0.02 < float8_error(plain, 8192)
    # Of positive numbers, whose sums grow, the tensor cores' own sum loses more than the promoted one may.
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1, shape).astype("float8_e4m3fn") for shape in ((3, 8192), (8192, 5)))
    own, parts = np.empty((3, 5)), np.zeros((3, 5), np.float32)
    summed_in_bits(14, a, b, own)
    for k in range(0, 8192, 128):
        part = np.empty((3, 5))
        summed_in_bits(14, a[:, k : k + 128], b[k : k + 128], part)
        parts += part.astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    allowed = float8_error(promoted, 8192) * exact
    assert (abs(parts - exact) <= allowed).all()
    assert (abs(own - exact) > allowed).all()


# What a slip of the keyboard makes of a real kernel: text, what stands there instead, how often it stands there.
SLIPS = {
    "barrier after loading dropped": ("tiled", "__syncthreads();\n\n", "\n"),
    "barrier before the next tile dropped": ("tiled", "        __syncthreads();\n    }\n", "    }\n"),
    "index of A's tile transposed": ("tiled", "As[y][k]", "As[k][y]"),
    "tail of K dropped": ("tiled", "k0 < K;", "k0 + TILE_K <= K;"),
    "tile of B not turned": ("conflict_free", "(Sum)Bs[x][k]", "(Sum)Bs[k][x]"),
    "edge not checked": (
        "thread_tile_2d",
        "if (row < M && column < N)\n                C",
        "if (column < N)\n                C",
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("slip", SLIPS)
def test_gate_catches_a_slip_in_a_kernel(slip: str, tmp_path: Path) -> None:
    source, old, new = SLIPS[slip]
    found = next(rung for rung in gpukernels.op("matmul").rungs if rung.source.stem == source and rung.tile[0] > 16)
    text = found.source.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{slip}: {found.source.name} has {text.count(old)} of it"
    changed = tmp_path / found.source.name
    changed.write_text(text.replace(old, new), encoding="utf-8")
    broken = dataclasses.replace(found, source=changed)
    kernel = _GpuKernel(broken, "float32", None)

    def gate() -> None:
        for extents in ({"M": 333, "N": 257, "K": 190}, {"M": 33, "N": 65, "K": 1009}):
            for _ in range(20):
                check(kernel, broken, "float32", extents)

    with pytest.raises(pytest.fail.Exception, match=r"elements wrong|guard zone"):
        gate()


def test_gate_without_a_reference_says_so() -> None:
    found = dataclasses.replace(cpu_rung("transpose"), computes="nonsense")
    with pytest.raises(AssertionError, match=f"{found}: computes nonsense, for which the gate has no reference"):
        check(nothing_written, found, "float32", {"M": 1, "N": 1})


def test_the_identity_of_a_rung_of_pytorch_covers_how_it_gets_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    monkeypatch.setattr(cupy.cuda, "Device", lambda: SimpleNamespace(id=0))
    source, shared = tmp_path / "torch.py", tmp_path / "torch_stream.py"
    source.write_text("def transpose_torch(a, out): pass\n", encoding="utf-8")
    monkeypatch.setattr(kernel_module, "TORCH_STREAM", shared)
    found = dataclasses.replace(gpukernels.rung("transpose", "torch"), source=source)
    identities = set()
    for text in ("one", "another"):
        shared.write_text(text, encoding="utf-8")
        identities.add(_GpuKernel(found, "float32", None).identity)
    assert len(identities) == 2
