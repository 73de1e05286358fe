"""What the tests share: a cache of compiled kernels that is not the user's, and the GPU or why there is none."""

import compileall
import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.sums_of_rows import Rows

# Set before NumPy is imported: OpenBLAS's idle threads would spin, some 0.1 s in each process. Those of a worker that
# times CPU rungs, which has as many as cores, sleep soon; and so do OpenMP's, which wait for each other.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4", "OMP_WAIT_POLICY": "passive"}

# Each pytest that a test starts would import asyncio for a plugin that no test here uses, a quarter of its start.
os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p no:anyio".strip()

# The tests start hundreds of processes: each would compile the engine's modules anew if no bytecode were written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from gpukernels import compiler

ROOT = Path(__file__).resolve().parent.parent
gc.set_threshold(100_000)  # with Python's default, each process of pytest looks for cycles for an eighth of its time
sys.dont_write_bytecode = False  # each of pytest-xdist's workers would rewrite all assertions

# A shell starts what is in its background with Ctrl-C ignored, which all children inherit. The tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def gpu_missing() -> str | None:
    """Why no GPU can be used here, in the words of Python or the CUDA runtime; None where one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        cupy.zeros(1)  # a device that is counted may still be unusable
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return None


def _look_again() -> None:
    """Forget where compiled files are kept. The gate of the kernels runs where there is no engine to ask."""
    compiler.cache_folder.cache_clear()
    if engine := sys.modules.get("kernelwatch.system.cache"):
        engine.folder.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled kernels for this session, cold at its start, one for all of pytest-xdist's workers.

    Subprocesses inherit it. Their temporary files lie in a folder that pytest removes, since a process that is killed
    leaves its own behind. CuPy makes its own cache where it is first imported: nothing imports it before this.
    """
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        base = base.parent  # a worker's own folder lies in the session's
    temporary = tmp_path_factory.getbasetemp() / "tmp"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.setenv("GPUKERNELS_CACHE", str(base / "kernels"))
        patch.setenv("KERNELWATCH_CACHE", str(base / "engine"))
        patch.setenv("CUPY_CACHE_DIR", str(base / "cupy"))
        patch.setenv("TRITON_CACHE_DIR", str(base / "triton"))
        # All environments have one pip, whose modules are compiled once; else each home folder would get its own.
        patch.setenv("VIRTUALENV_OVERRIDE_APP_DATA", str(base / "virtualenv"))
        patch.setenv("VIRTUALENV_SYMLINK_APP_DATA", "1")
        # Timed tests of several workers do not wait for each other, nor for a run of the user's.
        patch.setenv("KERNELWATCH_LOCKS", str(tmp_path_factory.getbasetemp()))
        _look_again()
        yield base / "kernels"
    _look_again()


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[None]:
    """Skips a test marked gpu where there is none; hands CuPy's memory back after each test, the big ones need it."""
    if request.node.get_closest_marker("gpu") and (reason := gpu_missing()):
        pytest.skip(f"needs a CUDA GPU: {reason}")
    yield
    if "cupy" in sys.modules and not gpu_missing():
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


@pytest.fixture
def cp() -> Any:
    """CuPy, for a test that is marked gpu."""
    import cupy

    return cupy


@pytest.fixture
def no_gpu(kernel_cache: Path) -> str:
    """Why there is no GPU; skips where there is one."""
    reason = gpu_missing()
    if reason is None:
        pytest.skip("a GPU is here: this is what happens without one")
    return reason


@pytest.fixture(scope="session")
def small_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the engine, for $PYTHONPATH, that measures on a CPU with the least memory, by a clock of
    its own, which is exact: in one process, and in few turns what it cannot decide."""
    from tests.repositories import SMALL_ENGINE, copy_into, rewrite

    folder = tmp_path_factory.mktemp("engine")
    copy_into(folder, ["kernelwatch"])
    for edits in SMALL_ENGINE:
        rewrite(folder, edits)
    return folder


@pytest.fixture(scope="session")
def api_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the engine, for $PYTHONPATH, whose API measures with little memory. The API has the real
    clock, so it takes all of its turns: two, of which the small engine has enough, tell nothing where others work."""
    from tests.repositories import FEW_BUFFERS, SMALL_ARENA, copy_into, rewrite

    folder = tmp_path_factory.mktemp("api")
    copy_into(folder, ["kernelwatch"])
    for edits in (FEW_BUFFERS, SMALL_ARENA):
        rewrite(folder, edits)
    return folder


