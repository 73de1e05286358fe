"""Functions as people write them, measured on the CPU and on a fake GPU: results that are returned, inputs that are
updated or follow from others, arguments by name, tensors, shapes that a rung refuses; and what is said of wrong use."""

import dataclasses
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.analysis import counted
from kernelwatch.plan import checks
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.functions import _Function
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project
from kernelwatch.timing import cpu as cpu_module
from kernelwatch.timing import device as device_module
from kernelwatch.timing import gpu as gpu_module
from kernelwatch.timing import launch, nodes, replay, tensors, usage
from kernelwatch.timing.check import GUARD, GUARD_BYTES, WrongOutput
from kernelwatch.timing.cpu import Cpu
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.record import Measurement
from tests.fake_gpu import SILENT, Cupy, Device, Memory, MemoryHook

FLOAT = np.dtype("float32")
SHAPE = (64, 96)
BUDGET = Budget(samples=3, sample_s=2e-3)


def operands(shape: tuple[int, ...], type: str) -> Operands:
    return Operands((Operand(shape, np.dtype(type)),), (Operand(shape, np.dtype(type)),), {"alpha": 2.0})


SCALED = Computation(operands, lambda x, alpha: np.float32(alpha) * x)


@dataclasses.dataclass
class Functions:
    """A package of one function."""

    function: Callable[..., object]
    not_here: tuple[type[Exception], ...] = ()

    def load(self, op: str, rung: str, type: str) -> _Function:
        return _Function(self.function, "identity")

    def repeats(self, op: str, rung: str) -> int:
        return 1


def described(computation: Computation, device: str = "cpu", **rung: Any) -> tuple[Project, Cell]:
    own = Rung("own", cast(Any, device), ("float32",), **rung)
    problem = Problem("scale", computation, (own,), shapes=(SHAPE,), cpu_shapes=(SHAPE,))
    project = Project("mine", PROJECT.here, (problem,))
    return project, plan(problem, device)[0]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Measurement]:
    monkeypatch.setattr(cpu_module, "cache_bytes", lambda: 1 << 18)

    def measure(function: Callable[..., object], computation: Computation = SCALED, **rung: Any) -> Measurement:
        project, cell = described(computation, **rung)
        return Cpu(project, cast(Package, Functions(function)), [cell], BUDGET, 1).measure(cell)

    return measure


Measure = Callable[..., Measurement]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In the place of CuPy, NVML and the host's clock."""
    fake = Device()
    nvml = SimpleNamespace(
        others=lambda: None,
        neighbors=lambda: None,
        facts=lambda: {"sm_clock_max_mhz": None},
        state=lambda: SILENT,
        uncorrected_errors=lambda: None,
        why_not="",
    )
    clock = SimpleNamespace(monotonic=fake.now, perf_counter=fake.now, sleep=fake.sleep)
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, Cupy(fake)))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cast(Any, SimpleNamespace(compiler=SimpleNamespace())))
    monkeypatch.setattr(device_module, "Nvml", lambda bus: nvml)
    monkeypatch.setattr(nodes, "read", lambda graph: None)
    for module in (replay, gpu_module, launch):
        monkeypatch.setattr(module, "time", clock)
    return fake


@pytest.fixture
def on_gpu(device: Device) -> Measure:
    def measure(function: Callable[..., object], computation: Computation = SCALED, **rung: Any) -> Measurement:
        project, cell = described(computation, "gpu", **rung)
        return Gpu(project, cast(Package, Functions(function)), [cell], BUDGET, 0).measure(cell)

    return measure


BOTH = pytest.mark.parametrize("measure", ["on_cpu", "on_gpu"])


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], object]], None]:
    """Does something on the device of the test: at once, or when the fake GPU comes to it."""
    if request.node.callspec.params["measure"] == "on_cpu":
        return lambda work: cast(None, work())
    device = request.getfixturevalue("device")
    return lambda work: device.enqueue("work", (), 1e-5, work)


