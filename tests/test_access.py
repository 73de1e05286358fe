"""Access counts as a suite, and scripts/profile: the counts beside those of Nsight Compute on an H200."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpukernels
from benchmarks import access, static
from benchmarks.project import PROBLEMS, PROJECT, cuda_source
from kernelwatch.analysis import compiled, counted
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.commands import profile
from kernelwatch.detect.steps import find
from kernelwatch.emulator import Counts, EmulatedKernel, count
from kernelwatch.emulator.build import SHARED
from kernelwatch.emulator.sites import Traced
from kernelwatch.history import records
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.problem import Rung
from kernelwatch.plan.project import import_package
from kernelwatch.run.outcome import Group
from kernelwatch.suites.counted import measure
from kernelwatch.system.errors import UserError
from kernelwatch.system.options import Options
from kernelwatch.timing.launches import ATTRIBUTES
from tests.series import results_of
from tests.test_emulator import loaded

ROOT = Path(__file__).resolve().parent.parent
RECORDS = sorted(ROOT.glob("results/*/access.jsonl"))
CUDA_RUNGS = [f"{problem.name}/{rung}" for problem in PROBLEMS for rung in counted.cuda(problem)]

# --- wavefronts ----------------------------------------------------------------------------------------------------

LANES = range(32)
# Where a warp's lanes read, in units of the access (-1: the lane does not), and the wavefronts that Nsight Compute
# counted on an H200 for accesses of 8 and of 16 bytes.
PATTERNS = {
    "all one": ([0 for _ in LANES], 1, 2),
    "distinct": ([i for i in LANES], 2, 4),
    "halves one each, other banks": ([i // 16 for i in LANES], 1, 2),
    "halves one each, same bank": ([i // 16 * 128 for i in LANES], 2, 2),
    "neighbors alike": ([i // 2 for i in LANES], 1, 2),
    "next but one alike": ([i // 4 * 2 + i % 2 for i in LANES], 1, 2),
    "next but three alike": ([i // 8 * 4 + i % 4 for i in LANES], 2, 4),
    "halves alike": ([i % 16 for i in LANES], 2, 4),
    "quarters alike": ([i % 8 for i in LANES], 2, 4),
    "eighths alike": ([i % 4 for i in LANES], 2, 4),
    "quarters one each": ([i // 8 for i in LANES], 1, 2),
    "even lanes only, by pairs": ([-1 if i % 2 else i // 2 for i in LANES], 1, 2),
    "odd lanes only": ([i if i % 2 else -1 for i in LANES], 2, 4),
    "first half only": ([i if i < 16 else -1 for i in LANES], 1, 2),
    "stride of two": ([2 * i for i in LANES], 4, 8),
    "pairs far apart": ([i // 2 * 32 for i in LANES], 16, 16),
    "four lanes": ([i if i < 4 else -1 for i in LANES], 1, 1),
    "fours alike": ([i // 4 for i in LANES], 1, 2),
    "neighbors alike in the first half": ([i // 2 if i < 16 else i for i in LANES], 2, 3),
}
READS = """
template <typename T>
__global__ void vector_add_elementwise(const T *a, const T *b, T *out, long long N) {
    __shared__ WIDE places[1024];
    const int x = threadIdx.x;
    for (int i = x; i < 1024; i += BLOCK_X)
        places[i] = WIDE();
    __syncthreads();
    const int place = x < 32 ? int(a[x]) : -1;
    if (place >= 0) {
        const WIDE found = places[place];
        out[x] = found.x + found.y;
    }
}
"""


@pytest.mark.parametrize(("wide", "at"), [("double2", 2), ("float2", 1)])
def test_wavefronts_are_those_of_the_hardware(wide: str, at: int, tmp_path: Path) -> None:
    source = tmp_path / "elementwise.cu"
    source.write_text(READS.replace("WIDE", wide), encoding="utf-8")
    found = dataclasses.replace(gpukernels.rung("vector_add", "elementwise"), source=source)
    kernel = loaded(EmulatedKernel, cuda_source(found, "float32"))
    seen = {}
    for name, (places, *_) in PATTERNS.items():
        run = Traced(kernel, {"N": 32})
        run.operands[0].view(np.float32)[...] = places
        told = run.run("count")
        tallies = [raw for raw in told.tallies[: told.tally_count] if raw.region_kind == SHARED and raw.access == 0]
        assert sum(raw.requests for raw in tallies) == 1, name
        seen[name] = sum(raw.cost for raw in tallies)
    assert seen == {name: values[at] for name, values in PATTERNS.items()}


# --- copies to shared memory ---------------------------------------------------------------------------------------

# Lanes copy 16 bytes each: (from, to) in global and in shared memory, in units of a copy; and how many more sectors of
# shared memory they fill than they read, summed over lines of global memory.
COPIES = {
    "sectors to sectors": ([(i, i) for i in LANES], 0),
    "half a sector later": ([(i, i + 1) for i in LANES], 4),
    "from and to the middle of a sector": ([(i + 1, i + 3) for i in LANES], 0),
    "half a sector earlier": ([(i + 1, i) for i in LANES], 3),
    "a sector of its own each": ([(i, 2 * i) for i in LANES], 16),
    "two halves to one sector": ([(1, 0), (2, 1)], 0),
    "fewer from one line, more from another": ([(1, 0), (2, 1), (8, 5), (9, 6)], 1),
}
COPY = """
#include "ampere.cuh"

