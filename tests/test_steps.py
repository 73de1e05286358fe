"""The detector of steps on series whose changes are known, beside asv's own; and a small run of the simulation."""

import dataclasses
import json
import math
import time
from collections.abc import Sequence

import numpy as np
import pytest
from asv.step_detect import detect_regressions, detect_steps

from kernelwatch.detect.levels import Window
from kernelwatch.detect.point import Points
from kernelwatch.detect.robust import Values
from kernelwatch.detect.steps import AHEAD, BEFORE, CHUNK, FLOOR, Point, Step, find, smallest

QUIET = 0.0005  # the noise of an ordinary cell on an H200
SEEDS = range(10)


def noise(seed: int, share: float = QUIET, length: int = 200) -> Values:
    return np.asarray(1 + share * np.random.default_rng(seed).standard_normal(length))


def level(*steps: tuple[int, float], length: int = 200) -> Values:
    """1, and from each place on so much more."""
    found = np.ones(length)
    for at, change in steps:
        found[at:] *= 1 + change
    return found


def points(
    values: Values,
    identities: Sequence[str] = (),
    conditions: Sequence[str] = (),
    canaries: Sequence[float] | Values = (),
    spread: float = 0.0,
) -> list[Point]:
    return [
        Point(
            commit=at,
            value=value,
            spread=spread,
            identity=identities[at] if len(identities) else "",
            conditions=conditions[at] if len(conditions) else "",
            canary=float(canaries[at]) if len(canaries) else None,
        )
        for at, value in enumerate(values.tolist())
    ]


def places(steps: list[Step]) -> list[tuple[int, str]]:
    return [(step.at, step.kind) for step in steps]


# --- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", [0.01, -0.01, 0.1, -0.5, 3.0])
def test_a_step_is_found_on_its_commit_up_and_down(seed: int, change: float) -> None:
    (step,) = find(points(noise(seed) * level((120, change)) * 38e-6))
    assert (step.at, step.kind, step.why, step.since) == (120, "step", "", None)
    assert step.change == pytest.approx(change, abs=3 * QUIET * (1 + abs(change)))
    assert step.before == pytest.approx(38e-6, rel=QUIET)  # raw seconds
    assert step.smallest == pytest.approx(FLOOR)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", [0.02, 0.05])
def test_a_staircase_is_found_where_asvs_own_detector_finds_no_step(seed: int, change: float) -> None:
    stairs = [25, 50, 75, 100, 125, 150]
    values = noise(seed, 0.005) * level(*((at, change) for at in stairs))
    asvs = [left for left, *_ in detect_steps(values.tolist())[1:]]
    assert sum(any(abs(left - at) <= 2 for left in asvs) for at in stairs) <= 3, "asv's own detector does: use it"
    found = find(points(values))
    assert len(found) == 6
    assert all(step.kind == "step" and abs(step.at - at) <= 2 for step, at in zip(found, stairs, strict=True))