def measured(request: pytest.FixtureRequest, measure: str, *given: Any, **rung: Any) -> Measurement:
    return cast(Measurement, request.getfixturevalue(measure)(*given, **rung))


Run = Callable[[Callable[[], object]], None]


# --- results that are returned -------------------------------------------------------------------------------------


def new(shape: tuple[int, ...] = SHAPE, dtype: Any = FLOAT, fill: float = np.nan) -> Any:
    """A new array: of the fake GPU if it is in CuPy's place, else of the CPU."""
    made = np.full(shape, fill, dtype)
    return made.view(Memory) if isinstance(sys.modules.get("cupy"), Cupy) else made


@BOTH
def test_a_function_may_return_its_result(measure: str, run: Run, request: pytest.FixtureRequest) -> None:
    """It is called as it is, and nothing else is launched. The results of a turn over the buffers lie apart."""
    places: list[int] = []

    def scaled(x: Any, alpha: float) -> Any:
        out = new()
        places.append(out.ctypes.data)
        run(lambda: np.multiply(x, np.float32(alpha), out=out))
        return out

    one = measured(request, measure, scaled)
    turns = [set(places[at : at + one["slots"]]) for at in range(len(places))]
    assert max(map(len, turns)) >= min(one["slots"], len(places) - 2) > 1  # after the check and a warm-up
    assert one["seconds"] > 0
    assert "timed_by" not in one
    if measure == "on_gpu":
        device = request.getfixturevalue("device")
        assert {each.name for each in device.launches if each.replayed} >= {"work"}
        assert one["seconds"] == pytest.approx(1e-5)


@BOTH
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: None, r"has no parameter out and returned None; right is float32 \(64, 96\)"),
        (lambda x: 3.0, r"has no parameter out and returned float; right is"),
        (lambda x: (new(), new()), r"has no parameter out and returned (\w+) and \1; right is float32 \(64, 96\)"),
        (lambda x: new((96, 64)), r"returned float32 \(96, 64\); right is float32 \(64, 96\)"),
        (lambda x: new(dtype="float64"), r"returned float64 \(64, 96\); right is float32 \(64, 96\)"),
        (lambda x: x, r"returned memory of its input x; right is a new array"),
        (lambda x: x.T.T[::-1], r"returned memory of its input x; right is a new array"),
        (lambda x: new(), r"at \(64, 96\) float32: 6144 of 6144 elements wrong"),
    ],
)
def test_what_is_returned_wrongly_is_said(
    measure: str, result: Callable[[Any], object], said: str, run: Run, request: pytest.FixtureRequest
) -> None:
    def returns(x: Any, alpha: float) -> object:
        run(lambda: None)
        return result(x)

    with pytest.raises(WrongOutput, match=f"^scale/own {said}"):
        measured(request, measure, returns)


def written_after(out: Any) -> Any:
    """The element that would follow an output."""
    return np.lib.stride_tricks.as_strided(out.reshape(-1).view(np.ndarray), (out.size + 1,))[-1:]


@BOTH
def test_what_is_written_after_the_output_is_said(measure: str, run: Run, request: pytest.FixtureRequest) -> None:
    def beyond(x: Any, out: Any, alpha: float) -> None:
        def work() -> None:
            np.multiply(x, np.float32(alpha), out=out)
            written_after(out)[...] = 1

        run(work)

    with pytest.raises(WrongOutput, match=r"^scale/own wrote 4 of the 4096 bytes after its output$"):
        measured(request, measure, beyond)


def test_what_a_later_run_writes_after_the_output_is_said(on_cpu: Measure) -> None:
    """And no run finds in its inputs what was written there for the check of another set of buffers."""
    runs: list[int] = []

    def later(x: Any, out: Any, alpha: float) -> None:
        np.multiply(x, np.float32(alpha), out=out)
        runs.append(int((x.view(np.uint8) == GUARD).all(axis=-1).sum()))
        if len(runs) > 1:
            written_after(out)[...] += 1

    with pytest.raises(
        WrongOutput, match=r"wrote [34] of the 4096 bytes after its output, over set \d+ of its buffers"
    ):
        on_cpu(later)
    assert len(runs) > 2
    assert not any(runs)


