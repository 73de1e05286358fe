"""Histories that could make a verdict green: what was taken back, came in small steps, or is back after a gap."""

import math
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelwatch.comparison import consents
from kernelwatch.detect.chain import chains
from kernelwatch.detect.events import JudgedSeries
from kernelwatch.detect.judging import judge
from kernelwatch.detect.linked import linked, verdicts_of
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result
from kernelwatch.history.links import UNDIRECTED, Session
from kernelwatch.plan.renamed import NONE
from tests.repositories import new_project
from tests.sums_of_rows import KERNEL, OTHER, PLAIN, Rows
from tests.test_chain import CELL as LINK
from tests.test_chain import POSITIONS, a_link, a_session
from tests.test_links import BOTH, CELL, published
from tests.test_links_asked import changed, new_rows
from tests.test_plain_turns import PACKAGE, SORTS, new_plain


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


def test_many_later_commits_are_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one took an announced commit back: a call of git for each took minutes in a long history."""
    repository = new_project(tmp_path, "long")
    asked: list[Any] = []
    run = subprocess.run
    project: Any = SimpleNamespace(
        root=repository.folder, results=tmp_path, launch_paths=lambda: ["a.py", "b.py"], renamed=NONE
    )

    def commit(message: str, **files: str) -> str:
        for name, text in files.items():
            (repository.folder / f"{name}.py").write_text(text)
        return repository.commit_all(message)

    def counted(command: Any, **given: Any) -> Any:
        asked.append(command)
        return run(command, **given)

    def between() -> tuple[list[str], int]:
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", counted)
            return list(consents.between(project, "host", base, "HEAD").commits), len(asked)

    base = commit("base", a="1", b="1")
    announced = commit("slower\n\nPerf-Expected: op/rung +20%", a="2", b="2")
    told, calls = between()
    assert told == [announced]
    for number in range(3, 7):
        commit("more", a=str(number))
    commit("half is back", a="1")
    assert between() == ([announced], calls)
    commit("all is back", b="1")
    commit("for another reason", b="7")
    assert between()[0] == []


def test_what_is_announced_twice_came_once(tmp_path: Path, small_engine: Path) -> None:
    """A commit and its cherry-pick, which a merge brought together."""
    rows = new_sums(tmp_path, small_engine, 100)
    rows.git("checkout", "-q", "-b", "release")
    changed(rows, "slower\n\nPerf-Expected: row_sum/plain +20%", rows__sums=times(115))
    rows.git("checkout", "-q", "main")
    rows.write_files({"README.md": "Sums of rows."})
    rows.commit_all("prose")
    rows.git("cherry-pick", "release")
    rows.git("merge", "-q", "--no-ff", "-m", "merged", "release")
    rows.kernelwatch("versus", "base", "HEAD", code=0)
    changed(rows, "slower for another reason", rows__sums=times(135))
    told = rows.kernelwatch("versus", "base", "HEAD", code=1)
    assert "more than +20.00 %" in told


def test_a_regression_in_small_steps_is_the_exit_code(tmp_path: Path, small_engine: Path) -> None:
    """No link alone is worse; the page has one open regression."""
    rows = new_sums(tmp_path, small_engine, 1000)
    for step in range(1, 4):
        changed(rows, f"slower by 0.3 %: {step}", rows__sums=times(1000 + 3 * step))
    told = rows.kernelwatch("link", "base..HEAD", "--no-publish", "--budget", "1", code=1)
    assert "\n  worse: " not in told
    steps = (rows.git("rev-parse", "--short=8", commit) for commit in ("HEAD~2", "HEAD"))
    assert f"\nworse: {CELL} +0.90 % in small steps from {' to '.join(steps)}\n" in told
    told = rows.kernelwatch("link", "base..HEAD", code=1)
    assert "regression, confirmed at " in told
    (event,) = published(rows, "events")["events"]
    assert (event["open"], event["gradual"], round(event["size"], 3)) == (True, True, 0.009)


@pytest.mark.parametrize(
    "lost",
    [
        {"rows/sums.py": times(100).replace("np.sum(a, axis=1, out=out)", "out[:] = 0")},
        {"rows/__init__.py": "raise RuntimeError('no')\n"},
        {"rows/__init__.py": BOTH.replace('"plain": "rows.sums:plain", ', "")},
    ],
    ids=["wrong", "broken", "gone"],
)
def test_what_comes_back_slower_than_it_was_is_worse(tmp_path: Path, small_engine: Path, lost: dict[str, str]) -> None:
    """It is red when it is measured and when it is linked already, and blamed on the commit that brings it back."""
    rows = new_sums(tmp_path, small_engine, 100)
    for commit in range(2):
        rows.write_files(lost | {"prose.md": str(commit)})
        rows.commit_all("lost")
        rows.kernelwatch("link", "--no-publish", "--budget", "1")
    rows.write_files({"rows/__init__.py": BOTH})
    slower = changed(rows, "back", rows__sums=times(150))
    for _ in range(2):
        told = rows.kernelwatch("link", "--budget", "1", code=1)
        assert told.count(f"worse: {CELL} ") == 1
    (event,) = published(rows, "events")["events"]
    assert (event["kind"], event["open"], event["gradual"]) == ("regression", True, False)
    (change,) = event["changes"]
    assert (change["from"], change["to"]) == (rows.git("rev-parse", "base"), slower)
    assert 0.4 < change["size"] < 0.6
    files = (rows.folder / "results").glob(f"*/{slower[:8]}.*.links.jsonl")
    (gap,) = (file for file in files if f'"before": "{change["from"]}"' in file.read_text())
    gap.unlink()  # as it was linked before gaps were measured
    told = rows.kernelwatch("link", "--budget", "1", "--no-publish", "--again", code=1)
    assert told.count(f"worse: {CELL} ") == 1


def test_what_is_reverted_is_undone_whatever_another_commit_does_later() -> None:
    """It is no open regression beside the one of that commit. Without identities nobody knows."""
    for names, is_undone in ((("a", "b", "a", "c"), True), (("", "", "", ""), False), (("a", "b", "d", "c"), False)):
        both = list(pairwise(names))
        logs = (0.05, -0.05, 0.08)
        own = [a_session(at, at + 1, a_link(log, 0.0002, both[at])) for at, log in enumerate(logs)]
        [series] = linked([], {"m": chains(own, POSITIONS)}, "main")
        first, _, other = series.changes()
        assert (first.back is not None) == is_undone
        assert other.back is None
        assert first.launches == (("a", "a") if is_undone else None)
        levels = np.repeat(np.cumsum([0.0, *logs]), 10)
        points = [Point(at, math.exp(level), 0.0002, names[at // 10]) for at, level in enumerate(levels)]
        results = [Result(f"{point.commit:040x}", point) for point in points]
        first, _, other = JudgedSeries("a.b", {}, {"machine": "m"}, False, False, results).changes()
        assert (first.back is not None, other.back is not None) == (is_undone, False)


def test_a_change_across_a_gap_has_the_interval_of_its_link() -> None:
    lost = a_session(3, 4, unjudged={LINK: "failed: wrong"})
    mended = a_session(4, 5, unjudged={LINK: "repaired: wrong"})
    across = a_session(3, 5, a_link(0.03))
    for own in ([lost, mended, across], [across, mended, lost]):
        [series] = linked([], {"m": chains([a_session(1, 2, a_link(0.02)), *own], POSITIONS)}, "main")
        _, change = series.changes()
        assert (change.before.commit, change.last.commit) == (across.before, across.after)
        assert change.interval == pytest.approx(judge(across)[LINK].bounds)
        told = verdicts_of([across], [series])[LINK, across.before, across.after]
        assert told.word == "confirmed"
        assert told.change == pytest.approx(change.step.change)


@pytest.mark.parametrize("lost", ["def prepare():\n    raise RuntimeError('no data')\n", "import nothing_like_it\n"])
def test_a_benchmark_that_comes_back_slower_is_worse(tmp_path: Path, small_engine: Path, lost: str) -> None:
    """In a project of asv's without a description."""
    plain = new_plain(tmp_path, small_engine)
    for text in (PACKAGE.format(factor=1), lost, PACKAGE.format(factor=1.5)):
        (plain.project.folder / "work.py").write_text(text)
        plain.project.commit_all("next")
    plain.run("link", "HEAD~1", "--no-publish", code=2)
    for _ in range(2):
        assert f"worse: {SORTS[0]} +50" in plain.run("link", "HEAD", "--no-publish", code=1)
    bridge = plain.sessions()[-1]
    assert bridge.before == plain.project.git("rev-parse", "HEAD~2")
    assert {round(link.log, 1) for link in bridge.links if not link.rate} == {0.4}
    assert {abs(round(link.log, 1)) for link in bridge.links if link.rate} <= {0.0}  # the rate did not change
    assert bridge.unjudged == {"suite.track_calls": UNDIRECTED}
    assert [*bridge.new, *bridge.gone] == []


