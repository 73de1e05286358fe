"""The timing harness on a fake GPU that records what was asked of it, and on the CPU: what is launched, over which
buffers, on which inputs, and what is made of it."""

import ctypes
import dataclasses
import itertools
import math
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Package
from kernelwatch.plan.problem import Computation, Line, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project
from kernelwatch.timing import cpu as cpu_module
from kernelwatch.timing import device as device_module
from kernelwatch.timing import gpu as gpu_module
from kernelwatch.timing import launch, nodes, replay
from kernelwatch.timing.check import WrongOutput
from kernelwatch.timing.cpu import Cpu
from kernelwatch.timing.gpu import HOST_LOOP, HOST_LOOP_LEAST, HOST_LOOP_S, HOST_LOOPS, Gpu
from tests.fake_gpu import (
    CHAINS,
    CLOCK_MHZ,
    COPY_BYTES_PER_S,
    ENQUEUE_S,
    MULTIPLY_ADDS_PER_S,
    SILENT,
    Cupy,
    Device,
    Graph,
    MemoryHook,
)  # fmt: skip

MOVED = Computation.of_shapes(lambda shape: (shape,), lambda shape: shape, lambda a: a)
MOVING = Project("moving", PROJECT.here, (Problem("move", MOVED, (Rung("copy", "gpu", ("float32",)),), ((4096,),)),))
BUDGET = Budget(samples=5, sample_s=2e-4)


def cell(cache: str = "cold", **changes: Any) -> Cell:
    return Cell("move", "copy", "float32", (4096,), cache, "gpu", **changes)


@dataclass
class Moving:
    """A package of one kernel that copies. `seen`: of each launch the place of its output and some of its input."""

    device: Device | None = None
    seconds: float = 1e-5
    seen: list[tuple[int, bytes]] = field(default_factory=list)
    lazy: bool = False  # does nothing
    adds: bool = False  # to what its output holds
    rights: Callable[[Any, Any], object] = lambda out, source: None  # done before, with the output and the input
    before: Callable[[], object] = lambda: None  # called by the host in each launch
    after: Callable[[Any], object] = lambda out: None  # done to the output by each launch
    not_here: tuple[type[Exception], ...] = ()

    def load(self, op: str, rung: str, type: str) -> "Moving":
        return self

    def repeats(self, op: str, rung: str) -> int:
        return 1

    def bind(self, source: Any, *, out: Any) -> Any:
        def run() -> None:
            self.seen.append((out.ctypes.data, bytes(np.asarray(source[:64]))))
            self.rights(out, source)
            if self.adds:
                with np.errstate(invalid="ignore"):
                    out[...] += source
            elif not self.lazy:
                out[...] = source
            self.after(out)

        def launch() -> None:
            self.before()
            if self.device is None:
                run()
            else:
                self.device.enqueue("move", (out.ctypes.data,), self.seconds, run)

        return _Launch("moving", launch)


@dataclass(frozen=True)
class _Launch:
    identity: str
    run: Callable[[], object]

    def __call__(self) -> object:
        return self.run()


def spread(raw: bytes) -> float:
    return float(np.frombuffer(raw, np.float32).std())


# --- the GPU -------------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In the place of CuPy, NVML and the host's clock."""
    pytest.importorskip("cupy.cuda.compiler", reason="keeps what the harness compiles")
    fake = Device()
    nvml = SimpleNamespace(
        others=lambda: None,
        neighbors=lambda: None,
        facts=lambda: {"sm_clock_max_mhz": None},
        state=lambda: SILENT,
        uncorrected_errors=lambda: None,
        why_not="none",
    )
    clock = SimpleNamespace(monotonic=fake.now, perf_counter=fake.now, sleep=fake.sleep)
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, Cupy(fake)))
    monkeypatch.setattr(device_module, "Nvml", lambda bus: nvml)
    for module in (replay, gpu_module, launch):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(nodes, "read", lambda graph: [{"kernel": name} for name, *_ in graph.work])
    return fake


def gpu_of(device: Device, where: Cell, seconds: float = 1e-5, seed: int = 3) -> tuple[Gpu, Moving]:
    package = Moving(device, seconds)
    return Gpu(MOVING, cast(Package, package), [where], BUDGET, seed), package


