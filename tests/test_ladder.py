"""ladder.toml and the sources beside it; what a bad entry is told; grids; a rung added with no Python at all."""

import math
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpukernels
from gpukernels import LadderError, LimitError, Rung, kernel, ladder
from gpukernels.kernel import python_function

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(gpukernels.__file__).parent
RUNGS = [found for op in gpukernels.ops() for found in op.rungs]
GPU_RUNGS = [found for found in RUNGS if found.source.suffix == ".cu"]


# --- the ladder of this package ------------------------------------------------------------------------------------


def test_every_source_is_an_entry() -> None:
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    sources = {path for folder in folders for path in folder.iterdir() if path.suffix in ladder.SUFFIXES}
    orphans = sources - {found.source for found in RUNGS} - {found.preparation for found in RUNGS}
    assert not orphans, f"no entry of ladder.toml for {', '.join(sorted(str(path) for path in orphans))}"
    assert {found.source for found in RUNGS} <= sources
    launched = {(found.source, found.tile, found.block, found.constants) for found in RUNGS}
    assert len(launched) == len(RUNGS)


HEADERS = sorted(PACKAGE.glob("*/*.cuh"))


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_a_header_says_what_it_is_and_is_included(header: Path) -> None:
    text = header.read_text(encoding="utf-8")
    assert text.startswith(f"// {header.parent.name}/{header.name}: ")
    assert re.search(r"^// Source: .+", text, re.MULTILINE)
    assert "\n#pragma once\n" in text
    # The emulator looks for kernels, and for what they have in shared and constant memory, in the rung's source.
    code = re.sub(r"//.*", "", text)
    assert not re.search(r"__(global|shared|constant)__", code)
    beside = [path for path in header.parent.iterdir() if path.suffix in (".cu", ".cuh")]
    assert any(f'#include "{header.name}"' in path.read_text(encoding="utf-8") for path in beside)


@pytest.mark.parametrize("found", RUNGS, ids=str)
def test_source_says_what_it_is(found: Rung) -> None:
    text = found.source.read_text(encoding="utf-8")
    opening = '"""' if found.source.suffix == ".py" else "// "
    who = f"{found.op}/{found.source.stem}"
    assert text.startswith(f"{opening}{who}: "), f"{found}: {found.source.name} must open with {opening}{who}: "
    if found.preparation:
        stem = found.preparation.stem if found.launcher else found.source.stem
        assert found.preparation.read_text(encoding="utf-8").startswith(f'"""{found.op}/{stem}: ')
    head = re.match(r"(//.*\n)*", text)
    assert head is not None
    if found.source.suffix == ".cu":
        assert re.search(r"^// Source: .+", head[0], re.MULTILINE), f"{found}: its header must give its Source:"
    if found.source.suffix != ".py":
        assert re.search(r"^// (in|A) .* (out|C) .*, overwritten ", head[0], re.MULTILINE), (
            f"{found}: must list its operands"
        )
    assert found.idea
    assert found.origin
    assert "\n" not in found.idea


