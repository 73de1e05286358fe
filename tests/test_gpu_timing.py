"""What the harness says of a measurement on a GPU: clocks, limits, retakes, buffers and replays, with the device left
out."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.timing import record as record_module
from kernelwatch.timing.gpu import LEAD_IN_S, Gpu
from kernelwatch.timing.nvml import Nvml, State
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import REST_S, RETAKES, SHORT_REST_S, Take, clock_mhz, throttled
from kernelwatch.timing.spent import Spent
from tests.fake_gpu import SILENT, Memory, MemoryHook

MIB = 1 << 20


def cell(**changes: Any) -> Cell:
    values = {"op": "transpose", "rung": "padded", "type": "float32", "shape": (33, 65), "cache": "cold"}
    return Cell(**values | {"device": "gpu"} | changes)


def said_by_driver(reasons: int | None) -> State:
    return {**SILENT, "event_reasons": reasons}


# --- clocks and limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "mhz"),
    [
        ((1_000, 5_000, 7), (1_981_000, 1_005_000, 7), 1980.0),
        ((1_000, 5_000, 7), (1_981_000, 1_005_000, 8), None),  # each SM counts cycles of its own
        ((1_000, 5_000, 7), (1_981_000, 5_000, 7), None),
        ((1_000, 5_000, 7), (1_981_000, 4_000, 7), None),
        ((2**62, 2**62, 0), (2**62 + 3, 2**62 + 2, 0), 1500.0),  # no float64 holds these stamps
    ],
)
def test_clock(before: tuple[int, ...], after: tuple[int, ...], mhz: float | None) -> None:
    assert clock_mhz(np.array([before, after], np.int64)) == mhz


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (0x04, ["software power cap"]),
        (0x08, ["hardware slowdown"]),
        (0x20, ["software thermal slowdown"]),
        (0x40, ["hardware thermal slowdown"]),
        (0x80, ["hardware power brake"]),
        (0x48, ["hardware slowdown", "hardware thermal slowdown"]),
        (0x01 | 0x02 | 0x10 | 0x100, []),  # idle, clocks set by the user, sync boost, display: no limit was hit
        (0, []),
        (None, []),
    ],
)
def test_every_limit_by_its_name(reasons: int | None, said: list[str]) -> None:
    assert throttled(said_by_driver(reasons), 1980.0, 1980.0) == said


@pytest.mark.parametrize(
    ("clock", "highest", "said"),
    [
        (1484.0, 1980.0, ["SM clock 1484 MHz of 1980 MHz"]),
        (1485.0, 1980.0, []),  # three quarters
        (None, 1980.0, []),
        (345.0, None, []),
        (None, None, []),
    ],
)
def test_a_slow_clock_is_a_limit_where_the_driver_says_no_reasons(
    clock: float | None, highest: float | None, said: list[str]
) -> None:
    assert throttled(said_by_driver(None), clock, highest) == said
    assert throttled(said_by_driver(0x04), clock, highest) == ["software power cap"]
    assert throttled(said_by_driver(0), clock, highest) == []  # locked low on purpose


# --- what a measurement does, with the device left out -------------------------------------------------------------


class Idle:
    """A package of kernels that nobody launches; `times`: how often one launch of them does the work."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def load(self, op: str, rung: str, type: str) -> "Idle":
        return self

    def repeats(self, op: str, rung: str) -> int:
        return self.times


def one_take(seconds: list[float], **changes: Any) -> Take:
    """A take over which no clock was read and no limit met."""
    found: dict[str, Any] = {"seconds": seconds, "launches": 1, "clock64_mhz": None, "state": SILENT, "throttled": []}
    return cast(Take, found | {"retakes": 0} | changes)