def test_a_cold_sample_goes_round_all_buffers(device: Device) -> None:
    gpu, package = gpu_of(device, cell())
    measured = gpu.measure(cell())
    replayed = [one.arguments[0] for one in device.launches if one.name == "move" and one.replayed]
    replayed, slots = replayed[-measured["launches"] :], measured["slots"]
    assert slots * 2 * 4 * 4096 >= 4 * device.l2_bytes
    assert len(set(replayed)) == slots
    assert all(len({*replayed[at : at + slots]}) == slots for at in range(0, len(replayed), slots))
    assert measured["seconds"] == pytest.approx(package.seconds)


def test_hot_buffers_stay_in_the_cache(device: Device) -> None:
    gpu, _ = gpu_of(device, cell("hot"))
    measured = gpu.measure(cell("hot"))
    replayed = {one.arguments[0] for one in device.launches if one.name == "move" and one.replayed}
    assert len(replayed) == measured["slots"]
    assert measured["slots"] * 2 * 4 * 4096 <= device.l2_bytes / 2


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_inputs_are_random_in_every_buffer(device: Device, cache: str) -> None:
    gpu, package = gpu_of(device, cell(cache))
    gpu.measure(cell(cache))
    inputs = dict(package.seen)  # by output: what its last launch read
    assert len(inputs) > 1
    assert all(0.4 < spread(raw) < 0.8 for raw in inputs.values())
    assert len(set(inputs.values())) == len(inputs)


def test_the_clocks_are_up_before_anything_is_measured(device: Device) -> None:
    gpu_of(device, cell())
    canaries = [one.at_s for one in device.launches if one.name == "canary_compute"]
    ceilings = next(one.at_s for one in device.launches if one.name == "peak_float64")
    assert len(canaries) > 10
    assert ceilings >= 0.15


@pytest.mark.parametrize(("seconds", "loop_s"), [(1e-3, 1e-3), (5e-5, 5e-5), (1e-5, 1e-5), (1e-6, ENQUEUE_S)])
def test_the_host_waits_for_its_last_launch(device: Device, seconds: float, loop_s: float) -> None:
    """The loop takes as long as the slower of the device and the host, which decides how many launches it has."""
    where = cell("hot", launch_cost=True)
    gpu, _ = gpu_of(device, where, seconds)
    before = len(device.launches)
    gpu._host_loop_seconds(lambda: device.enqueue("looped", (), seconds))
    looped = sum(one.name == "looped" for one in device.launches[before:])
    fitting = min(HOST_LOOP, round(HOST_LOOP_S / loop_s))
    assert looped == HOST_LOOP_LEAST + HOST_LOOPS * max(HOST_LOOP_LEAST, fitting)
    measured = gpu.measure(where)
    assert measured["host_loop_seconds"] == pytest.approx(loop_s, rel=0.02)
    assert measured["launch_seconds"] == pytest.approx(loop_s - seconds, abs=0.02 * loop_s)


def test_the_canaries_are_what_they_were(device: Device) -> None:
    """16 copies of 32 MiB, and two launches of 8 blocks on each multiprocessor with 4096 rounds."""
    gpu, _ = gpu_of(device, cell())
    adds = 2 * 8 * 4 * 256 * CHAINS * 4096
    assert gpu.canary_seconds() == pytest.approx(
        {"memory": 16 * 2 * (32 << 20) / COPY_BYTES_PER_S, "compute": adds / MULTIPLY_ADDS_PER_S}
    )
    measured = gpu.measure(cell())
    assert measured["canary_s"] == pytest.approx(gpu.canary_seconds())
    assert measured["clock64_mhz"] == pytest.approx(CLOCK_MHZ, rel=0.01)


def test_a_multiply_add_is_two_operations(device: Device) -> None:
    gpu, _ = gpu_of(device, cell())
    code = Path(replay.__file__).with_name("kernels.cu").read_text(encoding="utf-8")
    assert code.count(" = fmaf(") == code.count(" = fma(") == CHAINS
    assert gpu.ceilings == pytest.approx(
        {
            "copy_bytes_per_s": COPY_BYTES_PER_S,
            "float32_flops_per_s": 2 * MULTIPLY_ADDS_PER_S,
            "float64_flops_per_s": 2 * MULTIPLY_ADDS_PER_S,
        }
    )


