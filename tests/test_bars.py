"""What the best rungs are to reach: the table, and the program that measures it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.__main__ import code_of
from kernelwatch.history.records import Measured, Record, read
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.problem import label
from kernelwatch.system.errors import CANNOT
from kernelwatch.timing import nvml
from kernelwatch.timing.replay import LOW_CLOCK
from lab import bars, counters, figures
from tests.repositories import ROOT
from tests.test_papers import product_record, row_of

RESEARCH = ROOT / "docs" / "research"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_bar_has_rungs_that_exist_and_a_section_that_says_why() -> None:
    known = {page.name: anchors(page) for page in RESEARCH.glob("*.md")}
    for bar in bars.BARS:
        problem = PROJECT.op(bar.op)
        for name in bar.own + bar.others:
            assert name in problem.lines or bar.type in problem.rung(name).types, (bar, name)
        assert bar.own
        assert not set(bar.own) & set(bar.others)
        page, _, anchor = bar.why.partition("#")
        assert anchor in known[page], bar.why
    assert len({(bar.title, bar.shape) for bar in bars.BARS}) == len(bars.BARS)


def test_a_bar_holds_the_best_against_the_best() -> None:
    n = "4096x4096 cold"
    seconds = {
        f"transpose/vectorized float32 {n}": [1.02, 1.02, 9.0],  # the median counts
        f"transpose/padded float32 {n}": [1.3] * 5,
        f"transpose/memcpy float32 {n}": [1.5] * 4,
        f"transpose/vector_copy float32 {n}": [1.0, 1.0, 0.1, 3.0],
        f"transpose/padded uint8 {n}": [2.0] * 3,
        f"transpose/cupy_copy uint8 {n}": [1.9] * 3,
        f"transpose/padded uint16 {n}": [2.0] * 3,
    }
    text = bars.text([seconds], "(a GPU)")
    best, why = "vectorized", "[vectorized](transpose.md#vectorized)"
    assert row_of(text, "transpose float32") == (
        ["transpose float32", "4096x4096", "98 %", "98.0 %", "yes", best, "vector_copy", "3", ""]
    )
    assert row_of(text, "transpose uint8") == (
        ["transpose uint8", "4096x4096", "98 %", "95.0 %", "no", "padded", "cupy_copy", "3", why]
    )
    assert "(a GPU)" in text
    missing = f"Not in this record ({len(bars.BARS) - 2} of {len(bars.BARS)} bars):"
    assert missing in text
    assert "- transpose uint16: 4096x4096, 8192x8192, 16384x16384, 16411x8209\n" in text  # no copy of it
    assert "- transpose uint8: 8192x8192, 16384x16384, 16411x8209\n" in text
    assert bars.text([{}], "") == ""


def test_a_bar_is_of_the_record_that_has_its_newest_rung() -> None:
    """Never of two: each has a GPU of its own."""
    key = "matmul/{} float32 4096x4096x4096 cold".format
    old = {key("split_tail"): [1.0] * 5, key("pipelined"): [1.1] * 5, key("cublas"): [1.02] * 5}
    new = {key(name): [1.0] * 3 for name in ("split_tail", "pipelined", "serpentine")} | {key("torch"): [1.06] * 3}
    row = row_of(bars.text([old, new], ""), "matmul float32")
    assert row[3:8] == ["106.0 %", "yes", "split_tail", "torch", "3"]
    row = row_of(bars.text([old, {**old, key("cublas"): [9.0]}], ""), "matmul float32")  # as many: the first
    assert row[3:8] == ["102.0 %", "no", "split_tail", "cublas", "5"]
    del new[key("torch")]
    assert row_of(bars.text([old, new], ""), "matmul float32")[7] == "5"  # nothing to hold it against


def test_the_bars_are_of_their_own_record_if_there_is_one(tmp_path: Path) -> None:
    key = "matmul/{} float32 4096x4096x4096 cold".format
    cells = {
        key(name): Measured(key(name), "ok", "", (value,) * 3, ()) for name, value in (("fp16x3", 1.0), ("torch", 4.6))
    }
    record: Record = replace(product_record(), cells=cells)
    assert row_of(figures.reached([record, record], tmp_path), "matmul float32, fp16x3")[3:5] == ["460.0 %", "yes"]
    folder = tmp_path / record.machine
    folder.mkdir()
    who = {"gpu": "NVIDIA H200", "nvml_driver": "580"}
    lines = [
        {"key": key(name), "seconds": [value] * 5, "commit": "89abcdef", "who": who}
        for name, value in (("fp16x3", 1.0), ("torch", 4.2), ("cublas", 4.1))
    ]
    (folder / bars.RECORD).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = figures.reached([record, record], tmp_path)
    assert row_of(text, "matmul float32, fp16x3")[3:8] == ["410.0 %", "no", "fp16x3", "cublas", "5"]
    assert "(NVIDIA H200, driver 580; commit 89abcdef)" in text


def test_the_page_has_the_table_of_the_records() -> None:
    """Of the bars' own record, and of the commit that the table names last."""
    page = (RESEARCH / "README.md").read_text(encoding="utf-8")
    begin, end = figures.marks("bars")
    block = page.partition(begin)[2].partition(end)[0]
    commit = block.rpartition("; commit ")[2][:8]
    records = [read(path) for path in PROJECT.results.glob(f"nvidia-h200*/{commit}*.facts.jsonl")]
    assert block.strip() == figures.reached(records, PROJECT.results)