class Handless(Gpu):
    """A Gpu of 1 MiB of L2 and 64 MiB of memory whose every touch of the device is replaced by a note of it."""

    def __init__(
        self,
        takes: list[list[str]] | None = None,
        launch_s: float = 1e-6,
        sample_s: float = 0.002,
        repeats: int = 1,
    ) -> None:
        self.project = PROJECT
        self.spent = Spent()
        self.nvml = cast(Nvml, SimpleNamespace(uncorrected_errors=lambda: None))
        self.package = cast(Package, Idle(repeats))
        self.budget = Budget(samples=9, sample_s=sample_s)
        self.seed = 0
        self.l2_bytes = MIB
        self.cupy = SimpleNamespace(
            ndarray=Memory, cuda=SimpleNamespace(memory_hook=SimpleNamespace(MemoryHook=MemoryHook))
        )
        self.arena = np.zeros(64 * MIB, np.uint8).view(Memory)
        self.stream = contextlib.nullcontext()
        self.takes = list(takes or [[]] * 9)
        self.launch_s = launch_s
        self.graphs: list[int] = []
        self.taken: list[tuple[int, int]] = []
        self.lead_in: tuple[Any, ...] = (1, 1)
        self.lead_ins: list[tuple[Any, ...]] = []
        self.best_clock_mhz = 0.0
        self.idle_since = 0.0
        self.clocks: list[float] = []
        self.seen_mhz: float | None = None  # while a launch was replayed for the first time
        self.enqueue_s = 1.0
        self.check_s = 0.0  # of the checked run, if it takes longer than a launch
        self.known: list[bool] = []  # whether a first launch was known to be right

    def _fill(self, cell: Cell) -> None:
        pass

    def _bind(self, cell: Cell, kernel: Any, slot: int) -> tuple[Callable[[], object], str]:
        assert (kernel is None) is cell.reference
        return (lambda: None), "who"

    def _check(self, cell: Cell, launch: Callable[[], object], known: bool) -> tuple[Take, float]:
        self.known.append(known)
        return one_take([self.check_s or self.launch_s]), self.enqueue_s

    def graph(self, launches: list[Callable[[], object]], nodes: int) -> Any:
        self.graphs.append(nodes)
        return nodes

    def replay(
        self,
        graph: Any,
        replays: int,
        samples: int,
        during: Callable[[], Any] = lambda: None,
        lead_in: tuple[Any, ...] = (),
    ) -> tuple[list[float], float | None, Any]:
        return [self.launch_s * graph * replays] * samples, self.seen_mhz, during()

    def take(self, graph: Any, replays: int, nodes: int, samples: int, lead_in: tuple[Any, ...] = ()) -> Take:
        """The n-th take reads about n seconds, so that the take that is kept can be told."""
        assert graph == nodes
        if lead_in:
            self.lead_ins.append(lead_in)
        self.taken.append((replays, nodes))
        at = len(self.taken)
        seconds = [at - 0.5, float(at), at + 0.5] if samples > 1 else [float(at)]
        clock = self.clocks[at - 1] if self.clocks else None
        self.best_clock_mhz = max(self.best_clock_mhz, clock or 0.0)
        launches = replays * nodes * samples
        return one_take(seconds, launches=launches, throttled=self.takes[at - 1], clock64_mhz=clock)

    def take_sliced(self, rest_s: float, *how: Any) -> Take:
        """Noted as one rest and one take; tests/test_slices.py tells how the rest is shared out."""
        if rest_s:
            time.sleep(rest_s)
        return self.take(*how[:5])

    def _captured(self, cell: Cell, launch: Callable[[], object]) -> Any:
        return launch

    def _look(self, cell: Cell, launch: Callable[[], object], measurement: Measurement) -> None:
        pass

    def _check_afterwards(
        self, cell: Cell, launches: list[Callable[[], object]], timed: Any, with_inputs: bool
    ) -> None:
        pass

    def _host_loop_seconds(self, launch: Callable[[], object]) -> float:
        return 10.0

    def canary_seconds(self) -> dict[str, float]:
        return {"memory": 1.0, "compute": 2.0}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is waited for, and the host prepares in no time: each is a whole one."""
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    return asked


def test_a_clean_take_is_the_only_one(pauses: list[float]) -> None:
    visit = Handless().measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"], pauses) == (0, 1.0, [], [])
    assert visit["canary_s"] == {"memory": 1.0, "compute": 2.0}
    assert visit["identity"] == "who"
    assert "launch_seconds" not in visit


def test_a_throttled_take_is_taken_again(pauses: list[float]) -> None:
    gpu = Handless([["software power cap"], ["hardware slowdown"], []])
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["seconds"], visit["throttled"]) == (2, 3.0, [])
    assert pauses == [REST_S] * 2


@pytest.mark.parametrize(("limit", "retakes"), [("hardware slowdown", RETAKES), ("software power cap", 1)])
def test_what_stays_throttled_is_marked(pauses: list[float], limit: str, retakes: int) -> None:
    """Heat may pass; a kernel that meets the power limit after a rest meets it always."""
    gpu = Handless([[limit]] * 10)
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["throttled"]) == (retakes, [limit])
    assert len(gpu.taken) == retakes + 1
    assert visit["seconds"] == len(gpu.taken)  # the last one


def test_seconds_are_of_one_pass() -> None:
    visit = Handless(repeats=64).measure(cell())
    assert (visit["seconds"], visit["quartiles_s"]) == (1 / 64, [0.5 / 64, 1.5 / 64])
    once = Handless(repeats=1).measure(cell(repeats=64))  # the measured commit's count, not the checkout's
    assert once["seconds"] == 1.0
    line = Handless(repeats=64).measure(cell(rung="memcpy", reference=True))
    assert line["seconds"] == 1.0


def test_launch_cost_is_the_loop_less_the_graph() -> None:
    visit = Handless().measure(cell(launch_cost=True))
    assert (visit["host_loop_seconds"], visit["launch_seconds"]) == (10.0, 10.0 - 1.0)


@pytest.mark.parametrize(
    ("launch_s", "looked", "nodes", "replays", "samples"),
    [
        (1e-6, 256, 512, 4, 9),  # 2 ms are 2,000 launches; a graph holds 512 at most
        (1e-5, 200, 256, 1, 7),  # 200 launches: all the buffers once, and so a sample less or two
        (1e-9, 256, 512, 3906, 9),
        (1e-4, 20, 256, 1, 2),  # a turn over the buffers is dearer than all nine samples should be: the least
    ],
)
def test_a_graph_goes_round_all_buffers(launch_s: float, looked: int, nodes: int, replays: int, samples: int) -> None:
    gpu = Handless(launch_s=launch_s)
    visit = gpu.measure(cell(shape=(32, 64)))  # 16 KiB a set; 4 x 1 MiB are 256 of them
    assert visit["slots"] == 256
    assert gpu.graphs == [looked, nodes]
    assert gpu.taken == [(replays, nodes)]
    assert visit["launches"] == replays * nodes * samples


@pytest.mark.parametrize(("launch_s", "samples"), [(0.006, 8), (0.02, 2), (1.0, 1)])
def test_a_slow_launch_is_a_sample(launch_s: float, samples: int) -> None:
    """Behind the canaries, which keep the host's delays out of it: itself once more would cost as much as a sample."""
    gpu = Handless(launch_s=launch_s)
    visit = gpu.measure(cell(shape=(32, 64)))
    assert gpu.graphs == [1]
    assert gpu.taken == [(1, 1)]
    assert gpu.lead_ins == [(1, 1)]
    assert visit["launches"] == samples


