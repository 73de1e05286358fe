"""Cells at the highest SM clock are taken several times in a process, with other cells in between."""
# ruff: noqa: F811 (a fixture)

import dataclasses
import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import DEVICES, Budget
from kernelwatch.plan.package import Package
from kernelwatch.run import worker
from kernelwatch.run.processes import Run
from kernelwatch.run.workers import Workers
from kernelwatch.timing.device import MemoryFault
from kernelwatch.timing.gpu import APART, SLOW_S, TAKE_SAMPLES, Gpu
from kernelwatch.timing.replay import SHORT_REST_S, Take
from tests.fake_gpu import CLOCK_MHZ, Device
from tests.groups import BUDGET as CPU_BUDGET
from tests.groups import ROOT, assert_failed, assert_measured, cells, outcomes
from tests.test_replay import MOVING, Moving, device  # noqa: F401 (a fixture)

BUDGET = Budget(samples=5, sample_s=2e-3, takes=3)
LOWER = 0.95 * CLOCK_MHZ


def cell(size: int, cache: str = "cold") -> Cell:
    return Cell("move", "copy", "float32", (4096 * size,), cache, "gpu")


CELLS = [cell(size) for size in range(1, 2 * APART + 3)]


class Watched(Gpu):
    """`mhz`: the clock of a cell, if it is not the highest one; `done`: the cell of each take, in order; `rested`: the
    seconds of each rest."""

    def __init__(self, device: Device, *given: Cell, **changes: Any) -> None:
        budget = dataclasses.replace(BUDGET, **changes)
        self.mhz: dict[Cell, float] = {}
        self.done: list[tuple[Cell, Take]] = []
        self.filled: Cell | None = None
        self.rested: list[float] = []
        super().__init__(MOVING, cast(Package, Moving(device, 1e-5)), list(given), budget, 3)
        self.best_clock_mhz = CLOCK_MHZ

    def _fill(self, cell: Cell) -> None:
        self.filled = cell
        super()._fill(cell)

    def rest(self, seconds: float) -> None:
        if seconds:
            self.rested.append(seconds)
        super().rest(seconds)

    def take_quietly(self, *given: Any, **named: Any) -> Take:
        assert self.filled is not None
        mhz = self.mhz.get(self.filled, CLOCK_MHZ)
        taken: Take = {**super().take_quietly(*given, **named), "clock64_mhz": mhz}
        self.done.append((self.filled, taken))
        return taken

    def run(self, given: list[Cell]) -> dict[Cell, dict[str, Any]]:
        """The last measurement of each cell, as a worker's events tell them."""
        return {one: dict(measured()) for one, measured in worker._turns(self, given)}


