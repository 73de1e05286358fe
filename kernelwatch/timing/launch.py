"""Ways to enqueue a launch for the timing harness, and what it does besides: the stream that it uses, its allocations.

A launch may come from any library. CuPy's and PyTorch's current stream are the harness's while a cell is measured; what
takes a stream object gets CuPy's, which has __cuda_stream__.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def current(stream: Any) -> Iterator[None]:
    """Make a CuPy stream the current one of CuPy, and of PyTorch (hence of Triton) if a rung has imported it."""
    torch = sys.modules.get("torch")
    with stream:
        if torch is None or not torch.cuda.is_available():  # PyTorch may be built for CPUs
            yield
        else:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                yield


class Direct:
    """A launch with the interface of a graph, for a first run, which may load modules; a capture must not.

    `enqueue_s`: the seconds that the host took to enqueue it.
    """

    def __init__(self, launch: Callable[[], object]) -> None:
        self._launch = launch
        self.enqueue_s = 0.0

    def launch(self, _stream: object, /) -> None:
        """Enqueue the launch on the current stream."""
        start = time.perf_counter()
        self._launch()
        self.enqueue_s = time.perf_counter() - start


class Calls:
    """Launches by the host, one after the other, with the interface of a graph: for what cannot be captured."""

    def __init__(self, launches: Sequence[Callable[[], object]], count: int) -> None:
        self._launches = [launches[at % len(launches)] for at in range(count)]

    def launch(self, _stream: object, /) -> None:
        """Enqueue the launches on the current stream."""
        for launch in self._launches:
            launch()


class Allocations:
    """The bytes of device memory that CuPy's and PyTorch's allocators hand out within a `with` block."""

    def __init__(self, cupy: Any) -> None:
        self._hook = _hook(cupy)
        self._before = 0
        self.nbytes = 0

    def __enter__(self) -> "Allocations":
        self._before = _allocated_by_torch()
        self._hook.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.__exit__(*error)
        self.nbytes = self._hook.nbytes + _allocated_by_torch() - self._before


class Choices:
    """The configurations that Triton's autotuners launch with within a `with` block, by the kernel's name."""

    def __init__(self) -> None:
        module = sys.modules.get("triton.runtime.autotuner")
        self._kind = module.Autotuner if module else None
        self._tuners: list[Any] = []

    def __enter__(self) -> "Choices":
        if self._kind:
            run, tuners = self._kind.run, self._tuners
            self._run = run

            def noted(tuner: Any, *arguments: Any, **options: Any) -> Any:
                tuners.append(tuner)
                return run(tuner, *arguments, **options)

            self._kind.run = noted
        return self

    def __exit__(self, *error: object) -> None:
        if self._kind:
            self._kind.run = self._run

    @property
    def texts(self) -> list[str]:
        """Such as "matmul: TILE: 64, num_warps: 4"."""
        return [f"{tuner.base_fn.__name__}: {tuner.best_config}" for tuner in dict.fromkeys(self._tuners)]


def _hook(cupy: Any) -> Any:
    """A CuPy memory hook that adds up the bytes that are asked for."""

    class Hook(cupy.cuda.memory_hook.MemoryHook):  # type: ignore[misc]
        name = "kernelwatch"
        nbytes = 0

        def malloc_preprocess(self, **asked: Any) -> None:
            self.nbytes += asked["size"]

    return Hook()


def _allocated_by_torch() -> int:
    """The bytes that PyTorch's allocator has handed out so far in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0))
