"""NVRTC and the C compiler: every CUDA rung on a machine without a driver, the cache, and what goes wrong."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpukernels
from gpukernels import KernelError, Rung, compiler
from kernelwatch.analysis.compiled import target
from kernelwatch.analysis.occupancy import ARCHES
from tests.test_static import TARGETS

RUNGS = [found for op in gpukernels.ops() for found in op.rungs]
CUDA = next(found for found in RUNGS if found.source.suffix == ".cu")
C = next(found for found in RUNGS if found.source.suffix == ".c")

Compile = Callable[[Rung], tuple[Path, str]]


def compile_any(found: Rung) -> tuple[Path, str]:
    if found.source.suffix == ".cu":
        return compiler.compile_cuda(found, found.types[0], "sm_90")
    return compiler.compile_c(found, found.types[0])


BOTH = pytest.mark.parametrize("found", [CUDA, C], ids=str)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of this test's own."""
    monkeypatch.setenv("GPUKERNELS_CACHE", str(tmp_path / "cache"))
    compiler.cache_folder.cache_clear()
    yield tmp_path / "cache"
    compiler.cache_folder.cache_clear()


@pytest.fixture
def no_compiler_known() -> Iterator[None]:
    """The C compiler is looked for anew, in this test and after it."""
    compiler._c_compiler.cache_clear()
    yield
    compiler._c_compiler.cache_clear()


def forbid_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*arguments: object, **_options: object) -> None:
        raise AssertionError(f"compiled again: {arguments}")

    monkeypatch.setattr("cuda.core.Program", called)
    monkeypatch.setattr(subprocess, "run", called)


# --- every CUDA rung -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [found for found in RUNGS if found.source.suffix == ".cu"], ids=str)
def test_compiles_without_a_driver(found: Rung) -> None:
    """For the architectures for which the figures are compiled too, so that nothing is compiled twice."""
    for type in found.types:
        there = {arch: TARGETS.get(target(found.op, found.name, type, arch).key) for arch in ARCHES}
        why = "are those of compute capability 9.0 alone, not" if found.arch_only else "needs compute capability 8.0,"
        for arch in [arch for arch, exists in there.items() if exists is False]:
            with pytest.raises(gpukernels.ToolMissing, match=f"{found}: .*{why} {arch}"):
                compiler.compile_cuda(found, type, arch)
        arches = [arch for arch, exists in there.items() if exists]
        made = set()
        for arch in arches:
            path, symbol = compiler.compile_cuda(found, type, arch)
            cubin = path.read_bytes()
            assert cubin.startswith(b"\x7fELF"), f"{found} {type} {arch}"
            assert found.symbol in symbol
            assert symbol.encode() in cubin, f"{found} {type} {arch}: {symbol} is not in the cubin"
            made.add(cubin)
        assert len(made) == len(arches) > 0, f"{found} {type}: two architectures got one binary"


# --- the cache -----------------------------------------------------------------------------------------------------


