"""A description with asv's own benchmarks beside it: full runs judge these, and what does not measure them says so."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.history.confirmations import Confirmation, Verdicts, Word, save
from kernelwatch.plan import beside
from kernelwatch.publish.retired import _slower
from tests.pages import NARROW, fits, opened
from tests.repositories import new_project
from tests.sums_of_rows import FAST, OTHER, OTHER_KERNEL, PLAIN, TABLE, Rows
from tests.test_site import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("beside")  # one repository for all of these

SUITE = """
import work  # which only a process of asv's finds


def track_instructions():
    return work.COUNT


track_instructions.higher_is_better = False
track_instructions.unit = "instructions"


class Sort:
    params = [1, 2]

    def track_rate(self, copies):
        return float(work.COUNT)

    def time_fails(self, copies):
        raise ValueError("always")


Sort.track_rate.higher_is_better = True
"""
COUNTS = (1000, 1000, 1000, 1500, 1500, 1500)
NOTE = "note: benchmarks of asv's own, such as own.track_instructions, are not compared here"
QUIET = ("--no-gate", "--no-confirm")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Rows:
    """Six commits, none of which changes a rung."""
    made = new_project(tmp_path_factory.mktemp("mixed"), "rows")
    rows = Rows(made.folder, made.home, small_engine)
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST, "benchmarks/own.py": SUITE})
    for count in COUNTS:
        rows.write(work=f"COUNT = {count}\n")
        rows.commit_all(f"Count {count}", "--allow-empty")
    return rows


@pytest.fixture(scope="module")
def told(mixed: Rows) -> str:
    """What a full run of these benchmarks says."""
    return mixed.kernelwatch("bench", "main", "--bench", "^own.*track", *QUIET)


def events(rows: Rows) -> dict[str, Any]:
    return dict(json.loads((rows.folder / ".asv" / "html" / "data" / "events.json").read_text()))


def test_full_runs_judge_them(mixed: Rows, told: str) -> None:
    mixed.kernelwatch("bench", "main", "--bench", "^own.*track", *QUIET, code=1)
    slower = mixed.git("rev-parse", "HEAD~2")
    regression = f"regression, not measured again yet at {slower[:8]} (Count 1500)"
    assert f"{regression}: 1 series of own.track_instructions, +50.00 %" in told
    assert "evidence: 3 of 3 series judged" in told
    assert "no cell gave a figure" not in told
    assert events(mixed)["unread"] == []
    assert {event["kind"]: len(event["changes"]) for event in events(mixed)["events"]} == {
        "regression": 1,
        "improvement": 2,
    }


def test_what_compares_kernels_says_that_it_leaves_them_out(mixed: Rows, told: str) -> None:
    assert NOTE in mixed.kernelwatch("versus", "HEAD~3", "HEAD~2", code=0)
    assert NOTE in mixed.kernelwatch("link", "HEAD~2", "--no-publish", code=0)
    assert NOTE in mixed.kernelwatch("bench", "--worktree", code=0)
    assert NOTE[6:] in json.loads(mixed.kernelwatch("versus", "HEAD~3", "HEAD~2", "--json", code=0))["notes"][0]


def test_one_that_fails_is_named(mixed: Rows, told: str) -> None:
    failed = mixed.kernelwatch("bench", "--all", "--bench", "time_fails", *QUIET, code=2)
    assert "suite own.Sort failed" in failed
    assert "ValueError: always" in failed


def test_pages_show_them(browser: "Browser", mixed: Rows, told: str) -> None:
    pages = mixed.folder / ".asv" / "html"
    with opened(browser, pages, "regressions", NARROW) as page:
        row = page.locator("[data-kind=regression] a", has_text="own.track_instructions").first
        row.click()
        page.wait_for_selector("h1.series")
        assert "own.track_instructions" in page.inner_text("h1")
        assert fits(page)
    with opened(browser, pages, "status") as page:
        assert page.get_attribute(".card [data-state=new]", "data-size") == "0.5"
        assert "3 of 3 series" in page.inner_text(".card")


def test_benchmarks_are_found_by_reading(tmp_path: Path) -> None:
    assert beside.note(tmp_path) == ""
    for text, name in (
        ("def helper(): pass\n", ""),
        ("@series(TIMED, 'GB/s', higher_is_better=True)\ndef track_rate(self): pass\n", ""),
        ("@suites.series(TIMED)\ndef track_rate(self): pass\n", ""),
        ("@benchmark(name='series of sums')\ndef time_sums(): pass\n", "a.b.time_sums"),
        ("import missing\ndef peakmem_list(): pass\n", "a.b.peakmem_list"),
        (
            "try:\n    import torch\nfinally: pass\nif torch:\n    class Op:\n        def timeraw_x(self): pass\n",
            "a.b.Op.timeraw_x",
        ),
        ("def (", ""),
    ):
        path = tmp_path / "a" / "b.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert (f"such as {name}," in beside.note(tmp_path)) if name else not beside.note(tmp_path)


def test_what_is_no_longer_described_is_said(tmp_path: Path, small_engine: Path, browser: "Browser") -> None:
    made = new_project(tmp_path, "rows")
    rows = Rows(made.folder, made.home, small_engine)
    rows.describe(PLAIN + OTHER)
    both = 'KERNELS = {"row_sum": {"plain": "rows.sums:plain", "other": "rows.more:other"}}\n'
    rows.write_files({"rows/__init__.py": both, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})
    before = rows.commit_all("two rungs")
    rows.kernelwatch("bench", "--all", *QUIET, code=0)
    assert events(rows)["retired"] == []
    after = rows.commit_all("slower", "--allow-empty")
    (folder,) = (path.parent for path in rows.folder.glob("results/*/machine.json"))
    cell = "row_sum/other float32 64x64 cold"
    slower = Confirmation(cell, before, after, "confirmed", 0.05, 0.05, 0.04, 0.06, 8, "", "2026-01-01T00:00:00+00:00")
    save(folder, [slower])
    rows.describe(PLAIN)
    rows.commit_all("one rung")
    rows.kernelwatch("bench", "--all", *QUIET, code=0)
    machine = folder.name
    told = {"machine": machine, "name": "row_sum/other", "hash": before, "change": 0.05, "changed_at": after}
    assert events(rows)["retired"] == [told]
    for view in ("status", "regressions"):
        with opened(browser, rows.folder / ".asv" / "html", view, NARROW) as page:
            said = page.inner_text("[data-retired='row_sum/other']")
            assert said.startswith(f"row_sum/other, last recorded at {before[:8]}, +5.00 % slower since {after[:8]}")
            assert fits(page)


@pytest.mark.parametrize(
    ("newer", "told"),
    [
        (("row_sum/other", "c3", "confirmed", 0.02), 0.02),
        (("row_sum/other", "c3", "confirmed", -0.02), None),  # it was faster in the end
        (("row_sum/other", "c3", "refuted", 0.02), 0.05),
        (("row_sum/other2", "c3", "confirmed", 0.02), 0.05),
        (("row_sum/other", "of a branch", "confirmed", 0.02), 0.05),
    ],
)
def test_what_is_no_longer_described_was_slower_by_its_newest_change(
    newer: tuple[str, str, Word, float], told: float | None
) -> None:
    verdicts: Verdicts = {}
    older: tuple[str, str, Word, float] = ("row_sum/other", "c2", "confirmed", 0.05)
    for rung, commit, word, change in (older, newer):
        cell = f"{rung} float32 64x64 cold"
        verdicts[cell, "c1", commit] = Confirmation(cell, "c1", commit, word, change, change)
    line: Any = SimpleNamespace(positions={"c1": 1, "c2": 2, "c3": 3})
    slower = _slower("row_sum/other", verdicts, line)
    assert (slower and slower.change) == told
