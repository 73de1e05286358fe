"""What a command says while it works, on a terminal and into a pipe."""

import io
import threading

import pytest
from rich.console import Console

from kernelwatch.report.arguments import Output
from kernelwatch.system import waiting


def tellers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "tell_each_minute" in one.name]


def test_a_pipe_is_told_each_minute_and_what_is_printed_stays_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MINUTE_S", 0.001)
    printed, heard = io.StringIO(), threading.Event()

    def say(text: str, **_given: object) -> None:
        said.append(text)
        if "timing cell" in text:
            heard.set()

    said: list[str] = []
    monkeypatch.setattr(waiting, "print", say, raising=False)
    with waiting.status(Console(file=printed), "compiling ...") as tell:
        tell("timing cell 3 of 7 ...")
        assert heard.wait(600)
    assert not tellers()
    assert said[-1].endswith("s: timing cell 3 of 7 ...")
    assert printed.getvalue().strip() == ""


def test_a_terminal_has_its_line_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = io.StringIO()
    with waiting.status(Console(file=shown, force_terminal=True), "compiling ...") as tell:
        tell("timing ...")
        assert not tellers()
    assert "timing ..." in shown.getvalue()


def test_what_cannot_change_a_line_is_told_each_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal of an editor, and a pipe that a job of CI wants colors in."""
    for name, value in (("TERM", "dumb"), ("FORCE_COLOR", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            console = Output() if name == "FORCE_COLOR" else Console(file=io.StringIO(), force_terminal=True)
            assert console.is_terminal
            with waiting.status(console, "compiling ..."):
                assert len(tellers()) == 1
    assert capsys.readouterr().out == ""
