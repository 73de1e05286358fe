"""What a rung learns from whether a file exists."""

import pytest

from tests.sums_of_rows import TABLE, Rows

ASKING = """
import os
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TIMES = {times}


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""
EXISTS = {
    "os.path.exists": '100 if os.path.exists(HERE / "slow") else 4',
    "Path.is_file": '100 if (HERE / "slow").is_file() else 4',
    "a folder's list": '100 if "slow" in os.listdir(HERE) else 4',
}


@pytest.mark.parametrize("how", EXISTS)
def test_a_file_whose_existence_decides_is_a_difference(rows: Rows, how: str) -> None:
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": ASKING.format(times=EXISTS[how])})
    rows.commit_all("fast")
    rows.write_files({"rows/slow": ""})
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert f"changed: row_sum/plain: rows/{'' if 'list' in how else 'slow'}\n" in told
    rows.write_files({"other/unread.json": "{}"})
    rows.commit_all("a file that nobody asks for")
    assert "the only launch is the same" in rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)
