"""Histories that could make a verdict green: what was taken back, came in small steps, or is back after a gap."""

import math
from pathlib import Path

import numpy as np
import pytest

from kernelwatch.detect.chain import chains
from kernelwatch.detect.events import JudgedSeries
from kernelwatch.detect.linked import linked
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result
from tests.sums_of_rows import KERNEL, PLAIN, Rows
from tests.test_chain import POSITIONS, a_link, a_session
from tests.test_links import published
from tests.test_links_asked import changed, new_rows


def times(count: int) -> str:
    return KERNEL.format(times=count)


def new_sums(base: Path, engine: Path, count: int) -> Rows:
    """A repository whose kernel sums so many times, in a commit with the tag `base`."""
    rows = new_rows(base, engine)
    rows.describe(PLAIN, shapes="(256, 256)")
    changed(rows, "base", rows__sums=times(count))
    rows.git("tag", "base")
    return rows


def test_what_a_commit_announced_covers_nothing_once_it_is_taken_back(tmp_path: Path, small_engine: Path) -> None:
    rows = new_sums(tmp_path, small_engine, 100)
    rows.git("checkout", "-q", "-b", "feature")
    changed(rows, "slower\n\nPerf-Expected: row_sum/plain +60%", rows__sums=times(150))
    told = rows.kernelwatch("versus", "base", "HEAD", code=0)
    assert "worse, and accepted: 1 cell" in told
    rows.git("revert", "--no-edit", "HEAD")
    rows.git("checkout", "-q", "main")
    rows.write_files({"README.md": "Sums of rows."})
    rows.commit_all("prose")
    rows.git("merge", "-q", "--no-ff", "-m", "a merge that changes no kernel", "feature")
    changed(rows, "slower for another reason", rows__sums=times(140))
    told = rows.kernelwatch("versus", "base", "HEAD", code=1)
    assert "HEAD is worse than BASE: 1 cell" in told


def test_a_regression_in_small_steps_is_the_exit_code(tmp_path: Path, small_engine: Path) -> None:
    """No link alone is worse; the page has one open regression."""
    rows = new_sums(tmp_path, small_engine, 1000)
    for step in range(1, 4):
        changed(rows, f"slower by 0.3 %: {step}", rows__sums=times(1000 + 3 * step))
    told = rows.kernelwatch("link", "base..HEAD", "--budget", "1", code=1)
    assert "\n  worse: " not in told
    assert "regression, confirmed at " in told
    (event,) = published(rows, "events")["events"]
    assert (event["open"], event["gradual"], round(event["size"], 3)) == (True, True, 0.009)


def test_what_is_left_of_a_regression_is_not_fixed_however_noisy_other_links_are() -> None:
    noise = [a_session(at, at + 1, a_link(0.0, 0.01)) for at in range(10, 20)]
    for left, is_fixed in ((0.02, False), (0.0, True), (-0.02, True)):
        own = [a_session(1, 2, a_link(0.05)), a_session(5, 6, a_link(left - 0.05)), *noise]
        [series] = linked([], {"m": chains(own, POSITIONS)}, "main")
        slower = series.changes()[0]
        assert (slower.kind, slower.back is not None) == ("regression", is_fixed)


@pytest.mark.parametrize(("left", "is_fixed"), [(0.02, False), (0.002, True), (-0.01, True)])
def test_what_is_left_of_a_regression_is_not_fixed_however_short_it_was(left: float, is_fixed: bool) -> None:
    """Three points alone do not show what sixty after them do."""
    rng = np.random.default_rng(1)
    levels = np.repeat([0.0, 0.07, left], [40, 3, 60]) + rng.normal(0, 0.008, 103)
    results = [Result(f"{at:040x}", Point(at, math.exp(level), 0.008)) for at, level in enumerate(levels)]
    slower, *_ = JudgedSeries("a.b", {}, {"machine": "m"}, False, False, results).changes()
    assert (slower.step.at, slower.kind, slower.back is not None) == (40, "regression", is_fixed)
