"""matmul/between_grids: the plan, the order of its steps, and the product of matrices larger than its memory."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy the type bfloat16)
import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from gpukernels import KernelError, LadderError, ToolMissing
from tests.repositories import module_of

SOURCE = Path(gpukernels.__file__).parent / "matmul" / "between_grids.py"
MIB = 1 << 20
TYPES = [("float32", "float32"), ("float64", "float64"), ("float16", "float32"), ("bfloat16", "float32")]
module = module_of(SOURCE)


def least(*sizes: Any, scratch: bool) -> int:
    """The least limit_bytes, in the planner's own words."""
    with pytest.raises(KernelError, match="too small") as error:
        module.plan(*sizes, 0, scratch)
    found = re.search(r"need (\d+) bytes", str(error.value))
    assert found
    return int(found[1])


def random_cases() -> list[tuple[int, int, int, int, int, bool]]:
    source = random.Random(1)
    extents = [1, 2, 127, 128, 129, 1000, 4096, 5000, 32768, 100_003, 3_000_017]
    cases = []
    for _ in range(60):
        M, N, K = source.choices(extents, k=3)
        in_itemsize, out_itemsize = source.choice([(4, 4), (8, 8), (2, 4)])
        cases.append((M, N, K, in_itemsize, out_itemsize, source.random() < 0.5))
    return cases


