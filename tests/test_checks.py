"""The shapes at which a rung is checked, and kernels that are wrong only at some of them: none is counted."""

import dataclasses
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import gpukernels
from benchmarks.project import PROJECT
from gpukernels import Rung
from kernelwatch import emulator
from kernelwatch.analysis import counted
from kernelwatch.commands import sanitize
from kernelwatch.identity import HERE
from kernelwatch.plan import checks
from kernelwatch.plan.cells import COUNTED, Cell
from kernelwatch.plan.package import CudaSource, Package
from kernelwatch.system import cache
from kernelwatch.timing import launches
from kernelwatch.timing.check import WrongOutput
from tests import gate
from tests.test_emulator import loaded

# --- shapes --------------------------------------------------------------------------------------------------------

CUDA = [rung for op in gpukernels.ops() for rung in op.rungs if rung.source.suffix == ".cu"]


@pytest.mark.parametrize("rung", CUDA, ids=str)
def test_a_tile_is_what_the_ladder_says(rung: Rung) -> None:
    for edge in rung.edges or (None,):
        steps = gate.steps(rung, edge)
        tile = (edge,) * len(rung.tiled) if edge else rung.tile
        assert steps[: len(tile)] == tile
        loop_step = rung.macros().get("TILE_K", max(32, *rung.block_threads(edge)))
        assert all(step == loop_step for step in steps[len(tile) :])


@pytest.mark.parametrize("steps", [(256,), (32, 32), (8, 8), (128, 128, 32), (4, 128, 128), (16, 16, 32)])
def test_a_ragged_shape_has_two_steps_the_second_not_full(steps: tuple[int, ...]) -> None:
    shape = checks.ragged(steps)
    assert all(step < extent < 2 * step or step == 4 for extent, step in zip(shape, steps, strict=True))
    assert all(extent % step for extent, step in zip(shape, steps, strict=True))
    assert len(set(shape)) == len(shape)


def test_every_pair_of_extents_is_tried() -> None:
    shapes = set(checks.around((4, 128, 32)))
    near = [{extents[at] for extents in shapes} for at in range(3)]
    assert near[1] == {1, 3, 97, 127, 128, 129, 255, 257}
    for first, second in ((0, 1), (0, 2), (1, 2)):
        pairs = {(extents[first], extents[second]) for extents in shapes}
        assert len(pairs) == len(near[first]) * len(near[second])
    assert len(set(checks.around((32, 32)))) == 64
    assert len(set(checks.around((256,)))) == 8


def test_a_long_shape_is_beyond_16_bits_in_each_dimension() -> None:
    for count, shapes in checks.LONG.items():
        assert all(any(shape[at] > 1 << 16 for shape in shapes) for at in range(count))
    assert all(any(math.prod(shape) > 10**6 for shape in checks.LONG[count]) for count in (1, 2))


def test_the_sanitizer_has_ragged_shapes_of_each_rung() -> None:
    package = PROJECT.adapt(gpukernels)
    rows, columns, depth = checks.ragged((128, 128, 32))
    deep = ((rows, columns, depth + 16 * 32), (rows, columns, depth))
    assert launches.shapes_of(package, "matmul", "thread_tile_2d", "float32", 3) == deep
    usual = (checks.ragged((256, 256, 256)), checks.ragged((32, 32, 32)))
    assert launches.shapes_of(package, "matmul", "cublas", "float32", 3) == usual


def test_under_the_sanitizer_a_ring_of_buffers_is_filled_again() -> None:
    """At the first of its shapes, which is within the limits of all rungs."""
    package = PROJECT.adapt(gpukernels)
    problem = PROJECT.op("matmul")
    for rung in (rung for rung in problem.rungs if rung.device == "gpu"):
        first, _ = launches.shapes_of(package, "matmul", rung.name, rung.types[0], 3)
        assert launches.shape_of(package, problem, rung, rung.types[0]) == first, rung.name
    wide = gpukernels.rung("matmul", "wgmma")
    shape = launches.shapes_of(package, "matmul", "wgmma", "float16->float32", 3)[0]
    assert all(extent > tile for extent, tile in zip(shape, wide.tile, strict=False))
    assert shape[2] > wide.macros()["STAGES"] * wide.macros()["TILE_K"]


def test_the_sanitizer_takes_no_large_shape_and_none_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    package, problem = PROJECT.adapt(gpukernels), PROJECT.op("matmul")
    rung = problem.rung("tiled_16")
    first, last = launches.shapes_of(package, "matmul", "tiled_16", "float32", 3)
    assert launches.shape_of(package, problem, rung, "float32") == first
    limited = dataclasses.replace(rung, input_bytes_max=(4 * first[0] * first[2] - 1,))
    assert launches.shape_of(package, problem, limited, "float32") == last
    monkeypatch.setattr(checks, "LONG_BYTES_MOST", 4 * first[0] * first[2])
    assert launches.shape_of(package, problem, rung, "float32") == last


