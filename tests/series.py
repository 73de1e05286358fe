"""The results of a judged series as publishing makes them from records."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernelwatch.detect.results import Results
from kernelwatch.detect.texts import Texts
from kernelwatch.history.records import Record
from kernelwatch.history.store import Known, Store
from kernelwatch.publish import columns
from kernelwatch.publish.columns import Columns
from kernelwatch.publish.record import snapshot
from kernelwatch.publish.recorded import Recorded
from kernelwatch.publish.series import Matrix, Row, Tables
from kernelwatch.publish.writer import as_text


def recorded(record: Record, *judged: str) -> Recorded:
    """A commit of which a record is kept, and no result of asv."""
    store, path, content = Store(None, "test"), Path("results", "host", "abc-env.json"), snapshot(record)
    packed, numbers = columns.packed(record, content["cells"], judged, store)
    none = {"values": 0, "spreads": False, "shapes": 2 * [store.part(b"[]")], "exact": store.part(b"")}
    head = none | {"record": packed}
    store.put(str(path), Known("", ""), head, numbers.tobytes(), as_text(content))
    return Recorded(path, "", head, store, judged)


def packed(record: Record, *judged: str) -> Columns:
    """A record as it is kept."""
    _, found = recorded(record, *judged).load()
    assert found is not None
    return found


def results_of(told: Sequence[tuple[float, Record]], cell: str, judged: str, canary: str = "") -> Results:
    """A series that shows a cell: its value at each commit, and the record. The hash of a commit is its position."""
    matrix = Matrix([Row("a.b", (), judged, cell, canary, 0)], len(told), Tables(), exact=judged == "exact")
    figures = () if judged == "exact" else (judged,)
    for at, (value, record) in enumerate(told):
        matrix.put(at, np.array([0]), np.array([value]), packed(record, *figures))
    positions = np.arange(len(told))
    (results,) = matrix.results(positions, positions, Texts.of(f"{at:08x}" for at in positions.tolist()))
    assert results is not None
    return results
