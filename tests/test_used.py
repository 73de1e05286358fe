"""Benchmarks of asv's that use the same on both sides: the files of their environments, and the code for the GPU."""

import itertools
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.comparison import used
from kernelwatch.comparison.used import Environment
from kernelwatch.history.links import UNDIRECTED
from tests.test_plain_turns import EVERY, PACKAGE, SORTS, Plain, new_plain

MEASURED = {*EVERY, "suite.track_rate"}
# Reads numbers beside it, by Python and by another program, and lists the files there.
READS = """
import pathlib, subprocess

HERE = pathlib.Path(__file__).parent
factor = float((HERE / "factor.txt").read_text()) * float(subprocess.check_output(["cat", str(HERE / "other.txt")]))
names = sorted(path.name for path in HERE.glob("*.txt"))
"""
# Compiles something, unless a cache outside has it.
COMPILES = """
import pathlib

CACHE = pathlib.Path({cache!r})


def prepare():
    if not CACHE.exists():
        CACHE.write_text(pathlib.Path(__file__).with_name("header.h").read_text())
"""
# Loads a binary onto the GPU in each setup.
LOADS = """
import ctypes


def prepare():
    code = {code}
    ctypes.CDLL("libcuda.so.1").cuModuleLoadData(code, ctypes.c_size_t(len(code)))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Plain:
    return new_plain(tmp_path_factory.mktemp("used"), small_engine)


def commit(plain: Plain, name: str, files: dict[str, str]) -> None:
    """Commit these files, beside those that are there."""
    for path, text in {"README": "one", **files}.items():
        target = plain.project.folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
    plain.commits[name] = plain.project.commit_all(name)


def turns(report: Any) -> int:
    return int(next(line.split()[0] for line in report["lines"] if " turn" in line))


def test_what_a_commit_does_not_touch_is_measured_once(plain: Plain) -> None:
    package = {"work/__init__.py": PACKAGE.format(factor=1), "work/unused.py": ""}
    commit(plain, "first", package | {"other/__init__.py": ""})
    commit(plain, "prose", {"README": "two", "work/unused.py": "print(1)\n", "other/new.py": ""})
    commit(plain, "comment", {"work/__init__.py": "# A comment.\n" + PACKAGE.format(factor=1)})
    report = plain.versus("first", "prose", code=0)
    assert report["summary"] == f"no change: {len(MEASURED) + 1} benchmarks"
    assert turns(report) == 1
    assert turns(plain.versus("prose", "comment", code=0)) > 1
    plain.run("link", f"{plain.commits['first']}..{plain.commits['comment']}", "--no-publish", code=0)
    sessions = {session.after: session for session in plain.sessions()}
    prose, comment = (sessions[plain.commits[name]] for name in ("prose", "comment"))
    assert (prose.links, prose.same, prose.unjudged) == ((), len(MEASURED), {"suite.track_calls": UNDIRECTED})
    # Each process reads what Python compiled for the first one.
    assert ({link.cell for link in comment.links}, comment.same) == (MEASURED, 0)


def test_what_only_setup_cache_uses_is_part_of_its_benchmarks(plain: Plain) -> None:
    package = PACKAGE.format(factor=1) + "\n\ndef prepare_all():\n    import work.cached\n"
    commit(plain, "before", {"work/__init__.py": package, "work/cached.py": "size = 1\n"})
    commit(plain, "after", {"work/cached.py": "size = 2\n"})
    plain.run("link", plain.commits["after"], "--no-publish", code=0)
    [session] = [each for each in plain.sessions() if each.after == plain.commits["after"]]
    assert [link.cell for link in session.links] == ["suite.Cached.time_cached"]
    assert session.same == len(MEASURED) - 1


@pytest.mark.parametrize("file", ["factor.txt", "other.txt", "third.txt"])
def test_a_file_that_a_benchmark_reads_or_finds_is_part_of_it(tmp_path: Path, small_engine: Path, file: str) -> None:
    """Whether Python reads it, another program does, or its name alone counts."""
    plain = new_plain(tmp_path, small_engine)
    text = PACKAGE.format(factor="factor * (1 + 0.1 * (len(names) > 2))")
    commit(plain, "first", {"work/__init__.py": READS + text, "work/factor.txt": "1", "work/other.txt": "1"})
    commit(plain, "second", {f"work/{file}": "1.1"})
    report = plain.versus("first", "second", "--bench", "large.*1", code=1)
    assert report["summary"] == "HEAD is worse than BASE: 1 benchmark"
    commit(plain, "third", {"README": "prose"})
    assert turns(plain.versus("second", "third", "--bench", "large.*1", code=0)) == 1


@pytest.mark.parametrize("at_import", [True, False])
def test_what_one_process_compiles_for_all_counts_on_both_sides(
    tmp_path: Path, small_engine: Path, at_import: bool
) -> None:
    """The first process alone opens the header; the others find what it made in a cache outside."""
    plain = new_plain(tmp_path, small_engine)
    package = COMPILES.format(cache=str(tmp_path / "cache")) + "\n\nprepare()\n" * at_import + PACKAGE.format(factor=1)
    commit(plain, "first", {"work/__init__.py": package, "work/header.h": "int a;"})
    commit(plain, "prose", {"README": "prose"})
    commit(plain, "header", {"work/header.h": "int b;"})
    assert turns(plain.versus("first", "prose", "--bench", "large.*1", code=0)) == 1
    (tmp_path / "cache").unlink()
    assert turns(plain.versus("prose", "header", "--bench", "large.*1", code=0)) > 1


def test_times_that_differ_where_nothing_else_does_are_not_told(tmp_path: Path, small_engine: Path) -> None:
    """Here it is the path of the environment; an identity misses it, and one turn shows it."""
    plain = new_plain(tmp_path, small_engine)
    commit(plain, "first", {"work.py": PACKAGE.format(factor="(1 + ('versus-2' in __file__))")})
    commit(plain, "second", {"README": "prose"})
    why = "both sides seem to launch the same, and yet their times differ"
    report = plain.versus("first", "second", "--bench", "large.*1", code=2)
    assert report["lines"][0] == f"cannot tell: {SORTS[0]}: {why}"
    plain.run("link", plain.commits["second"], "--bench", "large.*1", "--no-publish", code=2)
    [session] = plain.sessions()
    [link] = session.links
    assert link.identities[0] == link.identities[1] != ""


def test_modules_that_are_compiled_elsewhere_are_not_seen(
    tmp_path: Path, small_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    plain = new_plain(tmp_path, small_engine)
    commit(plain, "first", {"work.py": PACKAGE.format(factor=1)})
    commit(plain, "second", {"README": "prose"})
    assert turns(plain.versus("first", "second", "--bench", "large.*1", code=0)) > 1


# --- code for the GPU -------------------------------------------------------------------------------------------------


ON_GPU = """

