"""Work in a process of its own ends, fails and is interrupted as in the command's own."""

import copyreg
import errno
import os
import signal
import sys

import pytest

from kernelwatch.__main__ import code_of
from kernelwatch.system.apart import apart
from kernelwatch.system.errors import CANNOT, ToolMissing

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ToolMissing("no compiler"), "command: no compiler\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "command: /tmp/x: No space left on device\n"),
    ],
)
def test_an_error_of_another_process_is_told_as_one_of_this(error: Exception, said: str, capsys: Said) -> None:
    def work() -> int:
        raise error

    for each in (work, lambda: apart(work)):
        assert code_of("command", each) == CANNOT
        assert capsys.readouterr().err == said


def test_how_errors_are_pickled_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask, which a function's module may import, has tblib pickle errors, and by that a SystemExit loses its code."""
    monkeypatch.setitem(copyreg.dispatch_table, SystemExit, lambda _: (SystemExit.__new__, (SystemExit,)))
    with pytest.raises(SystemExit) as ended:
        apart(lambda: sys.exit(3))
    assert ended.value.code == 3


def test_an_interrupt_as_another_process_ends(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    """Ctrl-C goes to both: this one may learn of it when the other one was waited for."""
    wait = os.waitpid

    def late(process: int, options: int) -> None:
        wait(process, options)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "waitpid", late)
    assert code_of("command", lambda: apart(int)) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "command: interrupted\n"


def test_a_caller_may_let_the_end_of_processes_be_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert apart(lambda: 3) == 3
    finally:
        signal.signal(signal.SIGCHLD, before)