def test_a_number_that_no_float_holds_has_failed_and_the_others_are_compared(
    tmp_path: Path, small_engine: Path
) -> None:
    plain = new_plain(tmp_path, small_engine)
    for text in ("", "CALLS = 10**400\n"):
        (plain.project.folder / "work.py").write_text(f"{PACKAGE.format(factor=1)}\n\n{text}")
        plain.project.commit_all("next")
    told = plain.run("versus", "HEAD~1", "HEAD", "--bench", "track", code=2)
    assert "failed: suite.track_calls: its result is no finite number: 1000" in told
    assert "suite.track_rate" in told


@pytest.mark.parametrize("rate", [False, True])
def test_what_is_left_of_a_regression_is_not_fixed_however_noisy_other_links_are(rate: bool) -> None:
    def step(at: int, log: float, error: float = 0.0002) -> Session:
        return a_session(at, at + 1, replace(a_link(log, error), rate=rate))

    noise = [step(at, 0.0, 0.01) for at in range(10, 20)]
    for left, is_fixed in ((0.02, False), (0.0, True), (-0.02, True)):
        own = [step(1, 0.05), step(5, left - 0.05), *noise]
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


def test_a_search_says_if_the_first_worse_commit_is_the_lesser_part(tmp_path: Path, small_engine: Path) -> None:
    rows = new_sums(tmp_path, small_engine, 100)
    first = changed(rows, "a little slower", rows__sums=times(104))
    changed(rows, "much slower", rows__sums=times(150))
    told = rows.kernelwatch("versus", "--find", CELL, "base..HEAD", code=0)
    assert f"first worse: {first}" in told
    assert "note: that is +3.98 % of +49.72 %; search again from there for what came later" in told
    told = rows.kernelwatch("versus", "--find", CELL, f"{first}..HEAD", code=0)
    assert "note: " not in told