# --- the plan ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", random_cases(), ids=str)
def test_a_plan_keeps_its_limit(case: tuple[int, int, int, int, int, bool]) -> None:
    *sizes, scratch = case
    M, N, K, in_itemsize, out_itemsize = sizes
    smallest = least(*sizes, scratch=scratch)
    for limit in (smallest, smallest + 1, smallest * 3 // 2, smallest + 64 * MIB, 1 << 30, 1 << 37):
        if limit < smallest:
            continue
        plan = module.plan(*sizes, limit, scratch)
        assert plan.device_bytes <= limit
        tiles = (plan.tile_m, plan.tile_n, plan.tile_k)
        for tile, extent, parts in zip(tiles, (M, N, K), plan.grid, strict=True):
            assert (parts - 1) * tile < extent <= parts * tile
            assert tile <= extent
            assert tile == extent or tile % module.STEP == 0
        # What is allocated holds what is used: panels and tiles, and the scratch of a band or cuBLAS' workspace.
        one = plan.tiles * plan.grid[2] == 1
        assert plan.slots >= (1 if one else 2)
        used = plan.slots * (plan.tile_m + plan.tile_n) * plan.tile_k * in_itemsize
        used += min(plan.tiles, 2) * plan.tile_m * plan.tile_n * out_itemsize
        used += plan.band * plan.tile_n * out_itemsize if scratch else 32 * MIB
        assert plan.device_bytes >= used
        # A row of a tile fits in a pinned chunk.
        assert plan.tile_k * in_itemsize <= module.CHUNK_BYTES
        assert plan.tile_n * max(in_itemsize, out_itemsize) <= module.CHUNK_BYTES
        assert 0 < plan.band <= plan.tile_m


@pytest.mark.parametrize("case", random_cases(), ids=str)
def test_the_least_is_the_least(case: tuple[int, int, int, int, int, bool]) -> None:
    *sizes, scratch = case
    smallest = least(*sizes, scratch=scratch)
    assert module.plan(*sizes, smallest, scratch).device_bytes <= smallest
    with pytest.raises(KernelError, match=f"limit_bytes = {smallest - 1} is too small .* need {smallest} bytes"):
        module.plan(*sizes, smallest - 1, scratch)


@pytest.mark.parametrize("scratch", [False, True])
def test_three_times_the_memory_is_bound_by_the_product(scratch: bool) -> None:
    edge, limit = 32768, 4_300_000_000
    plan = module.plan(edge, edge, edge, 4, 4, limit, scratch)
    assert min(plan.tile_m, plan.tile_n) >= 8192
    assert plan.tile_k >= 1024
    loads = sum(step.a.load * edge * edge // plan.grid[0] // plan.grid[2] for step in module.steps(plan))
    loads += sum(step.b.load * edge * edge // plan.grid[1] // plan.grid[2] for step in module.steps(plan))
    # Upload at 50 GB/s against the product at 50 TFLOP/s.
    assert loads * 4 / 50e9 < 0.3 * 2 * edge**3 / 50e12


def test_what_fits_is_one_tile() -> None:
    plan = module.plan(5000, 6000, 7000, 4, 4, 1 << 30, False)
    assert plan.tiles == 1
    assert plan.buffers["c"][0] == 1


# --- the steps -----------------------------------------------------------------------------------------------------


def made(rows: int, columns: int, depth: int, slots: int) -> Any:
    """A plan of so many tiles and panels, the last of each ragged."""
    sizes = 128 * rows - 5, 128 * columns - 7, 128 * depth - 9
    return module.Plan(*sizes, 4, 4, False, 128, 128, 128, slots=slots)


GRIDS = [*itertools.product((1, 2, 3), (1, 2, 4), (1, 2, 5), (2, 3, 5)), (1, 1, 1, 1)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_product_is_made_once(grid: tuple[int, int, int, int]) -> None:
    plan = made(*grid)
    assert plan.grid == grid[:3]
    count = np.zeros((plan.M, plan.N), np.int64)
    seen: dict[int, list[Any]] = {}
    for step in module.steps(plan):
        seen.setdefault(step.tile, []).append(step)
        count[step.rows, step.columns] += step.depth.stop - step.depth.start
    assert (count == plan.K).all()
    assert list(seen) == list(range(plan.tiles))
    for tile in seen.values():
        assert len({(step.rows.start, step.columns.start) for step in tile}) == 1
        assert len({step.depth.start for step in tile}) == len(tile) == plan.grid[2]
        assert [step.first for step in tile] == [True] + [False] * (len(tile) - 1)
        assert [step.last for step in tile] == [False] * (len(tile) - 1) + [True]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_panel_is_where_a_step_expects_it(grid: tuple[int, int, int, int]) -> None:
    plan = made(*grid)
    held: dict[tuple[str, int], tuple[int, int]] = {}
    before = None
    for step in module.steps(plan):
        panels = {"a": (step.rows.start, step.depth.start), "b": (step.depth.start, step.columns.start)}
        for name, place in (("a", step.a), ("b", step.b)):
            assert 0 <= place.slot < plan.slots
            assert place.load == (panels[name] not in [at for (which, _), at in held.items() if which == name])
            if place.load:
                held[name, place.slot] = panels[name]
            assert held[name, place.slot] == panels[name]
        if before and step.first:  # serpentine: one of the two panels is still there
            assert not (step.a.load and step.b.load)
        before = step


def test_all_panels_of_a_row_stay_where_they_fit() -> None:
    plan = made(3, 4, 5, 5)
    assert sum(step.a.load for step in module.steps(plan)) == 3 * 5  # A is read once


# --- operands ------------------------------------------------------------------------------------------------------


def operands(M: int, N: int, K: int, types: tuple[str, str] = ("float32", "float32")) -> tuple[Any, Any, Any]:
    """Integer values, whose product is exact in every order of summation; an out of NaN."""
    source = np.random.default_rng(M + N + K)
    a, b = (source.integers(-4, 5, shape).astype(types[0]) for shape in ((M, K), (K, N)))
    return a, b, np.full((M, N), np.nan, types[1])


def wrong(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> int:
    return int(np.count_nonzero(out != a.astype("float64") @ b.astype("float64")))  # sums below 2**24: exact


A, B, OUT = operands(4, 6, 5)
FLAT = np.zeros(100, np.float32)


@pytest.mark.parametrize(
    ("a", "b", "out", "says"),
    [
        (A.tolist(), B, OUT, "a must be a numpy.ndarray, got builtins.list"),
        (A, B[0], OUT, "b must be C-contiguous in 2 dimensions, got shape"),
        (np.asfortranarray(A), B, OUT, "a must be C-contiguous"),
        (A, B, OUT[:, ::2], "out must be C-contiguous"),
        (A, B[:3], OUT, r"M x K and K x N, out"),
        (A, B, OUT[:3], r"out \(3, 6\) M x N"),
        (A.astype("float64"), B, OUT, "no product float64 float32->float32; it has float32, float64, float16->float32"),
        (A.astype("float16"), B.astype("float16"), OUT.astype("float16"), "no product float16"),
        (A.astype(">f4"), B.astype(">f4"), OUT.astype(">f4"), "no product"),
        (FLAT[:20].reshape(4, 5), B, FLAT[19:43].reshape(4, 6), "out overlaps an input"),
    ],
)
def test_an_operand_that_does_not_fit(a: Any, b: Any, out: Any, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        module.matmul_between_grids(a, b, out)


def test_a_read_only_out() -> None:
    out = OUT.copy()
    out.flags.writeable = False
    with pytest.raises(KernelError, match="out is read-only"):
        module.matmul_between_grids(A, B, out)


def test_inner_must_be_a_rung_of_the_gpu() -> None:
    with pytest.raises(LadderError, match="no_such_rung"):
        module.matmul_between_grids(A, B, OUT.copy(), inner="no_such_rung")
    for inner in ("numpy", "between_grids"):
        with pytest.raises(KernelError, match=f"inner = '{inner}' must be a rung on arrays of the GPU"):
            module.matmul_between_grids(A, B, OUT.copy(), inner=inner)


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
def test_nothing_to_do(shape: tuple[int, int, int]) -> None:
    a, b, out = operands(*shape)
    module.matmul_between_grids(a, b, out)
    assert not out.any()  # NaN would be true


@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"])
def test_an_environment_that_changes_the_arithmetic_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpukernels.kernel import python_function

    rung = gpukernels.rung("matmul", "cublas")
    handle = python_function(rung, rung.source).__globals__["_handle"].__wrapped__
    monkeypatch.setenv(name, "1")
    with pytest.raises(KernelError, match=f"matmul/cublas: {name}=1 makes cuBLAS compute in another type"):
        handle(0)


def test_without_a_gpu(no_gpu: str) -> None:
    with pytest.raises(ToolMissing, match="needs"):
        module.matmul_between_grids(A, B, OUT.copy())


@pytest.mark.parametrize(
    ("figures", "share"),
    [((10.0, 1, 2.0, 9.0, 1, 2.0), 0.75), ((13.0, 1, 2.0, 9.0, 1, 2.0), 0.0), ((9.0, 1, 2.0, 9.0, 1, 2.0), 1.0)],
)
def test_hidden_share(figures: tuple[float, int, float, float, int, float], share: float) -> None:
    assert module.Figures(*figures).hidden_share == share


# --- with a GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and bands so small that small matrices have several of each."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 15)
    monkeypatch.setattr(module, "BAND_ELEMENTS", 1 << 13)


def limit_of(a: Any, b: Any, out: Any, inner: str) -> int:
    return least(len(a), b.shape[1], len(b), a.itemsize, out.itemsize, scratch=inner != "cublas")


def inner_or_skip(inner: str, types: tuple[str, str]) -> None:
    name = types[0] if types[0] == types[1] else "->".join(types)
    if name not in gpukernels.rung("matmul", inner).types:
        pytest.skip(f"matmul/{inner} is not of {name}")


@pytest.mark.gpu
@pytest.mark.parametrize("types", TYPES, ids="->".join)
@pytest.mark.parametrize("inner", ["cublas", "tiled_32", "wmma"])
@pytest.mark.parametrize("shape", [(300, 301, 302), (257, 640, 129), (1, 1000, 513), (384, 384, 384)], ids=str)
def test_right_in_the_least_memory(
    pieces: None, inner: str, types: tuple[str, str], shape: tuple[int, int, int]
) -> None:
    inner_or_skip(inner, types)
    a, b, out = operands(*shape, types=types)
    limit = limit_of(a, b, out, inner)
    reports: list[Any] = []
    done: list[tuple[int, int]] = []
    module.matmul_between_grids(
        *(a, b, out), limit_bytes=limit, inner=inner, report=reports.append, progress=lambda *at: done.append(at)
    )
    assert wrong(a, b, out) == 0
    plan = module.plan(*shape, a.itemsize, out.itemsize, limit, inner != "cublas")
    assert plan.tiles * plan.grid[2] > 4
    assert done == [(at + 1, plan.tiles) for at in range(plan.tiles)]
    (figures,) = reports
    assert figures.download_bytes == out.nbytes
    assert figures.upload_bytes >= a.nbytes + b.nbytes
    busy = (figures.upload_seconds, figures.compute_seconds, figures.download_seconds)
    assert all(0 < seconds <= figures.seconds for seconds in busy)


@pytest.mark.gpu
@pytest.mark.parametrize("types", TYPES, ids="->".join)
@pytest.mark.parametrize("limit", [None, 40 * MIB, 64 * MIB])
def test_right_with_more_memory(types: tuple[str, str], limit: int | None) -> None:
    a, b, out = operands(1500, 1700, 2300, types)
    module.matmul_between_grids(a, b, out, limit_bytes=limit)
    assert wrong(a, b, out) == 0


@pytest.mark.gpu
def test_files(tmp_path: Path) -> None:
    a, b, out = operands(700, 600, 500)
    mapped = {}
    for name, array in (("a", a), ("b", b), ("out", out)):
        mapped[name] = np.memmap(tmp_path / name, array.dtype, "w+", shape=array.shape)
        mapped[name][:] = array
    module.matmul_between_grids(
        mapped["a"], mapped["b"], mapped["out"], limit_bytes=limit_of(a, b, out, "cublas") + MIB
    )
    mapped["out"].flush()
    assert wrong(a, b, np.fromfile(tmp_path / "out", out.dtype).reshape(out.shape)) == 0


@pytest.mark.gpu
def test_limits() -> None:
    a, b, out = operands(300, 300, 300)
    with pytest.raises(KernelError, match=r"limit_bytes = 1000 is too small .* need \d+ bytes"):
        module.matmul_between_grids(a, b, out, limit_bytes=1000)
    with pytest.raises(KernelError, match=r"limit_bytes = \d+ must be at most what is free, \d+ bytes"):
        module.matmul_between_grids(a, b, out, limit_bytes=1 << 50)
    assert np.isnan(out).all()


@pytest.mark.gpu
def test_an_inner_rung_without_the_type() -> None:
    a, b, out = operands(10, 10, 10, ("float64", "float64"))
    with pytest.raises(LadderError, match="has no type float64"):
        module.matmul_between_grids(a, b, out, inner="wmma")


class Held:
    """What of device and pinned memory is held, by counting the calls that take and give it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import cupy

        self.addresses: set[int] = set()
        self.most = 0
        runtime = cupy.cuda.runtime
        for take, give in (("malloc", "free"), ("hostAlloc", "freeHost")):
            monkeypatch.setattr(runtime, take, self._taking(getattr(runtime, take)))
            monkeypatch.setattr(runtime, give, self._giving(getattr(runtime, give)))

    def _taking(self, take: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: int) -> int:
            address = take(*arguments)
            self.addresses.add(address)
            self.most = max(self.most, len(self.addresses))
            return address

        return call

    def _giving(self, give: Callable[[int], None]) -> Callable[[int], None]:
        def call(address: int) -> None:
            give(address)
            self.addresses.remove(address)

        return call


@pytest.mark.gpu
@pytest.mark.parametrize("raised", [RuntimeError("half way"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("inner", ["cublas", "tiled_32"])
def test_nothing_is_left_after_an_exception(
    pieces: None, monkeypatch: pytest.MonkeyPatch, inner: str, raised: BaseException
) -> None:
    import cupy

    a, b, out = operands(700, 800, 900)
    limit = limit_of(a, b, out, inner) + 256 * 1024
    module.matmul_between_grids(a, b, out, limit_bytes=limit, inner=inner)  # makes cuBLAS' handle, loads kernels
    held = Held(monkeypatch)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    free, threads = cupy.cuda.runtime.memGetInfo()[0], threading.active_count()

    def progress(done: int, total: int) -> None:
        if done == total // 2:
            raise raised

    out[:] = np.nan
    with pytest.raises(type(raised)):
        module.matmul_between_grids(a, b, out, limit_bytes=limit, inner=inner, progress=progress)
    assert held.most == 1 + 2 * module.CHUNKS
    assert not held.addresses
    assert threading.active_count() == threads
    pool.free_all_blocks()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the figure is the whole GPU's, other workers' memory too
        assert free - cupy.cuda.runtime.memGetInfo()[0] < 16 * MIB  # the driver's own bookkeeping may move
    assert np.isnan(out).any()
    module.matmul_between_grids(a, b, out, limit_bytes=limit, inner=inner)
    assert wrong(a, b, out) == 0


INTERRUPTED = """
import sys, threading, time
import cupy, numpy as np
from gpukernels.matmul.between_grids import matmul_between_grids as multiply

a = np.ones((4096, 4096), np.float32)
out = np.empty_like(a)
limit = 34 << 20
multiply(a[:512], a, out[:512], limit_bytes=limit)
free = cupy.cuda.runtime.memGetInfo()[0]

def progress(done, total):
    if done == 3:
        print("running", flush=True)
    time.sleep(0.05)

try:
    multiply(a, a, out, limit_bytes=limit, progress=progress)
except KeyboardInterrupt:
    left = free - cupy.cuda.runtime.memGetInfo()[0]
    multiply(a, a, out, limit_bytes=limit)
    print("interrupted", left < 16 << 20, threading.active_count(), bool((out == 4096).all()), flush=True)
"""


@pytest.mark.gpu
def test_ctrl_c() -> None:
    root = str(Path(gpukernels.__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as child:
        assert child.stdout
        try:
            assert child.stdout.readline() == "running\n"
            child.send_signal(signal.SIGINT)
            assert child.stdout.read() == "interrupted True 1 True\n"
            assert child.wait() == 0
        finally:
            child.kill()