def test_asv_misses_what_comes_and_goes() -> None:
    """Eight steps of 5 %, up and down in turns."""
    stairs = [(22 * (at + 1), (-1) ** at * 0.05) for at in range(8)]
    values = noise(0, 0.005) * level(*stairs)
    assert [step.at for step in find(points(values))] == [at for at, _ in stairs]
    assert not detect_regressions(detect_steps(values.tolist()), 0.05)[2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_gradual_change_is_found_as_one(seed: int, sign: int) -> None:
    """0.3 % a commit over ten commits: none of them would show."""
    (step,) = find(points(noise(seed) * level(*((at, sign * 0.003) for at in range(100, 110)))))
    assert step.kind == "gradual"
    assert step.since is not None
    assert abs(step.since - 100) <= 1
    assert abs(step.at - 109) <= 1
    assert step.change == pytest.approx(sign * 0.03, abs=0.002)


def slow_growth(seed: int, begin: int, length: int, rate: float = 0.001, count: int = 100) -> Values:
    """0.1 % more at each of a hundred commits."""
    return np.asarray(noise(seed, length=length) * np.exp(rate * np.clip(np.arange(length) - begin + 1, 0, count)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("begin", "length"), [(1, 100), (50, 150), (100, 300), (250, 650)])
def test_slow_growth_is_one_gradual_change(seed: int, begin: int, length: int) -> None:
    """To the detector's drift alone it would look like drift."""
    (step,) = find(points(slow_growth(seed, begin, length), spread=QUIET / 1.25))
    assert step.kind == "gradual"
    assert step.since is not None
    assert abs(step.since - begin) <= 6
    assert abs(step.at - min(begin + 100, length)) <= 6
    assert step.change == pytest.approx(0.1, abs=0.006)
    assert {test.name for test in step.tests} == {"floor", "direction"}
    assert all(test.value >= test.bound > 0 for test in step.tests)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_shows_amid_slow_growth_and_soon_after_it(seed: int) -> None:
    values = slow_growth(seed, 50, 230) * level((100, 0.02), (200, 0.01), length=230)
    growth, *steps = sorted(find(points(values, spread=QUIET / 1.25)), key=lambda step: step.kind)
    assert [(step.at, step.kind) for step in steps] == [(100, "step"), (200, "step")]
    assert [step.change for step in steps] == pytest.approx([0.02, 0.01], abs=0.004)
    assert growth.change == pytest.approx(0.105, abs=0.005)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", [0.0005, 0.002, 0.005])
def test_a_series_that_wanders_without_a_direction_does_not_grow(seed: int, step: float) -> None:
    """However far it gets: by 5 % to 12 %."""
    moves = np.random.default_rng(seed).standard_normal(600)
    assert find(points(noise(seed, length=600) * np.exp(np.cumsum(step * moves)), spread=QUIET / 1.25)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_growth_that_the_canary_shows_is_the_machines(seed: int) -> None:
    grown = slow_growth(seed, 50, 200)
    assert find(points(grown, canaries=slow_growth(100 + seed, 50, 200), spread=QUIET / 1.25)) == []


def test_a_staircase_is_no_gradual_change() -> None:
    found = find(points(noise(1) * level((80, 0.01), (90, 0.01), (100, 0.01))))
    assert places(found) == [(80, "step"), (90, "step"), (100, "step")]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_processes_say_is_believed_in_a_short_history(seed: int) -> None:
    """Six commits of a quiet cell: that it is quiet only its processes can tell. So it is with a restless one."""
    values = noise(seed, length=6) * level((4, 0.01), length=6)
    assert find(points(values)) == []
    assert places(find(points(values, spread=QUIET / 1.25))) == [(4, "step")]
    values = noise(seed, length=6) * level((4, 0.03), length=6)
    assert places(find(points(values))) == [(4, "step")]
    assert find(points(values, spread=0.01)) == []
    assert smallest(points(noise(seed, length=6), spread=0.004)) > smallest(points(noise(seed, length=6)))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_commit_with_a_disturbed_process_hides_nothing(seed: int) -> None:
    told = points(noise(seed, length=10) * level((5, 0.02), length=10), spread=QUIET / 1.25)
    assert places(find(told)) == [(5, "step")]
    told[2] = dataclasses.replace(told[2], spread=0.2)
    assert places(find(told)) == [(5, "step")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_shows_with_the_first_commit_after_its_own(seed: int) -> None:
    values = noise(seed, 0.0012) * level((198, 0.01))
    assert find(points(values[:199])) == []  # one point may be a bad one
    assert places(find(points(values[:200]))) == [(198, "step")]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("past", [0.003, 0.005])
def test_a_noisy_past_hides_no_quiet_present(seed: int, past: float) -> None:
    """The processes of each commit say how noisy it was."""
    shares = np.where(np.arange(200) < 150, past, QUIET)
    values = (1 + shares * np.random.default_rng(seed).standard_normal(200)) * level((197, 0.01))
    told = [
        dataclasses.replace(point, spread=share / 1.25)
        for point, share in zip(points(values), shares.tolist(), strict=True)
    ]
    assert places(find(told)) == [(197, "step")]
    assert smallest(told[:195]) < 0.0065
    assert smallest(points(values[:195])) > 0.007  # if nobody tells, what was noisy may still be


def two_levels(seed: int, apart: float, length: int = 200) -> Values:
    """Three commits in ten are slower."""
    slow = np.random.default_rng(100 + seed).random(length) < 0.3
    return noise(seed, length=length) * np.where(slow, 1 + apart, 1.0)


@pytest.mark.parametrize("apart", [0.02, 0.1])
@pytest.mark.parametrize(("change", "soon"), [(0.01, 4), (0.02, 10)])
def test_a_step_of_a_cell_with_two_levels_is_found_within_ten_commits(apart: float, change: float, soon: int) -> None:
    """Some of its points are on a level that the cell never had, and a level that it had is not seen again."""
    series = [points(two_levels(seed, apart) * level((150, change))) for seed in SEEDS]
    found = [places(find(one[: 151 + soon])) for one in series]
    assert sum(len(steps) == 1 and abs(steps[0][0] - 150) <= 2 for steps in found) >= 8
    whole = [places(find(one)) for one in series]
    assert sum(len(steps) == 1 and abs(steps[0][0] - 150) <= 2 for steps in whole) >= 9


@pytest.mark.parametrize("apart", [0.02, 0.1])
def test_a_cell_of_two_levels_without_a_step_shows_none_on_any_day(apart: float) -> None:
    """Several points in a row on one level, as chance brings them, are no step. Each series is looked at on other
    days."""
    series = [points(two_levels(seed, apart)) for seed in SEEDS]
    days = [range(40 + seed % 5, 201, 5) for seed in SEEDS]
    looks = [find(one[:end]) for one, ends in zip(series, days, strict=True) for end in ends]
    assert [steps for steps in looks if steps] == []


def test_the_work_grows_with_the_length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a series with two levels, of which many steps are proposed, and for one that wanders."""
    tested: list[int] = []
    real = Window._weight

    def counted(self: Window, at: int, low: int, high: int, relative: Values) -> float:
        tested.append(high - low)
        return real(self, at, low, high, relative)

    monkeypatch.setattr(Window, "_weight", counted)
    wander = np.exp(np.cumsum(0.002 * np.random.default_rng(0).standard_normal(1800)))
    for values in (two_levels(0, 0.02, 1800), wander):
        work = []
        for length in (900, 1800):
            tested.clear()
            find(points(values[:length]))
            work.append(len(tested))
            assert max(tested) <= BEFORE + CHUNK + AHEAD
        assert work[1] < 2.6 * work[0]
        assert work[1] < 1800


def test_a_short_history_shows_a_large_step() -> None:
    assert places(find(points(noise(0, length=6) * level((3, 0.1), length=6)))) == [(3, "step")]
    assert find(points(noise(0, length=3) * level((1, 0.1), length=3))) == []
    assert find(points(noise(0, length=1))) == find([]) == []


def test_a_step_shows_wherever_it_lies_in_a_short_history() -> None:
    """In each of these: a commit more must not hide what was flagged before."""
    for count in range(6, 45):
        for at in range(3, count - 2):
            values = noise(at, 0.001, length=count) * level((at, 0.3), length=count)
            assert places(find(points(values))) == [(at, "step")], count


def test_short_levels_of_a_short_history_show() -> None:
    """One median of all points would leave the levels on one side of it alike."""
    for count in (16, 20):
        apart = count // 4
        places_of_steps = [apart, 2 * apart, 3 * apart]
        values = noise(count, 0.001, length=count)
        for at in places_of_steps:
            values = values * level((at, 0.1), length=count)
        assert places(find(points(values))) == [(at, "step") for at in places_of_steps], count


def test_what_is_not_finite_counts_as_not_measured() -> None:
    values = noise(0) * level((100, 0.02))
    values[[10, 100, 150]] = math.nan, math.inf, -math.inf
    assert places(find(points(values))) == [(101, "step")]
    assert smallest(points(values)) == pytest.approx(FLOOR)
    assert places(find(points(np.array([4, math.nan, 5])), exact=True)) == [(2, "step")]
    assert find(points(noise(0), canaries=[math.nan] * 200)) == []


def test_values_of_either_sign_are_taken() -> None:
    """What a launch costs is a difference, and may fall below nothing."""
    values = 1e-6 * np.random.default_rng(0).standard_normal(100) + np.where(np.arange(100) < 50, 0.0, 20e-6)
    assert places(find(points(values))) == [(50, "step")]


# --- what is not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [QUIET, 0.005, 0.02])
def test_noise_is_no_step(seed: int, share: float) -> None:
    assert find(points(noise(seed, share))) == []


@pytest.mark.parametrize("off", [0.02, 0.5, -0.3])
@pytest.mark.parametrize("at", [0, 60, 199])
def test_one_bad_point_is_no_step(at: int, off: float) -> None:
    values = noise(3)
    values[at] *= 1 + off
    assert find(points(values)) == []
    values *= level((120, 0.01))
    assert places(find(points(values))) == [(120, "step")]  # nor does it hide one


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cell_of_two_levels_is_no_staircase(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = noise(seed) * np.where(rng.random(200) < 0.3, 1.03, 1.0)
    assert find(points(values)) == []
    assert places(find(points(values * level((100, 0.2))))) == [(100, "step")]


def test_a_noisy_series_has_a_higher_threshold() -> None:
    """A change of 2 % shows in a quiet series, and not within two commits in a noisy one, which says so."""
    change = level((198, 0.02))
    assert find(points(noise(4) * change))
    assert not find(points(noise(4, 0.01) * change))
    assert smallest(points(noise(4))) == pytest.approx(FLOOR)
    assert 0.03 < smallest(points(noise(4, 0.01))) < 0.08
    assert not find(points(noise(4) * change, spread=0.01))  # the spread that was measured counts as well
    assert smallest(points(noise(4), spread=0.01)) > 0.03
    assert smallest(points(noise(4, length=3))) == math.inf


def test_what_smallest_promises_shows() -> None:
    shown = 0
    for seed in range(20):
        history = noise(seed, 0.003)
        promised = smallest(points(history[:-2]))
        shown += bool(find(points(history * level((198, 1.5 * promised)))))
    assert shown >= 18


# --- exact series --------------------------------------------------------------------------------------------------


def test_any_difference_of_an_exact_series_is_a_step() -> None:
    values = np.array([4, 4, 5, 5, 0, 0, 8.0])
    found = find(points(values), exact=True)
    assert [(step.at, step.before, step.after, step.smallest) for step in found] == [
        (2, 4, 5, 0),
        (4, 5, 0, 0),
        (6, 0, 8, 0),
    ]
    assert found[2].change == math.inf
    assert smallest(points(values), exact=True) == 0
    assert find(points(np.zeros(9)), exact=True) == find(points(np.zeros(9))) == []


# --- what is to blame ----------------------------------------------------------------------------------------------


def test_another_driver_is_the_environments_step() -> None:
    conditions = [json.dumps({"nvml_driver": "580" if at < 100 else "590", "gpu": "H200"}) for at in range(200)]
    (step,) = find(points(noise(5) * level((100, 0.02)), conditions=conditions))
    assert (step.at, step.kind, step.why) == (100, "environment", "nvml_driver 580 -> 590")
    assert step.change == pytest.approx(0.02, abs=0.001)
    assert find(points(noise(5), conditions=conditions)) == []
    found = find(points(noise(5) * level((100, 0.02), (150, 0.02)), conditions=conditions))
    assert places(found) == [(100, "environment"), (150, "step")]


def test_levels_are_compared_within_one_condition() -> None:
    """Two commits into the new driver's days a step is told from it: the old driver's days are no baseline."""
    values = noise(6) * level((100, 0.02), (102, 0.02))
    conditions = ["580"] * 100 + ["590"] * 100
    assert places(find(points(values, conditions=conditions))) == [(100, "environment"), (102, "step")]
    assert find(points(values, conditions=conditions))[0].change == pytest.approx(0.02, abs=0.001)


def on_gpus(seed: int, gpus: Sequence[int], apart: float, change: float = 0.0, share: float = QUIET) -> list[Point]:
    """A series that several GPUs measure, `apart` from one another; the 60th commit changes it."""
    values = noise(seed, share, len(gpus)) * (1 + apart * np.array(gpus)) * level((60, change), length=len(gpus))
    return points(values, conditions=[f"gpu {gpu}" for gpu in gpus], spread=share / 1.25)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", [0.2, 0.01, -0.01])
@pytest.mark.parametrize("period", [1, 2, 5, 0])
def test_gpus_that_alternate_are_compared_like_with_like(seed: int, change: float, period: int) -> None:
    drawn = np.random.default_rng(seed).integers(2, size=100).tolist()
    gpus = [at // period % 2 for at in range(100)] if period else drawn
    (step,) = find(on_gpus(seed, gpus, 0.02, change))
    assert (step.at, step.kind) == (60, "step")
    assert step.change == pytest.approx(change, abs=3 * QUIET)
    assert step.before == pytest.approx(1 + 0.02 * gpus[60], rel=2 * QUIET)  # as the GPU after the step has it
    assert find(on_gpus(seed, gpus, 0.02)) == []
    assert places(find(on_gpus(seed, gpus, 0.02, change)[:62])) == [(60, "step")]


@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 100])
def test_smallest_promises_nothing_that_would_hide(period: int, count: int) -> None:
    """On two GPUs a step of the promised size shows; on a hundred that never come back nothing can be compared."""
    gpus = [at // period % count for at in range(100)]
    promised = smallest(on_gpus(0, gpus[:60], 0.02, share=0.003))
    assert promised == math.inf if count == 100 else 0.005 < promised < 0.03
    shown = [find(on_gpus(seed, gpus, 0.02, min(1.5 * promised, 0.2), 0.003)) for seed in SEEDS]
    assert sum((60, "step") in places(steps) for steps in shown) >= (9 if count == 2 else 0)


def test_the_canary_of_gpus_that_alternate_is_compared_like_with_like() -> None:
    gpus = [at % 2 for at in range(200)]
    told = [
        dataclasses.replace(point, value=point.value * float(drift), canary=float(drift) * (1 + 0.05 * gpu))
        for point, drift, gpu in zip(on_gpus(1, gpus, 0.02, 0.02), wander(3), gpus, strict=True)
    ]
    assert places(find(told)) == [(60, "step")]


def test_a_gpu_that_comes_back_once_is_not_yet_known() -> None:
    """The step at its return may be its own."""
    gpus = [0] * 40 + [1] * 20 + [0] * 40
    assert places(find(on_gpus(2, gpus, 0.02, 0.05))) == [(40, "environment"), (60, "environment")]


@pytest.mark.parametrize("later", [[], [0, 1] * 20])
def test_two_pairs_of_gpus_are_not_compared_with_one_another(later: list[int]) -> None:
    """Where the second pair takes over, as where the first comes back, a step may be the GPUs'."""
    gpus = [0, 1] * 30 + [2, 3] * 20 + later
    series = on_gpus(2, gpus, 0.02, 0.05)
    blamed = [place for place in places(find(series)) if place[1] != "environment"]
    assert blamed == []
    assert (60, "environment") in places(find(series))


def test_conditions_that_change_at_every_commit_cost_no_more_than_the_length() -> None:
    took = []
    for length in (1000, 4000):
        for gpus in (range(length), [at % 2 for at in range(length)]):
            series = Points.of(on_gpus(0, list(gpus), 0.02))
            began = time.process_time()
            find(series)
            took.append(time.process_time() - began)
    assert max(took) < 1.0  # 30 s, when each turn was a proposed step; 0.1 s


def test_unknown_conditions_change_nothing() -> None:
    conditions = ["580"] * 60 + [""] * 60 + ["580"] * 80
    assert places(find(points(noise(7) * level((100, 0.02)), conditions=conditions))) == [(100, "step")]


def test_the_same_binary_is_never_blamed() -> None:
    values = noise(8) * level((100, 0.02))
    (step,) = find(points(values, identities=["a"] * 200))
    assert (step.kind, step.why) == ("environment", "the binary is the same")
    assert places(find(points(values, identities=["a"] * 100 + ["b"] * 100))) == [(100, "step")]
    assert places(find(points(values, identities=[""] * 200))) == [(100, "step")]
    assert find(points(level((100, 1.0)), identities=["a"] * 200), exact=True)[0].kind == "environment"


@pytest.mark.parametrize("seed", SEEDS)
def test_where_it_is_a_near_thing_the_commit_that_changed_the_binary_is_blamed(seed: int) -> None:
    values = noise(seed) * level((100, 0.02))
    values[100] = 1.009  # a first point that could belong to either level
    identities = ["a"] * 100 + ["b"] * 100
    assert places(find(points(values, identities=identities))) == [(100, "step")]


def test_a_change_of_conditions_beside_a_point_without_any_is_no_commits_doing() -> None:
    """The sidecar of one commit is missing: what changed meanwhile shows at the next."""
    told = ["one"] * 12 + [""] + ["other"] * 10
    moved = points(level((13, 0.1), length=23) * noise(3, length=23), conditions=told)
    assert [(step.at, step.kind) for step in find(moved)] == [(13, "environment")]
    counts = points(level((13, 0.5), length=23), conditions=told)
    assert [(step.at, step.kind) for step in find(counts, exact=True)] == [(13, "environment")]


@pytest.mark.parametrize("place", [-1, 1])
@pytest.mark.parametrize("size", [1.0, 0.05, -0.3])
def test_a_step_one_commit_beside_a_change_of_the_conditions(place: int, size: float) -> None:
    """The one point between them is on the old level, so the conditions changed nothing."""
    at, values = 15 + place, noise(4, 0.001, 30)
    values[at:] *= 1 + size
    points = [Point(commit, value, 0.001, conditions=f"gpu {commit >= 15}") for commit, value in enumerate(values)]
    (found,) = find(points)
    assert (found.at, found.kind) == (at, "step")
    assert found.change == pytest.approx(size, abs=0.01)


def test_a_bad_point_beside_a_change_of_the_conditions_makes_no_step() -> None:
    """Other GPUs move these series by some percent, and now and then a point is off by five."""
    told = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        gpus = np.repeat(1 + 0.02 * generator.standard_normal(3), 10)
        values = gpus * noise(seed, 0.002, 30) * np.where(generator.random(30) < 0.03, 1.05, 1)
        points = [Point(commit, value, 0.002, conditions=f"gpu {commit // 10}") for commit, value in enumerate(values)]
        told += sum(step.kind != "environment" for step in find(points))
    assert told <= 3


# --- the canary ----------------------------------------------------------------------------------------------------


def wander(seed: int) -> Values:
    return np.asarray(np.exp(0.002 * np.cumsum(np.random.default_rng(100 + seed).standard_normal(200))))


@pytest.mark.parametrize("seed", SEEDS)
def test_drift_that_the_canary_saw_is_taken_out(seed: int) -> None:
    drift, canaries = wander(seed), wander(seed) * noise(50 + seed)
    assert find(points(noise(seed) * drift, canaries=canaries)) == []
    values = noise(seed) * drift * level((100, 0.01))
    (step,) = find(points(values, canaries=canaries))
    assert (step.at, step.kind) == (100, "step")
    assert step.before == pytest.approx(np.median(values[:100]))  # as recorded, the drift in it


def test_it_is_the_canary_that_helps() -> None:
    alone = [places(find(points(noise(seed) * wander(seed) * level((100, 0.01))))) for seed in SEEDS]
    assert sum(found == [(100, "step")] for found in alone) < len(SEEDS) / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_noisy_canary_adds_no_noise(seed: int) -> None:
    """A canary twenty times as noisy as the kernel, without drift: a 1 % step shows as it does without it."""
    values, canaries = noise(seed) * level((198, 0.01)), noise(50 + seed, 0.01)
    assert find(points(values, canaries=canaries)) == find(points(values))
    assert smallest(points(noise(seed), canaries=canaries)) == pytest.approx(FLOOR)


def test_a_canary_that_moves_alone_moves_nothing() -> None:
    assert find(points(noise(9), canaries=noise(10) * level((100, 0.05)))) == []
