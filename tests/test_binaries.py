"""The exact figures of kernels that a package compiles by itself, by Triton and by NVRTC: without a GPU."""

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.analysis import compiled
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.comparison import exact
from kernelwatch.comparison.exact import Figures
from kernelwatch.plan import binaries
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.plan.package import Absent, Importing, NotHere
from kernelwatch.plan.project import Project, load_from
from kernelwatch.suites import compiled as suites
from tests.repositories import without_modules

pytest.importorskip("triton", reason="compiles kernels without a GPU; it is in the requirements of the tests")

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def scaled(x, out, alpha, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, alpha * tl.load(x + i, i < n), i < n)


TUNED = triton.autotune([triton.Config({"BLOCK": 512})], key=["n"])(scaled)
"""
TABLE = """
from kernelwatch.plan import binaries
from kernelwatch.plan.cubin import read_cubin

KERNELS = {"scale": {"triton": "mine.kernels:scaled", "raw": "mine.kernels:raw", "other": "mine.kernels:other"}}
SOURCE = 'extern "C" __global__ void raw(const float *x, float *out) { out[threadIdx.x] = BY * x[threadIdx.x]; }'


def of_triton(type, arch):
    from mine.kernels import TUNED

    signature = {"x": "*fp32", "out": "*fp32", "alpha": "fp32", "n": "i32"}
    return binaries.of_triton(TUNED, arch, signature, {"BLOCK": 1024}, num_warps=4)


def of_raw(type, arch):
    return binaries.of_cuda(SOURCE, "raw", arch, 256, define_macro=("BY", "3"))


BINARIES = {"scale": {"triton": of_triton, "raw": of_raw}}
"""
FILES = {
    "mine/__init__.py": TABLE,
    "mine/kernels.py": KERNELS,
    "suites/__init__.py": "",
    "suites/project.py": """
from pathlib import Path

from kernelwatch.plan.problem import Computation, Problem, Rung
from kernelwatch.plan.project import Project

SCALED = Computation.of_shapes(lambda shape: (shape,), lambda shape: shape, lambda x: 3 * x)
NAMES = ("triton", "raw", "other")
RUNGS = tuple(Rung(name, "gpu", ("float32",), compiled=True) for name in NAMES)
PROJECT = Project("mine", Path(__file__).resolve(), (Problem("scale", SCALED, RUNGS, shapes=((4096,),)),))
""",
    "suites/static.py": """
from kernelwatch.run.outcome import Group
from kernelwatch.suites import compiled

from .project import PROJECT


class Scale(compiled.Static, project=PROJECT, op="scale"):
    def setup_cache(self) -> Group:
        return self.measure()
""",
}
Changed = Callable[..., str]


@pytest.fixture
def package(tmp_path: Path) -> Changed:
    """A folder with the package, in which texts were replaced."""
    count = 0

    def made(*replaced: tuple[str, str, str]) -> str:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        for name, text in FILES.items():
            for file, old, new in replaced:
                if file == name:
                    assert old in text
                    text = text.replace(old, new)  # noqa: PLW2901
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return str(folder)

    return made


@pytest.fixture
def two_arches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of one architecture that Triton compiles for, and of one that it does not support."""
    for module in (compiled, suites):
        monkeypatch.setattr(module, "ARCHES", ("sm_75", "sm_90"))


@pytest.fixture
def project(package: Changed) -> Iterator[Project]:
    with without_modules("suites"):
        yield load_from(Path(package()) / "suites")


def figures(project: Project, folder: str, *rungs: str) -> Figures:
    return exact.figures_of(project, folder, {f"scale/{rung}" for rung in rungs})


def isnan(value: exact.Value) -> bool:
    return math.isnan(float(value))


def of(found: Figures, name: str, *where: str) -> exact.Value:
    return next(value for series, value in found.values.items() if series.name.endswith(name) and series.where == where)


