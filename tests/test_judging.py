"""How often a link is called a change that is none, and how often a change is found: at the noise of recorded links."""

import itertools
import math
import random
import statistics
from collections import Counter
from dataclasses import replace

import pytest

from kernelwatch.comparison.paired import LOOKS, trimmed_mean
from kernelwatch.detect.judging import EARLY, FEWEST, SEEN, WIDER, judge, unchanged
from kernelwatch.history import links
from kernelwatch.history.links import Link, Session
from tests.pages import RECORDED
from tests.repositories import ROOT

CELLS = 30  # of a session


def a_link(cell: str, logs: list[float], **more: object) -> Link:
    made = Link(cell, *trimmed_mean(logs), tuple(logs), (1e-5, 1e-5), ("old", "new"))
    return replace(made, **more)  # type: ignore[arg-type]


def a_session(*own: Link) -> Session:
    return Session("step", "a" * 40, "b" * 40, "2026-11-25T00:00:00", 1.0, {}, 0, links=own)


UNTIL = "2026-11-27T12"


def noises() -> list[float]:
    """The deviation of one turn of the links that were recorded before UNTIL: cold cells and hot ones, free and limited
    by power. Later ones are of other cells, so that they would change how many changes are found by the same rule."""
    recorded = [session for session in links.read(ROOT / "results" / RECORDED)[0] if session.at < UNTIL]
    own = [statistics.stdev(link.logs) for session in recorded for link in session.links if len(link.logs) >= 4]
    assert len(own) > 100
    return [min(own), *statistics.quantiles(own, n=200), max(own)]


def counted(change: float, turns: int, sessions: int, seed: int) -> Counter[str]:
    """The verdicts on links of this change, with the noise of recorded links."""
    rng, deviations = random.Random(seed), noises()
    words: Counter[str] = Counter()
    for _ in range(sessions):
        sigmas = rng.choices(deviations, k=CELLS)
        own = [
            a_link(str(at), [rng.gauss(math.log1p(change), sigma) for _ in range(turns)])
            for at, sigma in enumerate(sigmas)
        ]
        words.update(judged.word for judged in judge(a_session(*own)).values())
    return words


@pytest.mark.parametrize("turns", [4, 6])
def test_of_a_thousand_links_without_a_change_at_most_one_is_called_a_change(turns: int) -> None:
    words = counted(0.0, turns, 200, seed=turns)
    assert words["worse"] + words["better"] <= words.total() / 1000
    assert words["no change"] > 0.9 * words.total()


@pytest.mark.parametrize(("change", "turns", "share"), [(0.01, 6, 0.85), (0.02, 4, 0.9), (-0.05, 4, 0.97)])
def test_changes_are_found(change: float, turns: int, share: float) -> None:
    words = counted(change, turns, 100, seed=1)
    right, wrong = ("worse", "better") if change > 0 else ("better", "worse")
    assert words[right] >= share * words.total()
    assert not words[wrong]


QUIET = [[0.0003, -0.0002, 0.0001, -0.0001], [0.0002, -0.0003, 0.0000, 0.0002]]


def test_a_change_is_doubtful_if_a_control_moved_too() -> None:
    slower = a_link("slower", [0.03, 0.0302, 0.0299, 0.03])
    still = a_link("still", QUIET[0], identities=("x", "x"), control=True)
    moved = a_link("moved", [0.02, 0.0201, 0.0199, 0.02], identities=("x", "x"), control=True)
    assert judge(a_session(slower, still))["slower"].word == "worse"
    told = judge(a_session(slower, moved))["slower"]
    assert (told.word, told.why) == ("cannot tell", "moved, alike on both sides, moved by +2.02 %")


def test_the_control_that_moved_most_counts_in_whichever_direction() -> None:
    slower = a_link("slower", [0.03, 0.0302, 0.0299, 0.03])
    moved = [
        a_link(name, [log + each for each in QUIET[0]], identities=("x", "x"), control=True)
        for name, log in (("a little", 0.008), ("most", -0.02), ("less", 0.01))
    ]
    told = judge(a_session(slower, *moved))["slower"]
    assert told.why == "most, alike on both sides, moved by -1.98 %"
    assert told.error > 0.019


def test_a_control_of_the_cpu_says_nothing_of_a_gpu_and_neither_does_its_noise() -> None:
    slower = [a_link(f"slower {at}", [0.03, 0.0302, 0.0299, 0.03]) for at in range(6)]
    moved = a_link("moved", [0.2, 0.201, 0.199, 0.2], identities=("x", "x"), control=True, device="cpu")
    lucky = a_link("lucky", [0.006, 0.03, -0.02, 0.01], device="cpu")
    told = judge(a_session(*slower, moved, lucky))
    assert told["slower 0"].word == "worse"
    assert told["lucky"].word == "cannot tell"
    assert told["lucky"].freedom == 3  # its own: one link of a CPU does not tell the noise of the session


def test_a_link_that_is_not_believed_is_known_no_better_than_its_control_moved() -> None:
    moved = a_link("moved", [0.02, 0.0201, 0.0199, 0.02], identities=("x", "x"), control=True)
    told = judge(a_session(a_link("still", QUIET[0]), moved))["still"]
    assert told.word == "cannot tell"
    low, high = told.bounds
    assert low < -0.02
    assert high > 0.02


