"""Times a callable on a GPU: by replays of a CUDA graph, or between events if it cannot be captured."""

import math
import os
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from kernelwatch.api.arguments import Rotation
from kernelwatch.api.capture import Captured, FunctionCalls, Twice
from kernelwatch.api.result import MeasureError
from kernelwatch.api.rounds import Round, Sets, returned_bytes
from kernelwatch.system import clock as time
from kernelwatch.system.holding import holding
from kernelwatch.system.machine import no_gpu
from kernelwatch.timing.capture import torch_on_gpu
from kernelwatch.timing.gpu import GRAPH_NODES_MAX, HOT_ROTATION, ROTATION
from kernelwatch.timing.launch import Allocations, current
from kernelwatch.timing.nvml import Nvml, disturbed
from kernelwatch.timing.replay import Graph, Replayer

SAMPLE_S = 0.002
SAMPLES = 2  # in a round
LEAD_INS = 10  # turns of the canaries before a single turn, since the GPU may have rested
FEW = 16  # sets over which calls go to see how long one takes
TURN_S = 0.02  # a turn over the sets takes no longer: such slow calls depend little on what the cache holds
PAGE = 1 << 21  # of the GPU's memory
IDLE_S = 1.0  # after so long without work the clocks must be raised again
BLOCKER_S = 0.002  # how long the GPU is kept busy to see whether a call waits for it
BLOCKER_MOST_S = 0.1
UNJOINED = "unjoined"  # in the error of a capture in which another stream was given work that nothing waits for
ELSEWHERE_S = 5e-5  # of work that ends after the stream's own, beyond as long as that: it ran on another stream


def current_device() -> int:
    """The number of the current CUDA device. Raises: MeasureError if there is none."""
    try:
        import cupy

        return int(cupy.cuda.Device().id)
    except Exception as error:
        raise MeasureError(f"no GPU can be used here: {no_gpu(error)}") from error


