"""What a judged series says: its changes, their intervals, the canary beside it, the binary that it counts."""

import dataclasses
import importlib
import json
import math
from typing import Any

import pytest

from benchmarks import device, matmul, transpose, vector_add
from benchmarks.project import PROJECT
from kernelwatch.detect import events, steps
from kernelwatch.detect.results import Result
from kernelwatch.detect.steps import Point, Step
from kernelwatch.history.records import Record, measured, spread
from kernelwatch.publish.series import cell_of
from kernelwatch.run.outcome import Outcome
from kernelwatch.timing.record import Measurement
from tests.repositories import ROOT
from tests.series import results_of


def test_the_recorded_list_of_benchmarks_has_the_versions_of_the_suites() -> None:
    """asv takes figures of another version for none of the series: the newest record would not be shown."""
    listed = json.loads((ROOT / "results" / "benchmarks.json").read_text(encoding="utf-8"))
    for op in PROJECT.ops:
        suites = importlib.import_module(f"benchmarks.{op}")
        for name in ("GPU", "CPU"):
            version = getattr(suites, name).track_seconds.version
            assert listed.get(f"{op}.{name}.track_seconds", {"version": version})["version"] == version
        assert f"{op}.GPU.track_seconds" in listed


def test_the_suites_say_what_is_judged() -> None:
    """In benchmarks/_suites.py; what is derived from a judged series is not judged again, nor what has no better."""
    for suite in (transpose.GPU, transpose.ElementTypes, transpose.CPU, vector_add.GPU, matmul.GPU, matmul.CPU):
        own = {name: vars(getattr(suite, name)) for name in dir(suite) if name.startswith("track_")}
        judged = {"track_seconds": "seconds", "track_peak_allocated": "exact"}
        assert {name: marks["judged"] for name, marks in own.items()} == {name: judged.get(name, "") for name in own}
        assert all(marks["higher_is_better"] == (name not in judged) for name, marks in own.items())
    assert vars(transpose.Launch.track_launch)["judged"] == "launch_seconds"
    for series in (device.State.track_temperature, device.State.track_power, device.State.track_sm_clock):
        assert (vars(series)["judged"], vars(series)["higher_is_better"]) == ("", None)


def test_a_gradual_change_is_told_from_its_first_commit_to_its_last() -> None:
    results = tuple(Result(f"c{at}", Point(at, 1.0 + at)) for at in range(5))
    series = events.JudgedSeries("a.b", {}, {}, False, False, results)
    (event,) = events.events([events.Change(series, Step(3, "gradual", 1.0, 4.0, 0.01, since=1))])
    assert (event.kind, event.first, event.last) == ("regression", "c1", "c3")
    assert (event.narrowest.before.commit, event.narrowest.commits) == ("c0", 3)


def test_the_id_of_a_change_lasts() -> None:
    """Through more commits before and after, and whether or not another series changed more; not for another cell."""

    def one(cell: str, first: int, end: int, after: float) -> events.Change:
        results = tuple(Result(f"{at:040d}", Point(at, 1.0 if at < 5 else after)) for at in range(first, end))
        series = events.JudgedSeries("a.b", {"rung": cell}, {"machine": "m"}, False, False, results)
        return events.Change(series, Step(5 - first, "step", 1.0, after, 0.01))

    first, deeper, other = one("x", 3, 7, 1.1), one("x", 0, 9, 1.1), one("y", 3, 7, 1.2)
    assert first.id == deeper.id != other.id
    assert first.id.split("-")[0] == other.id.split("-")[0] == f"{5:040d}"[:12]
    (event,) = events.events([first, other])
    assert event.id == other.id


def test_changes_of_two_cells_that_only_links_know_have_two_ids() -> None:
    """Such series have no benchmark; one that a full run measured later keeps its id."""
    results = tuple(Result(f"{at:040d}", Point(at, 1.0)) for at in range(8))

    def one(cell: str, benchmark: str = "") -> str:
        series = events.JudgedSeries(benchmark, {}, {"machine": "m"}, False, False, results, cell)
        return events.Change(series, Step(5, "step", 1.0, 1.1, 0.01)).id

    assert one("a/b float32 8x8 cold") != one("a/c float32 8x8 cold")
    assert one("a/b float32 8x8 cold") == one("a/b float32 8x8 cold", "a.GPU.track_seconds")