def test_a_launch_that_is_dear_is_timed_by_its_check() -> None:
    gpu = Handless(launch_s=1.0)
    gpu.enqueue_s = 1e-5  # the host had nothing to load
    visit = gpu.measure(cell(shape=(32, 64)))
    assert (visit["seconds"], visit["launches"], visit["slots"], gpu.taken, gpu.graphs) == (1.0, 1, 1, [], [])


@pytest.mark.parametrize(("launch_s", "late_s"), [(0.04, 4e-6), (2.25, 225e-6)])
@pytest.mark.parametrize(("share", "taken"), [(0.9, []), (1.1, [(1, 1)])])
def test_a_check_is_a_sample_if_the_host_held_it_up_for_a_ten_thousandth_at_most(
    launch_s: float, late_s: float, share: float, taken: list[tuple[int, int]]
) -> None:
    gpu = Handless(launch_s=launch_s)
    known_s = 1.0 if taken else launch_s  # as the take after the check says, so that no further one follows
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell(shape=(32, 64)).key: known_s})
    gpu.enqueue_s = LEAD_IN_S + share * late_s
    gpu.measure(cell(shape=(32, 64)))
    assert gpu.taken == taken


@pytest.mark.parametrize("spoilt", [{"throttled": ["software power cap"]}, {"clock64_mhz": 1700.0}])
def test_a_check_under_a_limit_is_no_sample(spoilt: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Handless(launch_s=1.0)
    gpu.enqueue_s, gpu.best_clock_mhz = 1e-5, 1980.0
    first = one_take([1.0], **spoilt)
    monkeypatch.setattr(gpu, "_check", lambda *_how: (first, gpu.enqueue_s))
    gpu.measure(cell(shape=(32, 64)))
    assert gpu.taken == [(1, 1)]


def test_a_cell_that_an_earlier_process_measured_is_neither_checked_before_nor_probed() -> None:
    """Its time is known, so the number of launches follows from it. A slow one is checked: it may be timed once."""
    gpu = Handless(launch_s=1e-6)
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell().key: 4e-6})
    gpu.measure(cell())
    assert (gpu.known, len(gpu.graphs)) == ([True], 1)
    first = Handless(launch_s=1e-6)
    first.measure(cell())
    assert (first.known, len(first.graphs)) == ([False], 2)
    slow = Handless(launch_s=1.0)
    slow.budget = dataclasses.replace(slow.budget, seconds={cell().key: 1.0})
    slow.measure(cell())
    assert slow.known == [False]


