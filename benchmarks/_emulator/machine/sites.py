"""What a traced run needs besides the kernel: guarded operands, the names of memory, the lines of accesses."""

import ctypes
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._emulator.machine.build import CONSTANT, GLOBAL, HIDDEN, SHARED, EmulatedKernel, RawLaunch, Region
from gpukernels import Rung, ToolMissing

ALIGNMENT = 4096  # at which an operand begins: more than any access needs
ZONE = 1 << 16  # bytes on both sides of an operand that belong to nobody


def _output(command: Sequence[str], stdin: str = "") -> str:
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise ToolMissing(f"no {command[0]}: install binutils") from error


def operand_names(found: Rung) -> list[str]:
    """The kernel's own names for its operands, from its parameters; a prepared launch may put the first elsewhere."""
    text = found.source.read_text(encoding="utf-8")
    declared = re.search(rf"\b{found.symbol}\s*\(([^)]*)\)", text)
    parameters = declared[1].split(",") if declared else []
    names = [re.findall(r"\w+", part)[-1] for part in parameters if "*" in part or "cudaTextureObject_t" in part]
    missing = len(found.inputs) + 1 - len(names)
    return [*(f"input {at}" for at in range(missing)), *names]


@dataclass
class Traced:
    """A rung compiled so that its accesses are seen, on operands of its own between guard zones."""

    kernel: EmulatedKernel
    shape: dict[str, int]

    def __post_init__(self) -> None:
        found, dtypes = self.kernel.rung, (self.kernel.in_dtype, self.kernel.out_dtype)
        patterns = [*((pattern, dtypes[0]) for pattern in found.inputs), (found.output, dtypes[1])]
        self.sizes = [
            math.prod(self.shape[dim] for dim in pattern.split()) * dtype.itemsize for pattern, dtype in patterns
        ]  # bytes, the output last
        steps = [-(-size // ALIGNMENT) * ALIGNMENT + ZONE for size in self.sizes]
        memory = np.zeros(ZONE + sum(steps) + ALIGNMENT, np.uint8)
        skipped = -memory.ctypes.data % ALIGNMENT + ZONE
        starts = [skipped + sum(steps[:at]) for at in range(len(steps))]
        self.operands: list[NDArray[Any]] = [
            memory[start : start + size] for start, size in zip(starts, self.sizes, strict=True)
        ]
        self.regions, self.names = [], operand_names(found)
        for at, operand in enumerate(self.operands):
            low = operand.ctypes.data
            self.regions.append(Region(low, low + operand.nbytes, GLOBAL, at == len(self.operands) - 1))
        for name, low, size, kind in self._variables():
            self.regions.append(Region(low, low + size, kind, kind != CONSTANT))
            self.names.append(name)
        self.names.append("dynamic shared memory")

    def _variables(self) -> Iterable[tuple[str, int, int, int]]:
        """The kernel's __shared__ arrays, which are static to a function here, and its __constant__ ones."""
        path = str(self.kernel.path)
        table = _output(["nm", "-S", "-C", "--defined-only", path])
        symbols = re.findall(r"^(\w+) (\w+) [bBdDvVu] (.*)$", table, re.MULTILINE)
        entry = re.search(r"^(\w+) \w+ T gpukernels_run$", table, re.MULTILINE)
        assert entry, f"{path} has no gpukernels_run"
        address = ctypes.cast(self.kernel.library.gpukernels_run, ctypes.c_void_p).value or 0
        base = address - int(entry[1], 16)
        text = self.kernel.rung.source.read_text(encoding="utf-8")
        constants = set(re.findall(r"__constant__[^;=\[]*\b(\w+)\s*[\[;=]", text))
        for value, size, name in symbols:
            low, extent = base + int(value, 16), int(size, 16)
            if name.startswith("guard variable"):  # g++'s own: whether a static is initialised
                yield name, low, extent, HIDDEN
            elif name in constants:
                yield name, low, extent, CONSTANT
            elif local := re.fullmatch(rf"(?:.* )?{self.kernel.rung.symbol}\b.*\)::(\w+)", name):
                yield local[1], low, extent, SHARED

    def run(self, mode: str) -> RawLaunch:
        """Launch it; mode: check or count."""
        addresses = [operand.ctypes.data for operand in self.operands]
        return self.kernel.launch(addresses, self.sizes, self.shape, mode, self.regions)

    def thread(self, linear: int) -> tuple[int, int, int]:
        x = self.kernel.block[0]
        return linear % x, linear // x, 0

    def lines(self, sites: Iterable[int]) -> dict[int, int]:
        """The source line of each site, a return address; 0 where it lies in no line of the rung's source."""
        wanted = sorted({site for site in sites if site})
        if not wanted:
            return {}
        asked = "".join(f"{site - 1:#x}\n" for site in wanted)
        told = _output(["addr2line", "-a", "-i", "-e", str(self.kernel.path)], asked)
        frames = re.split(r"^0x[0-9a-f]+\n", told, flags=re.MULTILINE)[1:]
        file = re.escape(self.kernel.rung.source.name)
        found = {}
        for site, lines in zip(wanted, frames, strict=True):  # inlined frames, innermost first
            here = re.search(rf"(?:^|/){file}:(\d+)", lines, re.MULTILINE)
            found[site] = int(here[1]) if here else 0
        return found
