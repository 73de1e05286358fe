"""How long the phases of a run take, foretold and told; and its verdict in words."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from kernelwatch.commands import gate, watching
from kernelwatch.commands.phases import Minutes, Phases, duration
from kernelwatch.commands.shown import verdict
from kernelwatch.run.progress import Progress
from kernelwatch.system.options import Options


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


# --- for whoever pipes ---------------------------------------------------------------------------------------------


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=1000, force_terminal=terminal)


def lines_of(console: Console) -> list[str]:
    return cast(io.StringIO, console.file).getvalue().splitlines()


def test_an_output_that_is_no_terminal_gets_a_line_a_minute(clock: list[float]) -> None:
    piped, shown = console(), console(terminal=True)
    minutes = [Minutes(piped), Minutes(shown)]
    for at in range(150):
        for each in minutes:
            each.tell("matmul gpu", at, 300 if at < 100 else 0)
        clock[0] += 2
    assert lines_of(piped) == [
        "matmul gpu: 30 of 300 done in 1 min, 270 left, about 9 min",
        "matmul gpu: 60 of 300 done in 2 min, 240 left, about 8 min",
        "matmul gpu: 90 of 300 done in 3 min, 210 left, about 7 min",
        "matmul gpu: 120 done in 4 min",
    ]
    assert lines_of(shown) == []  # it has a bar


def test_little_done_foretells_nothing(clock: list[float]) -> None:
    """A run begins with its slowest cells: at 16 of 6684 in a minute it would have been told seven hours."""
    piped = console()
    minutes = Minutes(piped)
    for done, total in ((0, 300), (29, 300), (30, 300), (300, 200)):  # at last more than was expected
        clock[0] += 60
        minutes.tell("matmul gpu", done, total)
    assert lines_of(piped) == [
        "matmul gpu: 0 of 300 done in 1 min, 300 left",
        "matmul gpu: 29 of 300 done in 2 min, 271 left",
        "matmul gpu: 30 of 300 done in 3 min, 270 left, about 27 min",
        "matmul gpu: 300 done in 4 min",
    ]


def test_a_piped_run_says_how_far_it_is(clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every minute, though asv is silent for six: of two commits of 40 measurements, 20 are done in three minutes."""
    progress, polls = tmp_path / "progress", iter([None] * 360 + [0])
    progress.touch()

    def sleep(_: float) -> None:
        clock[0] += 1
        if clock[0] == 280:
            with progress.open("a") as file:
                file.write(json.dumps({"group": "matmul gpu", "done": 20, "total": 40}) + "\n")

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(watching, "_expected", lambda *_: 40)
    piped = console()
    asv: Any = SimpleNamespace(poll=lambda: next(polls))
    watching.watch(cast(Any, None), asv, progress, 2, cast(Any, None), piped)
    told = lines_of(piped)
    assert len(told) == 5
    assert told[0] == "starting: 0 of 80 done in 1 min, 80 left"
    assert told[2] == "matmul gpu: 20 of 80 done in 3 min, 60 left, about 9 min"


def test_cells_that_are_measured_again_count_once(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a group says after all of its measurements doubled them: "11148 done" of 7171."""
    progress, piped, polls = tmp_path / "progress", console(), iter([None] * 120 + [0])
    with monkeypatch.context() as options:
        options.setattr("kernelwatch.run.progress.time", SimpleNamespace(time=lambda: 0.0))
        of_group = Progress("gpu", 30, Options(progress=str(progress)))
        of_group.reach(30)
        of_group.note("1 of 5 cells of gpu are measured again")
        of_group.end()
    monkeypatch.setattr(time, "sleep", lambda _: clock.__setitem__(0, clock[0] + 1))
    monkeypatch.setattr(watching, "_expected", lambda *_: 40)
    asv: Any = SimpleNamespace(poll=lambda: next(polls))
    watching.watch(cast(Any, None), asv, progress, 1, cast(Any, None), piped)
    assert lines_of(piped)[1:] == ["gpu: 30 of 40 done in 1 min, 10 left, about 20 s"]


def test_a_piped_gate_says_how_far_it_is(clock: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")

    def output(*_: object) -> Iterator[bytes]:
        yield b'["begun", 4]\n'
        for count in range(4):
            clock[0] += 40
            yield b'["ended", "test.py::test"]\n' if count % 2 else b'["ended", "te'
            yield b"" if count % 2 else b'st.py::test"]\n'
        yield b'["finished", ""]\n'

    monkeypatch.setattr(gate, "output", output)
    piped = console()
    project: Any = SimpleNamespace(gate=["test_it.py"], root=tmp_path)
    gate.gate(project, piped)
    assert lines_of(piped)[1:] == [
        "gate: 2 of 4 tests done in 1 min 20 s, 2 left, about 1 min 20 s",
        "gate: 4 of 4 tests done in 2 min 40 s, 0 left",
        "gate: 0 passed, 4 skipped or expected to fail",
        "gate: no test passed, so no kernel was checked",
    ]


def event(kind: str, state: str | None) -> dict[str, Any]:
    return {"kind": kind, "state": state}


@pytest.mark.parametrize(
    ("code", "events", "said"),
    [
        (0, [], "no new regression"),
        (2, [], "some cells failed; no new regression"),
        (0, [event("regression", "refuted")], "no new regression"),
        (0, [event("environment", None)], "no new regression"),
        (0, [event("regression", "accepted"), event("regression", "fixed")], "no new regression; 1 accepted; 1 fixed"),
        (0, [event("regression", "confirmed")], "1 new regression, 1 confirmed"),
        (
            0,
            [event("regression", "confirmed"), event("regression", "new"), event("improvement", "confirmed")],
            "2 new regressions, 1 confirmed; 1 new improvement, 1 confirmed",
        ),
    ],
)
def test_the_verdict_of_a_run(code: int, events: list[dict[str, Any]], said: str) -> None:
    assert verdict(code, events, []) == said
