"""The tables in README.md and docs/, which scripts/lab/figures writes from the newest records."""

import dataclasses
import json
import math
import re
import shutil
import statistics
from pathlib import Path

import pytest

from kernelwatch.history.records import Measured, Record
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import UserError
from kernelwatch.timing.record import Facts
from kernelwatch.timing.replay import LOW_CLOCK
from lab import figures
from lab.counters import METRICS
from tests.repositories import ROOT
from tests.test_tables import elsewhere, results, table_row

__all__ = ["elsewhere", "results"]  # fixtures


BLOCKS = {
    "README.md": ["bench"],
    "docs/comparing.md": ["versus"],
    "docs/transpose.md": ["transpose", "cpu", "types", "sizes"],
    "docs/matmul.md": ["matmul", "cpu", "shapes", "types", "float8", "between"],
    "docs/research/transpose.md": ["counters"],
    "docs/research/matmul.md": ["climb", "counters"],
    "docs/research/README.md": ["bars"],
    "docs/research/access.md": ["access"],
    "docs/research/fleet.md": ["neighbors"],
}


@pytest.fixture
def papers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the papers, in which no block is written yet, and no comparison is kept."""
    folder = tmp_path_factory.mktemp("papers")
    (folder / "docs" / "research").mkdir(parents=True)
    for file, blocks in BLOCKS.items():
        (folder / file).write_text("\n".join(mark for name in blocks for mark in figures.marks(name)))
    monkeypatch.setattr(figures, "VERSUS", folder / "versus.txt")
    return folder


def test_the_papers_take_a_record_with_a_gpu(
    papers: Path, elsewhere: Project, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "no-gpu.x" / "89abcdef-checkout-py3.12.json").write_text(json.dumps({"date": 3_000}))  # now the newest
    (papers / "asv.conf.json").write_text((elsewhere.root / "asv.conf.json").read_text())
    monkeypatch.setattr(figures, "PROJECT", dataclasses.replace(elsewhere, here=papers / "benchmarks" / "project.py"))
    assert figures.main([]) == 0
    assert "commit 0123abcd" in (papers / "docs" / "transpose.md").read_text()
    readme = (papers / "README.md").read_text()
    assert "GPU: NVIDIA H200, 4814 GB/s theoretical, driver 580.95.05, NVRTC 13.0.88; commit 0123abcd\n" in readme
    assert table_row(readme, "padded") == ["padded", "1220   45 %"]
    assert "memcpy" not in readme  # the ladder's own rungs
    shutil.rmtree(results / "nvidia-h200.x")
    before = {file: (papers / file).read_text() for file in BLOCKS}
    with pytest.raises(UserError, match=f"nothing recorded on a GPU under {results}; scripts/bench measures"):
        figures.main([])
    assert {file: (papers / file).read_text() for file in BLOCKS} == before


def product_record() -> Record:
    """Two rungs and cuBLAS at n = 256 and 4096 on the GPU, one and NumPy on the CPU."""
    seconds = {
        "matmul/initial float32 256x256x256 cold": 1e-4,
        "matmul/cublas float32 256x256x256 cold": 1e-5,
        "matmul/initial float32 4096x4096x4096 cold": 1e-2,
        "matmul/cublas float32 4096x4096x4096 cold": 2.5e-3,
        "matmul/wmma float16->float32 4096x4096x4096 cold": 1e-3,
        "matmul/cublas float16->float32 4096x4096x4096 cold": 2e-4,
        "matmul/initial float32 128x4096x4096 cold": 1e-3,
        "matmul/cublas float32 128x4096x4096 cold": 1e-3,
        "matmul/c float32 256x256x256 cold": 1e-2,
        "matmul/numpy float32 256x256x256 cold": 1e-3,
    }
    limits = {"matmul/cublas float16->float32 4096x4096x4096 cold": (LOW_CLOCK,)}
    cells = {key: Measured(key, "ok", "", (value,) * 3, limits.get(key, ())) for key, value in seconds.items()}
    facts: Facts = {"gpu": "A GPU", "cpu": "A CPU", "cores": [0, 1]}
    return Record("a-gpu.x", "0123abcd", {"matmul gpu": facts, "matmul cpu": facts}, cells)


def row_of(text: str, name: str) -> list[str]:
    return next([part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if f"| {name} |" in line)


def test_products_stand_beside_what_the_lecture_printed() -> None:
    """2 n^3 over the seconds; the share of cuBLAS; the lecture's milliseconds as a rate."""
    text = figures.squares(product_record(), "gpu")
    assert "share of cublas" in text
    header = row_of(text, "rung")
    assert header[1:5] == ["n = 256", "lecture", "n = 512", "lecture"]
    assert header[-1] == "n = 8192"  # nothing was printed for it
    row = dict(zip(header, row_of(text, "initial"), strict=True))
    assert row["n = 256"] == "336 (10 %)"
    assert row_of(text, "initial")[2] == f"{2 * 256**3 / 0.13e-3 / 1e9:.3g}"
    assert row["n = 4096"] == "13744 (25 %)"
    assert row["n = 512"] == "n/a"
    printed_ms = {256: 0.13, 512: 0.13, 1024: 0.19, 2048: 0.45, 4096: 3.6}
    lectures = [f"{2 * n**3 / ms / 1e6:.0f}" for n, ms in printed_ms.items()]
    assert row_of(text, "initial")[2:11:2] == lectures
    tensor = dict(zip(header, row_of(text, "wmma (float16->float32)"), strict=True))
    assert tensor["n = 4096"] == "137439 (20 %)"
    cpu = figures.squares(product_record(), "cpu")
    assert row_of(cpu, "c")[1:3] == ["3.36 (10 %)", f"{2 * 256**3 / 0.06e-3 / 1e9:.3g}"]


