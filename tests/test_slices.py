"""What rests for the power limit, on a fake GPU: each sample after its share of the rest, merged to one take."""

import math
import statistics
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelwatch.timing import replay
from kernelwatch.timing.nvml import Nvml
from kernelwatch.timing.replay import CANARY_BYTES, LOW_CLOCK, REST_S, RETAKES, SHORT_REST_S, SLICED_LEAST, Replayer
from tests.fake_gpu import ENQUEUE_S, SILENT, Cupy, Device

HIGHEST_MHZ, OWN_MHZ = 1980.0, 1700.0
POWER, HEAT = 0x04, 0x08
SAMPLES = 5
KERNEL_S = 1e-4
NODES, REPLAYS = 4, 2


class Powered(Replayer):
    """A replayer whose device runs at the clocks of `mhz`, one for each replay, and meets the limits of `masks`; the
    last of each stays. `events`: the rests, and the samples of each replay."""

    def __init__(self, device: Device, mhz: list[float], masks: list[int | None]) -> None:
        self.device, self.mhz, self.masks = device, mhz, masks
        self.events: list[tuple[str, float]] = []
        state = lambda: {**SILENT, "event_reasons": self._next(self.masks)}  # noqa: E731
        facts = lambda: {"sm_clock_max_mhz": HIGHEST_MHZ}  # noqa: E731
        super().__init__(cast(Nvml, SimpleNamespace(facts=facts, state=state)))
        self.best_clock_mhz = HIGHEST_MHZ

    @staticmethod
    def _next(values: list[Any]) -> Any:
        return values.pop(0) if len(values) > 1 else values[0]

    def replay(self, graph: Any, replays: int, samples: int, *others: Any) -> tuple[list[float], float | None, Any]:
        self.events.append(("samples", samples))
        clock = self._next(self.mhz)
        seconds, _, state = super().replay(graph, replays, samples, *others)
        return [value * HIGHEST_MHZ / clock for value in seconds], clock, state


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    pytest.importorskip("cupy.cuda.compiler", reason="keeps what the harness compiles")
    fake = Device()
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, Cupy(fake)))
    return fake


def quietly(
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    mhz: list[float],
    masks: list[int | None],
    samples: int = SAMPLES,
    own_mhz: float = OWN_MHZ,
    prepared_s: float = 0.0,
    anew: bool = False,
) -> tuple[Powered, replay.Take]:
    """`anew`: something readies each sample, which is an event as well."""
    powered = Powered(device, mhz, masks)

    def sleep(seconds: float) -> None:
        powered.events.append(("rest", round(seconds, 6)))  # without what the host took meanwhile
        device.sleep(seconds)

    monkeypatch.setattr(replay, "time", SimpleNamespace(sleep=sleep, monotonic=device.now))
    graph = powered.graph([lambda: device.enqueue("work", (), KERNEL_S)], NODES)
    powered.idle_since = device.now() - prepared_s
    more: dict[str, Any] = {"anew": lambda: powered.events.append(("anew", 0.0))} if anew else {}
    return powered, powered.take_quietly(graph, REPLAYS, NODES, samples, (), own_mhz, **more)


SLICED = [("rest", REST_S / SAMPLES), ("samples", 1)] * SAMPLES


