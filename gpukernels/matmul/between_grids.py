"""matmul/between_grids: C = A B for matrices of the host's memory, larger than the GPU's.

Another level of tiling above the grid. A tile of C stays on the GPU while panels of A and B stream past it through
pinned chunks: one stream uploads, one computes, one downloads, and events order them. The tiles are visited in
serpentine order, down and up through K in turn, so that a tile begins with the panels that the last one ended with.
The last product of a tile is made in bands of rows, which are downloaded while the next is computed. This is bound by
the product, and no longer by the link, once the tile's edge is above FLOP rate * element bytes / link rate: 3,600 for
float32 at 50 TFLOP/s and 55 GB/s.
Source: Utah CS6235: tiling between grids.
"""

import contextlib
import ctypes
import math
import threading
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue
from typing import Any, NamedTuple

import numpy as np

from gpukernels.kernel import KernelError, ToolMissing

WHO = "matmul/between_grids"
STEP = 128  # tiles are multiples of this, or the whole extent: the rungs' own tiles divide it
EDGE_MAX = 1 << 20  # a row of a tile must fit in a chunk
DEPTH_BYTES = 16 << 10  # the longest row of a panel of A: deeper ones delay the first product
BAND_ELEMENTS = 1 << 23  # of C: enough of them to fill a GPU, few enough that a tile has several bands
BANDS_MAX = 8
WORKSPACE_BYTES = 32 << 20  # what cuBLAS is given
MEMORY_PER_LINK = 64  # how many times faster the GPU's memory is than the link, roughly
STEP_BYTES = 4 << 20  # what the link carries while the host prepares a product
CHUNK_BYTES = 8 << 20  # pinned memory takes long to get: few and small pieces of it, that still fill the link
CHUNKS = 8  # each way: one for each worker, which carries a piece from end to end
TYPES = ("float32", "float64", "float16->float32", "bfloat16->float32")
Bits = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Figures:
    """What one call did. Seconds of a direction are those in which it was busy, by events on the GPU."""

    seconds: float
    upload_bytes: int
    upload_seconds: float
    compute_seconds: float
    download_bytes: int
    download_seconds: float

    @property
    def hidden_share(self) -> float:
        """The part of the copies' time that lay under something else, from 0 to 1."""
        copies = self.upload_seconds + self.download_seconds
        return min(max((copies + self.compute_seconds - self.seconds) / copies, 0.0), 1.0) if copies else 1.0


# --- the plan: sizes only, no GPU ----------------------------------------------------------------------------------