def test_rungs_keep_the_order_of_the_file() -> None:
    names = re.findall(r'^name = "(\w+)"$', (PACKAGE / "ladder.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert names == [found.name for found in RUNGS]


# --- bad entries ---------------------------------------------------------------------------------------------------

OP = 'dims = ["M", "N"]\ninputs = ["M N"]\noutput = "N M"\ntiled = ["M", "N"]\ntypes = ["float32"]\n'
NAMED = 'name = "first"\nidea = "an idea"\norigin = "a book"\n'
TILED = "tile = [32, 32]\nblock = [32, 8]\n"

BAD = {
    "unknown key": (
        NAMED + TILED + "tiles = 3\n",
        "turn/first: ladder.toml has tiles; a rung has arch_min, arch_only, block, by_type, computes,",
    ),
    "a type that the rung has not": (
        NAMED + TILED + "by_type.uint8 = { tile = [64, 64] }\n",
        "turn/first: by_type has uint8; the rung has the types float32",
    ),
    "what no type changes": (
        NAMED + TILED + 'by_type.float32 = { idea = "another" }\n',
        "turn/first: by_type has idea for float32; it may have tile, block, constants, shared",
    ),
    "a tile of a type": (
        NAMED + TILED + "by_type.float32 = { tile = [0, 32] }\n",
        "turn/first: tile and block must be at least 1, got (0, 32)",
    ),
    "shared memory beside edges": (
        NAMED + "edges = [32]\nshared = 1024\n",
        "turn/first: shared must be bytes of a rung without edges, got 1024",
    ),
    "another's source": (
        NAMED + TILED + 'source = "none.cu"\n',
        "turn/first: its source must be one of turn/none.cu; none of them is in",
    ),
    "a launcher that is not there": (
        NAMED + TILED + 'launcher = "none.py"\n',
        "turn/first: launcher must be a .py beside a .cu, got 'none.py'",
    ),
    "a launcher of a .c": (
        NAMED.replace("first", "plain") + 'launcher = "python.py"\n',
        "turn/plain: launcher must be a .py beside a .cu, got 'python.py'",
    ),
    "operands nowhere": (
        NAMED + TILED + 'operands = "host"\n',
        'turn/first: operands must be "device", or "host" or "several" for a .py, got \'host\'',
    ),
    "two types for a .c": (
        NAMED.replace("first", "plain") + 'types = ["float16->float32"]\n',
        "turn/plain: a .c has one type T for all operands, which float16->float32 is not; give its types",
    ),
    "no idea": (NAMED.replace("idea", "#") + TILED, "turn/first: ladder.toml lacks idea; every rung gives name, idea"),
    "no name": (NAMED.replace("name", "#") + TILED, "turn/(no name): ladder.toml lacks name; every rung gives name"),
    "no origin": (NAMED.replace("origin", "#") + TILED, "turn/first: ladder.toml lacks origin; every rung gives name"),
    "no source": (
        NAMED.replace("first", "none") + TILED,
        "turn/none.cu, turn/none.c, turn/none.py; none of them is in",
    ),
    "two sources": (NAMED.replace("first", "both"), "turn/both: its source must be one of"),
    "name twice": (NAMED + TILED + "[[turn.rungs]]\n" + NAMED + TILED, "turn: ladder.toml names first twice"),
    "large block": (
        NAMED + TILED.replace("32, 8", "32, 33"),
        "turn/first: block must be (x, y) with at most 1024 threads",
    ),
    "flat block": (NAMED + TILED.replace("32, 8", "32"), "turn/first: block must be (x, y) with at most 1024 threads"),
    "no threads": (
        NAMED + TILED.replace("32, 8", "32, 0"),
        "turn/first: block must be (x, y) with at most 1024 threads",
    ),
    "tile of one": (NAMED + TILED.replace("32, 32", "32"), "turn/first: tile must have 2 extents (M N), got (32,)"),
    "large edge": (NAMED + "edges = [32, 33]\n", "turn/first: a block of edge x edge threads has an edge of 1 to 32"),
    "no tile": (NAMED, "turn/first: a .cu rung gives either tile and block, or edges"),
    "tile without block": (NAMED + "tile = [32, 32]\n", "turn/first: a .cu rung gives either tile and block, or edges"),
    "tile and edges": (
        NAMED + TILED + "edges = [32]\n",
        "turn/first: a .cu rung gives either tile and block, or edges",
    ),
    "no repeats": (NAMED + TILED + "repeats = 0\n", "turn/first: repeats must be at least 1, got 0"),
    "no device": (NAMED.replace("first", "python"), 'turn/python: python.py needs device = "cpu" or "gpu", got None'),
    "no such device": (NAMED + TILED + 'device = "tpu"\n', 'needs device = "cpu" or "gpu", got \'tpu\''),
    "syntax error": (NAMED + "tile = [32,\n", "ladder.toml: no ladder can be read from it: "),
}


def written(folder: Path, text: str) -> Path:
    (folder / "turn").mkdir()
    for name in ("first.cu", "second.cu", "both.c", "both.cu", "python.py", "plain.c"):
        (folder / "turn" / name).touch()
    (folder / "ladder.toml").write_text(text, encoding="utf-8")
    return folder / "ladder.toml"


@pytest.mark.parametrize(("entry", "words"), BAD.values(), ids=BAD)
def test_bad_entry(entry: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(LadderError) as caught:
        ladder.read(written(tmp_path, f"[turn]\n{OP}[[turn.rungs]]\n{entry}"))
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["dims", "inputs", "output", "tiled", "types"])
def test_op_that_lacks_a_key(key: str, tmp_path: Path) -> None:
    common = "".join(line + "\n" for line in OP.splitlines() if not line.startswith(f"{key} "))
    with pytest.raises(LadderError, match=f"turn: ladder.toml lacks {key}; every op gives"):
        ladder.read(written(tmp_path, f"[turn]\n{common}[[turn.rungs]]\n{NAMED}{TILED}"))


def test_no_ladder_file(tmp_path: Path) -> None:
    with pytest.raises(LadderError, match=r"ladder\.toml: no ladder can be read from it: .*No such file"):
        ladder.read(tmp_path / "ladder.toml")


def test_good_entry(tmp_path: Path) -> None:
    second = NAMED.replace("first", "second")
    (turn,) = ladder.read(
        written(tmp_path, f"[turn]\n{OP}[[turn.rungs]]\n{second}edges = [16, 8]\n[[turn.rungs]]\n{NAMED}{TILED}")
    ).values()
    assert [str(found) for found in turn.rungs] == ["turn/second", "turn/first"]
    assert [found.device for found in turn.rungs] == ["gpu", "gpu"]
    assert [found.computes for found in turn.rungs] == ["turn", "turn"]
    assert turn.rungs[0].macros() == {"PAD": 0}
    assert turn.rungs[1].macros() == {"TILE_ROWS": 32, "TILE_COLUMNS": 32, "BLOCK_X": 32, "BLOCK_Y": 8}


def test_rungs_may_share_a_launcher(tmp_path: Path) -> None:
    """Which a rung has in place of the .py of its own name."""
    path = written(tmp_path, f'[turn]\n{OP}[[turn.rungs]]\n{NAMED}{TILED}launcher = "python.py"\n')
    (path.parent / "turn" / "first.py").touch()
    (turn,) = ladder.read(path).values()
    assert turn.rungs[0].preparation == path.parent / "turn" / "python.py"
    (path.parent / "turn" / "python.py").write_text("def turn_python(call): ...\n", encoding="utf-8")
    assert python_function(turn.rungs[0], path.parent / "turn" / "python.py").__name__ == "turn_python"


# --- grids ---------------------------------------------------------------------------------------------------------


def test_a_type_may_have_a_launch_of_its_own() -> None:
    found = gpukernels.rung("transpose", "vectorized")
    bytes_wide, as_it_is = found.of("uint8"), found.of("float32")
    assert as_it_is == found
    assert (bytes_wide.tile, bytes_wide.block) != (found.tile, found.block)
    assert bytes_wide.macros() == {"TILE_ROWS": 256, "TILE_COLUMNS": 128, "BLOCK_X": 16, "BLOCK_Y": 8}
    assert bytes_wide.of("uint8") == bytes_wide
    wide = gpukernels.rung("matmul", "wgmma")
    narrow = wide.of("float16")
    assert narrow.shared != wide.shared
    assert {name for name, value in wide.macros().items() if narrow.macros()[name] != value} == {
        "STAGES",
        "BUFFERS",
        "SHARED_BYTES",
    }  # the constants that an entry by type does not name are the rung's
    tiles = gpukernels.rung("matmul", "pipelined").macros()
    assert (tiles["TILE_K"], tiles["SHARED_BYTES"]) == (16, gpukernels.rung("matmul", "pipelined").shared_bytes(4))


@pytest.mark.parametrize("found", dict.fromkeys(found.of(type) for found in GPU_RUNGS for type in found.types), ids=str)
def test_grid_covers_every_element_once(found: Rung) -> None:
    limit = ladder.GRID_Y_MAX
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for edge in found.edges or (None,):
        tile = (edge,) * len(found.tiled) if edge else found.tile
        bounds = [1, 2, limit - 1, limit, limit + 1, 2 * limit, 2 * limit + 1, 3 * limit + 1]  # tiles
        extents = [max(count * step + off, 1) for step in set(tile) for count in bounds for off in (-1, 0, 1)]
        extents += [round(2 ** rng.uniform(0, 34)) for _ in range(100)]
        for rows in extents:
            columns = rng.choice([1, rows, rows, rng.randrange(1, 2**30 * tile[-1])])
            shape = dict(zip(found.tiled, (rows, columns)[-len(found.tiled) :], strict=True))
            x, y, z = found.grid(shape, edge)
            who = f"{found} edge {edge} at {shape} (seed {seed}): grid {x, y, z}"
            assert 1 <= x < 2**31, who
            assert 1 <= y <= limit, who
            assert 1 <= z <= limit, who
            assert (x - 1) * tile[-1] < columns <= x * tile[-1], who
            down = math.prod(-(-shape[dim] // step) for dim, step in zip(found.tiled[:-1], tile[:-1], strict=True))
            assert down <= y * z <= down + z - 1, who
            assert z == -(-down // limit), who


@pytest.mark.parametrize("name", ["wgmma", "bf16x6"])
def test_an_extent_whose_tiles_are_no_int_is_refused(name: str) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    import numpy as np

    from gpukernels.prepare import Call

    nothing: Any = None
    found = gpukernels.rung("matmul", name)
    assert found.preparation
    prepare = python_function(found, found.preparation)
    for extents in ((2**31 - 1, 1, 1), (1, 2**31 - 255, 1), (1, 1, 2**31 - 1)):
        with pytest.raises(LimitError, match=f"at most {2**31 - 256}, got {' x '.join(map(str, extents))}"):
            prepare(Call(found, None, nothing, (), (), (), tuple(map(np.int64, extents))))


def test_the_constants_of_a_python_rung_are_its_functions_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    """One source, several rungs: each has an identity of its own."""
    asked: list[dict[str, int]] = []
    scope = {"asked": asked, "version": lambda: "1.2"}
    exec("def function(a, b, out, **keywords): asked.append(keywords)", scope)
    device = SimpleNamespace(id=0, attributes={})
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device)))
    monkeypatch.setattr(kernel, "python_function", lambda found, path: scope["function"])
    identities = set()
    for name in ("cublas", "cublas_k_major", "cublas_tf32"):
        loaded = kernel._GpuKernel(gpukernels.rung("matmul", name), gpukernels.rung("matmul", name).types[0], None)
        loaded._function(1, 2, 3)
        identities.add(loaded.identity)
    assert asked == [{}, {"b_k_major": 1}, {"b_k_major": 1, "tf32": 1}]
    assert len(identities) == 3


@pytest.mark.parametrize(
    ("pitch", "takes"), [(32, True), (64, True), (24, False), (16, False), (0, False), (-32, False)]
)
def test_rows_that_the_copy_engine_takes(pitch: int, takes: bool) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    found = gpukernels.rung("matmul", "wgmma")
    assert found.preparation
    matrix = SimpleNamespace(shape=(1, 16), strides=(pitch, 2), itemsize=2, data=SimpleNamespace(ptr=512))
    assert python_function(found, found.preparation).__globals__["_takes"](matrix) is takes


# --- a rung added: one source and one entry, no Python --------------------------------------------------------------

C_SOURCE = """\
// transpose/c_swapped: out[n][m] = in[m][n], two loops, columns outside.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1

void transpose_c_swapped(const T *restrict in, T *restrict out, long long M, long long N) {
    for (long long n = 0; n < N; ++n)
        for (long long m = 0; m < M; ++m)
            out[n * M + m] = in[m * N + n];
}
"""

CUDA_SOURCE = """\
// transpose/thread_each: out[n][m] = in[m][n], one element a thread.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
// Source: textbook.

template <typename T>
__global__ void transpose_thread_each(const T *in, T *out, long long M, long long N) {
    const long long row = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    if (row < M && column < N)
        out[column * M + row] = in[row * N + column];
}
"""

ENTRIES = """\
[[transpose.rungs]]
name = "c_swapped"
idea = "two loops in C, columns outside"
origin = "textbook"

[[transpose.rungs]]
name = "thread_each"
idea = "one element a thread"
origin = "textbook"
tile = [16, 16]
block = [16, 16]

"""

USE = """
import numpy as np, gpukernels
from gpukernels.compiler import compile_cuda
print(gpukernels.__file__)
print(*(found.name for found in gpukernels.op("transpose").rungs))
a = np.arange(15, dtype="float32").reshape(3, 5)
assert (gpukernels.load("transpose", "c_swapped")(a) == a.T).all()
for type in gpukernels.rung("transpose", "thread_each").types:
    assert compile_cuda(gpukernels.rung("transpose", "thread_each"), type, "sm_90")[0].stat().st_size
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package to add to."""
    copied = tmp_path / "tree"
    shutil.copytree(PACKAGE, copied / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("kernelwatch", "tests"):  # the shapes and the references of the gate
        (copied / name).symlink_to(ROOT / name)
    return copied


def add_rungs(tree: Path, c_source: str, cuda_source: str) -> None:
    """Two sources, and their two entries before that of transpose/c."""
    package = tree / "gpukernels"
    (package / "transpose" / "c_swapped.c").write_text(c_source, encoding="utf-8")
    (package / "transpose" / "thread_each.cu").write_text(cuda_source, encoding="utf-8")
    entries = (package / "ladder.toml").read_text(encoding="utf-8")
    place = entries.index('[[transpose.rungs]]\nname = "c"\n')
    (package / "ladder.toml").write_text(entries[:place] + ENTRIES + entries[place:], encoding="utf-8")


def run_in(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run([sys.executable, *arguments], cwd=tree, env=environment | {"PYTHONPATH": str(tree)},
                          capture_output=True, text=True, check=False)  # fmt: skip


def gate(tree: Path) -> subprocess.CompletedProcess[str]:
    """The gate of the checkout, for the added rungs, run on the package in `tree`."""
    return run_in(tree, "-m", "pytest", str(ROOT / "tests" / "test_kernels.py"), "-o", "pythonpath=", "-v",
                  "-k", "transpose/c_swapped or transpose/thread_each", "-p", "no:cacheprovider",
                  "--basetemp", str(tree / "base"))  # fmt: skip


def outcomes(output: str, name: str) -> list[str]:
    return re.findall(rf"test_rung_against_numpy\[transpose/{name}-\w+\] (PASSED|FAILED|SKIPPED)", output)


def test_added_rung_needs_no_python(tree: Path) -> None:
    add_rungs(tree, C_SOURCE, CUDA_SOURCE)
    used = run_in(tree, "-c", USE)
    assert used.returncode == 0, used.stderr
    where, names = used.stdout.splitlines()
    assert Path(where) == tree / "gpukernels" / "__init__.py"
    before = [found.name for found in gpukernels.op("transpose").rungs]
    place = before.index("c")
    assert names.split() == [*before[:place], "c_swapped", "thread_each", *before[place:]]

    types = len(gpukernels.rung("transpose", "c").types)
    done = gate(tree)
    assert done.returncode == 0, done.stdout
    assert outcomes(done.stdout, "c_swapped") == ["PASSED"] * types
    thread_each = outcomes(done.stdout, "thread_each")
    assert thread_each in (["PASSED"] * types, ["SKIPPED"] * types)
    assert thread_each[0] == "PASSED" or "needs a CUDA GPU: " in done.stdout


def test_added_rung_that_is_wrong_fails_the_gate(tree: Path) -> None:
    add_rungs(
        tree, C_SOURCE.replace("m < M", "m < M - M / 40"), CUDA_SOURCE.replace("N + column", "N + N - 1 - column")
    )
    done = gate(tree)
    assert done.returncode == 1, done.stdout
    assert outcomes(done.stdout, "c_swapped") == ["FAILED"] * len(gpukernels.rung("transpose", "c").types)
    assert re.search(
        r"transpose/c_swapped at \(\d+, \d+\) float32: \d+ of \d+ elements wrong, the first at", done.stdout
    )
    assert "PASSED" not in outcomes(done.stdout, "thread_each")
