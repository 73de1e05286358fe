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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kernelwatch.api.capture import Captured, FunctionCalls
from kernelwatch.api.judge.layout import Layout
from kernelwatch.api.judge.memory import Handle, mapped
from kernelwatch.api.named import known
from kernelwatch.api.result import MeasureError

SOON, GO, END, DONE, READY, FAILED = b"soon", b"go", b"end", b"done", b"ready", b"failed"
MESSAGE_BYTES = 4096
NO_NEW_PRIVILEGES, ENDS_WITH_PARENT = 38, 1  # of prctl


@dataclass(frozen=True)
class Job:
    """What a candidate's process gets. `function`: its name; `sets`: how many there are; `spins`: whether it spins
    while it waits for the judge."""

    function: str
    layout: Layout
    sets: int
    handle: Handle
    spins: bool


Set = tuple[tuple[Any, ...], dict[str, Any]]


def by_host(function: Callable[..., object], sets: list[Set], wait: Callable[[], object]) -> Callable[[], object]:
    """What calls a function over each set, and returns when all is done."""

    def run() -> None:
        for positional, named in sets:
            function(*positional, **named)
        wait()

    return run


def in_graph(function: Callable[..., object], sets: list[Set], cupy: Any, stream: Any) -> Callable[[], object]:
    """The same by a CUDA graph, whose calls are captured now. Raises: what a call raises that cannot be captured."""
    calls = [(lambda positional=positional, named=named: function(*positional, **named),) for positional, named in sets]
    graph = Captured(cupy, FunctionCalls(lambda call: call(), calls, len(calls)), stream)
    if graph.nodes == 0:
        raise ValueError("it enqueues nothing on the current stream")

    def run() -> None:
        graph.launch(stream)
        stream.synchronize()

    return run


def prepared(job: Job) -> tuple[Callable[[], object], AbstractContextManager[Any], str]:
    """What does the work of a round, the context to do it in, and how it is launched. Raises: MeasureError."""
    memory = mapped(job.handle)
    function = known(job.function)
    sets = [job.layout.arguments(memory, at * job.layout.set_bytes) for at in range(job.sets)]
    if "ipc" not in job.handle:
        run = by_host(function, sets, lambda: None)
        _called(job, run)
        return run, nullcontext(), "calls"
    import cupy

    from kernelwatch.timing.launch import current

    stream = cupy.cuda.Stream(non_blocking=True)
    everything = cupy.cuda.runtime.deviceSynchronize
    with current(stream):
        first = by_host(function, sets[:1], everything)
        for _ in range(2):  # it compiles, loads, tunes
            _called(job, first)
    with current(stream):  # once more: a call may have imported PyTorch, which has a current stream of its own
        try:
            return in_graph(function, sets, cupy, stream), current(stream), "graph"
        except Exception:
            everything()
            return by_host(function, sets, everything), current(stream), "calls"


def _called(job: Job, run: Callable[[], object]) -> None:
    try:
        run()
    except Exception as error:
        name = job.function.rpartition(":")[2]
        raise MeasureError(f"{name} raises {type(error).__name__}: {error}") from error


def serve(channel: socket.socket, spins: bool, run: Callable[[], object]) -> None:
    """Run whenever the judge says so, until it says that this is the end, or is gone. `spins`: between "soon" and "go",
    since to be woken takes longer, and not always equally long."""
    while channel.recv(MESSAGE_BYTES) == SOON:
        channel.setblocking(not spins)
        while True:
            try:
                channel.recv(MESSAGE_BYTES)
                break
            except BlockingIOError:
                continue
        run()
        channel.setblocking(True)
        channel.send(DONE)


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
        text = str(error) if isinstance(error, MeasureError) else f"{type(error).__name__}: {error}"
        channel.send(FAILED + b" " + text.encode(errors="replace")[: MESSAGE_BYTES - 16])
        return
    gc.collect()
    gc.disable()
    with context:
        channel.send(READY + b" " + how.encode())
        serve(channel, job.spins, run)
    channel.close()
    sys.stdout.flush()


def touch(*_arrays: object, **_named: object) -> None:
    """The least that a function can do: the judge times it to know what a round takes beside the calls."""
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.cuda.runtime.memsetAsync(_own(cupy).data.ptr, 0, 4, cupy.cuda.get_current_stream().ptr)


_memory: dict[str, Any] = {}


def _own(cupy: Any) -> Any:
    if "four" not in _memory:
        _memory["four"] = cupy.zeros(4, cupy.uint8)
    return _memory["four"]
