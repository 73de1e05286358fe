"""The harness on a GPU: every cell is right, buffers rotate, clocks are those that the GPU has."""

import contextlib
import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import gpukernels
from benchmarks.project import PROJECT
from kernelwatch.plan.cells import CACHES, Cell, plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.timing.check import WrongOutput
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.record import Measurement
from tests.test_gpu_timing import cell

SMALL = {op: problem.shapes[:2] for op, problem in PROJECT.ops.items()}
SMALL["matmul"] = ((256, 256, 256), (64, 65536, 256))  # the latter since the rung constant takes no other
BUDGET = Budget(samples=5, sample_s=0.001)


def small_cells() -> list[Cell]:
    return [
        found
        for op, problem in PROJECT.ops.items()
        for found in plan(problem, "gpu")
        if found.type == "float32" and found.shape in SMALL[op]
    ]


def ragged_references() -> list[Cell]:
    return [
        Cell(op, name, "float32", problem.counted_shapes[-1], "cold", "gpu", reference=True)
        for op, problem in PROJECT.ops.items()
        for name in problem.lines
    ]


@functools.cache
def device() -> Gpu:
    return Gpu(PROJECT, PROJECT.adapt(gpukernels), small_cells() + ragged_references(), BUDGET, seed=1)


@functools.cache
def measurements() -> dict[str, Measurement]:
    """One of each small cell; without those that this GPU's cache is too small for."""
    found = {}
    for where in small_cells():
        with contextlib.suppress(NotHere, gpukernels.LimitError):
            found[where.key] = device().measure(where)
    return found


class Planted:
    """A package of kernels each of whose launches is made of another's: `times` launches of it, none for 0."""

    def __init__(self, times: int) -> None:
        self.times = times

    def repeats(self, op: str, rung: str) -> int:
        return 1

    def load(self, op: str, rung: str, type: str) -> "PlantedKernel":
        return PlantedKernel(gpukernels.load(op, rung, type), self.times)


@dataclass(frozen=True)
class PlantedKernel:
    kernel: gpukernels.Kernel
    times: int

    def bind(self, *inputs: Any, out: Any) -> gpukernels.Launch:
        launch = self.kernel.bind(*inputs, out=out)

        def run() -> None:
            for _ in range(self.times):
                launch()

        return gpukernels.Launch(out, "planted", run)


@pytest.mark.gpu
def test_every_rung_and_reference_line_is_right_and_takes_time() -> None:
    cold = {where.key for where in small_cells() if where.cache == "cold"}
    assert cold - set(measurements()) <= {where.key for where in small_cells() if where.rung == "constant"}  # too large
    for where, found in measurements().items():
        assert 0 < found["seconds"] < 0.1, where
        assert found["quartiles_s"][0] <= found["seconds"] <= found["quartiles_s"][1], where
        assert found["launches"] >= found["slots"], where
        assert all(value > 0 for value in found["canary_s"].values()), where
        assert set(found["canary_s"]) == {"memory", "compute"}


class Numbering:
    """A package of copies. Each launch counts itself in `counts` under the number of its set of buffers."""

    not_here: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        import cupy

        self.counts: Any = cupy.zeros(4096, cupy.int32)
        self.origin = self.set_bytes = 0
        once = "out = x; if (i == 0) atomicAdd(const_cast<int *>(&counts[number]), 1)"
        inputs = "float32 x, raw int32 counts, int32 number"
        self.kernel: Any = cupy.ElementwiseKernel(inputs, "float32 out", once, "numbering")

    def load(self, op: str, rung: str, type: str) -> "Numbering":
        return self

    def repeats(self, op: str, rung: str) -> int:
        return 1

    def bind(self, x: Any, *, out: Any) -> gpukernels.Launch:
        number = (out.data.ptr - self.origin) // self.set_bytes
        return gpukernels.Launch(out, "numbering", lambda: self.kernel(x, self.counts, number, out))


