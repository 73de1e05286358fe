"""Read a cubin, NVIDIA's ELF file of compiled kernels: registers, local and shared memory, code."""

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

KIB = 1024
PARAMETERS = ".nv.constant0."  # and the symbol: the section of a kernel's parameters, which no other function has


@dataclass(frozen=True)
class Cubin:
    """The contents of a cubin for one kernel. `stack_bytes`: local memory per thread; `code`: the kernel's SASS;
    `block_threads`: the threads of the only block that it takes, 0 if it takes several."""

    registers: int
    stack_bytes: int
    static_shared_bytes: int
    code: bytes
    block_threads: int = 0


# EIATTR_REGCOUNT, EIATTR_FRAME_SIZE, EIATTR_REQNTID, as cuobjdump --dump-elf names them
REGISTERS, FRAME, BLOCK = 0x2F, 0x11, 0x10


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The entries (attribute, value) of a section .nv.info.

    An entry has a byte of format, a byte of attribute and two bytes, which are the value's length if the format is 4.
    """
    at = 0
    while at < len(info):
        layout, attribute, value = struct.unpack_from("<BBH", info, at)
        length = value if layout == 4 else 0
        yield attribute, info[at + 4 : at + 4 + length]
        at += 4 + length


@contextmanager
def _opened(content: bytes) -> Iterator[dict[str, Any]]:
    """The sections of a cubin by name. Raises: ValueError if the file is damaged or no ELF file."""
    from elftools.common.exceptions import ELFError  # not at the top: asv forks from a process that imports this module
    from elftools.elf.elffile import ELFFile

    try:
        yield {section.name: section for section in ELFFile(BytesIO(content)).iter_sections()}
    except (ELFError, OverflowError) as error:  # OverflowError: an offset or a size is damaged
        raise ValueError(f"{type(error).__name__}: {error}") from error


def only_kernel(content: bytes) -> str:
    """The symbol of the only kernel in a cubin. Raises: ValueError if it has none, has several, or is no cubin."""
    with _opened(content) as sections:
        symbols = [name.removeprefix(PARAMETERS) for name in sections if name.startswith(PARAMETERS)]
    if len(symbols) != 1:
        raise ValueError(f"the cubin must have one kernel; it has {', '.join(symbols) or 'none'}")
    return symbols[0]


def read_cubin(content: bytes, symbol: str, arch: str) -> Cubin:
    """Read one kernel. Raises: LookupError, ValueError or struct.error if the file is not a cubin with this kernel."""
    from elftools.elf.sections import SymbolTableSection

    with _opened(content) as sections:
        table = sections[".symtab"]
        symbols = [entry.name for entry in table.iter_symbols()] if isinstance(table, SymbolTableSection) else []
        info, code = sections[".nv.info"].data(), sections[f".text.{symbol}"].data()
    kernel = symbols.index(symbol)
    of_kernel = {
        attribute: struct.unpack_from("<II", value)[1]
        for attribute, value in _attributes(info)
        if attribute in (REGISTERS, FRAME) and struct.unpack_from("<I", value)[0] == kernel
    }
    own = sections.get(f".nv.info.{symbol}")
    blocks = [struct.unpack("<III", value) for at, value in _attributes(own.data() if own else b"") if at == BLOCK]
    shared = sections.get(f".nv.shared.{symbol}")
    # From 9.0 on, the section's size includes the 1 KiB that is reserved in each block; ptxas -v does not count it.
    reserved = KIB if int(arch[3:].rstrip("af")) >= 90 else 0  # sm_90a, sm_100f
    return Cubin(
        of_kernel[REGISTERS],
        of_kernel.get(FRAME, 0),
        max(0, shared["sh_size"] - reserved) if shared else 0,
        code,
        math.prod(blocks[0]) if blocks else 0,
    )
