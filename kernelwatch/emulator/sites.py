"""Support for traced runs: guarded operands, the names of memory regions, the source lines of accesses."""

import ctypes
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwatch.emulator.build import CONSTANT, GLOBAL, HIDDEN, SHARED, EmulatedKernel, RawLaunch, Region
from kernelwatch.plan.package import CudaSource
from kernelwatch.system.errors import ToolMissing

ALIGNMENT = 4096  # of an operand's first byte: more than any access needs
ZONE = 1 << 16  # unused bytes on both sides of an operand


def _output(command: Sequence[str], stdin: str = "") -> str:
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise ToolMissing(f"no {command[0]}: install binutils") from error


def operand_names(source: CudaSource) -> list[str]:
    """The kernel's own names for its operands, from its parameters. Operands that a prepared launch passes in
    another way (in constant memory, for example) come first and get generic names."""
    text = source.path.read_text(encoding="utf-8")
    declared = re.search(rf"\b{source.entry}\s*\(([^)]*)\)", text)
    parameters = declared[1].split(",") if declared else []
    names = [re.findall(r"\w+", part)[-1] for part in parameters if "*" in part or "cudaTextureObject_t" in part]
    missing = len(source.inputs) + 1 - len(names)
    return [*(f"input {at}" for at in range(missing)), *names]


@cache
def _variables(kernel: EmulatedKernel) -> tuple[tuple[str, int, int, int], ...]:
    """The kernel's __shared__ arrays, which are static variables here, and its __constant__ arrays: the name, the first
    address, the bytes and the kind of each."""
    path, entry = str(kernel.path), kernel.source.entry
    # With a target, nm loads no plugins of compilers: LLVM's takes ten times as long as the table.
    table = _output(["nm", "--target=default", "-S", "-C", "--defined-only", path])
    symbols = re.findall(r"^(\w+) (\w+) [bBdDvVu] (.*)$", table, re.MULTILINE)
    start = re.search(r"^(\w+) \w+ T kernelwatch_run$", table, re.MULTILINE)
    assert start, f"{path} has no kernelwatch_run"
    address = ctypes.cast(kernel.library.kernelwatch_run, ctypes.c_void_p).value or 0
    base = address - int(start[1], 16)
    text = kernel.source.path.read_text(encoding="utf-8")
    constants = set(re.findall(r"__constant__[^;=\[]*\b(\w+)\s*[\[;=]", text))
    variables = []
    for value, size, name in symbols:
        low, extent = base + int(value, 16), int(size, 16)
        if name.startswith("guard variable"):  # set by g++ when a static variable is initialized
            variables.append((name, low, extent, HIDDEN))
        elif name in constants:
            variables.append((name, low, extent, CONSTANT))
        elif local := re.fullmatch(rf"(?:.* )?{entry}\b.*\)::(\w+)", name):
            variables.append((local[1], low, extent, SHARED))
    return tuple(variables)


@dataclass
class Traced:
    """A rung on its own operands between guard zones, which begin `shift` elements after an aligned address."""

    kernel: EmulatedKernel
    shape: dict[str, int]
    shift: int = 0

    def __post_init__(self) -> None:
        source, dtypes = self.kernel.source, (self.kernel.in_dtype, self.kernel.out_dtype)
        patterns = [*((pattern, dtypes[0]) for pattern in source.inputs), (source.output, dtypes[1])]
        self.sizes = [
            math.prod(self.shape[dim] for dim in pattern.split()) * dtype.itemsize for pattern, dtype in patterns
        ]  # bytes, the output last
        steps = [-(-size // ALIGNMENT) * ALIGNMENT + ZONE for size in self.sizes]
        memory = np.zeros(ZONE + sum(steps) + ALIGNMENT, np.uint8)
        skipped = -memory.ctypes.data % ALIGNMENT + ZONE
        shifts = [self.shift * dtype.itemsize for _, dtype in patterns]
        starts = [skipped + sum(steps[:at]) + own for at, own in enumerate(shifts)]
        self.operands: list[NDArray[np.uint8]] = [
            memory[start : start + size] for start, size in zip(starts, self.sizes, strict=True)
        ]
        self.regions, self.names = [], operand_names(source)
        for at, operand in enumerate(self.operands):
            low = operand.ctypes.data
            self.regions.append(Region(low, low + operand.nbytes, GLOBAL, at == len(self.operands) - 1))
        for name, low, size, kind in _variables(self.kernel):
            self.regions.append(Region(low, low + size, kind, kind != CONSTANT))
            self.names.append(name)
        self.names.append("dynamic shared memory")

    def run(self, mode: str) -> RawLaunch:
        """Launch the kernel. `mode`: one of MODES in build.py."""
        addresses = [operand.ctypes.data for operand in self.operands]
        return self.kernel.launch(addresses, self.sizes, self.shape, mode, self.regions)

    @property
    def out(self) -> NDArray[Any]:
        """The output, in its shape and type."""
        shape = [self.shape[dim] for dim in self.kernel.source.output.split()]
        return self.operands[-1].view(self.kernel.out_dtype).reshape(shape)

    def fill(self, inputs: Sequence[NDArray[Any]]) -> None:
        """Copy these inputs into the operands."""
        for copy, operand in zip(self.operands, inputs, strict=False):
            copy.view(operand.dtype)[...] = operand.reshape(-1)

    def thread(self, linear: int) -> tuple[int, int, int]:
        x = self.kernel.source.block[0]
        return linear % x, linear // x, 0

    def lines(self, sites: Iterable[int]) -> dict[int, int]:
        """The source line of each site (a return address); 0 if the site is not in the rung's source."""
        wanted = sorted({site for site in sites if site})
        if not wanted:
            return {}
        addresses = "".join(f"{site - 1:#x}\n" for site in wanted)
        output = _output(["addr2line", "-a", "-i", "-e", str(self.kernel.path)], addresses)
        frames = re.split(r"^0x[0-9a-f]+\n", output, flags=re.MULTILINE)[1:]
        file = re.escape(self.kernel.source.path.name)
        line_of = {}
        for site, frame in zip(wanted, frames, strict=True):  # a line for each inlined function, innermost first
            match = re.search(rf"(?:^|/){file}:(\d+)", frame, re.MULTILINE)
            line_of[site] = int(match[1]) if match else 0
        return line_of