def test_the_figures_of_a_triton_kernel(project: Project, package: Changed) -> None:
    found = figures(project, package(), "triton")
    assert not {key: why for key, why in found.missing.items() if "sm_75" not in key}
    for arch in ARCHES:
        values = [of(found, name, "triton", "float32", arch) for name in ("registers", "occupancy", "instructions")]
        if arch == "sm_75":
            assert all(map(isnan, values))  # Triton does not support it
            continue
        registers, occupancy, instructions = map(float, values)
        assert 8 <= registers <= 64
        assert occupancy == 100
        assert 20 < instructions < 500
    binary = found.binaries["scale/triton"]
    assert {launch[1] for launch in binary.values()} == {128}


def test_versus_compares_the_cubins_of_triton(two_arches: None, project: Project, package: Changed) -> None:
    base = figures(project, package(), "triton")
    moved = package(
        ("mine/kernels.py", "\n\n@triton.jit", "\n\n# Elsewhere in the file, and in another folder.\n@triton.jit")
    )
    same = figures(project, moved, "triton")
    assert exact.differences(base, same) == []
    assert same.binaries == base.binaries
    wide = figures(project, package(("mine/__init__.py", "num_warps=4", "num_warps=1")), "triton")
    found = {(each.series.where, each.series.name.rpartition("_")[2]) for each in exact.differences(base, wide)}
    assert (("triton", "float32", "sm_90"), "registers") in found
    assert (("triton", "float32", "sm_90"), "instructions") in found
    broken = figures(project, package(("mine/kernels.py", "tl.load(x + i, i < n)", "tl.load(y + i)")), "triton")
    assert {each.verdict for each in exact.differences(base, broken)} == {"failed"}
    assert "y is not defined" in str(of(broken, "registers", "triton", "float32", "sm_90"))


def test_a_kernel_of_cuda_by_nvrtc(two_arches: None, project: Project, package: Changed) -> None:
    base = figures(project, package(), "raw")
    assert float(of(base, "registers", "raw", "float32", "sm_90")) >= 8
    doubled = figures(
        project, package(("mine/__init__.py", "BY * x[threadIdx.x]", "BY * x[threadIdx.x] + x[7]")), "raw"
    )
    assert {each.series.rung for each in exact.differences(base, doubled)} == {"scale/raw"}


TWO = """
extern "C" __device__ __noinline__ float doubled(float x) { return 2 * x; }
extern "C" __global__ void one(float *x) { x[threadIdx.x] = doubled(x[threadIdx.x]); }
#ifdef BOTH
extern "C" __global__ void two(float *x) { x[threadIdx.x] = doubled(doubled(x[threadIdx.x])); }
#endif
"""


def cubin(symbol: str, **options: Any) -> bytes:
    return binaries.of_cuda(TWO, symbol, "sm_90", 1, **options).path.read_bytes()


def test_a_cubin_tells_its_only_kernel() -> None:
    """A function that a kernel calls is none."""
    content = cubin("one", relocatable_device_code=True)
    assert b".text.doubled" in content
    made = binaries.of_cubin(content, "sm_90", block_threads=96, dynamic_shared_bytes=64)
    assert (made.symbol, made.block_threads, made.dynamic_shared_bytes) == ("one", 96, 64)
    assert made.path.read_bytes() == content
    with pytest.raises(ValueError, match="one takes blocks of any size; of_cubin needs block_threads"):
        binaries.of_cubin(content, "sm_90")
    with pytest.raises(ValueError, match=r"the cubin must have one kernel; it has (one, two|two, one)$"):
        binaries.of_cubin(cubin("one", define_macro="BOTH"), "sm_90", block_threads=96)
    with pytest.raises(ValueError, match="ELFError: Magic number does not match"):
        binaries.of_cubin(b".version 9.0", "sm_90", block_threads=96)


def test_a_cubin_tells_the_block_that_its_compiler_chose(package: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package())
    try:
        theirs = importlib.import_module("mine").of_triton("float32", "sm_90")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
            del sys.modules[name]
    ours = binaries.of_cubin(theirs.path.read_bytes(), "sm_90", dynamic_shared_bytes=theirs.dynamic_shared_bytes)
    assert ours == theirs