def test_a_launch_of_sources_is_checked_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another one than in an earlier process, such as by another choice of an autotuner."""

    class OfSources:
        of_sources = True

        def __call__(self) -> None: ...

    gpu = Handless(launch_s=1e-6)
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell().key: 4e-6})
    monkeypatch.setattr(gpu, "_bind", lambda *_how: (OfSources(), "who"))
    gpu.measure(cell())
    assert gpu.known == [False]


def test_a_clock_locked_low_is_as_high_as_it_gets(pauses: list[float]) -> None:
    gpu = Handless()
    gpu.clocks = [1500.0] * 3
    visit = gpu.measure(cell())
    assert (visit["retakes"], visit["throttled"], pauses) == (0, [], [])


def test_a_first_run_that_waited_for_something_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Handless(launch_s=1e-6)
    loaded = one_take([0.5])  # a library was, in it
    monkeypatch.setattr(gpu, "_check", lambda *_how: (loaded, 0.5))
    take = gpu.take

    def quick(*what: Any) -> Take:
        found = take(*what)
        return {**found, "seconds": [1e-6 for _ in found["seconds"]]}

    monkeypatch.setattr(gpu, "take", quick)
    visit = gpu.measure(cell(shape=(32, 64)))
    assert gpu.graphs == [1, 256, 512]
    assert gpu.taken == [(1, 1), (4, 512)]
    assert (visit["seconds"], visit["launches"], visit["slots"]) == (1e-6, 4 * 512 * 9, 256)


def test_hot_is_the_mean_of_settlings_of_their_own(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample has buffers brought in anew, all in one graph; a throttled one is taken again."""
    monkeypatch.setattr(record_module, "FAR", float("inf"))
    gpu = Handless([[], ["software power cap"], [], [], [], [], [], [], [], []])
    visit = gpu.measure(cell(shape=(33, 65), cache="hot"))
    assert len(gpu.taken) == gpu.budget.samples + 1
    assert gpu.graphs == [visit["slots"], gpu.taken[0][1]]
    assert visit["seconds"] == pytest.approx((1 + sum(range(3, 11))) / 9)
    assert (visit["retakes"], visit["throttled"]) == (1, [])
    assert visit["launches"] == gpu.taken[0][0] * gpu.taken[0][1] * gpu.budget.samples


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("clock", "rest"), [(1700.0, REST_S), (1900.0, SHORT_REST_S), (1980.0, 0.0)])
def test_a_hot_cell_rests_in_full_before_its_first_settling_only(
    pauses: list[float], clock: float, rest: float, known: bool
) -> None:
    """As the slices of a cold cell: from then on nothing else runs. The first process finds the clock by one more
    take of the first settling."""
    gpu = Handless()
    hot, samples = cell(shape=(33, 65), cache="hot"), gpu.budget.samples
    gpu.budget = dataclasses.replace(gpu.budget, clocks_mhz={hot.key: clock} if known else {})
    again = int(rest > 0 and not known)
    gpu.takes, gpu.best_clock_mhz, gpu.clocks = [[]] * (samples + 1), 1980.0, [clock] * (samples + 1)
    visit = gpu.measure(hot)
    assert (visit["retakes"], len(gpu.taken)) == (again, samples + again)
    assert pauses == ([rest, *[rest / samples] * (samples - 1)] if rest else [])


def test_a_settling_below_the_clock_of_the_first_is_taken_again_after_a_whole_rest(pauses: list[float]) -> None:
    gpu = Handless()
    hot, samples = cell(shape=(33, 65), cache="hot"), gpu.budget.samples
    gpu.takes, gpu.best_clock_mhz = [[]] * (samples + 1), 1980.0
    gpu.clocks = [1980.0, 1700.0, *[1980.0] * (samples - 1)]
    assert gpu.measure(hot)["retakes"] == 1
    assert pauses == [REST_S]