def prepare():
    import cupy

    source = 'extern "C" __global__ void k(float *x) {{ x[threadIdx.x] += {constant}; }}'
    cupy.RawKernel(source, "k")((1,), (64,), (cupy.zeros(64, cupy.float32),))
    cupy.cuda.Device().synchronize()
"""


@pytest.mark.gpu
def test_a_benchmark_on_a_gpu_is_measured_once_if_nothing_changed(tmp_path: Path, small_engine: Path) -> None:
    """Code of the host counts, too: a comment there leaves the kernel as it is, and yet the benchmark is measured."""
    plain = new_plain(tmp_path, small_engine)
    package = PACKAGE.format(factor=1)
    commit(plain, "first", {"work.py": package + ON_GPU.format(constant=1.0)})
    commit(plain, "prose", {"README": "prose"})
    commit(plain, "host", {"work.py": package + "# A comment.\n" + ON_GPU.format(constant=1.0)})
    commit(plain, "kernel", {"work.py": package + "# A comment.\n" + ON_GPU.format(constant=3.0)})
    told = {}
    for (before, old), (after, new) in itertools.pairwise(plain.commits.items()):
        done = plain.project.run(
            "env", f"PYTHONPATH={small_engine}", sys.executable, "-m", "kernelwatch", "versus", old, new,
            "-E", "checkout", "--bench", "large.*1",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        told[before, after] = "\n1 turns; " in done.stdout
    assert told == {("first", "prose"): True, ("prose", "host"): False, ("host", "kernel"): False}


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what stands in for the driver and for CUPTI."""
    folder, source = tmp_path_factory.mktemp("cuda"), Path(__file__).with_name("fake_cuda.c")
    if sys.platform != "linux" or not shutil.which("gcc"):
        pytest.skip("gcc compiles Linux libraries that stand in for NVIDIA's")
    if used.has_driver():
        pytest.skip("NVIDIA's own driver is here, and its CUPTI would be asked")
    for name, options in {"libcuda.so.1": (), "libcupti.so": ("-DCUPTI",)}.items():
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", str(folder / name), str(source), "-ldl"],
            check=True,
        )
    return folder


