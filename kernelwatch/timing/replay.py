"""Times launches on a GPU: replays CUDA graphs between events, and reads the clocks and limits during them.

A graph of many launches is replayed back to back, with an event before, between and after the replays. The host queues
all of this while the GPU is still busy with the first replay, so no gap of the host falls between two events. The time
of one launch in a sample is therefore the kernel and the step to the next one (a little under 1 us), nothing else.
"""

import functools
import itertools
import math
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from kernelwatch.plan.problem import Array
from kernelwatch.system import cache
from kernelwatch.system.garbage import uncollected
from kernelwatch.timing import l2
from kernelwatch.timing.launch import Calls
from kernelwatch.timing.nvml import POWER_CAP, Nvml, State, limits
from kernelwatch.timing.spent import Spent, spends

SLOW_CLOCK = 0.75  # of the highest SM clock: a sample below it counts as throttled
RETAKES = 3
# Of the highest SM clock seen in the process: below it, a rest may help. One step of the clock is 15 MHz, 0.8 % of it,
# and a take may have run at the lower one for half of its time.
STEADY_CLOCK = 0.996
LOWERED_CLOCK = 0.99  # of the highest SM clock seen in the process: what stays below it is told as lowered
RISES = 0.0025  # of the highest SM clock: from one take to the next, so much is no noise of power control
SHORT_REST_S = 0.03  # lets go the step that work on tensor cores takes the clock down at once
# Of the highest SM clock seen in the process: below it, the power limit holds the clock down. From here to 0.93 the
# limit was met as seldom as at the highest clock: there it is tensor cores alone (docs/research/measuring.md).
POWER_CLOCK = 0.90
REST_S = 0.1  # lets power control settle, which hunts around its limit after work that reached it
SLICED_LEAST = 5  # samples: the first one or two after a rest may show what ran before, and the median leaves them out
CLOCK_NS_LEAST = 1_000_000  # the GPU's nanosecond counter moves in steps: over a shorter time the clock is too coarse
LOW_CLOCK = "SM clock below its highest"
WARM_UP_S = 0.15  # an idle GPU needs some 100 ms to raise its clocks
CANARY_BYTES = 64 << 20
CANARY_ROUNDS = 4096
CANARY_COPIES, CANARY_NODES = 16, 2
BEYOND_BYTES = 4 << 20  # what displaces the lines of an L2 cache touches so much more than all of it
UNSORTED = 64  # rows and columns of what is sorted before a graph is timed
FILLS = {  # others: "fill"
    "float64": "fill_float64",
    "float16": "fill_float16",
    "bfloat16": "fill_bfloat16",
    "float8_e4m3fn": "fill_float8",
}


class Graph(Protocol):
    """A CUDA graph, or an object that is launched like one."""

    def launch(self, stream: Any, /) -> None:
        """Enqueue it on a CuPy stream."""
        ...


class Take(TypedDict):
    """One or several samples: the seconds of a launch in each, the number of launches in all, and the conditions."""

    seconds: list[float]
    launches: int
    clock64_mhz: float | None
    state: State
    throttled: list[str]
    retakes: int


def throttled(state: State, clock_mhz: float | None, clock_max_mhz: float | None) -> list[str]:
    """Why the clocks were lowered during a sample, [] if they were not. The clock itself counts only if the driver does
    not report event reasons: a user may have locked it low on purpose."""
    if state["event_reasons"] is None and clock_mhz and clock_max_mhz and clock_mhz < SLOW_CLOCK * clock_max_mhz:
        return [f"SM clock {clock_mhz:.0f} MHz of {clock_max_mhz:.0f} MHz"]
    return limits(state["event_reasons"])


def clock_mhz(stamps: NDArray[np.int64]) -> float | None:
    """The SM clock in MHz between two stamps (rows of cycles, ns, SM); None if they ran on different SMs."""
    (cycles0, ns0, sm0), (cycles1, ns1, sm1) = stamps.tolist()
    return (cycles1 - cycles0) / (ns1 - ns0) * 1000 if sm0 == sm1 and ns1 > ns0 else None


