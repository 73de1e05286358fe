"""The A/A of the judge's mode: what scripts/lab/judged measures, and what it says of the record."""

import dataclasses
import json
from typing import Any

import pytest

import gpukernels
from kernelwatch.api.result import Judgment
from lab import figures, judged_cells
from lab import judged as aa
from tests.test_api_results import result


def test_the_record_of_the_aa_becomes_the_table() -> None:
    found = result(
        seconds=2.02e-5, interval=(2.0e-5, 2.04e-5), judged=Judgment("f", 12, 40, 384, 0.01, 1e-7, 2e-7, 2e-6, 2.1e-5)
    )
    size, (low, high) = aa.ratio(found, [2e-5, 2e-5, 2e-5, 2e-5])
    assert size == pytest.approx(1.01)
    assert (low, high) == pytest.approx((1.01 * (1 / 1.02) ** 0.5, 1.01 * 1.02**0.5))
    assert found.judged
    one = {
        "name": "a cell", "device": "a GPU", "open_s": 2e-5, "judged_s": found.seconds, "ratio": size,
        "interval": [low, high], "judged": dataclasses.asdict(found.judged), "warnings": [], "open_warnings": [],
    }  # fmt: skip
    told = aa.text([one])
    assert "| a cell | 20 us | 20.2 us | +1.00 % (+0.00..+2.00 %) | 40 | 100 ns | 200 ns | 2 us |" in told
    begin, end = figures.marks("judged", "scripts/lab/judged")
    page = aa.PAGE.read_text(encoding="utf-8")
    assert page.count(begin) == page.count(end) == 1
    is_there = aa.text(json.loads(aa.JSON.read_text(encoding="utf-8"))) in page  # pytest would look for minutes at why
    assert is_there, "scripts/lab/judged --table writes it"


def test_what_is_said_of_the_aa_is_of_what_both_modes_captured() -> None:
    plain: dict[str, Any] = {"device": "a GPU", "open_s": 3e-6, "warnings": ["short"], "open_warnings": []}
    no = [f"it {aa.UNCAPTURED}: launched from Python"]
    cells = [
        plain | {"name": "long", "ratio": 1.002, "open_s": 2e-3},
        plain | {"name": "near", "ratio": 1.0099},
        plain | {"name": "far", "ratio": 1.3},
        plain | {"name": "below", "ratio": 0.97},
        plain | {"name": "by the judge", "ratio": 2.0, "warnings": no},
        plain | {"name": "by nobody", "ratio": 3.0, "open_warnings": no},
    ]
    said = aa.summary(cells)
    assert "On a GPU the judge's figure is -3.00 % to +0.99 % away" in said
    assert "without the one that is furthest apart, far (+30.0 %). " in said
    assert "Within 1 % are 2 of 4, the shortest of them near of 3 us. " in said
    assert said.endswith("Not captured: by the judge, by nobody.")
    assert "Within 1 % are 0 of 2. Not" in aa.summary(cells[2:4])
    assert aa.summary(cells[:1]) == ""


def test_a_function_of_the_aa_is_bound_so_that_it_can_be_captured() -> None:
    """matmul/wgmma has memory: called without `bind`, it refuses to be captured."""
    cell = judged_cells.Cell("vector_add", "numpy", "float32", (8,))
    a, b, out = cell.arrays()
    cell.run(a, b, out)
    assert (out == a + b).all()
    done: list[object] = []

    class Kernel:
        def __call__(self, *_: object, **__: object) -> None:
            pytest.fail("it is called: a launch with memory cannot be captured so")

        def bind(self, *inputs: object, out: object) -> Any:
            return lambda: done.extend((*inputs, out))

    vars(cell)["_kernel"] = Kernel()
    cell.run("a", "b", "c")
    assert done == ["a", "b", "c"]


def test_the_functions_of_the_aa_exist() -> None:
    for name in (*judged_cells.CELLS["gpu"], *judged_cells.CELLS["cpu"]):
        cell = getattr(judged_cells, name)
        if isinstance(cell, judged_cells.Cell):
            rung = gpukernels.rung(cell.op, cell.rung)
            assert cell.type in rung.types
            assert rung.device == ("cpu" if name in judged_cells.CELLS["cpu"] else "gpu")
