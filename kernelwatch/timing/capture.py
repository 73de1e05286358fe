"""Captures what a function enqueues in a CUDA graph, with the memory that it allocates.

What is allocated within a capture must stay the graph's own: each replay writes to the same places. PyTorch's
allocator takes it from a pool of the graph if PyTorch itself captures. CuPy's takes it from its current pool, so the
capture has a pool of its own, which lives as long as the graph.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kernelwatch.timing.replay import Graph


def torch_on_gpu() -> Any:
    """PyTorch if this process has imported it and it can use a GPU, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


class Captured:
    """A CUDA graph of what `enqueue` enqueues on a stream, which must be the current one.

    `before`: the graph that this one replaces, whose memory it may take; nothing replays it any more.
    """

    def __init__(self, cupy: Any, stream: Any, enqueue: Callable[[], object], before: "Captured | None" = None) -> None:
        torch = torch_on_gpu()
        self.pool: Any = before.pool if before else torch.cuda.graph_pool_handle() if torch else None
        self.memory: Any = before.memory if before else cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(self.memory.malloc):
            # PyTorch's own capture keeps its allocator from giving the memory of the graph to others.
            self.captured: Any = _by_torch(torch, enqueue, self.pool) if torch else _by_cupy(stream, enqueue)

    @property
    def graph(self) -> int | None:
        """The driver's handle; None if PyTorch does not tell it."""
        if hasattr(self.captured, "raw_cuda_graph"):
            return int(self.captured.raw_cuda_graph())
        return getattr(self.captured, "graph", None)

    def launch(self, stream: Any, /) -> None:
        """Enqueue the graph."""
        if hasattr(self.captured, "replay"):
            self.captured.replay()  # on PyTorch's current stream, which is this one
        else:
            self.captured.launch(stream)


def _by_cupy(stream: Any, enqueue: Callable[[], object]) -> Graph:
    stream.begin_capture()
    try:
        enqueue()
    except Exception:
        with suppress(Exception):  # the capture is invalid, and this ends it
            stream.end_capture()
        raise
    graph: Graph = stream.end_capture()
    return graph  # not uploaded: one that is never launched would slow others down (timing/replay.py)


def _by_torch(torch: Any, enqueue: Callable[[], object], pool: Any) -> Any:
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:  # before PyTorch 2.8
        graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="relaxed")
    try:
        enqueue()
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
