"""Python's search for garbage: not while something is timed, and not among what stays."""

import gc
import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.devices import DEVICES
from kernelwatch.run import worker
from kernelwatch.system import garbage
from kernelwatch.timing.launch import Calls
from tests.fake_gpu import Device
from tests.test_replay import cell, device, gpu_of  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    yield
    if not frozen:
        gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_afterwards_as_it_was_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with suppress(RuntimeError), garbage.uncollected():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled() is enabled


def test_calls_by_the_host_may_be_interrupted(device: Device) -> None:  # noqa: F811
    """They may leave memory of the GPU in cycles, and run as in a program anyway."""
    gc.enable()
    gpu, _ = gpu_of(device, cell())
    seen: list[bool] = []
    gpu.replay(Calls([lambda: seen.append(gc.isenabled())], 2), 1, 2)
    assert seen == [True] * 6


def test_what_is_kept_is_not_searched_again() -> None:
    kept: list[Any] = []
    kept.append(kept)
    garbage.keep()
    assert all(one is not kept for one in gc.get_objects())


def test_nothing_is_searched_while_the_host_queues_what_is_timed(
    device: Device,  # noqa: F811
) -> None:
    """Else the GPU could wait for it within a sample."""
    gc.enable()
    gpu, _ = gpu_of(device, cell())
    seen: list[bool] = []
    graph = SimpleNamespace(launch=lambda stream: seen.append(gc.isenabled()))
    assert gpu.replay(cast(Any, graph), 2, 3, gc.isenabled)[2] is True
    assert seen == [False] * 7  # what leads in, and two replays in each sample


def test_a_process_keeps_the_modules_that_its_cells_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they have been imported: PyTorch alone has some hundred thousand objects."""
    told, cells = list[str](), [cell(), cell("hot"), cell("hot")]
    monkeypatch.setattr(garbage, "keep", lambda: told.append("kept"))

    def measure(one: Any) -> dict[str, float]:
        told.append(one.key)
        if one is cells[1]:
            told.append("imported late")
            for at in range(worker.MANY_MODULES):
                late = ModuleType(f"late_{at}")
                late.__spec__ = cast(Any, SimpleNamespace(origin=f"/site-packages/late_{at}.py"))
                monkeypatch.setitem(sys.modules, late.__name__, late)
        return {"seconds": 1.0}

    measurer, events = cast(Any, SimpleNamespace(measure=measure, facts=dict)), io.StringIO()
    worker._measure(measurer, DEVICES["gpu"], cells, PROJECT, None, events, worker._Imports("gpukernels"))
    found = [json.loads(line) for line in events.getvalue().splitlines()]
    modules = [one["modules"] for one in found if one["event"] == "modules"]
    assert sum(len(own) >= worker.MANY_MODULES for own in modules) == told.count("kept")
    assert told[told.index("imported late") + 1] == "kept"


def test_what_a_process_imports_while_it_waits_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the time for that search, and no other one has to go through these modules."""
    told: list[bool] = []
    monkeypatch.setattr(garbage, "keep", lambda: told.append("colorsys" in sys.modules))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    worker._import_early(["colorsys"])
    assert told == [True]
