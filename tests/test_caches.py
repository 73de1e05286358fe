"""The engine's caches of compiled files: every input of what is kept, changed in turn, makes it anew."""

import ctypes
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpukernels
from benchmarks.project import PROJECT, cuda_source
from kernelwatch.analysis import counted, occupancy
from kernelwatch.emulator import build
from kernelwatch.plan.cells import COUNTED, Cell
from kernelwatch.plan.package import CudaSource
from kernelwatch.plan.project import import_package
from kernelwatch.system import cache, tools
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.tools import COMPILER_ENVIRONMENT

ROOT = Path(__file__).resolve().parents[1]
FOUND = gpukernels.rung("vector_add", "elementwise")
Runs = Callable[[Callable[[], object]], int]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv("KERNELWATCH_CACHE", str(tmp_path / "cache"))
    cache.folder.cache_clear()
    yield tmp_path / "cache"
    cache.folder.cache_clear()


@pytest.fixture
def runs(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """How often a call runs the compiler."""
    real, count = build._run_compiler, 0

    def counting(*arguments: object) -> None:
        nonlocal count
        count += 1
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "_run_compiler", counting)

    def of(call: Callable[[], object]) -> int:
        nonlocal count
        count = 0
        call()
        return count

    return of


@pytest.fixture
def include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of headers, of which outer.h includes inner.h."""
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "outer.h").write_text("#include <inner.h>\n")
    (folder / "inner.h").write_text("\n")
    monkeypatch.setenv("CPATH", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path, include: Path) -> CudaSource:
    """A source that includes outer.h."""
    path = tmp_path / FOUND.source.name
    path.write_text(f"#include <outer.h>\n{FOUND.source.read_text()}")
    return cuda_source(dataclasses.replace(FOUND, source=path), "float32")


def edited(path: Path, text: str) -> None:
    path.write_text(f"{path.read_text()}\n{text}\n")


Change = Callable[[CudaSource, Path, pytest.MonkeyPatch], CudaSource]


def another_source(source: CudaSource, _: Path, __: pytest.MonkeyPatch) -> CudaSource:
    edited(source.path, "// changed")
    return source


def another_header(source: CudaSource, folder: Path, _: pytest.MonkeyPatch) -> CudaSource:
    edited(folder / "include" / "inner.h", "#define CHANGED")
    return source


def another_option(source: CudaSource, _: Path, patch: pytest.MonkeyPatch) -> CudaSource:
    patch.setattr(build, "FLAGS", (*build.FLAGS, "-fno-math-errno"))
    return source


def another_version(source: CudaSource, folder: Path, patch: pytest.MonkeyPatch) -> CudaSource:
    """The same command, of which another version was installed."""
    command = tools.cxx_compiler().command
    patch.setattr(tools, "_asked", lambda command: tools.Tool(command, "99"))
    assert tools.cxx_compiler().command == command
    return source


def another_compiler(source: CudaSource, folder: Path, patch: pytest.MonkeyPatch) -> CudaSource:
    real = shutil.which(tools.cxx_compiler().command[0])
    (folder / "other").write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    (folder / "other").chmod(0o755)
    patch.setenv("CXX", str(folder / "other"))
    return source


CHANGES: dict[str, Change] = {
    "source": another_source,
    "header": another_header,
    "macro": lambda source, *_: dataclasses.replace(source, macros={**source.macros, "CHANGED": 1}),
    "standard": lambda source, *_: dataclasses.replace(source, standard="c++20"),
    "headers": lambda source, *_: dataclasses.replace(source, headers=(*source.headers, "cuda_fp16.h")),
    "template": lambda source, *_: dataclasses.replace(source, template=("double",)),
    "option": another_option,
    "version": another_version,
    "compiler": another_compiler,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_input_of_the_emulators_kernel_makes_it_anew(
    change: Change, source: CudaSource, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        assert runs(lambda: build.compile_host(source)) >= 3  # the runtime, the header, the kernel
    except ToolMissing as error:
        pytest.skip(str(error))
    assert runs(lambda: build.compile_host(source)) == 0
    changed = change(source, tmp_path, monkeypatch)
    assert runs(lambda: build.compile_host(changed)) >= 2  # its assembly, its library
    assert runs(lambda: build.compile_host(changed)) == 0


@pytest.mark.parametrize("name", COMPILER_ENVIRONMENT)
def test_what_a_compiler_reads_of_the_environment_is_in_its_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key of a compiled file has the key of its compiler."""
    keys = {tools.Tool(("cc", *options), version).key for options in ((), ("-g",)) for version in ("1", "2")}
    assert len(keys) == 4
    monkeypatch.setenv(name, "another")
    assert tools.Tool(("cc",), "1").key not in keys


