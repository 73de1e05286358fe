"""Lines that persist in the L2 cache: a kernel that leaves them moves no figure of another one."""

import json
from typing import Any

import pytest

from kernelwatch.timing import l2
from lab import persisting
from tests.fake_gpu import Device
from tests.test_replay import cell, device, gpu_of  # noqa: F401 (a fixture)

MOVED = 0.007  # a change beyond it is none of noise, in the cells that the kept lines move on an H200


def test_persisting_lines_are_reset_before_each_timing(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resets: list[int] = []  # what had been launched
    timings: list[int] = []
    gpu, _ = gpu_of(device, cell("hot"))
    replay = gpu.replay

    def timed(*given: Any, **named: Any) -> Any:
        timings.append(len(device.launches))
        return replay(*given, **named)

    def reset() -> str:
        resets.append(len(device.launches))
        return ""

    monkeypatch.setattr(l2, "reset_persisting", reset)
    monkeypatch.setattr(gpu, "replay", timed)
    gpu.measure(cell("hot"))
    assert resets == timings
    assert len(timings) > 4


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_cell_sets_aside_of_the_l2_is_given_back(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    gpu, _ = gpu_of(device, cell())
    runtime = gpu.cupy.cuda.runtime
    runtime.deviceSetLimit(l2.SET_ASIDE, 1 << 10)
    measure, seen = gpu._measure, []

    def greedy(one: Any) -> Any:
        runtime.deviceSetLimit(l2.SET_ASIDE, 1 << 20)
        found = measure(one)
        seen.append(runtime.deviceGetLimit(l2.SET_ASIDE))
        if fails:
            raise RuntimeError("of the kernel")
        return found

    monkeypatch.setattr(gpu, "_measure", greedy)
    if fails:
        with pytest.raises(RuntimeError, match="of the kernel"):
            gpu.measure(cell())
    else:
        gpu.measure(cell())
    assert seen == [1 << 20], "it has it while it is timed"
    assert runtime.deviceGetLimit(l2.SET_ASIDE) == 1 << 10


def test_a_gpu_that_sets_nothing_aside_is_left_alone() -> None:
    class Old:
        class cuda:
            class runtime:
                @staticmethod
                def deviceGetLimit(_: int) -> int:
                    raise ValueError("unsupported limit")

    with l2.set_aside_as_before(Old):
        assert l2.set_aside_bytes(Old) is None


def test_the_page_has_the_table() -> None:
    record = json.loads(persisting.RECORD.read_text(encoding="utf-8"))
    assert persisting.text(record) in persisting.PAGE.read_text(encoding="utf-8")
    kept, reset = ([persisting.change(us) for us in record["us"][way].values()] for way in ("kept", "reset"))
    assert max(map(abs, kept)) > 4 * max(map(abs, reset)), "the reset ends it"
    assert not record["why_not"]


@pytest.mark.gpu
def test_a_product_that_keeps_lines_in_the_l2_moves_no_figure_of_the_next_cell() -> None:
    """Without the reset these cells change by up to some percent on an H200."""
    found = persisting.work()
    if found["why_not"]:
        pytest.skip(f"the lines cannot be reset here: {found['why_not']}")
    kept, reset = ({key: persisting.change(us) for key, us in found["us"][way].items()} for way in ("kept", "reset"))
    moved = [key for key, change in kept.items() if abs(change) > MOVED]
    if not moved:
        pytest.skip("kept lines move no figure on this GPU")
    assert all(abs(reset[key]) < abs(kept[key]) / 2 for key in moved), found
