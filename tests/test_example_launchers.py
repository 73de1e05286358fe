"""The launchers that `scripts/lab/examples launchers` adds to the example: Numba, cuTile and the CuTe DSL.

Their packages are too large for the requirements of the tests; a test whose package is missing is skipped. All run in
an environment of the tests after `pip install "numba-cuda[cu13]" "cuda-tile[tileiras]>=1.7" "nvidia-cutlass-dsl[cu13]"`
(without the bound pip may take a cuda-tile that has no compiler).
"""

import functools
import importlib
import importlib.util
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from kernelwatch.analysis import compiled
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.comparison import exact
from kernelwatch.comparison.exact import Figures
from kernelwatch.plan.cells import plan
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.functions import adapt
from kernelwatch.plan.package import Importing
from kernelwatch.plan.project import Project, load_from
from kernelwatch.run.codes import note_codes
from kernelwatch.run.group import measure_once
from kernelwatch.run.outcome import Outcome
from kernelwatch.run.processes import Run
from kernelwatch.system.options import Options
from lab import examples, planted
from tests.repositories import without_modules

pytestmark = pytest.mark.xdist_group("example launchers")

NEEDS = {"numba": ("numba", "numba_cuda"), "cutile": ("cuda", "cuda.tile"), "cute": ("cutlass",)}
COMPILERS = {"numba": "numba-cuda", "cutile": "nvidia-cuda-tileiras", "cute": "nvidia-cutlass-dsl-libs-base"}
WIDER = {
    "numba": ("THREADS, WARPS = 256, 8", "THREADS, WARPS = 512, 16"),
    "cutile": ("TILE = 1024", "TILE = 2048"),
    "cute": ("THREADS, WARPS = 256, 8", "THREADS, WARPS = 512, 16"),
}
Changed = Callable[..., Path]


def missing(rung: str) -> str:
    """The first of the modules that a rung needs that is not installed, "" if all are."""
    return next((module for module in NEEDS[rung] if importlib.util.find_spec(module) is None), "")


BROKEN = re.compile(r"(AttributeError: module 'numpy' has no attribute|ImportError: Numba needs NumPy) .*")


@functools.cache
def broken() -> str:
    """Why the installed Numba cannot compile with the installed NumPy, "" if it can, or fails for another reason."""
    code = "from numba import cuda\ncuda.compile(lambda x: None, 'void(float32[:])', cc=(9, 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return last if done.returncode and BROKEN.match(last) else ""


def need(rung: str) -> None:
    if module := missing(rung):
        pytest.skip(f"{module} is not installed; the head of this module says how to run it")
    if rung == "numba" and (why := broken()):
        pytest.skip(f"this Numba does not fit this NumPy: {why}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "repository"
    assert examples.main(["build", str(folder)]) == examples.main(["launchers", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def project(built: Path) -> Iterator[Project]:
    with without_modules("benchmarks"):
        yield load_from(built / "benchmarks")


@pytest.fixture
def changed(built: Path, tmp_path: Path) -> Changed:
    """A copy of the example in which texts of a rung's module were replaced."""

    count = 0

    def made(rung: str, *replaced: tuple[str, str]) -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        shutil.copytree(built, folder)
        path = folder / "layers" / f"by_{rung}.py"
        text = path.read_text()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return folder

    return made


def test_the_rungs_are_one_more_commit(built: Path, project: Project) -> None:
    *recorded, last = planted.commits(built)
    assert len(recorded) == len(examples.changes()) + 1
    added = {str(path.relative_to(examples.EXAMPLES / "launchers")) for path in launchers()}
    files = planted.run(built, "git", "show", "--format=", "--name-only", last).split()
    assert set(files) == added | {"layers/__init__.py", "benchmarks/project.py"}
    with without_modules("layers"), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(built))
        layers = importlib.import_module("layers")
        assert set(NEEDS) < {rung.name for rung in project.op("row_sum").rungs} == set(layers.KERNELS["row_sum"])
        offered = {rung.name for rung in project.op("row_sum").rungs if rung.compiled}
        assert set(NEEDS) < offered == set(layers.BINARIES["row_sum"])
    with pytest.raises(SystemExit, match=r"layers/__init__.py has no .* is to replace"):
        examples.main(["launchers", str(built)])
    assert not planted.run(built, "git", "status", "--short")


def launchers() -> list[Path]:
    return list((examples.EXAMPLES / "launchers").rglob("*.py"))


# --- without a GPU -------------------------------------------------------------------------------------------------


def figures(project: Project, folder: Path, rung: str) -> Figures:
    return exact.figures_of(project, str(folder), {f"row_sum/{rung}"})


def of(found: Figures, figure: str, rung: str, arch: str) -> float:
    where = (rung, "float32", arch)
    (value,) = [
        value
        for series, value in found.values.items()
        if series.name.endswith(f"track_{figure}") and series.where == where
    ]
    return float(value)


@pytest.fixture(scope="module")
def found(built: Path, project: Project) -> Callable[[str], Figures]:
    """The exact figures of a rung, measured once."""
    known: dict[str, Figures] = {}

    def of_rung(rung: str) -> Figures:
        need(rung)
        if rung not in known:
            known[rung] = figures(project, built, rung)
        return known[rung]

    return of_rung


@pytest.mark.parametrize("rung", NEEDS)
def test_the_exact_figures(found: Callable[[str], Figures], rung: str) -> None:
    binaries = found(rung).binaries["row_sum/" + rung]
    for arch in ARCHES:
        if arch == "sm_75" and rung != "numba":
            assert math.isnan(of(found(rung), "registers", rung, arch))  # cuTile and CuTe do not support it
            continue
        assert 8 <= of(found(rung), "registers", rung, arch) <= 255
        assert of(found(rung), "spill_bytes", rung, arch) == 0
        assert 100 < of(found(rung), "instructions", rung, arch) < 1000
        assert 0 < of(found(rung), "occupancy", rung, arch) <= 100
        _, threads, _ = next(launch for key, launch in binaries.items() if key.endswith(arch))
        assert threads == 256 if rung != "cutile" else threads in (128, 256)  # cuTile's compiler chooses
        if rung != "cutile":
            assert of(found(rung), "shared_bytes", rung, arch) == 8 * 4  # a sum of each warp


@pytest.mark.parametrize("rung", NEEDS)
def test_an_edit_moves_the_figures_and_a_comment_does_not(
    found: Callable[[str], Figures], project: Project, changed: Changed, rung: str
) -> None:
    before = found(rung)
    old, new = WIDER[rung]
    moved = figures(project, changed(rung, (old, f"# In another folder.\n{old}")), rung)
    assert exact.differences(before, moved) == []
    if rung != "cutile":  # whose cubins name the lines of the source
        assert moved.binaries == before.binaries
    wider = figures(project, changed(rung, (old, new)), rung)
    assert of(wider, "shared_bytes", rung, "sm_90") > of(before, "shared_bytes", rung, "sm_90")
    assert wider.binaries != before.binaries


@pytest.mark.parametrize("rung", NEEDS)
def test_what_is_not_installed_is_not_applicable(project: Project, built: Path, rung: str) -> None:
    module = missing(rung)
    if module in ("", "numba_cuda"):  # without the latter Numba has an older target of its own
        pytest.skip("what the rung imports is installed")
    targets = compiled.plan(project.op("row_sum"), f"^row_sum/{rung} float32 sm_90$")
    group = measure_once(project, "row_sum", compiled.DEVICE, targets, Options(tree=str(built)))
    (outcome,) = group.outcomes.values()
    assert outcome.state == "na"
    assert f"row_sum/{rung} cannot be compiled here: No module named '{module}'" in outcome.reason


@pytest.mark.parametrize("rung", NEEDS)
def test_its_compiler_is_a_condition(built: Path, rung: str) -> None:
    need(rung)
    with without_modules("layers"), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(built))
        package = adapt(importlib.import_module("layers"))
        assert isinstance(package, Importing)
        assert package.imports()[COMPILERS[rung]] == metadata.version(COMPILERS[rung])


@pytest.mark.parametrize("rung", NEEDS)
def test_what_is_compiled_again_is_the_same_code(built: Path, rung: str) -> None:
    """Numba counts in a kernel's name, and so in the cubin, what the process has compiled."""
    need(rung)
    with without_modules("layers"), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(built))
        package = adapt(importlib.import_module("layers"))
        twice = [package.binary("row_sum", rung, "float32", "sm_90") for _ in range(2)]
        assert rung == "numba" or twice[0] == twice[1]
        once, again = (read_cubin(one.path.read_bytes(), one.symbol, "sm_90") for one in twice)
        assert again.code == once.code


