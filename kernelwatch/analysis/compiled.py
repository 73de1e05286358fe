"""Figures of a compiled rung, read from its cubin: registers, shared memory, instructions, spills, occupancy.

They are exact, and the same with and without a GPU. In a worker, the measured commit's package compiles each target
(`Compiler`); the engine alone then reads the cubins (`read`).
"""

import hashlib
import os
import re
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelwatch.analysis.occupancy import ARCHES, occupancy
from kernelwatch.analysis.sass import count_all
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.cubin import Cubin, read_cubin
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.plan.problem import Problem
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import ToolMissing
from kernelwatch.timing.check import packages
from kernelwatch.timing.record import Facts, Measurement

DEVICE = "static"


def target(op: str, rung: str, type: str, arch: str) -> Cell:
    """A rung to compile for one type and architecture; it has no shape."""
    return Cell(op, rung, type, (), "", DEVICE, arch=arch)


def compiled(problem: Problem) -> dict[str, tuple[str, ...]]:
    """The rungs of a problem that are CUDA or whose package offers a binary, and their types."""
    return {rung.name: rung.types for rung in problem.rungs if rung.is_cuda or rung.compiled}


def plan(problem: Problem, only: str = "") -> list[Cell]:
    """The targets of a problem. `only`: a regular expression on their keys."""
    targets = [
        target(problem.name, rung, type, arch)
        for rung, types in compiled(problem).items()
        for type in types
        for arch in ARCHES
    ]
    return [cell for cell in targets if re.search(only, cell.key)]


class Compiler:
    """The device of a worker in which the measured package compiles targets."""

    def __init__(self, project: Project, package: Package, *_: object) -> None:
        self.project = project
        self.package = package

    def facts(self) -> Facts:
        return {"packages": packages(self.project.conditions)}

    def measure(self, cell: Cell) -> Measurement:
        """The path of the cubin and its launch parameters. Raises: the package's own error if compilation fails."""
        binary = self.package.binary(cell.op, cell.rung, cell.type, cell.arch)
        return {
            "cubin": str(binary.path),
            "symbol": binary.symbol,
            "block_threads": binary.block_threads,
            "dynamic_shared_bytes": binary.dynamic_shared_bytes,
            "plain": self._plain(cell),
        }

    def _plain(self, cell: Cell) -> str:
        """The source of a launch that takes the operands and the extents alone: then its binary and the code of the
        host, which prepares nothing for it, tell it. "" if it takes more, or if the package does not say."""
        try:
            source = self.package.cuda_source(cell.op, cell.rung, cell.type)
            return "" if source.arguments else str(source.path.resolve())
        except Exception:  # such as NotHere, or what an older commit's package raises
            return ""


def read(compiled_cells: Mapping[str, tuple[str, Measurement]]) -> tuple[dict[str, str], dict[str, str]]:
    """Replace the cubin's path in each measurement with the cubin's figures.

    `compiled_cells`: key -> (architecture, measurement).
    Returns key -> the reason why its cubin cannot be read; and figure -> the reason why this machine lacks it.
    """
    unreadable: dict[str, str] = {}
    missing: dict[str, str] = {}
    codes: dict[str, dict[str, bytes]] = {arch: {} for arch in ARCHES}
    for key, (arch, measurement) in compiled_cells.items():
        path, symbol = Path(measurement.pop("cubin")), measurement.pop("symbol")
        measurement.pop("plain", None)
        content = path.read_bytes()
        try:
            cubin = read_cubin(content, symbol, arch)
        except (LookupError, ValueError, struct.error) as error:
            unreadable[key] = f"its cubin cannot be read: {error!r}"
            continue
        codes[arch][key] = cubin.code
        measurement.update(_figures(cubin, content, measurement))
        try:
            measurement["occupancy_percent"] = occupancy(
                arch,
                cubin.registers,
                cubin.static_shared_bytes,
                measurement["dynamic_shared_bytes"],
                measurement["block_threads"],
            )
        except (NotHere, ToolMissing) as error:
            missing["occupancy"] = str(error)

    def count(arch: str) -> None:
        try:
            for key, instructions in count_all(codes[arch], arch).items():
                compiled_cells[key][1].update(instructions)  # type: ignore[typeddict-item]
        except (NotHere, ToolMissing) as error:
            missing[f"instructions {arch}"] = str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(count, [arch for arch in ARCHES if codes[arch]]))
    return unreadable, missing


def _figures(cubin: Cubin, content: bytes, measurement: Measurement) -> Measurement:
    return {
        "cubin_sha256": hashlib.sha256(content).hexdigest()[:16],
        "registers": cubin.registers,
        "stack_bytes": cubin.stack_bytes,
        "static_shared_bytes": cubin.static_shared_bytes,
        "shared_bytes": cubin.static_shared_bytes + measurement["dynamic_shared_bytes"],
    }