template <typename T>
__global__ void vector_add_elementwise(const T *a, const T *b, T *out, long long N) {
    __shared__ float4 places[64], others[64];
    const int x = threadIdx.x, from = x < 32 ? int(b[x]) : -1, to = x < 32 ? int(b[32 + x]) : 0;
    if (from >= 0) {
        const T *const source = a + 4 * from;
        T *const place = (T *)(places + to);
        HOW
    }
}
"""
# How a lane may fill its place, and whether cp.async.cg does it.
WAYS = {
    "cp.async.cg": ("copy_async<4>(place, source, true);", True),
    "cp.async.ca": ("copy_async<2>(place, source, true);", False),
    "zeros, and not what is read next": (
        "copy_async<4>(place, source, false); others[x] = *(const float4 *)source;",
        False,
    ),
    "a register": ("*(float4 *)place = *(const float4 *)source;", False),
    "registers, one step behind": (
        "float4 held = float4(); places[to + 1] = held; held = *(const float4 *)source; places[to] = held;",
        False,
    ),
    "a register beside cp.async.cg": (
        "copy_async<4>((T *)(others + to), source, true); places[0] = *(const float4 *)source;",
        True,
    ),
    "a read between the mark and the copy": (
        "emulator::copies_past_l1(place, source); others[x] = *(const float4 *)b;"
        "*(float4 *)place = *(const float4 *)source;",
        True,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_asynchronous_copies_may_fill_more_sectors_than_they_read(way: str, tmp_path: Path) -> None:
    how, asynchronous = WAYS[way]
    source = tmp_path / "elementwise.cu"
    source.write_text(COPY.replace("HOW", how), encoding="utf-8")
    shutil.copy(cuda_source(gpukernels.rung("matmul", "async_stages"), "float32").path.parent / "ampere.cuh", tmp_path)
    found = dataclasses.replace(gpukernels.rung("vector_add", "elementwise"), source=source)
    kernel = loaded(EmulatedKernel, cuda_source(found, "float32"))
    seen = {}
    for name, (copies, _) in COPIES.items():
        run = Traced(kernel, {"N": 256})
        table = run.operands[1].view(np.float32)
        table[:32] = -1
        table[: len(copies)], table[32 : 32 + len(copies)] = zip(*copies, strict=True)
        told = run.run("count")
        seen[name] = sum(raw.split for raw in told.tallies[: told.tally_count])
    assert seen == {name: more if asynchronous else 0 for name, (_, more) in COPIES.items()}


# --- the suite -----------------------------------------------------------------------------------------------------


def test_every_cuda_rung_is_counted_with_every_type() -> None:
    for problem in PROBLEMS:
        planned = {(cell.rung, cell.type) for cell in counted.plan(problem)}
        too_large = {("constant", "float64")} if problem.name == "matmul" else set()  # at the even shape
        known = {(rung.name, type) for rung in problem.rungs if rung.is_cuda for type in rung.types}
        assert planned == known - too_large
        assert {cell.shape for cell in counted.plan(problem)} == set(problem.counted_shapes)


def test_a_binary_without_cuda_source_is_not_counted() -> None:
    problem = next(problem for problem in PROBLEMS if problem.name == "transpose")
    offered = dataclasses.replace(problem, rungs=(*problem.rungs, Rung("other", "gpu", ("float32",), compiled=True)))
    assert "other" in compiled.compiled(offered)
    assert counted.plan(offered) == counted.plan(problem)


def test_what_is_judged_and_which_way() -> None:
    shown = {"track_sectors_over_ideal", "track_wavefronts_over_ideal"}
    series = {name: getattr(access.Transpose, name) for name in dir(access.Transpose) if name.startswith("track_")}
    assert {name for name, one in series.items() if one.judged != "exact"} == shown
    assert all(one.higher_is_better is False for one in series.values())
    compiled = {name: getattr(static.Transpose, name) for name in dir(static.Transpose) if name.startswith("track_")}
    judged = {name: one.higher_is_better for name, one in compiled.items() if one.judged == "exact"}
    assert judged == {"track_spill_bytes": False, "track_occupancy": True}
    assert all(one.higher_is_better is None for name, one in compiled.items() if name not in judged)


@pytest.fixture(scope="module")
def transposes(tmp_path_factory: pytest.TempPathFactory) -> Group:
    only = r"/(tiled|padded|naive_read) float32 256x256|/dynamic uint8 256x256"
    return measure(PROJECT, "transpose", Options(only=only, facts=str(tmp_path_factory.mktemp("facts"))))


def told(group: Group, series: str, rung: str, operands: str = "float32 256x256") -> Any:
    return getattr(access.Transpose(), f"track_{series}")(group, rung, operands)


def test_series(transposes: Group) -> None:
    if next(iter(transposes.outcomes.values())).state == "na":
        pytest.skip(next(iter(transposes.outcomes.values())).reason)
    assert told(transposes, "load_sectors", "naive_read") == 4
    assert told(transposes, "store_sectors", "naive_read") == 32
    assert told(transposes, "sectors_over_ideal", "naive_read") == 4.5
    assert told(transposes, "moved", "naive_read") == 4.5
    assert math.isnan(told(transposes, "shared_load_wavefronts", "naive_read"))
    assert told(transposes, "shared_load_wavefronts", "tiled") == 32
    assert told(transposes, "shared_load_wavefronts", "padded") == 1
    assert told(transposes, "shared_store_wavefronts", "padded") == 1
    assert told(transposes, "wavefronts_over_ideal", "tiled") == 16.5
    assert told(transposes, "requests", "padded") == 4 * 256 * 256 / 32
    assert told(transposes, "requests", "naive_read") == 2 * 256 * 256 / 32
    assert told(transposes, "barriers", "padded") == 1
    assert told(transposes, "barriers", "naive_read") == 0
    assert math.isnan(told(transposes, "load_sectors", "copy"))  # not in the plan
    assert {"emulator", "compiler"} <= transposes.facts.keys()


def package(folder: Path) -> Path:
    """A copy of the package in a folder, which stands for a commit."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / PROJECT.package, folder / PROJECT.package, ignore=ignored)
    return folder / PROJECT.package


