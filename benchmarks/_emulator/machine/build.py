"""Compile a .cu rung for the CPU and launch it.

This folder is no package on purpose: asv imports every module of `benchmarks` at every commit, and what is here needs a
gpukernels that has what it imports.
"""

import ctypes
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpukernels import KernelError, Launch, Rung, ToolMissing
from gpukernels.kernel import (
    CUDA_STANDARD,
    TYPES,
    Kernel,
    _compiled,
    _cuda_headers,
    _digest,
    _one_of,
    _pointer,
    _source,
    in_and_out,
)

HERE = Path(__file__).parent
INCLUDE = HERE / "include"

FLAGS = (f"-std={CUDA_STANDARD}", "-fPIC", "-fno-gnu-unique", "-fno-threadsafe-statics", "-fno-strict-aliasing",
         "-ffp-contract=off", "-w")  # fmt: skip
PLAIN = ("-O2",)
# Each access of the source is one call (struct members stay together), each index past a known extent another. A struct
# that is read to be passed by value is seen only where the function is inlined, such as the conversion of a __half.
INLINED = (
    *("-finline-functions", "-finline-small-functions", "-findirect-inlining"),
    *("--param=max-inline-insns-auto=1000", "--param=inline-unit-growth=1000", "--param=large-function-growth=10000"),
)
TRACED = ("-O1", "-g", "-fsanitize=thread,bounds", "-fno-tree-sra", *INLINED, "-DGPUKERNELS_TRACE")

GLOBAL, SHARED, CONSTANT, HIDDEN = range(4)  # kinds of memory, as in runtime.cpp
MODES = {"plain": 0, "check": 1, "count": 2}


class Region(ctypes.Structure):
    """Memory that a kernel may touch; this and the next three mirror runtime.cpp."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64), ("kind", ctypes.c_int32),
                ("writable", ctypes.c_int32))  # fmt: skip


class RawFault(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "access", "size", "region")),
        *((name, ctypes.c_uint64) for name in ("site", "other_site")),
        *((name, ctypes.c_int32) for name in ("line", "other_line", "other_access", "other_thread")),
        *((name, ctypes.c_int64) for name in ("index", "extent")),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_int32),
    )


class RawTally(ctypes.Structure):
    _fields_ = (
        ("site", ctypes.c_uint64),
        ("region_kind", ctypes.c_int32),
        ("access", ctypes.c_int32),
        *((name, ctypes.c_uint64) for name in ("requests", "cost", "ideal", "bytes")),
    )


class RawLaunch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("shared_bytes", ctypes.c_uint64),
        ("regions", ctypes.POINTER(Region)),
        ("region_count", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("faults", ctypes.POINTER(RawFault)),
        ("fault_room", ctypes.c_int32),
        ("fault_count", ctypes.c_int32),
        ("tallies", ctypes.POINTER(RawTally)),
        ("tally_room", ctypes.c_int32),
        ("tally_count", ctypes.c_int32),
        ("stopped", ctypes.c_int32),
        ("barriers", ctypes.c_uint64),
    )


@cache
def _compiler() -> tuple[tuple[str, ...], str]:
    """The C++ compiler's command ($CXX, else g++) and its version. Raises: ToolMissing."""
    command = tuple(shlex.split(os.environ.get("CXX", ""))) or ("g++",)
    if not shutil.which(command[0]):
        raise ToolMissing(f"no C++ compiler: {command[0]} not found; install g++ or set CXX")
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return command, _digest(*command, version)


