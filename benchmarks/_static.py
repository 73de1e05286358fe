"""What the compiler made of a rung, read from its cubin: registers, shared memory, instructions, spills, occupancy.

Exact, and the same with and without a GPU. Data flows one way: `_worker` processes have the measured commit's package
compile each target (`Compiler`); the rest is read here from the cubins, by the stick alone, and kept beside them by
their content.
"""

import ctypes
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from benchmarks._cells import Cell
from benchmarks._group import Group, measure_once, save
from benchmarks._identity import COMPILED
from benchmarks._ops import LADDER, dtypes, entries, main_type, types
from benchmarks._suites import outcome_of, series
from benchmarks._visit import NotHere, packages

# Per SM: threads, bytes of shared memory; per block: bytes of shared memory at most, of which so many reserved.
# Source: NVIDIA, CCCL, cuda/__device/arch_traits.h (CuPy ships it). 1 KiB a block is reserved from 8.0 on. All have
# 64 Ki registers.
KIB = 1024
LIMITS = {
    "sm_75": (1024, 64 * KIB, 64 * KIB, 0),
    "sm_80": (2048, 164 * KIB, 163 * KIB, KIB),
    "sm_86": (1536, 100 * KIB, 99 * KIB, KIB),
    "sm_89": (1536, 100 * KIB, 99 * KIB, KIB),
    "sm_90": (2048, 228 * KIB, 227 * KIB, KIB),
    "sm_100": (2048, 228 * KIB, 227 * KIB, KIB),
    "sm_120": (1536, 100 * KIB, 99 * KIB, KIB),
}
ARCHES = tuple(LIMITS)

# The classes of instructions, by the name up to its first dot; the rest is "other". NOPs, which pad, are not counted.
MIX = {
    "global": r"LDG|STG|LD|ST|LDGSTS|ATOM|ATOMG|RED|REDG|UBLK\w+|UTMA\w+|TEX|TLD4?|TXD|SULD|SUST|SURED|SUATOM",
    "shared": r"LDS|STS|LDSM|STSM|ATOMS",
    "fma": r"FFMA2?|DFMA|HFMA2|FFMA32I",
    "tensor": r"[HIDBQO]MMA|[HIQB]GMMA|UTC\w+",
    "control": r"BRA|BRX|BRXU|JMP|JMX|EXIT|RET|CALL|BAR|BSSY|BSYNC|BREAK|BMOV|WARPSYNC|NANOSLEEP|YIELD|KILL|ACQBULK",
}
CLASSES = (*MIX, "other")
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # of a local access, bytes; else 4


@dataclass(frozen=True)
class Target(Cell):
    """A rung to compile for one type and architecture; it has no shape."""

    arch: str = ""

    @property
    def key(self) -> str:
        return target_key(self.op, self.rung, self.type, self.arch)


def target_key(op: str, rung: str, type: str, arch: str) -> str:
    """A target's name in results and messages."""
    return f"{op}/{rung} {type} {arch}"


def compiled(op: str) -> dict[str, tuple[str, ...]]:
    """The rungs of an op in the checkout's ladder that have CUDA source, and their types."""
    return {entry.name: entry.types for entry in entries(op) if (LADDER.parent / op / f"{entry.source}.cu").is_file()}


def plan(op: str) -> list[Target]:
    """The targets of an op; $GPUKERNELS_CELLS takes some of them, as of cells."""
    found = [
        Target(op, rung, type, (), "", "static", "", arch=arch)
        for rung, types in compiled(op).items()
        for type in types
        for arch in ARCHES
    ]
    return [target for target in found if re.search(os.environ.get("GPUKERNELS_CELLS", ""), target.key)]


class Compiler:
    """The device of a worker that has the measured package compile, through the package's one function for it."""

    def __init__(self, package: Any) -> None:
        self.package = package

    def facts(self) -> dict[str, Any]:
        return {"packages": packages()}

    def measure(self, target: Any, found: Any) -> dict[str, Any]:
        """Where the cubin is, and how it is launched. Raises: what the package does where it does not compile."""
        if found.source.suffix != ".cu":
            raise NotHere(f"at this commit {found} has no CUDA source")
        path, symbol = self.package.compile_cuda(found, target.type, target.arch)
        edge = next(iter(found.edges), None)
        return {
            "cubin": str(path),
            "symbol": symbol,
            "block_threads": math.prod(found.block_threads(edge)),
            "dynamic_shared_bytes": found.shared_bytes(dtypes(target.type)[0].itemsize, edge),
        }


# --- what is in a cubin --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cubin:
    """What an ELF file of NVIDIA's says of one kernel. `stack_bytes`: of local memory a thread; `code`: its SASS."""

    registers: int
    stack_bytes: int
    static_shared_bytes: int
    code: bytes