@pytest.mark.parametrize("turn", [2, 4])
def test_a_level_of_a_few_commits_shows_soon_after_a_change_of_the_conditions(turn: int) -> None:
    """Of two boundaries beside a single point, the one that is no step is dropped, not the step."""
    noise = (0.0, 4e-4, -3e-4, 1e-4, -4e-4, 3e-4, -1e-4)
    levels = [(1.06 if 7 <= at < 13 else 1.0) * (1 + noise[at * 5 % len(noise)]) for at in range(20)]
    points = [
        Point(at, level, 3e-4, f"{7 <= at < 13}", json.dumps({"driver": at >= turn})) for at, level in enumerate(levels)
    ]
    assert [(step.at, step.kind) for step in steps.find(points)] == [(7, "step"), (13, "step")]


def test_the_interval_of_a_change_is_what_its_results_allow() -> None:
    """Student's t, of what the processes say or how the results differ, whichever is more."""
    points = [Point(at, value, spread) for at, (value, spread) in enumerate([(1.0, 0.01)] * 4 + [(1.1, 0.02)] * 5)]
    results = tuple(Result(f"c{point.commit}", point) for point in points)
    series = events.JudgedSeries("a.b", {}, {}, False, False, results)
    change = events.Change(series, Step(4, "step", 1.0, 1.1, 0.01), levels=(0, 9))
    half = 2.364624251592785 * math.hypot(0.01 / math.sqrt(4), 0.02 / math.sqrt(5))  # of 9 - 2 degrees of freedom
    assert change.interval == pytest.approx((1.1 * math.exp(-half) - 1, 1.1 * math.exp(half) - 1))
    few = dataclasses.replace(change, levels=(3, 5))
    half = 2.570581835636314 * math.hypot(0.01, 0.02)  # of 6 - 1 degrees of freedom, of the processes of one result
    assert few.interval == pytest.approx((1.1 * math.exp(-half) - 1, 1.1 * math.exp(half) - 1))
    apart = [dataclasses.replace(point, value=point.value * (1 + 0.1 * (point.commit % 2))) for point in points]
    wide = tuple(Result(f"c{point.commit}", point) for point in apart)
    low, high = dataclasses.replace(change, series=dataclasses.replace(series, results=wide)).interval
    assert high - low > 2 * (change.interval[1] - change.interval[0])
    exact = dataclasses.replace(change, series=dataclasses.replace(series, exact=True))
    assert all(map(math.isnan, exact.interval))
    unknown = tuple(Result(f"c{at}", Point(at, value)) for at, value in enumerate((1.0, 1.1)))
    lonely = dataclasses.replace(series, results=unknown)
    assert all(map(math.isnan, events.Change(lonely, Step(1, "step", 1.0, 1.1, 0.01), levels=(0, 2)).interval))


def test_a_change_between_two_measured_commits_joins_the_larger_event_there() -> None:
    """It may have come with any commit after the first of them, but not with that one."""

    def one(name: str, at: int, *commits: int) -> events.Change:
        results = tuple(Result(f"c{commit}", Point(commit, 1.0)) for commit in commits)
        series = events.JudgedSeries(name, {}, {}, False, False, results)
        return events.Change(series, Step(at, "step", 1.0, 1.1, 0.01))

    own = [one(name, 2, 8, 9, 10, 11) for name in ("first", "second", "another")]
    third = one("third", 3, 8, 9, 10, 11)
    wide, narrow = one("wide", 1, 8, 12), one("narrow", 1, 10, 12)
    told = events.events([*own, third, wide, narrow])
    assert [(event.last, {change.series.benchmark for change in event.changes}) for event in told] == [
        ("c11", {"third", "narrow"}),
        ("c10", {"first", "second", "another", "wide"}),
    ]


@pytest.mark.parametrize(
    ("begin", "end", "count", "suspects"),
    [
        (0, 20, 20, ()),  # too long for a disturbance
        (7, 20, 20, (7, 8, 9)),
        (0, 12, 20, (10, 11)),
        (5, 15, 20, (10, 11, 12, 13, 14)),  # of two alike the later
        (5, 15, 15, (5, 6, 7, 8, 9)),  # which nothing has ended yet
        (4, 16, 20, ()),
    ],
)
def test_a_disturbance_met_the_shorter_level(begin: int, end: int, count: int, suspects: tuple[int, ...]) -> None:
    results = tuple(Result(f"c{at}", Point(at, 1.0)) for at in range(count))
    series = events.JudgedSeries("a.b", {}, {}, False, False, results)
    change = events.Change(series, Step(10, "step", 1.0, 1.1, 0.01), levels=(begin, end))
    assert change.suspects == [f"c{at}" for at in suspects]


