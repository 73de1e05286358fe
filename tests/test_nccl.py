"""matmul/nccl: the plan of its transfers, and the order of its work on streams that run in any order that they may."""

import itertools
import os
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpukernels
from gpukernels import KernelError
from gpukernels.compiler import in_and_out
from tests.fake_gpu import Memory
from tests.gate import cases
from tests.repositories import module_of

SOURCE = Path(gpukernels.__file__).parent / "matmul" / "nccl.py"
module = module_of(SOURCE)

# --- the plan ------------------------------------------------------------------------------------------------------

SPLITS = list(itertools.product((0, 1, 3, 7, 100, 8191), (1, 2, 3, 4, 5)))


@pytest.mark.parametrize(("rows", "ranks"), SPLITS)
def test_each_process_receives_once_what_it_lacks(rows: int, ranks: int) -> None:
    for rank in range(ranks):
        plan = list(module.exchanges(rows, rank, ranks))
        here = [row for each in plan for row in each.received] + list(module.part(rows, rank, ranks))
        assert sorted(here) == list(range(rows))
        assert all(each.received == module.part(rows, each.source, ranks) for each in plan)


@pytest.mark.parametrize(("rows", "ranks"), SPLITS)
def test_what_one_process_sends_another_awaits_at_the_same_place(rows: int, ranks: int) -> None:
    plans = [list(module.exchanges(rows, rank, ranks)) for rank in range(ranks)]
    assert {len(plan) for plan in plans} == {ranks - 1}
    for rank, plan in enumerate(plans):
        for at, each in enumerate(plan):
            assert each.target != rank
            assert plans[each.target][at].source == rank


# --- the launch ----------------------------------------------------------------------------------------------------


@dataclass
class Stream:
    """Work in order; `machine` runs it, any stream's next at a time."""

    machine: "Machine"
    ptr: int
    work: deque[Callable[[], bool]] = field(default_factory=deque)  # each says whether it could run

    def wait_event(self, event: "Event") -> None:
        wanted = event.recorded
        self.work.append(lambda: event.reached >= wanted)


@dataclass
class Event:
    recorded: int = 0
    reached: int = 0

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        now = self.recorded

        def reach() -> bool:
            self.reached = now
            return True

        stream.work.append(reach)


class Machine:
    """Several GPUs, and CuPy and NCCL on them. `rank`: the process that is running."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.ranks = ranks
        self.rank = 0
        self.streams: list[Stream] = []
        self.posted: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)  # (from, to): address, bytes
        self.taken: dict[tuple[int, int], int] = defaultdict(int)
        self.open: list[tuple[str, int, int, int, int]] | None = None
        self.moved = False  # whether any work has gone on
        self.current = [self.stream() for _ in range(ranks)]

    def stream(self, **_: Any) -> Stream:
        made = Stream(self, len(self.streams))
        self.streams.append(made)
        return made

    def end_group(self) -> None:
        """NCCL's: all transfers of the group are one piece of work, which waits for the other side of each."""
        transfers, self.open = self.open, None
        if not transfers:
            return
        mine = self.rank
        sends = [(peer, address, size) for kind, address, size, peer, _ in transfers if kind == "send"]
        receives = [(peer, address, size) for kind, address, size, peer, _ in transfers if kind == "recv"]
        state: dict[str, Any] = {}

        def run() -> bool:
            if "wanted" not in state:
                for peer, address, size in sends:
                    self.posted[mine, peer].append((address, size))
                state["wanted"] = {peer: self.taken[mine, peer] + len(self.posted[mine, peer]) for peer, *_ in sends}
                state["left"], self.moved = list(receives), True
            for peer, address, size in list(state["left"]):
                if self.posted[peer, mine]:
                    source, sent = self.posted[peer, mine].popleft()
                    assert sent == size
                    bytes_at(address, size)[...] = bytes_at(source, size)  # read as late as NCCL may
                    self.taken[peer, mine] += 1
                    self.moved = True
                    state["left"].remove((peer, address, size))
            return not state["left"] and all(self.taken[mine, peer] >= many for peer, many in state["wanted"].items())

        self.streams[transfers[0][4]].work.append(run)

    def run(self) -> None:
        """Run all work, in an order that the streams and events allow."""
        while waiting := [stream for stream in self.streams if stream.work]:
            self.random.shuffle(waiting)
            self.moved = False
            for stream in waiting:
                if stream.work[0]():
                    stream.work.popleft()
                    self.moved = True
                    break
            assert self.moved, "the GPUs wait for each other"


