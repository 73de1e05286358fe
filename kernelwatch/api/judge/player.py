"""A process of a candidate, as the judge sees it: it is started, told to go, ended, and leaves nothing behind."""

import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kernelwatch.api.judge.runner import DONE, DUMPABLE, END, FAILED, GO, MESSAGE_BYTES, READY, Job
from kernelwatch.api.result import Refused
from kernelwatch.system import lifeline

READY_S = 300.0  # until it is ready: it may import PyTorch and compile
ROUND_S = 60.0  # until a round is done
SHOWN = 400  # characters of what a process says
END_S = 10.0  # until it has ended when it is told to, or has closed its channel
LEFT_S = 1.0  # until what ends with it has ended, too
GONE_S = 5.0  # until what was killed is gone
HELD_S = 20.0  # until all that it has started stands still
STILL_S = 0.0005  # between looks whether it does
LOOK_S = 0.2  # between looks whether a process that says nothing lives
SPINS = 4096  # looks for an answer between two such looks
PASSED_ON = (  # of the environment; the rest may hold secrets, or ways to change how a program runs
    *("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH"),
    *("VIRTUAL_ENV", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT"),
    *("MKL_NUM_THREADS", "NCCL_NVLS_ENABLE", lifeline.MARK),
)
SUBREAPER = 36  # of prctl
THREADS = 17  # the place of their number in /proc/PID/stat, behind the name


@contextmanager
def guarded() -> Iterator[None]:
    """While code that is not trusted runs as this user: other processes of the user can neither read this one's memory
    nor trace it, and orphans of its children become its own children, so that none is lost from sight."""
    prctl = ctypes.CDLL(None).prctl
    prctl(DUMPABLE, 0, 0, 0, 0)
    prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(SUBREAPER, 0, 0, 0, 0)
        prctl(DUMPABLE, 1, 0, 0, 0)


def _parents() -> dict[int, int]:
    """The parent of each process, without those that have ended and wait to be reaped."""
    found = {}
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if (parent := _parent(process)) is not None:
            found[process] = parent
    return found


def _parent(process: int) -> int | None:
    """The parent of a process; None if it has ended. One whose first thread has ended goes on if it has others."""
    with suppress(OSError, ValueError), open(f"/proc/{process}/stat", "rb") as file:
        values = file.read().rpartition(b")")[2].split()
        has_ended = values[0] in b"ZX" and int(values[THREADS]) <= 1
        return None if has_ended else int(values[1])
    return None


def _listed(of: int) -> set[int] | None:
    """The processes that a process has started, as the kernel lists them; None if it keeps no such list."""
    found: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{of}/task")
    except FileNotFoundError:
        return set()
    for thread in threads:
        try:
            with suppress(ProcessLookupError), open(f"/proc/{of}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
        except FileNotFoundError:
            if os.path.exists(f"/proc/{of}/task/{thread}"):  # else the thread has ended meanwhile
                return None
    return {process for process in found if _parent(process) == of}


def children(of: int) -> set[int]:
    """The processes whose parent is a process."""
    listed = _listed(of)
    return {process for process, parent in _parents().items() if parent == of} if listed is None else listed


class Thread(NamedTuple):
    """What a thread has done so far. `still`: whether it stands still; `ran_ns`: the time that it had a core; `turns`:
    how often it was given one. A kernel that does not count these tells how often it has left its core."""

    still: bool
    ran_ns: int
    turns: int


def _threads(process: int) -> dict[int, Thread]:
    """The threads of a process."""
    found = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                found[int(thread)] = _thread(Path(f"/proc/{process}/task/{thread}"))
    return found


def _thread(folder: Path) -> Thread:
    state = Path(folder, "stat").read_bytes().rpartition(b")")[2].split()[0]
    ran_ns = turns = 0
    with suppress(FileNotFoundError):
        ran_ns, _, turns = map(int, Path(folder, "schedstat").read_bytes().split())
    if not turns:  # a kernel that does not count has no such file, or zeros in it
        lines = Path(folder, "status").read_bytes().splitlines()
        turns = sum(int(line.split()[-1]) for line in lines if b"ctxt_switches:" in line)
    return Thread(state in b"TtZX", ran_ns, turns)


class Player:
    """A fresh process that has prepared a job. Raises: Refused if it cannot.

    It and all that it has started stand still until "go", while the numbers are made: else a thread could compute what
    it sees of them before the clock starts.

    `spins`: whether the judge spins while it waits. `how`: "graph" or "calls", as the process says. `told`: what it
    said behind the last "done".
    """

    told = b""
    held: dict[int, dict[int, Thread]]  # the threads of all that stands still, by process

    def __init__(self, job: Job, descriptors: tuple[int, ...], spins: bool) -> None:
        self.name = job.function.rpartition(":")[2]
        self.spins = spins
        self.before = children(os.getpid())
        self.folder = tempfile.TemporaryDirectory(prefix="kernelwatch-", ignore_cleanup_errors=True)
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors = Path(self.folder.name, "stderr")
        code = f"import sys; sys.path[:] = {sys.path!r}; from kernelwatch.api.judge.runner import main; main()"
        home = {name: self.folder.name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
        with theirs, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                cwd=self.folder.name,
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ} | home,
                pass_fds=(theirs.fileno(), *descriptors),
                start_new_session=True,
            )
        assert self.process.stdin
        try:
            with suppress(BrokenPipeError), self.process.stdin as stdin:
                stdin.write(pickle.dumps(job))
            self.how = self._answer(READY, READY_S).decode()
        except BaseException:
            self.kill()
            raise

    def hold(self) -> None:
        """Let it, and all that it has started, stand still until "go". Raises: Refused if that cannot be done."""
        until, self.held = time.monotonic() + HELD_S, {}
        while True:
            own = self._own()
            for process in own - self.held.keys():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            still = {process: _threads(process) for process in own}
            if still == self.held and all(thread.still for each in still.values() for thread in each.values()):
                return
            self.held = still
            if time.monotonic() > until:
                raise Refused(f"{self.name}: its processes do not stand still while its numbers are made")
            time.sleep(STILL_S)

    def _own(self) -> set[int]:
        """Its process, and all that these have started: orphans are children of this process."""
        own = children(os.getpid()) - self.before
        new = own
        while new := {one for parent in new for one in children(parent)} - own:
            own = own | new
        return own

    def stood(self) -> bool:
        """Whether all of it has stood still since it was held; what has ended has."""
        return self.process.poll() is not None or {process: _threads(process) for process in self.held} == self.held

    def play(self, done: Callable[[], None]) -> float:
        """The seconds from "go" until `done`, which is called when the process says so, has returned. It must be held.

        Raises: Refused if it does not say so.
        """
        start = time.perf_counter()
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: what it answers, or does not, says how
            self.channel.send(GO)
        for process in self.held:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        self.told = self._answer(DONE, ROUND_S, self.spins)
        done()
        return time.perf_counter() - start

    def _answer(self, expected: bytes, limit_s: float, spins: bool = False) -> bytes:
        """What the process says behind the expected word. Never unpickled: it is not trusted."""
        until = time.monotonic() + limit_s
        while True:
            said = self._said(spins)
            if said is None and self.process.poll() is None and time.monotonic() < until:
                continue
            word, _, rest = (said or b"").partition(b" ")
            if said is not None and word == expected:
                return rest
            if word == FAILED:
                raise Refused(_printable(rest))
            if said:
                raise Refused(f"{self.name}: its process says {_printable(said)!r} in place of {expected.decode()}")
            if said is None and self.process.poll() is None:
                raise Refused(f"{self.name} did not answer within {limit_s:g} s")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
            how = "closed its channel" if self.process.returncode is None else f"ended with {self.process.returncode}"
            raise Refused(
                f"{self.name}: its process {how} in place of saying {expected.decode()}: {self._last_words()}"
            )

    def _said(self, spins: bool) -> bytes | None:
        """A message, b"" if the process has closed the channel; None if it says nothing for a while."""
        for _ in range(SPINS if spins else 0):
            with suppress(BlockingIOError, ConnectionResetError):
                return self.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        if not spins and not select.select([self.channel], [], [], LOOK_S)[0]:
            return None
        with suppress(BlockingIOError, ConnectionResetError):
            return self.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        return None

    def _last_words(self) -> str:
        with suppress(OSError), self.errors.open("rb") as file:
            file.seek(max(0, self.errors.stat().st_size - MESSAGE_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return _printable(lines[-1].encode()) if lines else "no message"
        return "no message"

    def end(self) -> None:
        """Let it end. Raises: Refused if it does not, or leaves a process behind; nothing of it is left in any case."""
        try:
            with suppress(OSError):
                self.channel.send(END)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                raise Refused(f"{self.name}: its process did not end within {END_S:g} s") from None
            until = time.monotonic() + LEFT_S
            while (left := self._left()) and time.monotonic() < until:
                time.sleep(LEFT_S / 100)
            if left:
                raise Refused(f"{self.name} left {len(left)} process{'es' if len(left) > 1 else ''} behind")
        finally:
            self.kill()

    def _left(self) -> set[int]:
        """What it has started and has not ended. The kernel's list is exact only for processes that stand still, so all
        processes are looked at."""
        return {process for process, parent in _parents().items() if parent == os.getpid()} - self.before

    def kill(self) -> None:
        """End its process, and all that it started: these have its session, or have become this process's children."""
        self.channel.close()
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        until = time.monotonic() + GONE_S
        while (left := self._left()) and time.monotonic() < until:
            for process in left:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            for process in left:
                with suppress(OSError):
                    os.waitpid(process, 0)
        self.folder.cleanup()


def _printable(text: bytes) -> str:
    """What a process says, as one line without control characters, cut if it is long."""
    shown = text.decode(errors="replace")[:SHOWN]
    return "".join(letter if letter.isprintable() else " " for letter in shown).strip()
