"""Measures cells on a GPU: checks them, and times them over rotating buffers by graph replays."""

import math
import secrets
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import Kernel, NotHere, Package
from kernelwatch.plan.problem import COPIES, Array, Computation, Operand, Operands
from kernelwatch.plan.project import Project
from kernelwatch.system import cache
from kernelwatch.timing import l2, nodes, tensors, usage
from kernelwatch.timing.capture import Captured
from kernelwatch.timing.check import GUARD, GUARD_BYTES, WrongOutput, beyond, describe_wrong, poisoned, still_poisoned
from kernelwatch.timing.device import RunDevice
from kernelwatch.timing.launch import Allocations, Calls, Direct, Noted, Returning, bind, current
from kernelwatch.timing.record import Measurement, near, quartiles, typical
from kernelwatch.timing.replay import CLOCK_NS_LEAST, FILLS, LOWERED_CLOCK, REST_S, Graph, Take
from kernelwatch.timing.spent import DIGITS, spends

ROTATION = 4  # cold: the buffers together are at least this many times the L2 cache
HOT_ROTATION = 0.25  # hot: the buffers together are this share of the L2 cache, or one set of buffers if that is larger
GRAPH_NODES_MAX = 512
LEAD_IN_S = 1e-4  # less than the canaries take: a launch enqueued within this time was queued behind them
# A checked run is a sample if the host made it longer by less than this share, which is far below the smallest change
# that is reported.
CHECK_DELAY_MOST = 1e-4
SLOW_S = 0.005  # a launch that takes longer is a sample by itself
SLOW_CELL_S = 0.05  # a slow cell gets as many samples as fit in this, at least one
SAMPLES_LEAST = 2  # even if one turn over the buffers takes longer than a sample should
FURTHER_S = 1.0  # seconds of all takes of a cell, or of all samples if it is slow, before those that do not agree end
TAKE_S = 0.004  # seconds of the samples of a take, if a cell has several takes
SLOW_MOST = 10  # samples of a slow cell that do not agree with what is known
SLOW_LONG_S = 0.1  # the first process samples such a cell once
SLOW_AGREED = 2e-3  # as AGREED, of a slow cell: what is more precise would cost too much
# Takes of a cell that has several, at least: with fewer, all could be at one of two levels by chance. What earlier
# processes measured is one of them.
TAKES_LEAST = 6
AGREED = 5e-4  # the relative standard error of the mean of a cell's takes: below it no further one follows
# Cells that wait for a further take before the first one has it: some tenths of a second, in which the SM clock moves.
APART = 6
FURTHER = TAKES_LEAST - 1  # takes after a cell that will wait: as many as most cells need
HOST_LOOP = 256  # launches in a loop of the host, fewer if they take longer than HOST_LOOP_S
HOST_LOOP_LEAST = 32
HOST_LOOP_S = 0.005
HOST_LOOPS = 5
ALIGNMENT = 256
KEPT_SHARE = 8  # of the free memory of the GPU: so much of it may hold copies of a cell's inputs
ELSEWHERE = ": not all of it runs on the given stream"


class _Returned(Captured):
    """A graph of launches that return their outputs. `result`: what the first one returned; replays write it."""

    def __init__(self, cupy: Any, stream: Any, launches: list[Callable[[], object]], count: int) -> None:
        super().__init__(cupy, stream, lambda: [launches[at % len(launches)]() for at in range(count)])
        self.result = getattr(launches[0], "result", None)


@dataclass(frozen=True)
class _Ready:
    """A set of buffers before a launch that is checked. `key`: of the poison in its outputs; `given`: what its inputs
    hold; `captured`: the outputs of a graph that has memory of its own."""

    slot: int
    key: tuple[int, ...]
    given: list[Array]
    captured: list[Array]


@dataclass(frozen=True)
class _Timed:
    """What is timed of a quick cell: a graph of `count` launches, of which a sample has `replays`, and a further take
    some `samples`. `most_takes`: that fit in the time that a cell may have for them."""

    graph: Graph
    count: int
    replays: int
    samples: int
    most_takes: int


@dataclass
class _Waiting:
    """A cell that waits for further takes, of which `left` are left at most. `launches`: those of its graph, whose
    memory they may hold; `repeats`: how often one does the work; `measurement`: of the `takes` so far; `known_s`: the
    time of a launch as earlier processes measured it, or infinite."""

    cell: Cell
    launches: list[Callable[[], object]]
    timed: _Timed
    repeats: int
    measurement: Measurement
    takes: list[Take]
    left: int
    known_s: float

    @property
    def ends(self) -> bool:
        """Whether it needs no further take."""
        return self.left <= 0 or _agree(_levels(self.takes), self.known_s, TAKES_LEAST, AGREED)


@dataclass(frozen=True)
class _Layout:
    """One set of buffers of a cell. `starts`: the offset in bytes of each array; `size`: of the set, in bytes."""

    operands: Operands
    starts: tuple[int, ...]
    size: int


def _levels(takes: Sequence[Take]) -> list[float]:
    """The seconds of a launch in each take."""
    return [typical(take["seconds"]) for take in takes]


def _samples(takes: Sequence[Take]) -> list[float]:
    """The seconds of a launch in each sample of some takes."""
    return [value for take in takes for value in take["seconds"]]