def test_what_cannot_be_counted_has_failed_with_its_reason(tmp_path: Path) -> None:
    package(tmp_path)
    source = tmp_path / "gpukernels/transpose/padded.cu"
    source.write_text(source.read_text().replace("row < M", "row <= M"))
    (tmp_path / "gpukernels/transpose/tiled.cu").write_text("no C++")
    copy = tmp_path / "gpukernels/transpose/copy.cu"
    copy.write_text(
        copy.read_text().replace("out[(row + step) * N + column] =", "out[(row + step) * N + column / 2] =")
    )
    dynamic = tmp_path / "gpukernels/transpose/dynamic.cu"
    dynamic.write_text(dynamic.read_text().replace("    __syncthreads();\n", ""))
    only = r"/(tiled|padded|naive_read|dynamic|copy) float32 250x130"
    group = measure(PROJECT, "transpose", Options(tree=str(tmp_path), only=only))
    states = {key.split()[0]: outcome for key, outcome in group.outcomes.items()}
    if states["transpose/naive_read"].state == "na":
        pytest.skip(states["transpose/naive_read"].reason)
    assert states["transpose/naive_read"].state == "ok"
    assert states["transpose/padded"].state == states["transpose/tiled"].state == "failed"
    assert (
        "padded.cu:24: read of 4 bytes past the end of in in block (0, 1, 0) thread"
        in states["transpose/padded"].reason
    )
    # The barrier that is lost makes fewer barriers, and no improvement.
    assert states["transpose/dynamic"].state == states["transpose/copy"].state == "failed"
    assert "that no thread of the block has written" in states["transpose/dynamic"].reason
    assert "race on out" in states["transpose/copy"].reason
    with pytest.raises(RuntimeError, match="does not compile it"):
        told(group, "moved", "tiled", "float32 250x130")


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Give names of a package others, in all its modules."""
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for old, new in names.items():
            text = re.sub(rf"\b{old}\b", new, text)
        path.write_text(text, encoding="utf-8")


def test_a_commit_older_than_the_emulator_is_not_counted(tmp_path: Path) -> None:
    renamed(package(tmp_path), {"macros": "defines"})
    outcomes = measure(PROJECT, "transpose", Options(tree=str(tmp_path), only=r"/padded float32")).outcomes
    assert len(outcomes) == len(PROJECT.op("transpose").counted_shapes)
    for outcome in outcomes.values():
        assert outcome.state == "na"
        assert outcome.reason.startswith("this commit's gpukernels is older than the emulator: ")
        assert "'Rung' object has no attribute 'macros'" in outcome.reason


def test_a_package_may_rename_what_is_its_own(transposes: Group, tmp_path: Path) -> None:
    """The counts need none of the private names of the package."""
    if next(iter(transposes.outcomes.values())).state == "na":
        pytest.skip(next(iter(transposes.outcomes.values())).reason)
    folder = package(tmp_path)
    text = "".join((folder / name).read_text(encoding="utf-8") for name in ("compiler.py", "kernel.py"))
    names = set(re.findall(r"^(?:def|class) (_[A-Za-z]\w*)|^    def (_[a-z]\w*)", text, re.MULTILINE))
    private = {name: f"{name}_of_this_commit" for pair in names for name in pair if name}
    assert {"_source", "_compiled", "_cuda_headers", "_GpuKernel", "_launch"} <= private.keys()
    renamed(folder, private)
    only = "|".join(f"^{re.escape(key)}$" for key in transposes.outcomes)
    outcomes = measure(PROJECT, "transpose", Options(tree=str(tmp_path), only=only)).outcomes
    assert {key: (one.state, one.reason, one.measurements) for key, one in outcomes.items()} == {
        key: (one.state, one.reason, one.measurements) for key, one in transposes.outcomes.items()
    }
    assert {one.state for one in outcomes.values()} == {"ok"}


def test_what_is_counted_comes_with_its_conditions(transposes: Group, tmp_path: Path) -> None:
    """Through the sidecar: if the emulator's version changes, the step is the environment's and not the commit's; the
    version of the timing harness does not matter."""
    if next(iter(transposes.outcomes.values())).state == "na":
        pytest.skip(next(iter(transposes.outcomes.values())).reason)
    changes: list[dict[str, str]] = [{}, {"emulator": "another"}, {"emulator": "another", "harness": "another"}]
    told: list[tuple[float, records.Record]] = []
    cell = access.Transpose().cell("padded", "float32 256x256")
    for at, change in enumerate(changes):
        facts: Any = {**transposes.facts, **change}
        path = tmp_path / f"{at}-env.facts.jsonl"
        lines = dataclasses.replace(transposes, facts=facts).lines()
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        told.append((1.0 + at, records.read(path)))
    points = results_of(told, str(cell), "exact", "memory").points
    assert set(points.spread.tolist()) == {0.0}
    assert [(step.at, step.kind) for step in find(points, exact=True)] == [
        (1, "environment"),
        (2, "step"),
    ]


# --- against Nsight Compute ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiler(kernel_cache: Path) -> profile.Profiler:
    return profile.Profiler(PROJECT, import_package(PROJECT, str(ROOT)))


def counts_of(profiler: profile.Profiler, cell: Cell) -> Counts:
    counts: Counts = loaded(profiler.counts, cell)
    return counts


# The emulator lacks the instructions of one architecture alone.
NOT_PROFILED = {str(rung) for op in gpukernels.ops() for rung in op.rungs if rung.arch_only}


def recorded(path: Path, rung: str) -> dict[str, dict[str, Any]]:
    """The lines of a rung ("op/rung") in a record, by cell. Skips if it has none: a rung may be added without a GPU and
    ncu."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    own = {line["key"]: line for line in lines if line["key"].startswith(f"{rung} ")}
    if not own:
        pytest.skip(f"{rung} is not held against hardware yet: scripts/profile --record does it, with a GPU and ncu")
    return own


