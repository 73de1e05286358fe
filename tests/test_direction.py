"""Which way is better, in `asv compare` and `asv continuous`; and what asv does by itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from asv.commands import compare

from kernelwatch.publish.benchmarks import direction as direction_of
from tests.repositories import PRELOADED, alone, link_engine
from tests.test_site import benchmark, git, write_project

PLUGIN = alone("direction")
BETTER = {"suite.track_rate": True, "suite.track_seconds": False, "suite.track_temperature": None}


def write_levels(project: Path, levels: dict[str, tuple[float, float]], *plugins: str) -> tuple[str, str]:
    """A project whose fourth of five commits moved its series from one level to another; the commits round that."""
    write_project(project, *plugins)
    own = {name: benchmark(name) | {"unit": "GB/s", "type": "track"} for name in levels}
    for name, item in own.items():
        if BETTER[name] is not None:  # asv leaves None out
            item["higher_is_better"] = BETTER[name]
    (project / "results" / "benchmarks.json").write_text(json.dumps({**own, "version": 2}))
    results = [(json.loads(path.read_text()), path) for path in Path(project, "results/host").glob("*-existing.json")]
    results.sort(key=lambda pair: int(pair[0]["date"]))
    for at, (result, path) in enumerate(results):
        result["results"] = {name: [[pair[at >= 3]], [], "1"] for name, pair in levels.items()}
        path.write_text(json.dumps(result))
    return results[2][0]["commit_hash"], results[3][0]["commit_hash"]


def asv(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return PRELOADED.run(["-m", "asv", *arguments], project, os.environ | {"HOME": str(project)})


@pytest.mark.parametrize(
    ("name", "before", "after", "mark"),
    [
        ("suite.track_rate", 2.0, 1.0, "+"),  # asv's mark for worse
        ("suite.track_rate", 1.0, 2.0, "-"),
        ("suite.track_rate", 1.0, 1.05, ""),  # within asv's factor of 1.1
        ("suite.track_seconds", 2.0, 1.0, "-"),
        ("suite.track_seconds", 1.0, 2.0, "+"),
        ("suite.track_temperature", 1.0, 2.0, ""),
        ("suite.track_temperature", 2.0, 1.0, ""),
    ],
)
def test_compare_and_its_exit_status(tmp_path: Path, name: str, before: float, after: float, mark: str) -> None:
    commits = write_levels(tmp_path, {name: (before, after)}, PLUGIN)
    done = asv(tmp_path, "compare", *commits)
    (row,) = [line for line in done.stdout.splitlines() if name in line]
    assert row.split("|")[1].strip() == mark
    assert done.returncode == (mark == "+"), done.stdout + done.stderr


def test_compare_lists_by_direction_and_keeps_failures(tmp_path: Path) -> None:
    commits = write_levels(tmp_path, {"suite.track_rate": (2.0, 1.0), "suite.track_seconds": (2.0, 1.0)}, PLUGIN)
    done = asv(tmp_path, "compare", "--split", *commits)
    better, worse = done.stdout.index("have improved"), done.stdout.index("have got worse")
    assert better < done.stdout.index("suite.track_seconds") < worse < done.stdout.index("suite.track_rate")
    (path,) = Path(tmp_path, "results/host").glob(f"{commits[1][:8]}*.json")
    result = json.loads(path.read_text())
    result["results"] = {name: [None, [], "1"] for name in result["results"]}
    path.write_text(json.dumps(result))
    done = asv(tmp_path, "compare", *commits)
    assert "failed" in done.stdout
    assert done.returncode == 1


def test_compare_by_itself_has_it_backwards_and_always_exits_0(tmp_path: Path) -> None:
    """When this fails the patches of asv's compare may go."""
    commits = write_levels(tmp_path, {"suite.track_rate": (2.0, 1.0), "suite.track_seconds": (1.0, 2.0)})
    done = asv(tmp_path, "compare", *commits)
    marks = {
        line.split("|")[5].strip(): line.split("|")[1].strip() for line in done.stdout.splitlines() if "track" in line
    }
    assert marks == {"suite.track_rate": "-", "suite.track_seconds": "+"}
    assert done.returncode == 0


SUITE = """
import os, pathlib

def value():
    return float(pathlib.Path(os.environ["KERNELWATCH_TREE"], "value").read_text())

def track_rate():
    return value()

track_rate.unit, track_rate.higher_is_better, track_rate.version = "GFLOP/s", True, "1"
"""


@pytest.mark.parametrize(
    ("plugins", "status"), [([PLUGIN], {"fell": 1, "rose": 0}), ([], {"fell": 0, "rose": 1})], ids=["ours", "asv's own"]
)
def test_continuous(tmp_path: Path, plugins: list[str], status: dict[str, int]) -> None:
    """Of two commits that are run; where asv by itself exits 1 on the fall, the patches may go."""
    link_engine(tmp_path)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "__init__.py").touch()
    (tmp_path / "suites" / "suite.py").write_text(SUITE)
    own = [alone("recording"), alone("environment")]
    conf = {"version": 1, "project": "small", "repo": ".", "branches": ["main"], "environment_type": "checkout"}
    conf |= {"benchmark_dir": "suites", "plugins": own + plugins}
    (tmp_path / "asv.conf.json").write_text(json.dumps(conf))
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commits = {}
    for day, (name, value) in enumerate({"base": 2.0, "fell": 1.0, "rose": 4.0}.items(), start=1):
        (tmp_path / "value").write_text(str(value))
        git(tmp_path, "add", "value")
        git(tmp_path, "commit", "--quiet", "-m", name, day=day)
        commits[name] = git(tmp_path, "rev-parse", "HEAD")
    for name, expected in status.items():
        done = asv(tmp_path, "continuous", "-E", "checkout", commits["base"], commits[name])
        assert "suite.track_rate" in done.stdout, done.stdout + done.stderr
        assert done.returncode == expected, done.stdout + done.stderr


def test_direction_where_it_is_not_said() -> None:
    assert direction_of({"type": "time"}) is False
    assert direction_of({"type": "track"}) is None
    assert direction_of({"type": "track", "higher_is_better": True}) is True


def test_asv_has_what_is_patched() -> None:
    """Before the plugin is set up; with another asv these names may be gone."""
    for name in ("unroll_result", "_is_result_better"):
        assert callable(getattr(compare, name))
    for name in ("run", "print_table"):
        assert callable(getattr(compare.Compare, name))