def _run_compiler(who: str, arguments: Sequence[str]) -> None:
    done = subprocess.run([*_compiler()[0], *arguments], capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    if re.search(r"Assembler messages|impossible constraint|invalid 'asm'|operand number out of range", done.stderr):
        raise ToolMissing(f"{who} has inline PTX without a host body under #ifdef GPUKERNELS_HOST: not run on a CPU")
    raise KernelError(f"{who}: {_compiler()[0][0]} does not compile it: {done.stderr.strip()}")


def _headers(who: str) -> list[str]:
    folders = [folder for folder in _cuda_headers() if Path(folder, "vector_types.h").is_file()]
    if not folders:
        raise ToolMissing(f"{who}: CUDA's headers are not found (pip install nvidia-cuda-runtime nvidia-cuda-crt)")
    return [f"-I{folder}" for folder in (INCLUDE, *_cuda_headers())]


def _runtime() -> Path:
    """The runtime as an object file: the same for every kernel."""
    source = HERE / "runtime.cpp"
    flags = [*FLAGS, "-O2", "-fvisibility=hidden", *_headers("the emulator")]

    def build(path: Path) -> str:
        _run_compiler("the emulator", [*flags, "-c", str(source), "-o", str(path)])
        return "gpukernels_run"

    return _compiled(_digest("emulator", source.read_text("utf-8"), *flags, _compiler()[1]), ".o", build)[0]


EXTERN_SHARED = re.compile(
    r"\bextern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)

# In assembly a static of a template's function, so every __shared__ array: after it a gap that belongs to nobody.
STATIC = re.compile(r"^(_ZZ\w+):\n\t\.zero\t\d+$", re.MULTILINE)
GAP = 4096


def _host_source(found: Rung, type: str) -> str:
    """The rung's source as it is compiled: dynamic shared memory rewritten, line numbers kept; and how it is called."""
    text = EXTERN_SHARED.sub(r"\1 *const \2 = static_cast<\1 *>(emulator::dynamic_shared());", _source(found))
    types = list(dict.fromkeys(in_and_out(type)))
    headers = "".join(f"#include <{TYPES[name][2]}>\n" for name in types if TYPES[name][2])
    names = ", ".join(TYPES[name][0] for name in types)
    return (
        f'{headers}#line 1 "{found.source.name}"\n{text}\n#line 1 "call"\n'
        'extern "C" __attribute__((visibility("default"), no_sanitize("thread")))\n'
        f"void gpukernels_call(void **arguments) {{ emulator::call(&{found.symbol}<{names}>, arguments); }}\n"
    )


def compile_host(found: Rung, type: str, traced: bool) -> Path:
    """The rung's shared library for this CPU. Raises: KernelError with the compiler's words, ToolMissing."""
    who = f"{found} {type}"
    source, headers, runtime = _host_source(found, type), _headers(str(found)), _runtime()
    macros = [f"-D{name}={value}" for name, value in sorted(found.macros().items())]
    flags = [*FLAGS, *(TRACED if traced else PLAIN), *headers, *macros, "-include", "emulator.h"]
    known = [path.read_text("utf-8") for path in sorted(INCLUDE.rglob("*")) if path.is_file()]

    def build(path: Path) -> str:
        named = path.parent / found.source.name  # as debug information is to name it
        named.write_text(source, encoding="utf-8")
        kernel, assembly = path.with_suffix(".o"), path.with_suffix(".s")
        _run_compiler(who, [*flags, "-x", "c++", "-S", str(named), "-o", str(assembly)])
        if traced:
            assembly.write_text(STATIC.sub(rf"\g<0>\n\t.zero\t{GAP}", assembly.read_text("utf-8")), "utf-8")
        _run_compiler(who, ["-c", str(assembly), "-o", str(kernel)])
        linked = ["-shared", "-Wl,-Bsymbolic", "-o", str(path), str(kernel), str(runtime)]
        _run_compiler(who, linked)
        return found.symbol

    key = _digest("host", GAP, source, *flags, *known, runtime.name, _compiler()[1])
    return _compiled(key, ".so", build)[0]


# --- launches that are not one plain call with the operands: what the .py beside a .cu does on a GPU -----------------

Arguments = list[Any]


def _texture(library: ctypes.CDLL, addresses: list[int], sizes: list[int], dims: Arguments) -> Arguments:
    """A and B as textures that begin at the operand; its first element is number 0."""
    return [*map(ctypes.c_uint64, addresses), *dims, ctypes.c_int32(0), ctypes.c_int32(0)]


def _constant(library: ctypes.CDLL, addresses: list[int], sizes: list[int], dims: Arguments) -> Arguments:
    """A copied into the constant memory of the library."""
    ctypes.memmove(ctypes.addressof(ctypes.c_char.in_dll(library, "constant_A")), addresses[0], sizes[0])
    return [*map(ctypes.c_uint64, addresses[1:]), *dims]


PREPARATIONS: dict[str, Callable[..., Arguments]] = {"matmul_texture": _texture, "matmul_constant": _constant}


class EmulatedKernel(Kernel):
    """A .cu rung on NumPy arrays, run by this CPU; has finished when the call returns.

    `traced`: compiled so that its accesses can be checked and counted, many times slower.
    """

    def __init__(self, found: Rung, type: str, edge: int | None, traced: bool = False) -> None:
        for what, value, choice in (("type", type, found.types), ("edge", edge or None, (None, *found.edges))):
            _one_of(found, what, value, choice)
        super().__init__(found, type, edge if edge is not None else next(iter(found.edges), None))
        if found.source.suffix != ".cu":
            raise ToolMissing(f"{found} is no .cu: the emulator runs CUDA C++, got {found.source.name}")
        if found.preparation and found.symbol not in PREPARATIONS:
            raise ToolMissing(
                f"{found} is launched by {found.preparation.name}, for which the emulator has no stand-in"
            )
        self.path = compile_host(found, type, traced)
        self.library = ctypes.CDLL(str(self.path))
        self.block = (self.edge, self.edge) if self.edge else found.block

    def _array_module(self) -> Any:
        return np

    def extents(self, *inputs: Any) -> dict[str, int]:
        """The dimensions of these inputs. Raises: KernelError where they do not fit."""
        self.bind(*inputs)
        return self._shape(inputs, np)

    def _launch(self, operands: tuple[Any, ...], shape: dict[str, int]) -> Launch:
        addresses, sizes = [_pointer(operand) for operand in operands], [operand.nbytes for operand in operands]

        def run(_alive: object = operands) -> None:
            self.launch(addresses, sizes, shape)

        return Launch(operands[-1], self.path.stem[:16], run)

    def launch(
        self,
        addresses: list[int],
        sizes: list[int],
        shape: dict[str, int],
        mode: str = "plain",
        regions: Sequence[Region] = (),
    ) -> RawLaunch:
        """Run the kernel on operands at these addresses; what it returns holds the faults or tallies found."""
        dims: Arguments = [ctypes.c_int64(shape[dim]) for dim in self.rung.dims]
        if prepare := PREPARATIONS.get(self.rung.symbol):
            arguments = prepare(self.library, addresses, sizes, dims)
        else:
            arguments = [*map(ctypes.c_uint64, addresses), *dims]
        edge = self.edge
        shared = edge * (edge + self.rung.pad) * self.in_dtype.itemsize if edge else 0
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        faults, tallies = (RawFault * 64)(), (RawTally * 1024)()
        raw = RawLaunch(
            (ctypes.c_uint32 * 3)(*self.rung.grid(shape, edge)), (ctypes.c_uint32 * 3)(*self.block, 1),
            pointers, shared, (Region * len(regions))(*regions), len(regions), MODES[mode],
            faults, len(faults), 0, tallies, len(tallies), 0, 0, 0,
        )  # fmt: skip
        self.library.gpukernels_run(ctypes.byref(raw))
        return raw