def test_the_runtime_and_the_precompiled_header_are_made_of_their_headers(source: CudaSource, runs: Runs) -> None:
    """CUDA's, of which another version comes to the same place, and the emulator's own."""
    try:
        build.compile_host(source)
    except ToolMissing as error:
        pytest.skip(str(error))
    notes = [json.loads(note.read_text()) for note in cache.folder().glob("*.json")]
    read = {Path(name).name for note in notes for name in note["read"]}
    assert {"emulator.h", "vector_types.h", "runtime.cpp", "inner.h"} <= read


def test_the_occupancy_calculator_is_made_of_its_header(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [folder for folder in tools.cuda_headers() if Path(folder, "cuda_occupancy.h").is_file()]
    if not folders:
        pytest.skip("no cuda_occupancy.h here")
    monkeypatch.setattr(tools, "cuda_headers", lambda: (str(tmp_path / "cuda"),))
    shutil.copytree(folders[0], tmp_path / "cuda")
    make = occupancy.calculator.__wrapped__
    make()
    (path,) = own_cache.glob("*.so")
    first = path.stat().st_mtime_ns
    make()
    assert path.stat().st_mtime_ns == first
    edited(tmp_path / "cuda" / "cuda_occupancy.h", "// changed")
    make()
    assert path.stat().st_mtime_ns != first


# --- what was counted ----------------------------------------------------------------------------------------------


def counts_made(cell: Cell, source: CudaSource, monkeypatch: pytest.MonkeyPatch, here: Path) -> list[str]:
    """Which results of a cell were made anew, by their suffix."""
    made, built = [], cache.built

    def noted(key: str, suffix: str, make: Callable[[Path], object]) -> Path:
        return built(key, suffix, lambda path: (made.append(suffix), make(path))[1])  # type: ignore

    package = import_package(PROJECT, str(ROOT))
    project = dataclasses.replace(PROJECT, here=here)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "built", noted)
        patch.setattr(type(package), "cuda_source", lambda *_: source)
        counted.Counter(project, package).measure(cell)
    return [suffix for suffix in made if suffix in (".counts", ".right")]


@pytest.mark.parametrize("change", ["nothing", "header", "description", "beside", "launch", "arguments", "counting"])
def test_each_input_of_what_is_counted_makes_it_anew(
    change: str, source: CudaSource, include: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "described"
    folder.mkdir()
    (folder / "project.py").write_text("# the description\n")
    (folder / "helper.py").write_text("# what it imports\n")
    cell = Cell("vector_add", "elementwise", "float32", (4096,), COUNTED, counted.DEVICE)
    try:
        assert counts_made(cell, source, monkeypatch, folder / "project.py") == [".right", ".counts"]
    except ToolMissing as error:
        pytest.skip(str(error))
    anew = {".right", ".counts"}
    if change == "nothing":
        anew = set()
    elif change == "header":
        edited(include / "inner.h", "#define CHANGED")
    elif change == "description":
        edited(folder / "project.py", "# changed")
    elif change == "beside":
        edited(folder / "helper.py", "# changed")
    elif change == "launch":
        source = dataclasses.replace(source, dynamic_shared_bytes=16)
    elif change == "arguments":  # made by code of the package, so nothing of it is kept
        source = dataclasses.replace(source, arguments=lambda *given: [*map(ctypes.c_uint64, given[1]), *given[3]])
        anew = set()
        before = set(own_cache.iterdir())
        broken = dataclasses.replace(source, arguments=lambda *given: [1 // 0])
        with pytest.raises(ZeroDivisionError):
            counts_made(cell, broken, monkeypatch, folder / "project.py")
        assert set(own_cache.iterdir()) == before
    else:
        monkeypatch.setattr(counted, "_counting", lambda: "another")
    assert set(counts_made(cell, source, monkeypatch, folder / "project.py")) == anew
