"""kernelwatch.measure and kernelwatch.compare on a fake GPU that records what was asked of it, and on a real one."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import kernelwatch
from kernelwatch.api import capture, measuring, trials, turns
from kernelwatch.api import gpu as gpu_module
from kernelwatch.system.files import Busy, locked
from kernelwatch.system.options import Options
from kernelwatch.timing import replay
from kernelwatch.timing.replay import REST_S, Replayer
from tests.fake_gpu import CLOCK_MHZ, ENQUEUE_S, SILENT, Cupy, Device, Memory, MemoryHook

# --- a fake GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """In the place of CuPy, NVML and the host's clock."""
    fake = Device()
    nvml = SimpleNamespace(
        facts=lambda: {"sm_clock_max_mhz": None, "driver": "580"},
        state=lambda: SILENT,
        processes=list,
        uncorrected_errors=lambda: None,
    )
    clock = SimpleNamespace(monotonic=fake.now, perf_counter=fake.now, sleep=fake.sleep)
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, Cupy(fake)))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cast(Any, SimpleNamespace(compiler=SimpleNamespace())))
    monkeypatch.setattr(gpu_module, "Nvml", lambda bus: nvml)
    for module in (replay, gpu_module, turns):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(capture, "_nodes", lambda graph: len(graph.work))
    measuring._gpu.cache_clear()
    yield fake
    measuring._gpu.cache_clear()


def array(count: int = 4096) -> Any:
    return np.arange(count, dtype=np.float32).view(Memory)


def copying(device: Device, seconds: float = 1e-5) -> Any:
    """A copy that takes some seconds on the device, and says where its output was."""

    def copy(source: Any, out: Any) -> None:
        device.enqueue("copy", (out.ctypes.data, source.ctypes.data), seconds, lambda: np.copyto(out, source))

    return copy


def replayed(device: Device, name: str = "copy") -> list[Any]:
    """The first arguments of the launches in graphs."""
    return [one.arguments[0] for one in device.launches if one.name == name and one.replayed]


