"""How a change stands, and what became of one that a commit announced: of seconds, and of rates."""

import math
from dataclasses import replace

import pytest

from kernelwatch.detect.chain import chains
from kernelwatch.detect.events import JudgedSeries, events
from kernelwatch.detect.linked import linked
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result
from kernelwatch.detect.states import States
from kernelwatch.history.confirmations import Confirmation, Word
from kernelwatch.history.decisions import Accepted, Decision
from kernelwatch.history.expected import Expected
from tests.test_chain import COMMITS as COMMITS_OF_LINKS
from tests.test_chain import POSITIONS, a_link, a_session

STEP, COMMITS = 10, 20
NAME = "op/rung float32 8x8 cold"
LINE = [f"{at:08x}" * 5 for at in range(COMMITS)]


def a_series(ratio: float, rate: bool, commits: int = COMMITS, later: float = 1.0) -> JudgedSeries:
    """Seconds or rates that change by a factor at STEP, and by another one four commits later."""
    levels = [ratio ** (at >= STEP) * later ** (at >= STEP + 4) for at in range(commits)]
    results = [
        Result(LINE[at], Point(at, level * math.exp(1e-4 * (-1) ** at), 2e-4)) for at, level in enumerate(levels)
    ]
    return JudgedSeries("a.b", {}, {"machine": "m", "branch": "main"}, rate, False, results, NAME, shows=NAME)


def states(series: JudgedSeries, announced: float | None = None, at: int = STEP, **more: object) -> States:
    told = [] if announced is None else [(Expected(LINE[at], "Ada", "it", NAME, announced), at)]
    return States(events(series.changes()), {}, [series], expected={"main": told}, **more)  # type: ignore[arg-type]


def became(series: JudgedSeries, announced: float, at: int = STEP) -> str:
    (outcome,) = states(series, announced, at).outcomes({"main": LINE}, [series])
    return outcome.state


@pytest.mark.parametrize("rate", [False, True])
def test_what_came_is_compared_with_what_was_announced_in_the_direction_that_is_worse(rate: bool) -> None:
    worse = -1 if rate else 1
    slower, faster = (a_series(1 + sign * 0.1, rate) for sign in (worse, -worse))
    for series, announced, state in (
        (slower, 0.1, "came"),
        (slower, 0.05, "larger"),
        (slower, 0.2, "smaller"),
        (slower, -0.1, "larger"),
        (faster, -0.1, "came"),
        (faster, -0.05, "came"),  # better than announced
        (faster, -0.2, "larger"),
        (faster, 0.1, "smaller"),
    ):
        assert became(series, worse * announced) == state, (announced, state)


def test_what_is_announced_is_of_its_commit_and_no_other() -> None:
    series = a_series(1.1, rate=False)
    places = (STEP - 1, STEP, STEP + 1)
    assert [became(series, 0.1, at) for at in places] == ["missing", "came", "missing"]
    standings = [own.of(own.events[0]) for own in (states(series, 0.1, at) for at in places)]
    assert [each.state for each in standings] == ["new", "accepted", "new"]


def test_what_did_not_come_is_missed_if_it_would_have_shown() -> None:
    still = a_series(1.0, rate=False)
    assert became(still, 0.1) == "missing"
    assert became(still, 0.004) == "open"  # too small to show
    assert became(still, 0.1, COMMITS - 1) == "open"  # one commit more must be measured
    assert became(still, 0.1, 0) == "open"  # nothing before it


@pytest.mark.parametrize("rate", [False, True])
@pytest.mark.parametrize(("size", "is_open"), [(0.1, False), (0.05, True), (0.2, False), (-0.1, True)])
def test_what_is_accepted_or_expected_covers_what_is_no_worse(rate: bool, size: float, is_open: bool) -> None:
    worse = -1 if rate else 1
    series = a_series(1 + worse * 0.1, rate)
    (change,) = series.changes()
    bounds = worse * size - 0.01, worse * size + 0.01
    decision = Decision(change.id, "Ada <a@b>", "now", "why", (Accepted(change.id, NAME, worse * size, bounds),))
    for own in (
        states(series, accepted={change.id: (decision, decision.changes[0])}),
        states(series, worse * size),
    ):
        standing = own.of(own.events[0].changes[0])
        assert (standing.is_open, standing.state) == (is_open, "new" if is_open else "accepted")


@pytest.mark.parametrize("rate", [False, True])
@pytest.mark.parametrize(
    ("later", "word", "is_open"),
    [(0.05, "not tried", True), (0.05, "refuted", False), (-0.03, "not tried", False)],
)
def test_what_is_worse_later_is_not_accepted_unless_it_was_refuted(
    rate: bool, later: float, word: Word, is_open: bool
) -> None:
    worse = -1 if rate else 1
    series = a_series(1 + worse * 0.1, rate, later=1 + worse * later)
    first, second = series.changes()
    assert (first.last.commit, second.last.commit) == (LINE[STEP], LINE[STEP + 4])
    decision = Decision(first.id, "Ada", "now", "why", (Accepted(first.id, NAME, worse * 0.1),))
    key = NAME, second.before.commit, second.last.commit
    accepted = {first.id: (decision, decision.changes[0])}
    verdicts = {"m": {key: Confirmation(*key, word, worse * later)}}
    own = States(events([first, second]), verdicts, [series], accepted)
    assert (own.of(first).is_open, own.of(first).state) == (is_open, "new" if is_open else "accepted")


def test_what_was_refuted_did_not_come() -> None:
    series = a_series(1.1, rate=False)
    (change,) = series.changes()
    key = NAME, change.before.commit, change.last.commit
    told = {"main": [(Expected(LINE[STEP], "Ada", "it", NAME, 0.1), STEP)]}
    own = States(events([change]), {"m": {key: Confirmation(*key, "refuted", 0.1)}}, [series], expected=told)
    (outcome,) = own.outcomes({"main": LINE}, [series])
    assert outcome.state == "missing"


def test_one_link_says_that_what_was_announced_did_not_come() -> None:
    """A full run needs another commit, which tells a change from a single bad run."""
    [series] = linked([], {"m": chains([a_session(1, 2, a_link(0.0))], POSITIONS)}, "main")
    told = {"main": [(Expected(COMMITS_OF_LINKS[2], "Ada", "it", series.cell, 0.1), 2)]}
    (outcome,) = States([], {}, [], expected=told).outcomes({"main": COMMITS_OF_LINKS}, [series])
    assert outcome.state == "missing"


@pytest.mark.parametrize(("values", "how"), [((8, 9, 8), "undone"), ((8, 9, 7), "back")])
def test_an_exact_figure_that_is_what_it_was_is_undone(values: tuple[int, ...], how: str) -> None:
    results = [Result(LINE[at], Point(at, float(value))) for at, value in enumerate(values)]
    series = JudgedSeries("a.b", {}, {"machine": "m", "branch": "main"}, False, True, results)
    own = states(series)
    standing = own.of(own.events[-1])
    assert standing.ended
    assert (standing.state, standing.ended.how, standing.ended.commit) == ("fixed", how, LINE[2])


def test_an_event_stands_as_long_as_one_of_its_changes_does() -> None:
    """The larger improvement of two was lost again later."""
    lost = replace(a_series(0.9, rate=False, later=1 / 0.9), cell="op/lost float32 8x8 cold")
    kept = a_series(0.95, rate=False)
    own = States(events([*lost.changes(), *kept.changes()]), {}, [lost, kept])
    (event,) = (each for each in own.events if each.kind == "improvement")
    assert [own.of(change).state for change in event.changes] == ["undone", "new"]
    assert own.of(event).state == "new"
