"""The table of what begins and ends the state in which launches take longer (scripts/lab/levels)."""

import json
from typing import Any

import pytest

from lab import levels

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
