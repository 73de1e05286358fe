"""How long to wait for a process that says nothing. What counts is whether it works, not what else the machine does."""

import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
LOOK_S = 1.0  # between two looks at a silent process
WORKS = 0.01  # a process that uses a smaller share of a core than this does not work


def cpu_s(process: int) -> float | None:
    """The CPU seconds that a process and its descendants have used; None if the system does not say."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it has ended
            # The name of the program, in brackets, may hold anything.
            words = Path(folder, "stat").read_text(errors="replace").rpartition(")")[2].split()
            own = int(folder.name)
            children.setdefault(int(words[1]), []).append(own)
            used[own] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")  # with the children that it waited for
    if process not in used:
        return None
    total, left = 0.0, [process]
    while left:
        one = left.pop()
        total += used.get(one, 0.0)
        left += children.get(one, [])
    return total


class Stuck(Exception):
    """A process hangs or does not end; the message says which."""


class Patience:
    """The patience with one process.

    It hangs if it and its children have not worked for `idle_s` seconds. It does not end if they have worked for
    `busy_s` seconds since it last said something; several cores at once count as one. `by_clock`: a process hangs if it
    says nothing for `idle_s` seconds, since it burns CPU time while it waits, as for a GPU.
    """

    def __init__(self, process: int, idle_s: float, busy_s: float, *, by_clock: bool = False) -> None:
        self.process = process
        self.idle_s = idle_s
        self.busy_s = busy_s
        self.by_clock = by_clock
        self.look_s = min(LOOK_S, idle_s / 4)
        self.heard()

    def heard(self) -> None:
        """The process has said something."""
        self._heard = self._worked = self._looked = time.monotonic()
        self._cpu: float | None = None  # CPU seconds at the last look
        self._busy = self._since = 0.0  # seconds of work since it was heard, and at `_worked`

    @property
    def silent_s(self) -> float:
        """How long the process has said nothing."""
        return time.monotonic() - self._heard

    def over(self) -> str:
        """Look at the process; why to wait no longer, "" if it may go on."""
        now, cpu = time.monotonic(), None if self.by_clock else cpu_s(self.process)
        if cpu is None:
            return f"it hung: nothing for {self.idle_s:.0f} s" if now - self._heard >= self.idle_s else ""
        if self._cpu is not None:
            self._busy += min(max(0.0, cpu - self._cpu), now - self._looked)
        self._cpu, self._looked = cpu, now
        if self._busy >= self.busy_s:
            return f"it is endless or very slow: it has worked for {self.busy_s:.0f} s"
        if self._busy - self._since >= WORKS * self.idle_s:
            self._worked, self._since = now, self._busy
        return f"it hung: it has not worked for {self.idle_s:.0f} s" if now - self._worked >= self.idle_s else ""


def output(pipe: int, patience: Patience, slow: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """What a process writes to a pipe, piece by piece, until it closes the pipe. `slow`: called once in each silence of
    more than `patience.idle_s` in which the process works. Raises: Stuck.

    No thread reads, so nothing reads the pipe any more when the caller closes it.
    """
    told = False
    with selectors.DefaultSelector() as readable:
        readable.register(pipe, selectors.EVENT_READ)
        while True:
            if readable.select(patience.look_s):
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    return
                patience.heard()
                told = False
                yield chunk
            elif why := patience.over():
                raise Stuck(why)
            elif patience.silent_s >= patience.idle_s and not told:
                told = True
                slow()