@BOTH
def test_second_compile_comes_from_the_cache(found: Rung, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_any(found)
    with monkeypatch.context() as patch:
        forbid_compilers(patch)
        assert compile_any(found) == first
        changed = dataclasses.replace(found, source=cache / found.source.name)
        changed.source.write_text(found.source.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")
        with pytest.raises((AssertionError, KernelError), match="compiled again"):
            compile_any(changed)
    assert first[0].parent == cache
    assert compile_any(changed)[0] != first[0]


@BOTH
def test_key_holds_what_the_code_depends_on(found: Rung, cache: Path) -> None:
    def paths() -> Iterator[Path]:
        yield compile_any(found)[0]
        yield compile_any(dataclasses.replace(found, types=found.types[-1:]))[0]
        yield compile_any(dataclasses.replace(found, repeats=found.repeats + 1))[0]
        if found.source.suffix == ".cu":
            yield compiler.compile_cuda(found, found.types[0], "sm_80")[0]
        else:
            yield compile_any(dataclasses.replace(found, flags=("-fno-math-errno",)))[0]

    made = list(paths())
    assert len(set(made)) == len(made) == 4


EDITED = """
import sys, gpukernels
from gpukernels import compiler
found = gpukernels.rung(*sys.argv[1].split("/"))
cuda, type = found.source.suffix == ".cu", found.types[0]
print((compiler.compile_cuda(found, type, "sm_90") if cuda else compiler.compile_c(found, type))[0])
"""


@pytest.mark.parametrize(
    ("found", "old", "new"),
    [
        (CUDA, "**options)", "**options, max_register_count=24, debug=True)"),
        (CUDA, '"std": CUDA_STANDARD', '"std": CUDA_STANDARD, "lineinfo": True'),
        (C, '"-fPIC", "-shared"', '"-fPIC", "-g", "-shared"'),
        (C, "*written, str", '*written, "-g", str'),
    ],
    ids=str,
)
def test_a_commit_that_compiles_otherwise_gets_no_binary_of_another(
    found: Rung, old: str, new: str, cache: Path, tmp_path: Path
) -> None:
    """Two commits that differ in how compiler.py compiles, nothing else, and that share a cache."""
    paths = []
    for commit, replaced in (("base", old), ("head", new), ("again", new)):
        package = tmp_path / commit / "gpukernels"
        shutil.copytree(Path(compiler.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        text = (package / "compiler.py").read_text()
        assert text.count(old) == 1
        (package / "compiler.py").write_text(text.replace(old, replaced))
        command = [sys.executable, "-c", EDITED, str(found)]
        done = subprocess.run(command, cwd=package.parent, capture_output=True, text=True, check=True)
        paths.append(Path(done.stdout.strip()))
    base, head, again = paths
    assert base.parent == cache
    assert head.read_bytes() != base.read_bytes()
    assert again == head


def with_header(found: Rung, folder: Path, header: str) -> Rung:
    source = folder / found.source.name
    source.write_text(f"#include <{header}>\n{found.source.read_text(encoding='utf-8')}", encoding="utf-8")
    return dataclasses.replace(found, source=source)


@pytest.mark.usefixtures("no_compiler_known")
@BOTH
def test_a_header_that_changed_is_compiled_anew(
    found: Rung, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is included by another, as one of CUDA that another version of its package brought to the same place."""
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "outer.h").write_text("#ifdef __cplusplus\n#endif\n#include <inner.h>\n")
    (folder / "inner.h").write_text("\n")
    monkeypatch.setenv("CPATH", str(folder))
    monkeypatch.setattr(compiler, "_cuda_headers", lambda: (str(folder),))
    own = with_header(found, tmp_path, "outer.h")
    compile_any(own)
    with monkeypatch.context() as patch:
        forbid_compilers(patch)
        compile_any(own)
        (folder / "unrelated.h").write_text("#error\n")
        compile_any(own)
        (folder / "inner.h").write_text("#define CHANGED\n")
        with pytest.raises((AssertionError, KernelError), match="compiled again"):
            compile_any(own)
    (folder / "inner.h").write_text("#error it is read\n")
    with pytest.raises(KernelError, match="it is read"):
        compile_any(own)
    (folder / "inner.h").unlink()
    with pytest.raises(KernelError, match=r"inner\.h"):
        compile_any(own)


@pytest.mark.usefixtures("no_compiler_known")
@pytest.mark.parametrize("variable", compiler.C_ENVIRONMENT)
def test_what_the_c_compiler_reads_of_the_environment(
    variable: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "gcc")
    compile_any(C)
    monkeypatch.setenv(variable, "0" if variable == "SOURCE_DATE_EPOCH" else f"{tmp_path}/")
    forbid_compilers(monkeypatch)
    compiler._c_compiler()  # would be asked
    with pytest.raises((AssertionError, KernelError), match="compiled again"):
        compile_any(C)


DAMAGE = {
    "binary cut short": ("binary", lambda was: was[: len(was) // 2]),
    "binary empty": ("binary", lambda _: b""),
    "binary foreign": ("binary", lambda _: b"not a binary"),
    "binary gone": ("binary", lambda _: None),
    "note cut short": ("note", lambda was: was[:-5]),
    "note empty": ("note", lambda _: b""),
    "note gone": ("note", lambda _: None),
    "note foreign": ("note", lambda _: b'{"something": "else"}'),
    "note a list": ("note", lambda _: b"[]"),
    "note no text": ("note", lambda _: b"\xff\xfe\x00"),
    "note of another": ("note", lambda was: json.dumps(json.loads(was) | {"sha256": "0" * 64}).encode()),
}  # fmt: skip


@pytest.mark.parametrize(("which", "damage"), DAMAGE.values(), ids=DAMAGE)
@BOTH
def test_damaged_cache_is_built_again(
    found: Rung, which: str, damage: Callable[[bytes], bytes | None], cache: Path
) -> None:
    path, symbol = compile_any(found)
    note = path.with_suffix(".json")
    target = path if which == "binary" else note
    damaged = damage(target.read_bytes())
    target.unlink()  # a library that this process has loaded must not change under it
    if damaged is not None:
        target.write_bytes(damaged)
    assert compile_any(found) == (path, symbol)
    assert path.read_bytes().startswith(b"\x7fELF")
    told = json.loads(note.read_text())
    assert (told["symbol"], told["sha256"]) == (symbol, hashlib.sha256(path.read_bytes()).hexdigest())
    assert sorted(cache.iterdir()) == sorted([path, note])  # and nothing left over


@BOTH
def test_cache_that_cannot_be_written(found: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root permissions do not bind: the folder lies below a regular file."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("GPUKERNELS_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    compiler.cache_folder.cache_clear()
    try:
        path, _ = compile_any(found)
        assert path.is_relative_to(tmp_path / "temporary")
        assert compile_any(found)[0] == path  # the same folder as long as the process lives
    finally:
        compiler.cache_folder.cache_clear()


@pytest.mark.parametrize(("variable", "below"), [("XDG_CACHE_HOME", "gpukernels"), ("HOME", ".cache/gpukernels")])
def test_cache_of_the_user(variable: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUKERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    compiler.cache_folder.cache_clear()
    try:
        assert compiler.cache_folder() == tmp_path / below
    finally:
        compiler.cache_folder.cache_clear()


AT_ONCE = """
import pathlib, sys, time, gpukernels
from gpukernels import compiler
here = pathlib.Path(sys.argv[1])
(here / sys.argv[2]).touch()
while not (here / "go").exists():
    time.sleep(0.001)
for name in sys.argv[3:]:
    found = gpukernels.rung(*name.split("/"))
    for type in found.types:
        if found.source.suffix == ".cu":
            compiler.compile_cuda(found, type, "sm_90")
        else:
            gpukernels.load(found.op, found.name, type)
"""


def test_processes_that_compile_at_once(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    readies = [tmp_path / f"ready{at}" for at in range(3)]
    processes = [
        subprocess.Popen([sys.executable, "-c", AT_ONCE, str(tmp_path), ready.name, str(CUDA), str(C)],
                         cwd=Path(gpukernels.__file__).parents[1], stderr=subprocess.PIPE, text=True)
        for ready in readies
    ]  # fmt: skip
    while not all(ready.exists() for ready in readies) and all(process.poll() is None for process in processes):
        time.sleep(0.001)
    (tmp_path / "go").touch()
    for process in processes:
        _, words = process.communicate(timeout=600)
        assert process.returncode == 0, words
    notes = list(cache.glob("*.json"))
    assert len(notes) == len(CUDA.types) + len(C.types)
    assert len(list(cache.iterdir())) == 2 * len(notes)
    for found in (CUDA, C):
        assert compile_any(found)[0].read_bytes().startswith(b"\x7fELF")


# --- what goes wrong -----------------------------------------------------------------------------------------------


def broken(found: Rung, folder: Path) -> tuple[Rung, int]:
    """The rung with an undeclared name in a line of its own, and that line's number."""
    lines = found.source.read_text(encoding="utf-8").splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(("__global__", "void"))) + 1
    while not lines[at - 1].endswith("{"):
        at += 1
    source = folder / found.source.name
    source.write_text("\n".join([*lines[:at], "    nonsense = 1;", *lines[at:]]), encoding="utf-8")
    return dataclasses.replace(found, source=source), at + 1


def test_broken_cuda_source(tmp_path: Path, cache: Path) -> None:
    found, line = broken(CUDA, tmp_path)
    with pytest.raises(KernelError) as caught:
        compile_any(found)
    assert f"{found} {found.types[0]}: NVRTC does not compile it for sm_90" in str(caught.value)
    assert f'{found.source.name}({line}): error: identifier "nonsense" is undefined' in str(caught.value)
    assert not list(cache.iterdir())


def test_broken_c_source(tmp_path: Path, cache: Path) -> None:
    found, line = broken(C, tmp_path)
    with pytest.raises(KernelError) as caught:
        compile_any(found)
    assert f"{found} {found.types[0]}: " in str(caught.value)
    assert f"{found.source.name}:{line}:" in str(caught.value)
    assert "nonsense" in str(caught.value)
    assert not list(cache.iterdir())


def test_static_assert_speaks(cache: Path) -> None:
    """What a CUDA source relies on is told where ladder.toml breaks it."""
    found = next(found for found in RUNGS if "static_assert" in found.source.read_text() and len(found.tile) == 2)
    with pytest.raises(KernelError, match="static assertion failed with"):
        compiler.compile_cuda(dataclasses.replace(found, block=(32, 7)), found.types[0], "sm_90")


def test_wgmma_takes_no_buffers_that_its_stores_would_overrun(cache: Path) -> None:
    """With three buffers for eight parts, the first part of a tile would go where the last store may still read."""
    found = gpukernels.rung("matmul", "wgmma_persistent")
    constants = dict(found.constants) | {"BUFFERS": 3}
    part_bytes = 2 * found.tile[0] // 2 * 128  # of two consumers
    shared = found.shared + (3 - dict(found.constants)["BUFFERS"]) * part_bytes
    broken = dataclasses.replace(found, constants=tuple(constants.items()), shared=shared)
    with pytest.raises(KernelError, match="a tile leaves through every buffer as often"):
        compile_any(broken)


def test_architecture_that_nvrtc_does_not_know() -> None:
    with pytest.raises(KernelError, match=f"{CUDA} {CUDA.types[0]}: NVRTC does not compile it for sm_1"):
        compiler.compile_cuda(CUDA, CUDA.types[0], "sm_1")


@pytest.mark.usefixtures("no_compiler_known")
def test_no_c_compiler(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(KernelError) as caught:
        gpukernels.load(C.op, C.name, C.types[0])
    assert "no C compiler: cc, gcc, clang not found; install one or set CC" in str(caught.value)


@pytest.mark.usefixtures("no_compiler_known")
def test_cc_that_does_not_exist(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent -m64")
    with pytest.raises(KernelError) as caught:
        gpukernels.load(C.op, C.name, C.types[0])
    assert "no C compiler: /nonexistent not found; install one or set CC" in str(caught.value)


@pytest.mark.usefixtures("no_compiler_known")
def test_cc_with_options(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (real, *_), _version = compiler._c_compiler()
    compiler._c_compiler.cache_clear()
    own = tmp_path / "a compiler"
    own.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/called"\nexec {real} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setenv("CC", f"'{own}' -DNOTHING")
    path, _ = compiler.compile_c(C, C.types[0])
    assert path.read_bytes().startswith(b"\x7fELF")
    assert "-DNOTHING" in (tmp_path / "called").read_text().splitlines()[-1]


@pytest.mark.usefixtures("no_compiler_known")
def test_the_options_of_cc_tell_binaries_apart(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (real, *_), _version = compiler._c_compiler()
    paths = set()
    for options in ("", " -fno-tree-vectorize"):
        compiler._c_compiler.cache_clear()
        monkeypatch.setenv("CC", f"{real}{options}")
        paths.add(compiler.compile_c(C, C.types[0])[0])
    assert len(paths) == 2


def with_headers(found: Rung, folder: Path, inner: str) -> Rung:
    """The rung in a folder of its own, which includes outer.cuh, which includes inner.cuh."""
    folder.mkdir(parents=True)
    source = folder / found.source.name
    source.write_text(f'#  include "outer.cuh"\n{found.source.read_text()}')
    (folder / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n')
    (folder / "inner.cuh").write_text(inner)
    return dataclasses.replace(found, source=source)


@BOTH
def test_a_header_of_the_project_is_part_of_the_key(
    found: Rung, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees that share a cache share what is compiled of the same texts, and nothing else."""
    base = with_headers(found, tmp_path / "base", "#define ONE 1\n")
    alike = with_headers(found, tmp_path / "alike", "#define ONE 1\n")
    other = with_headers(found, tmp_path / "other", "#define ONE 2\n")
    made = compile_any(base)
    assert compile_any(other)[0] != made[0]
    shutil.rmtree(tmp_path / "base")
    forbid_compilers(monkeypatch)
    assert compile_any(alike) == made
    (tmp_path / "alike" / "unrelated.cuh").write_text("#error\n")
    assert compile_any(alike) == made
    (tmp_path / "alike" / "inner.cuh").write_text("#define ONE 3\n")
    with pytest.raises((AssertionError, KernelError), match="compiled again"):
        compile_any(alike)


@BOTH
def test_a_header_comes_from_the_rungs_own_folder(
    found: Rung, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the current folder, which may be another tree's."""
    inner = "#ifdef __CUDACC__\n#include <mma.h>\n#endif\n"  # of CUDA's, which includes others beside it
    own = with_headers(found, tmp_path / "tree" / found.op, inner)
    (tmp_path / "cwd" / found.op).mkdir(parents=True)
    for folder in (tmp_path / "cwd", tmp_path / "cwd" / found.op):
        (folder / "inner.cuh").write_text("#error of another tree\n")
        (folder / "outer.cuh").write_text("#error of another tree\n")
    monkeypatch.chdir(tmp_path / "cwd")
    compile_any(own)
    (own.source.parent / "inner.cuh").write_text("#error it is read\n")
    with pytest.raises(KernelError, match="it is read"):
        compile_any(own)
    (own.source.parent / "inner.cuh").unlink()
    with pytest.raises(KernelError, match=r"inner\.cuh"):
        compile_any(own)


def test_rungs_work_with_what_the_cache_holds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C rung loaded from the cache computes what it did when it was compiled."""
    operands = [np.arange(6, dtype=C.types[0]) for _ in C.inputs]
    first = gpukernels.load(C.op, C.name, C.types[0])
    forbid_compilers(monkeypatch)
    second = gpukernels.load(C.op, C.name, C.types[0])
    assert second.bind(*operands).identity == first.bind(*operands).identity
    assert (second(*operands) == first(*operands)).all()
