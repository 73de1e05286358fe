"""The simulation of a history over many GPUs: what links find beside other designs, and what their parts are for."""

import math
from pathlib import Path

import numpy as np
import pytest

from kernelwatch.detect.judging import LEVEL
from lab import figures, links, pools
from lab.gpus import sessions_in
from lab.links import CHANGED, Disturbed
from lab.pools import Event, Recorded, Tally

pytestmark = pytest.mark.xdist_group("pools")  # what was recorded is read once for all of these

SEED = 3
CROSSING = ("raw levels over all GPUs", "difference to the previous commit")


@pytest.fixture(scope="module")
def known() -> Recorded:
    return pools.recorded(links.MACHINE)


def test_the_record_has_launches_of_several_gpus(known: Recorded) -> None:
    assert known.gpus >= 5
    assert len(known.launches) > 300 <= pools.LAUNCHES
    assert known.links > 100
    assert all(len(launch.rest) >= pools.SHARED for launch in known.launches)
    assert 0.0001 < float(np.median([np.std(launch.rest) for launch in known.launches])) < 0.01


def test_a_new_launch_differs_as_far_from_gpu_to_gpu_as_the_old_one(known: Recorded) -> None:
    rng = np.random.default_rng(SEED)
    launches = [known.launches[at] for at in rng.choice(len(known.launches), 300, replace=False)]
    none = np.zeros((300, 20))
    old = pools.responses(rng, launches, none)
    new = pools.correlated(rng, launches, old, none, 0.7)
    assert float(new.std()) == pytest.approx(float(old.std()), rel=0.15)
    assert float(np.corrcoef(old.ravel(), new.ravel())[0, 1]) == pytest.approx(0.7, abs=0.1)
    assert pools.correlated(rng, launches, old, none, 1.0) is old


@pytest.fixture(scope="module")
def told(known: Recorded) -> dict[str, Tally]:
    """Designs on one history of 150 commits."""
    designs = [*CROSSING, "links, 6 turns", "links at equal cost, 26 turns"]
    return pools.compared(known, SEED, 1, designs, commits=150)


def test_links_find_more_steps_than_designs_that_cross_gpus_with_no_more_false_events(told: dict[str, Tally]) -> None:
    few, equal = told["links, 6 turns"], told["links at equal cost, 26 turns"]
    assert few.steps[0.01] > 20
    for name in CROSSING:
        other = told[name]
        assert equal.share(0.01) > other.share(0.01)
        assert few.soon > other.soon
        assert max(few.false, equal.false) <= other.false
    assert few.cost_s < 0.3 * told[CROSSING[0]].cost_s
    assert equal.cost_s < 1.1 * told[CROSSING[0]].cost_s
    assert few.share(0.005) < 0.2  # the price: what is not beyond the floor is no event


def test_the_same_seed_makes_the_same_figures(known: Recorded, told: dict[str, Tally]) -> None:
    assert pools.compared(known, SEED, 1, ["links, 6 turns"], commits=150) == {"links, 6 turns": told["links, 6 turns"]}


def test_a_wrong_sign_a_wrong_commit_and_a_late_flag_are_told_apart(known: Recorded) -> None:
    one = pools.history(np.random.default_rng(SEED), known, commits=30)
    launch, commit = np.argwhere(np.isclose(abs(one.step), math.log1p(0.01), rtol=0.02))[0].tolist()
    sign = 1 if one.step[launch, commit] > 0 else -1
    right, wrong = Tally(), Tally()
    right.take(one, [Event(launch, commit, commit, sign)], 0, lambda *_: False)
    assert (right.found[0.01], right.soon, right.false, right.elsewhere) == (1, 0, 0, 0)
    wrong.take(one, [Event(launch, commit, commit, -sign), Event(launch, 0, 0, sign)], 0, lambda *_: True)
    assert (wrong.found[0.01], wrong.false) == (0, 2)
    late = Tally()
    late.take(one, [Event(launch, commit - 1, commit + 1, sign)], 0, lambda *_: True)
    assert (late.found[0.01], late.elsewhere) == (1, 1)


