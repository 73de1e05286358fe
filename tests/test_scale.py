"""The histories of scripts/scale are ones that asv can publish."""

import json
from pathlib import Path

import pytest

from kernelwatch.asv import untrusted
from kernelwatch.history import records
from lab import scale


def test_a_history_is_recorded_commit_by_commit(tmp_path: Path) -> None:
    hashes = scale.repository(tmp_path / "repository", 3)
    assert len(set(hashes)) == 3
    recorder = scale.Recorder(tmp_path / "results", timed=True)
    for at, commit in enumerate(hashes):
        recorder.record(commit, at)
    paths = records.sidecars(tmp_path / "results")
    assert [path.name[:8] for path in paths] == [commit[:8] for commit in hashes]  # by their dates
    assert all(untrusted.problem(path) == "" for path in (tmp_path / "results").rglob("*.json"))
    first, second = (records.read(path) for path in paths[:2])
    assert len(first.cells) > 300
    ratios = [second.cells[key].median_s / cell.median_s for key, cell in first.cells.items() if cell.seconds]
    assert all(0 < abs(ratio - 1) < 10 * scale.NOISE for ratio in ratios)
    results = json.loads(next((tmp_path / "results").glob(f"*/{hashes[0][:8]}*.json")).read_text())["results"]
    assert {name.rpartition(".")[2] for name in results} == {"track_seconds"}


def test_a_history_has_a_commit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.main(["0"])
    assert "a history has at least one commit" in capsys.readouterr().err
