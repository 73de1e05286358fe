"""The device memory that a launch allocates is a series, of what allocates and of nothing else."""

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import matmul, transpose, vector_add
from kernelwatch.comparison.paired import Judged, Pairs
from kernelwatch.history import confirmations
from kernelwatch.plan.cells import Cell
from kernelwatch.report import comparison
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.timing.record import Measurement
from tests import test_regressions as known
from tests.test_regressions import History, cell, stepped, write_history
from tests.test_site import publish

GPU = (transpose.GPU, transpose.ElementTypes, vector_add.GPU, matmul.GPU, matmul.ElementTypes)
ALLOCATED = {"unit": "bytes", "higher_is_better": False, "judged": "exact"}


def group_of(rung: str, *measurements: dict[str, Any]) -> Group:
    told = [cast(Measurement, {"process": at, "seconds": 1e-6} | each) for at, each in enumerate(measurements)]
    return Group("transpose gpu", {f"transpose/{rung} float32 256x256 hot": Outcome("ok", "", told)}, {})


def test_the_most_of_all_processes_is_the_value() -> None:
    """A process that did not look has none."""
    where = "padded", "256x256", "hot"
    suite = transpose.GPU()
    group = group_of("padded", {"peak_allocated_bytes": 512}, {}, {"peak_allocated_bytes": 1024})
    assert suite.track_peak_allocated(group, *where) == 1024.0
    assert math.isnan(suite.track_peak_allocated(group_of("padded", {}, {}), *where))
    assert math.isnan(suite.track_peak_allocated(Group("transpose gpu", {}, {}), *where))
    failed = Group("transpose gpu", {"transpose/padded float32 256x256 hot": Outcome("failed", "it died")}, {})
    with pytest.raises(RuntimeError, match="it died"):
        suite.track_peak_allocated(failed, *where)


def test_it_is_judged_exactly_and_only_of_a_gpu() -> None:
    for suite in GPU:
        marks = vars(suite.track_peak_allocated)
        assert {name: marks[name] for name in ALLOCATED} == ALLOCATED
    for other in (transpose.CPU, matmul.CPU, transpose.Launch):
        assert not hasattr(other, "track_peak_allocated")


def test_more_memory_is_a_regression_of_the_commit_that_allocates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of before the series have none of it; a rung that allocates nothing has no series."""

    def allocated(rung: str, before: float, after: float) -> History:
        def level(at: int) -> float:
            return math.nan if at < 3 else after if at >= known.STEP else before

        params = {"rung": rung, "shape": "256x256", "cache": "cold"}
        key = f"transpose/{rung} float32 256x256 cold"
        return History("transpose.GPU.track_peak_allocated", level, ALLOCATED, params, key)

    times = [cell("transpose", rung, "256x256", stepped(1e-5, 1e-5)) for rung in ("padded", "tiled", "copy")]
    memory = [
        allocated("padded", 512.0, 1024.0),
        allocated("tiled", 512.0, 512.0),
        allocated("copy", math.nan, math.nan),
    ]
    monkeypatch.setattr(known, "HISTORIES", [*times, *memory])
    monkeypatch.setattr(confirmations, "save", lambda *_: None)
    commits = write_history(tmp_path)
    run = publish(tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    events, series = (
        json.loads((tmp_path / "html" / "data" / f"{name}.json").read_text()) for name in ("events", "series")
    )
    ((event, change),) = [(event, change) for event in events["events"] for change in event["changes"]]
    assert (event["kind"], event["last"]["hash"]) == ("regression", commits[known.STEP])
    assert (change["benchmark"], change["before"], change["after"]) == ("transpose.GPU.track_peak_allocated", 512, 1024)
    rungs = [own["params"]["rung"] for own in series["series"] if own["benchmark"].endswith("peak_allocated")]
    assert sorted(rungs) == ["'padded'", "'tiled'"]


def test_a_comparison_says_what_is_allocated_anew() -> None:
    pairs = Pairs(Cell("transpose", "padded", "float32", (256, 256), "hot", "gpu"))
    sides = [cast(Measurement, {"seconds": 1e-6} | more) for more in ({}, {"peak_allocated_bytes": 2048})]
    pairs.measurements[0] = (sides[0], sides[1])
    report: Any = type("Report", (), {"judged": lambda _: [(pairs, Judged("no change"))]})()
    assert list(comparison.launch_lines(report)) == [
        "allocates otherwise: transpose/padded float32 256x256 hot: 0 -> 2048 bytes at once"
    ]