def test_counters_are_asked_of_each_bar_that_is_missed() -> None:
    page = (RESEARCH / "README.md").read_text(encoding="utf-8")
    begin, end = figures.marks("bars")
    rows = [line.split(" | ") for line in page.partition(begin)[2].partition(end)[0].splitlines() if " | no | " in line]
    missed = {(row[0].removeprefix("| "), row[1]): row[5] for row in rows}
    keys = {bar.cell(missed[at]).key for bar in bars.BARS if (at := (bar.title, label(bar.shape))) in missed}
    assert len(keys) == len(missed) > 0
    assert keys - {key for tables in counters.TABLES.values() for table in tables for key in table.keys} == set()


class Measuring:
    """A run in which each cell takes a second, `padded` is wrong and CuPy is missing."""

    def __init__(self, project: object, cells: list[Cell], *_: object) -> None:
        self.cells, self.workers = cells, self
        self.group: Any = type("Group", (), {})()
        self.group.facts = {}

    def close(self) -> None:
        """As the workers do."""

    def measure_all(self, process: int, *, more: int) -> None:
        for cell in self.cells:
            outcome = self.group.outcomes[cell.key]
            if not outcome.wanted(process):
                continue
            if cell.rung == "padded":
                outcome.state, outcome.reason = "failed", "12 elements are wrong"
            elif cell.rung == "cupy_copy":
                outcome.state, outcome.reason = "na", "no CuPy"
            else:
                outcome.state = "ok"
                outcome.measurements.append({"process": process, "seconds": 1.0, "clock64_mhz": 1980})


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The record that is written."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").write_text('{"results_dir": "results"}')
    monkeypatch.setattr(bars, "PROJECT", replace(PROJECT, here=tmp_path / "benchmarks" / "project.py"))
    monkeypatch.setattr(bars, "Run", Measuring)
    monkeypatch.setattr(bars, "retake", lambda *_: None)
    monkeypatch.setattr(bars, "resolve", lambda *_: "0123abcd4567")
    monkeypatch.setattr(bars, "machine_name", lambda: "here")
    monkeypatch.setattr(bars, "who", lambda: {"gpu": "A", "nvml_driver": "1"})
    monkeypatch.setattr(nvml, "architecture", lambda: "")
    return tmp_path / "results" / "here" / bars.RECORD


def test_a_process_starts_early_for_what_will_be_measured_again(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    class Limited(Measuring):
        """The clock is lower in each process."""

        def measure_all(self, process: int, *, more: int) -> None:
            asked.append(more)
            super().measure_all(process, more=more)
            for outcome in self.group.outcomes.values():
                for one in outcome.measurements:
                    step = 1.0 - one["process"] / 20
                    one |= {"throttled": [LOW_CLOCK], "clock64_mhz": 1980 * step, "seconds": 1 / step}

    monkeypatch.setattr(bars, "Run", Limited)
    bars.main(["--only", "^transpose/.* uint8 4096x4096 "])
    assert asked == [4, 3, 2 + 1, 1 + 1, 0 + 1]  # two processes tell that it is limited


def test_each_cell_is_measured_by_every_process(measuring: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bars.main(["--only", "^transpose/.* uint8 4096x4096 "]) == 2  # one of them is wrong
    told = capsys.readouterr().err
    assert "transpose/padded uint8 4096x4096 cold: failed: 12 elements are wrong" in told
    assert "transpose/cupy_copy uint8 4096x4096 cold: na: no CuPy" in told
    lines = [json.loads(line) for line in measuring.read_text().splitlines()]
    names = ["vectorized", "raster", "sector_aligned", "sector_words", "memcpy", "vector_copy"]
    assert [line["key"] for line in lines] == [f"transpose/{name} uint8 4096x4096 cold" for name in names]
    for line in lines:  # alike to the last digit, and still measured by all
        assert line["seconds"] == [1.0] * bars.PROCESSES
        assert line["clocks_mhz"] == [1980] * bars.PROCESSES
        assert line["commit"] == "0123abcd"
    assert bars.source(measuring) == "(A, driver 1; commit 0123abcd)"


def test_what_cannot_be_measured_is_no_record(measuring: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("scripts/lab/bars", lambda: bars.main(["--only", "padded uint8 4096x4096 "])) == CANNOT
    assert "scripts/lab/bars: nothing was measured: 12 elements are wrong" in capsys.readouterr().err
    assert code_of("scripts/lab/bars", lambda: bars.main(["--only", "no such cell"])) == CANNOT
    assert "scripts/lab/bars: no cell of a bar matches 'no such cell'" in capsys.readouterr().err
    assert not measuring.exists()
