"""docs/adding.md is followed by the word in a copy of this project: what was added passes, and no other test breaks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reader import Reader
from tests.repositories import FILES, ROOT, new_project

ADDED = ("transpose/one_each", "matmul/one_each", "row_sum/thread_row", "row_sum/c")
# Of the tests that loop over the ladder, those of what was added; of those that list ops, what is quick. The page of
# test_own_page adds another row_sum, to a repository of its own.
CHOSEN = (
    "(one_each or row_sum or test_cells.py or test_tables.py or test_shapes.py or as_its_lock_has_it or of_one_op"
    " or newest_record or rungs_of_the_ladder or suites_take_the_engine or a_pattern_names) and not test_own_page"
)
READ = ("data", "docs", "examples", "results", "README.md", "CONTRIBUTING.md")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy, with all that the page adds."""
    project = new_project(tmp_path_factory.mktemp("adding"))
    for path in ROOT.iterdir():
        if path.name in READ:
            (project.folder / path.name).symlink_to(path)
        elif path.name in (*FILES, "tests"):
            copied = shutil.copytree if path.is_dir() else shutil.copy
            copied(path, project.folder / path.name)
    project.commit_all("As it is")
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    Reader(project, Path(sys.executable).parent, {}).do(page)
    return project.folder


def run_tests(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    left = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=left, capture_output=True, text=True, check=False)


def test_what_was_added_passes_the_other_steps_of_the_check(copy: Path) -> None:
    """Those of scripts/check besides the tests; mypy checks the files that differ, and what they import. What it knows
    of this project, if it was checked before, spares it the rest."""
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=copy, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    changed = [name for name in (line[3:] for line in status) if name.endswith(".py") and "/matmul/" not in name]
    assert {"benchmarks/project.py", "benchmarks/row_sum.py", "tests/gate.py"} <= set(changed)
    known = copy.parent / "mypy"
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", known)
    steps = (
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--no-cache", "--check", "."],
        ["codespell_lib"],
        ["mypy", "--cache-dir", str(known), *changed],
    )
    for step in steps:
        done = subprocess.run([sys.executable, "-m", *step], cwd=copy, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_an_op_and_a_rung_that_are_added_as_the_page_says_pass(copy: Path) -> None:
    done = run_tests(copy, "--basetemp", str(copy.parent / "base"), "-k", CHOSEN)
    assert done.returncode == 0, done.stdout[-5000:]
    passed = set(re.findall(r"::(\S+)\[(\S+)-float32\S*\] PASSED", done.stdout))
    assert ("test_rung_against_numpy", "row_sum/c") in passed
    assert {("test_rung_on_the_cpu", rung) for rung in ADDED[:3]} <= passed
    assert len(re.findall(r"not held against hardware yet", done.stdout)) >= 3