def _agree(seconds: Sequence[float], known_s: float, least: int, error: float) -> bool:
    """Whether some values say the time of a launch with at most this relative standard error. There must be `least` of
    them. What earlier processes measured is one more, so that values which agree by chance do not end a cell.
    `known_s`: that time, or infinite."""
    values = near([*seconds, *([known_s] if known_s < math.inf else [])])
    if len(values) < least:
        return False
    return statistics.stdev(values) <= error * statistics.mean(values) * math.sqrt(len(values))


def _figures(cell: Cell, takes: Sequence[Take], repeats: int) -> Measurement:
    """What all takes of a cell say together. "seconds" is the time of one pass: a launch, or its share if it repeats
    the work."""
    seconds = [value / repeats for value in _samples(takes)]
    found: Measurement = {
        "seconds": typical(seconds),
        "samples": len(seconds),
        "quartiles_s": quartiles(seconds),
        "launches": sum(take["launches"] for take in takes),
        "clock64_mhz": takes[-1]["clock64_mhz"],
        "state": takes[-1]["state"],
        "throttled": sorted({limit for take in takes for limit in take["throttled"]}),
        "retakes": sum(take["retakes"] for take in takes),
    }
    if cell.cache != "hot" and len(takes) > 1:
        found["takes_s"] = [level / repeats for level in _levels(takes)]
        clocks = [mhz for take in takes if (mhz := take["clock64_mhz"])]
        found["clock64_mhz"] = statistics.mean(clocks) if clocks else None
    return found


