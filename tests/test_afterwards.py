"""What a trial looks at after the timing on a GPU, on a fake one: exploits that only work in CUDA graphs."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelwatch.api import afterwards, measuring, outputs, trials
from kernelwatch.api.arguments import Original
from kernelwatch.api.gpu import OnGpu
from tests.fake_gpu import Device, Memory
from tests.test_api_gpu import device  # noqa: F401 (a fixture)
from tests.test_redteam import LEFT_OUT, STALE

SECONDS = 1e-5
Copy = Callable[[Any, Any], None]


@pytest.fixture
def try_(trial_of: Callable[[Copy], trials.Trial]) -> Callable[[Copy], str]:
    """Tries a candidate beside a copy: why it is refused, "" if it is not."""

    def tried(candidate: Copy) -> str:
        found = trial_of(candidate)
        assert not found.doubt
        return found.refused

    return tried


@pytest.fixture
def trial_of(device: Device, monkeypatch: pytest.MonkeyPatch) -> Callable[[Copy], trials.Trial]:  # noqa: F811
    """Tries a candidate beside a copy."""

    def copy(source: Any, out: Any) -> None:
        device.enqueue("copy", (), SECONDS, lambda: np.copyto(out, source))

    def arrays() -> tuple[Any, Any]:
        random = np.random.default_rng().random(4096, np.float32)
        return random.view(Memory), np.full(4096, np.nan, np.float32).view(Memory)

    def tried(candidate: Copy) -> trials.Trial:
        own = ModuleType("functions_of_a_red_team")
        vars(own).update(copy=copy, candidate=candidate, arrays=arrays)
        monkeypatch.setitem(sys.modules, own.__name__, own)
        setting = trials.Setting(f"{own.__name__}:arrays", 0.0, 0.0, "cold", None, 0.1, None)
        return trials.one_trial(f"{own.__name__}:copy", f"{own.__name__}:candidate", setting, False)

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


def lazy_on(device: Device) -> Copy:  # noqa: F811
    """A kernel that looks for itself whether there is something to do."""

    def lazy(source: Any, out: Any) -> None:
        def run() -> None:
            if np.isnan(out[0]):
                device.device_s += SECONDS
                np.copyto(out, source)

        device.enqueue("lazy", (), SECONDS / 10, run)

    return lazy


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

    said = try_(lazy_on(device))
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
        if not any(arguments[1:]):
            looks.append(self)
        is_candidate = self is not looks[0] if looks else False
        return (3 * seconds if is_candidate and looks.count(self) <= delayed else seconds), returned

    honest = OnGpu.once
    monkeypatch.setattr(OnGpu, "once", once)
    said = try_(counted(device, lambda places: False))
    assert re.match(told, said) if told else not said, said
    assert len(looks) >= 2 * delayed


def test_a_delay_of_the_original_excuses_no_candidate(
    device: Device,  # noqa: F811
    try_: Callable[[Copy], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of its looks took a hundred times as long: beside it any candidate is short enough."""
    looks: list[object] = []

    def once(self: Any, *arguments: Any) -> Any:
        seconds, returned = honest(self, *arguments)
        if not any(arguments[1:]):
            looks.append(self)
        return (100 * seconds if looks == [self] else seconds), returned

    honest = OnGpu.once
    monkeypatch.setattr(OnGpu, "once", once)
    said = try_(lazy_on(device))
    assert re.match(LEFT_OUT, said), said
    assert looks[0] is not looks[1]


class Thread:
    """A thread of a candidate, to which calls hand over their work. It enqueues a piece every `EACH_S` seconds of the
    host, on a stream of its own, and is done before anybody has looked at an output."""

    EACH_S = SECONDS / 2

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        self.device, self.jobs, self.free_s = device, list[tuple[float, Callable[[], object]]](), 0.0
        wait = device.synchronize

        def synchronize() -> None:
            self.run(device.host_s)
            wait()

        def look(*given: Any) -> Any:
            self.run(float("inf"))
            return left(*given)

        left = outputs.left
        monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "deviceSynchronize", synchronize)
        monkeypatch.setattr(afterwards, "left", look)

    def give(self, job: Callable[[], object]) -> None:
        self.free_s = max(self.free_s, self.device.host_s) + self.EACH_S
        self.jobs.append((self.free_s, job))

    def run(self, until_s: float) -> None:
        """What it has enqueued until then."""
        while self.jobs and self.jobs[0][0] <= until_s:
            due_s, job = self.jobs.pop(0)
            self.device.device_s = max(self.device.device_s, due_s) + SECONDS
            job()


