"""kernelwatch.measure and kernelwatch.compare on a fake GPU that records what was asked of it, and on a real one."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import kernelwatch
from kernelwatch.api import gpu as gpu_module
from kernelwatch.api import measuring, statistics, turns
from kernelwatch.timing import replay
from tests.fake_gpu import CLOCK_MHZ, SILENT, Cupy, Device, Memory

# --- a fake GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In the place of CuPy, NVML and the host's clock."""
    fake = Device()
    nvml = SimpleNamespace(facts=lambda: {"sm_clock_max_mhz": None}, state=lambda: SILENT, processes=list)
    clock = SimpleNamespace(monotonic=fake.now, perf_counter=fake.now, sleep=fake.sleep)
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, Cupy(fake)))
    monkeypatch.setattr(gpu_module, "Nvml", lambda bus: nvml)
    for module in (replay, gpu_module, measuring, turns, statistics):
        monkeypatch.setattr(module, "time", clock)
    measuring._gpu.cache_clear()
    return fake


def array(count: int = 4096) -> Any:
    return np.arange(count, dtype=np.float32).view(Memory)


def copying(device: Device, seconds: float = 1e-5) -> Any:
    """A copy that takes some seconds on the device, and says where its output was."""

    def copy(source: Any, out: Any) -> None:
        device.enqueue("copy", (out.ctypes.data, source.ctypes.data), seconds, lambda: np.copyto(out, source))

    return copy


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
