"""A process of a rung of several GPUs, which holds a part of each array on its GPU. It answers the requests that
ranks.py sends: "id", "join", "prepare", "sample" and "free" are the methods of Rank."""

import json
import os
import queue
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from kernelwatch.extras.several.device import Several, part
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.package import Absent, NotHere
from kernelwatch.plan.problem import Array, Operand
from kernelwatch.plan.project import import_package, load_from
from kernelwatch.system.errors import ToolMissing
from kernelwatch.timing import l2
from kernelwatch.timing.check import GUARD, GUARD_BYTES, WrongOutput, poisoned, still_poisoned
from kernelwatch.timing.launch import current
from kernelwatch.timing.nvml import Nvml
from kernelwatch.timing.replay import FILLS, Replayer, clock_mhz


class _Parts:
    """The parts of an input, each made anew on this rank's GPU when it is asked for."""

    def __init__(self, rank: "Rank", at: int, bits: int) -> None:
        self._rank, self._at, self._bits = rank, at, bits

    def __getitem__(self, owner: int) -> Array:
        return self._rank.input(self._at, owner, self._bits)


class Rank:
    """One rank of a rung, and its GPU. `say`: called with how far it is with a request."""

    def __init__(self, say: Any) -> None:
        self.say = say
        self.not_here: tuple[type[Exception], ...] = (Absent, NotHere, ToolMissing)

    def id(self) -> str:
        """What the ranks find each other by."""
        return _nccl().get_unique_id().hex()  # type: ignore[no-any-return]

    def join(self, project: str, tree: str, rank: int, id: str, ranks: int) -> None:
        """Take the GPU of this number, and meet the other ranks."""
        import cupy

        self.cupy = cupy
        self.rank = rank
        cupy.cuda.Device(rank).use()
        self.project = load_from(Path(project))
        self.package = import_package(self.project, tree)
        self.not_here += (*self.package.not_here, cupy.cuda.memory.OutOfMemoryError)
        self.on = Replayer(Nvml(cupy.cuda.Device().pci_bus_id))
        self.say("loaded the package")
        self.communicator = _nccl().NcclCommunicator(ranks, bytes.fromhex(id), rank)

    def prepare(self, cell: dict[str, Any], seed: int, ranks: int) -> dict[str, Any]:
        """Make this rank's part of the operands, run the cell once, check it, and fill the inputs with random numbers
        of all bits. `ranks`: how many of the ranks share the work. Raises: WrongOutput, NotHere, Absent."""
        self.cell, self.seed, self.ranks = Cell.from_json(cell), seed, ranks
        problem = self.project.ops[self.cell.op]
        (self.divided,) = (device for device in problem.devices if isinstance(device, Several))
        self.operands = problem.computation.operands(self.cell.shape, self.cell.type)
        options = {"communicator": self.communicator} if ranks > 1 else {}
        kernel = self.package.load(self.cell.op, self.cell.rung, self.cell.type)
        with current(self.on.stream):
            inputs = [self._empty(at, self.rank) for at in range(len(self.operands.inputs))]
            like = self._part(len(inputs), self.rank)
            memory = self.cupy.empty(like.nbytes + GUARD_BYTES, self.cupy.uint8)
            out = memory[: like.nbytes].view(like.dtype).reshape(like.shape)
            self.launch: Any = kernel.bind(*inputs, out=out, **self.operands.scalars, **options)
            bits = self.divided.exact_bits(self.cell.type)
            for at, array in enumerate(inputs):
                self._fill(array, at, self.rank, bits[at])
            key = secrets.randbits(32), self.rank
            poisoned(out, key)
            self._set(memory[like.nbytes :], GUARD)
            self.on.stream.synchronize()
            self.say("bound the cell")
            start = time.monotonic()
            self.launch()
            self.say("enqueued the first launch")
            self.on.stream.synchronize()
            seconds = time.monotonic() - start
            self._check(out, memory[like.nbytes :], bits, key)
            for at, array in enumerate(inputs):
                self._fill(array, at, self.rank)
            self.on.stream.synchronize()
        return {"seconds": seconds, "identity": self.launch.identity}

    def sample(self, at: float, count: int) -> dict[str, Any]:
        """Run the cell `count` times from the moment `at` on, by the clock that all processes of this machine share. It
        begins when the host enqueues it, since the GPU is idle then, and takes as long as the GPU's events say."""
        stamp, stamps = self.on.kernels["stamp"], self.on.stamps
        began, ended = (self.cupy.cuda.Event() for _ in range(2))
        with current(self.on.stream):
            l2.reset_persisting()
            while (start := time.monotonic()) < at:
                pass
            began.record(self.on.stream)
            stamp((1,), (1,), (stamps[0],))
            for _ in range(count):
                self.launch()
            stamp((1,), (1,), (stamps[1],))
            ended.record(self.on.stream)
            self.say(f"enqueued {count} launches")
            state = self.on.nvml.state()
            self.on.stream.synchronize()
            end = start + float(self.cupy.cuda.get_elapsed_time(began, ended)) / 1000
            clock = clock_mhz(stamps.get(stream=self.on.stream))
        return {"start": start, "end": end, "clock_mhz": clock, "state": state}

    def free(self) -> None:
        """Give back the memory of the cell."""
        self.launch = None
        self.cupy.get_default_memory_pool().free_all_blocks()

    # --- arrays --------------------------------------------------------------------------------------------------

    def _part(self, at: int, owner: int) -> Operand:
        """A rank's part of an array; the inputs come first."""
        array, axis = self.operands.arrays[at], self.divided.axes[at]
        extents = list(array.shape)
        extents[axis] = len(part(extents[axis], owner, self.ranks))
        return Operand(tuple(extents), array.dtype)

    def _empty(self, at: int, owner: int) -> Array:
        like = self._part(at, owner)
        return self.cupy.empty(like.shape, like.dtype)

    def input(self, at: int, owner: int, bits: int) -> Array:
        """A rank's part of an input, as it was filled for the check."""
        array = self._empty(at, owner)
        self._fill(array, at, owner, bits)
        return array

    def _fill(self, array: Array, at: int, owner: int, bits: int = 0) -> None:
        """Fill a rank's part of an input with numbers in [-1, 1), of so many bits, or of all that its type has."""
        name = FILLS.get(array.dtype.name, "fill") + ("_short" if bits else "")
        seed = np.uint64((self.seed << 32) + (at << 16) + owner)
        arguments = (array, np.int64(array.size), seed, *([np.int32(bits)] if bits else []))
        self.on.kernels[name]((4096,), (256,), arguments)

    def _set(self, array: Array, value: int) -> None:
        self.cupy.cuda.runtime.memsetAsync(array.data.ptr, value, array.nbytes, self.on.stream.ptr)

    def _check(self, out: Array, guard: Array, bits: tuple[int, ...], key: tuple[int, ...]) -> None:
        """`key`: of the poison. Raises: WrongOutput."""
        parts = [_Parts(self, at, count) for at, count in enumerate(bits)]
        random = np.random.default_rng([self.seed, self.rank])
        with np.errstate(invalid="ignore"):  # the poison, on the stand-in of a GPU
            wrong = self.divided.wrong(parts, out, self.rank, self.ranks, random, self.cupy)
        count, beyond = int(wrong.sum()), int((guard != GUARD).sum())
        where = f"{self.cell.name} at {self.cell.shape} {self.cell.type}"
        if count:
            kept = int(still_poisoned(out, key, self.cupy).sum())
            first = int(wrong.argmax())
            raise WrongOutput(
                f"{where}: {count} of {len(out)} rows of its part wrong, the first is row {first}; "
                f"{kept} of {out.size} elements never written"
            )
        if beyond:
            raise WrongOutput(f"{where} wrote {beyond} of the {GUARD_BYTES} bytes after its output")


