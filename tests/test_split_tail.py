"""matmul/split_tail: every step along K of every tile is computed once, and the last wave is shorter for it."""

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cupy", reason="CuPy is not installed")

import gpukernels
from benchmarks.project import PROJECT
from gpukernels.kernel import python_function
from kernelwatch.timing.launches import shapes_of
from tests import host
from tests.gate import SEED

RUNG = gpukernels.rung("matmul", "split_tail")
assert RUNG.preparation
schedule = python_function(RUNG, RUNG.preparation).__globals__["schedule"]
TILES = [*range(1, 300, 17), 131, 132, 133, 264, 512, 544, 2048]
STEPS = [1, 2, 15, 16, 64, 253, 256, 512, 4096]

HOST = """\
#define __device__
{source}
extern "C" void parts(int blocks, int tiles, int steps, int whole, int splits, int first, int (*found)[3]) {{
    for (int block = 0; block < blocks; ++block) {{
        const Part part(block, tiles, steps, whole, splits, first);
        found[block][0] = part.tile, found[block][1] = part.from, found[block][2] = part.to;
    }}
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`Part` of split_tail.cu, compiled for this machine."""
    folder = tmp_path_factory.mktemp("part")
    text = RUNG.source.read_text(encoding="utf-8")
    begin = text.index("struct Part {")
    source = text[begin : text.index("};\n", begin) + 3]
    return host.library(HOST.format(source=source), folder)


def parts(library: Any, tiles: int, steps: int, places: int) -> NDArray[np.int32]:
    """Tile, first step and the step after the last of each block."""
    whole, splits, first = schedule(tiles, steps, places)
    blocks = np.empty((whole + (tiles - whole) * splits, 3), np.int32)
    library.parts(len(blocks), tiles, steps, whole, splits, first, blocks.ctypes.data_as(ctypes.c_void_p))
    return blocks


@pytest.mark.parametrize("places", [1, 2, 46, 114, 132, 264])
def test_every_step_of_every_tile_is_in_one_part(places: int, library: Any) -> None:
    for tiles in TILES:
        for steps in STEPS:
            blocks = parts(library, tiles, steps, places)
            tile, start, end = blocks[np.lexsort((blocks[:, 1], blocks[:, 0]))].T
            begins = np.flatnonzero(np.diff(tile, prepend=-1))
            assert (tile[begins] == np.arange(tiles)).all()
            assert (start < end).all()
            assert (start[begins] == 0).all()
            assert (end[[*(begins[1:] - 1), -1]] == steps).all()
            inner = np.setdiff1d(np.arange(len(blocks)), begins)
            assert (start[inner] == end[inner - 1]).all()


@pytest.mark.parametrize("places", [46, 114, 132, 264])
def test_the_last_turn_ends_sooner(places: int, library: Any) -> None:
    """In steps along K, if the places take the blocks in their order as they become free."""
    sooner = later = 0
    for tiles in TILES:
        for steps in STEPS:
            free = [0] * places
            for _, start, end in parts(library, tiles, steps, places).tolist():
                soonest = free.index(min(free))
                free[soonest] += end - start
            turns = -(-tiles // places)
            assert max(free) <= turns * steps
            sooner += max(free) < (turns - 0.25) * steps
            later += max(free) == turns * steps
    assert sooner > 50  # of some two hundred: neither branch is empty
    assert later > 50


@pytest.mark.parametrize(
    ("tiles", "steps"),
    [(128, 128), (264, 256), (512, 4)],
    ids=["four places more", "whole turns", "a small depth"],
)
def test_tiles_stay_whole_if_parts_cost_more_than_they_gain(tiles: int, steps: int) -> None:
    assert schedule(tiles, steps, 132)[0] == tiles


def test_the_second_kernel_has_the_threads_that_it_is_launched_with() -> None:
    launched = python_function(RUNG, RUNG.preparation).__globals__
    files = (RUNG.source, RUNG.source.with_name("vectors.cuh"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in ("TAIL_THREADS", "VECTOR"):
        assert re.findall(rf"^constexpr int {name} = (\d+);", text, re.MULTILINE) == [str(launched[name])]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("m", "n", "k"), [(17000, 257, 999), (2100, 2050, 4100), (128, 512, 4096), (4000, 4104, 1001), (129, 257, 33)]
)
def test_whole_and_split_tiles_are_right(m: int, n: int, k: int) -> None:
    """On integers, of which every sum is exact; on other numbers the same each time, bit for bit."""
    import cupy

    rng = np.random.default_rng(SEED)
    kernel = gpukernels.load("matmul", "split_tail")
    a = cupy.asarray(rng.integers(-2048, 2048, (m, k)).astype(np.float32))
    b = cupy.asarray(rng.integers(-4, 4, (k, n)).astype(np.float32))
    out = cupy.full((m, n), np.nan, np.float32)
    kernel(a, b, out=out)
    assert bool((out == a.astype(np.float64) @ b.astype(np.float64)).all()), f"GPUKERNELS_SEED={SEED}"
    a = cupy.asarray(rng.standard_normal((m, k), dtype=np.float32))
    b = cupy.asarray(rng.standard_normal((k, n), dtype=np.float32))
    launch = kernel.bind(a, b, out=out)
    launch()
    before = out.copy()
    out.fill(np.nan)
    launch()
    assert bool((out == before).all())


def test_the_sanitizer_sees_tiles_that_are_split() -> None:
    rows, columns, depth = shapes_of(PROJECT.adapt(gpukernels), "matmul", "split_tail", "float32", 3)[0]
    tiles = -(-rows // RUNG.tile[0]) * -(-columns // RUNG.tile[1])
    for processors in (46, 72, 108, 132, 148):
        places = processors * RUNG.macros()["ROOM"]
        whole, splits, _ = schedule(tiles, -(-depth // RUNG.macros()["TILE_K"]), places)
        assert whole < tiles
        assert splits > 1