@pytest.mark.parametrize(("known", "first"), [(True, TAKE_SAMPLES), (False, BUDGET.samples)])
def test_such_a_cell_is_taken_three_times_with_others_in_between(device: Device, known: bool, first: int) -> None:
    """Where no process knows the clock, and a first replay was too short to read it, the first take is a whole one."""
    earlier = {"clocks_mhz": {one.key: CLOCK_MHZ for one in CELLS}, "seconds": {one.key: 1e-5 for one in CELLS}}
    gpu = Watched(device, *CELLS, **(earlier if known else {}))
    found = gpu.run(CELLS)
    order = [one for one, _ in gpu.done]
    for one in CELLS:
        places = [at for at, other in enumerate(order) if other == one]
        assert len(places) == BUDGET.takes
        apart = [after - before for before, after in pairwise(places)]
        assert min(apart) >= (APART if one in CELLS[:APART] else APART // 2), "at the end of a process all are due"
        assert len(found[one]["takes_s"]) == BUDGET.takes
    assert list(dict.fromkeys(order)) == CELLS, "no cell is left out, and each comes first in its own turn"
    samples = {one: [len(taken["seconds"]) for other, taken in gpu.done if other == one] for one in CELLS}
    assert set(map(tuple, samples.values())) == {(first, TAKE_SAMPLES, TAKE_SAMPLES)}


@pytest.mark.parametrize(("share", "takes"), [(0.991, BUDGET.takes), (0.989, 1)])
def test_a_clock_that_is_not_told_as_lowered_may_be_a_little_below_the_highest(
    device: Device, share: float, takes: int
) -> None:
    """It is the same that moves there. Half a step of the clock would be a rest before each take."""
    gpu = Watched(device, *CELLS)
    gpu.mhz = dict.fromkeys(CELLS, share * CLOCK_MHZ)
    gpu.budget = dataclasses.replace(
        gpu.budget, clocks_mhz={one.key: share * CLOCK_MHZ for one in CELLS}, seconds={one.key: 1e-5 for one in CELLS}
    )
    gpu.run(CELLS)
    order = [one for one, _ in gpu.done]
    assert {order.count(one) for one in CELLS} == {takes}
    assert gpu.rested == [SHORT_REST_S] * len(CELLS), "once in its measurement"


def test_the_figure_is_the_mean_over_the_takes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    where, values = CELLS[0], iter([1.0, 2.0, 6.0])
    gpu = Watched(device, where)
    first: dict[str, Any] = {}
    take = Watched.take_quietly

    def taken(self: Watched, *given: Any, **named: Any) -> Take:
        second = next(values)
        return {
            **take(self, *given, **named),
            "seconds": [0.5 * second, second, 9.0],
            "clock64_mhz": CLOCK_MHZ - second,
            "launches": 10,
            "retakes": 1,
            "throttled": ["software power cap"] if second == 6.0 else [],
        }

    monkeypatch.setattr(Watched, "take_quietly", taken)
    for _, measured in worker._turns(gpu, [where]):
        found = measured()
        first = first or dict(found)
    assert (first["seconds"], first["launches"], "takes_s" in first) == (1.0, 10, False)
    assert found["takes_s"] == [1.0, 2.0, 6.0]
    assert found["seconds"] == 3.0
    assert found["clock64_mhz"] == CLOCK_MHZ - 3.0
    assert (found["launches"], found["retakes"], found["throttled"]) == (30, 3, ["software power cap"])
    samples = [0.5, 1.0, 9.0, 1.0, 2.0, 9.0, 3.0, 6.0, 9.0]
    lower, _, upper = statistics.quantiles(samples, n=4)
    assert found["quartiles_s"] == [lower, upper]
    assert {name: found[name] for name in ("slots", "identity", "canary_s")} == {
        name: first[name] for name in ("slots", "identity", "canary_s")
    }
    assert found["spent_s"]["replay"] > first["spent_s"]["replay"] > 0


def test_what_is_taken_again_is_what_was_checked(device: Device) -> None:
    """The same launches, over buffers that hold what they held."""
    gpu = Watched(device, *CELLS[:2])
    package = cast(Moving, gpu.package)
    seen: list[set[tuple[int, bytes]]] = []
    for one, measured in worker._turns(gpu, CELLS[:1]):
        package.seen.clear()
        measured()
        seen.append(set(package.seen))
        gpu._random(gpu.arena, "float32", 99)  # as the next cell does
        assert one == CELLS[0]
    assert len(seen) == BUDGET.takes
    assert seen[1] == seen[2] <= seen[0]
    assert len({place for place, _ in seen[1]}) == gpu._slots(CELLS[0])


def test_a_cell_below_the_highest_clock_is_taken_once_and_no_other_one_right_after_it(device: Device) -> None:
    """It leaves the clock low, so that a take would have to be taken again."""
    lower = CELLS[1::2]
    end = cell(30)
    gpu = Watched(device, *CELLS, end)
    gpu.mhz = dict.fromkeys(lower, LOWER)
    found = gpu.run([*CELLS, end])
    order = [one for one, _ in gpu.done]
    assert [order.count(one) for one in CELLS] == [1 if one in lower else BUDGET.takes for one in CELLS]
    assert not [one for one in lower if "takes_s" in found[one]]
    first = {one: order.index(one) for one in order}
    for at in (first[one] for one in lower):
        assert order[at + 1] not in order[:at], "the next cell, for the first time"


@pytest.mark.parametrize("known", [None, LOWER])
def test_a_cell_whose_clock_is_lower_has_the_samples_of_a_single_take(device: Device, known: float | None) -> None:
    where = CELLS[0]
    gpu = Watched(device, where, clocks_mhz={where.key: known} if known else {}, seconds={where.key: 1e-5})
    gpu.mhz = {where: LOWER}
    gpu.run([where])
    assert [len(taken["seconds"]) for _, taken in gpu.done] == [BUDGET.samples]


@pytest.mark.parametrize("case", ["hot", "slow", "no graph", "returns", "host", "memory", "quick", "limited", "unread"])
def test_what_is_taken_once(device: Device, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    where = cell(1, "hot" if case == "hot" else "cold")
    gpu = Watched(device, where, takes=1 if case == "quick" else 3)
    told: dict[str, dict[str, Any]] = {"limited": {"throttled": ["power cap"]}, "unread": {"clock64_mhz": None}}
    limits = told.get(case, {})
    take = gpu.take_quietly
    monkeypatch.setattr(gpu, "take_quietly", lambda *given, **named: {**take(*given, **named), **limits})
    if case == "slow":
        cast(Moving, gpu.package).seconds = 2 * SLOW_S
    if case == "no graph":
        monkeypatch.setattr(gpu, "_captured", lambda *_: None)
    if case == "memory":
        monkeypatch.setattr(gpu.cupy.cuda.runtime, "memGetInfo", lambda: (1 << 20, 4 << 20))
    if case == "returns":
        monkeypatch.setattr(gpu, "_once", object())
        gpu._returns = True
        assert not gpu._comes_back(where, CLOCK_MHZ)
        return
    if case == "host":
        own = dataclasses.replace(gpu._operands_of(where).inputs[0], values=lambda *_: np.zeros(4096))
        operands = dataclasses.replace(gpu._operands_of(where), inputs=(own,))
        monkeypatch.setattr(gpu, "_operands_of", lambda _: operands)
        monkeypatch.setattr(gpu, "_once", object())
        assert not gpu._comes_back(where, CLOCK_MHZ)
        return
    assert "takes_s" not in gpu.run([where])[where]
    assert not list(gpu.due(last=True))


def test_each_device_of_a_run_says_how_often_it_takes_a_cell() -> None:
    assert DEVICES["gpu"].budget.takes == 3
    assert DEVICES["gpu"].quick_budget.takes == DEVICES["cpu"].budget.takes == 1


def test_a_fault_of_the_memory_meanwhile_is_that_cell_s(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cells go on."""
    gpu, errors = Watched(device, *CELLS[:2]), iter([0, 0, 0, 0, 0, 3, *[3] * 20])
    monkeypatch.setattr(gpu.nvml, "uncorrected_errors", lambda: next(errors))
    found: dict[Cell, list[str]] = {}
    for one, measured in worker._turns(gpu, CELLS[:2]):
        try:
            measured()
            found.setdefault(one, []).append("ok")
        except MemoryFault:
            found.setdefault(one, []).append("fault")
    assert found == {CELLS[0]: ["ok", "fault"], CELLS[1]: ["ok", "ok", "ok"]}


# --- the run that a worker belongs to ------------------------------------------------------------------------------

WORKER = """
import json, os, sys
job = json.loads(sys.stdin.readline())
def say(**event):
    print(json.dumps(event), flush=True)
def cell(key, seconds):
    say(event="begin", key=key)
    say(event="cell", key=key, state="ok", measurement=dict(seconds=seconds, spent_s=dict(replay=seconds)))
keys = ["/".join([one["op"], one["rung"]]) + one["type"] for one in job["cells"]]
"""


def told(body: str) -> Callable[..., Any]:
    """Workers that run this in the place of the real script, whose `keys` are those of the job's cells."""
    return lambda keys: f"{WORKER}\nkeys = {keys!r}[-len(job['cells']):]\n{body}"


def run_of(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, list[str]]:
    mine, ticks = cells(), list[str]()
    script = tmp_path / "worker.py"
    script.write_text(told(body)([one.key for one in mine]))
    monkeypatch.setattr("kernelwatch.run.workers.WORKER", script)
    run = Run(PROJECT, mine, "cpu", str(ROOT), CPU_BUDGET, workers=Workers({}))
    monkeypatch.setattr(run, "_order", lambda seed: mine)
    run.measure_all(0, lambda: ticks.append("tick"))
    return run, ticks


def test_the_last_measurement_of_a_process_counts_and_the_cell_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "for key in [*keys, keys[0], keys[1], keys[0]]:\n    cell(key, 1.0 + keys.index(key))\ncell(keys[0], 7.0)\n"
    run, ticks = run_of(f"{body}say(event='end')", tmp_path, monkeypatch)
    assert len(ticks) == len(run.cells)
    assert [one.measurements[0]["seconds"] for one in outcomes(run).values()][:2] == [7.0, 2.0]
    for one in outcomes(run).values():
        assert_measured(one)
        assert set(one.measurements[0]["spent_s"]) == {"before", "replay"}


def test_a_process_that_dies_while_it_takes_a_cell_again_costs_that_cell_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process goes on with the first cell that has no measurement."""
    once = f"""
if not os.path.exists({str(tmp_path / "died")!r}):
    open({str(tmp_path / "died")!r}, "w").close()
    cell(keys[0], 1.0)
    cell(keys[1], 1.0)
    say(event="begin", key=keys[0])
    sys.exit("it crashed")
for key in keys:
    cell(key, 2.0)
say(event="end")
"""
    run, ticks = run_of(once, tmp_path, monkeypatch)
    first, second, *others = outcomes(run).values()
    assert_failed(first, "died with exit code 1", "it crashed")
    assert [one["seconds"] for one in second.measurements] == [1.0]
    for one in others:
        assert_measured(one)
        assert one.measurements[0]["seconds"] == 2.0
    assert len(ticks) == len(run.cells)


@pytest.mark.gpu
def test_a_gpu_takes_its_cells_at_the_highest_clock_three_times() -> None:
    """Some sums and transposes run at it on any GPU that no limit holds down."""
    chosen = [
        each
        for op, problem in PROJECT.ops.items()
        for each in plan(problem, "gpu")
        if op != "matmul" and each.type == "float32" and each.cache == "cold" and not each.reference
    ]
    run = Run(PROJECT, chosen, "gpu", str(ROOT), DEVICES["gpu"].budget)
    run.measure_all(1)
    measured = [one.measurements[0] for one in run.group.outcomes.values() if one.measurements]
    assert len(measured) > APART
    several = [one for one in measured if "takes_s" in one]
    if not several:
        pytest.skip(f"a limit holds the clock down: {[one['throttled'] for one in measured[:3]]}")
    highest = max(one["clock64_mhz"] or 0.0 for one in measured)
    for one in several:
        assert len(one["takes_s"]) == DEVICES["gpu"].budget.takes
        assert one["seconds"] == pytest.approx(statistics.mean(one["takes_s"]))
        assert (one["clock64_mhz"] or 0.0) > 0.98 * highest
    single = [one for one in measured if "takes_s" not in one and one["seconds"] < SLOW_S and not one["throttled"]]
    assert len(several) > len(single), "what allocates its outputs is taken once"