def test_a_graph_takes_its_launches_in_turn(device: Device) -> None:
    gpu, _ = gpu_of(device, cell())
    graph: Any = gpu.graph([lambda at=at: device.enqueue(str(at), (), 0.0) for at in range(3)], 6)  # type: ignore[misc]
    assert [work[0] for work in graph.work] == ["0", "1", "2"] * 2


@pytest.mark.parametrize("seed", [0, 3])  # only the process with seed 0 replays the graph of one launch
@pytest.mark.parametrize(("cache", "seconds"), [("cold", 1e-5), ("hot", 1e-5), ("cold", 0.006)])
def test_a_graph_is_timed_as_the_first_one(
    device: Device, monkeypatch: pytest.MonkeyPatch, cache: str, seconds: float, seed: int
) -> None:
    """On an H200 all kernels are slower once a process has launched several graphs, until the next sort."""
    gpu, _ = gpu_of(device, cell(cache), seconds, seed)
    timed, original = list[Any](), replay.Replayer.replay

    def watched(
        self: replay.Replayer,
        graph: Any,
        replays: int,
        samples: int,
        during: Callable[[], Any] = lambda: None,
        lead_in: tuple[Any, ...] = (),
    ) -> Any:
        found = original(self, graph, replays, samples, during, lead_in)
        if isinstance(graph, Graph):
            timed.append(graph)
        assert device.graphs == timed[-1:] * isinstance(graph, Graph)  # none, if the host launches what is timed
        return found

    monkeypatch.setattr(replay.Replayer, "replay", watched)
    for _ in range(2):
        gpu.measure(cell(cache))
    assert len({id(graph) for graph in timed}) >= 4  # of cells and of canaries


