"""The histories of scripts/lab/scale are ones that asv can publish, and scripts/lab/fleet uses recorded seconds."""

import json
import math
import shutil
from itertools import product
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.history import records
from kernelwatch.publish import cleaning
from kernelwatch.publish.recorded import sidecar_of
from kernelwatch.publish.series import cell_of
from lab import fleet, scale


def test_a_history_is_recorded_commit_by_commit(tmp_path: Path) -> None:
    history = scale.History(tmp_path, 2, series=370)
    history.more()
    hashes = history.hashes
    assert len(set(hashes)) == 3
    paths = records.sidecars(tmp_path / "results")
    assert [path.name[:8] for path in paths] == [commit[:8] for commit in hashes]  # by their dates
    assert all(cleaning.problem(path) == "" for path in (tmp_path / "results").rglob("*.json"))
    first, second = (records.read(path) for path in paths[:2])
    ratios = [second.cells[key].median_s / cell.median_s for key, cell in first.cells.items() if cell.seconds]
    assert all(0 < abs(ratio - 1) < 10 * scale.NOISE for ratio in ratios)
    (result,) = (tmp_path / "results").glob(f"*/{hashes[1][:8]}*.json")
    results = json.loads(result.read_text())["results"]
    assert sum(value is not None for values, *_ in results.values() for value in values) == 370
    told = {
        cell_of(scale.ROOT / "benchmarks", name, combination)[0]
        for name, (values, params, *_) in results.items()
        if not name.startswith(("static.", "access."))
        for combination, value in zip(product(*params), values, strict=True)
        if value is not None and not math.isnan(value)  # NaN: not measurable
    }
    assert len(ratios) == len(told) > 100  # a cell has several series
    name = next(name for name in results if name.endswith("GPU.track_seconds"))
    values, params, *_ = results[name]
    combination, value = next((each, one) for each, one in zip(product(*params), values, strict=True) if one)
    cell, _ = cell_of(scale.ROOT / "benchmarks", name, combination)
    assert value == pytest.approx(second.cells[cell].median_s)


def test_a_history_is_like_the_most_complete_record(tmp_path: Path) -> None:
    """Not like the newest one, which may have been measured with a filter."""
    source = scale.by_series(PROJECT.results)[0]
    result = json.loads(source.read_text())
    half = dict(list(result["results"].items())[::2])
    for commit, results, date in (
        ("1", half, 3),
        ("2", result["results"], 1),
        ("3", half, 2),
        ("4", result["results"], 0),
    ):
        path = tmp_path / "machine" / f"{8 * commit}-checkout.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result | {"results": results, "date": date}))
        if commit != "4":  # which has no sidecar
            shutil.copy(sidecar_of(source), sidecar_of(path))
    assert [path.name[0] for path in scale.by_series(tmp_path)] == ["2", "1", "3"]


def test_a_fleet_is_simulated_with_the_seconds_of_the_units() -> None:
    units = fleet.timed_units()
    for name, (unit, seconds, commit) in units.items():
        assert unit.name == name
        (path, *_) = PROJECT.results.glob(f"*/{commit}-*.json")
        assert seconds in json.loads(path.read_text())["durations"].values()
    gpu = units["matmul gpu"]
    assert gpu[2] == scale.by_series(PROJECT.results)[0].name[:8]
    done = fleet.Simulation(4, 8, {name: seconds for name, (_, seconds, _) in units.items()}, [gpu[0]], True).run()
    assert done.jobs == 8
    assert done.wall_s == pytest.approx(2 * (gpu[1] + fleet.OVERHEAD_S))


@pytest.mark.parametrize("arguments", [["0"], ["1", "--series", "0"]])
def test_a_history_has_a_commit_and_a_series(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.main(arguments)
    assert "a history has at least one commit and one series" in capsys.readouterr().err
