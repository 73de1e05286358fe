"""`load(op, "best", type)`: what it chooses from best.toml, and that it is right on a GPU."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpukernels
from benchmarks.project import PROJECT
from gpukernels import LadderError, LimitError, ToolMissing, best, kernel, ladder, rung
from kernelwatch.history.records import read, sidecars
from lab import best as writer
from tests.gate import check

H200 = ("NVIDIA H200", 90)
MATRICES = {"M": 4096, "N": 4096}


def first(op: str, type: str, shape: tuple[int, ...], gpu: tuple[str, int] = H200) -> str:
    extents = dict(zip(ladder.op(op).dims, shape, strict=True))
    return next(best.candidates(op, type, extents, *gpu))


def test_the_table_is_what_the_results_say() -> None:
    assert best.TABLE.read_text(encoding="utf-8") == writer.toml(writer.tables()), "scripts/lab/best writes it anew"


def test_the_winner_is_the_fastest_of_those_that_may_be_taken() -> None:
    """By hand: the record of a shape, its cells in order of their time."""
    table = writer.tables()["NVIDIA H200"]
    paths = [path for path in sidecars(PROJECT.results) if "nvidia-h200" in path.parent.name]
    record = next(record for path in reversed(paths) if "matmul gpu" in (record := read(path)).facts)
    # less accurate, or needs another library
    left_out = ("fp16x3", "tf32", "tf32_64x128", "cublas_tf32", "torch", "triton")
    for shape in ("512x512x512", "4096x4096x4096"):
        places = {
            key: cell.median_s
            for key, cell in record.cells.items()
            if re.fullmatch(rf"matmul/\w+ float32 {shape} cold", key) and cell.seconds
        }
        by_time = [key.split()[0].removeprefix("matmul/") for key in sorted(places, key=lambda key: places[key])]
        by_rung = table["matmul"]["float32 whole"][shape]
        allowed = [name for name in by_time if name not in left_out]
        assert list(by_rung) == allowed[: len(by_rung)]
        least_s = places[f"matmul/{allowed[0]} float32 {shape} cold"]
        for name, relative in by_rung.items():
            assert relative == pytest.approx(places[f"matmul/{name} float32 {shape} cold"] / least_s, abs=6e-4)


@pytest.mark.parametrize("gpu", best.measured())
def test_measured_shapes_get_their_winners(gpu: str) -> None:
    entry = best.measured()[gpu]
    for op in entry["commits"]:
        by_shape = entry[op]["float32 whole"]
        for shape, (winner, *_) in by_shape.items():
            assert first(op, "float32", tuple(map(int, shape.split("x"))), (gpu, 90)) == winner
            assert best.fits(rung(op, winner), "float32", 90)


def test_a_near_shape_and_ragged_rows() -> None:
    assert first("transpose", "float32", (4000, 4000)) == first("transpose", "float32", (4096, 4096)) == "raster"
    assert first("transpose", "float32", (4001, 4000)) == "sector_aligned"
    assert first("matmul", "float32", (5000, 5000, 5000)) == first("matmul", "float32", (4096, 4096, 4096))
    assert first("matmul", "bfloat16->float32", (256, 256, 256)) == first("matmul", "float16->float32", (256, 256, 256))
    assert first("matmul", "float32", (0, 1, 1)) == first("matmul", "float32", (1, 1, 1))


@pytest.mark.parametrize("capability", [75, 80, 89, 100])
def test_elsewhere_it_takes_what_runs_there(capability: int) -> None:
    for op in gpukernels.ops():
        own = [found for found in op.rungs if found.device == "gpu" and found.computes == op.name]
        for type in {type for found in own for type in found.types}:
            extents = dict.fromkeys(op.dims, 4096)
            names = list(best.candidates(op.name, type, extents, "another", capability))
            assert all(best.fits(rung(op.name, name), type, capability) for name in names)
            assert "wgmma" not in names
            assert "bf16x6" not in names
            if not (type == "bfloat16->float32" and capability < 80):
                assert names, (op.name, type, capability)
    wanted = "cublas" if capability < 80 else "pipelined"
    assert first("matmul", "float32", (64, 64, 64), ("another", capability)) == wanted
    assert first("transpose", "float32", (64, 64), ("another", capability)) == "vectorized"


def test_an_op_without_a_first_guess_gets_its_last_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "FALLBACK", {})
    assert first("transpose", "float32", (64, 64), ("another", 80)) == "sector_words"


def test_another_gpu_of_the_architecture_is_taken_for_one_that_was_measured() -> None:
    assert first("matmul", "float32", (4096, 4096, 4096), ("NVIDIA GH200", 90)) == "bf16x6"


def test_what_was_not_measured_on_a_gpu_follows_another_of_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "own": {"capability": 90, "matmul": {"float32 whole": {"1": {"a": 1.0}}}},
        "like": {"capability": 90, "matmul": {"float32 whole": {"1": {"b": 1.0}, "2": {"b": 1.0}}}},
        "older": {"capability": 80, "matmul": {"float32 whole": {"3": {"c": 1.0}}}},
    }
    monkeypatch.setattr(best, "measured", lambda: table)
    assert best.known("matmul", "own", 90) == {"float32 whole": {"1": {"a": 1.0}, "2": {"b": 1.0}}}
    assert best.known("matmul", "another", 80) == table["older"]["matmul"]
    assert best.known("matmul", "another", 100) == best.known("transpose", "own", 90) == {}


def test_rows_of_a_width_that_were_hardly_measured_follow_other_widths_and_then_other_rows() -> None:
    ragged, whole, narrow = {"1": {"a": 1.0}}, {"2": {"b": 1.0}}, {"3": {"c": 1.0}}
    of_op = {"float32 ragged": ragged, "float32 whole": whole, "uint8 whole": narrow}
    assert best.relevant(of_op, "uint8", "ragged") == ragged
    assert best.relevant(of_op, "uint8", "whole") == whole | narrow
    assert best.relevant({"float32 whole": whole}, "float32", "ragged") == whole
    enough = {str(size): {"a": 1.0} for size in range(best.NEIGHBORS)}
    assert best.relevant(of_op | {"uint8 whole": enough}, "uint8", "whole") == enough
    one_less = {str(size): {"a": 1.0} for size in range(best.NEIGHBORS - 1)}
    found = best.relevant(of_op | {"uint8 whole": one_less}, "uint8", "whole")
    assert found == one_less, "at a shape of several widths the type's own figures count"
    other = {"2": {"d": 1.0}}
    found = best.relevant({"uint8 whole": other, "int8 whole": narrow, "float32 whole": whole}, "int8", "whole")
    assert found == narrow | other, "and then those of its width"


def test_a_rung_with_limits_and_one_that_computes_something_else_are_left_out() -> None:
    assert rung("matmul", "fp16x3").limits
    for op, name, type in (
        ("matmul", "fp16x3", "float32"),
        ("matmul", "between_grids", "float32"),
        ("transpose", "copy", "float32"),
        ("transpose", "naive_repeated", "float32"),
        ("matmul", "numpy", "float32"),
    ):
        assert not best.fits(rung(op, name), type, 90), name


def test_operands_that_are_too_large_for_the_winner_go_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(self: best.Best, name: str) -> Any:
        def bind(*inputs: Any, out: Any = None) -> str:
            asked.append(name)
            if len(asked) == 1:
                raise LimitError("too large")
            return name

        return SimpleNamespace(bind=bind)

    kernel = object.__new__(best.Best)
    kernel.op, kernel.type, kernel.rung = "matmul", "float32", rung("matmul", "pipelined")
    monkeypatch.setattr(best.Best, "_gpu", lambda self: H200)
    monkeypatch.setattr(best.Best, "_load", load)
    a, b = np.zeros((4096, 4096), np.float32), np.zeros((4096, 4096), np.float32)
    assert kernel.choice(a, b) == "bf16x6"
    assert kernel.bind(a, b) == "pipelined"  # type: ignore[comparison-overlap]
    assert asked == ["bf16x6", "pipelined"]


def test_the_nearest_shapes_decide_together() -> None:
    """One of three at which a rung is far behind outweighs two at which it is a little ahead."""
    by_shape = {
        "512": {"bold": 1.0, "safe": 1.02},
        "1024": {"bold": 1.0, "safe": 1.02},
        "4096": {"safe": 1.0, "bold": 1.8},
        "8192": {"other": 1.0},
    }
    assert best.ranked({"N": 512}, by_shape) == ["bold", "safe"], "measured itself"
    assert best.ranked({"N": 1400}, by_shape)[0] == "safe"
    assert best.ranked({"N": 520}, by_shape)[0] == "bold", "beside a measured shape the others hardly count"
    assert best.ranked({"N": 9000}, by_shape)[0] == "other"
    assert best.ranked({"N": 2000}, {"1024": {"a": 1.0}, "2048": {"b": 1.0, "a": 1.9}})[0] == "b"
    slightly, well = ({"512": {"a": 1.0, "cublas": ahead}} for ahead in (1.09, 1.11))
    assert best.ranked({"N": 600}, slightly)[0] == "cublas", "of a rung that is a little ahead nothing is known here"
    assert best.ranked({"N": 512}, slightly)[0] == best.ranked({"N": 600}, well)[0] == "a"


def test_a_shape_is_near_to_those_that_are_divided_alike() -> None:
    by_shape = {"1016": {"wide": 1.0, "narrow": 1.5}, "1021": {"narrow": 1.0, "wide": 1.5}}
    assert best.ranked({"N": 1000}, by_shape)[0] == "wide"
    assert best.ranked({"N": 1017}, by_shape)[0] == "narrow", "which is nearer to 1016, and odd"
    assert best.ranked({"N": 1018}, by_shape)[0] == "narrow", "rows of two elements"
    assert best.ranked({"N": 1024}, by_shape)[0] == "wide", "more than 8 count as 8"


def test_types_of_one_width_share_what_was_measured_and_their_own_figures_count() -> None:
    of_op = {
        "float16 whole": {"1": {"a": 1.0}, "2": {"a": 1.0}, "6": {"a": 1.0}, "7": {"a": 1.0}},
        "bfloat16->float32 whole": {"2": {"b": 1.0}, "3": {"b": 1.0}},
        "float32 whole": {"4": {"c": 1.0}},
        "float32 ragged": {"5": {"d": 1.0}},
    }
    assert best.relevant(of_op, "float16", "whole") == of_op["float16 whole"] | {"3": {"b": 1.0}}
    assert best.relevant(of_op, "bfloat16->float32", "whole")["2"] == {"b": 1.0}
    assert best.relevant(of_op, "float16", "ragged") == {"5": {"d": 1.0}}, "rows that were not measured, as others"
    assert best.relevant(of_op, "float64", "whole").keys() == {"1", "2", "3", "4", "6", "7"}
    assert best.relevant({"float16 whole": {"1": {"a": 1.0}}}, "float16", "ragged") == {"1": {"a": 1.0}}


def test_it_learns_from_the_training_of_this_gpu(tmp_path: Path) -> None:
    lines = [
        {"device": "NVIDIA H200", "op": "matmul", "type": "float32", "shape": [65, 66, 67],
         "rungs": {"cublas": 2.0, "bf16x6": 1.0, "pipelined": 3.99, "initial": 4.0, "fp16x3": 0.1, "gone": 0.1}},
        {"device": "NVIDIA H100", "op": "matmul", "type": "float32", "shape": [68, 68, 68], "rungs": {"cublas": 1.0}},
        {"device": "NVIDIA H200", "op": "transpose", "type": "uint8", "shape": [64, 64], "rungs": {"padded": 1.0}},
        {"device": "NVIDIA H200", "op": "matmul", "type": "float32", "shape": [69, 69, 69], "error": "it broke"},
    ]  # fmt: skip
    path = tmp_path / writer.TRAINED
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = writer.trained([path], "NVIDIA H200", PROJECT.op("matmul"), 90)
    assert found == {"float32 ragged": {"65x66x67": {"bf16x6": 1.0}}}, "cublas is SLOW, others may not be taken"


def test_what_is_chosen_without_a_shape_is_held_against_cublas_there() -> None:
    of_op = {
        "float32 whole": {
            "64x64x64": {"cublas": 1.0, "a": 1.2},
            "128x128x128": {"a": 1.0, "cublas": 1.25},
            "8192x64x64": {"b": 1.0},
        }
    }
    # a at the first, where cuBLAS is 1.2 times as fast; cuBLAS at the second; a, which was slow, at the third
    assert writer.left_out(of_op, "float32 whole") == pytest.approx([1.2, 1.0, best.SLOW])
    assert "NVIDIA H200 matmul float32 whole: " in writer.check(writer.tables())


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

    def none() -> None:
        raise cupy.cuda.runtime.CUDARuntimeError(35)

    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", none)
    with pytest.raises(ToolMissing, match="matmul/best: a GPU rung needs a CUDA GPU"):
        gpukernels.load("matmul", "best", "float32")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "type"),
    [("vector_add", "float64"), ("transpose", "uint8"), ("transpose", "float32"), ("matmul", "float32"),
     ("matmul", "float16->float32")],
)  # fmt: skip
def test_it_is_right(op: str, type: str) -> None:
    kernel: Any = gpukernels.load(op, "best", type)
    rng = np.random.default_rng()
    dims = ladder.op(op).dims
    for _ in range(8):
        extents = dict(zip(dims, (int(extent) for extent in rng.integers(1, 700, len(dims))), strict=True))
        found = rung(op, next(best.candidates(op, type, extents, *kernel._gpu())))
        check(kernel, found, type, extents)


@pytest.mark.gpu
def test_a_type_that_no_rung_has() -> None:
    with pytest.raises(LadderError, match="matmul/best has no type uint8 on this GPU; on GPUs the op has float32"):
        gpukernels.load("matmul", "best", "uint8")


def test_best_takes_no_rung_that_needs_another_library() -> None:
    for op in ladder.ops():
        for found in op.rungs:
            assert not (found.needs and any(best.fits(found, type, 90) for type in found.types))
    triton = rung("transpose", "triton")
    assert triton.needs == ("triton", "torch")
    assert best.fits(dataclasses.replace(triton, needs=()), "float32", 90)


def test_what_a_rung_needs_and_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dataclasses.replace(rung("transpose", "torch"), needs=("json", "no_such_module"))
    monkeypatch.setattr(kernel, "rung", lambda op, name: found)
    monkeypatch.setattr(kernel, "gpu_needed", lambda who: None)
    why = "transpose/torch: needs no_such_module, which cannot be imported: No module named 'no_such_module'"
    with pytest.raises(ToolMissing, match=why):
        kernel.load_rung("transpose", "torch", "float32")


def test_every_rung_of_the_newest_records_is_in_the_list_of_benchmarks() -> None:
    """asv publishes the series of what results/benchmarks.json lists: a rung that is missing there has no history."""
    listed = json.loads((PROJECT.results / "benchmarks.json").read_text(encoding="utf-8"))
    recorded = [*map(read, reversed(sidecars(PROJECT.results)))]
    newest = {op: next((each for each in recorded if f"{op} gpu" in each.facts), None) for op in PROJECT.ops}
    for op, record in newest.items():
        if record:  # an op that was added was not measured yet
            own = {cell.key for cell in record.cells.values() if cell.group == f"{op} gpu" and cell.seconds}
            names = {name.strip("'") for name in listed[f"{op}.GPU.track_seconds"]["params"][0]}
            assert {key.partition(" ")[0].partition("/")[2] for key in own} <= names
    assert any(newest.values())
