"""Both distributions, built as wheels and as sdists, and installed in fresh environments with each extra, where nothing
is pinned by this repository: the engine, followed by all of docs/own.md, and the kernels."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.history import records
from tests.conftest import gpu_missing
from tests.reader import Reader
from tests.repositories import ROOT, new_project, small_cache

ASKED = "GPUKERNELS_INSTALLS"
heavy = pytest.mark.skipif(
    not os.environ.get(ASKED), reason=f"of {ASKED}=1's environments five fetch 0.6 to 0.9 GB each: some minutes"
)
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PROJECTS = {"kernelwatch": ROOT / "kernelwatch", "gpukernels": ROOT}


def tracked(name: str) -> set[str]:
    """The package's files in git."""
    listed = subprocess.run(["git", "ls-files", name], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(listed.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """By the distribution and its kind, the file."""
    python = tmp_path_factory.mktemp("builder") / "venv" / "bin" / "python"
    venv.create(python.parents[1])
    install = [*PIP, "--python", str(python), "install", "--quiet", "--no-compile", "build", "hatchling"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution found for" in done.stderr:
        pytest.skip("pip has no network to build with")
    assert not done.returncode, done.stderr
    made = {}
    for name, folder in PROJECTS.items():
        out = tmp_path_factory.mktemp(name)
        # The wheel is built from the sdist. What builds must be there: all four share its environment.
        command = [str(python), "-m", "build", "--no-isolation", "--outdir", str(out), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stdout + done.stderr
        (made[name, "wheel"],), (made[name, "sdist"],) = out.glob("*.whl"), out.glob("*.tar.gz")
    return made


@pytest.mark.xdist_group("installing")
@pytest.mark.parametrize("name", PROJECTS)
def test_a_distribution_has_every_file_of_its_package(name: str, built: dict[tuple[str, str], Path]) -> None:
    own = {file for file in tracked(name) if Path(file).name not in ("pyproject.toml", "README.md")}
    with zipfile.ZipFile(built[name, "wheel"]) as wheel:
        files = {file for file in wheel.namelist() if ".dist-info/" not in file}
        assert files == {file for file in own if (ROOT / file).is_file()}
    with tarfile.open(built[name, "sdist"]) as sdist:
        inside = {file.partition("/")[2] for file in sdist.getnames()}
    below = "" if name == "gpukernels" else f"{name}/"
    assert {file.removeprefix(below) for file in own} <= inside
    assert built[name, "sdist"].stat().st_size < 30 << 20


@pytest.mark.parametrize("version", ["13", "12"])
def test_an_extra_has_all_that_compiles(version: str) -> None:
    """cuda-core comes without the bindings that it needs, which are for one version of CUDA."""
    extras = tomllib.loads((ROOT / "kernelwatch" / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bindings = [text for text in extras[f"cuda{version}"] if text.startswith("cuda-bindings")]
    assert bindings == [f"cuda-bindings>={'13.0' if version == '13' else '12.8'},<{int(version) + 1}"]


def environment(folder: Path, file: Path, extra: str) -> Path:
    """The folder of the programs of a fresh environment, in which a distribution is installed with an extra."""
    venv.create(folder)
    programs = folder / "bin"
    wanted = f"{file}[{extra}]" if extra else str(file)
    pip = [*PIP, "--python", str(programs / "python"), "install", "--quiet", "--no-compile", wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return programs


EXTRAS = {  # what each of the small ones is for
    "fleet": "import bokeh; from kernelwatch.extras.fleet import cluster, local, remote",
    "draw": "import matplotlib; from kernelwatch.extras import picture",
    "mcp": "from kernelwatch.extras import mcp; assert mcp.server().name == 'kernelwatch'",
}


@heavy
@pytest.mark.xdist_group("installing")
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_it_is_for(extra: str, built: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    """And nothing without it does: a command says what to install."""
    for name, code in (("", 1), (extra, 0)):
        programs = environment(tmp_path / f"venv {name}", built["kernelwatch", "wheel"], name)
        done = subprocess.run([programs / "python", "-c", EXTRAS[extra]], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr


@heavy
@pytest.mark.xdist_group("installing")
@pytest.mark.parametrize(
    ("kind", "extra"), [("wheel", "cuda13"), ("sdist", "cuda12"), ("sdist", "")], ids=lambda value: value or "none"
)
def test_the_engine_in_a_fresh_environment_does_what_its_page_says(
    kind: str, extra: str, built: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    programs = environment(tmp_path / "venv", built["kernelwatch", kind], extra)
    (installed,) = (tmp_path / "venv").glob("lib/*/site-packages/kernelwatch")
    small_cache(installed)
    project = new_project(tmp_path, "rows")
    project.git("commit", "-q", "--allow-empty", "-m", "Begin")
    Reader(project, programs, {}).do((ROOT / "docs" / "own.md").read_text(encoding="utf-8"))
    sha = project.git("rev-parse", "HEAD")[:8]
    (path,) = project.folder.glob(f"results/*/{sha}-*.facts.jsonl")
    cells = records.read(path).cells
    states = {key: cell.state for key, cell in cells.items()}
    for key, cell in cells.items():
        rung = key.partition(" ")[0]
        if key.startswith(("axpy/numpy", "axpy/new", "row_sum/numpy", "row_sum/einsum")):
            assert cell.state == "ok", key
        elif key.startswith("axpy/cuda float32 sm_"):
            assert cell.state == ("ok" if extra else "na"), (key, cell.reason)
        elif rung in ("axpy/cuda", "axpy/elementwise", "axpy/core", "row_sum/cupy"):
            assert cell.state == ("na" if gpu_missing() or not extra else "ok"), (key, cell.reason)
        else:  # neither Triton nor PyTorch comes with an extra
            assert cell.state == "na", (key, cell.reason)
    assert {f"axpy/cuda float32 {arch}" for arch in ARCHES} <= states.keys()
    for arch in ARCHES if extra else ():
        one = cells[f"axpy/cuda float32 {arch}"].measurements[0]
        assert one["registers"] >= 8
        assert one["instructions"] > 10
        assert one["occupancy_percent"] == 100
    if extra:  # the rung of cuda.core as far as it goes without a driver: compiled, for a device that is not here
        text = (project.folder / "rows" / "axpy_core.py").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("DEVICE")]
        code = "\n".join(lines).replace('f"sm_{DEVICE.arch}"', '"sm_90"').replace('.get_kernel("axpy")', "")
        assert 'arch="sm_90"' in code
        done = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr


KERNELS = """
import numpy as np, gpukernels
from gpukernels import compile_cuda
x = np.arange(6, dtype="float32").reshape(2, 3)
assert (gpukernels.load("transpose", "c", "float32")(x) == x.T).all()
found = gpukernels.rung("transpose", "padded")
for type in found.types:
    print(*compile_cuda(found, type, "sm_90"))
"""


@heavy
@pytest.mark.xdist_group("installing")
@pytest.mark.parametrize(("kind", "extra"), [("sdist", "cuda13"), ("wheel", "cuda12")])
def test_the_kernels_in_a_fresh_environment(
    kind: str, extra: str, built: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    programs = environment(tmp_path / "venv", built["gpukernels", kind], extra)
    done = subprocess.run(
        [programs / "python", "-c", KERNELS],
        cwd=tmp_path,
        env={**os.environ, "GPUKERNELS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert done.stdout.count("transpose_padded") >= 3