@pytest.mark.gpu
@pytest.mark.parametrize("cache", CACHES)
def test_launches_go_round_buffers_of_random_numbers(cache: str) -> None:
    """What the kernel itself saw: every set of buffers as often as any other."""
    package, where = Numbering(), cell(op="transpose", rung="copy", shape=(256, 256), cache=cache)
    gpu = Gpu(PROJECT, cast(Package, package), [where], BUDGET, seed=1)
    package.origin, package.set_bytes = gpu.arena.data.ptr, gpu._slot_bytes(where)[1]
    measured = gpu.measure(where)
    counts = package.counts.get()
    assert (counts > 0).sum() == measured["slots"] == gpu._slots(where)
    assert counts[: measured["slots"]].min() > counts[1:].max() / 2  # the first set has the checks besides
    inputs = [gpu._operands(where, slot)[0][0].get() for slot in range(measured["slots"])]
    assert all(0.5 < values.std() < 0.65 and abs(values.mean()) < 0.02 for values in inputs)  # uniform in [-1, 1)
    assert len({values.tobytes() for values in inputs}) == len(inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(("short", "arguments"), [("", ()), ("_short", (np.int32(4),))])
def test_numbers_of_float8_are_those_of_float32_cut_toward_zero(short: str, arguments: tuple[Any, ...]) -> None:
    import cupy

    count, gpu = 100_003, device()
    filled = {"fill": cupy.empty(count, np.float32), "fill_float8": cupy.empty(count, np.uint8)}
    with gpu.stream:
        for name, memory in filled.items():
            gpu.kernels[name + short]((64,), (256,), (memory, np.int64(count), np.uint64(7), *arguments))
        wide, codes = (memory.get() for memory in filled.values())
    sizes = np.arange(0x7F, dtype=np.uint8).view("float8_e4m3fn").astype(np.float32)
    cut = np.copysign(sizes[np.searchsorted(sizes, abs(wide), "right") - 1], wide)
    assert (codes.view("float8_e4m3fn").astype(np.float32) == cut).all()


def smallest_by_type() -> list[Cell]:
    """Of each op and element type the smallest cell."""
    found: dict[tuple[str, str], Cell] = {}
    for problem in PROJECT.problems:
        for one in plan(problem, "gpu"):
            if one.reference:
                continue
            known = found.setdefault((one.op, one.type), one)
            if math.prod(one.shape) < math.prod(known.shape):
                found[one.op, one.type] = one
    return list(found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("where", smallest_by_type(), ids=lambda where: where.key)
def test_the_first_process_looks_at_launches_of_every_type(where: Cell) -> None:
    """It copies the inputs to see whether they are written, checks the graph, and notes what a launch runs."""
    gpu = Gpu(PROJECT, PROJECT.adapt(gpukernels), [where], BUDGET, seed=0)
    not_here: tuple[type[Exception], ...] = (NotHere, *gpu.package.not_here)
    try:
        assert gpu.measure(where)["kernels"]
    except not_here as error:
        pytest.skip(str(error))


@pytest.mark.gpu
def test_hot_is_not_slower_than_cold() -> None:
    compared = 0
    for where in small_cells():
        hot, cold = (measurements().get(where.key.replace(where.cache, cache)) for cache in reversed(CACHES))
        if hot and cold:
            compared += 1
            assert hot["seconds"] <= 1.5 * cold["seconds"], where.key
    assert compared


QUANTUM_S = 0.15e-6  # half of what each kernel of a cold graph on an H200 takes longer after several graphs


@pytest.mark.gpu
def test_graphs_that_were_launched_before_slow_no_kernel_down() -> None:
    """One graph, timed after the graph of each of other launches."""
    cells = plan(PROJECT.op("matmul"), "gpu")
    mixed = random.Random(5).sample(cells, len(cells))  # an order in which one of the first ten slowed all down
    others = [where for where in mixed if not gpukernels.rung("matmul", where.rung).needs][:60]
    timed = next(where for where in cells if where.key == "matmul/pipelined_32x64 float32 256x256x256 cold")
    gpu = Gpu(PROJECT, PROJECT.adapt(gpukernels), [timed, *others], BUDGET, seed=1)

    def launches(where: Cell) -> list[Callable[[], object]]:
        kernel = gpu.package.load(where.op, where.rung, where.type)
        return [gpu._bind(where, kernel, slot)[0] for slot in range(gpu._slots(where))]

    with gpu.stream:
        gpu._fill(timed)
        rotating = launches(timed)
        rotating[0]()
        graph, levels = gpu.graph(rotating, len(rotating)), []
        not_here: tuple[type[Exception], ...] = (NotHere, *gpu.package.not_here)
        for where in others:
            try:
                gpu._fits(where)
                other = launches(where)[0]
            except not_here:
                continue
            other()
            captured = gpu._captured(where, other)
            assert captured
            captured.launch(gpu.stream)
            levels.append(min(gpu.replay(graph, 1, 3)[0]) / len(rotating))
    assert len(levels) > 40
    assert max(levels) - min(levels) < QUANTUM_S, levels


@pytest.mark.gpu
def test_clock64_is_a_clock_that_the_gpu_has() -> None:
    clocks = [found["clock64_mhz"] for found in measurements().values() if found["clock64_mhz"]]
    highest = device().nvml_facts["sm_clock_max_mhz"]
    if highest is None:
        pytest.skip(f"NVML does not say the highest SM clock: {device().nvml.why_not or 'not answered'}")
    assert clocks, "the two stamps were never on the same SM"
    assert min(clocks) > 100
    assert max(clocks) < 1.05 * highest


@pytest.mark.gpu
def test_facts_say_who_measured() -> None:
    facts = device().facts()
    assert facts["gpu"]
    assert facts["l2_bytes"] > 0
    assert facts["multiprocessors"] > 0
    assert any(name.startswith("cupy") for name in facts["packages"])


@pytest.mark.gpu
def test_a_kernel_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device(), "package", Planted(0))
    for op, shapes in SMALL.items():
        where = next(found for found in small_cells() if (found.op, found.shape) == (op, shapes[0]))
        (out,) = PROJECT.computes(op, where.rung).operands(where.shape, where.type).outputs
        size = math.prod(out.shape)
        said = rf"{op}/{where.rung} at .* float32: {size} of {size} elements wrong, .* {size} never written"
        with pytest.raises(WrongOutput, match=said):
            device().measure(where)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ragged_references(), ids=lambda where: where.key)
def test_reference_lines_write_all_of_a_ragged_shape(where: Cell) -> None:
    assert device().measure(where)["seconds"] > 0  # measure raises for a wrong one


@pytest.mark.gpu
def test_twice_the_launches_read_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    where = next(found for found in small_cells() if found.rung == "naive_read" and found.cache == "hot")
    ratios = []
    for _ in range(3):
        seconds = []
        for times in (1, 2):
            monkeypatch.setattr(device(), "package", Planted(times))
            seconds.append(device().measure(where)["seconds"])
        ratios.append(seconds[1] / seconds[0])
    assert 1.6 < sorted(ratios)[1] < 2.4, ratios
