"""What failed or was gone and is back: what Status says of it once a session compared it across the gap."""

from dataclasses import replace

import pytest

from kernelwatch.history.links import Session
from kernelwatch.publish.lines import Line
from kernelwatch.publish.linked import reach

COMMITS = [f"{number:08x}" * 5 for number in range(6)]
CELL = "op/rung float32 64x64 cold"


def a_session(before: int, after: int, *, environment: str = "", **unjudged: str) -> Session:
    told = {COMMITS[int(name[1:])][:8] if name[1:].isdigit() else CELL: why for name, why in unjudged.items()}
    conditions = {"gpu": "H200"} | ({"environment": environment} if environment else {})
    at = f"2026-11-0{after + 1}T00:00:00"
    return Session("step", COMMITS[before], COMMITS[after], at, 1.0, conditions, 1, unjudged=told)


def open_gaps(*sessions: Session) -> list[str]:
    return [why for why, _ in reach("m", sessions, [], Line("main", COMMITS), [], None)["unjudged"]]


BROKEN = [
    a_session(1, 2, c2="failed: ImportError"),
    a_session(2, 3, c2="ImportError", c3="failed: ImportError"),
    a_session(3, 4, c3="ImportError"),
]
WRONG = [a_session(1, 2, cell="failed: wrong"), a_session(3, 4, cell="repaired: wrong")]


@pytest.mark.parametrize("sessions", [BROKEN, WRONG])
def test_what_is_compared_across_a_gap_is_no_gap_of_status(sessions: list[Session]) -> None:
    """The session across it found the launches the same: it has no link."""
    assert open_gaps(*sessions)
    across = a_session(1, 4)
    assert open_gaps(*sessions, across) == []
    assert open_gaps(*sessions, a_session(1, 3)) == open_gaps(*sessions)  # not the commit at which it is back
    assert open_gaps(*sessions, replace(across, unjudged={CELL: "it was measured in too few turns"})) == [
        "it was measured in too few turns"
    ]


def test_an_environment_has_gaps_of_its_own() -> None:
    theirs = [replace(each, conditions={"environment": "py3.12"}) for each in BROKEN]
    across = a_session(1, 4)
    assert set(open_gaps(*BROKEN, *theirs, across)) == {"failed: ImportError", "ImportError"}
    assert open_gaps(*BROKEN, *theirs, across, replace(across, conditions={"environment": "py3.12"})) == []
