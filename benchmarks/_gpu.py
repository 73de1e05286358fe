"""Time cells on a GPU: CUDA-graph replays over rotating buffers, checked first, clocks and limits noted.

A graph of many launches is replayed back to back with an event before, between and after the replays, all of it
queued while the GPU is still busy with the first replay, so that no gap of the host falls between two events. What
a sample says of one launch is therefore the kernel and the step to the next one (a little under 1 us), nothing else.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._cells import Cell
from benchmarks._nvml import Nvml, limits
from benchmarks._ops import COMPUTES, dtypes
from benchmarks._visit import POISON, Budget, NotHere, WrongOutput, describe_wrong, packages

ROTATION = 4  # cold: the buffers rotated over are so many times the L2 cache
HOT_ROTATION = 0.25  # hot: so much of it, or one set of buffers where that is more
GRAPH_NODES_MAX = 512
SLOW_CLOCK = 0.75  # of the highest SM clock: below it a sample is taken for throttled
RETAKES = 3
RETAKE_PAUSE_S = 0.5
STEADY_CLOCK = 0.99  # of the highest SM clock seen in the process: below it, what ran before still weighs on the sample
STEADY_PAUSE_S = 0.03
CLOCK_NS_LEAST = 1_000_000  # the GPU's nanoseconds come in steps: over less they give no clock to compare with
LOW_CLOCK = "SM clock below its highest"
LEAD_IN_S = 1e-4  # less than the canaries take: a launch enqueued in so long was waiting behind them
WARM_UP_S = 0.15  # an idle GPU needs some 100 ms to raise its clocks
CANARY_BYTES = 64 << 20
CANARY_ROUNDS = 4096
CANARY_NODES = 2
COPY_BYTES = 512 << 20  # of the copy whose rate is the memory's ceiling
SLOW_S = 0.005  # a launch that takes longer is a sample by itself
SLOW_VISIT_S = 0.05  # and gets as many as fit in this, one at least
SAMPLES_LEAST = 2  # where a turn over the buffers takes longer than a sample should
HOST_LOOP = 256  # launches, fewer of a long kernel
HOST_LOOP_S = 0.005
FILLS = {"float64": "fill_float64", "float16": "fill_float16", "bfloat16": "fill_bfloat16"}  # others: "fill"


def throttled(state: dict[str, Any], clock_mhz: float | None, clock_max_mhz: float | None) -> list[str]:
    """Why a sample's clocks were held down, [] where they were not. The clock itself is asked only where the driver
    does not say its reasons: it may have been locked low on purpose."""
    if state["event_reasons"] is None and clock_mhz and clock_max_mhz and clock_mhz < SLOW_CLOCK * clock_max_mhz:
        return [f"SM clock {clock_mhz:.0f} MHz of {clock_max_mhz:.0f} MHz"]
    return limits(state["event_reasons"])


def clock_mhz(stamps: np.ndarray[Any, np.dtype[np.int64]]) -> float | None:
    """SM clock between two stamps (cycles, ns, SM), in MHz; None where they ran on different SMs."""
    (cycles0, ns0, sm0), (cycles1, ns1, sm1) = stamps.tolist()
    return (cycles1 - cycles0) / (ns1 - ns0) * 1000 if sm0 == sm1 and ns1 > ns0 else None


class Direct:
    """A launch in the place of a graph, for a first run, which may load what a capture must not."""

    def __init__(self, launch: Callable[[], object]) -> None:
        self._launch = launch
        self.enqueue_s = 0.0

    def launch(self, _stream: Any) -> None:
        start = time.perf_counter()
        self._launch()
        self.enqueue_s = time.perf_counter() - start


class Gpu:
    """The current CUDA device with the memory, the stream and the canaries that a run of cells shares."""

    best_clock_mhz = 0.0  # the highest SM clock seen in this process

    def __init__(self, cells: list[Cell], budget: Budget, seed: int) -> None:
        import cupy

        self.cupy = cupy
        self.budget = budget
        self.seed = seed
        device = cupy.cuda.Device()
        self.nvml = Nvml(device.pci_bus_id)
        self.others = self.nvml.others()  # while this process does nothing yet
        self.nvml_facts = self.nvml.facts()
        self.properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self.l2_bytes = int(self.properties["l2CacheSize"])
        self.stream = cupy.cuda.Stream(non_blocking=True)
        module = cupy.RawModule(code=Path(__file__).with_name("_stick.cu").read_text(), options=("-std=c++17",))
        fills = [name for fill in ("fill", *FILLS.values()) for name in (fill, f"{fill}_short")]
        names = (*fills, "vector_copy", "canary_compute", "peak_float64", "stamp")
        self.kernels = {name: module.get_function(name) for name in names}
        self.stamps: Any = cupy.zeros((2, 3), cupy.int64)
        self.canary_memory = cupy.zeros(CANARY_BYTES, cupy.uint8)
        # One allocation for all cells: where a buffer lies in memory is the same for every rung and in every process.
        free = int(cupy.cuda.runtime.memGetInfo()[0] * 0.7)
        self.arena = cupy.empty(
            max([n for cell in cells if (n := self._arena_bytes(cell)) <= free], default=0), cupy.uint8
        )
        with self.stream:
            self.canaries = {"memory": self._canary_memory(), "compute": self._canary_compute()}
            until = time.monotonic() + WARM_UP_S
            while time.monotonic() < until:
                for graph in self.canaries.values():
                    graph.launch(self.stream)
                self.stream.synchronize()
            self.ceilings = self._ceilings()

    def facts(self) -> dict[str, Any]:
        """Who measured, with what; the ceilings are this process's."""
        runtime = self.cupy.cuda.runtime
        name = self.properties["name"]
        return {
            "gpu": name.decode() if isinstance(name, bytes) else str(name),
            "compute_capability": self.cupy.cuda.Device().compute_capability,
            "multiprocessors": int(self.properties["multiProcessorCount"]),
            "l2_bytes": self.l2_bytes,
            "cuda_driver": runtime.driverGetVersion(),
            "cuda_runtime": runtime.runtimeGetVersion(),
            "packages": packages(),
            "nvml": self.nvml.why_not or "ok",
            "others": self.others,
            "ceilings": self.ceilings,
            **{f"nvml_{key}": value for key, value in self.nvml_facts.items()},
        }

    # --- canaries ----------------------------------------------------------------------------------------------

    def _graph(self, launches: list[Callable[[], object]], nodes: int) -> Any:
        """`nodes` launches as one graph, taking turns; everything must have been compiled before."""
        self.stream.begin_capture()
        for node in range(nodes):
            launches[node % len(launches)]()
        graph = self.stream.end_capture()
        graph.upload(self.stream)
        return graph

    def _canary_memory(self) -> Any:
        half = CANARY_BYTES // 2
        launch = self._vector_copy(self.canary_memory[:half], self.canary_memory[half:])
        launch()
        return self._graph([launch], 16)

    def _arithmetic(self, kernel: str) -> Any:
        """A graph of a kernel of dependent multiply-adds that fills the GPU."""
        blocks = int(self.properties["multiProcessorCount"]) * 8

        def launch() -> None:
            self.kernels[kernel]((blocks,), (256,), (self.stamps, np.int32(CANARY_ROUNDS)))

        launch()
        return self._graph([launch], CANARY_NODES)

    def _canary_compute(self) -> Any:
        return self._arithmetic("canary_compute")

    def _ceilings(self) -> dict[str, float]:
        """The rate of a large copy by the stick's kernel in bytes/s, and by type that of
        multiply-adds in registers in FLOP/s. The memory is handed back."""
        size = min(COPY_BYTES, int(self.cupy.cuda.runtime.memGetInfo()[0]) // 8)
        memory = self.cupy.empty(2 * size, self.cupy.uint8)
        copy = self._vector_copy(memory[:size], memory[size:])
        copy()
        graphs = {
            "copy_bytes_per_s": (self._graph([copy], CANARY_NODES), 2 * size),
            "float32_flops_per_s": (self.canaries["compute"], 0),
            "float64_flops_per_s": (self._arithmetic("peak_float64"), 0),
        }
        # 8 blocks of 256 threads a multiprocessor, each with four chains; a multiply-add is two operations
        operations = int(self.properties["multiProcessorCount"]) * 8 * 256 * 4 * 2 * CANARY_ROUNDS
        found = {
            name: CANARY_NODES * (amount or operations) / statistics.median(self._replay(graph, 1, 3)[0])
            for name, (graph, amount) in graphs.items()
        }
        del memory, copy, graphs
        self.cupy.get_default_memory_pool().free_all_blocks()
        return found

    def canary_seconds(self) -> dict[str, float]:
        """Seconds of each canary's graph, now."""
        with self.stream:
            return {name: statistics.median(self._replay(graph, 1, 3)[0]) for name, graph in self.canaries.items()}

    # --- cells -------------------------------------------------------------------------------------------------

    def _slot_bytes(self, cell: Cell) -> tuple[list[int], int]:
        """Where each operand of one set of buffers begins, and how many bytes the set takes."""
        starts, at = [], 0
        for shape, dtype in COMPUTES[cell.computes].operands(cell.shape, cell.type):
            starts.append(at)
            at += -(-math.prod(shape) * dtype.itemsize // 256) * 256
        return starts, at

    def _slots(self, cell: Cell) -> int:
        """How many sets of buffers the launches take turns over. Hot takes several as well where they fit in the cache
        together, so that the figure does not speak for the few pages of one set alone."""
        size = self._slot_bytes(cell)[1]
        if cell.cache == "hot":
            return max(1, int(HOT_ROTATION * self.l2_bytes) // size)
        return max(1, -(-ROTATION * self.l2_bytes // size))

    def _arena_bytes(self, cell: Cell) -> int:
        return self._slots(cell) * self._slot_bytes(cell)[1]

    def _operands(self, cell: Cell, slot: int) -> tuple[list[Any], Any]:
        starts, size = self._slot_bytes(cell)
        *inputs, out = (
            self.arena[slot * size + start :][: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for start, (shape, dtype) in zip(
                starts, COMPUTES[cell.computes].operands(cell.shape, cell.type), strict=True
            )
        )
        return inputs, out

    def _vector_copy(self, source: Any, target: Any) -> Callable[[], object]:
        blocks = -(-(source.nbytes // 16) // 1024) or 1
        kernel = self.kernels["vector_copy"]
        return lambda: kernel((blocks,), (256,), (source, target, np.int64(source.nbytes)))

    def _reference(self, name: str, inputs: list[Any], out: Any) -> Callable[[], object]:
        cupy, source = self.cupy, inputs[0]
        lines: dict[str, Callable[[], Callable[[], object]]] = {
            "memcpy": lambda: (
                lambda: cupy.cuda.runtime.memcpyAsync(
                    out.data.ptr,
                    source.data.ptr,
                    source.nbytes,
                    cupy.cuda.runtime.memcpyDeviceToDevice,
                    self.stream.ptr,
                )
            ),
            "vector_copy": lambda: self._vector_copy(source, out),
            "cupy_copy": lambda: lambda: cupy.copyto(out, source),
            "cupy_transpose": lambda: lambda: cupy.copyto(out, source.T),
            "cupy_add": lambda: lambda: cupy.add(*inputs, out=out),
        }
        return lines[name]()

    def _bind(self, cell: Cell, kernel: Any, slot: int) -> tuple[Callable[[], object], str]:
        inputs, out = self._operands(cell, slot)
        if cell.reference:
            return self._reference(cell.rung, inputs, out), f"{cell.rung} CuPy {self.cupy.__version__}"
        launch = kernel.bind(*inputs, out=out)
        return launch, launch.identity

    def _fill(self, cell: Cell) -> None:
        """Random values in [-1, 1) over all the cell's buffers, whatever type they are read as."""
        into = dtypes(cell.type)[0].name
        count = self._arena_bytes(cell) // (np.dtype(into).itemsize if into in FILLS else 4)
        self.kernels[FILLS.get(into, "fill")]((4096,), (256,), (self.arena, np.int64(count), np.uint64(self.seed)))

    def _check(self, cell: Cell, launch: Callable[[], object]) -> dict[str, Any]:
        """Run a cell once on poisoned output; that run as a sample, right unless the host had to load something first
        ("enqueue_s"). Raises: WrongOutput."""
        inputs, out = self._operands(cell, 0)
        computes = COMPUTES[cell.computes]
        for at, bits in enumerate(computes.exact_bits(cell.type) if computes.exact_bits else ()):
            kernel = self.kernels[f"{FILLS.get(inputs[at].dtype.name, 'fill')}_short"]
            count, seed = np.int64(inputs[at].size), np.uint64(self.seed + at)
            kernel((4096,), (256,), (inputs[at], count, seed, np.int32(bits)))
        self.cupy.cuda.runtime.memsetAsync(out.data.ptr, POISON, out.nbytes, self.stream.ptr)
        direct = Direct(launch)
        first = self._take(direct, 1, 1, 1, tuple(self.canaries.values()))
        why = describe_wrong(cell, out, computes.reference(*inputs), self.cupy)
        if why:
            raise WrongOutput(why)
        return first | {"enqueue_s": direct.enqueue_s}

    def _replay(
        self,
        graph: Any,
        replays: int,
        samples: int,
        during: Callable[[], Any] = lambda: None,
        lead_in: tuple[Any, ...] = (),
    ) -> tuple[list[float], float | None, Any]:
        """Seconds of each of `samples` runs of `replays` replays, back to back; the SM clock over them in MHz; and what
        `during` said while they ran. `lead_in`: the graphs that run before them, itself where none is given."""
        stamp, elapsed = self.kernels["stamp"], self.cupy.cuda.get_elapsed_time
        events = [self.cupy.cuda.Event() for _ in range(samples + 1)]
        for first in lead_in or (graph,):  # keeps the GPU busy while the host queues the rest
            first.launch(self.stream)
        stamp((1,), (1,), (self.stamps[0],))
        events[0].record(self.stream)
        for event in events[1:]:
            for _ in range(replays):
                graph.launch(self.stream)
            event.record(self.stream)
        stamp((1,), (1,), (self.stamps[1],))
        said = during()
        self.stream.synchronize()
        # CUDA gives float32 milliseconds, good for 1e-7 of a sample; from here on it is float64 seconds.
        seconds = [float(elapsed(a, b)) / 1000 for a, b in itertools.pairwise(events)]
        stamps = self.stamps.get(stream=self.stream)
        clock = clock_mhz(stamps)
        if clock and stamps[1][1] - stamps[0][1] >= CLOCK_NS_LEAST:
            self.best_clock_mhz = max(self.best_clock_mhz, min(clock, self.nvml_facts.get("sm_clock_max_mhz") or clock))
        return seconds, clock, said

    def _take(
        self, graph: Any, replays: int, nodes: int, samples: int, lead_in: tuple[Any, ...] = ()
    ) -> dict[str, Any]:
        """Samples of the seconds of a launch, with the clocks during them."""
        seconds, clock, state = self._replay(graph, replays, samples, self.nvml.state, lead_in)
        return {
            "seconds": [value / (replays * nodes) for value in seconds],
            "launches": replays * nodes * samples,
            "clock64_mhz": clock,
            "state": state,
            "throttled": throttled(state, clock, self.nvml_facts["sm_clock_max_mhz"]),
        }

    def _low(self, taken: dict[str, Any]) -> bool:
        """Whether the SM clock of a take was below what this GPU has shown in this process."""
        return bool(taken["clock64_mhz"]) and taken["clock64_mhz"] < STEADY_CLOCK * self.best_clock_mhz

    def _take_quietly(self, *what: Any) -> dict[str, Any]:
        """The same; taken again after a pause while the clocks are held down, and marked if they stay so.

        Some kernels, those on tensor cores above all, leave the clock low for a while, and the one after them would
        pay: then again after a short pause, as long as that helps. What is low by its own work stays so, and is marked.
        """
        taken, retakes = self._take(*what), 0
        while retakes < RETAKES and (taken["throttled"] or self._low(taken)):
            time.sleep(RETAKE_PAUSE_S if taken["throttled"] else STEADY_PAUSE_S)
            before, taken, retakes = taken, self._take(*what), retakes + 1
            if not before["throttled"]:
                rise = (taken["clock64_mhz"] or 0.0) - before["clock64_mhz"]
                if taken["throttled"] or rise <= 0:
                    taken = before
                if rise < (1 - STEADY_CLOCK) / 4 * self.best_clock_mhz:
                    break
        limits_met = [*taken["throttled"], *([LOW_CLOCK] if self._low(taken) else [])]
        return taken | {"retakes": retakes, "throttled": limits_met}

    def _take_slow(self, cell: Cell, launch: Callable[[], object], first: dict[str, Any]) -> dict[str, Any]:
        """A sample a launch, over one set of buffers, of one whose first run was `first`.

        It may turn out not to be slow: a first run may also have waited for a library to be loaded.
        """
        once = first["seconds"][0]
        samples = max(1, min(self.budget.samples, round(SLOW_VISIT_S / once)))
        if samples == 1 and first["enqueue_s"] < LEAD_IN_S and not (first["throttled"] or self._low(first)):
            return first | {"retakes": 0}
        self._fill(cell)
        lead_in = tuple(self.canaries.values())  # itself would cost as much as a sample
        return self._take_quietly(self._graph([launch], 1), 1, 1, samples, lead_in)

    def _take_quick(self, cell: Cell, launches: list[Callable[[], object]], once: float) -> list[dict[str, Any]]:
        """The samples of a cell over its rotating buffers, in one or several settlings."""
        nodes, replays, samples = self._enough(launches, once)
        # What is hot settles in the L2 in one of several ways, some per cent apart, each time its buffers are
        # brought in: every sample gets a settling of its own, and their mean counts.
        rounds = samples if cell.cache == "hot" else 1
        taken = []
        for _ in range(rounds):
            self._fill(cell)
            graph = self._graph(launches, nodes)
            taken.append(self._take_quietly(graph, replays, nodes, samples // rounds))
        return taken

    def _enough(self, launches: list[Callable[[], object]], once: float) -> tuple[int, int, int]:
        """Launches in a graph, in whole turns over the buffers; replays in a sample; samples.

        `once`: about the seconds of a launch, more where something had to be loaded."""
        few = launches[: max(1, math.ceil(self.budget.sample_s / once))]
        lead_in = tuple(self.canaries.values())
        first = min(self._replay(self._graph(few, len(few)), 1, 2, lead_in=lead_in)[0]) / len(few)
        nodes = min(GRAPH_NODES_MAX, max(1, round(self.budget.sample_s / first)))
        nodes = max(1, round(nodes / len(launches))) * len(launches)
        replays = max(1, round(self.budget.sample_s / (first * nodes)))
        fitting = round(self.budget.samples * self.budget.sample_s / (first * nodes * replays))
        return nodes, replays, min(self.budget.samples, max(SAMPLES_LEAST, fitting))

    def _host_loop_seconds(self, launch: Callable[[], object], replayed: float) -> float:
        """Seconds a launch takes in a loop of the host over one set of buffers, the last one waited for.

        `replayed`: those that it takes in a graph.
        """
        count, found = max(HOST_LOOP // 8, min(HOST_LOOP, round(HOST_LOOP_S / replayed))), []
        for _ in range(7):
            self.stream.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                launch()
            self.stream.synchronize()
            found.append((time.perf_counter() - start) / count)
        return statistics.median(found)

    def measure(self, cell: Cell, kernel: Any) -> dict[str, Any]:
        """One visit to a cell: check it, time it, say under which conditions.

        `kernel`: what `gpukernels.load` gave; None for a reference line. Returns JSON values; "seconds" is the time
        of one pass (a launch, or its share where it repeats the work), over the samples the median, hot the mean.
        Raises: WrongOutput, NotHere.
        """
        if cell.cache == "hot" and self._slot_bytes(cell)[1] > self.l2_bytes / 2:
            raise NotHere(
                f"its buffers ({self._slot_bytes(cell)[1] >> 20} MiB) do not fit in half of the L2 cache "
                f"({self.l2_bytes >> 20} MiB): never hot"
            )
        if self._arena_bytes(cell) > self.arena.nbytes:
            raise NotHere(
                f"it needs {self._arena_bytes(cell) >> 20} MiB of GPU memory, "
                f"{self.cupy.cuda.runtime.memGetInfo()[0] >> 20} MiB are free"
            )
        with self.stream:
            self._fill(cell)
            bound = [self._bind(cell, kernel, slot) for slot in range(self._slots(cell))]
            launches = [launch for launch, _ in bound]
            first = self._check(cell, launches[0])
            once, slots = first["seconds"][0], len(launches)
            taken = []
            if once >= SLOW_S:
                taken, slots = [self._take_slow(cell, launches[0], first)], 1
                once = statistics.median(taken[0]["seconds"])
            if once < SLOW_S:
                taken, slots = self._take_quick(cell, launches, once), len(launches)
            seconds = [value / cell.repeats for part in taken for value in part["seconds"]]
            level = statistics.mean if cell.cache == "hot" else statistics.median
            quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
            visit = taken[-1] | {
                "seconds": level(seconds),
                "quartiles_s": [quartiles[0], quartiles[2]],
                "launches": sum(part["launches"] for part in taken),
                "throttled": sorted({limit for part in taken for limit in part["throttled"]}),
                "retakes": sum(part["retakes"] for part in taken),
                "slots": slots,
                "identity": bound[0][1],
            }
            if cell.launch_cost:
                visit["host_loop_seconds"] = self._host_loop_seconds(launches[0], visit["seconds"])
                visit["launch_seconds"] = visit["host_loop_seconds"] - visit["seconds"]
        return visit | {"canary_s": self.canary_seconds()}
