"""Faults by name: `check(source, inputs)` runs a kernel and checks every access."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwatch.emulator.build import EmulatedKernel, RawFault, RawLaunch
from kernelwatch.emulator.sites import Traced
from kernelwatch.plan.package import CudaSource

KINDS = (
    "out of bounds",
    "index",
    "unwritten",
    "race",
    "divergent barrier",
    "divergent warp",
    "read-only",
    "misaligned",
)
ACCESSES = ("read", "write", "atomic")


@dataclass(frozen=True)
class Fault:
    """One fault of a kernel, the first of its kind on its line. `block` and `thread` are (x, y, z) as in CUDA.

    `kind`: out of bounds; index (past the extent of an array or of a row of it); unwritten (a read of shared memory
    that no thread of the block has written); race (accesses by two threads of a block with no barrier between them, at
    least one of them a write); divergent barrier; divergent warp (a __syncwarp, shuffle or ballot that a lane of its
    mask does not reach); read-only; misaligned (an address that is no multiple of what is read or written).
    """

    rung: str
    source: str
    line: int
    kind: str
    what: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.rung}: {self.source}:{self.line}: {self.what} in block {self.block} thread {self.thread}"


def _description(raw: RawFault, run: Traced, lines: dict[int, int]) -> str:
    name = run.names[raw.region] if raw.region >= 0 else "any array"
    access = f"{ACCESSES[raw.access]} of {raw.size} bytes" if raw.access >= 0 else ""
    kind = KINDS[raw.kind]
    if kind == "out of bounds":
        text = f"{access} {'before the start' if raw.index < 0 else 'past the end'} of {name}"
    elif kind == "index":
        text = f"index {raw.index} outside an array of {raw.extent}"
        if access and lines.get(raw.site) == raw.line:  # the access that follows is on the same line, so it is named
            text = f"{access} at {text} in {name}"
    elif kind == "unwritten":
        text = f"{access} of {name} that no thread of the block has written"
    elif kind == "race":
        other = f"{ACCESSES[raw.other_access]} at line {lines[raw.other_site]} by thread {run.thread(raw.other_thread)}"
        text = f"race on {name}: {access}, no barrier after the {other}"
    elif kind == "divergent barrier":
        state = f"waits at line {raw.other_line}" if raw.other_line else "has finished without it"
        text = f"divergent barrier: thread {run.thread(raw.other_thread)} {state}"
    elif kind == "misaligned":
        text = f"{access} of {name} at an address {raw.index} bytes after a multiple of {raw.size}"
    elif kind == "divergent warp":
        text = "divergent warp barrier: not every lane of the mask reaches it"
    else:
        text = f"{access} of {name}, which is {kind}"
    return text


class Faulty(Exception):
    """A kernel has faults. `faults`: all that were found; the message names the first."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
        super().__init__(f"{faults[0]}{more}")


class Emulated:
    """A CUDA source that this CPU runs on NumPy arrays: kernel(*inputs, out=None) -> out.

    The kernel runs on copies of the arrays. A launch ends at the first access outside all memory; it continues after
    any other fault. The constructor raises CompileError and ToolMissing.
    """

    def __init__(self, source: CudaSource) -> None:
        self.kernel = EmulatedKernel(source)

    def __call__(
        self, *inputs: NDArray[Any], out: NDArray[Any] | None = None, thorough: bool = False, shift: int = 0
    ) -> NDArray[Any]:
        """The output for these inputs, in `out`, which is overwritten, or in a new array if `out` is None.

        `thorough`: look for every kind of fault. Use small shapes for that: it takes 72 bytes of memory for each byte
        of the operands. Otherwise only accesses that are out of bounds or not aligned, and writes to inputs, are found.
        The lanes of a warp are not assumed to run in step: without a __syncwarp, two of them race. A thread may return
        before a barrier at which others wait, unless it has touched memory since the previous barrier. `shift`:
        elements by which every operand begins after an aligned address.

        Raises: Faulty; ValueError if the operands do not match the source.
        """
        source, extents = self.kernel.source, self.kernel.extents(*inputs)
        shape = tuple(extents[name] for name in source.output.split())
        if out is None:
            out = np.zeros(shape, self.kernel.out_dtype)
        if out.shape != shape or out.dtype != self.kernel.out_dtype or not out.flags.c_contiguous:
            raise ValueError(f"{source}: out must be {self.kernel.out_dtype} {shape}, got {out.dtype} {out.shape}")
        if 0 in extents.values():
            out.fill(0)  # a sum over nothing
            return out
        run = Traced(self.kernel, extents, shift)
        run.fill([*inputs, out])
        if faults := faults_of(run.run("check" if thorough else "run"), run):
            raise Faulty(faults)
        out[...] = run.out
        return out


def faults_of(launched: RawLaunch, run: Traced) -> list[Fault]:
    """The faults that a launch has found."""
    source, raws = run.kernel.source, launched.faults[: launched.fault_count]
    lines = run.lines(site for raw in raws for site in (raw.site, raw.other_site))
    faults: dict[tuple[object, ...], Fault] = {}  # one for each key: a line may be compiled to several sites
    for raw in raws:
        line, kind = raw.line or lines.get(raw.site, 0), KINDS[raw.kind]
        key = line, kind, raw.access, raw.region, lines.get(raw.other_site, raw.other_line)
        block, thread = (raw.block[0], raw.block[1], raw.block[2]), run.thread(raw.thread)
        fault = Fault(str(source), source.path.name, line, kind, _description(raw, run, lines), block, thread)
        faults.setdefault(key, fault)
    return list(faults.values())


def check(source: CudaSource, inputs: Sequence[NDArray[Any]]) -> list[Fault]:
    """The faults of a kernel on these NumPy arrays; [] if there are none.

    Raises: ValueError if the operands do not match the source; CompileError; ToolMissing.
    """
    try:
        Emulated(source)(*inputs, thorough=True)
    except Faulty as error:
        return list(error.faults)
    return []
