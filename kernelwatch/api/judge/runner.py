"""The candidate's process: it imports code that is not trusted, prepares a call over each set of buffers, and runs all
of them when the judge says "go".

Nothing here is trusted once the candidate is imported. Whatever this process says or does, the judge believes the
outputs in the arena alone, at a time that it takes itself.
"""

import ctypes
import gc
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kernelwatch.api.capture import Captured, FunctionCalls
from kernelwatch.api.judge.layout import Layout
from kernelwatch.api.judge.memory import Handle, mapped
from kernelwatch.api.named import known
from kernelwatch.api.result import MeasureError

GO, END, DONE, READY, FAILED = b"go", b"end", b"done", b"ready", b"failed"
MESSAGE_BYTES = 4096
NO_NEW_PRIVILEGES, ENDS_WITH_PARENT, DUMPABLE = 38, 1, 4  # of prctl


@dataclass(frozen=True)
class Job:
    """What a candidate's process gets. `function`: its name; `sets`: how many there are; `tells`: whether it says how
    long the calls took, as only a trusted one is asked."""

    function: str
    layout: Layout
    sets: int
    handle: Handle
    tells: bool = False


Set = tuple[tuple[Any, ...], dict[str, Any]]


def by_host(function: Callable[..., object], sets: list[Set]) -> Callable[[], None]:
    """What calls a function over each set."""

    def enqueue() -> None:
        for positional, named in sets:
            function(*positional, **named)

    return enqueue


def in_graph(function: Callable[..., object], sets: list[Set], cupy: Any, stream: Any) -> Callable[[], None]:
    """The same by a CUDA graph, whose calls are captured now. Raises: what a call raises that cannot be captured."""
    calls = [(lambda positional=positional, named=named: function(*positional, **named),) for positional, named in sets]
    graph = Captured(cupy, FunctionCalls(lambda call: call(), calls, len(calls)), stream)
    if graph.nodes == 0:
        raise ValueError("it enqueues nothing on the current stream")
    return lambda: graph.launch(stream)


def in_turn(*steps: Callable[[], object]) -> Callable[[], None]:
    """What does one step after the other."""

    def run() -> None:
        for step in steps:
            step()

    return run


def timed_by_host(enqueue: Callable[[], None]) -> Callable[[], float]:
    """What does the work of a round on a CPU, and returns its seconds."""

    def run() -> float:
        start = time.perf_counter()
        enqueue()
        return time.perf_counter() - start

    return run


def timed(enqueue: Callable[[], None], wait: Callable[[], object], cupy: Any, stream: Any) -> Callable[[], float]:
    """The same on a GPU, for which it waits: the seconds between two events on the stream."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()

    def run() -> float:
        start.record(stream)
        enqueue()
        end.record(stream)
        wait()
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1000

    return run


def prepared(job: Job) -> tuple[Callable[[], object], AbstractContextManager[Any], str]:
    """What does the work of a round, the context to do it in, and how it is launched. Raises: MeasureError."""
    memory = mapped(job.handle)
    function = known(job.function)
    sets = [job.layout.arguments(memory, at * job.layout.set_bytes) for at in range(job.sets)]
    if "ipc" not in job.handle:
        enqueue = by_host(function, sets)
        _called(job, enqueue)
        return timed_by_host(enqueue) if job.tells else enqueue, nullcontext(), "calls"
    import cupy

    from kernelwatch.timing.launch import current

    stream = cupy.cuda.Stream(non_blocking=True)
    everything = cupy.cuda.runtime.deviceSynchronize
    with current(stream):
        first = by_host(function, sets[:1])
        for _ in range(2):  # it compiles, loads, tunes
            _called(job, in_turn(first, everything))
    with current(stream):  # once more: a call may have imported PyTorch, which has a current stream of its own
        how, wait = "graph", stream.synchronize
        try:
            enqueue = in_graph(function, sets, cupy, stream)
        except Exception:
            everything()
            how, wait, enqueue = "calls", everything, by_host(function, sets)
    run = timed(enqueue, wait, cupy, stream) if job.tells else in_turn(enqueue, wait)
    return run, current(stream), how


def _called(job: Job, run: Callable[[], object]) -> None:
    try:
        run()
    except Exception as error:
        name = job.function.rpartition(":")[2]
        raise MeasureError(f"{name} raises {type(error).__name__}: {error}") from error


def serve(channel: socket.socket, job: Job, run: Callable[[], object]) -> None:
    """Run whenever the judge says so, until it says that this is the end, or is gone."""
    while channel.recv(MESSAGE_BYTES) == GO:
        found = run()
        channel.send(DONE + b" %r" % found if job.tells else DONE)


def main() -> None:
    """Serve the judge, whose job is on stdin, over the channel that is the argument."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    confine = ctypes.CDLL(None).prctl
    confine(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    confine(ENDS_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    job: Job = pickle.loads(sys.stdin.buffer.read())
    try:
        run, context, how = prepared(job)
    except BaseException as error:  # also what ends a process
        name = job.function.rpartition(":")[2]
        text = str(error) if isinstance(error, MeasureError) else f"{name}: {type(error).__name__}: {error}"
        channel.send(FAILED + b" " + text.encode(errors="replace")[: MESSAGE_BYTES - 16])
        return
    if job.tells:  # what it says is believed: no candidate may write into its memory
        confine(DUMPABLE, 0, 0, 0, 0)
    gc.collect()
    gc.disable()
    with context:
        channel.send(READY + b" " + how.encode())
        serve(channel, job, run)
    channel.close()
    sys.stdout.flush()
