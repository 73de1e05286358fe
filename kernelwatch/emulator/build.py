"""Compile CUDA source for the CPU and launch it."""

import ctypes
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache as once
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy the type bfloat16)
import numpy as np
from numpy.typing import NDArray

from kernelwatch.plan.package import CudaSource
from kernelwatch.system import cache, tools
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.files import write_whole
from kernelwatch.system.tools import digest

HERE = Path(__file__).parent
INCLUDE = HERE / "include"

STANDARD = "c++17"  # for the runtime; a source may require a newer standard
FLAGS = ("-fPIC", "-fno-gnu-unique", "-fno-threadsafe-statics", "-fno-strict-aliasing",
         "-ffp-contract=off", "-w")  # fmt: skip
# Each access in the source becomes one call (struct members stay together), and each index past a known extent another.
# The read of a struct that is passed by value is seen only if the function is inlined, as for conversions of a __half.
INLINED = (
    *("-finline-functions", "-finline-small-functions", "-findirect-inlining"),
    *("--param=max-inline-insns-auto=1000", "--param=inline-unit-growth=1000", "--param=large-function-growth=10000"),
)
OPTIMIZED = ("-O1", "-g", "-fsanitize=thread,bounds", "-fno-tree-sra", *INLINED)

GLOBAL, SHARED, CONSTANT, HIDDEN = range(4)  # RegionKind in runtime.cpp
MODES = {"run": 0, "check": 1, "count": 2}


class Region(ctypes.Structure):
    """Memory that a kernel may touch. This structure and the next three mirror runtime.cpp."""

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
        *((name, ctypes.c_uint64) for name in ("requests", "cost", "ideal", "bytes", "unpaired", "split")),
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


class CompileError(Exception):
    """The C++ compiler rejected a source; the message contains its output."""


def _run_compiler(who: str, arguments: Sequence[str]) -> None:
    compiler = tools.cxx_compiler().command
    done = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    if re.search(r"Assembler messages|impossible constraint|invalid 'asm'|operand number out of range", done.stderr):
        raise ToolMissing(
            f"{who} has inline PTX without a host body under #ifdef KERNELWATCH_HOST; a CPU cannot run it"
        )
    raise CompileError(f"{who}: {compiler[0]} does not compile it: {done.stderr.strip()}")


def _headers(who: str) -> list[str]:
    folders = tools.cuda_headers()
    if not any(Path(folder, "vector_types.h").is_file() for folder in folders):
        raise ToolMissing(f"{who}: CUDA's headers are not found (pip install nvidia-cuda-runtime nvidia-cuda-crt)")
    return [f"-I{folder}" for folder in (own_headers(), *folders)]


def own_headers() -> Path:
    """The emulator's headers in a folder of the cache, named by their content: copies of the engine, such as clones,
    share what is compiled with them."""
    headers = sorted(path for path in INCLUDE.rglob("*") if path.is_file())
    texts = {path.relative_to(INCLUDE): path.read_text("utf-8") for path in headers}
    home = cache.folder() / f"include-{digest(*texts.items())[:24]}"
    for name, text in texts.items():
        kept = home / name
        if not kept.is_file() or kept.read_text("utf-8") != text:
            write_whole(kept, text)
    return home


def _runtime() -> Path:
    """The runtime as an object file, which is the same for every kernel."""
    source = HERE / "runtime.cpp"
    flags = [f"-std={STANDARD}", *FLAGS, "-O2", "-fvisibility=hidden", *_headers("the emulator")]

    def build(path: Path) -> set[Path]:
        rule = path.with_suffix(".d")
        _run_compiler("the emulator", [*flags, "-MD", "-MF", str(rule), "-c", str(source), "-o", str(path)])
        return tools.read_by(rule)

    return cache.built(_key("emulator", source.read_text("utf-8"), *flags), ".o", build)


def _key(*inputs: object) -> str:
    """The key of a compiled file: also of the compiler and of this module, which says how it is called."""
    return digest(*inputs, tools.cxx_compiler().key, _own_text())


@once
def _own_text() -> str:
    return Path(__file__).read_text("utf-8")


EXTERN_SHARED = re.compile(
    r"\bextern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)

QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)

# Matches a static variable of a template function in assembly, which every __shared__ array is. A gap of GAP bytes is
# added after it, so that an access past its end touches no other array.
STATIC = re.compile(r"^(_ZZ\w+):\n\t\.zero\t\d+$", re.MULTILINE)
GAP = 4096


def _host_source(source: CudaSource) -> str:
    """The source as it is compiled, with dynamic shared memory rewritten, line numbers kept and its caller appended."""
    text = EXTERN_SHARED.sub(
        r"\1 *const \2 = static_cast<\1 *>(emulator::dynamic_shared());", source.path.read_text(encoding="utf-8")
    )
    headers = "".join(f"#include <{name}>\n" for name in source.headers)
    template = f"<{', '.join(source.template)}>" if source.template else ""
    return (
        f'{headers}#line 1 "{source.path.name}"\n{text}\n#line 1 "call"\n'
        'extern "C" __attribute__((visibility("default"), no_sanitize("thread")))\n'
        f"void kernelwatch_call(void **arguments) {{ emulator::call(&{source.entry}{template}, arguments); }}\n"
    )


def headers_beside(path: Path) -> dict[Path, str]:
    """The headers in a source's folder that it includes, directly or not, and their texts. These are part of its key,
    as the source's own text: commits whose sources are alike share what is compiled, wherever their trees lie."""
    found: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        including = waiting.pop()
        for name in QUOTED.findall(including.read_text(encoding="utf-8")):
            header = including.parent / name
            if header.is_file() and header not in found:
                found[header] = header.read_text(encoding="utf-8")
                waiting.append(header)
    return dict(sorted(found.items()))