def test_a_settling_that_stays_throttled_marks_the_cell(pauses: list[float]) -> None:
    gpu = Handless([[], *[["hardware slowdown"]] * (RETAKES + 1), *[[]] * 9])
    assert gpu.measure(cell(shape=(33, 65), cache="hot"))["throttled"] == ["hardware slowdown"]


@pytest.mark.parametrize(("columns", "slots"), [(2 * MIB, 1), (174_720, 4), (5_184, 102), (640, 820)])
def test_a_graph_is_whole_rounds(columns: int, slots: int) -> None:
    gpu = Handless()
    assert gpu.measure(cell(shape=(1, columns)))["slots"] == slots
    assert gpu.taken[0][1] % slots == 0


# --- buffers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["uint8", "float32", "complex128"])
@pytest.mark.parametrize(("op", "shape"), [("transpose", (33, 65)), ("transpose", (256, 256)), ("vector_add", (1001,))])
def test_cold_buffers_are_four_times_the_l2_and_aligned(op: str, shape: tuple[int, ...], type: str) -> None:
    gpu = Handless()
    where = cell(op=op, rung={"transpose": "padded", "vector_add": "elementwise"}[op], shape=shape, type=type)
    starts, size = gpu._slot_bytes(where)
    assert len(starts) == {"transpose": 1, "vector_add": 2}[op] + 1
    assert all(start % 256 == 0 for start in [*starts, size])
    slots = gpu._slots(where)
    assert slots * size >= 4 * gpu.l2_bytes
    assert (slots - 1) * size < 4 * gpu.l2_bytes  # and not a set more
    ranges = []
    for slot in range(slots):
        inputs, (out,) = gpu._operands(where, slot)
        assert len(inputs) == len(starts) - 1
        assert out.shape == (shape[::-1] if op == "transpose" else shape)
        for operand in (*inputs, out):
            assert operand.dtype == np.dtype(type)
            assert np.shares_memory(operand, gpu.arena)
            ranges.append((operand.ctypes.data, operand.ctypes.data + operand.nbytes))
    ranges.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_cells_in_turn_have_buffers_of_their_own() -> None:
    """What is kept of a cell's buffers is not taken for those of the next one."""
    gpu = Handless()
    small, large, wide = cell(), cell(shape=(256, 512)), cell(shape=(256, 512), type="float64")
    added = cell(op="vector_add", rung="elementwise", shape=(33,))
    for where in (small, large, wide, added, small):
        inputs, outs = gpu._operands(where, 1)
        assert [one.shape for one in inputs] == [where.shape] * (2 if where is added else 1)
        assert {one.dtype for one in (*inputs, *outs)} == {np.dtype(where.type)}
        room = -(-inputs[0].nbytes // 256) * 256  # each array has as much
        assert outs[0].ctypes.data - inputs[0].ctypes.data == len(inputs) * room
        assert inputs[0].ctypes.data - gpu.arena.ctypes.data == (len(inputs) + 1) * room


@pytest.mark.parametrize(("shape", "slots"), [((33, 65), 15), ((128, 256), 1), ((256, 256), 1)])
def test_hot_buffers_lie_in_the_l2_together(shape: tuple[int, ...], slots: int) -> None:
    gpu = Handless()
    where = cell(cache="hot", shape=shape)
    assert gpu._slots(where) == slots
    assert gpu._arena_bytes(where) == slots * gpu._slot_bytes(where)[1] <= gpu.l2_bytes / 2


def test_what_is_larger_than_the_rotation_is_one_set() -> None:
    assert Handless()._slots(cell(shape=(4096, 4096))) == 1


def test_hot_is_at_most_half_of_the_l2() -> None:
    gpu = Handless()
    assert gpu.measure(cell(shape=(256, 256), cache="hot"))["slots"] == 1  # 512 KiB of 1 MiB
    why = r"its buffers \(4 MiB\) do not fit in half of the L2 cache \(1 MiB\): never hot"
    with pytest.raises(NotHere, match=why):
        gpu.measure(cell(shape=(512, 1024), cache="hot"))
    with pytest.raises(NotHere, match="never hot"):
        gpu.measure(cell(shape=(256, 257), cache="hot"))


def test_a_cell_larger_than_the_memory_is_not_here() -> None:
    gpu = Handless()

    class Runtime:
        @staticmethod
        def memGetInfo() -> tuple[int, int]:
            return 90 * MIB, 100 * MIB

    class Cuda:
        runtime = Runtime

    class Cupy:
        cuda = Cuda

    gpu.cupy = Cupy
    with pytest.raises(NotHere, match=r"it needs 128 MiB of GPU memory, 90 MiB are free"):
        gpu.measure(cell(shape=(4096, 4096)))


# --- replays -------------------------------------------------------------------------------------------------------


class Log:
    """CuPy as far as a replay needs it, with what was called in order; an event reads the milliseconds it is given."""

    def __init__(self, milliseconds: list[float]) -> None:
        self.calls: list[str] = []
        self.times = milliseconds
        self.cuda = self
        self.made = 0

    def Event(self) -> "Log._Event":
        self.made += 1
        return Log._Event(self, self.made - 1)

    def get_elapsed_time(self, a: "Log._Event", b: "Log._Event") -> float:
        return self.times[b.at] - self.times[a.at]

    def launch(self, stream: object) -> None:
        self.calls.append("launch")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def stamp(self, grid: object, block: object, arguments: tuple[str]) -> None:
        self.calls.append(f"stamp {arguments[0]}")

    class _Event:
        def __init__(self, log: "Log", at: int) -> None:
            self.log, self.at = log, at

        def record(self, stream: object) -> None:
            self.log.calls.append(f"event {self.at}")


class Stamps(list[str]):
    """The two stamps, named; read back they lie 1 ms and a million cycles apart, on one SM."""

    def get(self, stream: object) -> NDArray[np.int64]:
        return np.array([[0, 0, 3], [1_000_000, 1_000_000, 3]], np.int64)


def logged(milliseconds: list[float]) -> tuple[Gpu, Log]:
    gpu: Gpu = object.__new__(Gpu)
    gpu.spent = Spent()
    log = Log(milliseconds)
    gpu.cupy = gpu.stream = log
    gpu.kernels, gpu.stamps, gpu.nvml_facts = {"stamp": log.stamp}, Stamps(["0", "1"]), {"sm_clock_max_mhz": None}
    return gpu, log


def test_replays_lie_between_events_behind_one_that_keeps_the_gpu_busy() -> None:
    gpu, log = logged([0.0, 2.0, 5.0])

    def during() -> str:
        log.calls.append("during")
        return "said"

    assert gpu.replay(log, 2, 2, during) == ([0.002, 0.003], 1000.0, "said")
    rounds = ["launch", "launch", "event 1", "launch", "launch", "event 2"]
    clock = ["stamp 0", "event 0", *rounds, "stamp 1"]  # over the samples, not over what comes before
    assert log.calls == ["launch", *clock, "during", "synchronize"]
    assert gpu.best_clock_mhz == 1000.0  # over 1 ms


def test_a_clock_over_a_short_time_is_not_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's nanoseconds come in steps: over microseconds they make any clock. Nor is one that it cannot have."""
    for last, highest in (([10_000, 4_000, 3], 0.0), ([5_000_000, 2_000_000, 3], 1980.0)):
        gpu, log = logged([0.0, 2.0])
        gpu.nvml_facts = {"sm_clock_max_mhz": 1980.0}
        stamps = np.array([[0, 0, 3], last])
        monkeypatch.setattr(gpu.stamps, "get", lambda stream, stamps=stamps: stamps)
        assert gpu.replay(log, 1, 1)[1] == 2500.0
        assert gpu.best_clock_mhz == highest


@pytest.mark.parametrize(
    ("reasons", "said"), [(0x20, ["software thermal slowdown"]), (None, ["SM clock 1000 MHz of 1980 MHz"])]
)
def test_a_take_divides_by_its_launches_and_reads_the_clocks(reasons: int | None, said: list[str]) -> None:
    class Driver:
        def state(self) -> State:
            return said_by_driver(reasons)

    gpu, log = logged([float(10 * at) for at in range(6)])
    gpu.budget = Budget(5, 0.01)
    gpu.nvml, gpu.nvml_facts = cast(Nvml, Driver()), {"sm_clock_max_mhz": 1980.0}
    taken = gpu.take(log, 4, 25, 5)
    assert taken["seconds"] == pytest.approx([0.01 / 100] * 5, rel=1e-12)
    assert taken["launches"] == 500
    assert (taken["clock64_mhz"], taken["throttled"], taken["state"]) == (1000.0, said, said_by_driver(reasons))
