"""scripts/versus on a commit that adds rungs: what nothing looked at is no success, and long tables are cut."""

import io
import itertools
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from benchmarks.project import PROJECT
from kernelwatch.comparison.exact import ExactSeries, Figures
from kernelwatch.comparison.paired import Side
from kernelwatch.comparison.verdict import Report
from kernelwatch.report import comparison as texts
from tests.sums_of_rows import FAST, PLAIN, TABLE, Rows

FAR = 'Rung("far", "gpu", ("float32",)),'
NEAR = FAR.replace("far", "near").replace("gpu", "cpu")
FAR_TABLE = TABLE.replace("}}", ', "far": "rows.far:far"}}')
FAR_KERNEL = """
def far(a, out):
    out[:] = a.sum(axis=1)
"""
NEAR_TABLE, NEAR_KERNEL = FAR_TABLE.replace("far", "near"), FAR_KERNEL.replace("far", "near")


@pytest.fixture
def added(rows: Rows) -> Rows:
    """Two commits: one without any rung, and one that adds a rung for a CPU and one for a GPU."""
    rows.describe(PLAIN + FAR)
    rows.commit_all("no package")
    rows.write_files({"rows/__init__.py": FAR_TABLE, "rows/sums.py": FAST, "rows/far.py": FAR_KERNEL})
    rows.commit_all("two rungs")
    return rows


def test_a_new_rung_that_nothing_looked_at_is_no_success(added: Rows, no_gpu: str) -> None:
    """Functions of Python run on no emulator. The rung for a CPU is timed, and its output is checked."""
    told = added.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    last = told.splitlines()[-1]
    assert last.startswith(
        "new: row_sum/plain, row_sum/far, with nothing to compare; cannot tell: row_sum/far: is new, and was not "
        "looked at (no GPU here: "
    )
    assert last.count("cannot tell") == last.count("is new") == 1
    assert '"verdict": "cannot tell"' in added.kernelwatch("versus", "HEAD~1", "HEAD", "--json", code=2)


def test_a_new_rung_without_exact_figures_is_not_looked_at_by_them(added: Rows) -> None:
    told = added.kernelwatch("versus", "HEAD~1", "HEAD", "--exact", code=2)
    assert "cannot tell: row_sum/plain, row_sum/far: are new, and were not looked at (times were not asked for)" in told


def test_a_new_rung_that_was_timed_is_a_success(added: Rows) -> None:
    told = added.kernelwatch("versus", "HEAD~1", "HEAD", "--only", "plain", code=0)
    assert told.splitlines()[-1] == "new: row_sum/plain, with nothing to compare"


def report_on(places: int) -> Report:
    """A report on one new rung, of which two figures are other than those of the rung before it at so many places."""
    values: dict[ExactSeries, float | str] = {}
    for (name, factor), at in itertools.product({"track_registers": 2, "track_bytes": 1}.items(), range(places)):
        for rung, value in (("padded", at + 1.0), ("unpadded", factor * (at + 1.0) + 1)):
            where = (rung, "float32", f"sm_{at}")
            values[ExactSeries(f"static.Transpose.{name}", where, "each", False, True, "transpose")] = value
    report = Report(PROJECT, Side("BASE", ""), Side("HEAD", ""), "BASE and HEAD", whole=True)
    report.new, report.figures = {"transpose/unpadded": "transpose/padded"}, Figures(values, {}, {})
    return report


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    texts.show(report, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.mark.parametrize("shown", [printed, lambda report: texts.as_markdown(texts.document(report))])
def test_many_figures_of_new_rungs_are_a_row_for_each_kind(shown: Callable[[Report], str]) -> None:
    report = report_on(40)
    told = shown(report).replace(" | ", " ")
    where = "transpose/unpadded float32 sm_0, float32 sm_1, float32 sm_2 and 37 more"
    assert f"registers (each) {where} 1 to 40 3 to 81 x2.02 to x3" in told
    assert "1 to 40 2 to 41 x1.02 to x2" in told
    assert "sm_3 " not in told
    assert "new rungs: 80 figures in 2 rows, one for each kind; --details shows all of them" in told
    report.details = True
    told = shown(report).replace(" | ", " ")
    assert told.count("registers (each) transpose/unpadded") == 40
    assert "--details" not in told


def test_few_figures_of_new_rungs_are_all_shown() -> None:
    told = printed(report_on(3))
    assert told.count("registers (each) transpose/unpadded") == 3
    assert "--details" not in told


def test_the_table_of_new_rungs_is_whole_if_that_is_asked(rows: Rows) -> None:
    shapes = ", ".join(f"({at}, 64)" for at in range(1, 18))
    rows.describe(PLAIN + NEAR, shapes=shapes)
    rows.commit_all("no package")
    rows.write_files({"rows/__init__.py": NEAR_TABLE, "rows/sums.py": FAST, "rows/near.py": NEAR_KERNEL})
    for command in ("bench --worktree", "versus HEAD~1 HEAD"):
        if command.startswith("versus"):
            rows.commit_all("two rungs")
        told = rows.kernelwatch(*command.split(), code=0)
        assert re.findall(r"^time +row_sum/near float32 .*", told, re.MULTILINE)[0].count("and 14 more") == 1
        assert "17 figures in 1 row, one for each kind" in told
        told = rows.kernelwatch(*command.split(), "--details", code=0)
        assert len(re.findall(r"^time +row_sum/near float32 \d+x64 cold ", told, re.MULTILINE)) == 17