def _ceil(extent: int, step: int) -> int:
    return -(-extent // step)


def _part(extent: int, parts: int) -> int:
    """The size of `parts` equal parts of an extent, rounded up to a multiple of STEP."""
    return min(extent, _ceil(_ceil(extent, parts), STEP) * STEP)


def _aligned(size: int) -> int:
    return _ceil(size, 256) * 256


@dataclass(frozen=True)
class Plan:
    """The sizes of tiles and panels, in elements, and what of device memory they take."""

    M: int
    N: int
    K: int
    in_itemsize: int
    out_itemsize: int
    scratch: bool  # whether partial products are made apart and added, else the inner product adds them itself
    tile_m: int
    tile_n: int
    tile_k: int
    slots: int  # panels of A on the GPU, and as many of B

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles along M and N, panels along K."""
        return _ceil(self.M, self.tile_m), _ceil(self.N, self.tile_n), _ceil(self.K, self.tile_k)

    @property
    def tiles(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def band(self) -> int:
        """Rows of one band of a C tile."""
        return _part(self.tile_m, min(max(self.tile_m * self.tile_n // BAND_ELEMENTS, 1), BANDS_MAX))

    @property
    def buffers(self) -> dict[str, tuple[int, int]]:
        """Name -> how many and how many bytes each: all that is allocated on the GPU."""
        spare = self.band * self.tile_n * self.out_itemsize if self.scratch else WORKSPACE_BYTES
        return {
            "a": (self.slots, _aligned(self.tile_m * self.tile_k * self.in_itemsize)),
            "b": (self.slots, _aligned(self.tile_k * self.tile_n * self.in_itemsize)),
            "c": (min(self.tiles, 2), _aligned(self.tile_m * self.tile_n * self.out_itemsize)),
            "spare": (1, _aligned(spare)),
        }

    @property
    def device_bytes(self) -> int:
        return sum(count * size for count, size in self.buffers.values())

    @property
    def cost(self) -> float:
        """The bytes over the link, the panels read again for every tile; those of C read and written again for every
        panel, at the GPU's own rate; the first panels, which nothing hides; and what a product costs the host."""
        rows, columns, depth = self.grid
        panels = self.K * (columns * self.M + rows * self.N) + self.tile_k * (self.tile_m + self.tile_n)
        again = 2 * self.M * self.N * (depth - 1) / MEMORY_PER_LINK
        return self.in_itemsize * panels + self.out_itemsize * again + STEP_BYTES * self.tiles * depth


def plan(M: int, N: int, K: int, in_itemsize: int, out_itemsize: int, limit_bytes: int, scratch: bool) -> Plan:
    """The cheapest sizes by Plan.cost that fit in limit_bytes of device memory; every extent at least 1.

    Raises: KernelError where not even the smallest tiles fit, with the least that would do.
    """

    def candidate(rows: int, columns: int, depth: int) -> Plan:
        tile = _part(M, rows), _part(N, columns), _part(K, _ceil(K, depth))
        one = tile == (M, N, K)
        return Plan(M, N, K, in_itemsize, out_itemsize, scratch, *tile, slots=1 if one else 2)

    def fits(found: Plan) -> bool:
        return found.device_bytes <= limit_bytes

    least, most = ((_ceil(M, edge), _ceil(N, edge)) for edge in (EDGE_MAX, STEP))
    depths = [DEPTH_BYTES // in_itemsize]
    while depths[-1] > STEP:
        depths.append(depths[-1] // 2)
    corners = [candidate(p, q, depth) for p in (least[0], most[0]) for q in (least[1], most[1]) for depth in depths]
    if not any(map(fits, corners)):
        needed = min(found.device_bytes for found in corners)
        raise KernelError(
            f"{WHO}: limit_bytes = {limit_bytes} is too small for {M} x {K} by {K} x {N}; the smallest tiles need "
            f"{needed} bytes"
        )

    def order(found: Plan) -> tuple[float, int]:
        return found.cost, -min(found.tile_m, found.tile_n)

    def fewest(p: int | None, depth: int) -> int:
        """The fewest columns of tiles beside p rows that fit, or rows beside the most columns: more take less."""
        if p is None:
            return least[0] + bisect_left(range(*ends[0]), True, key=lambda p: fits(candidate(p, most[1], depth)))
        return least[1] + bisect_left(range(*ends[1]), True, key=lambda q: fits(candidate(p, q, depth)))

    ends = tuple(zip(least, most, strict=True))
    best = min(filter(fits, corners), key=order)
    for depth in depths:
        p = fewest(None, depth)
        while p <= most[0] and in_itemsize * K * (least[1] * M + p * N) <= best.cost:  # more rows read B more often
            found = candidate(p, fewest(p, depth), depth)
            best = min(best, found, key=order) if fits(found) else best
            p = max(p + 1, p * 21 // 20)
    # What is left holds more panels: as many as K has keep a whole row of A's and column of B's panels on the GPU.
    useful = best.grid[2] if best.tiles > 1 else min(best.grid[2], 3)
    panels = best.buffers["a"][1] + best.buffers["b"][1]
    slots = min(best.slots + (limit_bytes - best.device_bytes) // panels, max(useful, best.slots))
    sizes = best.tile_m, best.tile_n, best.tile_k
    return Plan(M, N, K, in_itemsize, out_itemsize, scratch, *sizes, slots=slots)


class Place(NamedTuple):
    """Where a panel lies, and whether it must be uploaded there first."""

    slot: int
    load: bool


class Step(NamedTuple):
    """One product: C[rows, columns] (+)= A[rows, depth] B[depth, columns]."""

    tile: int
    rows: slice
    columns: slice
    depth: slice
    first: bool
    last: bool
    a: Place
    b: Place

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K of the product."""
        m, n, k = (int(cut.stop - cut.start) for cut in (self.rows, self.columns, self.depth))
        return m, n, k


def steps(plan: Plan) -> Iterator[Step]:
    """The products in serpentine order; a panel takes the place of the one that was last used the longest ago."""
    slots_a: OrderedDict[object, int] = OrderedDict()
    slots_b: OrderedDict[object, int] = OrderedDict()

    def place(slots: OrderedDict[object, int], panel: object) -> Place:
        load = panel not in slots
        if load:
            slots[panel] = len(slots) if len(slots) < plan.slots else slots.popitem(last=False)[1]
        slots.move_to_end(panel)
        return Place(slots[panel], load)

    def cut(at: int, size: int, extent: int) -> slice:
        return slice(at * size, min((at + 1) * size, extent))

    _, columns, depth = plan.grid
    for tile in range(plan.tiles):
        i, j = divmod(tile, columns)
        j = columns - 1 - j if i % 2 else j
        for count in range(depth):
            k = depth - 1 - count if tile % 2 else count
            yield Step(
                tile,
                cut(i, plan.tile_m, plan.M),
                cut(j, plan.tile_n, plan.N),
                cut(k, plan.tile_k, plan.K),
                count == 0,
                count == depth - 1,
                place(slots_a, (i, k)),
                place(slots_b, (k, j)),
            )


# --- the inner product ---------------------------------------------------------------------------------------------

Product = Callable[[Any, Any, Any, bool, int], None]  # a, b, c, whether to add to c, the address of the spare memory


def _load(inner: str, type: str) -> Any:
    """The rung that multiplies the panels. Raises: LadderError where there is none; KernelError for a CPU's."""
    import gpukernels

    found = gpukernels.rung("matmul", inner)
    if found.device != "gpu" or getattr(found, "operands", "device") != "device":
        raise KernelError(f"{WHO}: inner = {inner!r} must be a rung on arrays of the GPU, such as tiled_32")
    return gpukernels.load("matmul", inner, type)


def _product(inner: str, type: str) -> Product:
    if inner == "cublas":
        import gpukernels
        from gpukernels.kernel import python_function

        rung = gpukernels.rung("matmul", inner)
        multiply = python_function(rung, rung.source)  # the rung's own module, and so its one handle

        def by_cublas(a: Any, b: Any, c: Any, add: bool, spare: int) -> None:
            multiply(a, b, c, accumulate=add, workspace=(spare, WORKSPACE_BYTES))

        return by_cublas

    kernel = _load(inner, type)
    import cupy

    def by_rung(a: Any, b: Any, c: Any, add: bool, spare: int) -> None:
        if add:
            part = _array(spare, c.shape, c.dtype)
            kernel(a, b, out=part)
            cupy.add(c, part, out=c)
        else:
            kernel(a, b, out=c)

    return by_rung


# --- the pipeline --------------------------------------------------------------------------------------------------


def _array(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """A CuPy array on memory that the pipeline owns."""
    import cupy

    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(address, size, None, cupy.cuda.runtime.getDevice())
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


class _Timed:
    """Work on one stream between two events."""

    def __init__(self) -> None:
        import cupy

        self._elapsed = cupy.cuda.get_elapsed_time
        self.began, self.ended = cupy.cuda.Event(block=True), cupy.cuda.Event(block=True)

    def seconds(self) -> float:
        self.ended.synchronize()
        return float(self._elapsed(self.began, self.ended)) / 1e3


class _Chunk(_Timed):
    """A piece of pinned memory and its last transfer."""

    def __init__(self, address: int, size: int) -> None:
        super().__init__()
        self.address = address
        self._bytes: Bits = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self.busy = False  # whether a transfer has not been waited for

    def view(self, like: Bits) -> Bits:
        found: Bits = self._bytes[: like.nbytes].view(like.dtype).reshape(like.shape)
        return found


class _Panel:
    """A buffer on the GPU for a panel of A or B, and the events that pass it between upload and compute."""

    def __init__(self, address: int) -> None:
        import cupy

        self.address = address
        self.ready, self.used = (cupy.cuda.Event(disable_timing=True) for _ in range(2))


class _Pipeline:
    """Owns streams, threads and memory from `with` to its end, however that comes."""

    def __init__(self, plan: Plan, product: Product, a: Any, b: Any, out: Any) -> None:
        import cupy

        self.cupy, self.runtime = cupy, cupy.cuda.runtime
        self.plan, self.product = plan, product
        self.in_dtype, self.out_dtype = a.dtype, out.dtype
        # Staged as bits: NumPy copies its own types without holding the interpreter, bfloat16 not.
        self.a, self.b, self.out = (x.view(np.ndarray).view(f"u{x.itemsize}") for x in (a, b, out))
        self.device = self.runtime.getDevice()
        self.stopped = threading.Event()
        self.one_at_a_time = threading.Lock()
        self.timed: deque[list[_Timed]] = deque()  # of each tile, its products
        self.downloads: deque[Future[None]] = deque()
        self.upload_bytes = self.download_bytes = self.done = 0
        self.upload_seconds = self.compute_seconds = self.download_seconds = 0.0

    def __enter__(self) -> "_Pipeline":
        with contextlib.ExitStack() as stack:  # undone from the last to the first, also where this is interrupted
            self._allocate(stack)
            self.upload, self.compute, self.download = (self.cupy.cuda.Stream(non_blocking=True) for _ in range(3))
            for stream in (self.upload, self.compute, self.download):
                stack.callback(stream.synchronize)
            self.stagers = ThreadPoolExecutor(CHUNKS, "staging")
            stack.callback(self.stagers.shutdown)
            self.landers = ThreadPoolExecutor(CHUNKS, "landing")
            stack.callback(self.landers.shutdown)
            self.downloader = ThreadPoolExecutor(1, "download")
            stack.callback(self.downloader.shutdown, cancel_futures=True)
            stack.callback(self.stopped.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        """Give everything back. Ctrl-C, once more, waits: while a worker copies, its memory cannot be freed."""
        self.stopped.set()
        again = None
        for pool in (self.downloader, self.stagers, self.landers):
            while True:
                try:
                    pool.shutdown(cancel_futures=True)
                    break
                except KeyboardInterrupt as interrupt:
                    again = interrupt
        self._stack.close()
        if again:
            raise again

    def _allocate(self, stack: contextlib.ExitStack) -> None:
        wanted = self.plan.device_bytes
        if self.runtime.memGetInfo()[0] < wanted:
            self.cupy.get_default_memory_pool().free_all_blocks()
        try:
            address = self.runtime.malloc(wanted)
        except self.runtime.CUDARuntimeError as error:
            free = self.runtime.memGetInfo()[0]
            raise KernelError(
                f"{WHO}: {wanted} bytes of device memory cannot be had ({error}), {free} are free; lower limit_bytes"
            ) from error
        stack.callback(self.runtime.free, address)
        buffers: dict[str, list[int]] = {}
        for name, (count, size) in self.plan.buffers.items():
            buffers[name] = [address + at * size for at in range(count)]
            address += count * size
        self.panels_a, self.panels_b = ([_Panel(at) for at in buffers[name]] for name in "ab")
        self.tiles, (self.spare,) = buffers["c"], buffers["spare"]
        self.chunk_bytes = min(CHUNK_BYTES, max(self.plan.buffers[name][1] for name in "abc"))
        self.uploads, self.landings = (self._chunks(stack) for _ in range(2))

    def _chunks(self, stack: contextlib.ExitStack) -> "Queue[_Chunk]":
        found: Queue[_Chunk] = Queue()
        for _ in range(CHUNKS):
            try:
                address = self.runtime.hostAlloc(self.chunk_bytes, 0)
            except self.runtime.CUDARuntimeError as error:
                wanted = 2 * CHUNKS * self.chunk_bytes
                raise KernelError(
                    f"{WHO}: {wanted} bytes of pinned host memory cannot be had ({error}); free some"
                ) from error
            stack.callback(self.runtime.freeHost, address)
            found.put(_Chunk(address, self.chunk_bytes))
        return found

    def _wait(self, chunk: _Chunk) -> float:
        """Wait for the chunk's transfer and give its seconds; 0 where it has been waited for."""
        seconds = chunk.seconds() if chunk.busy else 0.0
        chunk.busy = False
        return seconds

    def _panel(self, panels: list[_Panel], place: Place, source: Bits) -> _Panel:
        """The panel in its place, its upload enqueued after the products that read what was there before."""
        panel = panels[place.slot]
        if not place.load:
            return panel
        self.upload.wait_event(panel.used)
        width = source.shape[1] * source.itemsize
        rows = self.chunk_bytes // width

        def stage(first: int) -> tuple[int, float]:
            """A chunk from end to end, by one worker: the others are at theirs meanwhile."""
            piece = source[first : first + rows]
            chunk = self.uploads.get()
            try:
                with self.cupy.cuda.Device(self.device):
                    seconds = self._wait(chunk)
                    np.copyto(chunk.view(piece), piece)
                    with self.one_at_a_time:  # so that nothing lies between a transfer and its events
                        self._transfer(chunk, panel.address + first * width, piece.nbytes, self.upload)
            finally:
                self.uploads.put(chunk)
            return piece.nbytes, seconds

        for size, seconds in self.stagers.map(stage, range(0, len(source), rows)):
            self.upload_bytes += size
            self.upload_seconds += seconds
        panel.ready.record(self.upload)
        return panel

    def _transfer(self, chunk: _Chunk, address: int, size: int, stream: Any) -> None:
        """Enqueue the copy of a chunk to device memory, or from it on the download stream."""
        ends, kind = (address, chunk.address), self.runtime.memcpyHostToDevice
        if stream is self.download:
            ends, kind = (chunk.address, address), self.runtime.memcpyDeviceToHost
        chunk.began.record(stream)
        self.runtime.memcpyAsync(*ends, size, kind, stream.ptr)
        chunk.ended.record(stream)
        chunk.busy = True

    def _multiply(self, step: Step, panel_a: _Panel, panel_b: _Panel, tile: int) -> list[tuple[int, int, _Timed]]:
        """Enqueue the product of two panels; the bands that it is made in: first row, end, when."""
        (m, n, k), a_size, c_size = step.shape, self.in_dtype.itemsize, self.out_dtype.itemsize
        b = _array(panel_b.address, (k, n), self.in_dtype)
        height = self.plan.band if step.last or (self.plan.scratch and not step.first) else m
        bands = []
        with self.compute:
            self.compute.wait_event(panel_a.ready)
            self.compute.wait_event(panel_b.ready)
            for row in range(0, m, height):
                rows = min(height, m - row)
                a = _array(panel_a.address + row * k * a_size, (rows, k), self.in_dtype)
                c = _array(tile + row * n * c_size, (rows, n), self.out_dtype)
                timed = _Timed()
                timed.began.record(self.compute)
                self.product(a, b, c, not step.first, self.spare)
                timed.ended.record(self.compute)
                bands.append((row, row + rows, timed))
            panel_a.used.record(self.compute)
            panel_b.used.record(self.compute)
        return bands

    def _receive(self, tile: int, target: Bits, bands: list[tuple[int, int, _Timed]]) -> None:
        """Download a tile of C band by band, in the downloader's thread: a piece lands while others are under way."""
        width = target.shape[1] * target.itemsize
        rows = self.chunk_bytes // width

        def land(first: int, end: int, made: _Timed) -> tuple[int, float]:
            """A piece from end to end, by one worker."""
            chunk = self.landings.get()
            try:
                if self.stopped.is_set():
                    return 0, 0.0
                piece = target[first:end]
                with self.cupy.cuda.Device(self.device):
                    with self.one_at_a_time:
                        self.download.wait_event(made.ended)
                        self._transfer(chunk, tile + first * width, piece.nbytes, self.download)
                    seconds = self._wait(chunk)
                np.copyto(piece, chunk.view(piece))
                return piece.nbytes, seconds
            finally:
                self.landings.put(chunk)

        pieces = [(row, min(row + rows, end), made) for first, end, made in bands for row in range(first, end, rows)]
        for size, seconds in self.landers.map(land, *zip(*pieces, strict=True)):
            self.download_bytes += size
            self.download_seconds += seconds

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """All products; this thread uploads and is ahead of the GPU by as much as the slots hold."""
        timed: list[_Timed] = []
        tile = 0
        for step in steps(self.plan):
            panel_a = self._panel(self.panels_a, step.a, self.a[step.rows, step.depth])
            panel_b = self._panel(self.panels_b, step.b, self.b[step.depth, step.columns])
            if step.first:
                if len(self.downloads) == len(self.tiles):
                    self._finish(progress)
                tile, timed = self.tiles[step.tile % len(self.tiles)], []
            bands = self._multiply(step, panel_a, panel_b, tile)
            timed += [band[2] for band in bands]
            if step.last:
                target = self.out[step.rows, step.columns]
                self.timed.append(timed)
                self.downloads.append(self.downloader.submit(self._receive, tile, target, bands))
        while self.downloads:
            self._finish(progress)
        self.upload_seconds += sum(self._wait(self.uploads.get()) for _ in range(CHUNKS))

    def _finish(self, progress: Callable[[int, int], None] | None) -> None:
        """Wait until the oldest tile under way is in out."""
        self.downloads.popleft().result()
        self.compute_seconds += sum(timed.seconds() for timed in self.timed.popleft())
        self.done += 1
        if progress:
            progress(self.done, self.plan.tiles)


def _type(a: Any, b: Any, out: Any) -> str:
    """The rungs' name for the operands' type. Raises: KernelError where an operand does not fit."""
    for name, x in (("a", a), ("b", b), ("out", out)):
        if not isinstance(x, np.ndarray):
            raise KernelError(f"{WHO}: {name} must be a numpy.ndarray, got {type(x).__module__}.{type(x).__name__}")
        if x.ndim != 2 or not x.flags.c_contiguous:
            raise KernelError(
                f"{WHO}: {name} must be C-contiguous in 2 dimensions, got shape {x.shape}, strides {x.strides}; copy it"
            )
    wanted = (len(a), b.shape[1])
    if a.shape[1] != len(b) or out.shape != wanted:
        raise KernelError(f"{WHO}: a {a.shape} and b {b.shape} must be M x K and K x N, out {out.shape} M x N")
    found = a.dtype.name if a.dtype == out.dtype else f"{a.dtype.name}->{out.dtype.name}"
    if a.dtype != b.dtype or found not in TYPES or not all(x.dtype.isnative for x in (a, b, out)):
        raise KernelError(f"{WHO}: no product {a.dtype} {b.dtype}->{out.dtype}; it has {', '.join(TYPES)}")
    if not out.flags.writeable:
        raise KernelError(f"{WHO}: out is read-only; pass an array that can be written")
    if np.may_share_memory(a, out) or np.may_share_memory(b, out):
        raise KernelError(f"{WHO}: out overlaps an input; pass other memory")
    return found


def _available_bytes() -> int:
    """Device memory that is free, or that CuPy's pool holds and does not use. Raises: ToolMissing without a GPU."""
    try:
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes())
    except ImportError as error:
        raise ToolMissing(f"{WHO}: needs CuPy, which cannot be imported: {error}") from error
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ToolMissing(f"{WHO}: needs a CUDA GPU and its driver here: {error}") from None


def matmul_between_grids(
    a: Any,
    b: Any,
    out: Any,
    *,
    limit_bytes: int | None = None,
    inner: str = "cublas",
    progress: Callable[[int, int], None] | None = None,
    report: Callable[[Figures], None] | None = None,
) -> None:
    """out (M x N) = a (M x K) b (K x N): C-contiguous NumPy arrays of host memory, or numpy.memmap, of any size.

    float32, float64, or float16 or bfloat16 inputs with a float32 out, which is overwritten and complete on return.
    `limit_bytes`: the most device memory to take; 90 % of what is free where it is None. `inner`: the matmul rung that
    multiplies the panels on the current GPU. `progress(done, total)` is called after each tile of C that is complete in
    out. `report` is given the call's Figures at the end. An exception, also one from `progress`, or Ctrl-C ends the
    call once the work under way is done; all memory and threads are given back, and out is incomplete.

    Raises: KernelError where an operand does not fit, or limit_bytes is too small, or memory cannot be had;
    LadderError for an inner rung or type of it that does not exist; ToolMissing without a GPU.
    """
    began = time.perf_counter()
    type = _type(a, b, out)
    (M, K), N = a.shape, b.shape[1]
    product = _product(inner, type)
    if 0 in (M, N, K):
        out.fill(0)  # a sum over nothing
        return
    available = _available_bytes()
    if limit_bytes is not None and limit_bytes > available:
        raise KernelError(f"{WHO}: limit_bytes = {limit_bytes} must be at most what is free, {available} bytes")
    limit = available * 9 // 10 if limit_bytes is None else limit_bytes
    sizes = plan(M, N, K, a.itemsize, out.itemsize, limit, inner != "cublas")
    with _Pipeline(sizes, product, a, b, out) as pipeline:
        pipeline.run(progress)
    if report:
        report(
            Figures(
                time.perf_counter() - began,
                pipeline.upload_bytes,
                pipeline.upload_seconds,
                pipeline.compute_seconds,
                pipeline.download_bytes,
                pipeline.download_seconds,
            )
        )