@pytest.mark.parametrize("rung", [rung for rung in CUDA_RUNGS if rung not in NOT_PROFILED])
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_counts_are_those_that_were_held_against_hardware(
    path: Path, rung: str, profiler: profile.Profiler
) -> None:
    """The figures of docs/research/access.md are counted alike today, and every difference has its rule."""
    lines = recorded(path, rung)
    cells = {cell.key: cell for problem in PROBLEMS for cell in counted.plan(problem) if cell.name == rung}
    assert lines.keys() == cells.keys()
    for key, cell in cells.items():
        line = lines[key]
        for name, value in profile.compared(counts_of(profiler, cell)).items():
            here, there, why = line["compared"][name]
            if value != here:  # another g++ than the recorded one, which may store a class in other pieces
                rules = {profile.SELECTED} | ({profile.ASYNCHRONOUS} if name == "shared store wavefronts" else set())
                assert profiler.rule(cell, name, value, there, line["arch"]) in rules, (
                    f"{cell.key}: {name}: record it again with scripts/profile --record"
                )
            assert (why == "=") == (here == there)
            assert why in ("=", *profile.RULES), f"{cell.key}: {name}: {here}, by ncu {there}"
        if "cp.async.cg" in profiler.text(cell) and line["compared"]["blocks"][2] == "=":
            here, there, _ = line["compared"]["load sectors"]
            assert there == here + counts_of(profiler, cell).split


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_record_has_rungs_of_the_ladder_only(path: Path) -> None:
    keys = [json.loads(line)["key"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert {key.partition(" ")[0] for key in keys} <= {*CUDA_RUNGS} - NOT_PROFILED
    assert len(set(keys)) == len(keys)


def compared_with(profiler: profile.Profiler, op: str, rung: str, more: dict[str, int]) -> profile.Comparison:
    """The comparison of a rung's first counted cell with hardware that counts as the emulator does, and `more`."""
    cell = next(cell for cell in counted.plan(PROJECT.op(op)) if cell.rung == rung)
    try:
        figures: Any = profiler.figures(op, rung, cell.type, "sm_90")
    except gpukernels.ToolMissing as error:
        pytest.skip(str(error))
    there = profile.compared(counts_of(profiler, cell)) | {name: figures[name] for name in ATTRIBUTES}
    there |= {"dynamic shared bytes": figures["dynamic_shared_bytes"]}
    return profiler.compare(cell, {name: float(value + more.get(name, 0)) for name, value in there.items()}, "sm_90")


def test_a_difference_without_a_rule_is_told(profiler: profile.Profiler) -> None:
    found = compared_with(profiler, "transpose", "padded", {})
    assert profile.explained(found)
    assert {why for *_, why in found.values()} == {"="}
    for more in (-1, 1, 1000):
        found = compared_with(profiler, "transpose", "padded", {"shared load wavefronts": more})
        assert found["shared load wavefronts"][2] == "?"
        assert not profile.explained(found)
    # nvcc may take a store of a vector apart, also in a rung with cp.async.
    assert compared_with(profiler, "matmul", "pipelined", {"store requests": 3})["store requests"][2] == "?"


def test_accesses_that_lanes_make_unequally_often_may_cost_less(profiler: profile.Profiler) -> None:
    """Rows of sector_aligned's output begin at another lane each: which lanes load together is not known."""
    cells = {cell.rung: cell for cell in reversed(list(counted.plan(PROJECT.op("transpose"))))}
    assert counts_of(profiler, cells["padded"]).unpaired == ()
    own = counts_of(profiler, cells["sector_aligned"])
    assert own.unpaired == ("global_store", "shared_load")
    least = own.shared_load.ideal - own.shared_load.cost
    assert least < 0
    for more, why in ((least, profile.GUARDED), (least - 1, "?"), (1, "?")):
        found = compared_with(profiler, "transpose", "sector_aligned", {"shared load wavefronts": more})
        assert found["shared load wavefronts"][2] == why


# Load sectors of matmul/pipelined_32x64, by the emulator and by ncu on an H200. Rows of A's tile lie 144 bytes apart in
# shared memory, so each second one begins in the middle of a sector.
SPLITS = {
    "128x128x128": (12288, 12800),  # each second row of four sectors fills five
    "128x128x136": (13056, 14208),  # it comes from two lines, and fills two sectors more
    "128x128x132": (13312, 13312),  # each second row of A begins in the middle of a sector as well
    "64x64x256": (6144, 6400),
    "256x256x256": (98304, 102400),
    "100x72x60": (3860, 3860),
    # predicted before an H200 counted them
    "64x64x40": (960, 1056),
    "64x68x64": (2240, 2432),
    "64x4x64": (576, 704),
}


@pytest.mark.parametrize("shape", SPLITS)
def test_a_copy_to_shared_memory_counts_the_sectors_that_it_fills_there(shape: str, profiler: profile.Profiler) -> None:
    cell, *_ = counted.plan(PROJECT.op("matmul"), "pipelined_32x64")
    cell = dataclasses.replace(cell, shape=tuple(map(int, shape.split("x"))))
    here, there = SPLITS[shape]
    counts = counts_of(profiler, cell)
    assert (counts.global_load.cost, counts.global_load.cost + counts.split) == (here, there)


def test_only_as_many_sectors_as_the_copies_fill_are_explained(profiler: profile.Profiler) -> None:
    here, there = SPLITS["128x128x128"]
    for more, why in ((there - here, profile.SPLIT), (there - here - 1, "?"), (here - there, "?")):
        found = compared_with(profiler, "matmul", "pipelined_32x64", {"load sectors": more})
        assert found["load sectors"][2] == why


def test_another_grid_explains_the_counts_of_a_launch_that_a_gpu_prepares(profiler: profile.Profiler) -> None:
    sectors = {"load sectors": 1}
    other = sectors | {"blocks": 7}
    for rung, more, why in (
        ("split_tail", other, profile.GRID),
        ("split_tail", sectors, "?"),
        ("tiled_16", other, "?"),
    ):
        found = compared_with(profiler, "matmul", rung, more)
        assert {name: word for name, (*_, word) in found.items() if word != "="} == dict.fromkeys(more, why)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute's ncu is not on the PATH")
def test_every_count_is_explained_on_this_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(PROJECT, "scripts/profile", []) == 0
    assert "against ncu" in capsys.readouterr().out


# --- scripts/profile -----------------------------------------------------------------------------------------------


def test_profile_of_a_rung(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # a pipe gets whole lines
    loaded(count, cuda_source(gpukernels.rung("transpose", "tiled"), "float32"), {"M": 64, "N": 64})
    assert profile.main(PROJECT, "scripts/profile", ["transpose", "tiled", "--shape", "64x64"]) == 0
    out = capsys.readouterr().out
    line = next(row for row in out.splitlines() if "tile[threadIdx.x][threadIdx.y + step]" in row and "shared" in row)
    assert "32, ideal 1" in line
    assert "transpose/tiled float32 64x64, counted on the emulator" in out
    assert all(arch in out for arch in ARCHES) or "against Nsight Compute" in out


def test_profile_of_an_op_leaves_out_what_the_emulator_cannot_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """matmul/wgmma and others are launched by Hopper's own instructions."""
    monkeypatch.setattr(profile, "show_all", lambda _profiler, cells, *_: print(*(cell.rung for cell in cells)))
    monkeypatch.setattr(profile, "has_ncu", lambda: False)
    assert profile.main(PROJECT, "scripts/profile", ["matmul"]) == 0
    *said, rungs = capsys.readouterr().out.splitlines()
    assert "pipelined" in rungs.split()
    assert not {name.removeprefix("matmul/") for name in NOT_PROFILED} & set(rungs.split())
    assert any("not counted: matmul/wgmma is launched by wgmma.py" in line for line in said)
    assert any("not counted: matmul/wgmma_plain has the instructions of sm_90a alone" in line for line in said)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["matmul", "unroled"], "no rung matmul/unroled; the ladder has initial"),
        (["matmul/unroled"], "no rung matmul/unroled; the ladder has initial"),
        (["matmul", "numpy"], "matmul/numpy is numpy.py: only CUDA sources can be counted"),
        (["matmul", "wmma", "--type", "float32"], "matmul/wmma has no type float32; it has float16->float32"),
        (["matmul", "tiled_16", "--shape", "64x64"], "a shape is MxNxK, such as 128x128x128; got 64x64"),
        (["matmul", "tiled_16", "--shape", "64x64x0"], "a shape is MxNxK"),
        (["transpose", "padded", "--record"], "--record: "),
    ],
)
def test_profile_says_what_would_be_right(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        profile.main(PROJECT, "scripts/profile", arguments)


def test_profile_of_an_op_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        profile.main(PROJECT, "scripts/profile", ["matmull"])
    assert ended.value.code == 128
    assert f"no op matmull; there are {', '.join(PROJECT.ops)}" in capsys.readouterr().err