@pytest.fixture(scope="session")
def exact_api(tmp_path_factory: pytest.TempPathFactory, api_engine: Path) -> Path:
    """The folder of a copy of `api_engine` whose clock only `kernelwatch.system.clock.sleep` moves, which the functions
    call that it measures: what else this machine does moves no verdict."""
    from tests.repositories import PASSED_CLOCK, rewrite

    folder = tmp_path_factory.mktemp("exact") / "engine"
    shutil.copytree(api_engine, folder)
    rewrite(folder, PASSED_CLOCK)
    return folder


@pytest.fixture(scope="session")
def installed_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment in which the engine is installed from its folder; its clock and its
    turns are those of `small_engine`. Tests that use it are in the xdist_group "foreign", so that one worker makes
    it."""
    from tests.repositories import SMALL_ENGINE, rewrite, small_cache

    base = tmp_path_factory.mktemp("an environment, größer")
    venv.create(base / "venv")  # without a pip of its own, which takes seconds to install
    programs = base / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", str(ROOT / "kernelwatch")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("pip has no network to install the engine with")
    assert not done.returncode, done.stderr
    (installed,) = (base / "venv").glob("lib/*/site-packages/kernelwatch")
    small_cache(installed)
    for edits in SMALL_ENGINE:
        rewrite(installed.parent, edits)
    return programs


@pytest.fixture
def rows(tmp_path: Path, small_engine: Path) -> "Rows":
    """An empty repository whose rungs are sums of rows."""
    from tests.repositories import new_project
    from tests.sums_of_rows import Rows

    project = new_project(tmp_path, "rows")
    return Rows(project.folder, project.home, small_engine)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name a test that does not end before faulthandler ends the process, whose stack shows no parameters."""
    limit = float(item.config.getini("faulthandler_timeout") or 0)
    timer = threading.Timer(0.9 * limit, _name, [item])
    timer.daemon = True
    if limit:
        timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def _name(item: pytest.Item) -> None:
    if capture := item.config.pluginmanager.getplugin("capturemanager"):
        capture.suspend_global_capture(in_=True)
    print(f"\n{item.nodeid} does not end", file=sys.stderr, flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """In a fresh clone, rewrite the assertions of all tests and compile all modules once. Each of pytest-xdist's
    workers, and each project that the tests copy, would do so itself."""
    modules = sorted(map(str, Path(__file__).parent.glob("test_*.py")))
    if any(Path(__file__).parent.glob("__pycache__/test_*.pyc")):
        return
    count = len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    parts = [subprocess.Popen([*command, *modules[at::count]], stdout=subprocess.DEVNULL) for at in range(count)]
    for name in ("kernelwatch", "gpukernels", "benchmarks", "scripts"):
        compileall.compile_dir(ROOT / name, quiet=2)  # what does not compile, its tests tell
    for part in parts:
        part.wait()  # what it cannot collect, the workers tell


collect_ignore = ["data"]  # other projects, with a package `benchmarks` and tests of their own

# The modules with the longest groups of tests, in the order in which they start, so that the workers end at one time.
# What compiles every rung comes before those that then find the same rungs compiled.
LONGEST = (
    *("test_static", "test_fleet", "test_own_page", "test_pages", "test_running", "test_versus", "test_planted"),
    *("test_adding", "test_planted_links", "test_redteam", "test_asv", "test_confirm", "test_bench", "test_untrusted"),
    *("test_publishing", "test_plain_turns", "test_crossed", "test_two_environments", "test_local_cluster"),
    *("test_renamed", "test_unchanged_candidates", "test_plain", "test_pools", "test_decisions", "test_beside"),
    *("test_examples", "test_gate", "test_judge", "test_trees"),
)


def pytest_collection_finish() -> None:
    gc.freeze()  # the tests stay: nobody need look for cycles among them


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of an xdist_group in one worker. pytest-xdist 3.8 tells its scheduler the group by an attribute
    that pytest 9.2 does not read any more; without this each worker repeats every shared set-up.
    """
    place = {stem: at for at, stem in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
    if not getattr(config.option, "loadgroup", False):
        return
    from _pytest.nodeid import coerce_node_id  # not there in an older pytest, which needs no help

    for item in items:
        for mark in item.iter_markers("xdist_group"):
            if "@" not in item.nodeid.rpartition("]")[2]:
                item._id = coerce_node_id(f"{item.nodeid}@{mark.args[0]}")
