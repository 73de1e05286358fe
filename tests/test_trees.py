"""Commits are measured as trees: the layouts that repositories have, and what is never called unchanged."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests.repositories import MADE, ROOT, Project, new_project, small_cache

pytestmark = pytest.mark.xdist_group("trees")  # one copy of the engine for all

DESCRIPTION = '''
"""What is measured."""

from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Problem, Rung
from kernelwatch.plan.project import Project

SUM = Computation.of_shapes(
    lambda shape: (shape,),
    lambda shape: shape[:1],
    lambda a: a.astype(np.float64).sum(axis=1),
    bound=lambda type, a: a.shape[1] * 2.0**-24 * abs(a).astype(np.float64).sum(axis=1),
    flops=lambda shape: shape[0] * shape[1],
)
PROJECT = Project(
    package="rows",
    here=Path(__file__).resolve(),
    problems=(
        Problem(
            name="row_sum",
            computation=SUM,
            rungs=({rungs}),
            shapes=((64, 64),),
            cpu_shapes=((64, 64),),
        ),
    ),
    {more}
)
'''
SUITE = '''
"""The suites of row_sum."""

from kernelwatch.run.outcome import Group
from kernelwatch.suites import timed

from .project import PROJECT


class CPU(timed.CpuFlops, project=PROJECT, op="row_sum"):
    def setup_cache(self) -> Group:
        return self.measure()
'''
CONFIGURATION = {
    "version": 1,
    "project": "rows",
    "repo": ".",
    "branches": ["main"],
    "environment_type": "checkout",
    "plugins": [".kernelwatch.asv"],
    "benchmark_dir": "benchmarks",
    "results_dir": "results",
    "env_dir": ".asv/env",
    "html_dir": ".asv/html",
}
PLAIN, OTHER = 'Rung("plain", "cpu", ("float32",)),', 'Rung("other", "cpu", ("float32",)),'
KERNEL = """
import numpy as np

TIMES = {times}


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""
FAST, SLOW = KERNEL.format(times=4), KERNEL.format(times=100)
OTHER_KERNEL = """
import numpy as np


def other(a, out):
    np.einsum("ij->i", a, out=out)
"""


@dataclass(frozen=True)
class Rows(Project):
    """A repository with a description and kernels, and a copy of the engine that it is measured by."""

    engine: Path = Path()

    def write(self, **texts: str) -> None:
        """Write files, with a double underscore for each slash in their names."""
        self.write_files({name.replace("__", "/") + ".py": text for name, text in texts.items()})

    def write_files(self, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    def describe(self, rungs: str = PLAIN, more: str = "") -> None:
        """The description and asv's configuration."""
        texts = {"benchmarks/__init__.py": "", "benchmarks/project.py": DESCRIPTION.format(rungs=rungs, more=more)}
        texts |= {"benchmarks/row_sum.py": SUITE, "asv.conf.json": json.dumps(CONFIGURATION)}
        self.write_files({**texts, ".gitignore": "/.asv/\n__pycache__/\n/results/\n/results.lock\n"})

    def kernelwatch(self, *arguments: str, code: int | None = None, **more: str) -> str:
        """What a command of the engine prints; its exit code must be this one."""
        environment = {"PYTHONPATH": str(self.engine), "COLUMNS": "300"} | more
        done = self.run(sys.executable, "-m", "kernelwatch", *arguments, **environment)
        told = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"exit code {done.returncode}\n{told}"
        return told


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the engine that needs little memory."""
    folder = tmp_path_factory.mktemp("engine")
    shutil.copytree(ROOT / "kernelwatch", folder / "kernelwatch", ignore=MADE)
    small_cache(folder / "kernelwatch")
    return folder


@pytest.fixture
def rows(tmp_path: Path, engine: Path) -> Rows:
    project = new_project(tmp_path, "rows")
    return Rows(project.folder, project.home, engine)


# --- layouts -------------------------------------------------------------------------------------------------------

TABLE = 'KERNELS = {"row_sum": {"plain": "rows.sums:plain"}}\n'
# By layout: the files of the first commit, and the file that the second one makes slower.
LAYOUTS = {
    "root": ({"rows/__init__.py": TABLE, "rows/sums.py": FAST}, "rows/sums.py"),
    "src": ({"src/rows/__init__.py": TABLE, "src/rows/sums.py": FAST}, "src/rows/sums.py"),
    "beside the package": (
        {
            "rows/__init__.py": """
            import sys
            from pathlib import Path

            sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))
            KERNELS = {"row_sum": {"plain": "fast_sums:plain"}}
            """,
            "lib/fast_sums.py": FAST,
        },
        "lib/fast_sums.py",
    ),
    "package-dir": (
        {
            "pyproject.toml": '[tool.setuptools.package-dir]\nrows = "code/of_rows"\n',
            "code/of_rows/__init__.py": TABLE,
            "code/of_rows/sums.py": FAST,
        },
        "code/of_rows/sums.py",
    ),
    "hatch": (
        {
            "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["packages/rows"]\n',
            "packages/rows/__init__.py": TABLE,
            "packages/rows/sums.py": FAST,
        },
        "packages/rows/sums.py",
    ),
    "nested": ({"one/two/rows/__init__.py": TABLE, "one/two/rows/sums.py": FAST}, "one/two/rows/sums.py"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slower_commit_is_worse_wherever_the_kernels_lie(rows: Rows, layout: str) -> None:
    files, slower = LAYOUTS[layout]
    rows.describe()
    rows.write_files(files)
    rows.commit_all("fast")
    rows.write_files({slower: SLOW})
    told = rows.kernelwatch("bench", "--worktree", code=1)
    assert "tree is worse than HEAD: 1 cell" in told
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "HEAD is worse than BASE: 1 cell" in told
    assert f"changed: row_sum/plain: {slower}" in told
    assert "evidence: 1 launch changed; 1 judged by time" in told
    rows.write_files({slower: f"# A comment.\n{SLOW}"})
    rows.write_files({"README.md": "Something else."})
    rows.commit_all("harmless")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)
    assert "no change: all 1 launch are the same, and nothing was timed" in told
