"""A small repository whose rungs are sums of rows, with a description and a copy of the engine."""

import json
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from kernelwatch.comparison.changes import Changes
from tests.repositories import Project

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
    package={package!r},
    here=Path(__file__).resolve(),
    problems=(
        Problem(
            name="row_sum",
            computation=SUM,
            rungs=({rungs}),
            shapes=((64, 64),),
            cpu_shapes=({shapes},),
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
# What a command of the engine asks before it times anything.
CHANGES = """
import pickle, sys, tempfile
from pathlib import Path

from kernelwatch.comparison.changes import changes
from kernelwatch.plan.build import tree_of_checkout, tree_of_commit
from kernelwatch.plan.project import load

base, head = sys.argv[1:]
project = load(Path.cwd())
with tempfile.TemporaryDirectory() as folder:
    after = Path(folder, "after")
    tree = tree_of_commit(project, head, after) if head else tree_of_checkout(project, after)
    found = changes(project, tree_of_commit(project, base, Path(folder, "before")), tree)
print(pickle.dumps(found).hex())
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

    def describe(self, rungs: str = PLAIN, more: str = "", *, package: str = "rows", shapes: str = "(64, 64)") -> None:
        """The description and asv's configuration. `shapes`: those that are timed on a CPU."""
        description = DESCRIPTION.format(rungs=rungs, more=more, package=package, shapes=shapes)
        texts = {"benchmarks/__init__.py": "", "benchmarks/project.py": description}
        texts |= {"benchmarks/row_sum.py": SUITE, "asv.conf.json": json.dumps(CONFIGURATION)}
        self.write_files({**texts, ".gitignore": "/.asv/\n__pycache__/\n/results/\n/results.lock\n"})

    def kernelwatch(self, *arguments: str, code: int | None = None, **more: str) -> str:
        """What a command of the engine prints; its exit code must be this one."""
        environment = {"PYTHONPATH": str(self.engine), "COLUMNS": "300"} | more
        done = self.run(sys.executable, "-m", "kernelwatch", *arguments, **environment)
        told = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"exit code {done.returncode}\n{told}"
        return told

    def changes(self, base: str = "HEAD~1", head: str = "HEAD") -> Changes:
        """How the launches of two commits differ. `head`: "" for the checkout, with its uncommitted changes."""
        done = self.run(sys.executable, "-c", CHANGES, base, head, PYTHONPATH=str(self.engine))
        assert done.returncode == 0, done.stderr
        found: Changes = pickle.loads(bytes.fromhex(done.stdout))
        return found


TABLE = 'KERNELS = {"row_sum": {"plain": "rows.sums:plain"}}\n'


C_SUMS = """
extern int optopt;  // the clock of the small engine
void row_sum(const float *a, float *out, long long rows, long long columns) {{
    for (volatile int again = 0; again < {times}; ++again, ++optopt)
        for (long long row = 0; row < rows; ++row) {{
            double sum = 0;
            for (long long at = 0; at < columns; ++at)
                sum += a[row * columns + at];
            out[row] = sum;
        }}
}}
"""
BY_CTYPES = """
import ctypes
from pathlib import Path

LIBRARY = ctypes.CDLL(str(Path(__file__).parent / "libsums.so"))


def plain(a, out):
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, out))
    LIBRARY.row_sum(*pointers, ctypes.c_longlong(a.shape[0]), ctypes.c_longlong(a.shape[1]))
"""
