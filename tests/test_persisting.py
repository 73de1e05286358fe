"""Lines that persist in the L2 cache: a kernel that leaves them moves no figure of another one."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwatch.extras.several.rank import Rank
from kernelwatch.plan.package import NotHere
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


def test_persisting_lines_are_reset_on_the_gpu_of_each_rank(
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a process with a GPU of its own."""
    gpu, _ = gpu_of(device, cell())
    done: list[str] = []
    rank: Any = Rank.__new__(Rank)
    rank.cupy, rank.on = gpu.cupy, gpu
    rank.launch, rank.say = lambda: done.append("launch"), lambda *_: None
    monkeypatch.setattr(l2, "reset_persisting", lambda: done.append("reset"))
    rank.sample(0.0, 2)
    assert done == ["reset", "launch", "launch"]


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


class Runtime:
    """Answers `limits` one after the other, errors by raising them; nothing can be set."""

    def __init__(self, *limits: int | Exception) -> None:
        self.limits = iter(limits)
        self.cuda = SimpleNamespace(runtime=self)

    def deviceGetLimit(self, limit: int) -> int:
        assert limit == l2.SET_ASIDE
        found = next(self.limits)
        if isinstance(found, Exception):
            raise found
        return found

    def deviceSetLimit(self, *_: int) -> None:
        raise RuntimeError("cudaErrorLaunchFailure")


def test_an_error_of_giving_back_does_not_hide_that_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Runtime(0, 1 << 20))
    with pytest.raises(NotHere, match="no PyTorch"), l2.set_aside_as_before():
        raise NotHere("no PyTorch")


def test_what_could_not_be_read_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a GPU before the Ampere generation."""
    old = ValueError("unsupported limit")
    for limits in ((old, old), (old, 1 << 20), (0, old)):
        monkeypatch.setitem(sys.modules, "cupy", Runtime(*limits))
        with l2.set_aside_as_before():
            pass
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert l2.set_aside_bytes() is None


def test_a_record_says_whether_lines_are_reset(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    gpu, _ = gpu_of(device, cell())
    for why, told in (("", "ok"), ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_NOT_SUPPORTED")):
        monkeypatch.setattr(l2, "reset_persisting", lambda why=why: why)
        assert gpu.facts()["l2_reset"] == told


def test_without_the_bindings_nothing_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2, "_driver", lambda: None)
    assert l2.reset_persisting() == "cuda-bindings is not installed"


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
    if not moved and "H200" not in found["gpu"]:
        pytest.skip(f"kept lines move no figure on this GPU, {found['gpu']}")
    assert moved, "without the reset some cells change on an H200"
    assert all(abs(reset[key]) < abs(kept[key]) / 2 for key in moved), found
