"""Hopper's rungs: every tile of C belongs to one block, or to one cluster; what the blocks of a cluster share."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

import gpukernels
from gpukernels.kernel import python_function
from gpukernels.ladder import Rung
from tests import host
from tests.gate import check, load

RUNGS = [found for found in gpukernels.op("matmul").rungs if "PERSISTENT" in found.macros()]
CLUSTERED = [found for found in RUNGS if found.macros().get("CLUSTER", 1) > 1]
SPLIT = [found for found in gpukernels.op("matmul").rungs if "SPLIT" in found.macros()]

HOST = """\
#include <algorithm>
using std::min;
#define __device__
{macros}
namespace {{  // each library has a Plan of its own
{source}
typedef {plan} Chosen;
}}
extern "C" void tiles(int block, int blocks, int down, int across, int *counts, int *first_column) {{
    const int turns = down * across;
    for (int tile = block / CLUSTER; tile < turns; tile += blocks / CLUSTER) {{
        int m, n;
        place<Chosen>(tile, down, across, block % CLUSTER, m, n);
        ++counts[m * across + n];
        *first_column++ = n;
    }}
}}
"""


def compiled(found: Rung, folder: Path) -> Any:
    """`place` of persistent.cuh with the rung's plan, and a copy of the kernel's walk, compiled for this machine."""
    header = found.source.with_name("persistent.cuh").read_text(encoding="utf-8")
    plain = re.search(r"^struct Plain .*?^};\n", header, re.MULTILINE | re.DOTALL)
    place = re.search(r"^template <typename Plan>\n__device__ void place.*?^}\n", header, re.MULTILINE | re.DOTALL)
    plan = re.search(r"^struct Plan .*?^};\n", found.source.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert plain
    assert place
    macros = "\n".join(f"#define {name} {value}" for name, value in ({"CLUSTER": 1} | found.macros()).items())
    source = plain[0] + (plan[0] if plan else "") + place[0]
    text = HOST.format(macros=macros, source=source, plan="Plan" if plan else "Plain")
    return host.library(text, folder)


def shapes(found: Rung) -> list[tuple[int, int, int]]:
    """Rows, columns and multiprocessors."""
    rng = random.Random(0)
    rows, columns = found.tile
    edges = [(rows * m + off, columns * n + off, processors) for m in (1, 2, 3, 16, 17) for n in (1, 5, 33)
             for off in (-1, 0, 1) for processors in (2, 78, 114, 132)]  # fmt: skip
    return edges + [(rng.randrange(1, 9000), rng.randrange(1, 9000), rng.randrange(2, 200)) for _ in range(200)]


@pytest.mark.parametrize("found", RUNGS, ids=str)
def test_every_tile_is_one_blocks_and_clusters_share_columns(found: Rung, tmp_path: Path) -> None:
    library = compiled(found, tmp_path)
    assert found.preparation
    schedule = python_function(found, found.preparation).__globals__["schedule"]
    cluster = found.macros().get("CLUSTER", 1)
    for rows, columns, processors in shapes(found):
        who = f"{found}: {rows} x {columns} on {processors}"
        blocks, at_once = schedule(found, rows, columns, processors)
        down, across = -(-rows // (cluster * found.tile[0])), -(-columns // found.tile[1])
        turns = -(-down * across // (processors // cluster))
        assert blocks % cluster == 0, who
        assert blocks <= processors, who
        assert at_once == (down * across <= processors // cluster), who
        counts = np.zeros((cluster * down, across), np.int32)
        walks = np.full((blocks, down * across), -1, np.int32)
        for block in range(blocks):
            library.tiles(block, blocks, down, across, counts.ctypes, walks[block].ctypes)
        assert (counts == 1).all(), who
        lengths = (walks >= 0).sum(axis=1)
        assert lengths.min() >= 1, who
        assert lengths.max() == turns, who
        # in each turn the same columns, so that blocks copy parts of the same B, and end after as many steps
        assert (walks.reshape(-1, cluster, walks.shape[1]) == walks[::cluster, None]).all(), who


def test_a_product_whose_rows_begin_within_a_sector_takes_four_whole_turns() -> None:
    found = gpukernels.rung("matmul", "wgmma_multicast")
    assert found.preparation
    schedule = python_function(found, found.preparation).__globals__["schedule"]
    assert schedule(found, 4000, 4104, 132) == (132, False)
    rows, columns = found.tile
    clusters = 132 // found.macros()["CLUSTER"]
    assert -(-4000 // (found.macros()["CLUSTER"] * rows)) * -(-4104 // columns) == 4 * clusters


@pytest.mark.parametrize("name", ["wgmma_tma", "wgmma_stages", "wgmma_tma_store", "wgmma_specialized"])
def test_a_rung_whose_blocks_do_not_stay_has_a_block_for_each_tile(name: str) -> None:
    found = gpukernels.rung("matmul", name)
    assert found.preparation
    schedule = python_function(found, found.preparation).__globals__["schedule"]
    for rows, columns, processors in shapes(found):
        blocks, _ = schedule(found, rows, columns, processors)
        assert blocks == -(-rows // found.tile[0]) * -(-columns // found.tile[1])


@pytest.mark.parametrize(
    ("type", "shape", "pitch", "at", "word"),
    [
        ("uint8", (4000, 4040), 4096, 0, "uint64"),
        ("uint8", (4000, 4041), 4096, 0, "uint8"),
        ("float16", (64, 4100), 8320, 0, "uint64"),
        ("float16", (64, 4098), 8320, 0, "uint32"),
        ("float16", (64, 4099), 8320, 0, "uint16"),
        ("float16", (64, 4104), 8320, 2, "uint16"),  # whole vectors that begin within one
        ("float16", (64, 1), 128, 0, "uint16"),
        ("float32", (64, 4098), 16512, 4, "uint32"),
        ("float32", (1, 4098), 16512, 8, "uint64"),
    ],
)
def test_copies_are_made_in_the_widest_words(
    monkeypatch: pytest.MonkeyPatch, type: str, shape: tuple[int, int], pitch: int, at: int, word: str
) -> None:
    """Both ways, with memory that is never touched."""
    import cupy

    found = gpukernels.rung("matmul", "wgmma")
    assert found.preparation
    copy = python_function(found, found.preparation).__globals__["_copy"]
    copied: list[tuple[Any, Any]] = []
    monkeypatch.setattr(cupy, "copyto", lambda *both: copied.append(both))
    memory = cupy.cuda.UnownedMemory(1 << 20, 1 << 30, None, 0)
    own = cupy.ndarray(shape, type, cupy.cuda.MemoryPointer(memory, at))
    other = cupy.ndarray(shape, type, cupy.cuda.MemoryPointer(memory, 1 << 29), (pitch, own.itemsize))
    for to, matrix in ((other, own), (own, other)):
        copy(to, matrix)
        (views,) = copied
        assert [each.dtype.name for each in views] == [word, word]
        assert [each.data.ptr for each in views] == [to.data.ptr, matrix.data.ptr]
        assert [each.strides[0] for each in views] == [to.strides[0], matrix.strides[0]]
        assert all(each.shape[1] * each.itemsize == shape[1] * own.itemsize for each in views)
        copied.clear()


EXCHANGE = """\
#include <vector>
#define __device__
typedef unsigned long long u64;
struct float4 {{ float x, y, z, w; }};
static float4 make_float4(float x, float y, float z, float w) {{ return {{x, y, z, w}}; }}
{macros}
constexpr int GROUP = 128, SUMS = TILE_ROWS / CONSUMERS * TILE_COLUMNS / GROUP;
{constants}
static std::vector<std::vector<float4>> inboxes(SPLIT, std::vector<float4>(INBOX_BYTES / 16));
static const float4 *mine;
static u64 sent;
static int sends[SPLIT];
static void send(const float4 *to, u64 *, int rank, float4 values) {{
    inboxes[rank].at(to - mine) = values;
    ++sends[rank];
}}
static void wait_for_sent(u64 *, int) {{}}
static void exchange(int rank, int thread, const float *d, float *result) {{
    float4 *const inbox = inboxes[rank].data();
    mine = inbox;
{source}
    for (int i = 0; i < OWN; ++i)
        result[i] = own[i];
}}
// Twice: the first time fills the inboxes.
extern "C" int run(const float *d, float *results) {{
    for (int turn = 0; turn < 2; ++turn)
        for (int rank = 0; rank < SPLIT; ++rank)
            for (int thread = 0; thread < THREADS; ++thread)
                exchange(rank, thread, d + (rank * THREADS + thread) * SUMS, results + (rank * THREADS + thread) * OWN);
    for (int rank = 0; rank < SPLIT; ++rank)
        if (sends[rank] * 16 != 2 * INBOX_BYTES)  // what its barrier waits for
            return 0;
    return 1;
}}
"""


@pytest.mark.parametrize("split", [2, 4])
@pytest.mark.parametrize("found", SPLIT, ids=str)
def test_each_block_of_a_split_tile_adds_up_its_columns_of_all_blocks(found: Rung, split: int, tmp_path: Path) -> None:
    source = found.source.read_text(encoding="utf-8")
    constants = re.search(r"^constexpr int THREADS.*?INBOX_BYTES[^\n]*\n", source, re.MULTILINE | re.DOTALL)
    exchange = re.search(r"^    float own\[OWN\];.*?(?=^    store_results)", source, re.MULTILINE | re.DOTALL)
    assert constants
    assert exchange
    macros = "\n".join(f"#define {name} {value}" for name, value in (found.macros() | {"SPLIT": split}).items())
    library = host.library(EXCHANGE.format(macros=macros, constants=constants[0], source=exchange[0]), tmp_path)
    threads = found.macros()["CONSUMERS"] * 128
    sums = found.tile[0] * found.tile[1] // threads
    d = np.random.default_rng(0).integers(-1000, 1000, (split, threads, sums)).astype(np.float32)
    results = np.full((split, threads, sums // split), np.nan, np.float32)
    assert library.run(d.ctypes, results.ctypes)
    own = d.sum(axis=0).reshape(threads, split, sums // split)
    assert (results == own.transpose(1, 0, 2)).all()


@pytest.mark.parametrize("found", SPLIT, ids=str)
def test_a_split_tile_has_a_block_for_each_part_of_k(found: Rung) -> None:
    assert found.preparation
    schedule = python_function(found, found.preparation).__globals__["schedule"]
    split = found.macros()["SPLIT"]
    for rows, columns, processors in shapes(found):
        blocks, at_once = schedule(found, rows, columns, processors)
        assert blocks == split * -(-rows // found.tile[0]) * -(-columns // found.tile[1])
        assert at_once == (blocks <= processors // split * split)


@pytest.mark.gpu
@pytest.mark.parametrize(("found", "type"), [(found.of(type), type) for found in SPLIT for type in found.types])
def test_parts_of_k_are_added_up(found: Rung, type: str) -> None:
    """Also if K ends in the first part, so that the others have none, and if a part is longer than the stages hold."""
    rows, columns = found.tile
    deep = 2 * found.macros()["SPLIT"] * found.macros()["STAGES"] * found.macros()["TILE_K"]
    for shape in ((rows, columns, 8), (3 * rows - 1, 5 * columns + 8, deep + 200), (1, columns + 1, deep - 1)):
        check(load(found, type, None), found, type, dict(zip("MNK", shape, strict=True)))


@pytest.mark.gpu
@pytest.mark.parametrize(("found", "type"), [(found.of(type), type) for found in CLUSTERED for type in found.types])
def test_clusters_are_right_in_several_turns(found: Rung, type: str) -> None:
    """Also if the second block of a cluster has no rows of C."""
    import cupy

    processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    rows, columns = found.tile
    for shape in ((3 * rows - 1, columns * processors + 8, 200), (rows, columns, 64), (5 * rows + 1, 1000, 1000)):
        check(load(found, type, None), found, type, dict(zip("MNK", shape, strict=True)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("found", "type"), [(found.of(type), type) for found in CLUSTERED + SPLIT for type in found.types]
)
def test_each_launch_of_clusters_has_the_same_result(found: Rung, type: str) -> None:
    """A block that copied B into a stage that the other block still reads would change some results, and so would sums
    of a split tile that were added in the order in which they come."""
    import cupy

    rng = np.random.default_rng(0)
    into = np.dtype(type.partition("->")[0])
    a, b = (cupy.asarray(rng.uniform(-1, 1, shape).astype(into)) for shape in ((4000, 1048), (1048, 4104)))
    launch = load(found, type, None).bind(a, b)
    results = set()
    for _ in range(50):
        launch.out.fill(0)
        launch()
        results.add(launch.out.get().tobytes())
    assert len(results) == 1
