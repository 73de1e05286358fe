"""What `kernelwatch init` writes for kernels that exist, once it is filled in and called."""

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kernelwatch import __main__ as console
from kernelwatch.plan import tree
from kernelwatch.plan.package import Absent
from kernelwatch.plan.project import load_from
from tests.reader import write
from tests.repositories import new_project, without_modules
from tests.test_init import uncomment

SOFTMAX = """
import triton

@triton.jit
def softmax_kernel(x, out, n):
    pass

def softmax(out, x, *, scale):
    softmax_kernel[(1,)](x, out, 4)
"""


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> Path:
    """A repository with these files, for which init wrote a description whose comments are code now."""
    project = new_project(tmp_path, "rows")
    write(project.folder, files)
    project.commit_all("kernels")
    monkeypatch.chdir(project.folder)
    assert console.main(["init"]) == 0
    uncomment(project.folder)
    return project.folder


def test_a_parameter_out_is_the_output_and_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path, monkeypatch, {"ops/__init__.py": SOFTMAX})
    description = folder / "benchmarks" / "project.py"
    description.write_text(description.read_text().replace('"scale": ...', '"scale": 2'))
    ops = ModuleType("ops")
    calls: list[Any] = []
    vars(ops)["softmax"] = lambda out, x, *, scale: calls.append((out, x, scale))
    monkeypatch.setitem(sys.modules, "ops", ops)
    with without_modules("benchmarks"):
        (problem,) = load_from(folder / "benchmarks").problems
        softmax = importlib.import_module("benchmarks.rungs").KERNELS["softmax"]["triton"]
    operands = problem.computation.operands((4,), "float32")
    assert (len(operands.inputs), len(operands.outputs), operands.scalars) == (1, 1, {"scale": 2})
    assert list(inspect.signature(problem.computation.reference).parameters) == ["x", "scale"]
    x, out = np.ones(4), np.zeros(4)
    softmax(x, out=out, **operands.scalars)
    assert calls == [(out, x, 2)]


def test_a_commit_without_the_source_of_a_kernel_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path, monkeypatch, {"kernels/twice.cu": "__global__ void twice(float *x) {}\n"})
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, SimpleNamespace()))
    places = tree.Places(tmp_path / "without", (tmp_path / "without",))
    monkeypatch.setattr(tree, "_guards", [tree.Guard(places, folder)])
    with without_modules("benchmarks"):
        load_from(folder / "benchmarks")
        compiled = importlib.import_module("benchmarks.rungs").compiled
        with pytest.raises(Absent, match=r"^this commit has no file kernels/twice\.cu$"):
            compiled("kernels/twice.cu", "twice")