def test_what_no_table_lists_is_not_applicable(project: Project, package: Changed) -> None:
    found = figures(project, package(), "other")
    assert all(map(isnan, found.values.values()))


def test_what_a_table_of_binaries_must_be(package: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package())
    from kernelwatch.plan.functions import adapt

    module = importlib.import_module("mine")
    try:
        offered = adapt(module)
        assert isinstance(offered, Importing)
        assert offered.imports().keys() >= {"triton", "triton ptxas", "triton ptxas-blackwell"}
        with pytest.raises(Absent, match=r"this commit has no scale/other: mine.BINARIES does not list it"):
            offered.binary("scale", "other", "float32", "sm_90")
        for table, said in {
            "[]": r"mine.BINARIES must be a table {op: {rung: function}}; it is \[\]",
            "{'scale': 3}": r'mine.BINARIES\["scale"\] must be a table {rung: function}; it is 3',
            "{'scale': {'raw': 3}}": r'mine.BINARIES\["scale"\]\["raw"\] must be a function or a text .*; it is 3',
        }.items():
            vars(module)["BINARIES"] = eval(table)
            with pytest.raises(TypeError, match=said):
                offered.binary("scale", "raw", "float32", "sm_90")
        for missing, error in {"no_such_compiler": NotHere, "mine.no_such_kernel": ModuleNotFoundError}.items():
            vars(module)["BINARIES"] = {"scale": {"raw": lambda *_, name=missing: importlib.import_module(name)}}
            with pytest.raises(error, match=f"No module named '{missing}'"):
                offered.binary("scale", "raw", "float32", "sm_90")
        del vars(module)["BINARIES"]
        with pytest.raises(NotHere, match=r"mine has no binary\(\)"):
            offered.binary("scale", "raw", "float32", "sm_90")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
            del sys.modules[name]


NAMED = """
#include <cuda_fp16.h>
#include "scales.h"
namespace ops {
template <typename T, int N> __global__ void scale(T *x) { x[threadIdx.x] = T(float(x[threadIdx.x]) * (N * SCALE)); }
}
__global__ void plain(float *x) { x[threadIdx.x] *= SCALE; }
extern "C" __global__ void bare(float *x) { x[threadIdx.x] *= SCALE + 1; }
"""


def test_a_kernel_is_named_as_cpp_names_it(tmp_path: Path) -> None:
    """A template is instantiated, and what it includes is found, beside it or in other folders and among CUDA's own."""
    (tmp_path / "scales.h").write_text("#define SCALE 3\n")
    source = tmp_path / "kernels.cu"
    source.write_text(NAMED)
    names = {
        "ops::scale<float, 4>": "_ZN3ops5scaleIfLi4EEEvPT_",
        "ops::scale<__half, 4>": "_ZN3ops5scaleI6__halfLi4EEEvPT_",
        "plain": "_Z5plainPf",
        "bare": "bare",
    }
    made = {}
    for name, symbol in names.items():
        beside = binaries.of_cuda(source, name, "sm_90", 128)
        told = binaries.of_cuda(NAMED, name, "sm_90", 128, include=[tmp_path])
        by_option = binaries.of_cuda(NAMED, name, "sm_90", 128, include_path=str(tmp_path))
        assert beside == told == by_option
        assert beside.symbol == symbol
        assert read_cubin(beside.path.read_bytes(), symbol, "sm_90").registers >= 8
        made[name] = beside.path
    assert made["ops::scale<float, 4>"] != made["ops::scale<__half, 4>"]
    (tmp_path / "scales.h").write_text("#define SCALE 5\n")
    assert binaries.of_cuda(source, "plain", "sm_90", 128).path != made["plain"]
    with pytest.raises(Exception, match=r"scales\.h"):
        binaries.of_cuda(NAMED, "plain", "sm_90", 128)
    with pytest.raises(Exception, match="ops"):
        binaries.of_cuda(source, "ops::scaled<float>", "sm_90", 128)
