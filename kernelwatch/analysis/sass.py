"""Count the instructions of each kernel in a cubin, from the output of NVIDIA's disassembler."""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from kernelwatch.plan.package import NotHere
from kernelwatch.system import cache, tools

# Class -> the instructions in it, by the name up to its first dot; all others are "other". NOPs, which
# pad the code, are not counted.
MIX = {
    "global": r"LDG|STG|LD|ST|LDGSTS|ATOM|ATOMG|RED|REDG|UBLK\w+|UTMA\w+|TEX|TLD4?|TXD|SULD|SUST|SURED|SUATOM",
    "shared": r"LDS|STS|LDSM|STSM|ATOMS",
    "fma": r"FFMA2?|DFMA|HFMA2|FFMA32I",
    "tensor": r"[HIDBQO]MMA|[HIQB]GMMA|UTC\w+",
    "control": r"BRA|BRX|BRXU|JMP|JMX|EXIT|RET|CALL|BAR|BSSY|BSYNC|BREAK|BMOV|WARPSYNC|NANOSLEEP|YIELD|KILL|ACQBULK",
}
CLASSES = (*MIX, "other")
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # bytes of an access; 4 without a suffix


class Instructions(TypedDict):
    """The composition of a kernel's SASS; see `count`."""

    instructions: int
    mix: dict[str, int]
    shared_load_bytes: int
    spill_load_bytes: int
    spill_store_bytes: int


INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/[\s{]*(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);?", re.MULTILINE)


def listing(codes: Sequence[bytes], arch: str) -> str:
    """What nvdisasm prints of kernels, one after the other. Raises: ToolMissing without nvdisasm; NotHere if it does
    not know an instruction."""
    command = tools.nvdisasm().command[0]
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        done = subprocess.run(
            [command, "--binary", arch.replace("sm_", "SM"), file.name], capture_output=True, text=True, check=False
        )
    count = len(INSTRUCTION.findall(done.stdout))
    if done.returncode or 16 * count != sum(map(len, codes)):  # an instruction has 16 bytes
        raise NotHere(f"nvdisasm does not read the code for {arch}: {done.stderr.strip()[:500]}")
    return done.stdout


def disassemble(codes: Sequence[bytes], arch: str) -> list[list[tuple[str, str]]]:
    """The instructions (name, operands) of each kernel. One run handles all kernels, as nvdisasm takes 0.2 s to start.

    Raises: ToolMissing, NotHere.
    """
    starts = [0]
    for code in codes[:-1]:
        starts.append(starts[-1] + len(code))
    kernels: list[list[tuple[str, str]]] = [[] for _ in codes]
    for address, name, operands in INSTRUCTION.findall(listing(codes, arch)):
        kernels[bisect_right(starts, int(address, 16)) - 1].append((name, operands.strip()))
    return kernels


def class_of(name: str, operands: str) -> str:
    """The class in MIX of an instruction, or "other"."""
    if name.startswith("HFMA2") and re.match(r"\w+, -RZ, RZ,", operands):
        return "other"  # the compiler uses it to load a constant when the half-precision pipe is idle
    base = name.partition(".")[0]
    return next((kind for kind, names in MIX.items() if re.fullmatch(names, base)), "other")


def count(instructions: list[tuple[str, str]]) -> Instructions:
    """Count a kernel's instructions (name, operands).

    `shared_load_bytes`: the width of the widest load from shared memory.
    `spill_load_bytes`, `spill_store_bytes`: the bytes that loads and stores of local memory move, each instruction
    counted once. They are ptxas's "bytes spill loads" and "bytes spill stores" and the accesses to arrays that are
    indexed at run time.
    """
    kept = [(name, operands) for name, operands in instructions if name != "NOP"]
    mix = Counter(class_of(name, operands) for name, operands in kept)
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


# Part of the cache's key, so that a change of this module's rules counts everything again.
_READER = hashlib.sha256(Path(__file__).read_bytes()).digest()


def count_all(codes: Mapping[str, bytes], arch: str) -> dict[str, Instructions]:
    """The `Instructions` of kernels of one architecture, by key. Results are cached by the content of the code.

    Raises: ToolMissing, NotHere.
    """
    version = tools.nvdisasm().version
    cache_files = {
        key: cache.folder() / f"{hashlib.sha256(_READER + version.encode() + code).hexdigest()}.sass"
        for key, code in codes.items()
    }
    counted: dict[str, Instructions] = {}
    for key, file in cache_files.items():
        try:
            counted[key] = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
    uncached = [key for key in codes if key not in counted]
    if uncached:
        for key, instructions in zip(uncached, disassemble([codes[key] for key in uncached], arch), strict=True):
            counted[key] = count(instructions)
            _write_atomically(cache_files[key], json.dumps(counted[key]).encode())
    return counted


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it exists either whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