REGISTERS, FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE, as cuobjdump --dump-elf names them


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The entries of a section .nv.info: format, attribute, then two bytes, which are the length where format is 4."""
    at = 0
    while at < len(info):
        layout, attribute, value = struct.unpack_from("<BBH", info, at)
        length = value if layout == 4 else 0
        yield attribute, info[at + 4 : at + 4 + length]
        at += 4 + length


def read_cubin(content: bytes, symbol: str, arch: str) -> Cubin:
    """A kernel's figures. Raises: LookupError, ValueError or struct.error if the file is of another kind."""
    from elftools.common.exceptions import ELFError  # not at the top: workers that measure import this module too
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    try:
        file = ELFFile(BytesIO(content))
        sections = {section.name: section for section in file.iter_sections()}
        table = sections[".symtab"]
        symbols = [one.name for one in table.iter_symbols()] if isinstance(table, SymbolTableSection) else []
        info, code = sections[".nv.info"].data(), sections[f".text.{symbol}"].data()
    except (ELFError, OverflowError) as error:  # the latter if an offset or a size is damaged
        raise ValueError(f"{type(error).__name__}: {error}") from error
    kernel = symbols.index(symbol)
    of_kernel = {
        attribute: struct.unpack_from("<II", value)[1]
        for attribute, value in _attributes(info)
        if attribute in (REGISTERS, FRAME) and struct.unpack_from("<I", value)[0] == kernel
    }
    shared = sections.get(f".nv.shared.{symbol}")
    # From 9.0 on the section counts the 1 KiB that is reserved of each block; ptxas -v does not.
    reserved = KIB if int(arch[3:]) >= 90 else 0
    return Cubin(
        of_kernel[REGISTERS],
        of_kernel.get(FRAME, 0),
        max(0, shared["sh_size"] - reserved) if shared else 0,
        code,
    )


