"""What a long session of links saves if it ends what is unchanged early: by recorded turns, and simulated."""

import json
import math
from dataclasses import replace

import pytest

from kernelwatch.comparison.linking import BUDGET_S
from kernelwatch.comparison.paired import LOOKS
from kernelwatch.detect.judging import EARLY
from kernelwatch.history.links import Session
from lab import early, figures, links, pools
from lab.early import Rule, Told
from lab.pools import a_link, a_session

NONE, ENGINE, WORD = early.RULES
SEED = 3


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    return links.every_session()


def test_the_record_has_enough_launches(sessions: list[Session]) -> None:
    own = early.asked(sessions)
    assert len(own) > 25
    assert sum(len(session.changed) for session in own) > 1000


def test_no_recorded_event_is_lost_and_no_change_alone_loses_some(sessions: list[Session]) -> None:
    engine, word = early.told(sessions, ENGINE), early.told(sessions, WORD)
    assert engine.lost == engine.large == 0
    assert engine.ended > 0.7 * engine.still
    assert word.lost > 0
    assert early.told(sessions, NONE).saved_s == 0


def test_a_rule_that_ends_everything_loses_events(sessions: list[Session]) -> None:
    """What holds the figures of the others."""
    every = early.told(sessions, Rule("all", lambda own: {link.cell for link in own if not link.control}))
    assert min(every.lost, every.large, every.undecided) > 0


def test_seconds_are_saved_of_long_sessions_only() -> None:
    still = [a_link(str(at), [0.001 * sign for sign in (1, -1, -1, 1)]) for at in range(30)]
    for seconds, is_long in ((BUDGET_S + 1, True), (BUDGET_S - 1, False)):
        found = Told()
        found.take(replace(a_session(0, 1, still), seconds=seconds), ENGINE)
        assert (found.still, found.ended) == (30, 30)
        assert found.seconds == (seconds if is_long else 0)
        most = seconds * (LOOKS[0] - EARLY) / LOOKS[0]
        assert (0 < found.saved_s < most) if is_long else not found.saved_s


def test_simulated_steps_are_found_as_often_and_false_events_stay_rare() -> None:
    known = pools.recorded(links.MACHINE)
    none, engine = (early.simulated(known, SEED, rule, sessions=12, count=5) for rule in (NONE, ENGINE))
    assert none.turns == LOOKS[0]
    assert engine.turns < 0.7 * LOOKS[0]
    assert max(none.false, engine.false) <= 1.5
    assert engine.steps[0.01] > none.steps[0.01] - 0.05
    assert engine.missed < none.missed + 0.01
    assert engine.gradual[0] <= none.gradual[0] + 5
    assert 0 < engine.gradual[1] < none.gradual[1]


def test_the_page_tells_what_the_recorded_turns_say(sessions: list[Session]) -> None:
    begin, end = figures.marks("early", "scripts/lab/links")
    block = links.PAPER.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()
    is_there = block == early.recorded_table(sessions)
    assert is_there, "scripts/lab/links --only early writes it"


def test_the_page_of_costs_tells_what_a_commit_that_changes_all_saves(sessions: list[Session]) -> None:
    lines = (links.ROOT / "docs" / "costs.jsonl").read_text(encoding="utf-8").splitlines()
    (launches,) = {one["cells"] for one in map(json.loads, lines) if one["kind"] == "everything"}
    own = early.told(sessions, ENGINE)
    text = " ".join((links.ROOT / "docs" / "links.md").read_text(encoding="utf-8").split())
    assert f"{100 * own.ended / own.still:.0f} % of the unchanged launches end after two turns" in text
    assert f"{100 * early.saved_of_all(sessions, launches):.0f} % of the measuring" in text
    assert math.isclose(early.saved_of_all(sessions, 1), 0.1 * 0.5 * own.ended / own.still / (3.5 + 0.1))
