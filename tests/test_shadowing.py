"""A repository may have modules with the names of Python's own: they are none of the engine's."""

import subprocess
import sys

import pytest

from tests.sums_of_rows import FAST, TABLE, Rows

NAMES = ("calendar", "json", "random", "secrets", "statistics", "tomllib")
BROKEN = "raise RuntimeError('this is no module of Python')\n"


@pytest.mark.parametrize("command", [("versus", "HEAD", "HEAD"), ("bench", "--no-gate", "--no-confirm")])
def test_a_module_at_the_top_of_a_repository_is_not_imported_for_pythons_own(
    rows: Rows, command: tuple[str, ...]
) -> None:
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.write_files({f"{name}.py": BROKEN for name in NAMES[:3]})
    rows.write_files({f"{name}/__init__.py": BROKEN for name in NAMES[3:]})
    rows.commit_all("modules with the names of Python's")
    environment = rows.environment(PYTHONPATH=str(rows.engine), COLUMNS="300")
    line = [sys.executable, "-m", "kernelwatch", *command]  # a new process, which has imported nothing yet
    done = subprocess.run(line, cwd=rows.folder, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert "this is no module of Python" not in told
    assert done.returncode == 0, told
    if command[0] == "bench":
        assert "1 ok" in told