def test_a_points_spread_is_the_standard_error_of_its_processes() -> None:
    assert spread([1.0, 1.02, 0.98, 1.0]) == pytest.approx(math.sqrt(0.0008 / 3) / 2)
    assert spread([1.0]) == 0.0


@pytest.mark.parametrize(("op", "shape", "canary"), [("transpose", "256x256", 0.25), ("matmul", "256x256x256", 0.5)])
def test_the_canary_is_of_the_kind_that_the_op_is(op: str, shape: str, canary: float) -> None:
    params = (repr(PROJECT.op(op).rungs[0].name), repr(shape), repr("cold"))
    key, kind = cell_of(ROOT / "benchmarks", f"{op}.GPU.track_seconds", params)
    assert key == f"{op}/{PROJECT.op(op).rungs[0].name} float32 {shape} cold"
    one: Measurement = {"seconds": 1.0, "throttled": [], "canary_s": {"memory": 0.25, "compute": 0.5}}
    record = Record("machine", "commit", {"g": {}}, {key: measured(key, Outcome("ok", "", [one]), "g")})
    assert results_of([(1.0, record)], key, "seconds", kind).points[0].canary == canary


def compiled(sha: str | None, state: str = "ok") -> Outcome:
    figures: Any = {"cubin_sha256": sha, "block_threads": 256, "dynamic_shared_bytes": 0}
    return Outcome("ok" if sha else "failed", "" if sha else state, [figures] if sha else [])


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        ({"sm_80": "a", "sm_90": "b"}, "environment"),
        ({"sm_80": "a", "sm_90": "c"}, "step"),
        ({"sm_80": "a", "sm_90": None}, "step"),
        ({}, "step"),
    ],
)
def test_a_count_of_an_unchanged_binary_is_blamed_on_no_commit(after: dict[str, str | None], kind: str) -> None:
    """The compiler may merge what the source has twice."""
    counted = "transpose/padded float32 256x256 counted"
    told = []
    before: dict[str, str | None] = {"sm_80": "a", "sm_90": "b"}
    for at, binaries in enumerate((before, after)):
        outcomes = {f"transpose/padded float32 {arch} compiled": compiled(sha) for arch, sha in binaries.items()}
        cells = {key: measured(key, one, "transpose static") for key, one in outcomes.items()}
        cells |= {counted: measured(counted, Outcome("ok", "", [Measurement(process=0)]), "transpose access")}
        told.append((1.0 + at, Record("host", str(at), {}, cells)))
    (step,) = steps.find(results_of(told, counted, "exact", "memory").points, exact=True)
    assert step.kind == kind


@pytest.mark.parametrize(
    ("package", "kind"), [("numpy", "step"), ("nvidia-cublas", "step"), ("nvidia-cuda-nvrtc", "environment")]
)
def test_what_makes_no_code_excuses_no_exact_figure(package: str, kind: str) -> None:
    """More registers are the commit's, also if a new NumPy came with it; not those of a new compiler."""
    key, told = "transpose/padded float32 sm_90 compiled", []
    for at, version in enumerate(("2.4.6", "2.5.2")):
        facts: Any = {
            "transpose static": {"packages": {"numpy": "2.4.6", "nvidia-cuda-nvrtc": "13.0"} | {package: version}}
        }
        cells = {key: measured(key, compiled(f"sha {at}"), "transpose static")}
        told.append((32.0 + at, Record("host", str(at), facts, cells)))
    (step,) = steps.find(results_of(told, key, "exact").points, exact=True)
    assert step.kind == kind


def test_the_binary_of_a_rung_is_known_if_all_of_its_targets_compile() -> None:
    """What fails on both sides may have changed all the same."""

    def binary(**targets: Outcome) -> str | None:
        cells = {key: measured(key, one, "a static") for arch, one in targets.items() if (key := f"a/b float32 {arch}")}
        return Record("host", "c", {}, cells).binaries.get("a/b float32")

    known = binary(sm_80=compiled("a"), sm_90=compiled("b"))
    assert known
    assert binary(sm_80=compiled("a"), sm_90=compiled(None)) is None
    other = compiled("b")
    other.measurements[0]["block_threads"] = 128  # the same code, launched otherwise
    assert binary(sm_80=compiled("a"), sm_90=other) not in (known, None)
