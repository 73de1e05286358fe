"""What commands say of a choice of cells that matches none: the options as they were typed, and what would be right."""

import re
import shlex
import sys

import pytest

from kernelwatch.system.errors import CANNOT
from tests.sums_of_rows import FAST, PLAIN, TABLE, Rows

SHAPES = "no cell matches --shape 3x3; their shapes are 64x64, 8x64"
QUICK = "no cell matches --shape 3x3; their shapes are 64x64\n"  # the largest
COMMANDS = (
    "versus HEAD~1 HEAD",
    f"versus --env {shlex.quote(sys.executable)} {shlex.quote(sys.executable)} HEAD",
    "bench --worktree",
    "bench --quick --no-gate",
    "link HEAD --no-publish",
)


@pytest.fixture
def two_shapes(rows: Rows) -> Rows:
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.describe(PLAIN, shapes="(64, 64), (8, 64)")
    rows.commit_all("first")
    rows.write_files({"rows/sums.py": FAST + "\n\nSECOND = True\n"})
    rows.commit_all("second")
    return rows


def test_a_shape_that_no_cell_has_is_answered_by_those_that_they_have(two_shapes: Rows) -> None:
    for command in COMMANDS:
        told = two_shapes.kernelwatch(*shlex.split(command), "--shape", "3x3", code=CANNOT)
        assert (QUICK if "--quick" in command else SHAPES) in told, told
        assert "(?=" not in told


def test_the_noise_of_a_shape_that_no_cell_has(rows: Rows) -> None:
    """It is that of cells of a GPU, which have shapes of their own."""
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.describe(PLAIN.replace("cpu", "gpu"), shapes="(8, 64)")
    rows.commit_all("first")
    told = rows.kernelwatch("noise", "--shape", "8x64", code=CANNOT)
    assert "no cell matches --shape 8x64; their shapes are 64x64" in told


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("--type float16", "no cell matches --type float16; their types are float32"),
        ("--only plain --shape 64x8", "no cell matches --only plain --shape 64x8; their shapes are 64x64, 8x64"),
        (
            "--only other --shape 64x64",
            "no cell matches --only other --shape 64x64; one is named like 'row_sum/plain float32 64x64 cold'",
        ),
        ("--shape 8x64 --cache hot", "no cell matches --shape 8x64 --cache hot; their cache states are cold"),
        ("--only other", "no cell matches 'other'; one is named like 'row_sum/plain float32 64x64 cold'"),
    ],
)
def test_the_option_that_is_to_blame_is_answered(two_shapes: Rows, chosen: str, said: str) -> None:
    assert said in two_shapes.kernelwatch("link", "HEAD", "--no-publish", *chosen.split(), code=CANNOT)


def test_a_description_without_a_cell_is_named_by_every_command(rows: Rows) -> None:
    """As `kernelwatch init` may leave it: of no op, or of one without rungs."""
    rows.write_files({"rows/__init__.py": "", "rows/sums.py": FAST})
    rows.describe("")
    rows.commit_all("no rung")
    project = rows.folder / "benchmarks" / "project.py"
    text = project.read_text()
    for description in (text, re.sub(r"problems=\(.*?\n    \),\n", "problems=(),\n", text, flags=re.DOTALL)):
        project.write_text(description)
        for command in (
            "profile",
            "profile row_sum/plain",
            "profile row_sum",
            "bench",
            "link",
            "noise",
            "versus HEAD HEAD --only plain",
            "versus HEAD HEAD --shape 3x3",
        ):
            told = rows.kernelwatch(*command.split(), code=CANNOT)
            assert told.startswith(f"kernelwatch {command.split()[0]}: nothing is measured yet: {project} describes no")
            assert "`problems` of its Project" in told


def test_a_description_without_cuda_has_nothing_to_profile(two_shapes: Rows) -> None:
    for command in ("profile", "profile row_sum"):
        told = two_shapes.kernelwatch(*command.split(), code=CANNOT)
        assert told == "kernelwatch profile: nothing can be counted: row_sum has no rung of a CUDA source\n"