class OnGpu:
    """A callable on the GPU, on the stream of the replayer. Its first calls get `arguments`.

    `called`: what to do after the very first call, which may have imported a library.

    Raises: MeasureError if the first call raises.
    """

    def __init__(
        self,
        replayer: Replayer,
        name: str,
        function: Callable[..., object],
        arguments: tuple[Any, ...],
        called: Callable[[], None],
    ) -> None:
        self.replayer, self.name, self.function = replayer, name, function
        self.warnings: list[str] = []
        self.plan: tuple[int, int, int] | None = None
        self.own_mhz = math.inf  # the SM clock at which the rounds before ended, if something held it down
        self.captured: Captured | None = None  # the last one; the next takes over its memory
        self.timed: FunctionCalls | None = None  # the calls of the last round
        self.returned = returned_bytes(name, self._call(arguments), arguments)
        called()
        with Allocations(self.replayer.cupy) as allocations:
            start = time.perf_counter()
            self._call(arguments)
            host_s = time.perf_counter() - start
        self.peak_allocated_bytes: int | None = allocations.peak_bytes
        if allocations.peak_bytes:
            self.warnings.append(f"it allocates {allocations.peak_bytes / (1 << 20):.3g} MiB in each call")
        if self._waits(arguments, host_s):
            self.warnings.append("it waits for the GPU in each call, which keeps a program from queueing further work")
        self.method = self._method(arguments)

    def _call(self, arguments: tuple[Any, ...]) -> object:
        """Call the function once, and wait for all that it enqueued on any stream."""
        try:
            result = self.function(*arguments)
            self.replayer.cupy.cuda.runtime.deviceSynchronize()
        except Exception as error:
            raise MeasureError(f"{self.name} raises {type(error).__name__}: {error}") from error
        return result

    def _waits(self, arguments: tuple[Any, ...], host_s: float) -> bool:
        """Whether a call returns only after the GPU has finished what it was busy with before."""
        wanted_s = max(BLOCKER_S, 4 * host_s)
        if wanted_s > BLOCKER_MOST_S:
            return False
        blocker, stream = self.replayer.canaries["memory"], self.replayer.stream
        once_s = statistics.median(self.replayer.replay(blocker, 1, 3)[0])
        end = self.replayer.cupy.cuda.Event()
        for _ in range(1 + round(wanted_s / once_s)):
            blocker.launch(stream)
        end.record(stream)
        self.function(*arguments)
        waits = bool(end.done)
        self.replayer.cupy.cuda.runtime.deviceSynchronize()
        return waits

    def _method(self, arguments: tuple[Any, ...]) -> str:
        """How to time the function: "graph", "events" or "host"."""
        try:
            nodes = self._capture(FunctionCalls(self.function, [arguments], 1)).nodes
        except Exception as error:
            self.replayer.cupy.cuda.runtime.deviceSynchronize()
            if UNJOINED in str(error) or self._elsewhere(arguments):
                self.warnings.append(
                    "it does some of its work on another stream: timed by the host's clock until the GPU is idle, "
                    "launches included"
                )
                return "host"
            self.warnings.append(
                f"it cannot be captured in a CUDA graph ({_one_line(error)}): timed between events as Python launches "
                "it, which is slower if the launches take longer than the work"
            )
            return "events"
        if nodes == 0:
            self.warnings.append(
                "it enqueues nothing on the current stream, but perhaps on another: timed by the host's clock until "
                "the GPU is idle, launches included"
            )
            return "host"
        return "graph"

    def _elsewhere(self, arguments: tuple[Any, ...]) -> bool:
        """Whether work of a call goes on after the current stream is done with it."""
        self.function(*arguments)
        start = time.perf_counter()
        self.replayer.stream.synchronize()
        own_s = time.perf_counter() - start
        self.replayer.cupy.cuda.runtime.deviceSynchronize()
        return time.perf_counter() - start > 2 * own_s + ELSEWHERE_S

    def _capture(self, calls: FunctionCalls) -> Captured:
        self.captured = Captured(self.replayer.cupy, calls, self.replayer.stream, self.captured)
        return self.captured

    def _enqueue(self, sets: Sets, count: int) -> Graph:
        self.timed = FunctionCalls(self.function, sets, count)
        return self._capture(self.timed) if self.method == "graph" else self.timed

    def _plan(self, sets: Sets) -> tuple[int, int, int]:
        """The number of sets over which a sample goes, its turns over them in a graph, and the replays of the graph."""
        few = min(len(sets), FEW)
        once_s = min(self.replayer.replay(self._enqueue(sets, few), 1, 2, lead_in=self.replayer.lead_in)[0]) / few
        used = max(1, min(len(sets), round(TURN_S / once_s)))
        turns = max(1, round(min(GRAPH_NODES_MAX, SAMPLE_S / once_s) / used))
        return used, turns, max(1, round(SAMPLE_S / (once_s * used * turns)))

    def round(self, sets: Sets) -> Round:
        """Some samples over the sets of arguments, after a rest if something holds the SM clock down."""
        if self.method == "host":
            return self._by_host(sets)
        self.plan = self.plan or self._plan(sets)
        used, turns, replays = self.plan
        calls = self._enqueue(sets[:used], turns * used)
        take = self.replayer.take_quietly(calls, replays, turns * used, SAMPLES, own_mhz=self.own_mhz)
        clock = take["clock64_mhz"]
        self.own_mhz = clock if clock and self.replayer.low(take) else math.inf
        return Round(statistics.median(take["seconds"]), take["launches"], clock, tuple(take["throttled"]))

    def used(self, sets: Sets) -> Sets:
        return sets[: self.plan[0]] if self.plan else sets

    def again(self) -> Mapping[int, object] | None:
        if self.timed is None:
            return None
        graph: Graph = self.captured if self.method == "graph" and self.captured else self.timed
        graph.launch(self.replayer.stream)
        self.replayer.stream.synchronize()
        self.replayer.worked()
        return self.timed.returned

    def once(self, sets: Sets, between: Callable[[], object] | None = None) -> tuple[float, Mapping[int, object]]:
        calls = Twice(self.function, sets, between) if between else FunctionCalls(self.function, sets, len(sets))
        if self.method == "host":
            return self._host_seconds(calls) / len(sets), calls.returned
        graph: Graph = self._capture(calls) if self.method == "graph" else calls
        (seconds,), _, _ = self.replayer.replay(graph, 1, 1, lead_in=LEAD_INS * self.replayer.lead_in)
        return seconds / len(sets), calls.returned

    def _host_seconds(self, calls: FunctionCalls) -> float:
        wait = self.replayer.cupy.cuda.runtime.deviceSynchronize
        wait()
        start = time.perf_counter()
        calls.launch(self.replayer.stream)
        wait()
        seconds = time.perf_counter() - start
        self.replayer.worked()
        return seconds

    def _by_host(self, sets: Sets) -> Round:
        return Round(self._host_seconds(FunctionCalls(self.function, sets, len(sets))) / len(sets), len(sets))