def test_a_trial_compares_outputs_and_times(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(source: Any, out: Any) -> None:
        with pytest.raises(Busy), locked(Path(Options.here().locks, "kernelwatch-0.lock")):
            pytest.fail("another run could measure beside this call")
        copying(device, 2e-5)(source, out)

    def wrong(source: Any, out: Any) -> None:
        device.enqueue("copy", (out.ctypes.data, source.ctypes.data), 1e-6, lambda: np.copyto(out, source + 1))

    own = ModuleType("functions_of_a_fake")
    vars(own).update(slow=slow, fast=copying(device), wrong=wrong, arrays=lambda: (array(), 0 * array()))
    monkeypatch.setitem(sys.modules, own.__name__, own)
    setting = trials.Setting(f"{own.__name__}:arrays", 0.0, 0.0, "cold", None, 0.1, None)
    names = [f"{own.__name__}:{name}" for name in ("slow", "fast", "wrong")]
    for first in (False, True):
        found = trials.one_trial(names[0], names[1], setting, first)
        assert (found.device, found.refused) == ("gpu", "")
        assert np.exp(found.log) == pytest.approx(0.5)
        assert found.seconds == pytest.approx((2e-5, 1e-5))
    refused = trials.one_trial(names[0], names[2], setting, False)
    assert refused.refused == "array argument 1: 4096 of 4096 elements wrong, the first at [0]: 1.0 is not 0.0"
    assert refused.compared is None


def test_a_call_takes_as_long_as_its_launch(device: Device) -> None:
    found = kernelwatch.measure(copying(device), array(), array(), flops=4096)
    assert found.seconds == pytest.approx(1e-5)
    assert found.interval == pytest.approx((1e-5, 1e-5))
    assert found.method == "graph"
    assert found.bytes == 2 * 4 * 4096
    assert found.bytes_per_s == pytest.approx(2 * 4 * 4096 / 1e-5)
    assert found.flops_per_s == pytest.approx(4096 / 1e-5)
    assert found.clock_mhz == pytest.approx(CLOCK_MHZ, rel=0.01)
    assert found.warnings == ()
    assert len(found.samples) >= 3
    assert found.device == "none"
    assert found.conditions["driver"] == "580"


def test_each_round_times_its_graph_as_the_first_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200 all kernels are slower once a process has launched several graphs, until the next sort."""
    take, rounds = Replayer.take, list[Any]()

    def watched(self: Replayer, graph: Any, *how: Any) -> Any:
        found = take(self, graph, *how)
        rounds.append(device.graphs[:])
        return found

    monkeypatch.setattr(Replayer, "take", watched)
    kernelwatch.compare(copying(device), copying(device, 2e-5), array(), array())
    assert len(rounds) > 6
    assert {len(graphs) for graphs in rounds} == {1}


def test_a_candidate_of_many_short_kernels_leaves_out_no_work(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides that, a single turn over fresh numbers, is timed as the first graph, too."""
    device.later_s = 0.35e-6

    def chain(source: Memory, out: Memory) -> None:
        for at in range(8):
            done = (lambda: np.copyto(out, source)) if at == 7 else lambda: None
            device.enqueue("part", (out.ctypes.data, source.ctypes.data), 1e-6, done)

    own = ModuleType("functions_of_a_fake")
    vars(own).update(original=copying(device, 1e-5), chain=chain, arrays=lambda: (array(), 0 * array()))
    monkeypatch.setitem(sys.modules, own.__name__, own)
    setting = trials.Setting(f"{own.__name__}:arrays", 0.0, 0.0, "cold", None, 0.1, None)
    found = trials.one_trial(f"{own.__name__}:original", f"{own.__name__}:chain", setting, False)
    assert not found.refused
    assert found.seconds == pytest.approx((1e-5, 8e-6), rel=0.05)


def test_cold_copies_are_larger_than_the_cache_and_new_in_each_round(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    allocate = gpu_module.Gpu.allocate

    def counted(self: gpu_module.Gpu, size: int) -> Any:
        made.append(size)
        return allocate(self, size)

    monkeypatch.setattr(gpu_module.Gpu, "allocate", counted)
    found = kernelwatch.measure(copying(device), array(), array())
    places, sets = replayed(device), found.conditions["copies"]
    assert sets * 2 * 4 * 4096 >= 4 * device.l2_bytes
    last = places[-sets:]
    assert len(set(last)) == sets
    assert places[-2 * sets : -sets] == last  # a round goes round and round
    assert len(made) == len(found.samples)


def test_hot_copies_stay_in_the_cache(device: Device) -> None:
    found = kernelwatch.measure(copying(device), array(), array(), cache="hot")
    assert 2 <= found.conditions["copies"] <= device.l2_bytes / 2 / (2 * 4 * 4096)
    with pytest.raises(kernelwatch.MeasureError, match="do not fit in half of the cache"):
        kernelwatch.measure(copying(device), array(1 << 16), array(1 << 16), cache="hot")


def test_a_long_call_is_a_sample_of_its_own(device: Device) -> None:
    found = kernelwatch.measure(copying(device, 0.01), array(), array())
    assert found.seconds == pytest.approx(0.01)
    assert found.conditions["calls"] <= 4 * len(found.samples)


def test_what_cannot_be_captured_is_timed_between_events(device: Device) -> None:
    copy = copying(device, 1e-7)

    def refuses(source: Any, out: Any) -> None:
        if device.captured is not None:
            raise RuntimeError("not while capturing\nas the manual says")
        copy(source, out)

    found = kernelwatch.measure(refuses, array(), array())
    assert found.method == "events"
    assert found.seconds == pytest.approx(ENQUEUE_S, rel=0.02)  # Python launches no faster
    assert len(found.warnings) == 1
    assert "cannot be captured in a CUDA graph (RuntimeError: not while capturing)" in found.warnings[0]


def test_a_call_that_allocates_is_found(device: Device) -> None:
    copy = copying(device)

    def allocates(source: Any, out: Any) -> None:
        copy(source, out)
        for size in (1 << 20, 1 << 19):
            if MemoryHook.active:
                MemoryHook.active.malloc_postprocess(device_id=0, size=size, mem_size=2 * size, mem_ptr=size, pmem_id=1)

    found = kernelwatch.measure(allocates, array(), array())
    assert found.warnings == ("it allocates 1.5 MiB in each call",)
    assert found.peak_allocated_bytes == 3 << 19
    assert found.method == "graph"


def test_a_call_that_waits_for_the_gpu_is_found(device: Device) -> None:
    copy = copying(device)

    def waits(source: Any, out: Any) -> None:
        copy(source, out)
        device.synchronize()

    (warning,) = kernelwatch.measure(waits, array(), array()).warnings
    assert warning.startswith("it waits for the GPU in each call")


def test_a_call_that_enqueues_nothing_is_found(device: Device) -> None:
    found = kernelwatch.measure(lambda source, out: device.sleep(1e-3), array(), array())
    assert found.method == "host"
    assert found.seconds == pytest.approx(1e-3, rel=0.02)
    assert found.warnings[0].startswith("it enqueues nothing on the current stream")


def test_pytorch_that_the_first_call_imports_launches_on_the_stream_that_is_timed(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's and Triton's launches go to PyTorch's current stream, which nothing else would make this one."""
    current: list[int] = []

    @contextmanager
    def stream(handle: int) -> Iterator[None]:
        current.append(handle)
        yield
        current.pop()

    def no_graph(**_: object) -> None:
        raise TypeError("not in this version")

    cuda = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: False, stream=stream, ExternalStream=lambda handle: handle
    )
    torch = SimpleNamespace(cuda=SimpleNamespace(**vars(cuda), graph_pool_handle=lambda: None, CUDAGraph=no_graph))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    copy, seen = copying(device), list[int]()

    def imports_torch(source: Any, out: Any) -> None:
        seen.append(len(current))
        monkeypatch.setitem(sys.modules, "torch", cast(Any, torch))
        copy(source, out)

    kernelwatch.measure(imports_torch, array(), array(), device="gpu")
    assert seen[0] == 0
    assert set(seen[1:]) == {1}
    assert current == []


def test_lowered_clocks_are_said(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds under a limit count only if most are under one."""
    heat, power = 0x8, 0x4
    reason, every = heat, 3
    takes: list[int] = []

    def state() -> Any:
        takes.append(1)
        return {**SILENT, "event_reasons": 0 if len(takes) % every else reason}

    pauses: list[float] = []
    monkeypatch.setattr(vars(replay)["time"], "sleep", pauses.append)
    kernelwatch.measure(copying(device), array(), array())
    monkeypatch.setattr(measuring._gpu(0).replayer.nvml, "state", state)
    found = kernelwatch.measure(copying(device), array(), array())
    assert pauses
    assert found.warnings == ()  # after a rest the limit was gone
    every = 1
    found = kernelwatch.measure(copying(device), array(), array())
    rounds = len(found.samples)
    assert found.warnings == (f"the clocks were lowered in {rounds} of {rounds} rounds (hardware slowdown)",)
    reason = power  # by its own work: one rest a round shows it
    pauses.clear()
    found = kernelwatch.measure(copying(device), array(), array())
    rounds = len(found.samples)
    assert found.warnings == (f"the clocks were lowered in {rounds} of {rounds} rounds (software power cap)",)
    assert pauses == pytest.approx([REST_S] * rounds, rel=1e-3)  # but for what the host prepares meanwhile


def test_others_on_the_gpu_are_said(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernelwatch.measure(copying(device), array(), array())
    own = [{"pid": os.getpid(), "memory_bytes": 1}, {"pid": os.getppid(), "memory_bytes": 1}]
    nvml = measuring._gpu(0).replayer.nvml
    monkeypatch.setattr(nvml, "processes", lambda: own)
    assert kernelwatch.measure(copying(device), array(), array()).warnings == ()
    monkeypatch.setattr(nvml, "processes", lambda: [*own, {"pid": 0, "memory_bytes": 1}])
    assert kernelwatch.measure(copying(device), array(), array()).warnings == ("other processes use the GPU (0)",)


def test_compiling_takes_no_time_from_the_rounds(device: Device) -> None:
    copy = copying(device)
    calls: list[int] = []

    def compiled(source: Any, out: Any) -> None:
        if not calls:
            device.sleep(10.0)
        calls.append(1)
        copy(source, out)

    found = kernelwatch.measure(compiled, array(), array())
    assert len(found.samples) > 10
    assert found.conditions["took_s"] > 10


def test_it_waits_for_a_run_on_the_same_gpu(device: Device) -> None:
    """And says so, by a warning, which is an error in these tests."""
    path, said = Path(Options.here().locks, "kernelwatch-0.lock"), f"kernelwatch waits for process {os.getpid()} in "
    with locked(path), pytest.raises(UserWarning, match=said):
        kernelwatch.measure(copying(device), array(), array())
    kernelwatch.measure(copying(device), array(), array())


def test_the_clocks_are_raised_after_a_rest(device: Device) -> None:
    kernelwatch.measure(copying(device), array(), array())
    for rest_s, raised in ((0.0, False), (10.0, True)):
        device.sleep(rest_s)
        before, began = len(device.launches), device.host_s
        kernelwatch.measure(copying(device), array(), array())
        first = next(one for one in device.launches[before:] if one.name == "copy")
        assert bool(first.at_s - began > 0.1) is raised


@pytest.mark.parametrize(("seconds", "verdict"), [(1e-5, "same within 1 %"), (1.02e-5, "slower"), (0.5e-5, "faster")])
def test_turns_on_the_same_copies(device: Device, seconds: float, verdict: str) -> None:
    found = kernelwatch.compare(copying(device), copying(device, seconds), array(), array())
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(seconds / 1e-5, rel=1e-6)
    assert len(found.samples) == 4  # the first look decides
    assert found.a.method == found.b.method == "graph"


def test_a_gpu_without_the_arrays(device: Device) -> None:
    far = array()
    far.__class__ = type("Far", (Memory,), {"__dlpack_device__": lambda self: (2, 1)})
    with pytest.raises(kernelwatch.MeasureError, match="an array is on GPU 1, but the current device is GPU 0"):
        kernelwatch.measure(copying(device), far)


# --- a real GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def own_warnings(found: kernelwatch.Measured) -> list[str]:
    """Without those of what else happens on the GPU, such as another test."""
    return [text for text in found.warnings if not text.startswith(("the clocks", "other processes"))]


@functools.cache
def real_copy() -> Any:
    import cupy

    return cupy.ElementwiseKernel("float32 source", "float32 out", "out = source", "copy")


@pytest.mark.gpu
def test_a_kernel_of_cupy(cp: Any) -> None:
    source, out = cp.arange(1 << 18, dtype=cp.float32), cp.zeros(1 << 18, cp.float32)
    cold = kernelwatch.measure(real_copy(), source, out)
    assert (cold.method, cold.cache, own_warnings(cold)) == ("graph", "cold", [])
    assert 5e-7 < cold.seconds < 1e-4
    assert cold.bytes == 2 << 20
    assert cold.interval[0] < cold.seconds < cold.interval[1] < 1.2 * cold.seconds
    assert cold.clock_mhz is None or 100 < cold.clock_mhz < 4000
    assert (out == 0).all()
    assert kernelwatch.measure(real_copy(), source, out, cache="hot").seconds < 1.2 * cold.seconds


@pytest.mark.gpu
def test_twice_the_kernels_take_twice_the_time(cp: Any) -> None:
    source, out = cp.arange(1 << 22, dtype=cp.float32), cp.zeros(1 << 22, cp.float32)

    def twice(source: Any, out: Any) -> None:
        real_copy()(source, out)
        real_copy()(source, out)

    found = kernelwatch.compare(real_copy(), twice, source, out)
    assert found.verdict == "slower"
    assert 1.3 < found.ratio < 2.5  # the second finds some of the first in the cache
    same = kernelwatch.compare(real_copy(), real_copy(), source, out)
    assert same.verdict in ("same within 1 %", "cannot tell")  # other tests may use the GPU


@pytest.mark.gpu
def test_what_a_real_call_does_besides_is_found(cp: Any) -> None:
    source, out = cp.arange(1 << 20, dtype=cp.float32), cp.zeros(1 << 20, cp.float32)
    other = cp.cuda.Stream(non_blocking=True)

    def waits(source: Any, out: Any) -> float:
        real_copy()(source, out)
        return float(out[0])

    def elsewhere(source: Any, out: Any) -> None:
        with other:
            real_copy()(source, out)

    def forks(source: Any, out: Any, join: bool = True) -> None:
        other.wait_event(cp.cuda.get_current_stream().record())
        with other:
            real_copy()(source, out)
        if join:
            cp.cuda.get_current_stream().wait_event(other.record())

    def raises(source: Any, out: Any) -> None:
        raise ValueError("no such shape")

    for function, method, said in (
        (lambda source, out: source + 1, "graph", ["it allocates 4 MiB in each call"]),
        (waits, "events", ["it waits for the GPU", "it cannot be captured in a CUDA graph ("]),
        (elsewhere, "host", ["it enqueues nothing on the current stream"]),
        (forks, "graph", []),
        (functools.partial(forks, join=False), "host", ["it does some of its work on another stream"]),
        (lambda source, out: cp.dot(source[:64].reshape(8, 8), source[:64].reshape(8, 8), out=out[:64].reshape(8, 8)),
         "events", ["it cannot be captured in a CUDA graph (NotImplementedError: calling cuBLAS API"]),
        (real_copy(), "graph", []),
    ):  # fmt: skip
        found = kernelwatch.measure(function, source, out, seconds=0.05)
        assert found.method == method, found
        warnings = own_warnings(found)
        assert len(warnings) == len(said), found
        assert all(one.startswith(two) for one, two in zip(warnings, said, strict=True)), found
    with pytest.raises(kernelwatch.MeasureError, match="raises raises ValueError: no such shape"):
        kernelwatch.measure(raises, source, out)


@pytest.mark.gpu
def test_tensors_of_pytorch(torch: Any) -> None:
    """Its functions are captured with what they allocate, draw and differentiate, and touch no other memory."""
    x = torch.rand(512, 512, device="cuda", dtype=torch.bfloat16)
    kept = [torch.full((1 << 20,), value, device="cuda") for value in range(8)]
    expected = x @ x
    weight = torch.rand(1 << 16, device="cuda", requires_grad=True)
    strided = x.T[:, ::2]
    for function, arguments in (
        (torch.matmul, (x, x)),
        (torch.nn.functional.dropout, (x, 0.5)),
        (lambda weight: (weight * weight).sum().backward(), (weight,)),
        (lambda one: one.add_(1), (strided,)),
    ):
        found = kernelwatch.measure(function, *arguments, seconds=0.05)
        assert found.method == "graph", found
        assert not any("captured" in text for text in found.warnings)
    assert (x @ x == expected).all()
    assert weight.grad is None
    assert all((one == value).all() for value, one in enumerate(kept))
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    found = kernelwatch.measure(lambda x: x.sum().item(), x, seconds=0.05)
    assert found.method == "events"
    assert kernelwatch.measure(torch.matmul, x, x, seconds=0.05).method == "graph"  # after a capture that failed


@pytest.mark.gpu
def test_a_call_that_imports_pytorch_is_captured(cp: Any, torch: Any, tmp_path: Path) -> None:
    """In a fresh process, which has not imported it before."""
    (tmp_path / "late.py").write_text(
        "def double(x, out):\n    import torch\n\n    torch.mul(torch.from_dlpack(x), 2, out=torch.from_dlpack(out))\n"
    )
    x, out = cp.ones((2, 1 << 20), cp.float32)
    found = kernelwatch.measure(f"{tmp_path}/late.py:double", x, out, processes=2, seconds=0.1)
    assert found.method == "graph", found.warnings


def test_what_captures_allocate_does_not_add_up(torch: Any) -> None:
    x = torch.rand(1 << 22, device="cuda")
    kernelwatch.measure(torch.neg, x, seconds=0.1)
    reserved = torch.cuda.memory_reserved()
    for _ in range(3):
        kernelwatch.measure(torch.neg, x, seconds=0.3)
    assert torch.cuda.memory_reserved() < 2 * reserved + (1 << 30)


@pytest.mark.gpu
def test_fresh_processes_on_a_gpu(cp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu_functions.py").write_text("import cupy\n\ndef scale(x, out):\n    cupy.multiply(x, 2, out=out)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    x = cp.arange(1 << 20, dtype=cp.float32)
    found = kernelwatch.measure("gpu_functions:scale", x, cp.empty_like(x), processes=2, seconds=0.05)
    assert (found.processes, len(found.samples), found.method) == (2, 2, "graph")


@pytest.mark.gpu
def test_a_campaign_on_a_gpu(cp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "original.py").write_text(
        "import cupy\n\n"
        "def inputs():\n    x = cupy.arange(1 << 22, dtype=cupy.float32)\n    return x, cupy.empty_like(x)\n\n"
        "def f(x, out):\n    cupy.multiply(x, 2, out=out)\n    cupy.multiply(x, 2, out=out)\n"
    )
    (tmp_path / "once.py").write_text("import cupy\n\ndef f(x, out):\n    cupy.multiply(x, 2, out=out)\n")
    (tmp_path / "wrong.py").write_text("import cupy\n\ndef f(x, out):\n    cupy.multiply(x, 3, out=out)\n")
    campaign = kernelwatch.Campaign.start("search.jsonl", "original.py:f", args="inputs", seconds=0.1, processes=4)
    wrong = campaign.attempt("wrong.py:f")
    assert (wrong.verdict, wrong.why[:16]) == ("refused", "array argument 1")
    assert campaign.attempt("once.py:f").verdict == "faster"
    (found,) = campaign.crown()
    assert campaign.crowned == found
    assert found.ratio == pytest.approx(0.5, rel=0.1)


@pytest.mark.gpu
def test_a_fault_on_the_gpu_is_a_clear_error(tmp_path: Path) -> None:
    """In a process of its own, which cannot use the GPU afterwards."""
    code = """
import cupy, kernelwatch
fault = cupy.RawKernel('extern "C" __global__ void fault(float *x) { x[1ll << 40] = 1; }', "fault")
try:
    kernelwatch.measure(lambda x: fault((1,), (1,), (x,)), cupy.zeros(1024, cupy.float32))
except kernelwatch.MeasureError as error:
    print(error, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.match("<lambda> raises .*illegal memory access", done.stdout), done.stdout + done.stderr
