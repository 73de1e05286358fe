"""The table of how a kernel's time depends on where its arrays lie (scripts/lab/places)."""

import json
from typing import Any

import pytest

from kernelwatch.api.arguments import apart
from kernelwatch.api.gpu import PAGE
from lab import places


def process(*, fast: float, again: float) -> dict[str, Any]:
    """A process whose first block is at a fast place, and whose second figures are a share longer."""
    blocks = [[fast, fast * (1 + again), 34.0], [34.0, 34.0, 34.0]]
    return {"gpu": "G", "driver": "580", "torch": "2", "us": {str(gap): blocks for gap in places.APART}}


def test_the_table_tells_the_range_and_how_far_a_place_keeps_its_time() -> None:
    text = places.text([process(fast=32.0, again=0.002), process(fast=32.32, again=0.001)])
    assert text.startswith("G, driver 580, PyTorch 2; 2 processes, 30 sets a block.\n")
    assert "| 34 MiB | 32.00 to 34.00 us | 6.25 % | 0.20 % | 1.00 % | 6.25 % |" in text


def test_the_page_has_the_table_of_the_places() -> None:
    record = json.loads(places.RECORD.read_text(encoding="utf-8"))
    is_there = places.text(record) in places.PAGE.read_text(encoding="utf-8")
    assert is_there, "scripts/lab/places --table writes it"


def test_sets_as_far_apart_as_measured_calls_have_them_average_over_the_places() -> None:
    """From the record: without a gap blocks differ by several percent, with that of both modes by a quarter of that."""
    (record, *_) = json.loads(places.RECORD.read_text(encoding="utf-8"))
    gap = apart(2 * places.ARRAY, PAGE) - 2 * places.ARRAY
    least, most = (
        {name: pick(us for own in blocks for us in own) for name, blocks in record["us"].items()} for pick in (min, max)
    )
    span = {name: most[name] / least[name] - 1 for name in least}
    assert gap in places.APART
    assert span["0"] > 4 * span[str(gap)], span


@pytest.mark.gpu
def test_blocks_of_sets_that_are_apart_are_alike() -> None:
    """A block is within a fiftieth of the others, where the kinds of place differ by a fifteenth on an H200."""
    pytest.importorskip("torch")
    found = places.work()["us"]
    assert set(found) == {str(gap) for gap in places.APART}
    figures = [us for own in found[str(apart(2 * places.ARRAY, PAGE) - 2 * places.ARRAY)] for us in own]
    assert max(figures) < min(figures) * 1.02, figures
