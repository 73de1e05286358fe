"""The emulator: every CUDA rung right on it, planted faults found by name, accesses counted exactly."""

import dataclasses
import functools
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from benchmarks.project import cuda_source
from gpukernels import Rung
from kernelwatch.emulator import CompileError, Counts, Fault, Faulty, Tally, build, check, count, load
from kernelwatch.plan import checks
from kernelwatch.plan.package import NotHere
from kernelwatch.system.errors import ToolMissing
from tests import gate

ROOT = Path(__file__).resolve().parents[1]
LARGEST_TILE = 128 * 128  # elements; beyond them some of the shapes around the tile are emulated, all take minutes
ONE_EACH = ("initial", "coalesced", "conflict_free", "unrolled", "read_only")  # a thread sums an element
SMALLER: dict[str, dict[str, Any]] = {  # a smaller tile for a rung whose indexes are its own, for the long shapes
    **{f"matmul/{name}": {"tile": (8, 8), "block": (8, 8)} for name in ONE_EACH},
    "matmul/thread_tile_1d": {"tile": (16, 16), "block": (16, 8)},
    "matmul/thread_tile_2d": {"tile": (32, 32), "block": (8, 8)},
    "matmul/vector_loads": {"tile": (32, 32), "block": (8, 8)},
    "matmul/double_buffer": {"tile": (32, 32), "block": (8, 8)},
    **{
        f"matmul/{name}": {"tile": (32, 32), "block": (8, 8), "shared": 13056}
        for name in ("async_stages", "serpentine", "pipelined", "raster", "split_tail")
    },
}
CASES: list[Any] = [
    pytest.param(*case.values, id=case.id)
    for case in gate.cases("gpu")
    if case.values[0].source.suffix == ".cu" and not case.values[0].arch_only  # a CPU has no such instructions
]


def loaded(function: Any, *arguments: Any, **options: Any) -> Any:
    """What it returns; skips with the reason if g++ or CUDA's headers are missing."""
    try:
        return function(*arguments, **options)
    except ToolMissing as error:
        pytest.skip(str(error))


def has_smallest_tile(found: Rung) -> bool:
    """Of the rungs with its source: a wide index is wide with any tile, and a large one takes long to emulate."""
    same = [other for other in gpukernels.op(found.op).rungs if other.source == found.source]
    return found.name == min(same, key=lambda other: math.prod(other.tile)).name


@pytest.mark.parametrize(("found", "type", "edge"), CASES)
def test_rung_on_the_cpu(found: Rung, type: str, edge: int | None) -> None:
    """Right, and without a fault, at the shapes of the gate; the long ones with one type and tile of a source."""
    kernel = loaded(load, cuda_source(found, type, edge))
    here = dataclasses.replace(found, device="cpu")  # the gate then leaves the operands on the host
    first, *others = gate.references(found)
    large = math.prod(gate.steps(found, edge)[: len(found.tiled)])
    every = 8 if large > LARGEST_TILE else 1
    for extents in itertools.islice(gate.shapes(found, edge, random_count=1), 0, None, every):
        gate.check_against(first, kernel, here, type, extents, edge, 0)
    if type == found.types[0] and (has_smallest_tile(found) or str(found) in SMALLER):
        smaller = dataclasses.replace(here, **SMALLER.get(str(found), {}))
        lengthy = load(cuda_source(smaller, type, edge))
        for extents in gate.long_shapes(smaller):
            gate.check_against(first, lengthy, smaller, type, extents, edge, 0)
    (ragged,) = gate.taken(found, [checks.ragged(gate.steps(found, edge))])
    gate.check_against(first, functools.partial(kernel, thorough=True), here, type, ragged, edge, 0)
    for right in others:
        gate.check_against(right, kernel, here, type, ragged, edge, 0)


@pytest.mark.parametrize(("found", "type", "edge"), CASES)
def test_operands_that_begin_one_element_after_an_aligned_address(found: Rung, type: str, edge: int | None) -> None:
    """Two whole steps in each dimension, whose rows are as aligned as can be."""
    kernel = loaded(load, cuda_source(found, type, edge))
    here = dataclasses.replace(found, device="cpu")
    for extents in gate.taken(found, [tuple(2 * step for step in gate.steps(found, edge))]):
        gate.check_against(gate.reference(found), functools.partial(kernel, shift=1), here, type, extents, edge, 0)