def _nccl() -> Any:
    """CuPy's NCCL. Raises: NotHere."""
    from cupy.cuda import nccl

    if not nccl.available:
        raise NotHere("it needs NCCL (pip install nvidia-nccl-cu13, or -cu12 with CUDA 12), which CuPy does not find")
    return nccl


def _requests() -> "queue.SimpleQueue[str]":
    """The lines of stdin. The process leaves when stdin closes, whatever it waits for: a parent that was killed cannot
    leave a process behind that holds a GPU."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with os.fdopen(os.dup(0)) as stdin:
            for line in stdin:
                lines.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return lines


def main() -> None:
    """Answer requests until stdin closes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output to stdout, even a C library's, goes to stderr

    def reply(**message: object) -> None:
        replies.write(json.dumps(message, allow_nan=False) + "\n")
        replies.flush()

    rank, requests = Rank(lambda text: reply(at=text)), _requests()
    while True:
        request = json.loads(requests.get())
        try:
            reply(result=getattr(rank, request.pop("do"))(**request))
        except WrongOutput as error:
            reply(error=str(error), kind="WrongOutput")
        except Exception as error:
            here = isinstance(error, rank.not_here)
            reply(error=str(error) if here else f"{type(error).__name__}: {error}", kind="NotHere" if here else "")