def test_each_sample_at_the_power_limit_has_its_share_of_the_rest(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many samples, launches and seconds of rest as in one go."""
    powered, taken = quietly(monkeypatch, device, [OWN_MHZ], [POWER])
    assert powered.events == SLICED
    assert len(taken["seconds"]) == SAMPLES
    assert taken["seconds"] == pytest.approx([KERNEL_S * HIGHEST_MHZ / OWN_MHZ] * SAMPLES, rel=ENQUEUE_S / KERNEL_S)
    assert taken["launches"] == NODES * REPLAYS * SAMPLES
    work = [one for one in device.launches if one.name == "work"]
    assert len(work) == taken["launches"] + NODES * SAMPLES  # the graph is also the lead-in of each sample
    assert (taken["clock64_mhz"], taken["retakes"]) == (OWN_MHZ, 0)


def test_what_ran_before_shows_in_the_first_slices_only(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the clock nor the middle of the samples is theirs; a limit that they met is told."""
    powered, taken = quietly(monkeypatch, device, [1400.0, 1600.0, OWN_MHZ], [POWER, 0])
    assert powered.events == SLICED
    assert taken["clock64_mhz"] == OWN_MHZ
    assert statistics.median(taken["seconds"]) == min(taken["seconds"]) < max(taken["seconds"])
    assert taken["throttled"] == ["software power cap", LOW_CLOCK]


def test_a_limit_of_any_slice_counts_for_all(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heat in the middle of them: a rest may help, and did."""
    powered, taken = quietly(monkeypatch, device, [OWN_MHZ], [POWER, POWER, HEAT, POWER, POWER, POWER, 0])
    assert powered.events == 2 * SLICED
    assert (taken["retakes"], taken["throttled"]) == (1, ["software power cap", LOW_CLOCK])
    assert taken["state"]["event_reasons"] == POWER  # the last slice met none
    powered, taken = quietly(monkeypatch, device, [OWN_MHZ], [0, HEAT])
    assert powered.events == SLICED * (RETAKES + 1)
    assert taken["throttled"] == ["hardware slowdown", LOW_CLOCK]


def test_slices_of_unknown_limits_are_judged_by_their_clock_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    mhz = [1390.0, 1391.0, 1400.0, 1399.0, 1401.0] * (RETAKES + 1)
    _, taken = quietly(monkeypatch, device, mhz, [None], own_mhz=1400.0)
    assert taken["throttled"] == ["SM clock 1399 MHz of 1980 MHz", LOW_CLOCK]


def test_a_clock_that_rises_from_slices_to_slices_is_waited_for(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not known before: five samples at once, then slices until the clock rises no more."""
    mhz = [1500.0, *[1600.0] * SAMPLES, *[OWN_MHZ] * SAMPLES, OWN_MHZ]
    powered, taken = quietly(monkeypatch, device, mhz, [0], own_mhz=math.inf)
    assert powered.events == [("samples", SAMPLES), *3 * SLICED]
    assert (taken["retakes"], taken["throttled"]) == (3, [LOW_CLOCK])


def test_a_known_clock_that_a_rest_does_not_bring_back_was_a_step_too_high(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of the first process was, after which each other one took its samples four times in 686b6c50."""
    powered, taken = quietly(monkeypatch, device, [OWN_MHZ], [0], own_mhz=1.01 * OWN_MHZ)
    assert powered.events == 2 * SLICED
    assert (taken["retakes"], taken["clock64_mhz"]) == (1, OWN_MHZ)


@pytest.mark.parametrize(
    ("mhz", "prepared_s", "events"),
    [
        (0.96 * HIGHEST_MHZ, 0.02, [("rest", SHORT_REST_S - 0.02), ("samples", SAMPLES)]),
        (0.96 * HIGHEST_MHZ, SHORT_REST_S, [("samples", SAMPLES)]),
        (0.96 * HIGHEST_MHZ, 60.0, [("samples", SAMPLES)]),
        (OWN_MHZ, 0.015, [("rest", REST_S / SAMPLES - 0.015), *SLICED[1:]]),  # of the first slice's rest alone
        (OWN_MHZ, 60.0, SLICED[1:]),
    ],
)
def test_what_the_host_prepares_is_a_rest_already(
    mhz: float, prepared_s: float, events: list[Any], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    powered, _ = quietly(monkeypatch, device, [mhz], [0], own_mhz=mhz, prepared_s=prepared_s)
    assert [what for what, _ in powered.events] == [what for what, _ in events]
    assert [value for _, value in powered.events] == pytest.approx([value for _, value in events], abs=1e-5)


@pytest.mark.parametrize("own_mhz", [math.inf, HIGHEST_MHZ - 1])
def test_a_clock_of_half_a_step_less_is_taken_again(
    own_mhz: float, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the records of fba3ab78 and 65a8feec, some takes that could run at 1980 MHz ran at 1964 to 1972 in the
    mean, and were too slow by as much."""
    powered, taken = quietly(monkeypatch, device, [HIGHEST_MHZ - 9, HIGHEST_MHZ], [0], own_mhz=own_mhz)
    assert powered.events == [("samples", SAMPLES), ("rest", SHORT_REST_S), ("samples", SAMPLES)]
    assert (taken["clock64_mhz"], taken["retakes"], taken["throttled"]) == (HIGHEST_MHZ, 1, [])


def test_a_clock_that_stays_a_step_below_is_the_kernels(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    powered, taken = quietly(monkeypatch, device, [HIGHEST_MHZ - 15], [0], own_mhz=math.inf)
    assert powered.events == [("samples", SAMPLES), ("rest", SHORT_REST_S), ("samples", SAMPLES)]
    assert (taken["retakes"], taken["throttled"]) == (1, [])
    powered, taken = quietly(monkeypatch, device, [HIGHEST_MHZ - 15], [0], own_mhz=HIGHEST_MHZ - 15)
    assert powered.events == [("rest", SHORT_REST_S), ("samples", SAMPLES)]


@pytest.mark.parametrize(
    ("mhz", "samples", "events"),
    [
        (HIGHEST_MHZ, SAMPLES, [("samples", SAMPLES)]),
        (0.96 * HIGHEST_MHZ, SAMPLES, [("rest", SHORT_REST_S), ("samples", SAMPLES)]),
        (OWN_MHZ, SLICED_LEAST - 1, [("rest", REST_S), ("samples", SLICED_LEAST - 1)]),
        (OWN_MHZ, 1, [("rest", REST_S), ("samples", 1)]),  # a round of a hot cell
    ],
)
def test_all_others_are_taken_in_one_go(
    mhz: float, samples: int, events: list[Any], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the highest clock, after a short rest, and with too few samples for the median to leave two out."""
    powered, _ = quietly(monkeypatch, device, [mhz], [0], samples, mhz)
    assert powered.events == events


@pytest.mark.parametrize(
    ("mhz", "events"),
    [
        (HIGHEST_MHZ, [("anew", 0.0), ("samples", 1)] * SAMPLES),
        (0.96 * HIGHEST_MHZ, [("rest", SHORT_REST_S), *[("anew", 0.0), ("samples", 1)] * SAMPLES]),
        (OWN_MHZ, [("rest", REST_S / SAMPLES), ("anew", 0.0), ("samples", 1)] * SAMPLES),
    ],
)
def test_what_readies_each_sample_comes_after_its_rest(
    mhz: float, events: list[Any], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the lead-in runs between it and the sample."""
    powered, taken = quietly(monkeypatch, device, [mhz], [0], own_mhz=mhz, anew=True)
    assert powered.events == events
    assert (len(taken["seconds"]), taken["launches"]) == (SAMPLES, NODES * REPLAYS * SAMPLES)


def test_each_sample_that_is_taken_again_is_readied_again(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    powered, taken = quietly(monkeypatch, device, [0.95 * OWN_MHZ], [0], anew=True)
    assert taken["retakes"] == 1
    assert powered.events.count(("anew", 0.0)) == 2 * SAMPLES


@pytest.mark.parametrize("l2_mib", [40, 60, 126])
def test_the_lead_in_displaces_the_whole_l2(device: Device, l2_mib: int) -> None:
    """That of a B200 is larger than what a canary copies, which is the same on all GPUs."""
    device.l2_bytes = l2_mib << 20
    powered = Powered(device, [HIGHEST_MHZ], [0])
    powered.warm_up()

    def copied(graphs: Any) -> set[int]:
        before = len(device.launches)
        for graph in graphs:
            graph.launch(powered.stream)
        new = device.launches[before:]
        return {2 * int(one.arguments[-1]) for one in new if one.name == "vector_copy"}

    assert copied(powered.canaries.values()) == {CANARY_BYTES}
    assert copied(powered.lead_in) == {max(CANARY_BYTES, (l2_mib + 4) << 20)}
