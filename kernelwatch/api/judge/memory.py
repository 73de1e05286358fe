"""The arena that the judge and a candidate share, in host memory or on a GPU, and what the judge does with memory."""

import fcntl
import mmap
import os
import resource
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernelwatch.api.arguments import FREE_SHARE, Memory
from kernelwatch.api.capture import Captured, FunctionCalls
from kernelwatch.api.gpu import PAGE, Gpu
from kernelwatch.api.rounds import Timer
from kernelwatch.system import cache
from kernelwatch.system.machine import free_bytes
from kernelwatch.timing import l2
from kernelwatch.timing.cpu import cache_bytes
from kernelwatch.timing.nvml import limits

HOST_ARENA_BYTES = 64 << 20  # at most: filling it takes longer than a round
GPU_ARENA_BYTES = 16 << 30
SETTINGS = ("sm_clock_max_mhz", "memory_clock_max_mhz", "power_limit_w", "ecc", "mig", "persistence", "compute_mode")
ARENA_STEP = 2 << 20  # the driver hands out such pieces, each of which has a handle of its own
WORD = np.dtype(np.uint64)
CALLS = 16  # in a graph, to see how long one takes

Handle = dict[str, Any]  # how another process maps an arena: a descriptor that it inherits, or a handle of the driver


class Arena(Protocol):
    """Memory that two processes see. `memory`: an array of bytes; `descriptors`: which the other process inherits."""

    memory: Memory
    handle: Handle
    descriptors: tuple[int, ...]

    def close(self) -> None: ...


class Judging(ABC):
    """What the judge needs of a device.

    `room`: the most bytes of an arena; `checked_bytes`: of the sets that are compared in a round; `looks`: places in
    the outputs of these sets that are read before the clock stops.
    `spins`: whether the judge spins while it waits, which takes a core that a function on the CPU may use.
    """

    timer: Timer
    xp: Any
    page: int
    room: int
    checked_bytes: int
    looks: int
    spins: bool
    unreset = ""  # why lines may persist in the L2 cache after a flush

    @abstractmethod
    def arena(self, size: int) -> Arena: ...

    @abstractmethod
    def empty(self, size: int) -> Memory: ...

    @abstractmethod
    def words(self, stream: int, first: int, count: int) -> Any:
        """`count` random words of 64 bits of a stream, from word `first` on; both are even."""

    def seconds(self, call: Callable[[], object]) -> float:
        """About how long a call takes."""
        return statistics.median(self._host_seconds(call) for _ in range(3))

    def _host_seconds(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - start

    @abstractmethod
    def flush(self) -> None:
        """Leave the caches full of other data, and their state as usual."""

    @abstractmethod
    def wait(self) -> None: ...

    def limits(self) -> tuple[str, ...]:
        """Why the clocks are lowered now."""
        return ()

    def settings(self) -> dict[str, Any]:
        """What a candidate can change so that others are slower: cores, priorities and limits of this process and of
        its parent, which those that they start take over; on a GPU also the clocks, if it may."""
        parent = os.getppid()
        own = {"": os.getpid(), f" of its parent, process {parent}": parent}
        return {f"{what}{of}": value for of, process in own.items() for what, value in _inherited(process).items()}

    def users(self) -> set[int]:
        """The processes on the device, as far as they are known."""
        return set()


def _inherited(process: int) -> dict[str, Any]:
    """What a process hands on to those that it starts."""
    found: dict[str, Any] = {}
    with suppress(OSError):
        found["cores"] = sorted(os.sched_getaffinity(process))
        found["priority"] = os.getpriority(os.PRIO_PROCESS, process)
        found["scheduler"] = os.sched_getscheduler(process)
        for name in dir(resource):
            if name.startswith("RLIMIT_"):
                found[name] = resource.prlimit(process, getattr(resource, name))
    return found


# --- host memory ---------------------------------------------------------------------------------------------------


class HostArena:
    """Memory without a name, of a size that is sealed: nobody else can open it, and it ends with its processes."""

    def __init__(self, size: int) -> None:
        self.file = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, size)
        # A candidate that made it smaller would end the judge by a signal.
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.memory = _mapped(self.file, size)
        self.handle: Handle = {"file": self.file, "size": size}
        self.descriptors: tuple[int, ...] = (self.file,)

    def close(self) -> None:
        os.close(self.file)


def _mapped(file: int, size: int) -> Memory:
    pages = mmap.mmap(file, size)
    with suppress(OSError, AttributeError):  # as for NumPy's own large arrays; the system may not do it for shared ones
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


