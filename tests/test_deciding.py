"""How many turns would decide what cannot be told, as documents say it."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwatch.api.result import Compared
from kernelwatch.commands import campaign, measure, versus
from kernelwatch.comparison.paired import FALSE_ALARMS, LOOKS, Judged, Pairs, judge
from kernelwatch.comparison.spending import PROCESSES, confirmed, level
from kernelwatch.plan.cells import Cell
from kernelwatch.report import documents
from kernelwatch.report.deciding import ALONE, turns_to_decide
from tests.schemas import check
from tests.test_api_results import result


def logs(middle: float, spread: float, turns: int) -> list[float]:
    """Log ratios of turns whose winsorized standard deviation is `spread`, however many they are."""
    raw = [spread * (-1) ** turn for turn in range(turns)]
    scale = math.sqrt((turns - 1) / turns)
    return [middle + scale * one for one in raw]


def told(judged: Judged) -> tuple[float, float]:
    low, high = judged.bounds
    return 1 + low, 1 + high


@pytest.mark.parametrize("middle", [0.0, 0.004, 0.0065, -0.009, 0.011])
@pytest.mark.parametrize("spread", [0.002, 0.004, 0.007])
def test_so_many_turns_decide_and_fewer_do_not(middle: float, spread: float) -> None:
    """By the rule itself: turns that differ as the first did."""

    def after(turns: int) -> Judged:
        return judge(logs(middle, spread, turns), {}, floor=0.005, within=0.01, level=ALONE)

    first = after(LOOKS[0])
    assert first.word == "cannot tell"
    decided = [turns for turns in LOOKS if after(turns).word != "cannot tell"]
    least = min(decided, default=None)
    assert turns_to_decide(told(first), LOOKS[0], first.why, ALONE) == least
    assert turns_to_decide(told(after(6)), 6, after(6).why, ALONE) == (None if 6 in decided else least)


def test_some_are_decided_sooner_than_others_and_some_never() -> None:
    """So that the test above tells something."""
    open_ = [judge(logs(0, spread, 4), {}, floor=0.005, within=0.01, level=ALONE) for spread in (0.002, 0.004, 0.1)]
    found = [turns_to_decide(told(one), 4, one.why, ALONE) for one in open_]
    assert found[0] is not None
    assert found[1] is not None
    assert LOOKS[0] < found[0] < found[1] <= LOOKS[-1]
    assert found[2] is None


@pytest.mark.parametrize(
    ("bounds", "turns", "why"),
    [
        ((0.99, 1.02), 6, "the memory canary, alike on both sides, moved by +3.00 +- 0.10 %"),  # more turns change none
        ((0.99, 1.02), 2, "only 2 of at least 4 turns"),
        ((0.999, 1.001), 6, ""),  # it is decided
        ((None, None), 6, "its interval is neither within 1 % nor beyond 0.5 %"),
        ((0.0, math.inf), 6, "its interval is neither within 1 % nor beyond 0.5 %"),
        ((0.99, 1.0509), 6, "its interval is neither within 2 % nor beyond 2 %"),  # 2 % itself is never decided
    ],
)
def test_what_turns_do_not_decide(bounds: tuple[float | None, float | None], turns: int, why: str) -> None:
    assert turns_to_decide(bounds, turns, why, ALONE) is None


# --- the documents ----------------------------------------------------------------------------------------------------


class Open:
    """A comparison of a cell that cannot be told, beside one that is decided and a control."""

    tests = len(LOOKS) + 1
    turns = 4

    def __init__(self, *spreads: float) -> None:
        self.pairs = {}
        for number, spread in enumerate(spreads):
            cell = Cell("transpose", f"rung{number}", "float32", (256, 256), "cold", "gpu")
            own: dict[int, Any] = {}
            for turn, log in enumerate(logs(0.0, spread, 4)):
                state = {"clock64_mhz": 1980.0, "throttled": ["power"] if turn == 3 else []}
                base = {"seconds": 1.0} | state
                own[turn] = (base, base | {"seconds": math.exp(log), "clock64_mhz": 1965.0})
            self.pairs[cell.key] = Pairs(cell, own)
        self.judged = set(self.pairs)

    def verdicts(self) -> list[tuple[Pairs, Judged]]:
        return [
            (pairs, judge([*pairs.logs().values()], {}, floor=0.005, within=0.01, level=FALSE_ALARMS / self.tests))
            for pairs in self.pairs.values()
        ]


def document(*spreads: float, turn_s: float | None = 10.0) -> Any:
    comparison: Any = Open(*spreads)
    known = {"consents": SimpleNamespace(damaged=""), "counts": lambda: dict.fromkeys(WORDS, (0, 0))}
    empty: dict[str, Any] = {"differences": [], "failures": {}, "changed": {}, "new": {}, "gone": [], "notes": []}
    figures = {"compared": 0, "same": 0, "evidence": "", "summary": "", "whole": True, "undecided": ["a cell"]}
    both = {"comparison": comparison, "verdicts": comparison.verdicts, "exact_only": False, "alike": False}
    report: Any = SimpleNamespace(**known, **empty, **figures, **both, is_compared=True)
    found = documents.versus(report, ("a", "b"), ("0" * 40, "1" * 40), "host", 2, turn_s)
    check(found, "versus")
    return found


WORDS = ("worse", "accepted", "better", "repaired")


def test_a_comparison_says_which_turns_and_seconds_would_decide_it() -> None:
    found = document(0.0001, 0.002, 0.004)
    turns = [cell["turns_to_decide"] for cell in found["cells"]]
    assert [cell["verdict"] for cell in found["cells"]] == ["no change", "cannot tell", "cannot tell"]
    assert turns[0] is None
    assert LOOKS[0] < turns[1] < turns[2]
    assert found["seconds_to_decide"] == 10 * turns[2]
    assert document(0.0001)["seconds_to_decide"] is None
    assert document(0.002, 0.1)["seconds_to_decide"] is None  # no time decides both
    assert document(0.002, turn_s=None)["seconds_to_decide"] is None


def test_a_comparison_says_the_clocks_and_what_limited_them() -> None:
    (cell,) = document(0.0001)["cells"]
    assert (cell["base_clock_mhz"], cell["head_clock_mhz"], cell["limits"]) == (1980, 1965, ["power"])


def test_what_a_turn_takes() -> None:
    assert versus._turn_s({0: 100.0, 1: 112.0, 2: 120.0}) == 10
    assert versus._turn_s({0: 100.0}) is None
    assert versus._turn_s({}) is None


def test_a_comparison_of_functions_says_it() -> None:
    one = judge(logs(0.0, 0.004, 4), {}, floor=0.005, within=0.01, level=ALONE)
    own = result(conditions={"took_s": 2.0})
    open_ = Compared(own, own, 1.0, told(one), "cannot tell", one.why, one.detectable, (1.0,) * 4)
    found = json.loads(json.dumps(measure.document(open_, 2)))
    check(found, "measure")
    more = turns_to_decide(told(one), 4, one.why, ALONE)
    assert more is not None
    said = found["comparison"]
    assert (said["turns_to_decide"], said["seconds_to_decide"]) == (more, 2.0 * more / 4)


@pytest.mark.parametrize("spread", [0.012, 0.02])
def test_a_confirmation_says_how_many_processes_would_decide_it(spread: float) -> None:
    def after(processes: int) -> Judged:
        return confirmed(logs(0.0, spread, processes), 1, 0.005, 0.01)

    one = after(PROCESSES)
    assert one.word == "cannot tell"
    more = turns_to_decide(told(one), PROCESSES, one.why, level(1), range(PROCESSES + 2, campaign.MOST_PROCESSES, 2))
    assert more is not None
    assert after(more).word == "no change"
    assert after(more - 2).word == "cannot tell"