class Replayer:
    """The current CUDA device: its stream, the harness's own kernels, and the canaries. It times launches, whatever
    they launch."""

    best_clock_mhz = 0.0  # the highest SM clock seen in this process
    unsorted: Any = None  # rows that `refresh` sorts; None if this CuPy was built without Thrust

    def __init__(self, nvml: Nvml) -> None:
        import cupy

        self.cupy = cupy
        self.nvml = nvml
        self.spent = Spent()
        self.worked()
        device = cupy.cuda.Device()
        self.nvml_facts = self.nvml.facts()
        self.properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        name = self.properties["name"]
        self.gpu = name.decode() if isinstance(name, bytes) else str(name)
        self.l2_bytes = int(self.properties["l2CacheSize"])
        self.stream = cupy.cuda.Stream(non_blocking=True)
        fills = [name for fill in ("fill", *FILLS.values()) for name in (fill, f"{fill}_short")]
        names = (*fills, "vector_copy", "canary_compute", "peak_float64", "stamp")
        with cache.of_harness():
            module = cupy.RawModule(code=Path(__file__).with_name("kernels.cu").read_text(), options=("-std=c++17",))
            self.kernels = {name: module.get_function(name) for name in names}
        self.stamps: Any = cupy.zeros((2, 3), cupy.int64)
        self.canary_memory = cupy.zeros(CANARY_BYTES, cupy.uint8)
        self.pool = cupy.cuda.MemoryPool()  # of `refresh` alone: the current allocator may be the user's
        if cupy.cuda.thrust.available:
            self.unsorted = cupy.zeros((UNSORTED, UNSORTED), cupy.float64)

    def warm_up(self) -> None:
        """Make the canaries, and run them until the clocks are up."""
        copy, compute = self._copy_within(self.canary_memory), self._arithmetic("canary_compute")
        work = {"memory": (copy, CANARY_COPIES), "compute": (compute, CANARY_NODES)}
        # The canaries are the same on all GPUs. What leads in displaces the whole of a larger L2 cache, too.
        if (displacing := self.l2_bytes + BEYOND_BYTES) > CANARY_BYTES:
            copy = self._copy_within(self.cupy.zeros(displacing, self.cupy.uint8))
        with self.stream:
            for launch, _ in work.values():
                launch()
            self.canaries = {name: self.graph([launch], nodes) for name, (launch, nodes) in work.items()}
            copy()
            # Such work without graphs: the graph that is timed behind it has to be the first one.
            self.lead_in: tuple[Graph, ...] = (Calls([copy], CANARY_COPIES), Calls([compute], CANARY_NODES))
            until = time.monotonic() + WARM_UP_S
            while time.monotonic() < until:
                for graph in self.canaries.values():
                    graph.launch(self.stream)
                self.stream.synchronize()
        self.worked()

    # --- graphs and canaries -----------------------------------------------------------------------------------

    @spends("capture")
    def graph(self, launches: list[Callable[[], object]], nodes: int) -> Graph:
        """A graph of `nodes` launches, in turn from `launches`; all of them must have been compiled before.

        It is not uploaded to the GPU, which its first launch does: a graph that is uploaded and not launched makes each
        kernel of other graphs take longer (docs/research/measuring.md).

        Raises: what a launch raises that cannot be captured; CuPy's errors.
        """
        self.stream.begin_capture()
        try:
            for node in range(nodes):
                launches[node % len(launches)]()
        except Exception:
            with suppress(Exception):  # it says that the capture failed
                self.stream.end_capture()
            raise
        return self.stream.end_capture()  # type: ignore[no-any-return]

    def vector_copy(self, source: Array, target: Array) -> Callable[[], object]:
        """A launch of the harness's own copy. `target`, as large as `source` in bytes, is overwritten."""
        blocks = -(-(source.nbytes // 16) // 1024) or 1
        kernel = self.kernels["vector_copy"]
        return lambda: kernel((blocks,), (256,), (source, target, np.int64(source.nbytes)))

    def _copy_within(self, memory: Array) -> Callable[[], object]:
        """A launch that copies one half of an array of bytes to the other."""
        half = memory.nbytes // 2
        return self.vector_copy(memory[:half], memory[half:])

    def _arithmetic(self, kernel: str) -> Callable[[], object]:
        """A launch of one of the kernels of dependent multiply-adds, with enough blocks to fill the GPU."""
        blocks = int(self.properties["multiProcessorCount"]) * 8
        return lambda: self.kernels[kernel]((blocks,), (256,), (self.stamps, np.int32(CANARY_ROUNDS)))

    def arithmetic(self, kernel: str) -> Graph:
        """A graph of one of the kernels of dependent multiply-adds."""
        launch = self._arithmetic(kernel)
        launch()
        return self.graph([launch], CANARY_NODES)

    @spends("canary")
    def canary_seconds(self) -> dict[str, float]:
        """Canary -> the seconds that its graph takes now."""
        with self.stream:
            return {name: statistics.median(self.replay(graph, 1, 3)[0]) for name, graph in self.canaries.items()}

    # --- samples -----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Let what is launched next find the GPU as if nothing had run before.

        Lines of the L2 cache that an earlier kernel wanted to keep are usual ones again (timing/l2.py). And the next
        graph is the first one of the process, as far as the driver is concerned.

        On an H200 the first few graphs of a process are fast. Once more were launched, each kernel of every graph takes
        0.2 us longer, 0.35 us if its data are cold. CuPy's sort of rows, which CUDA's Thrust does, ends that;
        docs/research/measuring.md has what else was tried. Without Thrust, that state stays.
        """
        l2.reset_persisting()
        if self.unsorted is not None:
            with self.stream, self.cupy.cuda.using_allocator(self.pool.malloc):
                self.cupy.sort(self.unsorted)

    @spends("replay")
    def replay(
        self,
        graph: Graph,
        replays: int,
        samples: int,
        during: Callable[[], Any] = lambda: None,
        lead_in: tuple[Graph, ...] = (),
    ) -> tuple[list[float], float | None, Any]:
        """Time `samples` samples of `replays` replays each, all back to back.

        `during`: called while the GPU works. `lead_in`: what runs before the samples, no CUDA graphs; by default
        `graph` itself. So no other graph was launched since the last `refresh`.
        Returns the seconds of each sample, the SM clock over all of them in MHz (None if unknown), and the result of
        `during`.
        """
        stamp, elapsed = self.kernels["stamp"], self.cupy.cuda.get_elapsed_time
        events = [self.cupy.cuda.Event() for _ in range(samples + 1)]
        self.refresh()
        # A pause of the host would be one of the GPU, once that has done what leads in. Calls by the host run as in a
        # program, and may leave memory of the GPU in cycles.
        with nullcontext() if isinstance(graph, Calls) else uncollected():
            for first in lead_in or (graph,):  # keeps the GPU busy while the host queues the rest
                first.launch(self.stream)
            stamp((1,), (1,), (self.stamps[0],))
            events[0].record(self.stream)
            for event in events[1:]:
                for _ in range(replays):
                    graph.launch(self.stream)
                event.record(self.stream)
            stamp((1,), (1,), (self.stamps[1],))
        result = during()
        self.stream.synchronize()
        self.worked()
        # CUDA gives float32 milliseconds, with a relative error of 1e-7; from here on these are float64 seconds.
        seconds = [float(elapsed(a, b)) / 1000 for a, b in itertools.pairwise(events)]
        stamps = self.stamps.get(stream=self.stream)
        clock = clock_mhz(stamps)
        if clock and stamps[1][1] - stamps[0][1] >= CLOCK_NS_LEAST:
            self.best_clock_mhz = max(self.best_clock_mhz, min(clock, self.nvml_facts.get("sm_clock_max_mhz") or clock))
        return seconds, clock, result

    def take(self, graph: Graph, replays: int, nodes: int, samples: int, lead_in: tuple[Graph, ...] = ()) -> Take:
        """Samples of the seconds of a launch, with the clocks during them. `nodes`: launches in the graph; the other
        parameters are those of `replay`."""
        seconds, clock, state = self.replay(graph, replays, samples, self.nvml.state, lead_in)
        return {
            "seconds": [value / (replays * nodes) for value in seconds],
            "launches": replays * nodes * samples,
            "clock64_mhz": clock,
            "state": state,
            "throttled": throttled(state, clock, self.nvml_facts["sm_clock_max_mhz"]),
            "retakes": 0,
        }

    def take_sliced(
        self,
        rest_s: float,
        graph: Graph,
        replays: int,
        nodes: int,
        samples: int,
        lead_in: tuple[Graph, ...] = (),
        anew: Callable[[], object] | None = None,
    ) -> Take:
        """As `take`, but each sample after a lead-in of its own, and after its share of a rest if `rest_s`, the seconds
        of all rests together, is not 0. `anew`: called before each sample, after its rest.

        The clock is the median over the samples; a limit that one of them met counts for all.
        """
        slices: list[Take] = []
        for _ in range(samples):
            if rest_s:
                self.rest(rest_s / samples)
            if anew:
                anew()
            slices.append(self.take(graph, replays, nodes, 1, lead_in))
        clocks = [one["clock64_mhz"] for one in slices if one["clock64_mhz"]]
        clock = statistics.median(clocks) if clocks else None
        known = [mask for one in slices if (mask := one["state"]["event_reasons"]) is not None]
        state: State = {
            **slices[-1]["state"],
            "event_reasons": functools.reduce(operator.or_, known) if known else None,
        }
        return {
            "seconds": [value for one in slices for value in one["seconds"]],
            "launches": sum(one["launches"] for one in slices),
            "clock64_mhz": clock,
            "state": state,
            "throttled": throttled(state, clock, self.nvml_facts["sm_clock_max_mhz"]),
            "retakes": 0,
        }

    def low(self, taken: Take, own_mhz: float = math.inf, share: float = STEADY_CLOCK) -> bool:
        """Whether the SM clock during a take was below this share of the highest that this process has seen, or of the
        clock that these launches are known to have, if that is lower."""
        clock = taken["clock64_mhz"]
        return bool(clock) and clock < share * min(self.best_clock_mhz, own_mhz)  # type: ignore[operator]

    def lowered(self, taken: Take) -> list[str]:
        """The limits that a take met, of which a lowered clock is one."""
        return [*taken["throttled"], *([LOW_CLOCK] if self.low(taken, share=LOWERED_CLOCK) else [])]

    def worked(self) -> None:
        """Note that the GPU has just ended work that a rest must follow."""
        self.idle_since = time.monotonic()

    @spends("rest")
    def rest(self, seconds: float) -> None:
        """Leave the GPU idle until it has been so for that long: what the host prepared since the last launches counts.
        Fills in between do not matter: one takes about a millisecond on an H200, at far less power than the limit."""
        if (left := seconds - (time.monotonic() - self.idle_since)) > 0:
            time.sleep(left)

    def rest_s(self, mhz: float | None, limits: Sequence[str] = ()) -> float:
        """The seconds to rest before launches that run at this SM clock, or met limits; 0 at the highest clock."""
        if limits or (mhz and mhz < POWER_CLOCK * self.best_clock_mhz):
            return REST_S
        return SHORT_REST_S if mhz and mhz < STEADY_CLOCK * self.best_clock_mhz else 0.0

    def take_quietly(
        self,
        graph: Graph,
        replays: int,
        nodes: int,
        samples: int,
        lead_in: tuple[Graph, ...] = (),
        own_mhz: float = math.inf,
        share: float = 1.0,
        seen_mhz: float = math.inf,
        anew: Callable[[], object] | None = None,
    ) -> Take:
        """As `take`, but after a rest if something holds the SM clock down, and marked if it stays low.

        What ran before may hold the clock down, by the power it drew, or these launches may by their own work. Only a
        rest tells the two apart; and after a rest, always of the same length, launches at the power limit take the same
        time again, which they do not while power control hunts around its limit. At the power limit each sample has
        its share of the rest before it, if there are enough samples: back to back, long ones reach the limit again.
        `own_mhz`: the clock of these launches if it is known, such as from other processes; the rest then comes first.
        If one more rest does not bring it back, no further one follows: the first process may have known no better.
        `share`: of that rest, less if only the same launches ran since a whole one.
        `seen_mhz`: the clock at which these launches have just run, without a rest, if their own one is not known. A
        low one is what a first take would have told, so that the rest comes at once.
        `lead_in`: as in `replay`; what is not `graph` itself comes before each sample.
        `anew`: what readies each sample; then each has a lead-in of its own, too.
        """
        before, rest, retakes = math.inf, share * self.rest_s(own_mhz), 0
        if own_mhz == math.inf and seen_mhz < STEADY_CLOCK * self.best_clock_mhz:
            before, rest = seen_mhz, self.rest_s(seen_mhz)
        how = graph, replays, nodes, samples, lead_in, anew
        taken = self._rested(rest, *how)
        while retakes < RETAKES and self._held_down(taken, own_mhz, rest, before):
            before = taken["clock64_mhz"] or 0.0
            rest, retakes = self.rest_s(before, taken["throttled"]) or SHORT_REST_S, retakes + 1
            taken = self._rested(rest, *how)
        return {**taken, "retakes": retakes, "throttled": self.lowered(taken)}

    def _rested(
        self,
        rest_s: float,
        graph: Graph,
        replays: int,
        nodes: int,
        samples: int,
        lead_in: tuple[Graph, ...],
        anew: Callable[[], object] | None = None,
    ) -> Take:
        shares = rest_s == REST_S and samples >= SLICED_LEAST
        if not shares:
            self.rest(rest_s)
        if shares or lead_in or anew:
            return self.take_sliced(rest_s if shares else 0.0, graph, replays, nodes, samples, lead_in, anew)
        return self.take(graph, replays, nodes, samples, lead_in)

    def _held_down(self, taken: Take, own_mhz: float, rest_s: float, before_mhz: float) -> bool:
        """Whether something else than the launches may hold the clock down that a take saw, so that a rest may help.

        `rest_s`: the rest before the take; `before_mhz`: the clock before that rest, infinite if nothing was taken.
        """
        low = self.low(taken, own_mhz)
        if not rest_s:
            return low or bool(taken["throttled"])
        rises = (taken["clock64_mhz"] or 0.0) - before_mhz >= RISES * self.best_clock_mhz
        first = own_mhz < math.inf and before_mhz == math.inf  # one more rest may bring the known clock back
        return bool(set(taken["throttled"]) - {POWER_CAP}) or (low and (rises or first))