class Host(Judging):
    """This machine's CPU."""

    xp, page, checked_bytes, looks, spins = np, 512, 16 << 20, 128, False

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.key = int.from_bytes(os.urandom(16), "little")
        self.scratch = np.zeros(cache_bytes() // 8, np.int64)
        self.room = min(HOST_ARENA_BYTES, int(FREE_SHARE * free_bytes()))

    def arena(self, size: int) -> HostArena:
        return HostArena(size)

    def empty(self, size: int) -> Memory:
        return np.empty(size, np.uint8)

    def words(self, stream: int, first: int, count: int) -> Any:
        generator = np.random.Philox(key=self.key, counter=first // 4 + (stream << 128))  # four words a count
        ahead = first % 4
        return generator.random_raw(ahead + count)[ahead:]

    def flush(self) -> None:
        self.scratch += 1

    def wait(self) -> None: ...


# --- a GPU's memory ------------------------------------------------------------------------------------------------


class GpuArena:
    """Memory straight from the driver, with a handle by which another process maps it."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        size = -(-size // ARENA_STEP) * ARENA_STEP
        self.memory = gpu.allocate(size)
        handle: bytes = gpu.cupy.cuda.runtime.ipcGetMemHandle(self.memory.data.ptr)
        self.handle: Handle = {"ipc": handle, "size": size, "device": int(gpu.cupy.cuda.Device().id)}
        self.descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        self.memory = None


class OnDevice(Judging):
    """The current CUDA device."""

    page, checked_bytes, looks, spins = PAGE, 1 << 30, 4096, True

    def __init__(self, timer: Gpu) -> None:
        self.timer = timer
        self.gpu, self.xp = timer, timer.cupy
        self.key = np.uint64(int.from_bytes(os.urandom(8), "little"))
        with cache.of_harness():
            code = Path(__file__).with_name("random.cu").read_text(encoding="utf-8")
            self.kernel = self.xp.RawModule(code=code, options=("-std=c++17",)).get_function("words")
        self.scratch = self.xp.zeros(2 * timer.replayer.l2_bytes // 8, np.int64)
        free = int(self.xp.cuda.runtime.memGetInfo()[0])
        self.room = min(GPU_ARENA_BYTES, int(FREE_SHARE * free) // 2)

    def arena(self, size: int) -> GpuArena:
        return GpuArena(self.gpu, size)

    def empty(self, size: int) -> Memory:
        return self.gpu.allocate(size)

    def words(self, stream: int, first: int, count: int) -> Any:
        out = self.xp.empty(count, WORD)
        pairs, first = np.int64(count // 2), first // 2
        self.kernel((4096,), (256,), (out, pairs, self.key, np.uint64(stream), np.uint64(first)))
        return out

    def seconds(self, call: Callable[[], object]) -> float:
        """Of calls in a graph: the host takes longer to launch a short one than the GPU to run it."""
        try:
            calls = Captured(self.xp, FunctionCalls(call, [()], CALLS), self.gpu.replayer.stream)
            return min(self.gpu.replayer.replay(calls, 1, 2)[0]) / CALLS
        except Exception:  # it cannot be captured: the host launches it in each round as well
            self.xp.cuda.runtime.deviceSynchronize()
            return super().seconds(call)

    def flush(self) -> None:
        self.unreset = l2.reset_persisting()
        self.scratch += 1
        self.wait()

    def wait(self) -> None:
        self.gpu.replayer.stream.synchronize()

    def limits(self) -> tuple[str, ...]:
        return tuple(limits(self.gpu.replayer.nvml.state()["event_reasons"]))

    def settings(self) -> dict[str, Any]:
        facts = self.gpu.replayer.nvml.facts()
        return super().settings() | {name: facts[name] for name in SETTINGS}

    def users(self) -> set[int]:
        return {one["pid"] for one in self.gpu.replayer.nvml.processes() or []}


def judging(timer: Timer) -> Judging:
    """The device of a timer, for the judge."""
    return OnDevice(timer) if isinstance(timer, Gpu) else Host(timer)


# --- the other process ---------------------------------------------------------------------------------------------


def mapped(handle: Handle) -> Memory:
    """An arena in the candidate's process."""
    if "file" in handle:
        return _mapped(handle["file"], handle["size"])
    import cupy

    cupy.cuda.Device(handle["device"]).use()
    place = cupy.cuda.runtime.ipcOpenMemHandle(handle["ipc"])
    memory = cupy.cuda.UnownedMemory(place, handle["size"], None, handle["device"])
    return cupy.ndarray((handle["size"],), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
