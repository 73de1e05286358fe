"""Another project: measured over two commits, compared, published.

tests/data/foreign is that project: two ops, one of which is rounded and has a scalar, one of which has two outputs and
inputs of its own making. Its second commit, made here, adds a rung and makes another one slower.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repositories import ROOT, Project, new_project

pytestmark = pytest.mark.xdist_group("another project")  # one project for all

SLOWER = """
def numpy(a, out):
    low, high = out
    for _ in range(20):
        a.min(axis=1, out=low)
        a.max(axis=1, out=high)
"""
ADDED = '''

def tree(a, out, scale):
    """Pairs of columns are added, again and again."""
    while a.shape[1] > 1:
        if a.shape[1] % 2:
            a = np.concatenate([a, np.zeros((len(a), 1), a.dtype)], axis=1)
        a = a[:, ::2] + a[:, 1::2]
    np.multiply(a[:, 0], np.float32(scale), out=out)


KERNELS["scaled_sum", "tree"] = tree
'''


@dataclass(frozen=True)
class Foreign(Project):
    """The project, and the folder of the copy of the engine that measures it."""

    engine: Path

    def call(self, *command: str, code: int = 0) -> str:
        """What a program of the engine prints; its exit code must be this one."""
        done = self.run(sys.executable, "-m", *command, PYTHONPATH=str(self.engine), COLUMNS="160")
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Foreign:
    made = new_project(tmp_path_factory.mktemp("another project, größer"), "rows")
    project = Foreign(made.folder, made.home, small_engine)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests" / "data" / "foreign", project.folder, ignore=ignored, dirs_exist_ok=True)
    project.commit_all("Two kernels")
    kernels = project.folder / "rows" / "kernels.py"
    text = kernels.read_text()
    start, end = text.index("\ndef numpy("), text.index("\n\nKERNELS")
    kernels.write_text(text[:start] + SLOWER + text[end:] + ADDED)
    project.commit_all("A tree, and slower extremes")
    return project


@pytest.fixture(scope="module")
def measured(foreign: Foreign) -> str:
    """What `kernelwatch bench` prints of both commits."""
    return foreign.call("kernelwatch", "bench", "--no-confirm", "main")


def cells(foreign: Foreign, commit: str) -> dict[str, str]:
    """The state of each cell at a commit."""
    (path,) = foreign.folder.glob(f"measured/*/{foreign.git('rev-parse', commit)[:8]}-*.facts.jsonl")
    lines = map(json.loads, path.read_text().splitlines())
    return {line["key"]: line["state"] for line in lines if line["record"] == "cell"}


def test_it_is_measured(foreign: Foreign, measured: str) -> None:
    assert "2 new of 2 commits" in measured
    assert "tree" in measured
    newest, oldest = cells(foreign, "HEAD"), cells(foreign, "HEAD~1")
    assert set(newest.values()) == {"ok"}
    assert {key for key, state in oldest.items() if state == "na"} == {key for key in oldest if "/tree " in key}
    assert set(oldest.values()) == {"ok", "na"}


def test_its_series_are_judged(foreign: Foreign, measured: str) -> None:
    data = json.loads((foreign.folder / "pages" / "data" / "series.json").read_text())
    judged = {(series["benchmark"], series["params"]["rung"].strip("'")) for series in data["series"]}
    assert judged == {
        ("rows.ScaledSum.track_seconds", "einsum"),
        ("rows.ScaledSum.track_seconds", "tree"),
        ("rows.Extremes.track_seconds", "numpy"),
    }
    assert (foreign.folder / "pages" / "index.html").is_file()


def test_asv_itself_runs_and_publishes(foreign: Foreign, measured: str) -> None:
    told = foreign.call("asv", "run", "--bench", "Extremes", "HEAD^!")
    assert "rows.Extremes.track_seconds" in told
    foreign.call("asv", "publish", "--no-pull")
    listed = json.loads((foreign.folder / "pages" / "asv" / "index.json").read_text())["benchmarks"]
    assert listed["rows.ScaledSum.track_flops"]["unit"] == "GFLOP/s"


def test_a_quick_look_finds_suites_of_any_name(foreign: Foreign, measured: str) -> None:
    told = foreign.call("kernelwatch", "bench", "--quick", "--only", "extremes")
    assert "1 new of 1 commits" in told
    (path,) = foreign.folder.glob(".asv/quick/results/*/*-checkout-*.json")
    assert list(json.loads(path.read_text())["results"]) == [
        "rows.Extremes.track_seconds",
        "rows.ScaledSum.track_seconds",
    ]


def test_versus_says_what_is_worse(foreign: Foreign) -> None:
    told = foreign.call("kernelwatch", "versus", "HEAD~1", "HEAD", "--only", "extremes", "--budget", "300", code=1)
    assert "HEAD is worse than BASE" in told


def test_a_rung_whose_source_may_have_changed_is_no_unchanged_one(foreign: Foreign) -> None:
    """The project tells no parts of its rungs: any of them may depend on any file."""
    told = foreign.call("kernelwatch", "versus", "--exact", "HEAD~1", "HEAD", code=2)
    assert "cannot tell" in told
    assert "are the same" not in told


def test_ladder_prints_what_was_recorded(foreign: Foreign, measured: str) -> None:
    told = foreign.call("kernelwatch", "ladder", "scaled_sum")
    assert "einsum" in told
    assert "GFLOP/s" in told


def test_a_wrong_result_yields_no_figure(foreign: Foreign) -> None:
    """Within the bound it is right, beyond it it is not, and said where."""
    kernels = foreign.folder / "rows" / "kernels.py"
    good = kernels.read_text()
    try:
        kernels.write_text(good.replace("np.float32(scale), out=out)", "np.float32(scale * 1.001), out=out)", 1))
        told = foreign.call("kernelwatch", "bench", "--worktree", "scaled_sum/einsum", code=2)
    finally:
        kernels.write_text(good)
    assert "tree failed" in told
    assert "wrong, the first at [0], off by" in told