def test_products_by_shape_and_by_type() -> None:
    assert row_of(figures.shapes(product_record()), "initial")[1] == "4295 (100 %)"
    typed = figures.by_type(product_record())
    assert row_of(typed, "rung") == ["rung", "float32", "float16->float32"]  # no other type has a figure
    assert row_of(typed, "cublas")[2] == "687195 (100 %) *"
    assert row_of(typed, "wmma") == ["wmma", "n/a", "137439 (20 %)"]


def test_each_step_of_a_climb_stands_beside_the_one_before() -> None:
    record = product_record()
    seconds = {
        "matmul/thread_tile_2d float32 4096x4096x4096 cold": 4e-3,
        "matmul/vector_loads float32 4096x4096x4096 cold": 3.2e-3,
        "matmul/async_stages float32 4096x4096x4096 cold": 2.8e-3,
    }
    cells = {key: Measured(key, "ok", "", (value,) * 3, ()) for key, value in seconds.items()}
    text = figures.climbs(dataclasses.replace(record, cells=record.cells | cells))
    header, n = row_of(text, "rung"), row_of(text, "rung").index("n = 4096")
    assert header[n : n + 2] == ["n = 4096", "gain"]
    assert row_of(text, "thread_tile_2d")[n : n + 2] == ["34360 (62 %)", ""]
    assert row_of(text, "vector_loads")[n : n + 2] == ["42950 (78 %)", "x 1.25"]
    assert row_of(text, "double_buffer")[n : n + 2] == ["n/a", "n/a"]
    assert row_of(text, "async_stages")[n : n + 2] == ["49085 (89 %)", "n/a"]
    assert row_of(text, "wgmma_plain")[n : n + 2] == ["n/a", "n/a"]  # beside wmma, of another table
    assert figures.climbs(dataclasses.replace(record, cells={})) == ""


