"""Several configured branches: what they share is told once."""

from pathlib import Path

import pytest

from kernelwatch.detect.chain import chains
from kernelwatch.detect.events import events
from kernelwatch.detect.linked import linked
from kernelwatch.detect.states import States
from kernelwatch.history.expected import Expected
from kernelwatch.publish.events import _once
from tests.test_chain import CELL, COMMITS, a_link, a_session
from tests.test_evidence import Small, regressions


def two_branches(tmp_path: Path) -> Small:
    small = Small.made(tmp_path, ["main", "release"])
    small.main(8)
    return small


def checked_out(small: Small, *what: str) -> None:
    small.project.git("checkout", "-q", *what)


def test_a_regression_that_two_branches_have_is_told_once(tmp_path: Path) -> None:
    small = two_branches(tmp_path)
    slow = small.slow()
    checked_out(small, "-b", "release")
    slower = [small.measure(small.commit("slower"), 2e-4, "slower") for _ in range(3)]
    checked_out(small, "main")
    small.slow(6)
    assert regressions(small.publish()) == [(slower[0], "release", True), (slow[0], "main", True)]


def test_what_only_one_branch_took_back_is_open_on_the_other(tmp_path: Path) -> None:
    small = two_branches(tmp_path)
    slow = small.slow()
    checked_out(small, "-b", "release")
    small.slow(6)
    checked_out(small, "main")
    small.main(8)
    [event] = [each for each in small.publish()["events"] if each["kind"] == "regression"]
    assert (event["last"]["hash"], event["branch"], event["open"]) == (slow[0], "release", True)


@pytest.mark.parametrize("expected", [True, False])
def test_a_link_that_two_branches_have_is_told_once(expected: bool) -> None:
    """Each branch goes on with commits of its own after the one that both have."""
    lines = {"main": COMMITS[:5], "release": [*COMMITS[:3], *COMMITS[10:14]]}
    sessions = [
        a_session(1, 2, a_link(0.03), a_link(0.02, cell="op/other float32 64x64 cold")),
        a_session(2, 10, a_link(0.05)),
        a_session(2, 3, a_link(0.04)),
    ]
    series = [
        each
        for name, line in lines.items()
        for each in linked([], {"m": chains(sessions, {commit: at for at, commit in enumerate(line)})}, name)
    ]
    told = [Expected(COMMITS[2], "a", "op/rung +4%", "op/rung", 0.04)] if expected else []
    states = States(
        events(change for each in series for change in each.changes()), {}, series,
        expected={name: [(each, 2) for each in told] for name in lines},
    )  # fmt: skip
    assert len(states.events) == 4
    shown = [(each.last, each.changes[0].series.place["branch"], len(each.changes)) for each in states.once([*lines])]
    assert sorted(shown) == [(COMMITS[2], "main", 2), (COMMITS[3], "main", 1), (COMMITS[10], "release", 1)]
    outcomes = states.outcomes(lines, series)
    assert [(each.branch, each.state) for each in outcomes] == [("main", "smaller"), ("release", "smaller")] * expected
    assert [each.branch for each in _once(outcomes)] == ["main"] * expected


def test_what_one_branch_took_back_of_an_event_is_told_of_the_other() -> None:
    lines = {"main": COMMITS[:5], "release": [*COMMITS[:3], *COMMITS[10:14]]}
    other = "op/other float32 64x64 cold"
    sessions = [a_session(1, 2, a_link(0.03), a_link(0.02, cell=other)), a_session(2, 3, a_link(-0.03))]
    series = [
        each
        for name, line in lines.items()
        for each in linked([], {"m": chains(sessions, {commit: at for at, commit in enumerate(line)})}, name)
    ]
    states = States(events(change for each in series for change in each.changes()), {}, series)
    shown = [each for each in states.once([*lines]) if each.kind == "regression"]
    told = {each.narrowest.series.place["branch"]: [change.series.cell for change in each.changes] for each in shown}
    assert told == {"main": [other], "release": [CELL]}
    assert all(states.of(each).is_open for each in shown)
