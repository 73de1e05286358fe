"""Times a callable on the CPU, by the host's clock."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernelwatch.api.arguments import Rotation
from kernelwatch.api.result import MeasureError
from kernelwatch.api.rounds import Round, Sets, returned_bytes
from kernelwatch.system import clock as time
from kernelwatch.system.machine import free_bytes
from kernelwatch.timing.cpu import ROTATION, cache_bytes, cores, cpu_name

SAMPLE_S = 0.004


class OnCpu:
    """A callable on the CPU. Its first calls get `arguments`. Raises: MeasureError if the first call raises."""

    method = "host"
    peak_allocated_bytes: int | None = None

    def __init__(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.warnings: list[str] = []
        try:
            self.returned = returned_bytes(function(*arguments), arguments)
            start = time.perf_counter()
            function(*arguments)
        except Exception as error:
            raise MeasureError(f"{name} raises {type(error).__name__}: {error}") from error
        self.calls = max(1, round(SAMPLE_S / max(time.perf_counter() - start, 1e-7)))
        self.turn = 0

    def round(self, sets: Sets) -> Round:
        """One sample over the sets of arguments, from where the one before stopped."""
        turn = [sets[(self.turn + at) % len(sets)] for at in range(self.calls)]
        self.turn += self.calls
        function = self.function
        start = time.perf_counter()
        for arguments in turn:
            function(*arguments)
        return Round((time.perf_counter() - start) / self.calls, self.calls)

    def used(self, sets: Sets) -> Sets:
        return sets

    def again(self) -> Mapping[int, object] | None:
        return None

    def once(self, sets: Sets, between: Callable[[], object] | None = None) -> tuple[float, Mapping[int, object]]:
        function = self.function
        if between:
            for arguments in sets:
                function(*arguments)
            between()
        start = time.perf_counter()
        returned = [function(*arguments) for arguments in sets]
        return (time.perf_counter() - start) / len(sets), dict(enumerate(returned))


class Cpu:
    """This machine's CPU."""

    device = "cpu"
    renews = False  # filling copies as large as the cache takes longer than a round
    xp = np

    def __init__(self) -> None:
        self.name = cpu_name()

    def subject(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> OnCpu:
        return OnCpu(name, function, arguments)

    def rotation(self, arguments: Sequence[object], cache: str) -> Rotation:
        return Rotation(
            arguments,
            self.device,
            np,
            lambda size: np.empty(size, np.uint8),
            cache=cache,
            cache_bytes=cache_bytes(),
            cold_bytes=ROTATION * cache_bytes(),
            hot_bytes=0,
            free_bytes=free_bytes(),
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Without garbage collections, which would fall into a sample."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()

    def disturbed(self) -> str:
        return ""

    def memory_errors(self) -> int:
        return 0

    def conditions(self) -> dict[str, Any]:
        return {"cores": len(cores()), "numpy": np.__version__}