BY_SIDE = "b'code of ' + __file__.partition('versus-')[2][:1].encode()"


@pytest.mark.parametrize(
    ("code", "environment", "is_once"),
    [
        ("b'the same'", {}, True),
        (BY_SIDE, {}, False),  # the files are the same, and yet the GPU gets other code
        ("b'the same'", {"CUPTI_IN_USE": "1"}, False),
        ("b'the same'", {"LD_LIBRARY_PATH": "driver alone"}, False),
        ("", {}, True),  # nothing is loaded
    ],
    ids=["the same code", "another code", "CUPTI in use", "no CUPTI", "no GPU"],
)
def test_code_for_the_gpu_is_part_of_a_benchmark(
    tmp_path: Path, small_engine: Path, cuda: Path, code: str, environment: dict[str, str], is_once: bool
) -> None:  # fmt: skip
    folder = cuda
    if environment.get("LD_LIBRARY_PATH"):
        folder = tmp_path / "driver"
        folder.mkdir()
        shutil.copy(cuda / "libcuda.so.1", folder)
    plain = new_plain(tmp_path, small_engine)
    loads = LOADS.format(code=code) if code else ""
    commit(plain, "first", {"work.py": PACKAGE.format(factor=1) + loads})
    commit(plain, "second", {"README": "prose"})
    own = {**environment, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(small_engine)}
    done = plain.project.run(
        "env", *(f"{name}={value}" for name, value in own.items()), sys.executable, "-m", "kernelwatch", "versus",
        *plain.commits.values(), "-E", "checkout", "--bench", "large.*1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no change: 1 benchmark\n")
    assert ("\n1 turns; " in done.stdout) is is_once


KERNELS = {
    "cupy": """
import cupy

SOURCE = 'extern "C" __global__ void k(float *x) {{ x[threadIdx.x] += {constant}; }}'
x = cupy.zeros(64, cupy.float32)
cupy.RawKernel(SOURCE, "k")((1,), (64,), (x,))
cupy.cuda.Device().synchronize()
""",
    "triton": """
import torch, triton, triton.language as tl


@triton.jit
def k(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) + {constant})


k[(1,)](torch.zeros(64, device="cuda"), 64)
torch.cuda.synchronize()
""",
}


