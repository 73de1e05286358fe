"""A change of one type or one shape of a rung is found, timed where it is, and named where it is not."""

import re
import shutil
from pathlib import Path

import pytest

from tests.repositories import rewrite
from tests.sums_of_rows import TABLE, Rows

TYPES = 'Rung("plain", "cpu", ("float32", "float64")),'
# How often the work is done is read from a file, which `named` chooses by the arrays.
READING = """
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def plain(a, out):
    for _ in range(int((HERE / {named}).read_text())):
        np.sum(a, axis=1, out=out)
"""
BY_SHAPE = '("large.txt" if a.shape[0] > 100 else "small.txt")'
BY_TYPE = 'f"{a.dtype}.txt"'


def tables(told: str) -> list[str]:
    """The titles of the tables of times."""
    return re.findall(r"^(row_sum/\S+ \S+), CPU", told, re.MULTILINE)


def test_a_file_that_only_a_large_shape_reads_is_a_difference(rows: Rows) -> None:
    rows.describe(TYPES, shapes="(64, 64), (256, 64)")
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": READING.format(named=BY_SHAPE)})
    rows.write_files({"rows/small.txt": "4", "rows/large.txt": "4"})
    rows.commit_all("fast")
    rows.write_files({"rows/large.txt": "100"})
    rows.commit_all("slow at a large shape")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: rows/large.txt" in told
    assert "HEAD is worse than BASE: 2 cells" in told  # with each type


def test_a_file_that_only_another_type_reads_is_a_difference(rows: Rows) -> None:
    """No suite times that type on a CPU; it is timed all the same."""
    rows.describe(TYPES)
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": READING.format(named=BY_TYPE)})
    rows.write_files({"rows/float32.txt": "4", "rows/float64.txt": "4"})
    rows.commit_all("fast")
    rows.write_files({"rows/float64.txt": "100"})
    rows.commit_all("slow for float64")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: rows/float64.txt" in told
    assert tables(told) == ["row_sum/plain float32", "row_sum/plain float64"]  # a file does not say whose it is
    assert "HEAD is worse than BASE: 1 cell" in told


# A package that compiles a library for each type, whose content is the identity.
COMPILING = """
import ctypes
import hashlib
import subprocess
import tempfile
from pathlib import Path

from kernelwatch.plan.package import NotHere

SOURCE = Path(__file__).parents[1] / "native" / "sums.c"
ABSENT = ()


class Launch:
    def __init__(self, call, identity):
        self.call, self.identity = call, identity

    def __call__(self):
        self.call()


class Kernel:
    def __init__(self, type):
        library = Path(tempfile.mkdtemp(), "sums.so")
        flags = ["-O2", "-shared", "-fPIC", f"-DT={type}", f"-DIS_{type.upper()}"]
        subprocess.run(["cc", *flags, "-Dfloat32=float", "-Dfloat64=double", "-o", library, SOURCE], check=True)
        self.identity = hashlib.sha256(library.read_bytes()).hexdigest()
        self.function = ctypes.CDLL(str(library)).row_sum

    def bind(self, a, out):
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, out)]
        extents = [ctypes.c_longlong(extent) for extent in a.shape]
        return Launch(lambda: self.function(*pointers, *extents), self.identity)


def load(op, rung, type):
    if type in ABSENT:
        raise NotHere(f"nothing for {type} here")
    return Kernel(type)
"""
NATIVE = """
#ifdef IS_FLOAT64
#define TIMES {float64}
#else
#define TIMES {float32}
#endif
extern int optopt;  // the clock of the small engine
void row_sum(const T *a, T *out, long long rows, long long columns) {{
    for (volatile int again = 0; again < TIMES; ++again, ++optopt)
        for (long long row = 0; row < rows; ++row) {{
            double sum = 0;
            for (long long at = 0; at < columns; ++at)
                sum += a[row * columns + at];
            out[row] = sum;
        }}
}}
"""


@pytest.mark.parametrize("type", ["float32", "float64"])
def test_only_the_types_whose_binary_differs_are_timed(rows: Rows, type: str) -> None:
    rows.describe(TYPES)
    times = {"float32": 4, "float64": 4}
    rows.write_files({"rows/__init__.py": COMPILING, "native/sums.c": NATIVE.format(**times)})
    rows.commit_all("fast")
    rows.write_files({"native/sums.c": NATIVE.format(**{**times, type: 200})})
    rows.commit_all("slow for one type")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert tables(told) == [f"row_sum/plain {type}"]
    assert "HEAD is worse than BASE: 1 cell" in told
    rows.write_files({"native/sums.c": f"// {NATIVE.format(**{**times, type: 200})}"})
    rows.commit_all("a comment")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)
    assert "note: the source differs, the binary is the same: row_sum/plain" in told