@pytest.mark.parametrize(
    ("found", "type", "edge"),
    [case for case in CASES if len(case.values[0].tiled) == 2 and case.values[1] == gate.narrowest(case.values[0])],
)
def test_rows_of_blocks_go_on_in_z(found: Rung, type: str, edge: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do beyond 65,535 blocks in y, on a GPU that had two."""
    monkeypatch.setattr(gpukernels.ladder, "GRID_Y_MAX", 2)
    rows, *_ = gate.steps(found, edge)
    extents = dict(zip(found.dims, (4 * rows + 1, 5, 3), strict=False))
    assert found.grid(extents, edge) == (1, 2, 3)
    kernel = loaded(load, cuda_source(found, type, edge))
    here = dataclasses.replace(found, device="cpu")
    gate.check_against(gate.reference(found), kernel, here, type, extents, edge, 0)


@pytest.mark.parametrize("type", ["uint8", "uint16"])  # rows of float32 begin at words
def test_no_word_ends_after_the_last_row_of_an_input(type: str) -> None:
    """All rows that a block of `sector_words` loads are there, its columns are the last, no row begins at a word."""
    found = gpukernels.rung("transpose", "sector_words")
    kernel = loaded(load, cuda_source(found, type))
    here = dataclasses.replace(found, device="cpu")
    rows, columns = found.of(type).tile
    extents = {"M": rows + 32 // np.dtype(type).itemsize, "N": 2 * columns}
    gate.check_against(gate.reference(found), functools.partial(kernel, shift=1), here, type, extents, None, 0)


def inputs(found: Rung, type: str, shape: tuple[int, ...]) -> list[Any]:
    extents = dict(zip(found.dims, shape, strict=True))
    operands = [np.empty(gate.pick(pattern, extents), dtype) for pattern, dtype in gate.patterns(found, type)[:-1]]
    gate.reference(found).fill(np.random.default_rng(7), operands)
    return operands


def test_calls_are_checked_as_on_a_gpu() -> None:
    kernel = loaded(load, cuda_source(gpukernels.rung("transpose", "padded"), "float32"))
    right = r"transpose/padded: input 0 must be C-contiguous float32 of shape \(M N\), got "
    with pytest.raises(ValueError, match=rf"{right}float64 \(3, 5\)"):
        kernel(np.zeros((3, 5)))
    with pytest.raises(ValueError, match=rf"{right}float32 \(15,\)"):
        kernel(np.zeros(15, np.float32))
    with pytest.raises(ValueError, match=rf"{right}float32 \(5, 3\)"):
        kernel(np.zeros((3, 5), np.float32).T)
    with pytest.raises(ValueError, match=r"transpose/padded takes 1 inputs, got 2"):
        kernel(np.zeros((3, 5), np.float32), np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match=r"transpose/padded: out must be float32 \(5, 3\), got float32 \(3, 5\)"):
        kernel(np.zeros((3, 5), np.float32), out=np.zeros((3, 5), np.float32))
    assert kernel(np.zeros((0, 5), np.float32)).shape == (5, 0)


def test_extents_must_agree() -> None:
    product = cuda_source(gpukernels.rung("matmul", "tiled_16"), "float32")
    kernel = loaded(load, product)
    operands = np.zeros((3, 5), np.float32), np.zeros((4, 7), np.float32)
    with pytest.raises(ValueError, match=r"matmul/tiled_16: input 1 has K = 4, another has 5"):
        kernel(*operands)
    with pytest.raises(ValueError, match=r"matmul/tiled_16: input 1 has K = 4, another has 5"):
        check(product, operands)
    assert not kernel(np.zeros((3, 0), np.float32), np.zeros((0, 7), np.float32), out=np.ones((3, 7), np.float32)).any()
    assert check(product, [np.zeros((3, 0), np.float32), np.zeros((0, 7), np.float32)]) == []


# --- planted faults ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Planted:
    """A slip in a rung: text, what stands there instead, and the fault: its kind, words, block and thread."""

    rung: str
    old: str
    new: str
    shape: tuple[int, ...]
    kind: str
    words: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    at: str = ""  # what stands on its line; else the new text's last
    edge: int | None = None
    type: str = "float32"


GUARDED = "if (row < M && column < N)\n"
TILE_READ = "out[column * M + row] = tile[threadIdx.x][threadIdx.y + step];"
PLANTED = {
    "write past the end": Planted(
        "matmul/tiled_32", f"{GUARDED}        C[", "if (column < N)\n        C[", (33, 65, 5),
        "out of bounds", "write of 4 bytes past the end of C", (0, 1, 0), (0, 1, 0)),
    "read past the end": Planted(
        "transpose/padded", f"{GUARDED}            tile[", "if (column < N)\n            tile[", (33, 65),
        "out of bounds", "read of 4 bytes past the end of in", (0, 1, 0), (0, 0, 0)),
    "write before the start": Planted(
        "vector_add/elementwise", " out[i] = a[i] + b[i];\n", " out[i - 1] = a[i] + b[i];\n", (300,),
        "out of bounds", "write of 4 bytes before the start of out", (0, 0, 0), (0, 0, 0)),
    "read far away": Planted(
        "transpose/naive_read", "in[(row", "in[(1 << 20) * (row", (33, 65),
        "out of bounds", "read of 4 bytes past the end of", (0, 0, 0), (0, 0, 0)),
    "read near address 0": Planted(
        "vector_add/elementwise", " out[i] = a[i] + b[i];\n",
        " out[i] = a[i] + (i < 8 ? *reinterpret_cast<const T *>(4 * (N - N + i)) : b[i]);\n", (300,),
        "out of bounds", "read of 4 bytes before the start of", (0, 0, 0), (0, 0, 0)),
    "write to an input": Planted(
        "vector_add/elementwise", " out[i] = a[i] + b[i];\n", " const_cast<T *>(b)[i] = a[i] + b[i];\n", (300,),
        "read-only", "write of 4 bytes of b, which is read-only", (0, 0, 0), (0, 0, 0)),
    "past a row of shared memory": Planted(
        "transpose/padded", "tile[threadIdx.x][threadIdx.y + step]", "tile[threadIdx.x][threadIdx.y + step + 2]",
        (64, 64),
        "index", "read of 4 bytes at index 33 outside an array of 33 in tile", (0, 0, 0), (0, 7, 0)),
    "past dynamic shared memory": Planted(
        "transpose/dynamic", "pitch + threadIdx.y]", "pitch + threadIdx.y + 2]", (8, 8),
        "out of bounds", "read of 4 bytes past the end of dynamic shared memory", (0, 0, 0), (7, 7, 0), edge=8),
    "past a flattened tile": Planted(
        "transpose/tiled", "tile[threadIdx.y + step][threadIdx.x] =",
        "(&tile[0][0])[(threadIdx.y + step) * 33 + threadIdx.x] =",
        (32, 32), "out of bounds", "write of 4 bytes past the end of tile", (0, 0, 0), (1, 7, 0)),
    "past one tile of two": Planted(
        "matmul/tiled_32", "As[y][k]", "As[0][0] * (&As[0][0])[y * TILE_K + k + 1]", (32, 32, 32),
        "out of bounds", "read of 4 bytes past the end of As", (0, 0, 0), (0, 31, 0), "sum += "),
    "past a fragment's tile": Planted(
        "matmul/wmma", "&Bs[k][warp_column", "&Bs[k + 20][warp_column", (33, 65, 40),
        "out of bounds", "read of 16 bytes past the end of Bs", (0, 0, 0), (12, 0, 0), type="float16->float32"),
    "read of what nobody wrote": Planted(
        "transpose/tiled", "            tile[", "            if (threadIdx.x != 3) tile[", (33, 65),
        "unwritten", "read of 4 bytes of tile that no thread of the block has written", (0, 0, 0), (0, 3, 0),
        TILE_READ),
    "barrier before the product lost": Planted(
        "matmul/tiled_32", "        __syncthreads();\n\n", "\n", (33, 65, 40),
        "unwritten", "read of 4 bytes of Bs that no thread of the block has written", (0, 0, 0), (0, 0, 0), "sum += "),
    "barrier before the next tile lost": Planted(
        "matmul/tiled_32", "        __syncthreads();\n    }\n", "    }\n", (33, 65, 40),
        "race", "race on As: write of 4 bytes, no barrier after the read at line 37 by thread (0, 0, 0)",
        (0, 0, 0), (1, 0, 0),
        "As[y][x] ="),
    "two threads, one element": Planted(
        "vector_add/elementwise", " out[i] = a[i] + b[i];\n", " out[i / 2] = a[i] + b[i];\n", (300,),
        "race", "race on out: write of 4 bytes, no barrier after the write at line 15 by thread (0, 0, 0)",
        (0, 0, 0), (1, 0, 0)),
    "two threads, one element of a tile": Planted(
        "transpose/tiled", "tile[threadIdx.y + step][threadIdx.x] =", "tile[step][threadIdx.x] =", (33, 65),
        "race", "race on tile: write of 4 bytes, no barrier after the write at line 25 by thread (0, 0, 0)",
        (0, 0, 0), (0, 1, 0)),
    "barrier between the product and the next tile lost, tensor cores": Planted(
        "matmul/wmma", "        }\n        __syncthreads();\n    }\n", "        }\n    }\n", (33, 65, 70),
        "race", "race on Bs: write of 2 bytes, no barrier after the read at line 75 by thread (1, 0, 0)",
        (0, 0, 0), (0, 1, 0),
        "Bs[warp + step][lane + across] =", type="float16->float32"),
    "barrier in a branch": Planted(
        "transpose/tiled", "__syncthreads();", "if (threadIdx.y < 4) __syncthreads();", (33, 65),
        "divergent barrier", "divergent barrier: thread (0, 4, 0) has finished without it", (0, 0, 0), (0, 0, 0)),
    "two barriers for one": Planted(
        "transpose/tiled", "__syncthreads();", "if (threadIdx.x < 16) __syncthreads(); else\n    __syncthreads();",
        (33, 65),
        "divergent barrier", "divergent barrier: thread (0, 0, 0) waits at line 27", (0, 0, 0), (16, 0, 0)),
    "a vector at an address of an element": Planted(
        "vector_add/vectorized", "uint4 left = ((const uint4 *)a)", "uint4 left = ((const uint4 *)(a + 1))", (4096,),
        "misaligned", "read of 16 bytes of a at an address 4 bytes after a multiple of 16", (0, 0, 0), (0, 0, 0)),
    "lane missing at a warp barrier": Planted(
        "vector_add/elementwise", "if (i < N)",
        "if (threadIdx.x % 32 == 5) __syncthreads(); else __syncwarp();\n    if (i < N)", (300,),
        "divergent warp", "divergent warp barrier: not every lane of the mask reaches it", (0, 0, 0), (0, 0, 0),
        "__syncwarp"),
}  # fmt: skip


def changed(found: Rung, old: str, new: str, folder: Path) -> Rung:
    text = found.source.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{found.source.name} has {text.count(old)} of {old!r}"
    copy = folder / found.source.name
    copy.write_text(text.replace(old, new), encoding="utf-8")
    return dataclasses.replace(found, source=copy)


@pytest.mark.parametrize("slip", PLANTED)
def test_planted_fault_is_found_by_name(slip: str, tmp_path: Path) -> None:
    planted = PLANTED[slip]
    broken = changed(gpukernels.rung(*planted.rung.split("/")), planted.old, planted.new, tmp_path)
    source = cuda_source(broken, planted.type, planted.edge)
    faults: list[Fault] = loaded(check, source, inputs(broken, planted.type, planted.shape))
    lines = broken.source.read_text(encoding="utf-8").splitlines()
    here = planted.at or planted.new.splitlines()[-1]
    line = next(number for number, text in enumerate(lines, 1) if here in text)
    where = f"in block {planted.block} thread {planted.thread}"
    told = "\n".join(map(str, faults))
    assert any(
        (fault.kind, fault.line, fault.block, fault.thread) == (planted.kind, line, planted.block, planted.thread)
        and f"{planted.rung}: {broken.source.name}:{line}: {planted.words}" in str(fault)
        and str(fault).endswith(where)
        for fault in faults
    ), f"{line}: {planted.kind}: {planted.words} {where} is not among:\n{told}"


@pytest.mark.parametrize(
    "slip", [slip for slip, planted in PLANTED.items() if planted.kind in ("out of bounds", "index", "read-only")]
)
def test_a_plain_run_finds_what_leaves_memory(slip: str, tmp_path: Path) -> None:
    """And only that: it is as quick as it can be."""
    planted = PLANTED[slip]
    broken = changed(gpukernels.rung(*planted.rung.split("/")), planted.old, planted.new, tmp_path)
    kernel = loaded(load, cuda_source(broken, planted.type, planted.edge))
    with pytest.raises(Faulty, match=re.escape(planted.words)) as caught:
        kernel(*inputs(broken, planted.type, planted.shape))
    assert caught.value.faults[0].kind == planted.kind


def test_a_thread_may_leave_before_a_barrier(tmp_path: Path) -> None:
    """One that has nothing to load or to store: CUDA counts it out."""
    found = gpukernels.rung("transpose", "dynamic")
    leaving = "    if (row0 + threadIdx.y >= M && row0 + threadIdx.x >= M)\n        return;\n"
    first = "    if (row0 + threadIdx.y < M && column0 + threadIdx.x < N)"
    early = changed(found, first, leaving + first, tmp_path)
    assert loaded(check, cuda_source(early, "float32", 16), inputs(early, "float32", (33, 65))) == []


# --- what no rung uses yet -----------------------------------------------------------------------------------------

WARPS = """
__device__ int lanes_below(unsigned mask) { return __popc(mask & ((1u << threadIdx.x % 32) - 1)); }

template <typename T>
__global__ void vector_add_elementwise(const T *a, const T *b, T *out, long long N) {
    __shared__ T total;
    __shared__ float4 wide[BLOCK_X];
    const int x = threadIdx.x;
    const long long i = (long long)blockIdx.x * BLOCK_X + x;
    if (x == 0)
        total = T(0);
    const T mine = i < N ? a[i] : T(0);
    T sum = mine;
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_down_sync(0xFFFFFFFF, sum, by);
    __syncthreads();
    if (x % 32 == 0)
        atomicAdd(&total, sum);
    wide[x] = make_float4(lanes_below(__ballot_sync(0xFFFFFFFF, mine > 2)), __shfl_xor_sync(0xFFFFFFFF, x, 1), 0, 0);
    __syncwarp();
    const float4 other = wide[x ^ 1];
    __syncthreads();
    if (i < N)
        out[i] = total * 1000000 + T(other.x) * 1000 + T(other.y) + __shfl_sync(__activemask(), x % 32, 3) + b[i];
}
"""


@pytest.mark.parametrize("type", ["float32", "float64"])
def test_warps_vectors_and_atomics(type: str, tmp_path: Path) -> None:
    """Shuffles, ballots, atomics, float4, __syncwarp: against NumPy, and free of races."""
    source = tmp_path / "elementwise.cu"
    source.write_text(WARPS, encoding="utf-8")
    found = dataclasses.replace(gpukernels.rung("vector_add", "elementwise"), source=source)
    a, b = (np.random.default_rng(3).integers(0, 5, 512).astype(type) for _ in range(2))
    big = (a > 2).reshape(-1, 32)
    below: NDArray[np.int64] = (np.cumsum(big, 1) - big).reshape(-1, 2)[:, ::-1].reshape(-1)
    expected = a.reshape(2, 256).sum(1).repeat(256) * 1e6 + below * 1e3 + np.arange(512) % 256 + 3 + b
    np.testing.assert_allclose(loaded(load, cuda_source(found, type))(a, b), expected, rtol=2e-7)
    assert [str(fault) for fault in check(cuda_source(found, type), [a, b])] == []
    racing = changed(found, "    __syncwarp();\n", "", tmp_path)
    assert {fault.kind for fault in check(cuda_source(racing, type), [a, b])} == {"unwritten", "race"}
    source.write_text(WARPS, encoding="utf-8")
    no_atomic = changed(found, "atomicAdd(&total, sum);", "total += sum;", tmp_path)
    told = [str(fault) for fault in check(cuda_source(no_atomic, type), [a, b])]
    line = next(at for at, text in enumerate(source.read_text("utf-8").splitlines(), 1) if "total += sum" in text)
    assert any(
        f"elementwise.cu:{line}: race on total: write of {a.itemsize} bytes, no barrier after the" in fault
        and fault.endswith("in block (0, 0, 0) thread (32, 0, 0)")
        for fault in told
    ), told


def test_inline_ptx_needs_a_host_body(tmp_path: Path) -> None:
    found = gpukernels.rung("vector_add", "elementwise")
    ptx = 'asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));'
    bare = changed(found, "    if (i < N)", f"    unsigned lane = 0;\n    {ptx}\n    if (i < N)", tmp_path)
    loaded(load, cuda_source(found, "float32"))
    with pytest.raises(ToolMissing, match="inline PTX without a host body under #ifdef KERNELWATCH_HOST"):
        load(cuda_source(bare, "float32"))
    wrapped = f"    unsigned lane = 0;\n#ifndef KERNELWATCH_HOST\n    {ptx}\n#endif\n    if (i < N)"
    load(cuda_source(changed(found, "    if (i < N)", wrapped, tmp_path), "float32"))


# --- what cannot be emulated ---------------------------------------------------------------------------------------


def test_a_source_that_does_not_compile_says_where(tmp_path: Path) -> None:
    found = gpukernels.rung("vector_add", "elementwise")
    loaded(load, cuda_source(found, "float32"))
    broken = changed(found, " a[i] + b[i];", " a[i] + c[i];", tmp_path)
    line = next(at for at, text in enumerate(broken.source.read_text("utf-8").splitlines(), 1) if "c[i]" in text)
    words = rf"vector_add/elementwise float32: .* does not compile it: (.|\n)*elementwise\.cu:{line}:"
    with pytest.raises(CompileError, match=words):
        load(cuda_source(broken, "float32"))


def test_only_cuda_sources_are_emulated(tmp_path: Path) -> None:
    found = cuda_source(gpukernels.rung("vector_add", "elementwise"), "float32")
    with pytest.raises(
        ToolMissing, match=r"vector_add/elementwise: the emulator runs CUDA C\+\+ from a \.cu file, got elementwise\.c"
    ):
        load(dataclasses.replace(found, path=tmp_path / "elementwise.c"))


def test_a_launch_of_its_own_needs_a_stand_in(tmp_path: Path) -> None:
    (tmp_path / "tiled.py").touch()
    prepared = dataclasses.replace(gpukernels.rung("matmul", "tiled_16"), source=tmp_path / "tiled.cu")
    with pytest.raises(
        NotHere, match=r"matmul/tiled_16 is launched by tiled\.py, for which the emulator has no stand-in"
    ):
        cuda_source(prepared, "float32")


def test_a_preparation_has_its_stand_in_beside_it_and_an_older_one_in_the_description(tmp_path: Path) -> None:
    found = gpukernels.rung("matmul", "constant")
    assert found.preparation
    beside = found.preparation.read_text(encoding="utf-8")
    source, preparation = tmp_path / "constant.cu", tmp_path / "constant.py"
    source.write_text(found.source.read_text(encoding="utf-8"))
    moved = dataclasses.replace(found, source=source)

    def arguments(text: str) -> list[Any]:
        preparation.write_text(text)
        prepare = cuda_source(moved, "float32").arguments
        assert prepare
        return prepare(None, [], [], [])

    assert arguments("def on_emulator(rung, *_):\n    return [rung.name]\n") == ["constant"]
    older, _, own = beside.partition("\n\ndef on_emulator(")
    assert own
    preparation.write_text(f"raise RuntimeError('an older one is not imported')\n{older}")
    kernel, (a, b) = loaded(load, cuda_source(moved, "float32")), inputs(found, "float32", (40, 33, 17))
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5)
    with pytest.raises(NotHere, match=r"matmul/constant is launched by constant\.py, which cannot be imported here"):
        arguments(f"import no_such_module\n\n\ndef on_emulator({own}")


# --- counts --------------------------------------------------------------------------------------------------------

SQUARE = {"M": 128, "N": 128}


def per_request(tally: Tally) -> tuple[float, float]:
    return tally.per_request, tally.ideal_per_request


@pytest.mark.parametrize(
    ("rung", "type", "edge", "kind", "expected"),
    [
        ("naive_read", "float32", None, "global_load", (4, 4)),
        ("naive_read", "float32", None, "global_store", (32, 4)),
        ("naive_read", "float64", None, "global_load", (8, 8)),
        ("naive_read", "float64", None, "global_store", (32, 8)),
        ("naive_read", "complex128", None, "global_load", (16, 16)),
        ("naive_write", "float32", None, "global_load", (32, 4)),
        ("tiled", "float32", None, "global_store", (4, 4)),
        ("tiled", "float32", None, "shared_load", (32, 1)),
        ("tiled", "float32", None, "shared_store", (1, 1)),
        ("padded", "float32", None, "shared_load", (1, 1)),
        ("padded", "float64", None, "shared_load", (2, 2)),
        ("dynamic", "float32", 32, "shared_load", (1, 1)),
        ("dynamic", "float32", 16, "shared_load", (2, 1)),
    ],
)
def test_transpose_counts(rung: str, type: str, edge: int | None, kind: str, expected: tuple[float, float]) -> None:
    found = gpukernels.rung("transpose", rung)
    counts: Counts = loaded(count, cuda_source(found, type, edge), SQUARE)
    assert per_request(getattr(counts, kind)) == expected
    assert counts.global_load.requests == counts.global_store.requests == 128 * 128 // 32
    assert counts.compulsory_bytes == 2 * 128 * 128 * np.dtype(type).itemsize
    assert counts.moved_bytes == 32 * (counts.global_load.cost + counts.global_store.cost)


def test_a_tile_without_its_padding_shows() -> None:
    unpadded = dataclasses.replace(gpukernels.rung("transpose", "dynamic"), pad=0)
    assert per_request(loaded(count, cuda_source(unpadded, "float32", 16), SQUARE).shared_load) == (8, 1)
    assert per_request(loaded(count, cuda_source(unpadded, "float32", 32), SQUARE).shared_load) == (32, 1)


def test_matmul_counts_by_line() -> None:
    """The turned tile of B: its store and its read cost 32 wavefronts, those of A one."""
    found = gpukernels.rung("matmul", "coalesced")
    counts: Counts = loaded(count, cuda_source(found, "float32"), {"M": 64, "N": 64, "K": 64})
    text = found.source.read_text(encoding="utf-8").splitlines()
    line = {
        part: next(at for at, words in enumerate(text, 1) if part in words) for part in ("As[y][x] =", "Bs[x][y] =")
    }
    assert per_request(counts.by_line[line["As[y][x] ="], "shared_store"]) == (1, 1)
    assert per_request(counts.by_line[line["Bs[x][y] ="], "shared_store"]) == (32, 1)
    assert counts.by_line[line["As[y][x] ="], "global_load"] == Tally(2 * 64 * 64 // 32, 4 * 2 * 64 * 64 // 32, 1024)
    assert counts.shared_load.requests == 2 * 64**3 // 32


def test_a_header_is_precompiled_and_changes_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler takes it in place of the header; where it cannot, it reads the header."""
    found, cube = gpukernels.rung("matmul", "tiled_16"), {"M": 64, "N": 64, "K": 64}
    counts = loaded(count, cuda_source(found, "float16->float32"), cube)
    precompiled, unusable = build._precompiled, tmp_path / "unusable.gch"
    unusable.write_text("gpch, and nothing after it")
    for number, change in enumerate([lambda _, path: ("#error it is read", path), lambda text, _: (text, unusable)]):
        monkeypatch.setattr(build, "_precompiled", lambda *of, change=change: change(*precompiled(*of)))
        copy = tmp_path / found.source.name
        copy.write_text(f"{found.source.read_text('utf-8')}// compiled anew: {number}\n", encoding="utf-8")
        assert count(cuda_source(dataclasses.replace(found, source=copy), "float16->float32"), cube) == counts


def test_counts_are_the_same_in_another_process() -> None:
    told = []
    for _ in range(2):
        program = (
            "import gpukernels; from benchmarks.project import cuda_source; from kernelwatch.emulator import count\n"
            "for op, rung, type in (('matmul', 'thread_tile_2d', 'float16->float32'), ('matmul', 'wmma', "
            "'bfloat16->float32'), ('transpose', 'tiled', 'uint8')):\n"
            "    print(count(cuda_source(gpukernels.rung(op, rung), type), {'M': 70, 'N': 66, 'K': 50}))"
        )
        loaded(load, cuda_source(gpukernels.rung("matmul", "wmma"), "bfloat16->float32"))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
        told.append(done.stdout)
    assert told[0] == told[1]
    assert told[0].count("Counts(") == 3


def test_counting_stops_where_memory_is_left(tmp_path: Path) -> None:
    found = gpukernels.rung("vector_add", "elementwise")
    broken = changed(found, "if (i < N)", "if (i <= N)", tmp_path)
    words = r"elementwise\.cu:15: read of 4 bytes past the end of a in block \(0, 0, 0\) thread \(77, 0, 0\)$"
    with pytest.raises(Faulty, match=words):
        loaded(count, cuda_source(broken, "float32"), {"N": 77})
