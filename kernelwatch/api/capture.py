"""Enqueues calls: captured in a CUDA graph, or launched from Python as an object that is replayed like a graph."""

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kernelwatch.timing.replay import Graph

Sets = Sequence[tuple[Any, ...]]


def torch_on_gpu() -> Any:
    """PyTorch if this process has imported it and it can use a GPU, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


class Calls:
    """Calls of a function, in turn over sets of arguments, launched from Python. What a call returns is kept until the
    next one over the same set, so that its memory rotates with that of the arguments."""

    def __init__(self, function: Callable[..., object], sets: Sets, count: int) -> None:
        self.function, self.sets, self.count = function, sets, count
        self.returned: dict[int, object] = {}

    def launch(self, _stream: object, /) -> None:
        """Enqueue the calls on the current stream."""
        for at in range(self.count):
            which = at % len(self.sets)
            self.returned[which] = self.function(*self.sets[which])


class Captured:
    """A CUDA graph of calls. `nodes`: how many operations it has, None if that is not known.

    `before`: the graph that this one replaces, whose memory it may take; nothing replays it any more.
    """

    def __init__(self, calls: Calls, stream: Any, before: "Captured | None" = None) -> None:
        self.calls = calls  # keeps what they returned
        if before:
            before.calls.returned.clear()
        torch = torch_on_gpu()
        self.pool: Any = before.pool if before else torch.cuda.graph_pool_handle() if torch else None
        # PyTorch's own capture keeps its allocator from giving the memory of the graph to others.
        self.graph: Any = _by_torch(torch, calls, stream, self.pool) if torch else _by_cupy(calls, stream)
        self.nodes = _nodes(self.graph)

    def launch(self, stream: Any, /) -> None:
        """Enqueue the graph."""
        if hasattr(self.graph, "replay"):
            self.graph.replay()  # on PyTorch's current stream, which is this one
        else:
            self.graph.launch(stream)


def _by_cupy(calls: Calls, stream: Any) -> Graph:
    stream.begin_capture()
    try:
        calls.launch(stream)
    except Exception:
        with suppress(Exception):  # the capture is invalid, and this ends it
            stream.end_capture()
        raise
    graph: Graph = stream.end_capture()
    return graph  # not uploaded: one that is never launched would slow others down (timing/replay.py)


def _by_torch(torch: Any, calls: Calls, stream: Any, pool: Any) -> Any:
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:  # before PyTorch 2.8
        graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="relaxed")
    try:
        calls.launch(stream)
    except Exception:
        with suppress(Exception):
            _end(torch, graph, pool)
        raise
    _end(torch, graph, pool)
    if hasattr(graph, "instantiate"):
        graph.instantiate()
    return graph


def _end(torch: Any, graph: Any, pool: Any) -> None:
    """End PyTorch's capture. If the driver refuses it, PyTorch's allocator and its random numbers still take it for
    running: end it for the first, and begin and end another one for the second. Raises: RuntimeError if it is refused.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty graph
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            with suppress(Exception):
                empty = torch.cuda.CUDAGraph()
                empty.capture_begin()
                empty.capture_end()
            raise


def _nodes(graph: Any) -> int | None:
    try:
        from cuda.bindings import runtime

        handle = graph.raw_cuda_graph() if hasattr(graph, "raw_cuda_graph") else graph.graph
        error, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(int(handle)))
    except (ImportError, AttributeError, RuntimeError):
        return None
    return int(count) if int(error) == 0 else None