def test_links_on_one_gpu_are_misled_by_launches_that_respond_to_it_and_three_gpus_are_not(known: Recorded) -> None:
    asked, count = links.on_gpus(known, SEED, 0.9, trials=10)
    one, three, cheap, _ = asked.values()
    assert one.false > 10 * count / 1000
    assert three.false < one.false / 3
    assert cheap.false < one.false / 3
    assert cheap.turns < 0.5 * three.turns
    alike, _ = links.on_gpus(known, SEED, 1.0, trials=10)
    assert not any(rule.false for rule in alike.values())


def test_anchors_bound_the_drift(known: Recorded) -> None:
    without, held = (links.drift(known, SEED, 0.0002, 0.0, anchored=anchored, runs=2) for anchored in (False, True))
    assert float(without.off.mean()) > 0.005
    assert abs(float(held.off.mean())) < 0.4 * float(without.off.mean())
    assert held.within(0.5) < 0.5 * without.within(0.5)
    grown = links.drift(known, SEED, 0.0, 0.0015, anchored=True, runs=2)
    assert grown.gradual > 0.9 * len(grown.off)  # how many it is exactly depends on what is recorded
    assert grown.within(0.9) < 0.01


def test_controls_stop_what_moves_one_side_and_turns_stop_what_moves_both(known: Recorded) -> None:
    def changed(kind: Disturbed, *, controlled: bool) -> float:
        told = links.words(known, SEED, kind, controlled=controlled, sessions=150)
        return sum(word in CHANGED for word in told) / len(told)

    side, middle = Disturbed("one side", side=0.02), Disturbed("both sides", middle=0.03)
    assert changed(side, controlled=False) > 0.9
    assert changed(side, controlled=True) < 0.1
    assert changed(middle, controlled=False) <= 0.01
    assert changed(Disturbed("true", true=0.02), controlled=True) > 0.9


def test_a_gpu_that_slows_down_moves_the_turn_in_which_it_does_and_no_other() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(50):
        added = links.slowed(rng, 4, 0.03)
        assert set(np.round(abs(added), 9).ravel()) <= {0.0, 0.03}
        assert int((abs(added) > 0).sum(axis=1).max()) <= 1


def test_moderated_noise_finds_more_and_stays_below_the_promised_false_events(known: Recorded) -> None:
    still = links.verdicts(known, SEED, 0.0, 4, links.CELLS, 6_000)
    slower = links.verdicts(known, SEED, 0.01, 4, links.CELLS, 1_500)
    assert links.share_of_changed(still["moderated"]) <= LEVEL
    assert links.share_of_changed(slower["moderated"]) > 1.5 * links.share_of_changed(slower["plain t"])


def test_the_page_has_what_links_say_of_the_planted_history() -> None:
    assert links.planted_table(sessions_in(links.PLANTED / "links")) in links.PAPER.read_text()


def test_every_table_has_its_place_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = links.PAPER.read_text()
    for name in links.BLOCKS:
        begin, end = figures.marks(name, "scripts/lab/links")
        written = text.split(begin)[1].split(end)[0].strip()
        assert written.startswith("| ")
    page = tmp_path / "links.md"
    page.write_text(text)
    monkeypatch.setattr(links, "PAPER", page)
    monkeypatch.setattr(links, "BLOCKS", dict.fromkeys(links.BLOCKS, lambda *_: "a new table"))
    assert links.main([]) == 0
    assert page.read_text().count("\na new table\n") == len(links.BLOCKS)


@pytest.mark.parametrize("name", ["history", "between", "alike", "planted", "nvrtc", "triton", "warp"])
def test_the_page_tells_what_was_recorded(known: Recorded, name: str) -> None:
    begin, end = figures.marks(name, "scripts/lab/links")
    block = links.PAPER.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()
    is_there = block == links.BLOCKS[name](known, SEED, 1)
    assert is_there, f"scripts/lab/links --only {name} writes it"