def test_an_input_that_only_later_launches_write_is_said(on_gpu: Measure, device: Device) -> None:
    """As by a counter of launches: the first run is right, and later outputs fit the inputs that they spoiled."""
    runs: list[int] = []

    def later(x: Any, out: Any, alpha: float) -> None:
        def work() -> None:
            runs.append(1)
            if len(runs) > 1:
                x[...] = 0
            np.multiply(x, np.float32(alpha), out=out)

        device.enqueue("work", (), 1e-5, work)

    with pytest.raises(WrongOutput, match=r"wrote its input x.*, over set \d+ of its buffers, after it was timed$"):
        on_gpu(later)


def test_an_input_that_only_a_graph_writes_is_said(on_gpu: Measure, device: Device) -> None:
    """A launch can ask whether its stream is being captured."""

    def captured(x: Any, out: Any, alpha: float) -> None:
        lazy = device.captured is not None

        def work() -> None:
            if lazy:
                x[...] = 0
            np.multiply(x, np.float32(alpha), out=out)

        device.enqueue("work", (), 1e-5, work)

    with pytest.raises(WrongOutput, match="wrote its input x"):
        on_gpu(captured)


def test_an_input_that_is_written_by_a_slow_launch_is_said(on_gpu: Measure, device: Device) -> None:
    """Its checked run is its only sample, so that nothing is left to look at afterwards."""

    def slow(x: Any, out: Any, alpha: float) -> None:
        def work() -> None:
            runs.append(1)
            x[...] *= len(runs) > 1  # the output fits what it left of the input
            np.multiply(x, np.float32(alpha), out=out)

        device.enqueue("work", (), 0.1, work)

    runs: list[int] = []
    with pytest.raises(WrongOutput, match="wrote its input x"):
        on_gpu(slow)
    runs.append(1)  # the first run of this process leaves it alone, and there is no other one
    assert on_gpu(slow)["launches"] == 1


class Temporary:
    """Memory of the fake GPU, given back when nobody refers to it."""

    def __init__(self) -> None:
        if MemoryHook.active:
            MemoryHook.active.malloc_postprocess(mem_ptr=id(self), size=1000)

    def __del__(self) -> None:
        if MemoryHook.active:
            MemoryHook.active.free_preprocess(mem_ptr=id(self))


def test_what_cannot_be_captured_allocates_what_one_launch_does(on_gpu: Measure, device: Device) -> None:
    """The traceback of a capture that fails would hold what the launch has allocated in it."""

    def synchronizing(x: Any, out: Any, alpha: float) -> None:
        _temporary = Temporary()
        if device.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        device.enqueue("work", (), 1e-5, lambda: np.multiply(x, np.float32(alpha), out=out))

    assert on_gpu(synchronizing)["peak_allocated_bytes"] == 1000


def test_what_can_no_longer_be_captured_is_not_taken_for_checked(on_gpu: Measure, device: Device) -> None:
    """Of what is returned, only the graph that is captured at last is checked."""
    captures: list[int] = []
    total = 10**9

    def fine(x: Any, alpha: float) -> Any:
        out = new()
        if device.captured is not None:
            captures.append(1)
            if len(captures) > total:
                raise RuntimeError("out of memory")
        device.enqueue("work", (), 1e-5, lambda: np.multiply(x, np.float32(alpha), out=out))
        return out

    on_gpu(fine)
    total = len(captures) - 1
    captures.clear()
    with pytest.raises(WrongOutput, match="was captured in a CUDA graph, and cannot be captured once more"):
        on_gpu(fine)