def test_the_stores_of_vectors_are_told_by_the_links_of_their_commits(tmp_path: Path) -> None:
    folder = ROOT / "results" / "nvidia-h200.intel-xeon-processor.x86-64.linux"
    text = figures.stores(folder)
    is_there = text in (ROOT / "docs" / "research" / "matmul.md").read_text(encoding="utf-8")
    assert is_there, "scripts/lab/figures writes it"
    logs: dict[str, float] = {}  # of raster, all three commits together
    for path in (file for commit in list(figures.STORES)[:3] for file in folder.glob(f"{commit}.*.links.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            cell = line.get("cell", "")
            if cell.startswith("matmul/raster float32") and cell.endswith(" cold"):
                logs[cell] = logs.get(cell, 0.0) + line["log"]
    assert len(logs) == 10
    low, middle, high = (100 * math.expm1(pick(logs.values())) for pick in (min, statistics.median, max))
    assert row_of(text, "raster")[-1] == f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"
    assert figures.stores(tmp_path) == ""


def test_a_climb_is_of_the_newest_record_that_has_every_step() -> None:
    record = product_record()
    steps = [f"matmul/{name} {type} 64x64x64 cold" for type, names in figures.CLIMBS.items() for name in names]

    def with_steps(commit: str, keys: list[str]) -> Record:
        cells = {key: Measured(key, "ok", "", (1e-3,) * 3, ()) for key in keys}
        return dataclasses.replace(record, commit=commit, cells=cells)

    older, whole, newest = with_steps("a", steps), with_steps("b", steps), with_steps("c", steps[:-1])
    assert figures.climber([older, whole, newest]) is whole
    assert figures.climber([newest, record]) is None


def test_a_climb_has_the_order_of_the_ladder() -> None:
    names = [rung.name for rung in figures.MATMUL.rungs]
    for type, steps in figures.CLIMBS.items():
        assert sorted(steps, key=names.index) == list(steps)
        assert all(type in figures.MATMUL.rung(name).types for name in steps)


WORDS = ("Prediction:", "Change:", "Result:", "Limit:")  # of each step of a climb, in this order


def test_every_step_of_a_climb_says_what_was_predicted_and_what_came_of_it() -> None:
    page = (ROOT / "docs" / "research" / "matmul.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^##+ (\w+)\n+((?:(?!#).*\n)+)", page, re.MULTILINE))
    steps = [step for names in figures.CLIMBS.values() for step in names[1:]]
    assert len(steps) > 10
    for step in steps:
        items = re.findall(r"^- \*\*([^*]+)\*\*", sections[step], re.MULTILINE)
        assert tuple(item for item in items if item in WORDS) == WORDS, step


def test_float8_stands_beside_the_vendors_sums_alike() -> None:
    type, small, large = "float8_e4m3fn->bfloat16", "256x256x256 cold", "4096x4096x4096 cold"
    seconds = {
        f"matmul/wgmma_fp8 {type} {large}": 1e-4,
        f"matmul/torch_fp8 {type} {large}": 1.1e-4,
        f"matmul/wgmma_fp8_promoted {type} {large}": 2e-4,
        f"matmul/torch_fp8_promoted {type} {large}": 1e-4,
        f"matmul/wgmma_fp8 {type} {small}": 1e-6,
    }
    cells = {key: Measured(key, "ok", "", (value,) * 3, ()) for key, value in seconds.items()}
    text = figures.float8(Record("a-gpu.x", "0123abcd", {"matmul gpu": {"gpu": "A GPU"}}, cells))
    at = {shape: row_of(text, "rung").index(shape.split()[0]) for shape in (small, large)}
    rows = [row_of(text, name) for name in ("wgmma_fp8", "wgmma_fp8_promoted")]
    assert [row[at[large]] for row in rows] == ["1374390 (110 %)", "687195 (50 %)"]
    assert [row[at[small]] for row in rows] == ["33554", "n/a"]
    assert "wgmma_fp8_64x128" not in text  # which has no cell
    assert figures.float8(product_record()) == ""


def test_cells_beside_busy_neighbors(tmp_path: Path) -> None:
    """The median of the runs' medians; between the processes of a run, the median of the runs; the slowest first."""
    alone, beside = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], [[3.0, 3.03, 2.97], [3.0, 3.0, 3.0]]
    cells = [("quiet", alone, alone), ("moved", alone, beside)]
    lines = [
        json.dumps({"key": key, "busy": 3, "alone_s": one, "beside_s": other, "who": {"gpu": "A GPU"}})
        for key, one, other in cells
    ]
    path = tmp_path / "neighbors.jsonl"
    path.write_text("\n".join(lines) + "\n")
    text = figures.neighbors(path)
    assert text.startswith("**A GPU: alone")
    assert row_of(text, "moved") == ["moved", "3", "+100.00 %", "0.00 %", "0.50 %"]
    assert text.index("| moved |") < text.index("| quiet |")


def test_transposes_stand_beside_the_best_copy() -> None:
    """Bytes over seconds; the share of the fastest copy of that column, whichever it is; no column without a copy."""
    small, large = "256x256 cold", "4096x4096 cold"
    seconds = {
        f"transpose/padded float32 {small}": 2e-6,
        f"transpose/memcpy float32 {small}": 1e-6,
        f"transpose/vector_copy float32 {small}": 1.5e-6,
        f"transpose/padded float32 {large}": 4e-5,
        f"transpose/vector_copy float32 {large}": 3e-5,
        f"transpose/cupy_transpose float32 {large}": 1e-5,  # no copy
        f"transpose/padded uint8 {large}": 2e-5,
        f"transpose/memcpy uint8 {large}": 1e-5,
        "transpose/padded float32 1024x1024 cold": 3e-6,
    }
    cells = {key: Measured(key, "ok", "", (value,) * 3, ()) for key, value in seconds.items()}
    record = Record("a-gpu.x", "0123abcd", {"transpose gpu": {"gpu": "A GPU"}}, cells)
    sizes = figures.transposed_by_size(record)
    assert row_of(sizes, "rung") == ["rung", "256x256", "4096x4096"]
    assert row_of(sizes, "padded") == ["padded", "262 (50.0 %)", "3355 (75.0 %)"]
    assert row_of(sizes, "memcpy") == ["memcpy", "524 (100.0 %)", "n/a"]
    types = figures.transposed_by_type(record)
    assert row_of(types, "rung") == ["rung", "float32", "uint8"]
    assert row_of(types, "padded") == ["padded", "3355 (75.0 %)", "1678 (50.0 %)"]