def test_without_thrust_nothing_is_sorted(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cupy"].cuda.thrust, "available", False)
    monkeypatch.setattr(Cupy, "sort", lambda *_: pytest.fail("CuPy cannot sort without Thrust"))
    gpu, _ = gpu_of(device, cell())
    assert gpu.measure(cell())["seconds"] == pytest.approx(1e-5, rel=0.05)


def test_an_error_of_a_sort_is_none_of_a_missing_thrust(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier launch may have left it."""
    gpu, _ = gpu_of(device, cell())

    def sort(*_: Any) -> None:
        raise RuntimeError("merge_sort: failed on 2nd step: cudaErrorLaunchFailure")

    monkeypatch.setattr(Cupy, "sort", sort)
    with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
        gpu.measure(cell())


# --- what earlier processes know -----------------------------------------------------------------------------------


def known(gpu: Gpu, seconds: float) -> None:
    gpu.budget = dataclasses.replace(gpu.budget, seconds={cell().key: seconds})


@pytest.mark.parametrize("fault", ["lazy", "beyond"])
def test_a_known_cell_that_is_wrong_is_caught_after_it_was_timed(device: Device, fault: str) -> None:
    """In processes after the first one nothing is checked before."""
    gpu, package = gpu_of(device, cell(), seed=3)
    known(gpu, 1e-5)
    if fault == "lazy":
        package.lazy = True
    else:
        package.after = lambda out: ctypes.memset(out.ctypes.data + out.nbytes, 0, 1)
    why = "elements wrong" if fault == "lazy" else "wrote 1 of the 4096 bytes after its output, when it was timed"
    with pytest.raises(WrongOutput, match=why):
        gpu.measure(cell())


def test_a_known_cell_that_has_become_slow_is_checked_and_timed_as_a_slow_one(device: Device) -> None:
    """Not by some hundred launches in a graph: at 0.1 s each they would take a minute."""
    gpu, package = gpu_of(device, cell(), seconds=0.1, seed=3)
    known(gpu, 2e-6)
    launches = len(package.seen)
    assert gpu.measure(cell())["seconds"] == pytest.approx(0.1, rel=0.01)
    assert len(package.seen) - launches < 8
    package.lazy = True
    with pytest.raises(WrongOutput, match="elements wrong"):
        gpu.measure(cell())


# --- what a launch does besides ------------------------------------------------------------------------------------


def test_the_first_process_tells_what_a_launch_runs(device: Device) -> None:
    assert "kernels" not in gpu_of(device, cell())[0].measure(cell())
    gpu, _ = gpu_of(device, cell(), seed=0)
    measured = gpu.measure(cell())
    assert measured["kernels"] == [{"kernel": "move"}]
    assert not {"timed_by", "peak_allocated_bytes", "configurations", "sources"} & measured.keys()
    assert measured["identity"] == "moving"


def test_an_input_is_copied_whatever_its_type(device: Device) -> None:
    gpu, _ = gpu_of(device, cell())
    for dtype in ("float8_e4m3fn", "bfloat16", "float32", "complex128"):
        given = gpu.arena[:96].view(np.dtype(dtype)).reshape(2, -1)
        copied = gpu._copy(given)
        assert (copied.shape, copied.dtype) == (given.shape, given.dtype)
        assert copied.tobytes() == given.tobytes()
        assert not np.shares_memory(copied, given)


def test_the_host_makes_the_inputs_of_a_cell_once(device: Device) -> None:
    """The second follows from the first. Of other cells nothing is kept."""
    made: list[str] = []

    def own(random: np.random.Generator, shape: Any, dtype: Any) -> Any:
        made.append("own")
        return random.random(shape).astype(dtype)

    def following(random: np.random.Generator, shape: Any, dtype: Any, before: Any) -> Any:
        made.append("following")
        return 2 * before[0]

    def operands(shape: Any, type: str) -> Operands:
        arrays = [Operand(shape, np.dtype(type), values) for values in (own, following, None)]
        return Operands(tuple(arrays[:2]), (arrays[2],))

    problem = Problem("move", Computation(operands, lambda first, _: first), MOVING.problems[0].rungs, ((4096,),))
    cells = [cell(), dataclasses.replace(cell(), shape=(8192,))]
    gpu = Gpu(Project("moving", PROJECT.here, (problem,)), cast(Package, Moving(device)), cells, BUDGET, 0)
    for where in cells:
        made.clear()
        for _ in range(2):
            gpu._fill(where)
            for slot in (0, 1):
                first, second = gpu._operands(where, slot)[0]
                assert 0 < first.max() < 1
                assert np.array_equal(second, 2 * first)
                first[...] = second[...] = 0
        assert made == ["own", "following"]
    assert {key for key, *_ in gpu._host} == {cells[1].key}


def test_what_cannot_be_captured_is_timed_by_events(device: Device) -> None:
    gpu, package = gpu_of(device, cell(), seconds=1e-4)

    def wait() -> None:
        if device.captured is not None:
            raise RuntimeError("a capture forbids it")

    package.before = wait
    measured = gpu.measure(cell())
    assert measured["timed_by"] == "events"
    assert "kernels" not in measured
    assert measured["seconds"] == pytest.approx(1e-4)
    assert not [one for one in device.launches if one.name == "move" and one.replayed]
    package.before = lambda: None
    assert "timed_by" not in gpu.measure(cell())  # the next cell is captured again


def test_a_reference_line_that_cannot_be_captured_says_so(device: Device) -> None:
    def bind(cupy: Any, inputs: list[Any], out: Any) -> Callable[[], object]:
        def launch() -> None:
            if device.captured is not None:
                raise RuntimeError("a capture forbids it")
            device.enqueue("line", (), 1e-4, lambda: np.copyto(out, inputs[0]))

        return launch

    lined = dataclasses.replace(MOVING.problems[0], lines={"library": Line("move", bind)})
    line = Cell("move", "library", "float32", (4096,), "cold", "gpu", reference=True)
    project = Project("moving", PROJECT.here, (lined,))
    measured = Gpu(project, cast(Package, Moving(device)), [line], BUDGET, 0).measure(line)
    assert measured["timed_by"] == "events"


def test_what_allocates_is_said(device: Device) -> None:
    gpu, package = gpu_of(device, cell(), seed=0)

    def allocate() -> None:
        for size in (8, 512):
            if MemoryHook.active:
                MemoryHook.active.malloc_postprocess(size=size, mem_ptr=size)
                if size == 512:
                    MemoryHook.active.free_preprocess(mem_ptr=size)
        if MemoryHook.active:
            MemoryHook.active.malloc_postprocess(size=256, mem_ptr=512)
            MemoryHook.active.free_preprocess(mem_ptr=4)  # what was there before

    package.before = allocate
    assert gpu.measure(cell())["peak_allocated_bytes"] == 520


def test_the_choices_of_autotuners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that runs tells what it launched with, once; those that do not run tell nothing."""

    class Tuner:
        best_config = "none yet"

        def __init__(self, name: str) -> None:
            self.base_fn = SimpleNamespace(__name__=name)

        def run(self, block: int) -> int:
            self.best_config = f"BLOCK: {block}"
            return block

    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", cast(Any, SimpleNamespace(Autotuner=Tuner)))
    run, first, second = Tuner.run, Tuner("first"), Tuner("second")
    with launch.Choices() as choices:
        assert [second.run(32), first.run(64), second.run(32)] == [32, 64, 32]
    assert choices.texts == ["second: BLOCK: 32", "first: BLOCK: 64"]
    assert Tuner.run is run
    with pytest.raises(RuntimeError), launch.Choices():
        raise RuntimeError
    assert Tuner.run is run


def test_a_launch_on_another_stream_is_wrong(device: Device) -> None:
    """What runs there is no part of a capture."""
    gpu, package = gpu_of(device, cell())

    def elsewhere() -> None:
        package.device = Device() if device.captured is not None else device

    package.before = elsewhere
    with pytest.raises(
        WrongOutput, match=r"^move/copy enqueues nothing on the given stream: it runs on another stream$"
    ):
        gpu.measure(cell())


def test_a_launch_of_which_a_graph_does_not_do_all_is_wrong(device: Device) -> None:
    gpu, package = gpu_of(device, cell(), seed=0)

    def some(out: Any) -> None:
        if not device.host_calls:
            out[:7] = 0

    package.after = some
    said = r"7 of 4096 elements wrong.*, over set \d+ of its buffers, after it was timed$"
    with pytest.raises(WrongOutput, match=said):
        gpu.measure(cell())


@pytest.mark.parametrize("beyond", [1, 4096])
def test_a_write_after_the_output_is_wrong(device: Device, beyond: int) -> None:
    gpu, package = gpu_of(device, cell())
    package.after = lambda out: ctypes.memset(out.ctypes.data + out.nbytes, 0, beyond)
    with pytest.raises(WrongOutput, match=f"^move/copy wrote {beyond} of the 4096 bytes after its output$"):
        gpu.measure(cell())


# --- the CPU -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_the_cpu_goes_round_its_buffers(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "cache_bytes", lambda: 1 << 18)
    package = Moving()
    ticks = itertools.count()  # a clock by which every launch takes 10 us, however busy the machine is
    monkeypatch.setattr(cpu_module, "time", SimpleNamespace(perf_counter=lambda: 1e-5 * next(ticks)))
    measured = Cpu(MOVING, cast(Package, package), [cell(cache)], BUDGET, seed=3).measure(cell(cache))
    slots = measured["slots"]
    timed = package.seen[2:-1]  # after the check and the warm-up, before the last check
    assert slots == (1 if cache == "hot" else 2 * (1 << 18) // (2 * 4 * 4096))
    assert len(timed) == measured["launches"] >= slots
    places = [place for place, _ in timed]
    assert all(len({*places[at : at + slots]}) == slots for at in range(len(places) - slots + 1))
    assert all(0.4 < spread(raw) < 0.8 for _, raw in package.seen)
    assert len({raw for _, raw in timed}) == slots


@pytest.mark.parametrize("once_s", [1e-5, 2 * cpu_module.DEAR_S])
def test_a_pass_of_the_cpu_is_a_share_of_a_launch_that_repeats_it(
    once_s: float, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is timed in a sample, or at once since it takes long."""
    package, ticks = Moving(), itertools.count()
    monkeypatch.setattr(cpu_module, "cache_bytes", lambda: 1 << 18)
    monkeypatch.setattr(cpu_module, "time", SimpleNamespace(perf_counter=lambda: once_s * next(ticks)))
    package.before = lambda: next(ticks)
    package.repeats = lambda op, rung: 64  # type: ignore[method-assign]
    measured = Cpu(MOVING, cast(Package, package), [cell()], BUDGET, seed=3).measure(cell())
    assert once_s <= 64 * measured["seconds"] <= 2 * once_s  # the clock's own tick counts as well


def test_a_cold_figure_is_that_of_most_samples(device: Device) -> None:
    """One that another program disturbed does not count, nor the fastest alone."""
    gpu, package = gpu_of(device, cell())
    take, values = gpu.take, iter([3e-5, 1e-5, 2e-5])

    def taken(graph: Any, replays: int, nodes: int, samples: int, lead_in: tuple[Any, ...] = ()) -> Any:
        found = take(graph, replays, nodes, samples, lead_in)
        return found if lead_in else {**found, "seconds": [next(values) for _ in range(samples)]}

    gpu.take = taken  # type: ignore[method-assign]
    assert gpu.measure(cell())["seconds"] == pytest.approx(2 * package.seconds)
    assert not [*values], "these are all"


def test_the_cpu_gives_the_median() -> None:
    launches: Any = [SimpleNamespace(identity="who")]
    measured = cpu_module._measurement(launches, [4.0, 1.0, 2.0, 90.0, 3.0], 5)
    assert measured["seconds"] == 3.0
    assert measured["identity"] == "who"
    assert math.isclose(measured["quartiles_s"][0], 1.5)


# --- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_a_kernel_that_does_nothing_is_wrong(where: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a right kernel has left its output."""
    monkeypatch.setattr(cpu_module, "cache_bytes", lambda: 1 << 18)
    harness: Gpu | Cpu
    if where == "gpu":
        harness, package = gpu_of(device, cell())
    else:
        package = Moving()
        harness = Cpu(MOVING, cast(Package, package), [cell()], BUDGET, seed=3)
    harness.measure(cell())
    package.lazy = True
    with pytest.raises(WrongOutput, match=r"move/copy at \(4096,\) float32: 4096 of 4096 .*; 4096 never written"):
        harness.measure(cell())


def harness_of(where: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> tuple[Gpu | Cpu, Moving]:
    monkeypatch.setattr(cpu_module, "cache_bytes", lambda: 1 << 18)
    if where == "gpu":
        return gpu_of(device, cell())
    package = Moving()
    return Cpu(MOVING, cast(Package, package), [cell()], BUDGET, seed=3), package


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_what_adds_to_its_output_is_wrong_everywhere(
    where: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, package = harness_of(where, device, monkeypatch)
    package.adds = True
    with pytest.raises(WrongOutput, match=r"4096 of 4096 elements wrong.*; 0 never written"):
        harness.measure(cell())


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_what_is_right_over_the_first_buffers_alone_is_wrong(
    where: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One set of them all is checked after the figures were taken: which one, nobody knows before."""
    harness, package = harness_of(where, device, monkeypatch)
    places: list[int] = []

    def write(out: Any, source: Any) -> None:
        places.append(out.ctypes.data)
        if places[-1] == places[0]:
            out[...] = source

    package.lazy, package.rights = True, write
    chosen = iter((0, 5, 15))
    monkeypatch.setattr(secrets, "randbelow", lambda count: next(chosen) if count >= 16 else 0)
    harness.measure(cell())
    for at in (5, 15):
        places.clear()
        with pytest.raises(WrongOutput, match=f"4096 never written, over set {at} of its buffers, after it was timed$"):
            harness.measure(cell())


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_the_poison_differs_by_run_and_by_set_of_buffers(
    where: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[bytes] = set()
    for _ in range(4):
        harness, package = harness_of(where, device, monkeypatch)
        package.rights = lambda out, source: found.add(bytes(np.asarray(out[:1]))) if np.isnan(out[0]) else None
        harness.measure(cell())
    assert len(found) >= 6  # 2 checks in each of 4 runs
