"""The simulation that the documents' figures of the detector come from."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kernelwatch.detect import testing
from kernelwatch.detect.steps import Point, Step, find
from lab import ablation, confirming, detection, figures, histories, simulate
from lab.detectors import own
from lab.histories import Runs
from lab.simulate import JSON, PAPER, ROOT
from tests.test_steps import QUIET, level, noise, points, two_levels


@pytest.fixture(scope="module")
def cells() -> dict[str, Runs]:
    return histories.record(histories.recorded(ROOT / "results"))


def test_what_is_drawn_has_the_records_spread(cells: dict[str, Runs], tmp_path: Path) -> None:
    line = {"key": "a", "cv": 0.1, "medians_s": [0.9, 1.0, 1.1], "processes_s": [[0.8, 0.9, 1.0], [1.0], [1.1, 1.1]]}
    (tmp_path / "noise.jsonl").write_text(json.dumps(line) + "\n")
    (runs,) = histories.record(tmp_path / "noise.jsonl").values()
    assert np.mean(runs.off**2) == pytest.approx(0.1**2)  # drawn from them, the spread is that of the runs
    assert runs.spreads == pytest.approx([0.1 / 0.9 / math.sqrt(3), 0, 0])
    assert runs.variation == pytest.approx(0.1)
    series = runs.drawn(np.random.default_rng(0))
    assert series.spreads is not None
    drawn = {(round(value, 6), round(error, 6)) for value, error in zip(series.values, series.spreads, strict=True)}
    off = 0.1 * 1.5**0.5
    assert drawn == {(round(1 - off, 6), round(runs.spreads[0], 6)), (1, 0), (round(1 + off, 6), 0)}
    assert len(cells) > 100


def test_a_record_without_processes_says_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "noise.jsonl").write_text(json.dumps({"key": "a", "cv": 0.1, "medians_s": [0.9, 1.1]}) + "\n")
    assert histories.record(tmp_path / "noise.jsonl")["a"].spreads.tolist() == [0, 0]


def test_the_simulation_repeats_and_finds_what_it_put_there(cells: dict[str, Runs]) -> None:
    job = ("as recorded", "5 %", cells, 2, 7)
    noise_name, change, rows = simulate.trial(job)
    assert (noise_name, change) == ("as recorded", "5 %")
    assert rows["gpukernels"]["found"] == rows["gpukernels"]["exact"] == rows["gpukernels"]["within_2"] == 1
    assert rows["gpukernels"]["false_per_1000"] == 0
    assert simulate.trial(job)[2] == rows
    assert simulate.trial(("as recorded", "6 x 5 %", cells, 2, 7))[2]["asv, 5 %"]["found"] != 1


def test_the_detector_without_a_test_flags_what_that_test_refuses() -> None:
    """And is whole again afterwards."""
    small = noise(1) * level((100, 0.003))
    wandering = points(np.exp(np.cumsum(0.005 * np.random.default_rng(4).standard_normal(400))))
    once, bimodal = noise(2), points(two_levels(2, 0.03))
    once[199] *= 1.1
    refused = {
        "floor": points(small, spread=QUIET / 1.25),
        "noise and drift": wandering,
        "drift alone": wandering,
        "points": points(once),
        "evidence": bimodal,
        "direction": wandering,
    }
    for name, series in refused.items():
        assert find(series) == []
        with ablation.without(name):
            assert find(series) != [], name
        assert find(series) == []
    assert {*refused, *ablation.PARTS} == {*ablation.LEFT_OUT} - {ablation.ALL}


def test_what_is_not_near_a_change_is_a_false_flag() -> None:
    tally = simulate.Tally()
    tally.take([40, 118, 130], [(120, 120)])
    assert (tally.changes, tally.found, tally.exact, tally.false) == (1, 1, 0, 2)


def test_a_flag_that_passes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector that believes the newest point alone: what it flags is gone the next day."""

    def hasty(known: list[Point]) -> list[Step]:
        last = known[-1]
        return [Step(last.commit, "step", 1.0, last.value, 0.0)] if last.value > 1.01 else []

    monkeypatch.setattr(simulate, "find", hasty)
    flags = simulate.suite(({"a": Runs(np.array([0.0] * 9 + [0.02]), np.zeros(10))}, 0, 1))
    assert 5 < len(flags) < 50
    assert all(at == seen and change == pytest.approx(0.02) for _, at, seen, change in flags)


def test_the_goal_holds_on_a_few_cells(cells: dict[str, Runs]) -> None:
    """Every 1 % step of a quiet cell is flagged within two commits and on the right one."""
    few = sorted(cells)[::20]
    for key in few:
        if cells[key].variation <= histories.QUIET_CV:
            found = simulate.goal((key, cells[key], 3, 5))
            assert all(one.delay <= 2 and one.named and one.whole for one in found)
    assert simulate.suite(({key: cells[key] for key in few}, 0, 5)) == []


def test_the_goal_holds_on_young_histories_of_the_noisiest_quiet_cells(cells: dict[str, Runs]) -> None:
    """Their noise is almost a fifth of the step, and few commits say so; some of them come near to having two levels,
    which must not pass for drift."""
    quiet = [runs for runs in cells.values() if runs.variation <= histories.QUIET_CV]
    step = level((24, 0.01), length=27)
    for runs in sorted(quiet, key=lambda runs: runs.variation)[-3:]:
        for seed in range(20):
            young = runs.drawn(np.random.default_rng(seed)).until(27)
            assert own(young._replace(values=young.values * step)) == [24], (runs.variation, seed)


def test_disturbed_runs_are_refuted_and_steps_confirmed(
    cells: dict[str, Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {key: runs for key, runs in cells.items() if runs.variation <= histories.QUIET_CV}
    monkeypatch.setattr(confirming, "SAMPLE", 1)
    result = confirming.confirmed((quiet, 0, 6))
    assert result.events > 0 == result.false
    assert result.confirmed == result.flagged == result.steps == 1


def test_what_shifts_all_cells_of_a_session_is_blamed_on_no_commit(cells: dict[str, Runs]) -> None:
    quiet = {key: runs for key, runs in cells.items() if runs.variation <= histories.QUIET_CV}
    result = confirming.together((quiet, 0, 6))
    assert result["moves"] > 0
    assert result["false"] == 0 < result["false_alone"]
    assert result["found"] == result["steps"]


def test_the_documents_figures_are_the_records() -> None:
    result, text = json.loads(JSON.read_text()), PAPER.read_text()
    for name, make in detection.BLOCKS.items():
        begin, end = figures.marks(name, "scripts/lab/simulate")
        assert text.split(begin)[1].split(end)[0].strip() == make(result)
    assert result["suite"]["commits"] >= 10_000
    assert result["suite"]["false_flags"] == []
    assert result["suite"]["false_flags_of_next_seed"] == []
    goal = result["goal"]
    assert goal["first"] == goal["named"] == goal["whole"] == goal["steps"]
    assert goal["after_2"] == goal["steps"]
    for past in result["past"].values():
        assert past["after_2"] >= 0.95 * past["steps"]
    whole = result["ablation"][ablation.ALL]
    assert whole["measured"]["false"] == 0
    for name in {*(test.name for test in testing.STEP), *(test.name for test in testing.GRADUAL)}:  # each pays
        assert result["ablation"][name]["worse"]["false"] > whole["worse"]["false"]
    again = result["confirmed"]
    assert again["false"] == 0 < again["events"]
    assert again["confirmed"] == again["flagged"] == again["steps"]
