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
from kernelwatch.system.garbage import uncollected
from kernelwatch.system.machine import free_bytes
from kernelwatch.timing.cpu import ROTATION, cache_bytes, cores, cpu_name

SAMPLE_S = 0.004  # about as long as a sample takes
SHORT, LONG = 0.5, 4.0  # times as long: below it a sample is taken again, beyond it the next one has fewer calls
CALLS_MOST = 40_000  # of a sample
GROWTH = 8  # times as many calls at once: a call may take longer than those before it


class OnCpu:
    """A callable on the CPU. Its first calls get `arguments`. Raises: MeasureError if the first call raises."""

    method = "host"
    peak_allocated_bytes: int | None = None

    def __init__(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.warnings: list[str] = []
        self.returned = returned_bytes(name, _called(name, function, arguments), arguments)
        start = time.perf_counter()
        _called(name, function, arguments)
        self.calls = 1
        self._fit(time.perf_counter() - start)
        self.turn = 0

    def _fit(self, seconds: float) -> None:
        """Choose the calls of the next sample, from the seconds of one with as many as now."""
        fitting = self.calls * SAMPLE_S / max(seconds, SAMPLE_S / CALLS_MOST)
        self.calls = max(1, min(round(fitting), GROWTH * self.calls, CALLS_MOST))

    def round(self, sets: Sets) -> Round:
        """One sample over the sets of arguments, from where the one before stopped. The first calls of a function may
        be far from those that follow, so a sample that turns out short is no figure: of a few calls it would hold
        mostly what begins and ends it."""
        seconds, calls = self._sample(sets), self.calls
        while seconds < SHORT * SAMPLE_S and calls < CALLS_MOST:
            self._fit(seconds)
            seconds, calls = self._sample(sets), self.calls
        if seconds > LONG * SAMPLE_S:
            self._fit(seconds)
        return Round(seconds / calls, calls)

    def _sample(self, sets: Sets) -> float:
        gc.collect(0)  # what the sample before left in cycles: nobody else collects it, see `Cpu.current`
        turn = [sets[(self.turn + at) % len(sets)] for at in range(self.calls)]
        self.turn += self.calls
        function = self.function
        start = time.perf_counter()
        for arguments in turn:
            function(*arguments)
        return time.perf_counter() - start

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


def _called(name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> object:
    try:
        return function(*arguments)
    except Exception as error:
        raise MeasureError(f"{name} raises {type(error).__name__}: {error}") from error


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
        with uncollected():
            yield

    def disturbed(self) -> str:
        return ""

    def memory_errors(self) -> int:
        return 0

    def conditions(self) -> dict[str, Any]:
        return {"cores": len(cores()), "numpy": np.__version__}