def test_work_that_a_thread_enqueues_when_the_clock_has_stopped(
    device: Device,  # noqa: F811
    try_: Callable[[Copy], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its calls enqueue nothing, so they are timed until the device is idle, which it is before the thread is done."""
    thread, calls = Thread(device, monkeypatch), [0]

    def copy(source: Any, out: Any) -> None:
        calls[0] += 1
        thread.give(lambda: np.copyto(out, source))
        if calls[0] <= 8:
            thread.run(float("inf"))

    assert try_(copy) == afterwards.LATE


@pytest.mark.parametrize("shape", [(), (4,)])
def test_an_output_of_any_shape_that_comes_after_the_clock_is_too_late(shape: tuple[int, ...]) -> None:
    timer: Any = SimpleNamespace(device="cpu")
    looks = afterwards.Afterwards(timer, np.sum, 1, [], tuple, (0, 0), "hot")
    x, returned, stopped = np.ones(8), np.full(shape, 8.0), np.zeros(shape)
    assert looks._wrong([(x,)], [], [returned], [[stopped, x.copy()]]) == afterwards.LATE


def test_a_timing_that_others_disturbed_refuses_nobody_and_tells_nothing(
    trial_of: Callable[[Copy], trials.Trial],
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the original's turns took three times as long, the looks did not."""
    turns: list[object] = []

    def slowed(self: Any, *given: Any) -> Any:
        found = honest(self, *given)
        turns.append(self)
        late = self is turns[0] and turns.count(self) % 2
        return replace(found, seconds=3 * found.seconds) if late else found

    honest = OnGpu.round
    monkeypatch.setattr(OnGpu, "round", slowed)
    found = trial_of(counted(device, lambda places: False))
    assert found.refused == ""
    assert re.match(
        r"with numbers .* it takes 1 times as long as the original, in the timing 0\.\d+ times", found.doubt
    )
    assert "other programs disturbed the timing" in found.doubt
    assert found.compared
    assert (found.compared.verdict, found.compared.why) == ("cannot tell", found.doubt)


def test_work_that_is_left_out_in_every_turn_is_refused_whatever_the_noise(
    trial_of: Callable[[Copy], trials.Trial],
    device: Device,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[object] = []

    def noisy(self: Any, *given: Any) -> Any:
        found = honest(self, *given)
        turns.append(self)
        return replace(found, seconds=found.seconds * (1 + 0.2 * (len(turns) % 3)))

    honest = OnGpu.round
    monkeypatch.setattr(OnGpu, "round", noisy)
    found = trial_of(lazy_on(device))
    assert re.match(LEFT_OUT, found.refused), found.refused or found.doubt


@pytest.mark.parametrize(("timed", "word"), [(0.9, ""), (0.33, "doubt"), (0.005, "refused")])
def test_a_busy_cpu_refuses_nobody(timed: float, word: str) -> None:
    """All turns of a timing may be disturbed alike; who leaves out the work is some hundred times faster."""
    timer = measuring.timer_of((np.zeros(1),), "cpu")

    class Copied:
        """A copy that takes as long as it is told."""

        def used(self, sets: Any) -> Any:
            return sets

        def again(self) -> None:
            return None

        def once(self, sets: Any, between: Any = None) -> Any:
            if between:
                between()
            return 1e-3, dict(enumerate([one.copy() for (one,) in sets]))

    def make() -> tuple[Any, ...]:
        return (np.random.default_rng().random(64),)

    looks = afterwards.Afterwards(timer, np.copy, 1, [], make, (0.0, 0.0), "hot")
    rounds = [1e-3, 1.01e-3, 0.99e-3, 1e-3], [timed * 1e-3, timed * 1.01e-3, timed * 0.99e-3, timed * 1e-3]
    copied: Any = Copied()
    why = looks.why(copied, copied, [make() for _ in range(8)], rounds)
    assert bool(re.match(LEFT_OUT, why)) == (word == "refused"), why
    assert bool(looks.doubt) == (word == "doubt")
