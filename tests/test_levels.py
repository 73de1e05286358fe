"""The tables of the state in which launches take longer: which graphs are in it (scripts/lab/graphs), and what begins
and ends it (scripts/lab/levels)."""

import json
from typing import Any

import pytest

from lab import graphs, levels

LOOKS = [["start", 0.57], ["module", 0.57], ["module", 0.75], ["same", 0.75], ["malloc", 0.75], ["sort", 0.58]]
LINE: dict[str, Any] = {"gpu": "NVIDIA H200", "driver": "580", "cupy": "14", "looks": LOOKS}


def test_a_step_began_or_ended_the_state_if_the_look_after_it_differs() -> None:
    text = levels.text([LINE])
    assert "A launch takes 0.570 us, and 0.750 us in the state." in text
    rows = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:4]] for row in text.splitlines()[4:]}
    assert rows[levels.STEPS["module"]] == ["1 of 2", ""]
    assert rows[levels.STEPS["malloc"]] == ["", "0 of 1"]
    assert rows[levels.STEPS["sort"]] == ["", "1 of 1"]
    assert levels.STEPS["dot"] not in rows  # it was not done


def test_the_page_has_the_table_of_the_record() -> None:
    lines = [json.loads(line) for line in levels.RECORD.read_text(encoding="utf-8").splitlines()]
    assert levels.text(lines) in levels.PAGE.read_text(encoding="utf-8")


@pytest.mark.gpu
def test_a_process_looks_after_each_step() -> None:
    looks = levels.work(1)["looks"]
    assert {name for name, _ in looks} == {"start", "same", *levels.STEPS}
    assert all(0.1 < us < 10 for _, us in looks)


def test_graphs_of_a_level_are_told_together() -> None:
    assert (
        graphs.told([2.1, 2.11, 2.45, 2.45, 2.1], 2.1) == "2 of 2.10 to 2.11 us, then 2 of 2.45 us, then 1 of 2.10 us"
    )
    few: dict[str, Any] = {**{name: LINE[name] for name in ("gpu", "driver", "cupy")}, "modules": 0}
    text = graphs.text([{**few, "us": {"first": [2.0, 2.4], "each": [2.0]}}])
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
