"""Enqueues calls: captured in a CUDA graph, or launched from Python as an object that is replayed like a graph."""

from collections.abc import Callable
from typing import Any

from kernelwatch.api.rounds import Sets
from kernelwatch.timing import capture


class FunctionCalls:
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


class Twice(FunctionCalls):
    """Two turns over the sets, and what happens between them."""

    def __init__(self, function: Callable[..., object], sets: Sets, between: Callable[[], object]) -> None:
        super().__init__(function, sets, len(sets))
        self.between = between

    def launch(self, stream: object, /) -> None:
        super().launch(stream)
        self.between()
        super().launch(stream)


class Captured(capture.Captured):
    """A CUDA graph of calls. `nodes`: how many operations it has, None if that is not known. `before`: as in
    timing/capture.py."""

    def __init__(self, cupy: Any, calls: FunctionCalls, stream: Any, before: "Captured | None" = None) -> None:
        self.calls = calls  # keeps what they returned
        if before:
            before.calls.returned.clear()
        super().__init__(cupy, stream, lambda: calls.launch(stream), before)
        self.nodes = _nodes(self.captured)


def _nodes(graph: Any) -> int | None:
    try:
        from cuda.bindings import runtime

        handle = graph.raw_cuda_graph() if hasattr(graph, "raw_cuda_graph") else graph.graph
        error, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(int(handle)))
    except (ImportError, AttributeError, RuntimeError):
        return None
    return int(count) if int(error) == 0 else None
