"""The rungs of persistent.cuh: every tile of C belongs to one block, and blocks of a cluster have the same columns."""

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
@pytest.mark.parametrize(("found", "type"), [(found.of(type), type) for found in CLUSTERED for type in found.types])
def test_each_launch_of_clusters_has_the_same_result(found: Rung, type: str) -> None:
    """A block that copied B into a stage that the other block still reads would change some results."""
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