@pytest.mark.gpu
@pytest.mark.parametrize("library", KERNELS)
def test_what_a_library_loads_onto_a_gpu_is_known(tmp_path: Path, library: str) -> None:
    """The same kernel from another folder is the same, and another one is not."""
    pytest.importorskip(library)
    if library == "triton":
        pytest.importorskip("torch", reason="Triton's launches need PyTorch")

    def code(name: str, constant: float) -> str | None:
        folder, told = tmp_path / name, tmp_path / name / "told"
        told.mkdir(parents=True)
        script = folder / "kernel.py"
        script.write_text(KERNELS[library].format(constant=constant))
        own = {"CUPY_CACHE_DIR": str(folder / "cupy"), "TRITON_CACHE_DIR": str(folder / "triton")}
        command = [sys.executable, used.SCRIPT, str(told), str(script)]
        subprocess.run(command, check=True, cwd=folder, env=os.environ | own)
        assert list(told.glob("*.cubin"))
        return used.on_gpu(told)

    known = code("one", 1.0)
    assert known
    assert code("another folder", 1.0) == known
    assert code("another kernel", 3.0) not in (known, None)


def test_the_path_of_a_source_is_no_part_of_the_code_for_a_gpu() -> None:
    """Compilers note it for debuggers; the code, its names and its constants count."""

    def elf(sections: dict[str, bytes]) -> bytes:
        names, content, table = b"\0", b"", []
        every = {**sections, ".shstrtab": b""}
        for name in every:
            names += name.encode() + b"\0"
        every[".shstrtab"] = names
        for name, data in every.items():
            kind = 3 if name == ".shstrtab" else 1
            table.append(
                struct.pack(
                    "<IIQQQQIIQQ",
                    names.index(name.encode() + b"\0"),
                    kind,
                    0,
                    0,
                    64 + len(content),
                    len(data),
                    0,
                    0,
                    1,
                    0,
                )
            )
            content += data
        table.insert(0, bytes(64))
        head = b"\x7fELF\x02\x01\x01" + bytes(9)
        head += struct.pack(
            "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(content), 0, 64, 0, 0, 64, len(table), len(table) - 1
        )
        return head + content + b"".join(table)

    sections = {".text.k": b"code", ".nv.constant0.k": b"12", ".debug_line": b"/a/k.py", ".nv_debug_ptx_txt": b"a"}
    known = used.code_of(elf(sections))
    assert used.code_of(elf(sections | {".debug_line": b"/longer/k.py", ".nv_debug_ptx_txt": b"b"})) == known
    others = [{".text.k": b"edoc"}, {".nv.constant0.k": b"13"}, {".text.l": b"code"}]
    assert len({known, *(used.code_of(elf(sections | each)) for each in others)}) == 4
    assert used.code_of(b"ptx a") != used.code_of(b"ptx b")


def test_the_path_of_an_environment_is_no_part_of_its_files(tmp_path: Path) -> None:
    """pip writes it into some; what else it writes counts, and the names beside it."""

    def identity(name: str, text: str, *beside: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for other in beside:
            (folder / other).touch()
        (folder / "a.pth").write_text(text.format(folder))
        return Environment(folder).identity([Path("a.pth"), Path("is gone")])

    known = identity("1", "{}/src")
    assert identity("2", "{}/src") == known
    assert identity("3", "{}/src", "package-1.0.dist-info") == known
    assert len({known, identity("4", "{}/lib"), identity("5", "{}/src", "b.pth")}) == 3


def test_prose_in_the_metadata_of_a_package_is_no_part_of_it(tmp_path: Path) -> None:
    """asv reads that of all packages, and setuptools puts the README there."""

    def identity(name: str, text: str) -> str:
        folder = tmp_path / name / "package-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(text)
        return Environment(tmp_path / name).identity([Path(folder.name, "METADATA")])

    known = identity("1", "Name: p\nVersion: 1.0\nSummary: one\n\nVersion: 2 is better.\n")
    assert identity("2", "Name: p\nVersion: 1.0\nSummary: two\n\nVersion: 3 is better.\n") == known
    assert identity("3", "Name: p\nVersion: 1.1\nSummary: one\n\nVersion: 2 is better.\n") != known
    assert identity("4", "Name: p\nVersion: 1.0\nRequires-Dist: numpy\n\nVersion: 2 is better.\n") != known
