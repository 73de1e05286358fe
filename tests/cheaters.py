"""Functions that a judge must refuse, each by the reason of its name, and honest ones. All add two arrays.

Nothing here is imported by a test: each runs in a process of its own, as code that is not trusted does.
"""

import ctypes
import os
import platform
import resource
import signal
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np

REST_S = 0.002
LATE_S = 0.2

Array = Any


def add(a: Array, b: Array, out: Array) -> None:
    """The reference."""
    np.add(a, b, out=out)


def honest(a: Array, b: Array, out: Array) -> None:
    np.add(a, b, out=out)


def rests(a: Array, b: Array, out: Array) -> None:
    time.sleep(REST_S)
    np.add(a, b, out=out)


def patches_clocks(a: Array, b: Array, out: Array) -> None:
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "time"):
        setattr(time, name, lambda: 0)
    for name in ("median", "mean"):
        setattr(statistics, name, lambda values: 1e-12)
    rests(a, b, out)


def raises(a: Array, b: Array, out: Array) -> None:
    raise KeyError("nothing")


calls = [0]
last: dict[int, Array] = {}


def skips_half(a: Array, b: Array, out: Array) -> None:
    calls[0] += 1
    if calls[0] % 2:
        np.add(a, b, out=out)


def keeps_by_place(a: Array, b: Array, out: Array) -> None:
    """It computes once for each output, and writes the same again."""
    place = out.ctypes.data
    if place not in last:
        last[place] = a + b
    out[...] = last[place]


def keeps_everything(a: Array, b: Array, out: Array) -> None:
    """It leaves the output of the rehearsals where it is."""
    place = out.ctypes.data
    if place not in last:
        last[place] = None
        np.add(a, b, out=out)


def overwrites_input(a: Array, b: Array, out: Array) -> None:
    np.add(a, b, out=out)
    a[0] = 0


def writes_beyond(a: Array, b: Array, out: Array) -> None:
    np.add(a, b, out=out)
    beyond = np.lib.stride_tricks.as_strided(out, (out.size + 1,), out.strides, writeable=True)
    beyond[out.size] = 0


def never_answers(a: Array, b: Array, out: Array) -> None:
    np.add(a, b, out=out)
    while _serving():
        time.sleep(1)


def _serving() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "serve":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def dies(a: Array, b: Array, out: Array) -> None:
    np.add(a, b, out=out)
    if _serving():
        os.kill(os.getpid(), 9)


def exits(a: Array, b: Array, out: Array) -> None:
    np.add(a, b, out=out)
    if _serving():
        sys.exit("so it ends")


def forks(a: Array, b: Array, out: Array) -> None:
    """A child in a session of its own goes on when this process has ended."""
    np.add(a, b, out=out)
    calls[0] += 1
    if calls[0] == 1 and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


def says_done_early(a: Array, b: Array, out: Array) -> None:
    """It takes over what serves the judge: the work is done by a thread, after it has said that all is done."""
    from kernelwatch.api.judge import runner

    np.add(a, b, out=out)
    if hasattr(runner, "taken_over"):
        return
    vars(runner)["taken_over"] = True
    serve = runner.serve

    def later(channel: Any, job: Any, run: Any) -> None:
        def work() -> None:
            time.sleep(LATE_S)
            run()

        serve(channel, job, lambda: threading.Thread(target=work).start())

    runner.serve = later


known: dict[int, tuple[Array, Array, Array]] = {}  # the sets, by the place of the output


def _ahead() -> None:
    """It computes as soon as it sees other numbers, whether the clock runs or not."""
    while True:
        for a, b, out in [*known.values()]:
            np.add(a, b, out=out)
        time.sleep(0.001)


def computes_ahead(a: Array, b: Array, out: Array) -> None:
    """By a thread, and by a child of a child in a session of its own."""
    np.add(a, b, out=out)
    if out.ctypes.data in known:
        return
    known[out.ctypes.data] = (a, b, out)
    if len(known) == 40:
        threading.Thread(target=_ahead, daemon=True).start()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                _ahead()
            os._exit(0)


def loses_its_first_thread(a: Array, b: Array, out: Array) -> None:
    """Of its child only a thread goes on: the system then shows the process as one that has ended."""
    np.add(a, b, out=out)
    if out.ctypes.data in known:
        return
    known[out.ctypes.data] = (a, b, out)
    if len(known) == 40 and os.fork() == 0:
        os.setsid()
        threading.Thread(target=_ahead, daemon=True).start()
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit, of this thread alone


class _Event(ctypes.Structure):
    """What a timer of the system does: it sends a signal."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("rest", ctypes.c_long * 6),
    )


def wakes_itself(a: Array, b: Array, out: Array) -> None:
    """It is stopped, and timers of its own let it go on."""
    np.add(a, b, out=out)
    calls[0] += 1
    if calls[0] == 1:
        signal.signal(signal.SIGCONT, lambda *_: None)  # newer systems stop a timer whose signal nobody handles
        libc = ctypes.CDLL(None)
        for at in range(1, 161):
            timer, once = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, at // 4, at % 4 * 250_000_000)
            assert libc.timer_create(1, ctypes.byref(_Event(None, signal.SIGCONT, 0)), ctypes.byref(timer)) == 0
            assert libc.timer_settime(timer, 0, ctypes.byref(once), None) == 0
        threading.Thread(target=_ahead, daemon=True).start()


def lingers(a: Array, b: Array, out: Array) -> None:
    """Its child ends somewhat later than it, as what tracks the resources of Python's multiprocessing does."""
    np.add(a, b, out=out)
    calls[0] += 1
    if calls[0] == 1:
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(theirs)
            os.read(ours, 1)
            time.sleep(0.1)
            os._exit(0)


def slows_others(a: Array, b: Array, out: Array) -> None:
    """What the judge starts next has less."""
    np.add(a, b, out=out)
    for process in (os.getppid(), os.getpid()):
        resource.prlimit(process, resource.RLIMIT_CORE, (0, resource.prlimit(process, resource.RLIMIT_CORE)[1]))


def says_whether_it_can_be_read(a: Array, b: Array, out: Array) -> None:
    """As the control it is asked how long it takes, and says this instead."""
    if _serving():
        os.write(_channel(), b"failed dumpable: %d" % ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
    np.add(a, b, out=out)


def leaves(a: Array, b: Array, out: Array) -> None:
    """It takes over what serves the judge, which then ends before the first round."""
    from kernelwatch.api.judge import runner

    np.add(a, b, out=out)
    vars(runner)["serve"] = None


def talks(a: Array, b: Array, out: Array) -> None:
    """It says what no candidate says."""
    np.add(a, b, out=out)
    if _serving():
        os.write(_channel(), b"\x1b]0;done\x07 " + b"x" * 1000)


def _channel() -> int:
    return int(sys.argv[1])
