"""scripts/versus on a commit that adds rungs: what nothing looked at is no success."""

import pytest

from tests.sums_of_rows import FAST, PLAIN, TABLE, Rows

FAR = 'Rung("far", "gpu", ("float32",)),'
FAR_TABLE = TABLE.replace("}}", ', "far": "rows.far:far"}}')
FAR_KERNEL = """
def far(a, out):
    out[:] = a.sum(axis=1)
"""


@pytest.fixture
def added(rows: Rows) -> Rows:
    """Two commits: one without any rung, and one that adds a rung for a CPU and one for a GPU."""
    rows.describe(PLAIN + FAR)
    rows.commit_all("no package")
    rows.write_files({"rows/__init__.py": FAR_TABLE, "rows/sums.py": FAST, "rows/far.py": FAR_KERNEL})
    rows.commit_all("two rungs")
    return rows


def test_a_new_rung_that_nothing_looked_at_is_no_success(added: Rows, no_gpu: str) -> None:
    """Functions of Python run on no emulator. The rung for a CPU is timed, and its output is checked."""
    told = added.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    last = told.splitlines()[-1]
    assert last.startswith(
        "new: row_sum/plain, row_sum/far, with nothing to compare; cannot tell: row_sum/far: is new, and was not "
        "looked at (no GPU here: "
    )
    assert last.count("cannot tell") == last.count("is new") == 1
    assert '"verdict": "cannot tell"' in added.kernelwatch("versus", "HEAD~1", "HEAD", "--json", code=2)


def test_a_new_rung_without_exact_figures_is_not_looked_at_by_them(added: Rows) -> None:
    told = added.kernelwatch("versus", "HEAD~1", "HEAD", "--exact", code=2)
    assert "cannot tell: row_sum/plain, row_sum/far: are new, and were not looked at (times were not asked for)" in told


def test_a_new_rung_that_was_timed_is_a_success(added: Rows) -> None:
    told = added.kernelwatch("versus", "HEAD~1", "HEAD", "--only", "plain", code=0)
    assert told.splitlines()[-1] == "new: row_sum/plain, with nothing to compare"