def test_what_runs_while_it_is_captured_is_wrong(on_gpu: Measure, device: Device) -> None:
    """It runs on another stream, of which neither the events nor a graph know. No replay is needed to see that."""

    def elsewhere(x: Any, alpha: float, out: Any) -> None:
        if device.captured is not None:
            out[:7] = 0
        device.enqueue("work", (), 1e-5, lambda: np.multiply(x, np.float32(alpha), out=out))

    said = "^scale/own wrote its output while it was captured in a CUDA graph: not all of it runs on the given stream$"
    with pytest.raises(WrongOutput, match=said):
        on_gpu(elsewhere)


def test_a_graph_of_what_is_returned_writes_it_anew(on_gpu: Measure, device: Device) -> None:
    """A launch of which the graph does only a part is wrong, though the first run was right."""

    def partly(x: Any, alpha: float) -> Any:
        out = new()
        if device.captured is None:
            np.multiply(x, np.float32(alpha), out=out)
        else:
            out[...] = np.float32(alpha) * x  # by the host, once
        device.enqueue("work", (), 1e-5)
        return out

    with pytest.raises(WrongOutput, match="when a CUDA graph of it is replayed"):
        on_gpu(partly)


# --- what is wrong -------------------------------------------------------------------------------------------------


@BOTH
def test_an_array_that_is_returned_beside_out_is_said(measure: str, run: Run, request: pytest.FixtureRequest) -> None:
    def returns(x: Any, out: Any, alpha: float) -> Any:
        run(lambda: None)
        return np.float32(alpha) * x

    with pytest.raises(WrongOutput, match=r"^scale/own returned an array and left out untouched: "):
        measured(request, measure, returns)


@BOTH
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_input_that_is_written_is_said(measure: str, late: bool, run: Run, request: pytest.FixtureRequest) -> None:
    """Before the output is computed from it, or after: in one case the output fits the input, in the other it does
    not."""

    def clipped(x: Any, out: Any, alpha: float) -> None:
        def work() -> None:
            if not late:
                np.maximum(x, 0, out=x)
            np.multiply(x, np.float32(alpha), out=out)
            if late:
                np.maximum(x, 0, out=x)

        run(work)

    with pytest.raises(WrongOutput, match=r"^scale/own wrote its input x: .* Operand\(\.\.\., updated=True\)$"):
        measured(request, measure, clipped)


