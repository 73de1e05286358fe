"""A GPU that is not there: CuPy as far as the timing harness needs it, on NumPy memory and a clock of its own.

It records every launch. The host enqueues a launch in ENQUEUE_S, and the device runs one after the other.
"""

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from kernelwatch.timing.nvml import State

ENQUEUE_S = 2e-6
COPY_BYTES_PER_S = 1e12  # read and written together
MULTIPLY_ADDS_PER_S = 1e12
CLOCK_MHZ = 1500
MULTIPROCESSORS = 4
CHAINS = 4  # of dependent multiply-adds in a thread of the harness's kernels
SILENT: State = {
    "sm_clock_mhz": None,
    "memory_clock_mhz": None,
    "temperature_c": None,
    "power_w": None,
    "event_reasons": None,
}


class Memory(np.ndarray[Any, Any]):
    """An array with the attributes of CuPy's that the harness uses."""

    def __new__(cls, shape: tuple[int], dtype: Any, place: "Pointer") -> "Memory":
        """Bytes from a place on."""
        assert dtype is np.uint8
        return cast(Memory, place.memory[place.offset :][: shape[0]])

    @property
    def data(self) -> Any:
        return Pointer(self, 0)

    def get(self, stream: object) -> Any:
        return np.array(self)

    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        return (2, 0)  # CUDA memory of the first device


@dataclass(frozen=True)
class Pointer:
    """A place in memory, some bytes after the beginning of an array."""

    memory: Memory
    offset: int

    @property
    def ptr(self) -> int:
        return int(self.memory.ctypes.data) + self.offset

    def __add__(self, offset: int) -> "Pointer":
        return Pointer(self.memory, self.offset + offset)


@dataclass(frozen=True)
class Launched:
    """One run of a kernel. `at_s`: when the device finished it; `replayed`: whether a graph launched it."""

    name: str
    arguments: tuple[Any, ...]
    at_s: float
    replayed: bool


Work = tuple[str, tuple[Any, ...], float, Callable[[], object]]


@dataclass
class Device:
    """The device and its host: their clocks in seconds, and the launches in order."""

    l2_bytes: int = 1 << 18
    host_s: float = 0.0
    device_s: float = 0.0
    launches: list[Launched] = field(default_factory=list)
    captured: list[Work] | None = None
    host_calls: bool = True  # whether the host launches what runs, not a graph
    graphs: "list[Graph]" = field(default_factory=list)  # that were launched since the last sort, each once
    later_s: float = 0.0  # each kernel takes so much longer once more than one was

    def enqueue(
        self, name: str, arguments: tuple[Any, ...], seconds: float, run: Callable[[], object] = lambda: None
    ) -> None:
        if self.captured is not None:
            self.captured.append((name, arguments, seconds, run))
            return
        self.host_s += ENQUEUE_S
        self.execute((name, arguments, seconds, run))

    def execute(self, work: Work, replayed: bool = False) -> None:
        name, arguments, seconds, run = work
        self.device_s = max(self.device_s, self.host_s) + seconds
        run()
        self.launches.append(Launched(name, arguments, self.device_s, replayed))

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def now(self) -> float:
        self.host_s += 1e-8
        return self.host_s

    def sleep(self, seconds: float) -> None:
        self.host_s += seconds


class Graph:
    def __init__(self, device: Device, work: list[Work]) -> None:
        self.device, self.work = device, work

    def launch(self, stream: object) -> None:
        if self not in self.device.graphs:
            self.device.graphs.append(self)
        self.device.host_s += ENQUEUE_S
        self.device.host_calls = False
        more_s = self.device.later_s if len(self.device.graphs) > 1 else 0.0
        for name, arguments, seconds, run in self.work:
            self.device.execute((name, arguments, seconds + more_s, run), replayed=True)
        self.device.host_calls = True


class Stream:
    ptr = 0

    def __init__(self, device: Device) -> None:
        self.device = device

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin_capture(self) -> None:
        self.device.captured = []

    def end_capture(self) -> Graph:
        work, self.device.captured = self.device.captured or [], None
        return Graph(self.device, work)

    def synchronize(self) -> None:
        self.device.synchronize()


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at_s = device, 0.0

    @property
    def done(self) -> bool:
        return self.device.host_s >= self.at_s

    def record(self, stream: object) -> None:
        self.at_s = max(self.device.device_s, self.device.host_s)


