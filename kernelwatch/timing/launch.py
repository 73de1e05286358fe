"""Ways to enqueue a launch for the timing harness, and what it does besides: the stream that it uses, its allocations.

A launch may come from any library. CuPy's and PyTorch's current stream are the harness's while a cell is measured; what
takes a stream object gets CuPy's, which has __cuda_stream__.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kernelwatch.plan.package import Kernel, Launch
from kernelwatch.plan.problem import Array, Operands, Rung
from kernelwatch.timing import tensors


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


class Returning:
    """A launch that returns its outputs. What it returned is kept until it is called again, so that the outputs rotate
    with the sets of buffers, as those do that a function is given."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.identity = launch.identity
        self.of_sources = bool(getattr(launch, "of_sources", False))
        self.result: object = None

    def __call__(self) -> object:
        self.result = self._launch()
        return self.result


def bind(kernel: Kernel, rung: Rung | None, operands: Operands, inputs: list[Array], outs: list[Array]) -> Launch:
    """The launch of a kernel over these arrays. Conversions are done here, once, and not in what is timed.

    `rung`: as it is declared. Raises: NotHere if it takes PyTorch's tensors and there is no PyTorch.
    """
    if rung is not None and rung.arrays == "torch":
        tensors.pytorch(rung.name)
        inputs, outs = list(map(tensors.tensor, inputs)), list(map(tensors.tensor, outs))
    positional, named = operands.arguments(inputs)
    launch = kernel.bind(*positional, out=outs[0] if len(outs) == 1 else tuple(outs), **named)
    return Returning(launch) if getattr(launch, "returns", False) else launch


class Direct:
    """A launch with the interface of a graph, for a first run, which may load modules; a capture must not.

    `enqueue_s`: the seconds that the host took to enqueue it. `result`: what it returned.
    """

    def __init__(self, launch: Callable[[], object]) -> None:
        self._launch = launch
        self.enqueue_s = 0.0
        self.result: object = None

    def launch(self, _stream: object, /) -> None:
        """Enqueue the launch on the current stream."""
        start = time.perf_counter()
        self.result = self._launch()
        self.enqueue_s = time.perf_counter() - start


class Calls:
    """Launches by the host, one after the other, with the interface of a graph: where there can or must be none."""

    def __init__(self, launches: Sequence[Callable[[], object]], count: int) -> None:
        self._launches = [launches[at % len(launches)] for at in range(count)]

    def launch(self, _stream: object, /) -> None:
        """Enqueue the launches on the current stream."""
        for launch in self._launches:
            launch()


class Allocations:
    """The device memory that CuPy's and PyTorch's allocators hand out within a `with` block. `peak_bytes`: the most
    that was handed out at once; if both have peaks, their sum."""

    def __init__(self, cupy: Any) -> None:
        self._hook = _hook(cupy)
        self._before = 0
        self.peak_bytes = 0

    def __enter__(self) -> "Allocations":
        self._before = _torch_bytes()
        self._hook.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.__exit__(*error)
        self.peak_bytes = self._hook.peak_bytes + _torch_bytes(peak=True) - self._before


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


class Noted:
    """What is allocated and chosen within a `with` block: `peak_bytes` as in Allocations, `configurations` as in
    Choices."""

    def __init__(self, cupy: Any) -> None:
        self._allocations, self._choices = Allocations(cupy), Choices()

    def __enter__(self) -> "Noted":
        self._allocations.__enter__()
        self._choices.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._choices.__exit__(*error)
        self._allocations.__exit__(*error)

    @property
    def peak_bytes(self) -> int:
        return self._allocations.peak_bytes

    @property
    def configurations(self) -> list[str]:
        return self._choices.texts


def _hook(cupy: Any) -> Any:
    """A CuPy memory hook that follows the bytes that are handed out, and not given back yet."""

    class Hook(cupy.cuda.memory_hook.MemoryHook):  # type: ignore[misc]
        name = "kernelwatch"

        def __init__(self) -> None:
            self.held: dict[int, int] = {}  # by the place in memory
            self.peak_bytes = 0

        def malloc_postprocess(self, **given: Any) -> None:
            self.held[given["mem_ptr"]] = given["size"]
            self.peak_bytes = max(self.peak_bytes, sum(self.held.values()))

        def free_preprocess(self, **returned: Any) -> None:
            self.held.pop(returned["mem_ptr"], None)  # None: it was allocated before

    return Hook()


def _torch_bytes(*, peak: bool = False) -> int:
    """The bytes that PyTorch's allocator has handed out now, from which its peak counts anew; `peak`: the most at once
    since then."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    if peak:
        return int(torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())
