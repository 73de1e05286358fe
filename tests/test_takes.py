"""Cells at the highest SM clock are taken several times in a process, with other cells in between."""
# ruff: noqa: F811 (a fixture)

import contextlib
import dataclasses
import gc
import itertools
import math
import statistics
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import DEVICES, Budget
from kernelwatch.plan.package import Package
from kernelwatch.run import worker
from kernelwatch.timing import clocks, l2
from kernelwatch.timing import gpu as gpu_module
from kernelwatch.timing import spent as spent_module
from kernelwatch.timing.check import WrongOutput
from kernelwatch.timing.device import MemoryFault
from kernelwatch.timing.gpu import AGREED, APART, FURTHER, FURTHER_S, SAMPLES_LEAST, SLOW_S, TAKES_LEAST, Gpu
from kernelwatch.timing.record import Measurement, typical
from kernelwatch.timing.replay import REST_S, SHORT_REST_S, Take
from tests.fake_gpu import CLOCK_MHZ, SILENT, Device, MemoryHook
from tests.test_replay import MOVING, Moving, device  # noqa: F401 (a fixture)

BUDGET = Budget(samples=5, sample_s=2e-3, takes=3)
LOWER = 0.95 * CLOCK_MHZ


def cell(size: int, cache: str = "cold") -> Cell:
    return Cell("move", "copy", "float32", (4096 * size,), cache, "gpu")


TAKE: dict[str, Any] = {"launches": 1, "clock64_mhz": None, "state": SILENT, "throttled": [], "retakes": 0}
CELLS = [cell(size) for size in range(1, 2 * APART + 3)]


class Watched(Gpu):
    """`mhz`: the clock of a cell, if it is not the highest one; `done`: the cell of each take, in order; `rested`: the
    seconds of each rest."""

    def __init__(self, device: Device, *given: Cell, **changes: Any) -> None:
        budget = dataclasses.replace(BUDGET, **changes)
        self.mhz: dict[Cell, float] = {}
        self.done: list[tuple[Cell, Take]] = []
        self.filled: Cell | None = None
        self.quietly = False
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
        self.quietly = True
        taken = super().take_quietly(*given, **named)
        self.quietly = False
        return self._noted(taken)

    def take(self, *given: Any) -> Take:
        """The checked run is no take: canaries lead in to it."""
        taken = super().take(*given)
        return taken if self.quietly or any(given[4:]) else self._noted(taken)

    def _noted(self, taken: Take) -> Take:
        assert self.filled is not None
        taken = self.changed({**taken, "clock64_mhz": self.mhz.get(self.filled, CLOCK_MHZ)})
        self.done.append((self.filled, taken))
        return taken

    def changed(self, taken: Take) -> Take:
        """A take as a test wants it."""
        return taken

    def run(self, given: list[Cell]) -> dict[Cell, dict[str, Any]]:
        """The last measurement of each cell, as a worker's events tell them."""
        return {one: dict(measured()) for one, measured in worker._turns(self, given)}


@pytest.mark.parametrize(("known", "first"), [(True, 2), (False, BUDGET.samples)])
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
    assert set(map(tuple, samples.values())) == {(first, 2, 2)}, "each after a filling of its own"


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


def taken_as(gpu: Watched, monkeypatch: pytest.MonkeyPatch, values: Callable[[int], float], known_s: float) -> int:
    """How many takes a cell has whose n-th one takes `values(n)`. `known_s`: as earlier processes measured it."""
    where, count = CELLS[0], itertools.count()
    if known_s < math.inf:
        clocks_mhz, seconds = {where.key: CLOCK_MHZ}, {where.key: known_s}
        gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz=clocks_mhz, seconds=seconds)
    monkeypatch.setattr(gpu, "changed", lambda taken: {**taken, "seconds": [values(next(count))]})
    return len(gpu.run([where])[where]["takes_s"])


LEAST_APART = 2 * AGREED * math.sqrt(TAKES_LEAST - 1)  # of two levels that as many takes have in turns: twice the error