def test_every_block_is_written_from_the_newest_record_that_has_it(papers: Path) -> None:
    new, turned = product_record(), dataclasses.replace(product_record(), facts={"transpose gpu": {"gpu": "another"}})
    before = {file: (papers / file).read_text() for file in BLOCKS}
    figures.write([new, turned], papers, papers)
    docs = (papers / "docs" / "matmul.md").read_text()
    assert "matmul n x n x n, cold, GPU: GFLOP/s (share of cublas, or of cublas_tf32" in docs
    assert "matmul n x n x n, cold, CPU: GFLOP/s (share of numpy)" in docs
    assert "matmul 4096x4096x4096, cold, GPU" in docs
    assert docs.count("A GPU") == 3
    assert docs.endswith(figures.marks("between")[0] + "\n" + figures.marks("between")[1])  # nothing to say yet
    for file in ("README.md", "docs/transpose.md", "docs/research/access.md"):  # the newest transposes have no cell
        assert (papers / file).read_text() == before[file]


def test_what_versus_printed_is_in_the_papers(papers: Path) -> None:
    (papers / "versus.txt").write_text("HEAD is worse than BASE: 1 cell\n")
    figures.write([], papers, papers)
    begin, end = figures.marks("versus")
    written = (papers / "docs" / "comparing.md").read_text()
    assert written == f"{begin}\n\n```\nHEAD is worse than BASE: 1 cell\n```\n\n{end}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_papers_of_this_project_have_all_their_blocks() -> None:
    for file, names in BLOCKS.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in names:
            begin, end = figures.marks(name)
            assert text.count(begin) == text.count(end) == 1
            assert text.index(begin) < text.index(end)


def test_counters_and_streamed_products_in_the_papers(tmp_path: Path) -> None:
    folder = tmp_path / "a-gpu.x"
    folder.mkdir()
    record = product_record()
    file = "docs/research/matmul.md"
    assert (figures.counters(record, tmp_path, file), figures.between(record, tmp_path)) == ("", "")
    metrics = {metric: 2e6 for metric, _ in METRICS.values()}
    del metrics[METRICS["L1 hits, %"][0]]  # as of a record that is older than this column
    line = {"key": "matmul/initial float32 256x256x256 cold", "metrics": metrics}
    (folder / "counters.jsonl").write_text(json.dumps(line) + "\n")
    shown = figures.counters(record, tmp_path, file)
    assert row_of(shown, "initial") == ["initial", "2000", "2000000", *["2e+06"] * 3, "2", "2", "2", "2"]
    assert "L1 hits" not in shown  # a column without a figure
    newer = {"key": "matmul/tiled_16 float32 256x256x256 cold", "metrics": {m: 2e6 for m, _ in METRICS.values()}}
    (folder / "counters.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (line, newer)))
    shown = figures.counters(record, tmp_path, file)
    assert row_of(shown, "initial") == ["initial", "2000", "2000000", *["2e+06"] * 3, "", "2", "2", "2", "2"]
    assert row_of(shown, "tiled_16") == ["tiled_16", "2000", "2000000", *["2e+06"] * 4, "2", "2", "2", "2"]
    assert "**matmul 256x256x256, float32**" in shown
    assert "2048x2048x2048" not in shown
    assert figures.counters(record, tmp_path, "docs/research/transpose.md") == ""
    run = {
        "seconds": 2.0, "upload_bytes": 2**30, "upload_seconds": 0.3, "compute_seconds": 1.9,
        "download_bytes": 2**30, "download_seconds": 0.1,
    }  # fmt: skip
    streamed = {
        "edge": 1000, "inner": "cublas", "type": "float32", "limit_bytes": 2**30, "matrices_bytes": 3 * 2**30,
        "in_core_s": 1.8, "runs_s": [2.0], "share_of_in_core": 0.9, "hidden_share": 0.75, "median_run": run,
    }  # fmt: skip
    (folder / "between_grids.jsonl").write_text(json.dumps(streamed) + "\n")
    text = figures.between(record, tmp_path)
    assert row_of(text, "share of the in-core rate")[1] == "90.0 %"
    assert row_of(text, "copy time hidden")[1] == "75.0 % of 0.400 s"
