"""Faults by name: `check(source, inputs)` runs a kernel and checks every access."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from kernelwatch.emulator.build import EmulatedKernel, RawFault
from kernelwatch.emulator.sites import Traced
from kernelwatch.plan.package import CudaSource

KINDS = ("out of bounds", "index", "unwritten", "race", "divergent barrier", "divergent warp", "read-only")
ACCESSES = ("read", "write", "atomic")


@dataclass(frozen=True)
class Fault:
    """One fault of a kernel, the first of its kind on its line. `block` and `thread` are (x, y, z) as in CUDA.

    `kind`: out of bounds; index (past the extent of an array or of a row of it); unwritten (a read of shared memory
    that no thread of the block has written); race (accesses by two threads of a block with no barrier between them, at
    least one of them a write); divergent barrier; divergent warp (a __syncwarp, shuffle or ballot that a lane of its
    mask does not reach); read-only.
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
    elif kind == "divergent warp":
        text = "divergent warp barrier: not every lane of the mask reaches it"
    else:
        text = f"{access} of {name}, which is {kind}"
    return text


def check(source: CudaSource, inputs: Sequence[NDArray[Any]]) -> list[Fault]:
    """The faults of a kernel on these NumPy arrays; [] if there are none. See `run_checked`."""
    return run_checked(source, inputs)[0]


def run_checked(source: CudaSource, inputs: Sequence[NDArray[Any]]) -> tuple[list[Fault], NDArray[Any]]:
    """The faults of a kernel and its output. The kernel runs on copies of these NumPy arrays.

    Use small shapes: this takes 72 bytes of memory for each byte of the operands. A launch ends at the first access
    outside all memory; it continues after any other fault. The lanes of a warp are not assumed to run in step: without
    a __syncwarp, two of them race. A thread may return before a barrier at which others wait, unless it has touched
    memory since the previous barrier.

    Raises: ValueError if the operands do not match the source; CompileError; ToolMissing.
    """
    kernel = EmulatedKernel(source, traced=True)
    shape = kernel.extents(*inputs)
    run = Traced(kernel, shape)
    for copy, operand in zip(run.operands, inputs, strict=False):
        copy.view(operand.dtype)[...] = operand.reshape(-1)
    out = run.operands[-1].view(kernel.out_dtype).reshape([shape[dim] for dim in source.output.split()])
    if 0 in shape.values():
        return [], out
    launched = run.run("check")
    raws = launched.faults[: launched.fault_count]
    lines = run.lines(site for raw in raws for site in (raw.site, raw.other_site))
    faults: dict[tuple[object, ...], Fault] = {}  # one for each key: a line may be compiled to several sites
    for raw in raws:
        line, kind = raw.line or lines.get(raw.site, 0), KINDS[raw.kind]
        key = line, kind, raw.access, raw.region, lines.get(raw.other_site, raw.other_line)
        block, thread = (raw.block[0], raw.block[1], raw.block[2]), run.thread(raw.thread)
        fault = Fault(str(source), source.path.name, line, kind, _description(raw, run, lines), block, thread)
        faults.setdefault(key, fault)
    return list(faults.values()), out
