"""The results of a judged series as publishing makes them from records."""

from collections.abc import Sequence

import numpy as np

from kernelwatch.detect.results import Results
from kernelwatch.detect.texts import Texts
from kernelwatch.history.records import Record
from kernelwatch.history.store import Store
from kernelwatch.publish import columns
from kernelwatch.publish.columns import Columns
from kernelwatch.publish.record import snapshot
from kernelwatch.publish.series import Matrix, Row, Tables


def packed(record: Record, *judged: str) -> Columns:
    """A record as it is kept."""
    store = Store(None, "test")
    head, numbers = columns.packed(record, snapshot(record)["cells"], judged, store)
    return columns.unpacked(head, numbers.ravel(), judged, store)


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