def test_inputs_are_compared_to_their_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, of which the last is not whole; a NaN equals itself."""
    monkeypatch.setattr(usage, "PIECE_BYTES", 16)
    before = np.full((3, 7), np.nan, np.float32)
    assert usage.same_bits(before, before.copy(), np)
    for at in (0, 4, 20):
        after = before.copy()
        after.reshape(-1)[at] = 1
        assert not usage.same_bits(before, after, np)


# --- inputs that are updated ---------------------------------------------------------------------------------------


def updating(shape: tuple[int, ...], type: str) -> Operands:
    x = Operand(shape, FLOAT, updated=True)
    return Operands((x, Operand(shape, FLOAT)), (Operand(shape, FLOAT),), {"alpha": -1.0})


UPDATED = Computation(updating, lambda x, y, alpha: (x + y, np.float32(alpha) * x))
IN_PLACE = Computation(lambda shape, type: Operands((Operand(shape, FLOAT, updated=True),), ()), lambda x: -x)


@BOTH
def test_the_reference_gets_what_was_there_before(measure: str, run: Run, request: pytest.FixtureRequest) -> None:
    def function(x: Any, y: Any, out: Any, alpha: float) -> None:
        run(lambda: (np.add(x, y, out=out), np.multiply(x, np.float32(alpha), out=x)))

    assert measured(request, measure, function, UPDATED)["seconds"] > 0
    assert IN_PLACE.bytes_moved((8,), "float32") == 2 * 32

    def forgets(x: Any, y: Any, out: Any, alpha: float) -> None:
        run(lambda: np.add(x, y, out=out))

    with pytest.raises(WrongOutput, match=r"6144 of 6144 elements of x wrong"):
        measured(request, measure, forgets, UPDATED)

    def writes_both(x: Any, y: Any, out: Any, alpha: float) -> None:
        run(lambda: (np.add(x, y, out=out), np.multiply(x, np.float32(alpha), out=x), np.negative(y, out=y)))

    with pytest.raises(WrongOutput, match="wrote its input y"):
        measured(request, measure, writes_both, UPDATED)


@BOTH
def test_a_function_may_have_no_output_but_what_it_updates(
    measure: str, run: Run, request: pytest.FixtureRequest
) -> None:
    def negate(x: Any) -> Any:
        run(lambda: np.negative(x, out=x))
        return x  # as those of PyTorch whose name ends in _

    assert measured(request, measure, negate, IN_PLACE)["seconds"] > 0
    with pytest.raises(WrongOutput, match="6144 of 6144 elements of x wrong"):
        measured(request, measure, lambda x: run(lambda: None), IN_PLACE)


@BOTH
def test_what_overflows_in_repetition_is_said(measure: str, run: Run, request: pytest.FixtureRequest) -> None:
    growing = Computation(IN_PLACE.operands, lambda x: np.float32(1e30) * x)

    def grow(x: Any) -> None:
        with np.errstate(over="ignore"):
            run(lambda: np.multiply(x, np.float32(1e30), out=x))

    with np.errstate(over="ignore"), pytest.raises(WrongOutput, match=r"^scale/own: x, .* is not finite"):
        measured(request, measure, grow, growing)


# --- inputs that follow from others, arguments by name -------------------------------------------------------------


def largest(random: Any, shape: tuple[int, ...], dtype: Any, before: list[Any]) -> Any:
    (x,) = before
    assert isinstance(x, np.ndarray)
    return x.max(axis=1)


def normalizing(shape: tuple[int, ...], type: str) -> Operands:
    return Operands(
        (Operand(shape, FLOAT), Operand(shape[:1], FLOAT, largest, name="top")), (Operand(shape, FLOAT),), {"one": 1}
    )


NORMALIZED = Computation(normalizing, lambda x, *, top, one: x - top[:, None] * one)


@BOTH
@pytest.mark.parametrize("bits", [None, (5, 5)])
def test_an_input_follows_from_another_in_every_set_of_buffers(
    measure: str, bits: tuple[int, ...] | None, run: Run, request: pytest.FixtureRequest
) -> None:
    """The function and the reference get it by its name."""
    differ = []

    def shifted(x: Any, *, top: Any, out: Any, one: int) -> None:
        def work() -> None:
            differ.append(not np.array_equal(top, x.max(axis=1)))
            np.subtract(x, top[:, None], out=out)

        run(work)

    exact = dataclasses.replace(NORMALIZED, exact_bits=lambda type: bits) if bits else NORMALIZED
    one = measured(request, measure, shifted, exact)
    assert one["slots"] > 1
    assert differ
    assert not any(differ)
    x, top = checks.inputs(normalizing(SHAPE, "float32"), np.random.default_rng(0))
    assert np.array_equal(top, x.max(axis=1))


def test_values_that_take_nothing_more_are_called_as_ever() -> None:
    def own(random: Any, shape: tuple[int, ...], dtype: Any, scale: float = 2) -> Any:
        return np.full(shape, scale, dtype)

    for values in (own, lambda *given: np.ones(given[1], given[2])):
        operand = Operand((3,), FLOAT, values)
        assert not operand.derived
        assert operand.made(np.random.default_rng(0), [1]).shape == (3,)


# --- tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["float32", "float16", "bfloat16", "float8_e4m3fn", "uint8", "uint16", "complex128"])
def test_a_tensor_is_the_same_memory(type: str) -> None:
    torch = pytest.importorskip("torch", reason="makes tensors on the CPU")
    own = np.arange(12).astype(np.dtype(type)).reshape(3, 4)
    given = tensors.tensor(own)
    assert given.dtype == getattr(torch, type)
    assert given.data_ptr() == own.ctypes.data
    assert tuple(given.shape) == (3, 4)
    back = tensors.array(given, np)
    assert back.dtype == own.dtype
    assert back.ctypes.data == own.ctypes.data
    assert tensors.array(given.T, np).strides == own.T.strides


def test_a_rung_may_take_tensors(on_cpu: Measure) -> None:
    torch = pytest.importorskip("torch", reason="measures PyTorch on the CPU")
    kinds = set()

    def fills(x: Any, out: Any, alpha: float) -> None:
        kinds.update({type(x), type(out)})
        torch.mul(x, alpha, out=out)

    def returns(x: Any, alpha: float) -> Any:
        kinds.add(type(x))
        return x * alpha

    for function in (fills, returns):
        assert on_cpu(function, arrays="torch")["seconds"] > 0
    assert kinds == {torch.Tensor}
    with pytest.raises(WrongOutput, match="returned memory of its input x"):
        on_cpu(lambda x, alpha: x.view(-1).view(x.shape), arrays="torch")
    with pytest.raises(WrongOutput, match=r"returned float64 \(64, 96\); right is float32"):
        on_cpu(lambda x, alpha: x.double() * alpha, arrays="torch")
    with pytest.raises(WrongOutput, match="wrote its input x"):
        on_cpu(lambda x, alpha: x.clamp_(min=0) * alpha, arrays="torch")
    assert on_cpu(lambda x: x.neg_(), IN_PLACE, arrays="torch")["seconds"] > 0


def test_the_version_of_pytorch_is_a_condition_of_its_rungs() -> None:
    for arrays, expected in (("torch", ("torch",)), ("", ())):
        assert usage.conditions(described(SCALED, arrays=arrays)[0]) == expected


@BOTH
def test_without_pytorch_a_rung_of_tensors_is_not_here(
    measure: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotHere, match="own takes tensors of PyTorch, which cannot be imported: "):
        measured(request, measure, lambda x, out, alpha: None, arrays="torch")


# --- shapes that a rung takes --------------------------------------------------------------------------------------


def even(shape: tuple[int, ...], type: str) -> bool | str:
    return True if shape[0] % 128 == 0 else f"the rows must be a multiple of 128, got {shape[0]}"


@BOTH
@pytest.mark.parametrize("takes", [even, lambda shape, type: shape[0] % 128 == 0], ids=["reason", "none"])
def test_a_shape_that_a_rung_refuses_is_not_here(
    measure: str, takes: Callable[..., bool | str], request: pytest.FixtureRequest
) -> None:
    """It is planned, so that it has a place and a reason; nothing of it is allocated."""
    said = "the rows must be a multiple of 128, got 64" if takes is even else "scale/own does not take the shape 64x96"
    with pytest.raises(NotHere, match=f"^{said}$"):
        measured(request, measure, lambda x, out, alpha: None, takes=takes)
    project, cell = described(SCALED, takes=takes)
    gone = Cpu(project, cast(Package, Functions(print)), [cell], BUDGET, 0)
    assert gone.arena.nbytes == GUARD_BYTES
    (problem,) = project.problems
    assert not problem.takes(problem.rungs[0], SHAPE, "float32")
    assert problem.takes(problem.rungs[0], (128, 3), "float32")


def test_the_emulator_asks_what_a_rung_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it checks it at shapes of its own, and before it counts it."""
    asked: list[tuple[int, ...]] = []

    def takes(shape: tuple[int, ...], type: str) -> str:
        asked.append(shape)
        return "no such tile"

    problem = PROJECT.op("transpose")
    rung = dataclasses.replace(problem.rung("padded"), takes=takes)
    project = dataclasses.replace(PROJECT, problems=(dataclasses.replace(problem, rungs=(rung,)),))
    cells = counted.plan(project.op("transpose"))
    assert {cell.shape for cell in cells} == set(problem.counted_shapes)
    with pytest.raises(NotHere, match="no such tile"):
        counted.Counter(project, cast(Package, None)).measure(cells[0])
    assert asked == [cells[0].shape]