# --- with a GPU ----------------------------------------------------------------------------------------------------

PREFIX = "import cupy\n\nOTHER = cupy.cuda.Stream(non_blocking=True)\n"
BEYOND = r"wrote 1\d\d\d of the 4096 bytes after its output"  # 1024, but for those that have the guard's value anyway
ELSEWHERE = ("    _, pointer = stream.__cuda_stream__()\n", "    pointer = OTHER.ptr\n")


def measured(project: Project, folder: Path, rung: str) -> Outcome:
    cells = [cell for cell in plan(project.op("row_sum"), "gpu") if (cell.rung, cell.shape) == (rung, (256, 4096))]
    run = Run(project, cells, "gpu", str(folder), Budget(3, 0.0005), 60)
    run.measure_all(0)
    note_codes(run)
    (outcome,) = run.group.outcomes.values()
    return outcome


@pytest.mark.gpu
@pytest.mark.parametrize("rung", NEEDS)
def test_what_is_launched_is_what_was_compiled(
    found: Callable[[str], Figures], project: Project, built: Path, rung: str
) -> None:
    need(rung)
    import cupy

    outcome = measured(project, built, rung)
    assert (outcome.state, outcome.reason) == ("ok", "")
    (one,) = outcome.measurements
    assert "timed_by" not in one
    assert one.get("peak_allocated_bytes", 0) == 0
    (kernel,) = one["kernels"]
    assert "row_sum_kernel" in kernel["kernel"]
    assert kernel["grid"] == [256, 1, 1]
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    for figure in ("registers", "instructions"):
        assert kernel[figure] == of(found(rung), figure, rung, arch)
    shared = kernel["static_shared_bytes"] + kernel["dynamic_shared_bytes"]
    assert shared == of(found(rung), "shared_bytes", rung, arch)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rung", "fault", "said"),
    [
        *((rung, ELSEWHERE, "enqueues nothing on the given stream: it runs on another stream") for rung in NEEDS),
        ("numba", ("out[row] = total", "out[row] = total\n        out[row + 256] = total"), BEYOND),
        ("cute", ("out[row] = total", "out[row] = total\n        out[row + 256] = total"), BEYOND),
        # cuTile stores nothing beyond an array.
        ("cutile", ("tile)):", "tile) - 1):"), r"2\d\d of 256 elements wrong, the first at \[0\], off by "),
    ],
)
def test_a_fault_costs_its_own_cell(
    project: Project, changed: Changed, rung: str, fault: tuple[str, str], said: str
) -> None:
    need(rung)
    first = {"numba": "from numba", "cutile": "import cuda.tile", "cute": "from functools"}[rung]
    outcome = measured(project, changed(rung, (first, PREFIX + first), fault), rung)
    assert outcome.state == "failed"
    assert re.search(said, outcome.reason)
