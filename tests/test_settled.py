"""The settled changes of long series: they change no result, and nothing damaged or foreign is used."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwatch.detect import steps
from kernelwatch.detect.point import Points
from kernelwatch.detect.settled import Settled
from kernelwatch.detect.steps import Point


def long_history(length: int, seed: int = 0) -> list[Point]:
    """Steps of 1 % up and down, some within a few points of where windows end; a gradual change."""
    rng = np.random.default_rng(seed)
    level = np.ones(length)
    for at, change in [(30, 0.01), (100, -0.01), (399, 0.01), (401, 0.02), (500, -0.02), (799, 0.01), (820, 0.01)]:
        level[at:] *= 1 + change
    level *= np.exp(0.003 * np.clip(np.arange(length) - 895, 0, 10))
    values = level * (1 + 5e-4 * rng.standard_normal(length))
    return [Point(at, value) for at, value in enumerate(values.tolist())]


def test_what_is_kept_changes_no_result_and_saves_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published commit by commit."""
    windows: list[int] = []
    real = steps._window

    def counted(points: Points, *rest: Any) -> Any:
        windows.append(len(points))
        return real(points, *rest)

    monkeypatch.setattr(steps, "_window", counted)
    points = long_history(1000)
    for length in (850, 900, 901, 1000):
        windows.clear()
        fresh = steps.judge(points[:length])
        whole = len(windows)
        windows.clear()
        settled = Settled(tmp_path / "settled.json")
        assert steps.judge(points[:length], settled=settled) == fresh
        settled.write()
        assert len(windows) == {850: whole, 900: 2, 901: 1, 1000: 1}[length]
    found = fresh.steps
    assert [step.at for step in found if step.kind == "step"] == [30, 100, 399, 401, 500, 799, 820]
    assert found[-1].kind == "gradual"


def test_other_points_or_another_detector_use_nothing_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, points = tmp_path / "settled.json", long_history(500)
    settled = Settled(path)
    fresh = steps.judge(points, settled=settled).steps
    settled.write()
    (kept,) = settled.used
    for changed in (
        dataclasses.replace(points[7], value=points[7].value * 1.001),
        dataclasses.replace(points[7], spread=0.001),
        dataclasses.replace(points[7], identity="another"),
        dataclasses.replace(points[7], conditions="another"),
        dataclasses.replace(points[7], canary=1.0),
        dataclasses.replace(points[7], common=0.1),
    ):
        other = Settled(path)
        steps.judge([*points[:7], changed, *points[8:]], settled=other)
        assert kept not in other.used
    content = json.loads(path.read_text())
    false = dict(json.loads(content["settled"]), **{kept: [[50, 50, [50], 0.005]]})
    path.write_text(json.dumps(content | {"settled": json.dumps(false)}))
    older = json.dumps(dict(json.loads(content["settled"]), **{kept: [[50, 50, [50], 0.005]]}))
    digest = hashlib.sha256(older.encode()).hexdigest()
    whole = json.dumps({"sha256": digest, "settled": older})  # by an engine whose changes had fewer fields
    for damage in (path.read_text(), "", "[]", '{"sha256": 1, "settled": 2}', whole):
        path.write_text(damage)
        assert steps.judge(points, settled=Settled(path))[0] == fresh
    settled.write()
    assert Settled(path).get(kept) == settled.used[kept] != []
    monkeypatch.setattr("kernelwatch.detect.settled.installed.versions", lambda _: {"asv": "another"})
    other = Settled(path)
    steps.judge(points, settled=other)
    assert kept not in other.used


def test_a_folder_that_cannot_be_written_loses_only_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settled = Settled(tmp_path / "file" / "settled.json")
    steps.judge(long_history(500), settled=settled)
    settled.write()
    assert settled.used
    assert (tmp_path / "file").read_text() == ""