def _precompiled(headers: Sequence[str], options: Sequence[str]) -> tuple[str, Path]:
    """The text of a header that includes emulator.h and CUDA's headers, and its precompiled form for these options.
    Without that, parsing the header would take most of the time of compiling a kernel."""
    text = "".join(f"#include <{name}>\n" for name in ("emulator.h", *headers))

    def build(path: Path) -> set[Path]:
        header, rule = path.with_suffix(""), path.with_suffix(".d")
        header.write_text(text, encoding="utf-8")
        written = ["-MD", "-MF", str(rule), "-x", "c++-header", str(header), "-o", str(path)]
        _run_compiler("the emulator", [*options, *written])
        return tools.read_by(rule) - {header}

    return text, cache.built(_key("precompiled", text, *options), ".h.gch", build)


def compile_host(source: CudaSource) -> Path:
    """Compile a source to a shared library. Raises: CompileError with the compiler's output, ToolMissing."""
    who = f"{source} {'->'.join(dict.fromkeys(source.types))}"
    text, headers, runtime = _host_source(source), _headers(str(source)), _runtime()
    macros = [f"-D{name}={value}" for name, value in sorted(source.macros.items())]
    options = [f"-std={source.standard}", *FLAGS, *OPTIMIZED, *headers]
    flags = [*options, *macros, "-include", "emulator.h"]
    folder, beside = source.path.parent, headers_beside(source.path)

    def build(path: Path) -> set[Path]:
        copy = path.parent / source.path.name  # the source's own name, for the debug information
        copy.write_text(text, encoding="utf-8")
        included, precompiled = _precompiled(source.headers, options)
        header = path.with_suffix(".h")
        header.write_text(included, encoding="utf-8")  # the compiler reads it if it cannot use the precompiled one
        header.with_suffix(".h.gch").symlink_to(precompiled)
        assembly, rule = path.with_suffix(".s"), path.with_suffix(".d")
        written = ["-MD", "-MF", str(rule), "-S", str(copy), "-o", str(assembly)]
        _run_compiler(who, [*options, *macros, "-iquote", str(folder), "-include", str(header), "-x", "c++", *written])
        assembly.write_text(STATIC.sub(rf"\g<0>\n\t.zero\t{GAP}", assembly.read_text("utf-8")), "utf-8")
        _run_compiler(who, ["-shared", "-Wl,-Bsymbolic", "-o", str(path), str(assembly), str(runtime)])
        return {file for file in tools.read_by(rule) - beside.keys() if path.parent not in file.parents} | {runtime}

    own = [part for header, inside in beside.items() for part in (os.path.relpath(header, folder), inside)]
    return cache.built(_key("host", text, *own, *flags, runtime.name), ".so", build)


class EmulatedKernel:
    """A CUDA source, compiled for this CPU. Raises: CompileError, ToolMissing."""

    def __init__(self, source: CudaSource) -> None:
        if source.path.suffix != ".cu":
            raise ToolMissing(f"{source}: the emulator runs CUDA C++ from a .cu file, got {source.path.name}")
        self.source = source
        self.in_dtype, self.out_dtype = (np.dtype(name) for name in source.types)
        self.path = compile_host(source)
        self.library = ctypes.CDLL(str(self.path))

    def extents(self, *inputs: NDArray[Any]) -> dict[str, int]:
        """The extents of these inputs by name. Raises: ValueError if they do not match the source."""
        extents: dict[str, int] = {}
        if len(inputs) != len(self.source.inputs):
            raise ValueError(f"{self.source} takes {len(self.source.inputs)} inputs, got {len(inputs)}")
        for at, (operand, pattern) in enumerate(zip(inputs, self.source.inputs, strict=True)):
            names = pattern.split()
            if operand.dtype != self.in_dtype or operand.ndim != len(names) or not operand.flags.c_contiguous:
                raise ValueError(
                    f"{self.source}: input {at} must be C-contiguous {self.in_dtype} of shape ({pattern}), got "
                    f"{operand.dtype} {operand.shape}"
                )
            for name, extent in zip(names, operand.shape, strict=True):
                if extents.setdefault(name, extent) != extent:
                    raise ValueError(f"{self.source}: input {at} has {name} = {extent}, another has {extents[name]}")
        return extents

    def launch(
        self,
        addresses: list[int],
        sizes: list[int],
        extents: dict[str, int],
        mode: str,
        regions: Sequence[Region],
    ) -> RawLaunch:
        """Run the kernel on operands at these addresses. The result holds the faults or tallies. `regions`: all memory
        that the kernel may touch."""
        source = self.source
        dims = [ctypes.c_int64(extents[dim]) for dim in source.dims]
        if source.arguments:
            arguments = source.arguments(self.library, addresses, sizes, dims)
        else:
            arguments = [*map(ctypes.c_uint64, addresses), *dims]
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        faults, tallies = (RawFault * 64)(), (RawTally * 1024)()
        raw = RawLaunch(
            (ctypes.c_uint32 * 3)(*source.grid(extents)), (ctypes.c_uint32 * 3)(*source.block, 1),
            pointers, source.dynamic_shared_bytes, (Region * len(regions))(*regions), len(regions), MODES[mode],
            faults, len(faults), 0, tallies, len(tallies), 0, 0, 0,
        )  # fmt: skip
        self.library.kernelwatch_run(ctypes.byref(raw))
        return raw