def test_what_a_tool_of_the_sanitizer_cannot_judge_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU: what would be launched is told, and nothing is."""
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(set_allocator=lambda _: None)))
    launched: list[str] = []
    monkeypatch.setattr(launches, "launch_cell", lambda _project, _kernel, cell, **_: launched.append(cell.name))
    package = PROJECT.adapt(gpukernels)
    monkeypatch.setattr(type(package), "variants", lambda *_: [None])
    assert PROJECT.unsanitized
    for (tool, name), reason in PROJECT.unsanitized.items():
        for other in sanitize.TOOLS:
            launched.clear()
            count, unjudged = launches.everything(PROJECT, package, name, other)
            assert count == len(launched)
            assert (unjudged > 0) == (other == tool)
            assert (name in launched) == ((other, name) not in PROJECT.unsanitized)
            assert (f"left out: {name}: {reason}\n" in capsys.readouterr().out) == (other == tool)


# --- what must be right before it is counted -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A kernel that is wrong only at some shapes: text of a rung's source, what stands there instead, and the reason
    why it is not counted."""

    rung: str
    old: str
    new: str
    why: str
    shape: tuple[int, ...]
    type: str = "float32"


WRONG = {
    "second barrier of the loop lost": Wrong(
        "matmul/unrolled", "        __syncthreads();\n    }\n", "    }\n", "race on As: ",
        (100, 72, 60)),
    "second barrier of the loop lost, tensor cores": Wrong(
        "matmul/wmma", "        __syncthreads();\n    }\n", "    }\n", "race on As: ",
        (100, 72, 60), "float16->float32"),
    "wrong from the millionth element on": Wrong(
        "vector_add/elementwise", "a[i] + b[i];", "a[i] + (i < 1000000 ? b[i] : T(0));",
        "vector_add/elementwise at (1000003,) float32: ", (1000,)),
    "wrong at the counted shape only": Wrong(
        "vector_add/elementwise", "a[i] + b[i];", "a[i] + (N == 65536 && i == 7 ? T(9) : b[i]);",
        "vector_add/elementwise at (65536,) float32: 1 of 65536 elements wrong, the first at [7]", (65536,)),
    "one pass less": Wrong(
        "transpose/copy_repeated", "repeat < REPEATS", "repeat < REPEATS - 1",
        "a launch writes its output 63 times, and should 64 times", (250, 130)),
    "guard of A's rows without the block's first": Wrong(
        "matmul/thread_tile_2d", "= row < M && k < K", "= a_row + step < M && k < K", "past the end of A",
        (100, 72, 60)),
    "guard of B's columns without the block's first": Wrong(
        "matmul/thread_tile_2d", "k < K && column < N", "k < K && b_column < N", "past the end of B", (100, 72, 60)),
    "guard of A's rows without the block's first, tensor cores": Wrong(
        "matmul/wmma", "= row < M && k < K", "= warp + step < M && k < K", "past the end of A", (100, 72, 60),
        "float16->float32"),
    "index of 16 bits": Wrong(
        "matmul/conflict_free", "for (long long k0", "for (short k0", "before the start of A", (100, 72, 60)),
    "offset of A in its texture forgotten": Wrong(
        "matmul/texture", "A_first + ", "", "before the start of A", (100, 72, 60)),
    "offset of B in its texture forgotten": Wrong(
        "matmul/texture", "B_first + ", "", "before the start of B", (100, 72, 60)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Changed:
    """The checkout's package with another source for every rung."""

    package: Any
    path: Path

    def cuda_source(self, op: str, rung: str, type: str) -> CudaSource:
        source: CudaSource = self.package.cuda_source(op, rung, type)
        return dataclasses.replace(source, path=self.path)

    def repeats(self, op: str, rung: str) -> int:
        return int(self.package.repeats(op, rung))


@pytest.mark.parametrize("slip", WRONG)
def test_what_is_wrong_anywhere_is_not_counted(slip: str, tmp_path: Path) -> None:
    """Not even where it is right at the counted shape. Fewer barriers or bytes would be an improvement."""
    wrong = WRONG[slip]
    op, rung = wrong.rung.split("/")
    source = gpukernels.rung(op, rung).source
    text = source.read_text(encoding="utf-8")
    assert text.count(wrong.old) == 1
    copy = tmp_path / source.name
    copy.write_text(text.replace(wrong.old, wrong.new), encoding="utf-8")
    package = Changed(PROJECT.adapt(gpukernels), copy)
    cell = Cell(op, rung, wrong.type, wrong.shape, COUNTED, counted.DEVICE)
    loaded(emulator.load, package.cuda_source(op, rung, wrong.type))
    with pytest.raises((emulator.Faulty, WrongOutput), match=re.escape(wrong.why)):
        counted.Counter(PROJECT, cast(Package, package)).measure(cell)


@pytest.mark.parametrize("rung", [str(rung) for rung in CUDA if rung.repeats > 1])
def test_a_rung_that_repeats_its_work_does(rung: str) -> None:
    op, name = rung.split("/")
    cell = Cell(op, name, "uint8", (250, 130), COUNTED, counted.DEVICE)
    counter = counted.Counter(PROJECT, PROJECT.adapt(gpukernels))
    once = dataclasses.replace(cell, rung={"copy_repeated": "copy", "naive_repeated": "naive_read"}[name])
    stores = [loaded(counter.measure, where)["global_store"] for where in (once, cell)]
    assert stores[1]["requests"] == gpukernels.rung(op, name).repeats * stores[0]["requests"]


def test_what_was_right_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("transpose", "dynamic", "uint8", (250, 130), COUNTED, counted.DEVICE)
    counter = counted.Counter(PROJECT, PROJECT.adapt(gpukernels))
    first = loaded(counter.measure, cell)

    def run(*arguments: object, **options: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(emulator.Emulated, "__call__", run)
    assert counter.measure(cell) == first
    monkeypatch.setattr(checks, "ragged", lambda steps: (77, 99))
    with pytest.raises(AssertionError, match="checked again"):
        counter.measure(cell)


class Launched:
    """The package with other launch parameters of its sources, or with another number of repeats."""

    def __init__(self, package: Package, repeats: int = 1, **changes: Any) -> None:
        self.package, self.changes, self.times = package, changes, repeats

    def cuda_source(self, op: str, rung: str, type: str) -> CudaSource:
        return dataclasses.replace(self.package.cuda_source(op, rung, type), **self.changes)

    def repeats(self, op: str, rung: str) -> int:
        return self.times


def test_what_was_counted_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless something differs that may move a count; what code of the package launches is always counted."""
    package = PROJECT.adapt(gpukernels)
    cell = Cell("transpose", "padded", "uint8", (250, 130), COUNTED, counted.DEVICE)
    texture = Cell("matmul", "texture", "float32", (64, 64, 64), COUNTED, counted.DEVICE)
    first = loaded(counted.Counter(PROJECT, package).measure, cell)
    assert package.cuda_source("matmul", "texture", "float32").arguments
    loaded(counted.Counter(PROJECT, package).measure, texture)

    def count(*arguments: object) -> None:
        raise AssertionError("counted again")

    monkeypatch.setattr(emulator, "count_on", count)
    assert counted.Counter(PROJECT, package).measure(cell) == first
    monkeypatch.setattr(counted.Counter, "_check", lambda *_: None)
    others: list[tuple[Any, Cell]] = [
        (Launched(package, grid=lambda extents: (9, 9, 1)), cell),
        (Launched(package, block=(8, 8)), cell),
        (Launched(package, dynamic_shared_bytes=512), cell),
        (Launched(package, output="M N"), cell),
        (Launched(package, repeats=2), cell),
        (package, dataclasses.replace(cell, shape=(250, 131))),
        (package, texture),
    ]
    for other, where in others:
        with pytest.raises(AssertionError, match="counted again"):
            counted.Counter(PROJECT, other).measure(where)
    monkeypatch.setattr(counted, "_counting", lambda: "another counter")
    with pytest.raises(AssertionError, match="counted again"):
        counted.Counter(PROJECT, package).measure(cell)


@pytest.mark.parametrize("file", ["analysis/counted.py", "emulator/counts.py", "emulator/runtime.cpp"])
def test_another_counter_uses_nothing_that_was_kept(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = counted._counting.__wrapped__()
    assert counted._counting.__wrapped__() == before
    shutil.copytree(HERE, tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(counted, "HERE", tmp_path / "engine")
    assert counted._counting.__wrapped__() == before
    with (tmp_path / "engine" / file).open("a") as changed:
        changed.write("\n")
    assert counted._counting.__wrapped__() != before


def test_a_long_shape_may_be_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an op whose output grows with the square of an extent: it is left out."""
    cell = Cell("vector_add", "elementwise", "float32", (1000,), COUNTED, counted.DEVICE)
    counter = counted.Counter(PROJECT, PROJECT.adapt(gpukernels))
    kernel = loaded(emulator.load, counter.package.cuda_source(cell.op, cell.rung, cell.type))
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(cache, "built", lambda key, suffix, build: build(tmp_path / key))
    monkeypatch.setattr(counter, "_run", lambda cell, launch: seen.append(cell.shape))
    for most, shapes in ((1 << 20, [(321,)]), (64 << 20, [(321,), (1_000_003,)])):
        monkeypatch.setattr(checks, "LONG_BYTES_MOST", most)
        seen.clear()
        counter._check(cell, kernel)
        assert seen == shapes
