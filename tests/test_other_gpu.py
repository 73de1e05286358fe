"""A series that goes on another GPU: no commit is blamed, and the canary says how much the GPU explains. And pages that
carry the histories of twenty machines."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.detect.events import JudgedSeries, events
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result
from tests.pages import NARROW, browser, fits, opened, pages_group
from tests.publications import Project

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture
pytestmark = pages_group
COMMITS, MOVED = 10, 5  # the first commit on the other GPU
MACHINES = 20
SLOWER = 1.03


def series(canary: float | None) -> JudgedSeries:
    """A series that takes 3 % longer on the second of two GPUs. `canary`: how much longer the canary takes there."""
    results = []
    for at in range(COMMITS):
        moved = at >= MOVED
        conditions: dict[str, object] = {"gpu": "H200", "nvml_uuid_sha256": "ab"[moved]}
        value = (SLOWER if moved else 1.0) * (1 + 1e-4 * (at % 3))
        second = None if canary is None else canary if moved else 1.0
        results.append(Result(f"c{at}", Point(at, value, 1e-4, str(at), json.dumps(conditions), second), conditions))
    return JudgedSeries("a.track_seconds", {}, {"machine": "m"}, False, False, results)


@pytest.mark.parametrize(
    ("canary", "why"),
    [
        (None, "another GPU of the same name"),
        (1.0012, "another GPU of the same name, whose canary takes +0.12% of time"),
    ],
)
def test_the_canary_carries_a_comparison_to_another_gpu(canary: float | None, why: str) -> None:
    (event,) = events(series(canary).changes())
    assert (event.kind, event.last, event.why) == ("environment", f"c{MOVED}", why)


def moved(path: Path, at: int) -> None:
    """Let another GPU have measured a commit."""
    text = re.sub(r'"nvml_uuid_sha256": "\w+"', f'"nvml_uuid_sha256": "{"ab"[at >= MOVED] * 16}"', path.read_text())
    path.unlink()  # commits share files
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines if at >= MOVED else ():
        for visit in line.get("visits", ()):
            if "seconds" in visit:
                visit["seconds"] *= SLOWER
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def slower(path: Path) -> None:
    result = json.loads(path.read_text())
    for name, (values, *_) in result["results"].items():
        if name.endswith("track_seconds"):
            values[:] = [value and value * SLOWER for value in values]
    path.write_text(json.dumps(result))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The pages of twenty machines: the GPU of one is exchanged in the midst of its history, and four share a GPU's
    name."""
    folder = tmp_path_factory.mktemp("twenty")
    project = Project(folder, COMMITS)
    machine = project.history.recorder.machine
    sidecars = sorted(machine.glob("*.facts.jsonl"))
    hashes = [commit[:8] for commit in project.history.hashes]
    for path in sidecars:
        at = hashes.index(path.name[:8])
        moved(path, at)
        if at >= MOVED:
            slower(path.with_name(path.name.replace(".facts.jsonl", ".json")))
    known = json.loads((machine / "machine.json").read_text())
    for number in range(1, MACHINES):
        name = f"gpu-{number // 4}.cpu-{number}.x86-64.linux"
        other = machine.parent / name
        own: dict[str, Any] = {"machine": name, "gpu": f"NVIDIA GPU {number // 4}", "cpu": f"CPU {number}"}
        other.mkdir()
        (other / "machine.json").write_text(json.dumps(known | own))
        for path in sidecars[: 2 + number % 3]:
            text = re.sub(r'"gpu": "[^"]+"', f'"gpu": "{own["gpu"]}"', path.read_text())
            (other / path.name).write_text(text)
            result = path.with_name(path.name.replace(".facts.jsonl", ".json"))
            values = json.loads(result.read_text())
            (other / result.name).write_text(json.dumps(values | {"params": values["params"] | own}))
    project.publish()
    yield project.html
    shutil.rmtree(folder)


def test_another_gpu_is_an_event_of_the_environment(site: Path) -> None:
    found = json.loads((site / "data" / "events.json").read_text())["events"]
    own = [event for event in found if event["last"]["subject"] == f"commit {MOVED}"]
    assert {event["kind"] for event in own} == {"environment"}
    assert {event["kind"] for event in found} == {"environment"}
    assert all("another GPU of the same name" in event["why"] for event in own)


def test_the_history_says_where_the_gpu_changes(browser: "Browser", site: Path) -> None:
    cell, *_ = json.loads((site / "data" / "cells.json").read_text())
    with opened(browser, site, f"history?cell={cell}") as page:
        text = page.locator("main").inner_text()
    assert "another GPU of the same model" in text
    assert f"commit {MOVED}" in text


def test_twenty_machines_are_seen_at_a_glance(browser: "Browser", site: Path) -> None:
    machines = {each["name"] for each in json.loads((site / "data" / "site.json").read_text())["machines"]}
    assert len(machines) == MACHINES
    with opened(browser, site, "status") as page:
        rows = page.get_by_role("table", name="All machines").locator("tbody tr")
        assert rows.count() == MACHINES
        told = "\n".join(rows.all_inner_texts())
        assert all(name in told for name in machines)
        titles = page.locator("article h2, article h2 + .small").all_inner_texts()
        assert {"NVIDIA GPU 1", "gpu-1.cpu-4.x86-64.linux", "gpu-1.cpu-5.x86-64.linux"} <= set(titles)
        for view in ("status", "devices"):
            page.evaluate(f"location.hash = '#/{view}'")
            page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
            assert fits(page)