class Gpu(RunDevice):
    """The current CUDA device, with the memory that all cells of a run share."""

    _laid_out: tuple[Cell, _Layout] | None = None  # the last cell that `_layout` was asked for

    def __init__(self, project: Project, package: Package, cells: list[Cell], budget: Budget, seed: int) -> None:
        super().__init__(project)
        self.package = package
        self.budget = budget
        self.seed = seed
        self._returns = False  # whether the launches of the cell return their outputs
        self._host: dict[tuple[str, int, bool], NDArray[Any]] = {}  # of one cell: the inputs that the host made
        self._waiting: deque[_Waiting] = deque()
        self._fresh: _Waiting | None = None  # what was measured last, if it has further takes
        self._set_aside = l2.set_aside_bytes()  # by default: some GPUs set aside a part of the L2 cache
        self._allocates = False  # whether a launch of the cell allocates memory
        self._once: Graph | None = None  # of the cell: a graph of one launch, None if it cannot be captured
        # One allocation for all cells, so that a buffer has the same place in memory for every rung in every process.
        free = int(self.cupy.cuda.runtime.memGetInfo()[0] * 0.7)
        sizes = [size for cell in cells if not self._refusal(cell) and (size := self._arena_bytes(cell)) <= free]
        self.arena = self.cupy.empty(max(sizes, default=0) + GUARD_BYTES, self.cupy.uint8)
        self.warm_up()

    def _refusal(self, cell: Cell) -> str:
        return usage.refusal(self.project, cell)

    # --- buffers -----------------------------------------------------------------------------------------------

    def _computes(self, cell: Cell) -> Computation:
        return self.project.computes(cell.op, cell.rung)

    def _layout(self, cell: Cell) -> _Layout:
        """The layout of a cell's sets of buffers. It is kept until that of another cell is asked for: a small cell has
        hundreds of sets, and each asks for it several times."""
        if self._laid_out is None or self._laid_out[0] != cell:
            operands = self._computes(cell).operands(cell.shape, cell.type)
            starts, at = [], 0
            for array in operands.arrays:
                starts.append(at)
                at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
            self._laid_out = cell, _Layout(operands, tuple(starts), at)
        return self._laid_out[1]

    def _operands_of(self, cell: Cell) -> Operands:
        return self._layout(cell).operands

    def _slot_bytes(self, cell: Cell) -> tuple[tuple[int, ...], int]:
        """The offset in bytes of each array in one set of buffers, and the size of the set in bytes."""
        layout = self._layout(cell)
        return layout.starts, layout.size

    def _slots(self, cell: Cell) -> int:
        """The number of sets of buffers over which the launches rotate. Hot cells also rotate if several sets fit in
        the cache, so that the figure does not depend on the few pages of one set."""
        size = self._slot_bytes(cell)[1]
        if cell.cache == "hot":
            return max(1, int(HOT_ROTATION * self.l2_bytes) // size)
        return max(1, -(-ROTATION * self.l2_bytes // size))

    def _arena_bytes(self, cell: Cell) -> int:
        return self._slots(cell) * self._slot_bytes(cell)[1]

    def _view(self, start: int, array: Operand) -> Array:
        """An array in the memory of all cells. CuPy launches other kernels on a view of an array of more than 2 GiB
        than on an array of its own, and the size of that memory is not the same in each process."""
        own = self.cupy.ndarray((array.nbytes,), np.uint8, self.arena.data + start)
        return own.view(array.dtype).reshape(array.shape)

    def _operands(self, cell: Cell, slot: int) -> tuple[list[Array], list[Array]]:
        """The inputs and outputs of one set of buffers, as arrays."""
        layout = self._layout(cell)
        begin, inputs = slot * layout.size, len(layout.operands.inputs)
        arrays = [
            self._view(begin + start, array) for start, array in zip(layout.starts, layout.operands.arrays, strict=True)
        ]
        return arrays[:inputs], arrays[inputs:]

    @spends("fill")
    def _fill(self, cell: Cell) -> None:
        """Fill all buffers of the cell with random numbers in the format of its first input; then fill each input that
        has another format or values of its own."""
        operands = self._operands_of(cell)
        first = operands.inputs[0].dtype.name if operands.inputs else "float32"
        self._random(self.arena[: self._arena_bytes(cell)], first, self.seed)
        starts, size = self._slot_bytes(cell)
        for at, (start, array) in enumerate(zip(starts, operands.inputs, strict=False)):
            if array.derived:
                continue
            if array.values is not None:
                values = self.cupy.asarray(self._made(cell, at, array))
            elif FILLS.get(array.dtype.name) != FILLS.get(first):
                values = None
            else:
                continue
            for slot in range(self._slots(cell)):
                view = self._view(slot * size + start, array)
                if values is None:
                    self._random(view, array.dtype.name, self.seed + slot)
                else:
                    view[...] = values.astype(array.dtype, copy=False)
        if any(array.derived for array in operands.inputs):  # the host makes them, once: all sets hold the same numbers
            self._derive(cell)
            sets = self.arena[: self._arena_bytes(cell)].reshape(-1, size)
            sets[1:] = sets[0]

    def _derive(self, cell: Cell, exact: bool = False, slot: int = 0) -> None:
        """Make the inputs of a set of buffers that follow from the inputs before them. `exact`: these hold the numbers
        for which the arithmetic is exact."""
        operands, (inputs, _) = self._operands_of(cell), self._operands(cell, slot)
        for at, (view, array) in enumerate(zip(inputs, operands.inputs, strict=True)):
            if array.derived:
                values = self._made(cell, at, array, inputs[:at], exact)
                view[...] = self.cupy.asarray(values).astype(array.dtype, copy=False)

    def _made(
        self, cell: Cell, at: int, array: Operand, before: Sequence[Array] = (), exact: bool = False
    ) -> NDArray[Any]:
        """The values of an input that the host makes. It takes seconds for a large one, and each filling of the buffers
        needs them again: those of one cell are kept."""
        kept = cell.key, at, exact
        if kept not in self._host:
            self._host = {key: values for key, values in self._host.items() if key[0] == cell.key}
            given = [one.get(stream=self.stream) for one in before]
            self._host[kept] = np.ascontiguousarray(array.made(np.random.default_rng([self.seed, at]), given))
        return self._host[kept]

    def _random(self, memory: Array, name: str, seed: int) -> None:
        """Fill memory with numbers in [-1, 1) in the format of a type, float32 if the type has no kernel in FILLS."""
        count = memory.nbytes // (np.dtype(name).itemsize if name in FILLS else 4)
        self.kernels[FILLS.get(name, "fill")]((4096,), (256,), (memory, np.int64(count), np.uint64(seed)))

    # --- launches ----------------------------------------------------------------------------------------------

    def _line(self, cell: Cell, inputs: list[Array], outs: list[Array]) -> Callable[[], object]:
        """The launch of a reference line."""
        cupy, source, out = self.cupy, inputs[0], outs[0]
        bind = self.project.ops[cell.op].lines[cell.rung].bind
        if bind is not None:
            return bind(cupy, inputs, out)
        runtime = cupy.cuda.runtime
        copies: dict[str, Callable[[], object]] = {
            "memcpy": lambda: runtime.memcpyAsync(
                out.data.ptr, source.data.ptr, source.nbytes, runtime.memcpyDeviceToDevice, self.stream.ptr
            ),
            "vector_copy": self.vector_copy(source, out),
            "cupy_copy": lambda: cupy.copyto(out, source),
        }
        assert set(copies) == set(COPIES)
        return copies[cell.rung]

    @spends("bind")
    def _bind(self, cell: Cell, kernel: Kernel | None, slot: int) -> tuple[Callable[[], object], str]:
        """A launch over one set of buffers, and its identity. `kernel`: None for a reference line."""
        inputs, outs = self._operands(cell, slot)
        if kernel is None:
            return self._line(cell, inputs, outs), f"{cell.rung} CuPy {self.cupy.__version__}"
        rung = self.project.ops[cell.op].rung(cell.rung)
        launch = bind(kernel, rung, self._operands_of(cell), inputs, outs)
        return launch, launch.identity

    @spends("check")
    def _check(self, cell: Cell, launch: Callable[[], object], known: bool) -> tuple[Take, float]:
        """Run a cell for the first time, and check it, unless it is `known` to have been right in an earlier process:
        what is timed is checked afterwards in each.

        Returns that run as a sample, which is right unless the host had to load something first, and the seconds that
        the host took to enqueue it. Raises: WrongOutput.
        """
        direct = Direct(launch)
        taken = self.take(direct, 1, 1, 1, self.lead_in) if known else self._checked(cell, direct)
        return taken, direct.enqueue_s

    def _fill_exactly(self, cell: Cell, slot: int = 0) -> None:
        """Fill the inputs of a set of buffers with numbers for which the arithmetic is exact, if the cell is checked
        so, and those that follow from them."""
        inputs, computes = self._operands(cell, slot)[0], self._computes(cell)
        for at, bits in enumerate(computes.exact_bits(cell.type) if computes.exact_bits else ()):
            kernel = self.kernels[f"{FILLS.get(inputs[at].dtype.name, 'fill')}_short"]
            count, seed = np.int64(inputs[at].size), np.uint64(self.seed + at)
            kernel((4096,), (256,), (inputs[at], count, seed, np.int32(bits)))
        if computes.exact_bits:
            self._derive(cell, exact=True, slot=slot)

    @spends("check")
    def _checked(self, cell: Cell, launch: Graph, how: str = "") -> Take:
        """Run a launch over the first set of buffers, whose outputs are poisoned before, and check what it wrote, also
        after its output and to its inputs.

        `how`: it was launched, for messages. Returns the run as a sample. Raises: WrongOutput.
        """
        ready, guard, kept = self._ready(cell, launch, 0), self._guard(cell, 0), self._kept(cell, 0)
        taken = self.take(launch, 1, 1, 1, self.lead_in)
        self._judge(cell, launch, ready, how)
        self._unharmed(cell, guard, how)
        self._unchanged(cell, kept, 0, how)
        self.worked()
        if any(one.values for one in self._operands_of(cell).inputs):
            self._fill(cell)  # the guard lies in the next set: an index there must be valid
        return taken

    def _guard(self, cell: Cell, slot: int) -> Array:
        """The bytes after the last output of a set of buffers, set to GUARD."""
        starts, size = self._slot_bytes(cell)
        end = slot * size + starts[-1] + self._operands_of(cell).arrays[-1].nbytes
        guard = self.arena[end : end + GUARD_BYTES]
        self.cupy.cuda.runtime.memsetAsync(guard.data.ptr, GUARD, guard.nbytes, self.stream.ptr)
        return guard

    def _unharmed(self, cell: Cell, guard: Array, how: str) -> None:
        """Raises: WrongOutput if a launch wrote to a guard."""
        if why := beyond(cell, guard.get(stream=self.stream)):
            raise WrongOutput(f"{why}{how}")

    @spends("check")
    def _check_afterwards(
        self, cell: Cell, launches: list[Callable[[], object]], timed: Graph, with_inputs: bool
    ) -> None:
        """Run what was timed once more, and check what it wrote over one of the sets of buffers, which nobody can know
        before. `with_inputs`: also that it wrote to none of its inputs. Raises: WrongOutput."""
        slot = secrets.randbelow(len(launches))
        if with_inputs:
            self._fill(cell)  # what was timed may have left in an input what it writes there
        # A graph writes each set several times, and returns the outputs of the first one only.
        once = self._returns or self._operands_of(cell).updated
        launch = Direct(launches[slot]) if once else timed
        ready = self._ready(cell, launch, slot)
        kept = self._kept(cell, slot) if with_inputs else {}
        guard = self._guard(cell, slot if once else len(launches) - 1)  # in no set that is launched after it
        launch.launch(self.stream)
        self._judge(cell, launch, ready, usage.afterwards(slot))
        self._unharmed(cell, guard, ", when it was timed")
        self._unchanged(cell, kept, slot, usage.afterwards(slot))

    def _ready(self, cell: Cell, launch: Graph, slot: int) -> _Ready:
        """Poison the outputs of a set of buffers, and note what its inputs hold."""
        inputs, outs = self._operands(cell, slot)
        self._fill_exactly(cell, slot)
        given = [
            self._copy(array) if one.updated else array
            for array, one in zip(inputs, self._operands_of(cell).inputs, strict=True)
        ]
        captured = self._results(cell, launch, slot) if isinstance(launch, _Returned) else []
        own = [memory for memory in captured if memory.flags.c_contiguous]  # of the graph, which each replay writes
        key = secrets.randbits(32), slot
        with cache.of_harness():
            for memory in (*outs, *own):
                poisoned(memory, key)
        return _Ready(slot, key, given, captured)

    def _judge(self, cell: Cell, launch: Graph, ready: _Ready, how: str) -> None:
        """Raises: WrongOutput if a launch did not write what it should over the set of buffers that was ready."""
        inputs, outs = self._operands(cell, ready.slot)
        computes, operands = self._computes(cell), self._operands_of(cell)
        updated = [array for array, one in zip(inputs, operands.inputs, strict=True) if one.updated]
        written = [*(ready.captured or self._results(cell, launch, ready.slot) or outs), *updated]
        known = [
            name for name, one in zip(usage.names(computes, operands), operands.inputs, strict=True) if one.updated
        ]

        def wrong() -> str:
            positional, named = operands.arguments(ready.given)
            with cache.of_harness():
                return describe_wrong(cell, computes, positional, written, named, self.cupy, known, ready.key)

        if why := wrong():
            self.cupy.cuda.runtime.deviceSynchronize()
            if not wrong():
                why = f"{cell.name} has not finished when its stream has: it runs on another stream than the given one"
            elif outs and written[0] is outs[0]:
                why = usage.untouched(cell, getattr(launch, "result", None), outs, ready.key, self.cupy) or why
            raise WrongOutput(f"{self._overwritten(cell, launch) or why}{how}")

    def _results(self, cell: Cell, launch: Graph, slot: int) -> list[Array]:
        """What a launch that returns its outputs returned; [] if it writes them. Raises: WrongOutput."""
        if not (self._returns and hasattr(launch, "result")):
            return []
        inputs, _ = self._operands(cell, slot)
        return usage.returned(cell, launch.result, self._computes(cell), self._operands_of(cell), inputs, self.cupy)

    def _overwritten(self, cell: Cell, launch: Graph) -> str:
        """What to say of inputs that a launch writes and must not, "" if it writes none. It is launched once more, over
        the first set of buffers, filled anew."""
        self._fill(cell)
        self._fill_exactly(cell)
        kept = self._kept(cell, 0)
        launch.launch(self.stream)
        self.cupy.cuda.runtime.deviceSynchronize()
        return self._changed(cell, kept, 0)

    def _kept(self, cell: Cell, slot: int) -> dict[int, Array]:
        """Copies of the inputs that a launch over a set of buffers must not write, by their number: on the host if
        they would take much of the memory that the GPU has left, which the reference needs."""
        given = usage.read_only(self._operands_of(cell), self._operands(cell, slot)[0])
        room, kept = int(self.cupy.cuda.runtime.memGetInfo()[0]) // KEPT_SHARE, {}
        for at, array in given.items():
            kept[at] = self._copy(array) if array.nbytes <= room else array.get(stream=self.stream)
            room -= array.nbytes
        return kept

    def _unchanged(self, cell: Cell, kept: dict[int, Array], slot: int, how: str) -> None:
        """Raises: WrongOutput if a launch wrote to the inputs of a set of buffers, on whatever stream."""
        self.cupy.cuda.runtime.deviceSynchronize()
        if why := self._changed(cell, kept, slot):
            raise WrongOutput(f"{why}{how}")

    def _changed(self, cell: Cell, kept: dict[int, Array], slot: int) -> str:
        """What to say of the inputs that are not what they were when they were `kept`, "" if all are."""
        operands, inputs = self._operands_of(cell), self._operands(cell, slot)[0]
        changed = [at for at, was in kept.items() if not usage.same_bits(was, inputs[at], self.cupy)]
        return usage.overwritten(cell, self._computes(cell), operands, changed)

    def _copy(self, array: Array) -> Array:
        """A copy of a contiguous array. CuPy makes no new arrays of some types, such as float8: this one is a view."""
        copied, runtime = self.cupy.empty(array.nbytes, np.uint8), self.cupy.cuda.runtime
        to_device = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(copied.data.ptr, array.data.ptr, array.nbytes, to_device, self.stream.ptr)
        return copied.view(array.dtype).reshape(array.shape)

    @spends("capture")
    def _captured(self, cell: Cell, launch: Callable[[], object]) -> Graph | None:
        """A graph of one launch, which may never be launched; None if it cannot be captured.

        Raises: WrongOutput if it enqueues nothing on the given stream; what the launch raises outside of a capture.
        """
        graph = None
        with suppress(Exception):  # and forget it, since its traceback holds what the launch allocated
            graph = self._graph_of([launch], 1)
        if graph is None:
            launch()
            self.stream.synchronize()
            self.worked()
            return None
        if nodes.read(graph) == []:
            raise WrongOutput(f"{cell.name} enqueues nothing on the given stream: it runs on another stream")
        return graph

    # --- timing ------------------------------------------------------------------------------------------------

    def _take_slow(
        self, cell: Cell, launch: Callable[[], object], first: Take, enqueue_s: float, known_s: float
    ) -> tuple[list[Take], Graph | None]:
        """The takes of a slow cell, and what was timed: a sample is one launch, all over one set of buffers. If the
        cell is cold, each comes after the canaries, which displace what the launch before it left in the L2 cache.
        `first`: the checked run, which may be the only one of a cold cell; nothing else was timed then. `known_s`: the
        seconds of a launch as earlier processes measured them, or infinite.

        The first take has as many samples as fit. If it does not agree with what is known, more of one sample follow.

        The cell may turn out not to be slow: its first run may have waited for a library to be loaded. What the host
        needed beyond the lead-in is the most by which that run may be too long.
        """
        once = first["seconds"][0]
        samples = max(1, min(self.budget.samples, round(SLOW_CELL_S / once)))
        low = first["throttled"] or self.low(first, self._own_mhz(cell))
        cold = cell.cache == "cold"  # as the checked run is
        takes: list[Take] = []
        timed: Graph | None = None
        # A hot launch is its own lead-in, which leaves its operands in the cache. That costs as much as a sample.
        lead_in = self.lead_in if cold else ()
        if cold and samples == 1 and enqueue_s - LEAD_IN_S < CHECK_DELAY_MOST * once and not low:
            takes.append({**first, "throttled": self.lowered(first)})
        while not takes or (cold and self._unsettled(takes, known_s)):
            if timed is None:
                self._fill(cell)
                timed = self._queued([launch], 1)
            count, share = (1, 0.0) if takes else (samples, 1.0)  # of the rest, which the first take had
            taken = self.take_quietly(timed, 1, 1, count, lead_in, self._own_mhz(cell), share)
            if takes and taken["throttled"]:  # the takes before met no limit
                break
            takes.append(taken)
        return takes, timed

    def _unsettled(self, takes: list[Take], known_s: float) -> bool:
        """Whether a slow cold cell has more samples: it is slow indeed, met no limit, and they do not agree."""
        seconds = _samples(takes)
        enough = len(seconds) >= SLOW_MOST or sum(seconds) > FURTHER_S
        if enough or takes[-1]["throttled"] or seconds[-1] < SLOW_S:
            return False
        alone = known_s == math.inf and seconds[0] > SLOW_LONG_S
        return not (alone or _agree(seconds, known_s, 2, SLOW_AGREED))

    def _own_mhz(self, cell: Cell) -> float:
        return self.budget.clocks_mhz.get(cell.key, math.inf)

    def _take_quick(
        self, cell: Cell, launches: list[Callable[[], object]], once: float, known_s: float
    ) -> tuple[list[Take], _Timed]:
        """The samples of a cell over its rotating buffers, and what was timed. `once`: about the seconds of a
        launch; `known_s`: as earlier processes measured them, or infinite."""
        first, seen_mhz = (known_s, math.inf) if known_s < SLOW_S else self._replayed_once(launches, once)
        count, replays, samples = self._enough(len(launches), first)
        graph, own_mhz = self._queued(launches, count), self._own_mhz(cell)
        sample_s = first * count * replays
        further = max(1, min(samples, round(TAKE_S / sample_s)))
        timed = _Timed(graph, count, replays, further, int(FURTHER_S / (sample_s * (further + 1))))
        # Each time buffers are filled, the L2 cache settles in one of several ways, whose times differ by up to some
        # percent. So each sample fills them again, but for the short takes of a cell that has several. The mean counts.
        if timed.most_takes > 1 and self._has_more(cell, min(own_mhz, seen_mhz)):
            self._fill(cell)
            take = self.take_quietly(graph, replays, count, further, own_mhz=own_mhz, seen_mhz=seen_mhz)
            if not take["throttled"] and self._has_more(cell, take["clock64_mhz"]):
                return [take], timed
        if cell.cache != "hot":
            anew = None if self._special(cell) else partial(self._fill, cell)
            if not anew:
                self._fill(cell)
            how = graph, replays, count, samples
            return [self.take_quietly(*how, own_mhz=own_mhz, seen_mhz=seen_mhz, anew=anew)], timed
        taken: list[Take] = []
        for at in range(samples):
            self._fill(cell)
            # The first one comes after what ran before, the others after these launches: as slices of one take.
            share = 1 / samples if at else 1.0
            how = graph, replays, count, 1
            taken.append(self.take_quietly(*how, own_mhz=own_mhz, share=share, seen_mhz=seen_mhz))
            own_mhz = min(own_mhz, taken[0]["clock64_mhz"] or math.inf)
        return taken, timed

    def _replayed_once(self, launches: list[Callable[[], object]], once: float) -> tuple[float, float]:
        """The seconds of a launch in a graph, and the SM clock in MHz meanwhile, infinite if that is unknown or took
        too short to be read. `once`: about these seconds, more if something had to be loaded."""
        few = launches[: max(1, math.ceil(self.budget.sample_s / once))]
        seconds, clock, _ = self.replay(self._queued(few, len(few)), 1, 2, lead_in=self.lead_in)
        told = clock if clock and sum(seconds) * 1e9 >= CLOCK_NS_LEAST else math.inf
        return min(seconds) / len(few), told

    def _enough(self, sets: int, once: float) -> tuple[int, int, int]:
        """The launches in a graph (whole turns over the sets of buffers), the replays in a sample, and the number of
        samples. `once`: the seconds of a launch."""
        count = min(GRAPH_NODES_MAX, max(1, round(self.budget.sample_s / once)))
        count = max(1, round(count / sets)) * sets
        replays = max(1, round(self.budget.sample_s / (once * count)))
        fitting = round(self.budget.samples * self.budget.sample_s / (once * count * replays))
        return count, replays, min(self.budget.samples, max(SAMPLES_LEAST, fitting))

    @spends("host loop")
    def _host_loop_seconds(self, launch: Callable[[], object]) -> float:
        """The median seconds per launch of a loop of the host over one set of buffers, including the final wait. A
        first loop, which does not count, tells how many launches the others have."""

        def loop(count: int) -> float:
            self.stream.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                launch()
            self.stream.synchronize()
            return (time.perf_counter() - start) / count

        fitting = round(HOST_LOOP_S / loop(HOST_LOOP_LEAST))
        count = max(HOST_LOOP_LEAST, min(HOST_LOOP, fitting))
        return statistics.median(loop(count) for _ in range(HOST_LOOPS))

    def _fits(self, cell: Cell) -> None:
        """Raises: NotHere if the cell's buffers are too large, for the cache or for the GPU's memory."""
        size = self._slot_bytes(cell)[1]
        if cell.cache == "hot" and size > self.l2_bytes / 2:
            raise NotHere(
                f"its buffers ({size >> 20} MiB) do not fit in half of the L2 cache ({self.l2_bytes >> 20} MiB): "
                "never hot"
            )
        if self._arena_bytes(cell) > self.arena.nbytes - GUARD_BYTES:
            raise NotHere(
                f"it needs {self._arena_bytes(cell) >> 20} MiB of GPU memory, "
                f"{self.cupy.cuda.runtime.memGetInfo()[0] >> 20} MiB are free"
            )

    @spends("load")
    def _loaded(self, cell: Cell) -> Kernel | None:
        """The kernel of a cell; None for a reference line. Raises: NotHere, Absent; what the package raises."""
        rung = usage.declared(self.project, cell)
        self._fits(cell)
        if rung is not None and rung.arrays == "torch":
            tensors.pytorch(cell.name)  # now, so that its current stream is set before the first launch
        return None if rung is None else self.package.load(cell.op, cell.rung, cell.type)

    def _has_room(self, cell: Cell) -> None:
        """Raises: NotHere if what the launches over all sets of buffers return does not fit in the GPU's memory."""
        size = self._slots(cell) * sum(array.nbytes for array in self._operands_of(cell).outputs)
        free = int(self.cupy.cuda.runtime.memGetInfo()[0])
        if size > free:
            raise NotHere(f"what it returns needs {size >> 20} MiB of GPU memory, {free >> 20} MiB are free")

    def _queued(self, launches: list[Callable[[], object]], count: int) -> Graph:
        """`count` launches, in turn from `launches`: a graph, or calls by the host if the cell cannot be captured."""
        return self._graph_of(launches, count) if self._once else Calls(launches, count)

    @spends("capture")
    def _graph_of(self, launches: list[Callable[[], object]], count: int) -> Graph:
        """A graph of launches. Those that return their outputs allocate them within the capture: such a graph has
        memory of its own."""
        return _Returned(self.cupy, self.stream, launches, count) if self._returns else self.graph(launches, count)

    def _measure(self, cell: Cell) -> Measurement:
        """Measure a cell once: time and check it, record the conditions and what a launch runs. Raises: WrongOutput,
        NotHere, Absent."""
        kernel = self._loaded(cell)
        repeats = 1 if cell.reference else self.package.repeats(cell.op, cell.rung)
        with current(self.stream):
            self._fill(cell)
            launch, identity = self._bind(cell, kernel, 0)
            self._returns = isinstance(launch, Returning)
            if self._returns:
                self._has_room(cell)
            known_s = self.budget.seconds.get(cell.key, math.inf) * repeats
            of_sources = bool(getattr(launch, "of_sources", False))  # it may be another one in each process
            first, enqueue_s = self._check(cell, launch, known_s < SLOW_S and not of_sources)
            if known_s < SLOW_S <= first["seconds"][0]:  # it waited for something, or has become slow
                known_s = math.inf
                first, enqueue_s = self._check(cell, launch, known=False)
            # What the host prepares from here on is a rest of the GPU already.
            launches = [launch, *(self._bind(cell, kernel, slot)[0] for slot in range(1, self._slots(cell)))]
            with Allocations(self.cupy) as allocations:
                self._once = self._captured(cell, launches[0])
            self._allocates = allocations.peak_bytes > 0
            once, slots = first["seconds"][0], len(launches)
            takes: list[Take] = []
            quick: _Timed | None = None
            if once >= SLOW_S:
                takes, timed = self._take_slow(cell, launches[0], first, enqueue_s, known_s)
                slots, once = 1, takes[-1]["seconds"][-1]
            if once < SLOW_S:
                (takes, quick), slots = self._take_quick(cell, launches, once, known_s), len(launches)
                timed = quick.graph
            measurement: Measurement = {
                **_figures(cell, takes, repeats),
                "slots": slots,
                "identity": identity,
            }
            if self._once is None:
                measurement["timed_by"] = "events"
            if cell.launch_cost:
                measurement["host_loop_seconds"] = self._host_loop_seconds(launches[0])
                measurement["launch_seconds"] = measurement["host_loop_seconds"] - measurement["seconds"]
            if self._operands_of(cell).updated:
                inputs, _ = self._operands(cell, 0)
                why = usage.not_finite(cell, self._computes(cell), self._operands_of(cell), inputs, self.cupy)
                if why:
                    raise WrongOutput(why)
        measurement["canary_s"] = self.canary_seconds()
        with current(self.stream):
            # If the identity tells what is launched, the first process looks at it for all.
            looks = kernel is not None and (of_sources or not self.seed)
            if looks:
                self._look(cell, launches[0], measurement)
            if timed:
                self._check_afterwards(cell, launches[:slots], timed, looks)
        left = min(self.budget.takes, quick.most_takes) - 1 if quick else 0
        if quick and left > 0 and not takes[-1]["throttled"] and self._has_more(cell, takes[-1]["clock64_mhz"]):
            self._fresh = _Waiting(cell, launches, quick, repeats, measurement, takes, left, known_s)
        return measurement

    # --- further takes -----------------------------------------------------------------------------------------

    def measure(self, cell: Cell) -> Measurement:
        self._fresh = None
        measurement = super().measure(cell)
        if self._fresh:
            self._waiting.append(self._fresh)
        return measurement

    def _has_more(self, cell: Cell, mhz: float | None) -> bool:
        """Whether a quick cell that runs at this SM clock has further takes in this process.

        At its highest, or a little below, the clock moves by some megahertz within tenths of a second, for which a take
        is too short. Takes that are as far apart see it as often as further processes would
        (docs/research/measuring.md). They end as soon as they agree.

        A cell that a later one might disturb has none: what it allocates in a launch may be another one's by then, and
        what it sets aside of the L2 cache is given back. Nor has one that needs inputs by the host, that writes to its
        inputs, or that may hold memory where little is left.
        """
        if self.budget.takes < 2 or cell.cache != "cold" or self._once is None or self._returns or self._allocates:
            return False
        free, total = self.cupy.cuda.runtime.memGetInfo()
        highest = bool(mhz) and LOWERED_CLOCK * self.best_clock_mhz <= mhz < math.inf  # type: ignore[operator]
        roomy = 2 * int(free) >= int(total) and l2.set_aside_bytes() == self._set_aside
        return highest and roomy and not self._special(cell)

    def _special(self, cell: Cell) -> bool:
        """Whether a cell has an input that the host makes, which takes long to fill, or one that its launches write."""
        return any(one.updated or one.values is not None for one in self._operands_of(cell).inputs)

    def due(self, last: bool) -> Iterator[Cell]:
        """The cells that should have a further take now: those that have waited longest, if the one that was measured
        last will wait, too, since it left the clock where it was. Each is to be taken, by `take_further`, before the
        next one is asked for. `last`: no other cell will follow, so that none may wait. A rest comes first then, if the
        last cell may have lowered the clock."""
        if last and self._waiting and not self._fresh:
            self.rest(REST_S)
        turns = FURTHER if self._fresh and len(self._waiting) > APART else 0
        while self._waiting and (last or turns > 0 or (self._fresh and len(self._waiting) > 2 * APART)):
            turns -= 1
            yield self._waiting[0].cell

    def take_further(self) -> Measurement:
        """The measurement of the cell that has waited longest, with one more take. Raises: MemoryFault; WrongOutput if
        what was timed is wrong after the last one."""
        one = self._waiting.popleft()
        before = one.measurement["spent_s"]
        one.measurement = self._watched(lambda: self._taken_further(one))
        spent = Counter(before) + Counter(one.measurement["spent_s"])
        one.measurement["spent_s"] = {part: round(seconds, DIGITS) for part, seconds in spent.items()}
        if not one.ends:
            self._waiting.append(one)
        return one.measurement

    def _taken_further(self, one: _Waiting) -> Measurement:
        timed, self._returns = one.timed, False  # the cell before may be one that returns its outputs
        with current(self.stream):
            self._fill(one.cell)
            # No rest comes first, since the cell before left the clock alone. What it moves by is not yet lowered.
            take = self.take(timed.graph, timed.replays, timed.count, timed.samples)
            one.left -= 1
            if not (take["throttled"] or self.low(take, share=LOWERED_CLOCK)):  # the takes before met no limit
                one.takes.append(take)
            if one.ends and not self.seed:
                self._check_afterwards(one.cell, one.launches, timed.graph, with_inputs=False)
        return {**one.measurement, **_figures(one.cell, one.takes, one.repeats)}

    @spends("look")
    def _look(self, cell: Cell, launch: Callable[[], object], measurement: Measurement) -> None:
        """Note what a launch runs and allocates, after it was timed. Nothing runs for that if it can be captured.

        Raises: WrongOutput if some of it runs nevertheless, on another stream than the given one.
        """
        outs, key = self._operands(cell, 0)[1], (secrets.randbits(32), 0)
        with cache.of_harness():
            for out in outs:
                poisoned(out, key)
        graph = None
        with Noted(self.cupy) as noted:
            if self._once is None:
                launch()
                self.stream.synchronize()
                self.worked()
            elif (graph := self._captured(cell, launch)) is None:
                raise WrongOutput(f"{cell.name} was captured in a CUDA graph, and cannot be captured once more")
        if noted.peak_bytes:
            measurement["peak_allocated_bytes"] = noted.peak_bytes
        if noted.configurations:
            measurement["configurations"] = noted.configurations
        ran = None
        if graph is not None:
            self.cupy.cuda.runtime.deviceSynchronize()
            if not all(still_poisoned(out, key, self.cupy).all() for out in outs):
                raise WrongOutput(f"{cell.name} wrote its output while it was captured in a CUDA graph{ELSEWHERE}")
            if self._returns or self._operands_of(cell).updated:  # no graph of it is checked after it was timed
                self._checked(cell, graph, f", when a CUDA graph of it is replayed{ELSEWHERE}")
            ran = nodes.read(graph)
        if ran:
            measurement["kernels"] = ran
        if getattr(launch, "of_sources", False):
            measurement["sources"] = measurement["identity"]
            measurement["identity"] = nodes.identity(measurement["sources"], ran or [], noted.configurations)

    def launch_all(self, cell: Cell, count: int) -> None:
        """Launch a cell `count` times over its rotating buffers, for a profiler, and wait."""
        kernel = self._loaded(cell)
        with current(self.stream):
            self._fill(cell)
            launches = [self._bind(cell, kernel, slot)[0] for slot in range(self._slots(cell))]
            for turn in range(count):
                launches[turn % len(launches)]()
        self.cupy.cuda.runtime.deviceSynchronize()