READS = """
from pathlib import Path

import numpy as np

TIMES = int(Path(__file__).with_name("data").joinpath({name!r}).read_text())


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""


@pytest.mark.parametrize("name", ["times.txt", ""], ids=["folder", "file"])
def test_a_link_that_leads_out_of_the_repository_is_part_of_what_is_launched(
    tmp_path: Path, small_engine: Path, name: str
) -> None:
    """Data that is too large for git, of which the commit names the version."""
    rows = new_sums(tmp_path, small_engine, 100)
    link = rows.folder / "rows" / "data"
    for version, text in (("v1", "100"), ("v2", "150"), ("v3", "150")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "times.txt").write_text(text)
        link.unlink(missing_ok=True)
        link.symlink_to((tmp_path / version) if name else tmp_path / version / "times.txt")
        changed(rows, version, rows__sums=READS.format(name=name))
    assert not rows.changes("HEAD~2", "HEAD~1").same
    assert bool(rows.changes("HEAD~1", "HEAD").same) == (not name)  # a file is known by its content


BY_SIZE = """
import numpy as np


def plain(a, out):
    for _ in range(100 if len(a) == 256 else {times}):
        np.sum(a, axis=1, out=out)
"""


def test_a_size_or_a_rung_that_is_described_later_is_asked_of_commits_that_are_linked(
    tmp_path: Path, small_engine: Path
) -> None:
    """A commit made both slower, where nobody measured yet."""
    rows = new_rows(tmp_path, small_engine)
    rows.describe(PLAIN, shapes="(256, 256)")
    changed(rows, "base", rows__sums=BY_SIZE.format(times=100), rows__more=times(10).replace("plain", "other"))
    changed(rows, "slower", rows__sums=BY_SIZE.format(times=150), rows__more=times(15).replace("plain", "other"))
    quick = ("--no-publish", "--budget", "1")
    told = rows.kernelwatch("link", "HEAD", *quick)
    assert "worse" not in told
    rows.describe(PLAIN + OTHER, shapes="(256, 256), (300, 300)")
    rows.commit_all("described")
    told = rows.kernelwatch("link", "HEAD~1", *quick, code=1)
    worse = {" ".join(line.split()[1:4:2]) for line in told.splitlines() if line.startswith("  worse: ")}
    assert worse == {"row_sum/plain 300x300", "row_sum/other 256x256", "row_sum/other 300x300"}
    told = rows.kernelwatch("link", "HEAD~1", *quick, code=1)
    assert "1 of 1 commits are linked already" in told