class MemoryHook:
    """CuPy's; what allocates calls `malloc_postprocess` of the active one, and `free_preprocess` when it gives back."""

    active: "MemoryHook | None" = None

    def __enter__(self) -> "MemoryHook":
        MemoryHook.active = self
        return self

    def __exit__(self, *_: object) -> None:
        MemoryHook.active = None

    def malloc_postprocess(self, **given: Any) -> None:
        raise NotImplementedError

    def free_preprocess(self, **returned: Any) -> None:
        raise NotImplementedError


class Cupy:
    """What `import cupy` gives; all that is not here is NumPy's."""

    __version__ = "none"
    ndarray = Memory

    def __init__(self, device: Device) -> None:
        self.device = device
        limits: dict[int, int] = {}
        runtime = SimpleNamespace(
            deviceGetLimit=lambda limit: limits.get(limit, 0),
            deviceSetLimit=limits.__setitem__,
            getDeviceProperties=lambda _: {
                "name": b"none", "l2CacheSize": device.l2_bytes, "multiProcessorCount": MULTIPROCESSORS
            },
            memGetInfo=lambda: (256 << 20, 256 << 20),
            memsetAsync=self.memset,
            memcpyAsync=self.memcpy,
            memcpyDeviceToDevice=3,
            deviceSynchronize=device.synchronize,
            driverGetVersion=lambda: 0,
            runtimeGetVersion=lambda: 0,
        )  # fmt: skip
        here = SimpleNamespace(pci_bus_id="0", id=0, compute_capability="90")
        self.cuda = SimpleNamespace(
            Device=lambda: here,
            Stream=lambda non_blocking: Stream(device),
            Event=lambda: Event(device),
            get_elapsed_time=lambda a, b: 1000 * (b.at_s - a.at_s),
            memory_hook=SimpleNamespace(MemoryHook=MemoryHook),
            runtime=runtime,
            using_allocator=lambda _: nullcontext(),
            MemoryPool=lambda: SimpleNamespace(malloc=None),
            thrust=SimpleNamespace(available=True),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any) -> Memory:
        return np.zeros(shape, dtype).view(Memory)

    def empty(self, shape: Any, dtype: Any) -> Memory:
        if np.dtype(dtype).kind == "V" or np.dtype(dtype).name.startswith(("float8", "bfloat")):
            raise ValueError(f"Unsupported dtype {np.dtype(dtype).name}")  # as CuPy, which only views such memory
        return np.empty(shape, dtype).view(Memory)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None)

    def sort(self, array: Memory) -> Memory:
        self.device.graphs.clear()
        return np.sort(array).view(Memory)

    def memcpy(self, target: int, source: int, size: int, _kind: int, _stream: int) -> None:
        self.device.synchronize()
        ctypes.memmove(target, source, size)

    def memset(self, address: int, value: int, size: int, stream: object) -> None:
        ctypes.memset(address, value, size)

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:
        return SimpleNamespace(get_function=self.function)

    def function(self, name: str) -> Callable[..., None]:
        """One of the harness's own kernels."""

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            seconds, run = 1e-7, lambda: None
            if name == "vector_copy":
                seconds = 2 * arguments[2] / COPY_BYTES_PER_S
            elif name in ("canary_compute", "peak_float64"):
                seconds = grid[0] * block[0] * CHAINS * int(arguments[1]) / MULTIPLY_ADDS_PER_S
            elif name == "stamp":
                run = lambda: self.stamp(arguments[0])  # noqa: E731
            elif name.startswith("fill"):
                run = lambda: self.fill(name, *arguments)  # noqa: E731
            self.device.enqueue(name, (grid, block, *arguments), seconds, run)

        return launch

    def stamp(self, out: Any) -> None:
        nanoseconds = round(1e9 * self.device.device_s)
        out[...] = (nanoseconds * CLOCK_MHZ // 1000, nanoseconds, 0)

    def fill(self, name: str, memory: Any, count: int, seed: int, bits: int = 20) -> None:
        """float32 only; multiples of 2**-bits as the real kernel writes them."""
        assert name in ("fill", "fill_short")
        values = np.random.default_rng(int(seed)).integers(-(1 << bits), 1 << bits, int(count))
        memory.reshape(-1).view(np.float32)[: int(count)] = np.ldexp(values.astype(np.float32), -bits)
