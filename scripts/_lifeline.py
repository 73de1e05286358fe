"""Nothing that a measuring run started outlives it, whatever ends it: a watcher sees the run go and ends the rest.

What the run starts inherits $GPUKERNELS_RUN, by which the watcher, a process of its own session, finds it in /proc:
asv's server and set-up, workers, compilers. Run as a script it is the watcher.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "GPUKERNELS_RUN"
PROC = Path("/proc")


@contextmanager
def tied() -> Iterator[None]:
    """What is started within ends with this process, also where it is killed; and at the end, what is left of it."""
    if os.environ.get(MARK) or not Path(PROC, "self", "environ").exists():  # whoever began this run watches already
        yield
        return
    value = f"{os.getpid()}.{time.time_ns()}"
    watcher = subprocess.Popen(
        [sys.executable, __file__, value], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    os.environ[MARK] = value
    try:
        yield
    finally:
        del os.environ[MARK]
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait()


def marked(value: str) -> list[int]:
    """The processes of a run."""
    found = []
    for folder in PROC.iterdir():
        with suppress(OSError):  # it has gone, or is another user's
            if folder.name.isdecimal() and f"{MARK}={value}".encode() in Path(folder, "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(folder.name))
    return found


def watch(value: str) -> None:
    """Wait until stdin closes, which only the run's process holds; then kill what it left, and what that starts."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a signal for the run's processes is not for this
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    while left := marked(value):
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    watch(sys.argv[1])
