"""The table of which graphs of a process are fast (scripts/lab/graphs)."""

import json
from typing import Any

import pytest

from lab import graphs

PROCESS: dict[str, Any] = {"gpu": "NVIDIA H200", "driver": "580", "cupy": "14", "modules": 0}


def test_graphs_of_a_level_are_told_together() -> None:
    assert (
        graphs.told([2.1, 2.11, 2.45, 2.45, 2.1], 2.1) == "2 of 2.10 to 2.11 us, then 2 of 2.45 us, then 1 of 2.10 us"
    )
    text = graphs.text([{**PROCESS, "us": {"first": [2.0, 2.4], "each": [2.0]}}])
    assert text.splitlines()[0] == "NVIDIA H200, driver 580, CuPy 14."
    assert f"| {graphs.WAYS['first']} | 1 of 2.00 us, then 1 of 2.40 us |" in text
    assert f"| {graphs.WAYS['again']} |  |" in text


def test_the_page_has_the_table_of_the_graphs() -> None:
    record = json.loads(graphs.RECORD.read_text(encoding="utf-8"))
    assert graphs.text(record) in graphs.PAGE.read_text(encoding="utf-8")
    fastest = min(us for each in record for own in each["us"].values() for us in own)
    assert all("then" not in graphs.told(each["us"]["each"], fastest) for each in record)


@pytest.mark.gpu
def test_with_a_refresh_before_each_all_graphs_are_alike() -> None:
    """It is within a twentieth, where the state adds a sixth on an H200."""
    found = graphs.work(12)["us"]
    assert set(found) == set(graphs.WAYS)
    assert max(found["each"]) < min(found["each"]) * (1 + graphs.ALIKE), found
