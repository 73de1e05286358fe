"""Verdicts on measurements in turns, of synthetic noise."""

import math
import statistics
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.comparison import bisect, linking, paired
from kernelwatch.comparison.paired import Comparison, Side
from kernelwatch.detect import judging
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import DEVICES, Budget
from kernelwatch.report import comparison
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.system.student import quantile

BASE, HEAD = Side("BASE", "base"), Side("HEAD", "head")


def cells(device: str, *names: str) -> list[Cell]:
    return [Cell("transpose", name, "float32", (256, 256), "cold", device) for name in names]


class Synthetic:
    """In the place of the harness's Run: seconds of 1 ms times what `ratio(side, rung, turn)` says."""

    calls: list[tuple[str, tuple[str, ...]]]
    ratio: Callable[[str, str, int], float]
    same: frozenset[str] = frozenset({"numpy"})

    def __init__(
        self, project: object, cells: list[Cell], device: str, package: str, budget: object, workers: object
    ) -> None:
        self.cells, self.package, self.budget, self.unavailable = cells, package, budget, ""
        self.group: Any = Group("", {cell.key: Outcome() for cell in cells}, {})

    def measure_all(self, seed: int) -> None:
        type(self).calls.append((self.package, tuple(cell.rung for cell in self.cells)))
        for cell in self.cells:
            seconds = 1e-3 * type(self).ratio(self.package, cell.rung, seed)
            identity = cell.rung if cell.rung in self.same else f"{cell.rung} {self.package}"
            canary = {"memory": 1e-4 * type(self).ratio(self.package, "canary", seed)}
            beside = canary if cell.device == "gpu" else {}
            self.group.outcomes[cell.key] = Outcome(
                "ok", "", [{"seconds": seconds, "identity": identity, "canary_s": beside}]
            )


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> type[Synthetic]:
    fresh = type("Fresh", (Synthetic,), {"calls": []})
    monkeypatch.setattr(paired, "Run", fresh)
    monkeypatch.setattr(paired, "workers_of", lambda *_: Mock())
    return fresh


def compared(
    synthetic: type[Synthetic], ratio: Callable[[str, str, int], float], device: str = "gpu", count: int = 5
) -> dict[str, str]:
    """The verdicts on `count` rungs beside a control, by rung."""
    synthetic.ratio = staticmethod(ratio)
    taken = cells(device, *(f"rung{at}" for at in range(count)), "numpy")
    controls = paired.controls_of(taken, {("transpose", device): "numpy"})
    found = Comparison(PROJECT, BASE, HEAD, taken, controls)
    found.run(math.inf)
    return {pairs.cell.rung: judged.word for pairs, judged in found.verdicts()}


