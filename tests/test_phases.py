"""How long the phases of a run take, foretold and told; and its verdict in words."""

import time
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.commands.bench import verdict
from kernelwatch.commands.phases import Phases, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (60, "1 min"), (185, "3 min 5 s"), (7262, "2 h 1 min")],
)
def test_a_duration_is_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_next_run_is_told_what_this_one_took(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / ".asv" / "durations.json"
    first = Phases(path)
    assert first.expected({"gate": 1, "measuring": 2}) == ""
    with first.phase("gate"):
        clock[0] += 35
    with first.phase("measuring", 2):
        clock[0] += 120
    assert first.taken() == "2 min 35 s (gate 35 s, measuring 2 min)"
    later = Phases(path)
    assert later.expected({"gate": 1, "measuring": 3, "publishing": 1}) == "gate 35 s, measuring 3 min"
    assert Phases(path, "quick").expected({"gate": 1}) == ""


def test_what_failed_or_had_nothing_to_do_foretells_nothing(tmp_path: Path, clock: list[float]) -> None:
    phases = Phases(tmp_path / "d.json")

    def failing() -> None:
        with phases.phase("gate"):
            clock[0] += 1
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    with phases.phase("measuring", 0):
        clock[0] += 1
    assert Phases(tmp_path / "d.json").expected({"gate": 1, "measuring": 1}) == ""
    assert phases.taken() == "1 s (measuring 1 s)"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"gate": "x"}', '{"gate": null}', "\x00"])
def test_a_damaged_file_foretells_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "d.json"
    path.write_text(text)
    assert Phases(path).expected({"gate": 1}) == ""


def event(kind: str, word: str) -> dict[str, Any]:
    return {"kind": kind, "verdict": word}


@pytest.mark.parametrize(
    ("code", "events", "said"),
    [
        (0, [], "no new regression"),
        (2, [], "some cells failed; no new regression"),
        (0, [event("regression", "refuted")], "no new regression"),
        (0, [event("environment", "not tried")], "no new regression"),
        (0, [event("regression", "confirmed")], "1 new regression, 1 confirmed"),
        (
            0,
            [event("regression", "confirmed"), event("regression", "not decided"), event("improvement", "confirmed")],
            "2 new regressions, 1 confirmed; 1 new improvement, 1 confirmed",
        ),
    ],
)
def test_the_verdict_of_a_run(code: int, events: list[dict[str, Any]], said: str) -> None:
    assert verdict(code, events, []) == said