class Gpu:
    """The current CUDA device."""

    device = "gpu"
    renews = True  # how fast a kernel is depends on where its arrays lie, by some tenths of a percent

    def __init__(self) -> None:
        import cupy

        self.bus = cupy.cuda.Device().pci_bus_id
        self.cupy = self.xp = cupy
        self.replayer = Replayer(Nvml(self.bus))
        self.replayer.warm_up()
        self.used_at = time.monotonic()
        self.name = self.replayer.gpu
        self.contexts = ExitStack()  # of `current`, while it is open
        self.with_torch = False  # whether they hold PyTorch's current stream

    def subject(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> OnGpu:
        return OnGpu(self.replayer, name, function, arguments, self._follow)

    def _follow(self) -> None:
        """Make the replayer's stream PyTorch's current one, too, if PyTorch came after `current` was entered: Triton
        and PyTorch launch on a stream of their own else, which no capture here sees."""
        if not self.with_torch and torch_on_gpu():
            self.contexts.enter_context(current(self.replayer.stream))
            self.with_torch = True

    def allocate(self, size: int) -> Any:
        """Memory straight from the driver, which no pool keeps."""
        with self.cupy.cuda.using_allocator(None):
            return self.cupy.empty(size, self.cupy.uint8)

    def rotation(self, arguments: Sequence[object], cache: str) -> Rotation:
        l2_bytes = self.replayer.l2_bytes
        return Rotation(
            arguments,
            self.device,
            self.cupy,
            self.allocate,
            cache=cache,
            cache_bytes=l2_bytes,
            cold_bytes=ROTATION * l2_bytes,
            hot_bytes=int(HOT_ROTATION * l2_bytes),
            free_bytes=int(self.cupy.cuda.runtime.memGetInfo()[0]),
            page=PAGE,
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the replayer's stream the current one of CuPy and PyTorch, once the GPU is idle and no other run of the
        engine measures on it."""
        with ExitStack() as self.contexts:
            self.contexts.enter_context(holding(self.bus, _waiting))
            self.cupy.cuda.runtime.deviceSynchronize()
            self.replayer.worked()
            self.with_torch = bool(torch_on_gpu())
            self.contexts.enter_context(current(self.replayer.stream))
            if time.monotonic() - self.used_at > IDLE_S:
                self.replayer.warm_up()
            yield
            self.used_at = time.monotonic()

    def disturbed(self) -> str:
        """Why other programs on the GPU make the figures doubtful, "" if they do not."""
        own = (os.getpid(), os.getppid())  # a fresh process was started by the user's
        processes = self.replayer.nvml.processes() or []
        others = [process for process in processes if process["pid"] not in own]
        return disturbed({"processes": others, "utilisation_percent": None})

    def memory_errors(self) -> int:
        return self.replayer.nvml.uncorrected_errors() or 0

    def conditions(self) -> dict[str, Any]:
        runtime, state = self.cupy.cuda.runtime, self.replayer.nvml.state()
        return {
            "driver": self.replayer.nvml_facts.get("driver"),
            "cuda_driver": runtime.driverGetVersion(),
            "cuda_runtime": runtime.runtimeGetVersion(),
            "cupy": self.cupy.__version__,
            "l2_bytes": self.replayer.l2_bytes,
            "sm_clock_max_mhz": self.replayer.nvml_facts.get("sm_clock_max_mhz"),
            "temperature_c": state["temperature_c"],
            "power_w": state["power_w"],
        }


def _waiting(who: str) -> None:
    warnings.warn(f"kernelwatch waits for {who}, which measures on this GPU", stacklevel=2)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