def test_a_type_of_a_changed_launch_that_cannot_be_timed_is_named(rows: Rows) -> None:
    rows.describe(TYPES)
    package = COMPILING.replace("ABSENT = ()", 'ABSENT = ("float64",)')
    rows.write_files({"rows/__init__.py": package, "native/sums.c": NATIVE.format(float32=100, float64=4)})
    rows.commit_all("slow")
    rows.write_files({"native/sums.c": NATIVE.format(float32=2, float64=4)})
    rows.commit_all("faster, of what is here")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    assert "HEAD is better than BASE: 1 cell" in told
    assert (
        "cannot tell: row_sum/plain float64: its launch differs, and was not judged (nothing for float64 here)" in told
    )
    assert "not judged: row_sum/plain float64" in told
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", "--type", "float32", code=0)  # it was not asked for
    assert "not judged: row_sum/plain float64" in told


def test_what_was_asked_of_a_tree_is_kept_for_its_variables(rows: Rows, tmp_path: Path) -> None:
    """A variable of the environment decides what a rung reads."""
    reading = READING.format(named='__import__("os").environ["ROWS_TIMES"]')
    rows.describe(TYPES)
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": reading, "rows/one.txt": "4", "rows/two.txt": "4"})
    rows.commit_all("fast")
    rows.write_files({"rows/two.txt": "100"})
    rows.commit_all("slow")
    where = {"KERNELWATCH_CACHE": str(tmp_path / "cache")}
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0, ROWS_TIMES="one.txt", **where)
    assert "the only launch is the same" in told
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1, ROWS_TIMES="two.txt", **where)
    assert "changed: row_sum/plain: rows/two.txt" in told


PARTS = """parts=lambda places: {
    "row_sum/plain": __import__("kernelwatch.plan.package", fromlist=["Parts"]).Parts(
        "", frozenset({places.folder / "native" / "sums.c"}), data=False
    )
},"""


def test_a_shape_that_takes_too_long_to_launch_is_named(rows: Rows, tmp_path: Path) -> None:
    shutil.copytree(rows.engine, tmp_path / "hasty")
    rewrite(tmp_path / "hasty" / "kernelwatch", {"analysis/identified.py": {"LAUNCHING_S = 30.0": "LAUNCHING_S = 4.0"}})
    rows.describe(TYPES, shapes="(64, 64), (256, 64)", more=PARTS)
    slow = "        (a.shape[0] > 100 and a.dtype == 'float64') and __import__('time').sleep(600)\n        pointers"
    package = COMPILING.replace("        pointers", slow, 1)
    rows.write_files({"rows/__init__.py": package, "native/sums.c": NATIVE.format(float32=4, float64=4)})
    rows.commit_all("slow")
    rows.write_files({"native/sums.c": "// A comment." + NATIVE.format(float32=4, float64=4)})
    rows.commit_all("a comment")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0, PYTHONPATH=str(tmp_path / "hasty"))
    assert "the source differs, the binary is the same: row_sum/plain" in told
    assert "not launched here: row_sum/plain float64 256x64 (not launched within 4 s)" in told


DYING = """
import os
from pathlib import Path

import numpy as np

TIMES = int((Path(__file__).parent / "times.txt").read_text())


def plain(a, out):
    if a.shape[0] > 100:
        {ends}
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""


@pytest.mark.parametrize("ends", ["os._exit(3)", "raise ValueError('too large')"])
def test_a_shape_that_cannot_be_launched_leaves_the_sources(rows: Rows, ends: str) -> None:
    """What the other shapes read does not count for all: a file that differs may be read there."""
    rows.describe(TYPES, shapes="(64, 64), (256, 64)")
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": DYING.format(ends=ends)})
    rows.write_files({"rows/times.txt": "4", "rows/other.txt": "1"})
    rows.commit_all("one")
    rows.write_files({"rows/other.txt": "2"})
    rows.commit_all("two")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    assert "same" not in told