@pytest.mark.parametrize(
    ("apart", "known_s", "takes"),
    [
        (0.0, math.inf, TAKES_LEAST),
        (0.0, 1e-5, TAKES_LEAST - 1),
        (0.99 * LEAST_APART, math.inf, TAKES_LEAST),
        (1.01 * LEAST_APART, math.inf, TAKES_LEAST + 1),
        (0.08, math.inf, 16),
    ],
)
def test_takes_end_when_they_agree(
    device: Device, monkeypatch: pytest.MonkeyPatch, apart: float, known_s: float, takes: int
) -> None:
    """What earlier processes measured is one of the values that must agree."""
    gpu = Watched(device, *CELLS[:2], takes=16)
    assert taken_as(gpu, monkeypatch, lambda at: 1e-5 * (1 + apart * (at % 2)), known_s) == takes


def test_what_a_gpu_sets_aside_by_default_costs_no_take(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 sets aside 11 MiB of its L2 cache. A cell that sets aside more is taken once."""
    monkeypatch.setattr(l2, "set_aside_bytes", lambda: 11 << 20)
    gpu = Watched(device, CELLS[0])
    assert gpu._has_more(CELLS[0], CLOCK_MHZ) is False, "nothing is captured yet"
    assert len(gpu.run(CELLS[:1])[CELLS[0]]["takes_s"]) == BUDGET.takes
    monkeypatch.setattr(l2, "set_aside_bytes", lambda: 12 << 20)
    assert not gpu._has_more(CELLS[0], CLOCK_MHZ)


def test_takes_that_agree_by_chance_do_not_end_a_cell(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are at one of two levels, and the processes before say that there is another."""
    gpu = Watched(device, *CELLS[:2], takes=16)
    assert taken_as(gpu, monkeypatch, lambda _: 1e-5, 1.02e-5) == 16


def test_the_figure_is_the_mean_over_the_takes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    where, values = CELLS[0], iter([1.0, 1.02, 1.06])
    monkeypatch.setattr(spent_module, "time", SimpleNamespace(monotonic=device.now))
    gpu = Watched(device, where)
    first: dict[str, Any] = {}

    def changed(taken: Take) -> Take:
        second = next(values)
        return {
            **taken,
            "seconds": [0.5 * second, 0.98 * second, 1.02 * second, 9.0],
            "clock64_mhz": CLOCK_MHZ - second,
            "launches": 10,
            "retakes": 1,
            "state": {**SILENT, "event_reasons": round(100 * second)},
        }

    monkeypatch.setattr(gpu, "changed", changed)
    spent: list[float] = []
    for _, measured in worker._turns(gpu, [where]):
        found = measured()
        first = first or dict(found)
        spent.append(found["spent_s"]["replay"])
    assert (first["seconds"], first["launches"], "takes_s" in first) == (pytest.approx(1.0), 10, False)
    takes = [1.0, 1.02, 1.06]
    assert found["takes_s"] == pytest.approx(takes)
    assert found["seconds"] == pytest.approx(statistics.mean(takes))
    assert found["clock64_mhz"] == pytest.approx(CLOCK_MHZ - statistics.mean(takes))
    assert (found["launches"], found["retakes"], found["state"]["event_reasons"]) == (30, 3, 106)
    samples = [value for second in takes for value in (0.5 * second, 0.98 * second, 1.02 * second, 9.0)]
    lower, _, upper = statistics.quantiles(samples, n=4)
    assert found["quartiles_s"] == [lower, upper]
    assert {name: found[name] for name in ("slots", "identity", "canary_s")} == {
        name: first[name] for name in ("slots", "identity", "canary_s")
    }
    assert 0 < spent[0] < spent[1] < spent[2]
    assert spent[2] - spent[1] == pytest.approx(spent[1] - spent[0], rel=0.01), "each take adds its own"


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


def test_the_first_process_takes_a_cell_shortly_if_a_replay_has_told_its_clock(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Watched(device, CELLS[0])
    monkeypatch.setattr(gpu, "_replayed_once", lambda *_: (1e-5, CLOCK_MHZ))
    gpu.run(CELLS[:1])
    assert [len(taken["seconds"]) for _, taken in gpu.done] == [2] * BUDGET.takes


def test_the_figure_of_a_single_take_is_the_mean_of_two_levels(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Watched(device, CELLS[0])
    gpu.mhz = {CELLS[0]: LOWER}
    samples = [1e-5, 1e-5, 1e-5, 1.05e-5, 1.05e-5]
    monkeypatch.setattr(gpu, "changed", lambda taken: {**taken, "seconds": samples})
    found = gpu.measure(CELLS[0])
    assert found["seconds"] == pytest.approx(1.02e-5)


@pytest.mark.parametrize(("changes", "fills"), [({}, BUDGET.samples), ({"values": lambda *_: np.zeros(4096)}, 1)])
def test_each_sample_of_a_single_take_has_buffers_that_were_filled_anew(
    device: Device, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], fills: int
) -> None:
    """But for those that the host makes, which takes long. The figure is the mean."""
    where, values = CELLS[0], [1e-5, 1e-5, 1e-5, 1.05e-5, 1.05e-5]
    gpu = Watched(device, where, clocks_mhz={where.key: LOWER}, seconds={where.key: 1e-5})
    gpu.mhz = {where: LOWER}
    own = dataclasses.replace(gpu._operands_of(where).inputs[0], **changes)
    operands = dataclasses.replace(gpu._operands_of(where), inputs=(own,))
    monkeypatch.setattr(gpu, "_operands_of", lambda _: operands)
    monkeypatch.setattr(gpu, "changed", lambda taken: {**taken, "seconds": values})
    filled, quietly = list[bool](), gpu.take_quietly

    def fill(cell: Cell) -> None:
        gpu.filled = cell
        filled.append(gpu.quietly)

    monkeypatch.setattr(gpu, "_fill", fill)

    def taken(*given: Any, **named: Any) -> Take:
        assert filled == [False] * (fills == 1)
        one = quietly(*given, **named)
        assert filled == ([True] * fills if fills > 1 else [False])
        return one

    monkeypatch.setattr(gpu, "take_quietly", taken)
    takes, _ = gpu._take_quick(where, [lambda: device.enqueue("move", (), 1e-5)] * 4, 1e-5, 1e-5)
    assert gpu_module._figures(where, takes, 1)["seconds"] == pytest.approx(1.02e-5)


@pytest.mark.parametrize("known", [None, LOWER])
def test_a_cell_whose_clock_is_lower_has_the_samples_of_a_single_take(device: Device, known: float | None) -> None:
    where = CELLS[0]
    gpu = Watched(device, where, clocks_mhz={where.key: known} if known else {}, seconds={where.key: 1e-5})
    gpu.mhz = {where: LOWER}
    gpu.run([where])
    assert [len(taken["seconds"]) for _, taken in gpu.done] == [BUDGET.samples]


def scratch() -> None:
    """Allocate as CuPy does, for what a launch needs in between."""
    if MemoryHook.active:
        MemoryHook.active.malloc_postprocess(mem_ptr=1, size=512)


@pytest.mark.parametrize("case", ["hot", "slow", "no graph", "memory", "quick", "limited", "unread", "l2", "allocates"])
def test_what_has_no_further_take(device: Device, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    where = cell(1, "hot" if case == "hot" else "cold")
    gpu = Watched(device, where, takes=1 if case == "quick" else 3)
    told: dict[str, dict[str, Any]] = {"limited": {"throttled": ["power cap"]}, "unread": {"clock64_mhz": None}}
    limits = told.get(case, {})
    package = cast(Moving, gpu.package)
    monkeypatch.setattr(gpu, "changed", lambda taken: {**taken, **limits})
    if case == "slow":
        package.seconds = 2 * SLOW_S
    if case == "no graph":
        monkeypatch.setattr(gpu, "_captured", lambda *_: None)
    if case == "memory":
        monkeypatch.setattr(gpu.cupy.cuda.runtime, "memGetInfo", lambda: (1 << 20, 4 << 20))
    if case == "l2":
        monkeypatch.setattr(l2, "set_aside_bytes", lambda: 1 << 20)
    if case == "allocates":  # as CuPy does for what a launch needs in between
        monkeypatch.setattr(package, "before", scratch)
    takes = [one for one, measured in worker._turns(gpu, [where]) if measured()]
    assert takes == [where]


@pytest.mark.parametrize("changes", [{"updated": True}, {"values": lambda *_: np.zeros(4096)}])
def test_a_cell_whose_inputs_are_special_has_no_further_take(
    device: Device, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """The host makes them, or a launch writes to them."""
    where = CELLS[0]
    gpu = Watched(device, where)
    gpu.measure(where)
    assert gpu._has_more(where, CLOCK_MHZ)
    own = dataclasses.replace(gpu._operands_of(where).inputs[0], **changes)
    operands = dataclasses.replace(gpu._operands_of(where), inputs=(own,))
    monkeypatch.setattr(gpu, "_operands_of", lambda _: operands)
    assert not gpu._has_more(where, CLOCK_MHZ)
    monkeypatch.undo()
    gpu._returns = True
    assert not gpu._has_more(where, CLOCK_MHZ), "the graph has memory of its own"


def test_the_figure_of_any_cell_is_the_mean_of_its_samples() -> None:
    """Each may have a level of its own. A take of several samples counts for as many."""
    takes: Any = [{**TAKE, "seconds": [second]} for second in (1.0, 1.0, 1.075, 9.0)]
    assert gpu_module._figures(cell(1, "hot"), takes, 2)["seconds"] == pytest.approx(0.5125)
    cold: Any = [{**TAKE, "seconds": [1.0, 1.0, 1.0, 1.08, 9.0]}, {**TAKE, "seconds": [1.02]}]
    found = gpu_module._figures(cell(1), cold, 2)
    assert found["seconds"] == pytest.approx(0.51)
    assert found["samples"] == 6


def test_a_take_that_another_program_disturbed_does_not_count() -> None:
    """It is more than a fifth longer than most. Nor do takes go on for it."""
    takes: Any = [{**TAKE, "seconds": [second]} for second in (1.0, 1.0, 1.08, 5.0, 1.0, 1.25)]
    assert gpu_module._figures(cell(1), takes, 1)["seconds"] == pytest.approx(1.02)
    assert gpu_module._agree([1.0, 1.0, 3.0, 1.0], math.inf, 3, AGREED)
    assert not gpu_module._agree([1.0, 1.0, 3.0, 1.0], math.inf, 4, AGREED)
    assert typical([3.0, 1.0]) == 1.0, "of two the shorter one"


def test_each_cell_waits_for_six_others() -> None:
    """Fewer would follow so soon that the clock has not moved. After each cell come as many takes as most of those that
    wait still need."""
    assert APART == 6
    assert FURTHER == TAKES_LEAST - 1


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_those_that_wait_do_not_become_more_and_more(
    device: Device, monkeypatch: pytest.MonkeyPatch, noise: float
) -> None:
    """Even if all have as many takes as there may be."""
    many = [cell(size) for size in range(1, 4 * APART)]
    gpu, count = Watched(device, *many, takes=16), itertools.count()
    monkeypatch.setattr(
        gpu, "changed", lambda taken: {**taken, "seconds": [1e-5 * (1 + noise * (next(count) // 40 % 2))]}
    )
    for one, measured in worker._turns(gpu, many):
        measured()
        assert len(gpu._waiting) <= 2 * APART + 1, one


@pytest.mark.parametrize("met", [{"throttled": ["power cap"]}, {"clock64_mhz": 0.98 * CLOCK_MHZ}])
def test_a_further_take_that_meets_a_limit_does_not_count(
    device: Device, monkeypatch: pytest.MonkeyPatch, met: dict[str, Any]
) -> None:
    """What was taken before met none, and stays. Others follow, none of them after a rest."""
    where, count = CELLS[0], itertools.count(1)
    gpu = Watched(device, where, takes=5)
    monkeypatch.setattr(
        gpu, "changed", lambda taken: {**taken, "seconds": [1 + (at := next(count)) / 100], **(met if at == 3 else {})}
    )
    found = gpu.run([where])[where]
    assert found["takes_s"] == pytest.approx([1.01, 1.02, 1.04, 1.05])
    assert (found["throttled"], len(gpu.done)) == ([], 5)
    assert not gpu.rested


@pytest.mark.parametrize("met", [{"throttled": ["power cap"]}, {"clock64_mhz": LOWER}])
def test_a_first_take_that_meets_a_limit_is_a_whole_one(
    device: Device, monkeypatch: pytest.MonkeyPatch, met: dict[str, Any]
) -> None:
    """It was expected to have several, by the clock that other processes saw."""
    where = CELLS[0]
    gpu = Watched(device, where, clocks_mhz={where.key: CLOCK_MHZ}, seconds={where.key: 1e-5})
    monkeypatch.setattr(gpu, "changed", lambda taken: {**taken, **met})
    found = gpu.run([where])[where]
    assert (found["samples"], "takes_s" in found) == (BUDGET.samples, False)
    assert [len(taken["seconds"]) for _, taken in gpu.done] == [2, BUDGET.samples]


@pytest.mark.parametrize(("lower", "rested"), [(True, 1), (False, 0)])
def test_at_the_end_of_a_process_takes_do_not_follow_a_cell_that_lowered_the_clock(
    device: Device, lower: bool, rested: int
) -> None:
    gpu = Watched(device, *CELLS[:3])
    gpu.mhz = {CELLS[2]: LOWER} if lower else {}
    before = list[int]()
    for one, measured in worker._turns(gpu, CELLS[:3]):
        if one != CELLS[2] and len(gpu.done) > 3:
            before.append(gpu.rested.count(REST_S))
        measured()
    assert before
    assert set(before) == {rested}


@pytest.mark.parametrize(("further_s", "takes"), [(FURTHER_S, 3), (0.3 * FURTHER_S, 1)])
def test_a_cell_has_no_more_takes_than_fit_in_a_second(
    device: Device, monkeypatch: pytest.MonkeyPatch, further_s: float, takes: int
) -> None:
    """A turn over all its sets of buffers takes long, and so does the lead-in. If a single one fits, it is a whole
    one."""
    where, turns = CELLS[0], itertools.count()
    monkeypatch.setattr(gpu_module, "FURTHER_S", further_s)
    gpu = Watched(device, where, takes=16, clocks_mhz={where.key: CLOCK_MHZ}, seconds={where.key: 0.9 * SLOW_S})
    cast(Moving, gpu.package).seconds = 0.9 * SLOW_S
    monkeypatch.setattr(gpu, "changed", lambda taken: {**taken, "seconds": [SLOW_S * (0.9 + next(turns) % 2 / 20)]})
    found = gpu.run([where])[where]
    turn_s = 0.9 * SLOW_S * found["slots"]
    assert int(further_s / (2 * turn_s)) == takes
    assert len(found.get("takes_s", [0.0])) == takes
    assert found["launches"] == found["slots"] * (takes if takes > 1 else SAMPLES_LEAST)


def test_what_a_cell_launches_stays_as_long_as_it_waits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bound, known = Watched(device, *CELLS[:2]), list[Any](), list[bool]()
    bind = gpu._bind

    def noted(where: Cell, kernel: Any, slot: int) -> Any:
        launch, identity = bind(where, kernel, slot)

        def own() -> object:
            return launch()

        if where == CELLS[0]:
            bound.append(weakref.ref(own))
        return own, identity

    monkeypatch.setattr(gpu, "_bind", noted)
    for one, measured in worker._turns(gpu, CELLS[:2]):
        measured()
        if one == CELLS[1]:
            known.append(any(each() for each in bound))
        gpu.done.clear()
    gc.collect()
    assert known[0], "the first cell still waits"
    assert not any(each() for each in bound)


def test_a_further_take_runs_on_the_stream_of_the_harness(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, entered = list[Any](), list[Any]()

    @contextlib.contextmanager
    def current(stream: Any) -> Iterator[None]:
        entered.append(stream)
        yield
        entered.pop()

    gpu = Watched(device, CELLS[0])
    monkeypatch.setattr(gpu_module, "current", current)

    def changed(taken: Take) -> Take:
        streams.append(entered[-1:])
        return taken

    monkeypatch.setattr(gpu, "changed", changed)
    gpu.run([CELLS[0]])
    assert streams == [[gpu.stream]] * 3


@pytest.mark.parametrize("seed", [0, 3])
def test_the_first_process_checks_after_the_last_take_too(device: Device, seed: int) -> None:
    """A later cell may have changed what a launch relies on, such as constants of its module."""
    gpu = Watched(device, *CELLS[:2])
    gpu.seed = seed
    package, found = cast(Moving, gpu.package), list[str]()
    for one, measured in worker._turns(gpu, CELLS[:2]):
        package.lazy = False
        if one == CELLS[0] and found:
            package.lazy = True
        try:
            measured()
            found.append("ok")
        except WrongOutput as error:
            found.append(str(error))
    assert found[:-2] == ["ok"] * 4
    assert ("elements wrong" in found[-2]) == (seed == 0), found


def test_that_check_is_of_a_cell_that_writes_its_outputs_whatever_was_measured_last(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What returns its outputs has no further take, but may be the last cell."""
    gpu, seen = Watched(device, CELLS[0]), list[bool]()
    gpu.seed, check = 0, gpu._check_afterwards

    def checked(*given: Any, **named: Any) -> None:
        seen.append(gpu._returns)
        check(*given, **named)

    monkeypatch.setattr(gpu, "_check_afterwards", checked)
    for _, measured in worker._turns(gpu, CELLS[:1]):
        measured()
        gpu._returns = True
    assert seen == [False, False]


@pytest.mark.parametrize("merge", [clocks.settled, lambda own: clocks.retaken(own[:-1], own[-1])])
def test_what_replaces_a_measurement_has_no_takes_of_it(
    merge: Callable[[list[Measurement]], list[Measurement]],
) -> None:
    def one(process: int, mhz: float, **more: Any) -> Measurement:
        return cast(Measurement, {"process": process, "seconds": 1.0, "clock64_mhz": mhz, "throttled": [], **more})

    several = {"takes_s": [1.0, 1.0, 1.1], "kernels": [{"kernel": "k"}]}
    own = [one(0, 1900.0, **several), *(one(at, 1980.0) for at in (1, 2, 3))]
    first = next(each for each in merge(own) if "instead_of" in each)
    assert first["kernels"] == [{"kernel": "k"}], "only the first process knows"
    assert "takes_s" not in first


def test_each_device_of_a_run_says_how_often_it_takes_a_cell() -> None:
    assert DEVICES["gpu"].budget.takes == 16
    assert DEVICES["gpu"].quick_budget.takes == DEVICES["cpu"].budget.takes == 1


@pytest.mark.parametrize(
    ("errors", "first"), [([0, 0, 0, 0, 0, 3], ["ok", "fault"]), ([0, 3, 3, 3, 3, 3, 3, 3, 3, 3], ["fault"])]
)
def test_a_fault_of_the_memory_is_that_cell_s_and_it_has_no_further_take(
    device: Device, monkeypatch: pytest.MonkeyPatch, errors: list[int], first: list[str]
) -> None:
    """The other cells go on."""
    gpu, told = Watched(device, *CELLS[:2]), iter([*errors, *[3] * 20])
    monkeypatch.setattr(gpu.nvml, "uncorrected_errors", lambda: next(told))
    found: dict[Cell, list[str]] = {}
    for one, measured in worker._turns(gpu, CELLS[:2]):
        try:
            measured()
            found.setdefault(one, []).append("ok")
        except MemoryFault:
            found.setdefault(one, []).append("fault")
    assert found == {CELLS[0]: first, CELLS[1]: ["ok", "ok", "ok"]}