def test_a_turn_knows_what_its_own_side_took_in_the_turns_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it rests as that needs, and does not check again what was right. The other side may be another kernel."""
    budgets: list[tuple[str, Budget]] = []

    class Clocked(Synthetic):
        def measure_all(self, seed: int) -> None:
            budgets.append((self.package, cast(Budget, self.budget)))
            super().measure_all(seed)
            for outcome in self.group.outcomes.values():
                outcome.measurements[0]["clock64_mhz"] = 1800.0 + seed if self.package == "head" else None

    monkeypatch.setattr(Clocked, "calls", [], raising=False)
    monkeypatch.setattr(
        Clocked, "ratio", lambda package, _, turn: (1 + (package == "head")) * (1 + turn), raising=False
    )
    monkeypatch.setattr(paired, "Run", Clocked)
    monkeypatch.setattr(paired, "workers_of", lambda *_: Mock())
    own, alone = cells("gpu", "rung", "numpy"), cells("cpu", "c")
    found = Comparison(PROJECT, BASE, HEAD, own + alone, {})
    for _ in range(3):
        found.turn()
    keys = [each.key for each in own]
    of_gpu = [one for one in budgets if one[1].sample_s == DEVICES["gpu"].budget.sample_s]
    assert [side for side, _ in of_gpu] == ["base", "head", "head", "base", "base", "head"]
    first, *later = [(side, one.clocks_mhz, one.seconds) for side, one in of_gpu]
    assert first == ("base", {}, {})
    assert later == [
        ("head", {}, {}),
        ("head", dict.fromkeys(keys, 1800.0), dict.fromkeys(keys, 2e-3)),
        ("base", {}, dict.fromkeys(keys, 1e-3)),
        ("base", {}, dict.fromkeys(keys, 1.5e-3)),
        ("head", dict.fromkeys(keys, 1800.5), dict.fromkeys(keys, 3e-3)),
    ]


def noise(seed: int, sigma: float, heavy: bool = False) -> Callable[[], float]:
    rng = np.random.default_rng(seed)
    return lambda: math.exp(sigma * (float(rng.standard_t(2)) if heavy else float(rng.normal())))


def test_an_interval_is_students_where_nothing_is_trimmed() -> None:
    logs = [0.01, 0.03, -0.02, 0.05]
    found = paired.interval(logs, 0.01)
    half = quantile(0.995, 3) * statistics.stdev(logs) / 2
    assert found.middle == pytest.approx(0.0175)
    assert found.half == pytest.approx(half)
    assert found.shows == pytest.approx(half * (1 + quantile(0.95, 3) / quantile(0.995, 3)))
    assert paired.interval([0.5], 0.01).half == math.inf


def test_one_process_that_was_held_up_does_not_blur_the_rest() -> None:
    quiet = [0.001 * (-1) ** at for at in range(10)]
    held_up = [*quiet[:-1], 3.0]
    assert paired.interval(held_up, 1e-3).half < 0.01
    assert abs(paired.interval(held_up, 1e-3).middle) < 0.001


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("sigma", [0.002, 0.05, 0.3])
def test_without_a_change_hardly_a_comparison_blames(synthetic: type[Synthetic], sigma: float, heavy: bool) -> None:
    """Of 60 comparisons of 5 cells each, all looks included, 1 % may; 5 or more would happen once in 2,500 times."""
    blamed = 0
    for seed in range(60):
        draw = noise(seed, sigma, heavy)
        words = compared(synthetic, lambda *_, draw=draw: draw(), "cpu").values()
        blamed += any(word in ("worse", "better") for word in words)
    assert blamed < 5


def test_the_level_is_for_all_cells_and_looks_together(
    synthetic: type[Synthetic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a floor and without a control, that nothing but the level is between noise and a verdict."""
    monkeypatch.setattr(paired, "FLOOR", {"cpu": 0.0})
    blamed = 0
    for seed in range(60):
        draw = noise(seed, 0.05)
        synthetic.ratio = staticmethod(lambda *_, draw=draw: draw())
        found = Comparison(PROJECT, BASE, HEAD, cells("cpu", *(f"rung{at}" for at in range(5))), {})
        found.run(math.inf)
        blamed += any(judged.word in ("worse", "better") for _, judged in found.verdicts())
    assert blamed < 5


