"""Faults by name: `check(rung, type, inputs)` runs a rung with every access looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from benchmarks._emulator.machine.build import RawFault
    from benchmarks._emulator.machine.sites import Traced
    from gpukernels import Rung

KINDS = ("out of bounds", "index", "unwritten", "race", "divergent barrier", "divergent warp", "read-only")
ACCESSES = ("read", "write", "atomic")


@dataclass(frozen=True)
class Fault:
    """One fault of a kernel, the first of its kind on its line: the thread that made it, (x, y, z) as in CUDA.

    `kind`: out of bounds; index (past the extent of an array or of a row of it); unwritten (a read of shared memory
    that nobody in the block wrote); race (two threads of a block, no barrier between, a write among them); divergent
    barrier; divergent warp (a __syncwarp, shuffle or ballot that a lane of its mask does not come to); read-only.
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


def _what(raw: "RawFault", run: "Traced", lines: dict[int, int]) -> str:
    name = run.names[raw.region] if raw.region >= 0 else "any array"
    doing = f"{ACCESSES[raw.access]} of {raw.size} bytes" if raw.access >= 0 else ""
    kind = KINDS[raw.kind]
    if kind == "out of bounds":
        found = f"{doing} {'before the start' if raw.index < 0 else 'past the end'} of {name}"
    elif kind == "index":  # of the access that follows it, if that is on the same line
        found = f"index {raw.index} outside an array of {raw.extent}"
        if doing and lines.get(raw.site) == raw.line:
            found = f"{doing} at {found} in {name}"
    elif kind == "unwritten":
        found = f"{doing} of {name} that no thread of the block has written"
    elif kind == "race":
        other = f"{ACCESSES[raw.other_access]} at line {lines[raw.other_site]} by thread {run.thread(raw.other_thread)}"
        found = f"race on {name}: {doing}, no barrier after the {other}"
    elif kind == "divergent barrier":
        where = f"waits at line {raw.other_line}" if raw.other_line else "has finished without it"
        found = f"divergent barrier: thread {run.thread(raw.other_thread)} {where}"
    elif kind == "divergent warp":
        found = "divergent warp barrier: not every lane of the mask comes to it"
    else:
        found = f"{doing} of {name}, which is {kind}"
    return found


def check(found: "Rung", type: str, inputs: Sequence[Any], edge: int | None = None) -> list[Fault]:
    """The faults of a rung on these NumPy arrays; [] where it has none. See `run_checked`."""
    return run_checked(found, type, inputs, edge)[0]


def run_checked(
    found: "Rung", type: str, inputs: Sequence[Any], edge: int | None = None
) -> tuple[list[Fault], NDArray[Any]]:
    """The faults of a rung on these NumPy arrays, which it gets copies of, and its output.

    Fit for small shapes: it takes 72 bytes of memory for each byte of the operands. A launch ends at the first access
    outside all memory; after any other fault it goes on. The lanes of a warp are not taken to be in step: without a
    __syncwarp two of them race. A thread may return before a barrier that others wait at, but not after touching memory
    since the last one.

    Raises: KernelError where the operands do not fit or g++ does not compile the source; ToolMissing.
    """
    from benchmarks._emulator.machine.build import EmulatedKernel
    from benchmarks._emulator.machine.sites import Traced

    kernel = EmulatedKernel(found, type, edge, traced=True)
    shape = kernel.extents(*inputs)
    run = Traced(kernel, shape)
    for place, operand in zip(run.operands, inputs, strict=False):
        place.view(operand.dtype)[...] = operand.reshape(-1)
    out = run.operands[-1].view(kernel.out_dtype).reshape([shape[dim] for dim in found.output.split()])
    if 0 in shape.values():
        return [], out
    launched = run.run("check")
    raws = launched.faults[: launched.fault_count]
    lines = run.lines(site for raw in raws for site in (raw.site, raw.other_site))
    found_at: dict[tuple[object, ...], Fault] = {}
    for raw in raws:  # a line may be compiled to several places
        line, kind = raw.line or lines.get(raw.site, 0), KINDS[raw.kind]
        key = line, kind, raw.access, raw.region, lines.get(raw.other_site, raw.other_line)
        block, thread = (raw.block[0], raw.block[1], raw.block[2]), run.thread(raw.thread)
        fault = Fault(str(found), found.source.name, line, kind, _what(raw, run, lines), block, thread)
        found_at.setdefault(key, fault)
    return list(found_at.values()), out
