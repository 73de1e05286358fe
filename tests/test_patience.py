"""When a process that says nothing is given up, and how its output is read."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernelwatch.run.processes import _events
from kernelwatch.system import patience
from kernelwatch.system.patience import Patience, Stuck, cpu_s
from tests.repositories import CPU_S, LIMITED, MEMORY_BYTES, end_group, wait_until

linux = pytest.mark.skipif(not patience.PROC.exists(), reason="CPU times are read from Linux's /proc")
SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {SPIN!r}])"


@contextmanager
def process(code: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True) as one:
        try:
            yield one
        finally:
            for child in children(one.pid):
                os.kill(child, signal.SIGKILL)
            one.kill()


def children(of: int) -> list[int]:
    """The children of a process."""
    found = []
    for path in patience.PROC.glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == of:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class Machine:
    """A clock, and the CPU time of a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 100.0
        self.known = True
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(patience, "cpu_s", lambda process: self.cpu if self.known else None)

    def waits(self, of: Patience, seconds: int, share: float) -> str:
        """The verdict after some seconds in which the process uses this share of a core."""
        for _ in range(seconds):
            self.now += 1
            self.cpu += share
            if why := of.over():
                return why
        return ""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_process_that_works_little_on_a_busy_machine_is_slow(machine: Machine) -> None:
    one = Patience(1, 60, 600)
    assert machine.waits(one, 5_000, 0.1) == ""
    assert one.silent_s == 5_000
    assert machine.waits(one, 1_100, 0.1) == "it is endless or very slow: it has worked for 600 s"


@pytest.mark.parametrize(("share", "seconds"), [(1.0, 602), (64.0, 602), (0.5, 1_202)])
def test_what_works_without_an_end_is_given_up(machine: Machine, share: float, seconds: int) -> None:
    """However many cores it uses: a long launch on 64 cores is not 64 times as long."""
    assert machine.waits(Patience(1, 60, 600), seconds - 3, share) == ""
    assert machine.waits(Patience(1, 60, 600), seconds, share) == "it is endless or very slow: it has worked for 600 s"


@pytest.mark.parametrize("share", [0.0, 0.005])
def test_what_does_not_work_hangs(machine: Machine, share: float) -> None:
    assert machine.waits(Patience(1, 60, 600), 59, share) == ""
    assert machine.waits(Patience(1, 60, 600), 62, share) == "it hung: it has not worked for 60 s"


def test_work_before_a_hang_is_no_work(machine: Machine) -> None:
    one = Patience(1, 60, 600)
    assert machine.waits(one, 300, 1.0) == ""
    assert machine.waits(one, 55, 0.0) == ""
    assert machine.waits(one, 10, 0.0) == "it hung: it has not worked for 60 s"


def test_what_is_heard_counts_anew(machine: Machine) -> None:
    one = Patience(1, 60, 600)
    for _ in range(5):
        assert machine.waits(one, 500, 1.0) == ""
        one.heard()
        assert one.silent_s == 0
        assert machine.waits(one, 50, 0.0) == ""
        one.heard()


@pytest.mark.parametrize("known", [True, False])
def test_only_the_clock_counts_for_a_gpu_and_where_nothing_else_is_known(machine: Machine, known: bool) -> None:
    machine.known = known
    one = Patience(1, 60, 600, by_clock=known)
    assert machine.waits(one, 59, 1.0) == ""
    assert machine.waits(one, 1, 1.0) == "it hung: nothing for 60 s"


@linux
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (SPIN, "it is endless or very slow"),
        (CHILD, "it is endless or very slow"),
        (SLEEP, "it hung: it has not worked"),
    ],
)
def test_real_processes_are_judged_by_their_work(code: str, why: str) -> None:
    """Also by their children's."""
    with process(code) as one:
        waiting = Patience(one.pid, 2.0, 0.5)
        said = wait_until(waiting.over, pause_s=0.2)
        assert said.startswith(why)


@linux
def test_a_process_that_has_gone_is_not_known() -> None:
    with process("pass") as one:
        one.wait()
        assert cpu_s(one.pid) is None
    assert (cpu_s(os.getpid()) or 0) > 0


# --- events --------------------------------------------------------------------------------------------------------


def test_events_end_with_the_output() -> None:
    code = 'import os; os.write(1, b\'noise\\n{"a": 1}\\n{"a"\'); os.write(1, b\': 2}\\n{"cut\')'
    with process(code) as one:
        assert list(_events(one, Patience(one.pid, 60, 60), lambda: None)) == [{"a": 1}, {"a": 2}]


def test_a_reader_that_leaves_early_leaves_nobody_reading() -> None:
    """The output is closed while the process still writes: nothing else may read it then."""
    before, errors = set(threading.enumerate()), list[object]()
    threading.excepthook, saved = errors.append, threading.excepthook
    try:
        with process("import os\nwhile True: os.write(1, b'{}\\n' * 10000)") as one:
            events = _events(one, Patience(one.pid, 60, 60), lambda: None)
            assert next(events) == {}
            events.close()
            assert one.stdout is not None
            one.stdout.close()
            assert set(threading.enumerate()) <= before
        assert errors == []
    finally:
        threading.excepthook = saved


def test_a_stuck_process_ends_the_events() -> None:
    said: list[str] = []
    with process("import os, time; os.write(1, b'{}\\n'); time.sleep(600)") as one:
        waiting = Patience(one.pid, 60, 60, by_clock=True)
        events = _events(one, waiting, lambda: said.append("slow"))
        assert next(events) == {}
        waiting.idle_s, waiting.look_s = 0.6, 0.1  # not before it has started, which takes long on a busy machine
        with pytest.raises(Stuck, match="it hung: nothing for 1 s"):
            next(events)
    assert said == []


# --- what tests start ----------------------------------------------------------------------------------------------


def test_a_limited_program_cannot_take_all_memory_nor_all_time() -> None:
    code = f"bytearray({MEMORY_BYTES})"
    done = subprocess.run([sys.executable, "-c", LIMITED, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("MemoryError\n")
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    done = subprocess.run([sys.executable, "-c", LIMITED, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == CPU_S


@linux
def test_the_end_of_a_group_leaves_nobody() -> None:
    """Not even the child of a leader that has ended by itself."""
    child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}]).pid)"
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", child], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert leader.stdout is not None
    with leader.stdout:
        left = int(leader.stdout.readline())
    leader.wait()
    os.kill(left, 0)
    end_group(leader)
    assert wait_until(lambda: cpu_s(left) is None)
