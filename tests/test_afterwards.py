"""What a trial looks at after the timing on a GPU, on a fake one: exploits that only work in CUDA graphs."""

import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelwatch.api import afterwards, trials
from kernelwatch.api.arguments import Original
from kernelwatch.api.gpu import OnGpu
from tests.fake_gpu import Device, Memory
from tests.test_api_gpu import device  # noqa: F401 (a fixture)
from tests.test_redteam import LEFT_OUT, STALE

SECONDS = 1e-5
Copy = Callable[[Any, Any], None]


@pytest.fixture
def try_(device: Device, monkeypatch: pytest.MonkeyPatch) -> Callable[[Copy], str]:  # noqa: F811
    """Tries a candidate beside a copy: why it is refused, "" if it is not."""

    def copy(source: Any, out: Any) -> None:
        device.enqueue("copy", (), SECONDS, lambda: np.copyto(out, source))

    def arrays() -> tuple[Any, Any]:
        random = np.random.default_rng().random(4096, np.float32)
        return random.view(Memory), np.full(4096, np.nan, np.float32).view(Memory)

    def tried(candidate: Copy) -> str:
        own = ModuleType("functions_of_a_red_team")
        vars(own).update(copy=copy, candidate=candidate, arrays=arrays)
        monkeypatch.setitem(sys.modules, own.__name__, own)
        setting = trials.Setting(f"{own.__name__}:arrays", 0.0, 0.0, "cold", None, 0.1, None)
        return trials.one_trial(f"{own.__name__}:copy", f"{own.__name__}:candidate", setting, False).refused

    def fill(self: Original, place: Any) -> None:
        device.enqueue("fill", (), 0.0, lambda: np.copyto(place, self.array))  # a graph has it, as a real one

    monkeypatch.setattr(Original, "fill", fill)
    monkeypatch.setattr(afterwards, "LATE_S", 0.0)
    return tried


def counted(device: Device, skips: Callable[[list[int]], bool]) -> Copy:  # noqa: F811
    """A copy that does nothing where it skips, by the places that it was given in this capture."""
    capture: list[Any] = [None]
    places: list[int] = []

    def copy(source: Any, out: Any) -> None:
        if device.captured is not capture[0]:
            capture[0] = device.captured
            places.clear()
        places.append(out.ctypes.data)
        if device.captured is None or not skips(places):
            device.enqueue("copy", (), SECONDS, lambda: np.copyto(out, source))

    return copy


def test_what_works_in_each_call_is_not_refused(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    assert try_(counted(device, lambda places: False)) == ""


def test_work_in_the_first_turn_of_a_graph_only(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    """A graph that is replayed has the right output in each set: the later calls over a set did nothing."""
    said = try_(counted(device, lambda places: places[-1] in places[:-1]))
    assert re.match(STALE, said), said


def test_work_in_the_first_calls_of_a_graph_only(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    """As many as are looked at by themselves; what was timed is done again as it was."""
    said = try_(counted(device, lambda places: len(places) > 2 * afterwards.LOOKS))
    assert re.match(STALE, said), said


def test_what_was_timed_is_done_again(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    """A candidate that is honest as soon as the timing is over, as one that knows how long it takes."""
    captures: list[Any] = []
    most = [0]

    def copy(source: Any, out: Any) -> None:
        if device.captured is not None and not any(device.captured is one for one in captures):
            captures.append(device.captured)
        works = device.captured is None or len(captures) > most[0]
        device.enqueue("copy", (), SECONDS, lambda: np.copyto(out, source) if works else None)

    assert try_(copy) == ""
    most[0] = len(captures) - 1 - afterwards.LEAST  # the last ones were looks
    captures.clear()
    said = try_(copy)
    assert re.match(STALE, said), said


def test_work_in_half_of_a_graph(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    """Each set has its output from one of the first turns."""
    said = try_(counted(device, lambda places: len(places) > 100))
    assert re.match(LEFT_OUT, said), said


def test_work_that_the_device_leaves_out(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    """A kernel that looks for itself whether there is something to do; its host does the same in each call."""

    def lazy(source: Any, out: Any) -> None:
        def run() -> None:
            if np.isnan(out[0]):
                device.device_s += SECONDS
                np.copyto(out, source)

        device.enqueue("lazy", (), SECONDS / 10, run)

    said = try_(lazy)
    assert re.match(LEFT_OUT, said), said


def test_a_part_of_the_l2_cache_that_is_set_aside(device: Device, try_: Callable[[Copy], str]) -> None:  # noqa: F811
    aside = SimpleNamespace(bytes=0)
    sys.modules["cupy"].cuda.runtime.deviceGetLimit = lambda limit: aside.bytes * (limit == 6)

    def persisting(source: Any, out: Any) -> None:
        aside.bytes = 3 << 20
        device.enqueue("copy", (), SECONDS, lambda: np.copyto(out, source))

    assert try_(persisting) == "it sets 3 MiB of the L2 cache aside for accesses that persist"


@pytest.mark.parametrize(("delayed", "told"), [(afterwards.LEAST + 2, ""), (afterwards.MOST, LEFT_OUT)])
def test_what_other_programs_delay_is_not_refused(
    device: Device,  # noqa: F811
    try_: Callable[[Copy], str],
    monkeypatch: pytest.MonkeyPatch,
    delayed: int,
    told: str,
) -> None:
    """They slow down some looks after the timing, seldom all of them."""
    looks: list[object] = []

    def once(self: Any, *arguments: Any) -> Any:
        seconds, returned = honest(self, *arguments)
        if not arguments[1:]:
            looks.append(self)
        is_candidate = self is not looks[0] if looks else False
        return (3 * seconds if is_candidate and looks.count(self) <= delayed else seconds), returned

    honest = OnGpu.once
    monkeypatch.setattr(OnGpu, "once", once)
    said = try_(counted(device, lambda places: False))
    assert re.match(told, said) if told else not said
    assert len(looks) >= 2 * delayed