@dataclass
class Communicator:
    machine: Machine
    rank: int

    def rank_id(self) -> int:
        return self.rank

    def size(self) -> int:
        return self.machine.ranks

    def send(self, address: int, count: int, _type: int, peer: int, stream: int) -> None:
        assert self.machine.open is not None
        self.machine.open.append(("send", address, count, peer, stream))

    def recv(self, address: int, count: int, _type: int, peer: int, stream: int) -> None:
        assert self.machine.open is not None
        self.machine.open.append(("recv", address, count, peer, stream))


def bytes_at(address: int, size: int) -> Any:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def memory(values: Any) -> Any:
    return np.array(values, order="C").view(Memory)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machine:
    made = Machine(*request.param)

    def start() -> None:
        made.open = []

    nccl = SimpleNamespace(groupStart=start, groupEnd=made.end_group, NCCL_UINT8=1)
    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(
        nccl=nccl,
        Stream=made.stream,
        Event=lambda **_: Event(),
        get_current_stream=lambda: made.current[made.rank],
    )
    cupy = ModuleType("cupy")
    vars(cupy).update(cuda=cuda, empty=lambda shape, dtype: memory(np.full(shape, np.nan, dtype)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)

    def multiply(a: Any, b: Any, out: Any) -> None:
        def run() -> bool:
            np.matmul(a, b, out=out)
            return True

        made.current[made.rank].work.append(run)

    monkeypatch.setattr(module, "python_function", lambda *_: multiply)
    return made


MACHINES = [(ranks, seed) for ranks in (1, 2, 3, 4) for seed in range(5)]


@pytest.mark.parametrize("machine", MACHINES, indirect=True)
@pytest.mark.parametrize("dims", [(13, 9, 5), (40, 8, 16), (2, 3, 4)])
def test_every_part_of_every_launch_is_right(machine: Machine, dims: tuple[int, int, int]) -> None:
    """Launches follow one another on each GPU, and A changes between them: what reads or writes too early is wrong."""
    M, N, K = dims
    rng = np.random.default_rng(M)
    b = rng.integers(-4, 5, (K, N)).astype(np.float32)
    old, new = (rng.integers(-4, 5, (M, K)).astype(np.float32) for _ in range(2))
    rows = [module.part(M, rank, machine.ranks) for rank in range(machine.ranks)]
    columns = [module.part(N, rank, machine.ranks) for rank in range(machine.ranks)]
    outs, firsts, alive = [], [], []
    for rank in range(machine.ranks):
        machine.rank = rank
        a = memory(old[rows[rank].start : rows[rank].stop])
        own = memory(b[:, columns[rank].start : columns[rank].stop])
        out = memory(np.full((M, len(columns[rank])), np.nan, np.float32))
        launch = module.matmul_nccl(a, own, out, communicator=Communicator(machine, rank))
        launch()
        first = np.empty_like(out)

        def between(a: Any = a, out: Any = out, first: Any = first, rank: int = rank) -> bool:
            first[...] = out
            out[...] = np.nan
            a[...] = new[rows[rank].start : rows[rank].stop]
            return True

        machine.current[rank].work.append(between)
        launch()
        alive.append((a, own, launch))
        outs.append(out)
        firsts.append(first)
    machine.run()
    np.testing.assert_array_equal(np.hstack(firsts), old @ b)
    np.testing.assert_array_equal(np.hstack(outs), new @ b)


@pytest.mark.parametrize("machine", [(2, 0)], indirect=True)
def test_transfers_are_enqueued_before_products(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is enqueued first would hold the GPU, and NCCL would wait for it."""
    order: list[str] = []
    monkeypatch.setattr(module, "python_function", lambda *_: lambda a, b, out: order.append(f"product of {len(a)}"))
    monkeypatch.setattr(Communicator, "send", lambda *_: order.append("send"))
    monkeypatch.setattr(Communicator, "recv", lambda *_: order.append("receive"))
    a, b, out = (memory(np.zeros(shape, np.float32)) for shape in ((4, 8), (8, 3), (8, 3)))
    module.matmul_nccl(a, b, out, communicator=Communicator(machine, 0))()
    assert order == ["send", "receive", "product of 4", "product of 4"]


@pytest.mark.parametrize("machine", [(2, 0)], indirect=True)
def test_a_sum_over_nothing_is_0(machine: Machine) -> None:
    a, b, out = memory(np.zeros((4, 0))), memory(np.zeros((0, 3))), memory(np.full((8, 3), np.nan))
    module.matmul_nccl(a, b, out, communicator=Communicator(machine, 1))()
    machine.run()
    assert (out == 0).all()


@pytest.mark.parametrize("machine", [(2, 0)], indirect=True)
@pytest.mark.parametrize(
    "shapes", [((3, 8), (8, 3), (8, 3)), ((4, 8), (7, 3), (8, 3)), ((4, 8), (8, 3), (8, 2)), ((4, 8), (8, 3), (6, 3))]
)
def test_parts_that_do_not_fit_are_refused(machine: Machine, shapes: tuple[tuple[int, int], ...]) -> None:
    parts = [memory(np.zeros(shape, np.float32)) for shape in shapes]
    with pytest.raises(KernelError, match="matmul/nccl: part 1 of 2 must be of "):
        module.matmul_nccl(*parts, communicator=Communicator(machine, 1))


def test_the_gate_does_not_bind_parts_on_one_gpu() -> None:
    """A launch needs a communicator, which a single process does not have: on a GPU the gate would fail."""
    assert not [case.id for case in cases() if case.values[0].operands == "several"]


# --- on GPUs -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.xdist_group("several")
@pytest.mark.parametrize("type", gpukernels.rung("matmul", "nccl").types)
def test_products_on_all_gpus(type: str) -> None:
    """Every element, at extents that no number of GPUs divides; a thread for each GPU."""
    import cupy

    ranks = int(cupy.cuda.runtime.getDeviceCount())
    if ranks < 2:
        pytest.skip(f"needs 2 GPUs, this machine has {ranks}")
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    from cupy.cuda import nccl

    communicators = nccl.NcclCommunicator.initAll(ranks)
    into, out_type = (np.dtype(name) for name in in_and_out(type))

    def part_of(rank: int, a: Any, b: Any) -> Any:
        with cupy.cuda.Device(rank), cupy.cuda.Stream(non_blocking=True) as stream:
            rows, columns = (module.part(extent, rank, ranks) for extent in (len(a), b.shape[1]))
            out = cupy.full((len(a), len(columns)), np.nan, out_type)
            mine = [cupy.array(array, order="C") for array in (a[list(rows)], b[:, list(columns)])]
            kernel: Any = gpukernels.load("matmul", "nccl", type)
            launch = kernel.bind(*mine, out=out, communicator=communicators[rank])
            for _ in range(3):
                launch()
            stream.synchronize()
            return out.get()

    rng = np.random.default_rng()
    for M, N, K in ((1031, 517, 773), (129, 2050, 64), (1, 5, 3), (7, 1, 1), (33, 9, 0), (2049, 4100, 1027)):
        a, b = (rng.integers(-8, 9, shape).astype(into) for shape in ((M, K), (K, N)))
        with ThreadPoolExecutor(ranks) as pool:
            parts = list(pool.map(part_of, range(ranks), [a] * ranks, [b] * ranks))
        np.testing.assert_array_equal(np.hstack(parts), a.astype(np.float64) @ b.astype(np.float64))