def test_a_control_that_moved_explains_no_change_that_is_far_larger() -> None:
    moved = a_link("moved", [0.02, 0.0201, 0.0199, 0.02], identities=("x", "x"), control=True)
    told = judge(a_session(a_link("slower", [3.0, 3.001, 2.999, 3.0]), moved))["slower"]
    assert (told.word, told.why) == ("worse", "")


def test_the_same_launch_is_no_slower_whatever_its_times_say() -> None:
    told = judge(a_session(a_link("own", [0.03, 0.0302, 0.0299, 0.03], identities=("x", "x"))))["own"]
    assert told.word == "cannot tell"
    assert "launch the same" in told.why
    assert told.error > 0.03  # so that it moves no level


def test_four_turns_that_agree_by_chance_are_not_taken_at_their_word() -> None:
    """0.6 % with next to no spread, in a session whose links spread by 0.5 %: alone it would be slower."""
    lucky = a_link("lucky", [0.0060, 0.00601, 0.00599, 0.0060])
    noisy = [a_link(f"noisy {at}", [sign * 0.005 for sign in order])
             for at, order in enumerate(itertools.permutations((1, -1, 1, -1)))]  # fmt: skip
    assert judge(a_session(lucky))["lucky"].word == "worse"
    assert judge(a_session(lucky, *noisy))["lucky"].word == "cannot tell"


def test_what_has_the_same_value_in_each_turn_does_not_tell_the_noise_of_times() -> None:
    """Memory and counts of asv's benchmarks, beside times that did not change. Nor are they as uncertain as these."""
    rng = random.Random(5)
    exact = [a_link(f"exact {at}", [0.01] * 4) for at in range(8)]
    words: Counter[str] = Counter()
    for _ in range(400):
        times = drawn(rng, 0.0, 4, FEWEST, sigma=0.03)
        told = judge(a_session(*times, *exact))
        words.update(told[link.cell].word for link in times)
        assert told["exact 0"].word == "worse"
        assert judge(a_session(*times, a_link("same", [0.0] * 4)))["same"].word == "no change"
    assert words["worse"] + words["better"] <= words.total() / 1000
    assert judge(a_session(*exact))["exact 0"].word == "worse"


def drawn(rng: random.Random, change: float, turns: int, count: int, sigma: float = 0.001) -> list[Link]:
    log = math.log1p(change)
    return [a_link(f"{change} {turns} {at}", [rng.gauss(log, sigma) for _ in range(turns)]) for at in range(count)]


def test_what_is_surely_within_the_floor_is_unchanged_and_a_small_change_is_not() -> None:
    def links_of(log: float, count: int = 10, apart: float = 0.0007) -> list[Link]:
        return [a_link(f"{log} {at}", [log + apart, log - apart]) for at in range(count)]

    still, small, slower = links_of(0.0, 20), links_of(0.007), links_of(0.02)
    control = a_link("control", [0.0007, -0.0007], control=True)
    told = judge(a_session(*still, *small, *slower, control))
    assert {told[link.cell].word for link in [*still, *small]} == {"no change"}
    assert {told[link.cell].word for link in slower} == {"worse"}
    assert unchanged([*still, *small, *slower, control]) == {link.cell for link in still}
    assert not unchanged([*still, *small, *slower, a_link("control", [0.0207, 0.0193], control=True)])


def test_without_the_noise_of_a_session_nothing_is_surely_unchanged() -> None:
    """Two turns alone agree by chance; links of a CPU do not tell the noise of a GPU."""
    few = drawn(random.Random(2), 0.0, EARLY, FEWEST - 1, sigma=1e-6)
    assert {judged.word for judged in judge(a_session(*few)).values()} == {"no change"}
    assert not unchanged(few)
    other = [replace(link, cell=f"cpu {link.cell}", device="cpu") for link in few]
    assert not unchanged([*few, *other])


def test_the_noise_of_a_session_is_taken_for_the_turns_of_each_link() -> None:
    """However many of its links ended early: the intervals miss the true ratio no more often, and steps are found."""
    rng, missed, found = random.Random(3), Counter[int](), Counter[int]()
    for early in (0, 95):
        for _ in range(40):
            own = [*drawn(rng, 0.0, EARLY, early), *drawn(rng, 0.0, LOOKS[0], 100 - early)]
            step = drawn(rng, 0.0072, LOOKS[0], 20)
            told = judge(a_session(*own, *step))
            missed[early] += sum(abs(told[link.cell].log) > told[link.cell].half() for link in own)
            found[early] += sum(told[link.cell].word == "worse" for link in step)
    assert 0.04 < missed[95] / 4000 < missed[0] / 4000 + 0.02 < 0.11
    assert found[95] == pytest.approx(found[0], rel=0.1)
    assert 0.2 < found[0] / 800 < 0.9


def test_early_links_are_compared_with_those_of_the_first_look() -> None:
    assert math.sqrt(LOOKS[0] / EARLY) == WIDER
    rng = random.Random(4)
    medians = [statistics.median(link.error for link in drawn(rng, 0.0, turns, 40_000)) for turns in (EARLY, LOOKS[0])]
    assert medians[0] / medians[1] == pytest.approx(SEEN, rel=0.02)


def test_full_runs_have_no_turns_and_their_noise_is_their_own() -> None:
    own = [Link(str(at), 0.0, 0.001, 2, (), (1e-5, 1e-5)) for at in range(6)]
    assert all(judged.error == pytest.approx(0.001) for judged in judge(a_session(*own)).values())
