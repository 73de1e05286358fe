"""The code of the kernels that cells launch, whichever library compiled them.

In a worker of its own, which times nothing, each cell is launched once. CUPTI has the cubins that the driver got; the
graph of a launch has the names of its kernels.
"""

import hashlib
import math
import struct
from collections.abc import Iterable
from functools import lru_cache

from kernelwatch.analysis import cupti
from kernelwatch.analysis.sass import count_all
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.cubin import Cubin, read_cubin
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import ToolMissing
from kernelwatch.timing import nodes
from kernelwatch.timing.gpu import Gpu
from kernelwatch.timing.launch import Returning, current
from kernelwatch.timing.record import Code, Measurement, Ran

DEVICE = "launched"
SAME = ("kernel", "registers", "static_shared_bytes")  # what a kernel and its code have in common


class Launched(Gpu):
    """The device of a worker that launches cells for CUPTI."""

    def __init__(self, project: Project, package: Package, cells: list[Cell], budget: Budget, seed: int) -> None:
        super().__init__(project, package, cells, budget, seed)
        self.arch = f"sm_{self.cupy.cuda.Device().compute_capability}"

    def measure(self, cell: Cell) -> Measurement:
        """The code of the kernels with the names of those that a cell runs. Raises: as in Gpu; NotHere."""
        kernel = self._loaded(cell)
        with current(self.stream):
            self._fill(cell)
            launch, _ = self._bind(cell, kernel, 0)
            self._returns = isinstance(launch, Returning)
            launch()
            graph = self._captured(cell, launch)
        ran = nodes.read(graph) if graph else None
        if ran is None:
            raise NotHere("what cannot be captured in a CUDA graph does not tell its kernels")
        names = {node["kernel"] for node in ran if "kernel" in node}
        codes, arguments = self._codes(names), nodes.arguments(graph)
        return {"codes": codes, "arguments": arguments, "launch": _with_codes(ran, codes, arguments)}

    def _codes(self, names: Iterable[str]) -> list[Code]:
        codes: list[Code] = []
        by_digest: dict[str, bytes] = {}
        for name in sorted(names):
            for cubin in _cubins(name, self.arch, len(cupti.cubins)):
                digest = hashlib.sha256(cubin.code).hexdigest()[:16]
                by_digest[digest] = cubin.code
                code: Code = {
                    "kernel": name,
                    "registers": cubin.registers,
                    "static_shared_bytes": cubin.static_shared_bytes,
                    "stack_bytes": cubin.stack_bytes,
                    "only_threads": cubin.block_threads,
                    "code": digest,
                }
                if code not in codes:  # another module may have the same kernel
                    codes.append(code)
        try:
            counted = count_all(by_digest, self.arch)
        except (NotHere, ToolMissing):
            return codes
        return [{**code, **counted[code["code"]]} for code in codes]


@lru_cache(maxsize=4096)
def _cubins(symbol: str, arch: str, count: int) -> list[Cubin]:
    """The kernel of this name in each of the first `count` modules that have it."""
    found = []
    for content in cupti.cubins[:count]:
        if symbol.encode() in content:
            try:
                found.append(read_cubin(content, symbol, arch))
            except (LookupError, ValueError, struct.error):  # another kernel's name begins like it
                continue
    return found


def note(measurement: Measurement, seen: Measurement) -> None:
    """Add the code of the kernels to those of a timed cell's measurement, and to its identity. `seen`: what another
    process saw the cell launch. A kernel gets no code if several could be it, such as configurations of an autotuner
    that differ in nothing that the driver says.

    "launch" is the identity of what was launched alone, whatever the sources: only if all of it is known."""
    ran: list[Ran] = measurement["kernels"]
    launch = _with_codes(ran, seen["codes"], seen.get("arguments", ""))
    measurement["identity"] = nodes.identity(measurement["sources"], ran, measurement.get("configurations", []))
    if launch:
        measurement["launch"] = launch


def _with_codes(ran: list[Ran], codes: Iterable[Code], arguments: str) -> str:
    """Add their code to the nodes of a graph. The identity of the whole launch, "" if not all of it is known: of a copy
    or a fill nobody tells how much it moves."""
    codes = list(codes)
    for node in ran:
        fitting = {code["code"]: code for code in codes if _fits(code, node)}
        if len(fitting) == 1:
            (code,) = fitting.values()
            node.update({name: value for name, value in code.items() if name not in (*node, "only_threads")})  # type: ignore[typeddict-item]
    is_known = bool(arguments and ran) and all("code" in node for node in ran)
    return nodes.identity(arguments, ran, []) if is_known else ""


def _fits(code: Code, node: Ran) -> bool:
    """Whether a node may run this code. A tile kernel, whose compiler chose the block, is launched with one thread."""
    if any(node.get(name) != code[name] for name in SAME):  # type: ignore[literal-required]
        return False
    threads = math.prod(node["block"])
    return threads == 1 or code.get("only_threads", 0) in (0, threads)
