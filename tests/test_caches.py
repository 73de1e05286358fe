"""The engine's caches of compiled files: every input of what is kept, changed in turn, makes it anew."""

import ctypes
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

pytestmark = pytest.mark.xdist_group("caches")  # what is compiled anew is compiled once before

ROOT = Path(__file__).resolve().parents[1]
FOUND = gpukernels.rung("vector_add", "elementwise")
CELL = Cell("vector_add", "elementwise", "float32", (4096,), COUNTED, counted.DEVICE)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv("KERNELWATCH_CACHE", str(tmp_path / "cache"))
    cache.folder.cache_clear()
    yield tmp_path / "cache"
    cache.folder.cache_clear()


Compiler = Callable[[str, Sequence[str]], None]


def no_compiler(_: str, arguments: Sequence[str]) -> None:
    """Takes no time in place of the compiler, for what nobody runs: its output is empty, and it has read nothing."""
    Path(arguments[arguments.index("-o") + 1]).touch()
    if "-MF" in arguments:
        Path(arguments[arguments.index("-MF") + 1]).write_text("output:\n")


@contextmanager
def counting(compiler: Compiler = build._run_compiler) -> Iterator[list[int]]:
    """How often the compiler runs."""
    count = [0]

    def run(who: str, arguments: Sequence[str]) -> None:
        count[0] += 1
        compiler(who, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_run_compiler", run)
        yield count


def runs(source: CudaSource, compiler: Compiler = build._run_compiler) -> int:
    """How often the compiler runs for a source."""
    with counting(compiler) as count:
        build.compile_host(source)
    return count[0]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A folder with a source that includes include/outer.h, which includes inner.h, and headers beside it in the same
    way, own.cuh and deep.cuh. Its cache has all that is compiled and counted of it, whose making ran the compiler
    `count` times and had these `results`; and a copy."""

    folder: Path
    kept: Path
    count: int
    results: tuple[str, ...]

    @property
    def source(self) -> CudaSource:
        return cuda_source(dataclasses.replace(FOUND, source=self.folder / FOUND.source.name), "float32")

    @property
    def here(self) -> Path:
        """The description."""
        return self.folder / "described" / "project.py"


@pytest.fixture(scope="module")
def compiled(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """Compiled once: the emulator's runtime and its precompiled header take seconds."""
    base = tmp_path_factory.mktemp("compiled")
    made = Compiled(base / "work", base / "kept", 0, ())
    for name, text in {
        FOUND.source.name: f'#include <outer.h>\n#include "own.cuh"\n{FOUND.source.read_text()}',
        "own.cuh": '#pragma once\n#include "deep.cuh"\n',
        "deep.cuh": "#define DEEP\n",
        "include/outer.h": "#include <inner.h>\n",
        "include/inner.h": "\n",
        "described/project.py": "# the description\n",
        "described/helper.py": "# what it imports\n",
    }.items():
        (made.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (made.folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        in_folder(made, patch)
        try:
            with counting() as runs:
                build.compile_host(made.source)
            count = runs[0]
            results = counts_made(CELL, made.source, patch, made.here)
        except ToolMissing as error:
            pytest.skip(str(error))
        shutil.copytree(made.folder, made.kept)
        yield dataclasses.replace(made, count=count, results=tuple(results))
    cache.folder.cache_clear()


def in_folder(compiled: Compiled, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("KERNELWATCH_CACHE", str(compiled.folder / "cache"))
    patch.setenv("CPATH", str(compiled.folder / "include"))
    cache.folder.cache_clear()


@pytest.fixture
def again(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiled]:
    """The folder as it then was, times of files included."""
    shutil.rmtree(compiled.folder)
    shutil.copytree(compiled.kept, compiled.folder)
    in_folder(compiled, monkeypatch)
    yield compiled
    cache.folder.cache_clear()


def edited(path: Path, text: str) -> None:
    path.write_text(f"{path.read_text()}\n{text}\n")


Change = Callable[[CudaSource, Path, pytest.MonkeyPatch], CudaSource]


def another_source(source: CudaSource, _: Path, __: pytest.MonkeyPatch) -> CudaSource:
    edited(source.path, "// changed")
    return source


def another_header(source: CudaSource, _: Path, __: pytest.MonkeyPatch) -> CudaSource:
    edited(source.path.parent / "include" / "inner.h", "#define CHANGED")
    return source


def another_own_header(source: CudaSource, _: Path, __: pytest.MonkeyPatch) -> CudaSource:
    edited(source.path.parent / "deep.cuh", "#define CHANGED")
    return source


def another_option(source: CudaSource, _: Path, patch: pytest.MonkeyPatch) -> CudaSource:
    patch.setattr(build, "FLAGS", (*build.FLAGS, "-fno-math-errno"))
    return source


def another_version(source: CudaSource, _: Path, patch: pytest.MonkeyPatch) -> CudaSource:
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
    "own header": another_own_header,
    "macro": lambda source, *_: dataclasses.replace(source, macros={**source.macros, "CHANGED": 1}),
    "standard": lambda source, *_: dataclasses.replace(source, standard="c++20"),
    "headers": lambda source, *_: dataclasses.replace(source, headers=(*source.headers, "cuda_fp16.h")),
    "template": lambda source, *_: dataclasses.replace(source, template=("double",)),
    "option": another_option,
    "version": another_version,
    "compiler": another_compiler,
}
# These also make the precompiled header anew, or the runtime, which takes seconds.
LONG = ("standard", "headers", "option", "version", "compiler")


@pytest.mark.parametrize("name", CHANGES)
def test_each_input_of_the_emulators_kernel_makes_it_anew(
    name: str, again: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert again.count >= 3  # the runtime, the header, the kernel
    assert runs(again.source) == 0
    changed = CHANGES[name](again.source, tmp_path, monkeypatch)
    compiler = no_compiler if name in LONG else build._run_compiler
    assert runs(changed, compiler) >= (3 if name in LONG else 2)  # a header or a runtime; its assembly, its library
    assert runs(changed) == 0


def test_copies_of_the_engine_share_what_is_compiled(
    again: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as their headers are the same."""
    before = build.own_headers()
    monkeypatch.setattr(build, "INCLUDE", tmp_path / "include")
    shutil.copytree(build.HERE / "include", tmp_path / "include")
    assert runs(again.source) == 0
    edited(tmp_path / "include" / "emulator.h", "// changed")
    assert build.own_headers() != before
    assert (build.own_headers() / "emulator.h").read_text().endswith("// changed\n")


def test_a_source_with_headers_of_its_own_is_compiled_once_for_all_trees(again: Compiled, tmp_path: Path) -> None:
    """In another folder a header with another text is compiled anew, and a header that nothing includes is not read."""
    other = tmp_path / "other"
    other.mkdir()
    for name in (FOUND.source.name, "own.cuh", "deep.cuh"):
        shutil.copy(again.folder / name, other)
    (other / "unrelated.cuh").write_text("#error\n")
    source = dataclasses.replace(again.source, path=other / FOUND.source.name)
    assert runs(source) == 0
    (other / "deep.cuh").write_text("#error it is read\n")
    with pytest.raises(build.CompileError, match="it is read"):
        build.compile_host(source)
    assert runs(again.source) == 0


@pytest.mark.parametrize("name", COMPILER_ENVIRONMENT)
def test_what_a_compiler_reads_of_the_environment_is_in_its_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key of a compiled file has the key of its compiler."""
    keys = {tools.Tool(("cc", *options), version).key for options in ((), ("-g",)) for version in ("1", "2")}
    assert len(keys) == 4
    monkeypatch.setenv(name, "another")
    assert tools.Tool(("cc",), "1").key not in keys


def test_the_runtime_and_the_precompiled_header_are_made_of_their_headers(again: Compiled) -> None:
    """CUDA's, of which another version comes to the same place, and the emulator's own."""
    notes = [json.loads(note.read_text()) for note in cache.folder().glob("*.json")]
    read = {Path(name).name for note in notes for name in note["read"]}
    assert {"emulator.h", "vector_types.h", "runtime.cpp", "inner.h"} <= read
    assert not {"own.cuh", "deep.cuh"} & read  # their texts are in the key


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


@pytest.mark.parametrize(
    "change", ["nothing", "header", "own header", "description", "beside", "launch", "arguments", "counting"]
)
def test_each_input_of_what_is_counted_makes_it_anew(
    change: str, again: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert again.results == (".right", ".counts")
    source, anew = again.source, {".right", ".counts"}
    if change == "nothing":
        anew = set()
    elif change == "header":
        edited(again.folder / "include" / "inner.h", "#define CHANGED")
    elif change == "own header":
        edited(again.folder / "deep.cuh", "#define CHANGED")
    elif change == "description":
        edited(again.here, "# changed")
    elif change == "beside":
        edited(again.here.parent / "helper.py", "# changed")
    elif change == "launch":
        source = dataclasses.replace(source, dynamic_shared_bytes=16)
    elif change == "arguments":  # made by code of the package, so nothing of it is kept
        source = dataclasses.replace(source, arguments=lambda *given: [*map(ctypes.c_uint64, given[1]), *given[3]])
        anew = set()
        before = set(cache.folder().iterdir())
        broken = dataclasses.replace(source, arguments=lambda *given: [1 // 0])
        with pytest.raises(ZeroDivisionError):
            counts_made(CELL, broken, monkeypatch, again.here)
        assert set(cache.folder().iterdir()) == before
    else:
        monkeypatch.setattr(counted, "_counting", lambda: "another")
    assert set(counts_made(CELL, source, monkeypatch, again.here)) == anew


def test_what_the_harness_compiles_is_kept_for_all_trees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CuPy reads the variable, or has read it: what it uses is asked of CuPy itself."""
    compiler = pytest.importorskip("cupy", reason="CuPy keeps what it compiles").cuda.compiler

    def used() -> tuple[str, str | None]:
        return compiler._kernel_cache_backend._cache_dir, os.environ.get("CUPY_CACHE_DIR")

    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    for own in ("of a tree", None):
        if own is None:
            monkeypatch.delenv("CUPY_CACHE_DIR")
        else:
            monkeypatch.setenv("CUPY_CACHE_DIR", own)
        before = used()
        with cache.of_harness():
            assert used() == (str(tmp_path / "harness/cupy"),) * 2
        assert used() == before
