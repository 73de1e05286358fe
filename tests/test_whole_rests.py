"""A cell's rests on a fake GPU: whole ones, of which what the host prepares is a part."""

from dataclasses import replace
from typing import Any

import pytest

from kernelwatch.timing.gpu import SLOW_S, Gpu
from kernelwatch.timing.replay import SHORT_REST_S
from tests.fake_gpu import Device
from tests.test_replay import BUDGET, cell, device, gpu_of  # noqa: F401 (a fixture)

BIND_S = 1e-4  # of the host, to bind a launch


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("seconds", [1e-5, 1e-2])
def test_a_rest_is_a_whole_one_after_all_work_and_the_host_is_part_of_it(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    captured: bool,
) -> None:
    """Whatever ran before it: a check, a launch that could not be captured, a take. Fills do not matter."""
    rests: list[tuple[float, float, float]] = []  # asked for, slept, idle since the last work
    rest, bind, judge = Gpu.rest, Gpu._bind, Gpu._judge

    def noted(gpu: Gpu, asked: float) -> None:
        before = device.now()
        rest(gpu, asked)
        worked = max(one.at_s for one in device.launches if not one.name.startswith("fill"))
        rests.append((asked, device.now() - before, device.now() - worked))

    def bound(gpu: Gpu, *arguments: Any) -> Any:
        device.sleep(BIND_S)
        return bind(gpu, *arguments)

    def judged(gpu: Gpu, *arguments: Any) -> None:
        judge(gpu, *arguments)
        device.enqueue("compare", (), 1e-3)
        device.synchronize()

    def refuse() -> None:
        if device.captured is not None:
            raise RuntimeError("not in a capture")

    monkeypatch.setattr(Gpu, "rest", noted)
    monkeypatch.setattr(Gpu, "_judge", judged)
    monkeypatch.setattr(Gpu, "_bind", bound)
    monkeypatch.setattr(Gpu, "rest_s", lambda *_: SHORT_REST_S)
    gpu, package = gpu_of(device, cell(), seconds)
    if not captured:
        package.before = refuse
    gpu.measure(cell())
    assert rests
    assert all(idle >= asked > 0 for asked, _, idle in rests)
    rests.clear()
    gpu.budget = replace(BUDGET, seconds={cell().key: seconds})  # known from an earlier process
    gpu.measure(cell())
    assert all(idle >= asked > 0 for asked, _, idle in rests)
    if captured and seconds < SLOW_S:  # nothing runs between the binding of the sets and the first take
        asked, slept, _ = rests[0]
        assert slept == pytest.approx(asked - BIND_S * (gpu._slots(cell()) - 1), abs=1e-4)