# --- its instructions ----------------------------------------------------------------------------------------------

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/[\s{]*(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);?", re.MULTILINE)


@cache
def nvdisasm() -> tuple[str, str]:
    """NVIDIA's disassembler, of its wheel or a toolkit, and its version. Raises: NotHere."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("nvdisasm")
    except ImportError:
        found = shutil.which("nvdisasm")
    if not found:
        raise NotHere("no nvdisasm is found (pip install nvidia-cuda-nvdisasm)")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    return str(found), said


def disassemble(codes: Sequence[bytes], arch: str) -> list[list[tuple[str, str]]]:
    """The instructions (name, operands) of kernels of one architecture, all in one run: nvdisasm takes 0.2 s to start.

    Raises: NotHere where nvdisasm is missing, or does not know an instruction.
    """
    command, _ = nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        done = subprocess.run(
            [command, "--binary", arch.replace("sm_", "SM"), file.name], capture_output=True, text=True, check=False
        )
    found = INSTRUCTION.findall(done.stdout)
    if done.returncode or 16 * len(found) != sum(map(len, codes)):  # each takes 16 bytes
        raise NotHere(f"nvdisasm does not read the code for {arch}: {done.stderr.strip()[:500]}")
    starts = [0]
    for code in codes[:-1]:
        starts.append(starts[-1] + len(code))
    kernels: list[list[tuple[str, str]]] = [[] for _ in codes]
    for address, name, operands in found:
        kernels[bisect_right(starts, int(address, 16)) - 1].append((name, operands.strip()))
    return kernels


def _class(name: str, operands: str) -> str:
    if name.startswith("HFMA2") and re.match(r"\w+, -RZ, RZ,", operands):
        return "other"  # a constant is loaded so where that pipe is idle
    base = name.partition(".")[0]
    return next((kind for kind, names in MIX.items() if re.fullmatch(names, base)), "other")


def count(instructions: list[tuple[str, str]]) -> dict[str, Any]:
    """Instructions, of which classes; the bytes of the widest load of shared memory; and those that loads and stores of
    local memory move, each counted once.

    Those are what registers had no room for: ptxas's "bytes spill stores" and "spill loads", and arrays that are
    indexed at run time.
    """
    kept = [(name, operands) for name, operands in instructions if name != "NOP"]
    mix = Counter(_class(name, operands) for name, operands in kept)
    local, widest = {"LDL": 0, "STL": 0}, 0
    for name, _ in kept:
        base, *suffixes = name.split(".")
        width = next((WIDTHS[suffix] for suffix in suffixes if suffix in WIDTHS), 4)
        if base in local:
            local[base] += width
        elif base == "LDS":
            widest = max(widest, width)
    return {
        "instructions": len(kept),
        "mix": {kind: mix[kind] for kind in CLASSES},
        "shared_load_bytes": widest,
        "spill_load_bytes": local["LDL"],
        "spill_store_bytes": local["STL"],
    }


# --- occupancy -----------------------------------------------------------------------------------------------------

CALCULATOR = """
#include <cuda_occupancy.h>
int active_blocks(int major, int minor, int threads_sm, int shared_sm, int shared_block_most, int reserved,
                  int registers, int static_shared, int dynamic_shared, int block_threads) {
    cudaOccDeviceProp sm = {0};
    cudaOccFuncAttributes kernel = {0};
    cudaOccDeviceState state = {0};
    cudaOccResult result;
    sm.computeMajor = major, sm.computeMinor = minor;
    sm.maxThreadsPerBlock = 1024, sm.maxThreadsPerMultiprocessor = threads_sm;
    sm.regsPerBlock = sm.regsPerMultiprocessor = 65536, sm.warpSize = 32;
    sm.sharedMemPerBlock = 49152, sm.sharedMemPerMultiprocessor = shared_sm, sm.numSms = 1;
    sm.sharedMemPerBlockOptin = shared_block_most, sm.reservedSharedMemPerBlock = reserved;
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = static_shared;
    kernel.numBlockBarriers = 1;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &sm, &kernel, &state, block_threads, dynamic_shared);
    return error ? -1 : result.activeBlocksPerMultiprocessor;
}
"""


def _keep(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


@cache
def calculator(folder: Path) -> Callable[..., int]:
    """NVIDIA's own occupancy calculator, a header of the CUDA runtime, compiled into `folder`. Raises: NotHere."""
    try:
        from cuda.pathfinder import locate_nvidia_header_directory

        where = locate_nvidia_header_directory("cudart")
    except ImportError:
        where = None
    header = Path(where.abs_path, "cuda_occupancy.h") if where and where.abs_path else None
    if not header or not header.is_file():
        raise NotHere("no cuda_occupancy.h is found (pip install nvidia-cuda-runtime)")
    command = shlex.split(os.environ.get("CC", "")) or [
        next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "cc")
    ]
    digest = hashlib.sha256("\0".join([CALCULATOR, header.read_text(errors="replace"), *command]).encode()).hexdigest()
    library = folder / f"occupancy-{digest[:32]}.so"
    if not library.is_file():
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            source, fresh = Path(inside, "occupancy.c"), Path(inside, "occupancy.so")
            source.write_text(CALCULATOR)
            try:
                subprocess.run(
                    [*command, "-O1", "-shared", "-fPIC", f"-I{header.parent}", "-o", str(fresh), str(source)],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", "") or error
                raise NotHere(f"{command[0]} does not compile cuda_occupancy.h: {said}") from error
            os.replace(fresh, library)
    return ctypes.CDLL(str(library)).active_blocks


def occupancy(
    folder: Path, arch: str, registers: int, static_shared: int, dynamic_shared: int, block_threads: int
) -> float:
    """Theoretical occupancy in per cent: warps that fit on an SM at once, of those that it has room for. 0 where not
    one block fits. Raises: NotHere."""
    number = int(arch[3:])
    blocks = calculator(folder)(
        number // 10, number % 10, *LIMITS[arch], registers, static_shared, dynamic_shared, block_threads
    )
    if blocks < 0:
        raise NotHere(f"cuda_occupancy.h does not know {arch}")
    return 100 * blocks * -(-block_threads // 32) / (LIMITS[arch][0] // 32)


# --- all of an op --------------------------------------------------------------------------------------------------


def _counted(cubins: dict[str, tuple[Path, Cubin]], arch: str) -> dict[str, dict[str, Any]]:
    """What `count` says of kernels of one architecture, by key: from beside the cubins where it is kept."""
    _, version = nvdisasm()
    notes = {
        key: path.parent / f"{hashlib.sha256(_READER + version.encode() + cubin.code).hexdigest()}.sass"
        for key, (path, cubin) in cubins.items()
    }
    found = {}
    for key, note in notes.items():
        try:
            found[key] = dict(json.loads(note.read_text()))
        except (OSError, ValueError):
            continue
    left = [key for key in cubins if key not in found]
    if left:
        for key, instructions in zip(left, disassemble([cubins[key][1].code for key in left], arch), strict=True):
            found[key] = count(instructions)
            _keep(notes[key], json.dumps(found[key]).encode())
    return found


_READER = hashlib.sha256(Path(__file__).read_bytes()).digest()  # what was counted by other rules is counted again


def read(group: Group, targets: Sequence[Target]) -> None:
    """Put figures in the place of where each cubin is; what cannot be told here is left out, and `facts` says why."""
    cubins: dict[str, dict[str, tuple[Path, Cubin]]] = {arch: {} for arch in ARCHES}
    for target in targets:
        outcome = group.outcomes[target.key]
        for visit in outcome.visits:
            path, symbol = Path(visit.pop("cubin")), visit.pop("symbol")
            content = path.read_bytes()
            try:
                cubin = read_cubin(content, symbol, target.arch)
            except (LookupError, ValueError, struct.error) as error:
                outcome.state, outcome.reason, outcome.visits = "failed", f"its cubin cannot be read: {error!r}", []
                break
            cubins[target.arch][target.key] = path, cubin
            visit |= {
                "cubin_sha256": hashlib.sha256(content).hexdigest()[:16],
                "registers": cubin.registers,
                "stack_bytes": cubin.stack_bytes,
                "static_shared_bytes": cubin.static_shared_bytes,
                "shared_bytes": cubin.static_shared_bytes + visit["dynamic_shared_bytes"],
            }
            try:
                visit["occupancy_percent"] = occupancy(
                    path.parent, target.arch, cubin.registers, cubin.static_shared_bytes,
                    visit["dynamic_shared_bytes"], visit["block_threads"],
                )  # fmt: skip
            except NotHere as error:
                group.facts["occupancy"] = str(error)

    def counted(arch: str) -> None:
        try:
            for key, figures in _counted(cubins[arch], arch).items():
                group.outcomes[key].visits[0].update(figures)
        except NotHere as error:
            group.facts[f"instructions {arch}"] = str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(counted, [arch for arch in ARCHES if cubins[arch]]))


def measure(op: str) -> Group:
    """The compile-time figures of an op's rungs at the installed commit, for every type and architecture."""
    targets = plan(op)
    group = measure_once(op, "static", targets)
    read(group, targets)
    save(group)
    return group


# --- series --------------------------------------------------------------------------------------------------------


class _OfOp(ABC):
    """Compile-time figures of an op's rungs; one measurement feeds them all, as in `_suites`."""

    op: ClassVar[str]
    params: ClassVar[list[list[str]]]
    param_names: ClassVar[list[str]]
    timeout = 1800

    @abstractmethod
    def setup_cache(self) -> Group:
        """The compiled group; abstract, so that asv takes this class for what it is and does not collect it."""

    def figure(self, group: Group, rung: str, type: str, arch: str, *names: str) -> float:
        """One figure of a target, deeper by each name, or n/a. Raises: RuntimeError where it does not compile."""
        outcome = outcome_of(group, target_key(self.op, rung, type, arch))
        found: Any = outcome.visits[0] if outcome.visits else {}
        for name in names:
            found = found.get(name, {})
        return math.nan if found == {} else float(found)


class Suite(_OfOp):
    """By rung, element type and architecture."""

    param_names: ClassVar[list[str]] = ["rung", "type", "arch"]

    def __init_subclass__(cls, op: str) -> None:
        cls.op = op
        known = {type for types in compiled(op).values() for type in types}
        cls.params = [list(compiled(op)), [type for type in types(op) if type in known], list(ARCHES)]

    @series(COMPILED, "registers", higher_is_better=None)
    def track_registers(self, group: Group, *where: str) -> float:
        """Registers of a thread."""
        return self.figure(group, *where, "registers")

    @series(COMPILED, "bytes", higher_is_better=False, judged="exact")
    def track_spill_bytes(self, group: Group, *where: str) -> float:
        """Bytes that a thread's loads and stores of local memory move, each instruction counted once."""
        return sum(self.figure(group, *where, f"spill_{way}_bytes") for way in ("load", "store"))

    @series(COMPILED, "bytes", higher_is_better=None)
    def track_shared_bytes(self, group: Group, *where: str) -> float:
        """Shared memory of a block, static and dynamic, without what the hardware reserves."""
        return self.figure(group, *where, "shared_bytes")

    @series(COMPILED, "instructions", higher_is_better=None)
    def track_instructions(self, group: Group, *where: str) -> float:
        """SASS instructions of the kernel, without the NOPs that pad it."""
        return self.figure(group, *where, "instructions")

    @series(COMPILED, "% of warps", higher_is_better=True, judged="exact")
    def track_occupancy(self, group: Group, *where: str) -> float:
        """Theoretical occupancy: the part of an SM's warps that can be resident."""
        return self.figure(group, *where, "occupancy_percent")


class MixSuite(_OfOp):
    """Instructions by class, of each rung with its main type, for one architecture: asv takes 5 ms for every figure,
    and the sidecar has the others."""

    arch = "sm_90"
    param_names: ClassVar[list[str]] = ["rung", "class"]

    def __init_subclass__(cls, op: str) -> None:
        cls.op = op
        cls.params = [list(compiled(op)), list(CLASSES)]

    @series(COMPILED, "instructions", higher_is_better=None)
    def track_class(self, group: Group, rung: str, kind: str) -> float:
        """SASS instructions of one class."""
        return self.figure(group, rung, main_type(self.op, rung), self.arch, "mix", kind)
