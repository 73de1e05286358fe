"""The ladder of a machine that lost a sidecar: what is shown is older than what was recorded, and that is said."""

from pathlib import Path

import pytest

from kernelwatch.system.errors import CANNOT
from tests.repositories import new_project
from tests.sums_of_rows import FAST, PLAIN, TABLE, Rows

OWN = """
class Plain:
    def time_it(self):
        pass
"""


def sidecar(rows: Rows, commit: str) -> Path:
    (path,) = rows.folder.glob(f"results/*/{commit[:8]}-*.facts.jsonl")
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> tuple[Rows, list[str]]:
    """A repository with full runs of two commits, and one of asv's own benchmarks at a third; the commits."""
    project = new_project(tmp_path_factory.mktemp("lost"), "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(PLAIN)
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST, "benchmarks/plain.py": OWN})
    commits = [rows.commit_all("first")]
    rows.kernelwatch("bench", "--all", "--no-gate", "--no-confirm")
    commits.append(rows.commit_all("second", "--allow-empty"))
    rows.kernelwatch("bench", "--all", "--no-gate", "--no-confirm")
    commits.append(rows.commit_all("third", "--allow-empty"))
    rows.kernelwatch("bench", "--all", "--bench", "time_it", "--no-gate", "--no-confirm")
    return rows, commits


def test_a_lost_sidecar_of_a_newer_commit_is_said(measured: tuple[Rows, list[str]]) -> None:
    rows, (first, second, third) = measured
    assert not [*rows.folder.glob(f"results/*/{third[:8]}-*.facts.jsonl")]
    assert "note: " not in (whole := rows.kernelwatch("ladder", "--markdown", code=0))  # asv's own have no sidecar
    assert f"commit {second[:8]}" in whole
    path = sidecar(rows, second)
    kept = path.read_bytes()
    path.unlink()
    try:
        told = rows.kernelwatch("ladder", "--markdown", code=0)
        said = f"note: {path} is missing, so that {second[:8]} is not shown; restore it, or measure this commit again"
        assert said in told
        assert f"commit {first[:8]}" in told
        assert "is missing" not in rows.kernelwatch("ladder", "--markdown", "--commit", first[:8], code=0)
        told = rows.kernelwatch("ladder", "--commit", second[:8], code=CANNOT)
        assert f"{path} is missing" in told
    finally:
        path.write_bytes(kept)


def test_a_lost_sidecar_of_an_older_commit_is_not_said(measured: tuple[Rows, list[str]]) -> None:
    rows, (first, second, _) = measured
    path = sidecar(rows, first)
    kept = path.read_bytes()
    path.unlink()
    try:
        told = rows.kernelwatch("ladder", "--markdown", code=0)
        assert "is missing" not in told
        assert f"commit {second[:8]}" in told
    finally:
        path.write_bytes(kept)