def test_another_source_of_the_same_launch_is_no_change(
    synthetic: type[Synthetic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a function launches is seen by another process of each side, once for all turns."""
    ran: Any = {"kernel": "k", "registers": 8, "static_shared_bytes": 0, "grid": [1, 1, 1], "block": [32, 1, 1]}
    code: Any = {"kernel": "k", "registers": 8, "static_shared_bytes": 0}
    looked: list[tuple[str, ...]] = []
    measured = Synthetic.measure_all

    def of_functions(self: Synthetic, seed: int) -> None:
        measured(self, seed)
        for cell in self.cells:
            (one,) = self.group.outcomes[cell.key].measurements
            if cell.rung != "numpy":
                one.update(sources=one["identity"], kernels=[{**ran}])

    def look(run: Any, asked: list[Cell]) -> dict[str, Any]:
        looked.append((run.package, *(cell.rung for cell in asked)))
        return {
            cell.key: {"arguments": "4", "codes": [code | {"code": run.package if cell.rung == "rung1" else "same"}]}
            for cell in asked
        }

    monkeypatch.setattr(synthetic, "measure_all", of_functions)
    monkeypatch.setattr(paired, "look", look)
    words = compared(synthetic, lambda side, *_: 1.0, count=2)
    assert words == {"rung0": "no change", "rung1": "no change", "numpy": "no change"}
    assert sorted(filter(lambda one: len(one) > 1, looked)) == [("base", "rung0", "rung1"), ("head", "rung0", "rung1")]
    words = compared(synthetic, lambda side, rung, _: 1.1 if side == "head" and "rung" in rung else 1.0, count=2)
    assert words["rung0"] == "cannot tell"  # both launch the same, and yet their times differ
    assert words["rung1"] == "worse"


@pytest.mark.parametrize(("change", "word"), [(1.0, "no change"), (1.012, "worse"), (0.988, "better")])
def test_at_a_gpus_noise_a_change_of_a_per_cent_is_told(synthetic: type[Synthetic], change: float, word: str) -> None:
    for seed in range(40):
        draw = noise(seed, 0.001)

        def ratio(side: str, rung: str, _: int, draw: Callable[[], float] = draw) -> float:
            return draw() * (change if side == "head" and rung.startswith("rung") else 1)

        words = compared(synthetic, ratio)
        assert {words[f"rung{at}"] for at in range(5)} == {word}


def test_noise_that_hides_everything_is_said_to(synthetic: type[Synthetic]) -> None:
    draw = noise(1, 0.3)
    words = compared(synthetic, lambda *_: draw(), "cpu")
    assert {words[f"rung{at}"] for at in range(5)} == {"cannot tell"}


@pytest.mark.parametrize("moved", ["numpy", "canary"])
def test_what_moves_its_control_as_well_is_the_environment(synthetic: type[Synthetic], moved: str) -> None:
    draw = noise(2, 0.0005)

    def ratio(side: str, rung: str, _: int) -> float:
        return draw() * (1.05 if side == "head" and (rung.startswith("rung") or rung == moved) else 1)

    words = compared(synthetic, ratio)
    assert {words[f"rung{at}"] for at in range(5)} == {"cannot tell"}
    assert compared(synthetic, lambda *_: 1.2 * ratio(*_) if _[:2] == ("head", "rung0") else ratio(*_))["rung0"] == (
        "worse"  # more than its control
    )


def test_a_control_that_moves_alone_leaves_no_change_in_doubt(synthetic: type[Synthetic]) -> None:
    draw = noise(3, 0.0005)
    words = compared(synthetic, lambda side, rung, _: draw() * (1.05 if (side, rung) == ("head", "numpy") else 1))
    assert {words[f"rung{at}"] for at in range(5)} == {"cannot tell"}


def test_the_same_binary_is_never_blamed(synthetic: type[Synthetic]) -> None:
    synthetic.same = frozenset({"rung0", "numpy"})
    words = compared(synthetic, lambda side, rung, _: 2.0 if (side, rung) == ("head", "rung0") else 1.0, count=1)
    assert words["rung0"] == "cannot tell"  # nor called unchanged: its identity may lack something
    words = compared(synthetic, lambda side, rung, _: 1.0, count=1)
    assert words["rung0"] == "no change"


def test_sides_take_turns_and_only_the_undecided_is_measured_longer(synthetic: type[Synthetic]) -> None:
    draw, loud = noise(4, 0.0001), noise(5, 0.3)
    compared(synthetic, lambda _, rung, __: loud() if rung == "rung1" else draw(), count=2)
    turns = [side for side, _ in synthetic.calls]
    assert turns[:8] == ["base", "head", "head", "base"] * 2
    assert len(turns) == 2 * paired.LOOKS[-1]
    assert synthetic.calls[0][1] == ("rung0", "rung1", "numpy")
    assert synthetic.calls[-1][1] == ("rung1", "numpy")


def test_a_budget_ends_it_but_not_before_the_first_look(synthetic: type[Synthetic]) -> None:
    loud = noise(6, 0.3)
    synthetic.ratio = staticmethod(lambda *_: loud())
    found = Comparison(PROJECT, BASE, HEAD, cells("cpu", "rung0"), {})
    found.run(0.0)
    assert found.turns == paired.LOOKS[0]


def test_the_facts_are_those_of_every_device_that_measured(
    synthetic: type[Synthetic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of GPU and CPU cells names its GPU."""

    class Told(synthetic):  # type: ignore[valid-type, misc]
        def measure_all(self, seed: int) -> None:
            super().measure_all(seed)
            device = self.cells[0].device
            self.group.facts = {device: f"the {device}", "packages": {f"of the {device}": "1"}, "harness": "2"}

    monkeypatch.setattr(paired, "Run", Told)
    Told.ratio = staticmethod(lambda *_: 1.0)
    found = Comparison(PROJECT, BASE, HEAD, [*cells("gpu", "rung0"), *cells("cpu", "rung1")], {})
    found.run(0.0)
    assert found.facts == {
        "gpu": "the gpu",
        "cpu": "the cpu",
        "packages": {"of the gpu": "1", "of the cpu": "1"},
        "harness": "2",
    }


def test_cells_are_measured_until_their_interval_is_narrow_and_the_same_launch_once(synthetic: type[Synthetic]) -> None:
    draw = noise(8, 0.01)
    synthetic.ratio = staticmethod(lambda side, rung, turn: draw() if rung == "loud" else 1.0)
    taken = cells("gpu", "loud", "quiet", "numpy")  # of which only numpy launches the same
    narrow = Comparison(PROJECT, BASE, HEAD, taken, {}, narrow={"gpu": 0.001})
    narrow.run(math.inf)
    turns = {pairs.cell.rung: len(pairs.measurements) for pairs in narrow.pairs.values()}
    assert turns == {"loud": paired.LOOKS[-1], "quiet": paired.LOOKS[0], "numpy": 1}


def linked(
    synthetic: type[Synthetic], ratios: dict[str, float], budget_s: float, count: int = 8, loud: str = ""
) -> dict[str, int]:
    """The turns that a session of links takes of each rung: `count` that are quiet, and others beside a control.
    `ratios`: of the second side, by rung; `loud`: a rung whose turns differ by far more."""
    draw, far = noise(9, 0.0002), noise(10, 0.02)

    def ratio(side: str, rung: str, _: int) -> float:
        return (far() if rung == loud else draw()) * (ratios.get(rung, 1.0) if side == "head" else 1.0)

    synthetic.ratio = staticmethod(ratio)
    names = dict.fromkeys([*(f"rung{at}" for at in range(count)), *ratios, *filter(None, [loud]), "numpy"])
    taken = cells("gpu", *names)
    controls = paired.controls_of(taken, {("transpose", "gpu"): "numpy"})
    found = linking.Links(PROJECT, BASE, HEAD, taken, controls, narrow={"gpu": 0.1})
    found.run(budget_s)
    return {pairs.cell.rung: len(pairs.measurements) for pairs in found.pairs.values()}


def test_a_session_beyond_its_time_ends_what_is_unchanged_after_two_turns_and_nothing_else(
    synthetic: type[Synthetic],
) -> None:
    """A change of 0.55 % is "no change" after two turns, and may be an event after four."""
    first = paired.LOOKS[0]
    turns = linked(synthetic, {"slower": 1.02, "faster": 0.98, "small": 1.0055}, 0.0, loud="loud")
    others = dict.fromkeys(("slower", "faster", "small", "loud", "numpy"), first)
    assert turns == {f"rung{at}": judging.EARLY for at in range(8)} | others


def test_a_session_within_its_time_takes_every_turn_until_the_first_look(synthetic: type[Synthetic]) -> None:
    assert set(linked(synthetic, {"slower": 1.02}, math.inf).values()) == {paired.LOOKS[0]}


def test_nothing_ends_early_beside_a_control_that_moved_or_without_the_noise_of_others(
    synthetic: type[Synthetic],
) -> None:
    assert set(linked(synthetic, {"numpy": 1.02}, 0.0).values()) == {paired.LOOKS[0]}
    few = judging.FEWEST - 2  # and their control
    assert set(linked(synthetic, {}, 0.0, count=few).values()) == {paired.LOOKS[0]}
    assert set(linked(synthetic, {}, 0.0, count=few + 1).values()) == {judging.EARLY}


def test_a_comparison_of_other_kinds_takes_every_turn(synthetic: type[Synthetic]) -> None:
    synthetic.ratio = staticmethod(lambda *_: 1.0)
    found = Comparison(PROJECT, BASE, HEAD, cells("gpu", *(f"rung{at}" for at in range(8))), {})
    found.run(0.0)
    assert {len(pairs.measurements) for pairs in found.pairs.values()} == {paired.LOOKS[0]}


def test_a_side_that_fails_later_on_is_not_told_of(synthetic: type[Synthetic], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first turns do not make the other side's cell a new one; a process that hung is tried once more."""
    attempts: list[str] = []

    class Hangs(synthetic):  # type: ignore[valid-type, misc]
        def measure_all(self, seed: int) -> None:
            super().measure_all(seed)
            if seed == 1 and self.package == "base":
                attempts.append(self.package)
                for cell in self.cells:
                    self.group.outcomes[cell.key] = Outcome("failed", "it hung: nothing for 60 s")

    monkeypatch.setattr(paired, "Run", Hangs)
    draw = noise(7, 0.001)
    Hangs.ratio = staticmethod(lambda *_: draw())
    found = Comparison(PROJECT, BASE, HEAD, cells("cpu", "rung0"), {})
    found.run(math.inf)
    ((pairs, judged),) = found.verdicts()
    assert attempts == ["base", "base"]
    assert (judged.word, judged.why) == ("cannot tell", "BASE: it hung: nothing for 60 s")
    assert comparison.row(pairs, judged, "=")[2:] == ["", "unknown", "> 100 %", "cannot tell"]


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ("gggb", (2, 3, [])),
        ("gbbb", (0, 1, [])),
        ("ggbbbbbbb", (1, 2, [])),
        ("gg?b", (1, 3, [2])),
        ("g?gb", (2, 3, [])),  # what cannot be judged is passed over where others decide
        ("g??bb", (0, 3, [1, 2])),
    ],
)
def test_the_first_bad_one(verdicts: str, found: tuple[int, int, list[int]]) -> None:
    words = {"g": "good", "b": "bad", "?": "cannot tell"}
    assert bisect.first_bad(len(verdicts), lambda at: words[verdicts[at]]) == found


def test_the_detectable_change_lies_beyond_the_floor() -> None:
    judged = paired.Judged("cannot tell", ratio=paired.Interval(0.0, 0.01, 0.02), floor=math.log1p(0.005))
    assert judged.detectable == pytest.approx(1.005 * math.exp(0.02) - 1)


@pytest.mark.parametrize(("log", "is_alike"), [(0.004, True), (-0.004, True), (0.006, False), (-0.006, False)])
def test_cells_that_launch_the_same_are_alike_unless_their_times_differ(log: float, is_alike: bool) -> None:
    (cell,) = cells("gpu", "padded")
    both = ({"seconds": 1.0, "identity": "x"}, {"seconds": math.exp(log), "identity": "x"})
    assert paired.Pairs(cell, {0: both}).is_alike is is_alike  # type: ignore[dict-item]


def test_a_control_whose_own_launch_differs_makes_nothing_doubtful(synthetic: type[Synthetic]) -> None:
    synthetic.same = frozenset()
    slower = {"numpy": 1.08, "canary": 1.0}
    words = compared(synthetic, lambda side, rung, _: slower.get(rung, 1.03) if side == "head" else 1.0)
    assert {words[f"rung{at}"] for at in range(5)} == {"worse"}
