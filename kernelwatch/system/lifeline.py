"""A measuring run leaves no process behind, however it ends: a watcher notices the end of the run and kills the rest.

All processes of a run (asv's server and set-up, workers, compilers) inherit $KERNELWATCH_RUN. The watcher, which has a
session of its own, finds them in /proc by that variable. They make their temporary files in one folder, which the
watcher removes after them. This file, run as a script, is the watcher.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "KERNELWATCH_RUN"
PROC = Path("/proc")
SHORT = Path("/tmp")
# A socket's path has 103 bytes at most on every system; asv makes one in the folder of the temporary files.
LONGEST = 103 - len("/kw-12345678/asv-forkserver-12345678/socket")


@contextmanager
def tied(*, nested: bool = False) -> Iterator[None]:
    """Processes started inside the block end with the block, or with this process if it is killed.

    `nested`: end them with this process even if an outer run, which may go on for longer, will end them too.
    """
    outer = os.environ.get(MARK, "")
    if (outer and not nested) or not Path(PROC, "self", "environ").exists():  # the outer run has a watcher
        yield
        return
    value = "/".join(filter(None, (outer, f"{os.getpid()}.{time.time_ns()}")))
    temporary, before = tempfile.mkdtemp(prefix="kw-", dir=_place()), (os.environ.get("TMPDIR"), tempfile.tempdir)
    watcher = subprocess.Popen(
        [sys.executable, __file__, value, temporary],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ |= {MARK: value, "TMPDIR": temporary}
    tempfile.tempdir = temporary
    try:
        yield
    finally:
        del os.environ[MARK], os.environ["TMPDIR"]
        if outer:
            os.environ[MARK] = outer
        if before[0] is not None:
            os.environ["TMPDIR"] = before[0]
        tempfile.tempdir = before[1]
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait()


def _place() -> str | None:
    """Where the folder of temporary files is made: None for $TMPDIR, or /tmp if that path is too long for a socket."""
    long = len(os.fsencode(tempfile.gettempdir())) > LONGEST
    return str(SHORT) if long and os.access(SHORT, os.W_OK | os.X_OK) else None


def marked(value: str) -> list[int]:
    """The process ids of a run. `value`: what the run's processes have in $KERNELWATCH_RUN; those of a nested run have
    more behind a slash."""
    mark, processes = f"{MARK}={value}".encode(), []
    for folder in PROC.iterdir():
        with suppress(OSError):  # the process has ended, or belongs to another user
            if not folder.name.isdecimal():
                continue
            environment = Path(folder, "environ").read_bytes().split(b"\0")
            if any(variable == mark or variable.startswith(mark + b"/") for variable in environment):
                processes.append(int(folder.name))
    return processes


def watch(value: str, temporary: str) -> None:
    """Wait until stdin closes, which only the run's process holds open; then kill the run's processes until none is
    left, since a dying one may still start others; then remove the folder of their temporary files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the run, not for its watcher
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    while left := marked(value):
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    watch(*sys.argv[1:])
