"""Compile rungs, and keep what was compiled in the user's cache: CUDA C++ by NVRTC, C by the machine's compiler."""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import ml_dtypes  # noqa: F401 (gives NumPy and CuPy the types bfloat16 and float8)

from gpukernels.ladder import Rung

# Element type -> its name in CUDA C++ and in C, and CUDA's header for it. An op that only moves elements takes the
# unsigned types as bits. C has no 8-bit floating-point type.
TYPES = {
    "uint8": ("unsigned char", "unsigned char", ""),
    "uint16": ("unsigned short", "unsigned short", ""),
    "float8_e4m3fn": ("__nv_fp8_e4m3", "", "cuda_fp8.h"),
    "float16": ("__half", "_Float16", "cuda_fp16.h"),
    "bfloat16": ("__nv_bfloat16", "__bf16", "cuda_bf16.h"),
    "float32": ("float", "float", ""),
    "float64": ("double", "double", ""),
    "complex128": ("double2", "double _Complex", ""),
}

CUDA_STANDARD = "c++17"
C_FLAGS = ("-std=c11", "-O3", "-march=native", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
# What a C compiler reads of the environment: where it looks for headers, libraries and its own programs.
C_ENVIRONMENT = (
    *("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SOURCE_DATE_EPOCH"),
    "CCC_OVERRIDE_OPTIONS",
)


class KernelError(ValueError):
    """A kernel cannot be compiled, or not be called with these operands; says which and what would be right."""


class LimitError(KernelError):
    """Operands that are right, but larger than this rung takes; ladder.toml says how large they may be."""


class ToolMissing(KernelError):
    """This machine lacks what compiles or runs a kernel: a compiler, NVRTC, CuPy, a GPU."""


# --- compiled files, kept across processes -------------------------------------------------------------------------


@cache
def cache_folder() -> Path:
    """Where compiled kernels are kept: $GPUKERNELS_CACHE, else the user's cache; a temporary folder if read-only."""
    wanted = os.environ.get("GPUKERNELS_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpukernels"
    )
    folder = Path(wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="gpukernels-"))
    return folder


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _compiled(
    suffix: str, inputs: Iterable[object], build: Callable[[Path], tuple[str, Iterable[Path]]]
) -> tuple[Path, str]:
    """A compiled file and the symbol in it, from the cache or from `build(path) -> symbol, headers that were read`.

    `inputs`: everything that decides what `build` makes, but the headers of others, such as CUDA's: they are known only
    afterwards, so their hashes stand in the note beside the file. The note comes last and carries the file's hash, too.
    A file that was cut short is built again, and so is one of which a header changed. This module's own text is an
    input as well: an edit of how it compiles is never answered with what was compiled before.
    """
    path = cache_folder() / f"{digest(_own_text(), suffix, *inputs)}{suffix}"
    note = path.with_suffix(".json")
    try:
        known = json.loads(note.read_text())
        same = all(_sha256(Path(name)) == sha256 for name, sha256 in known["headers"].items())
        if same and _sha256(path) == known["sha256"]:
            return path, str(known["symbol"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder, path.name)
        symbol, headers = build(fresh)
        read = {str(header): _sha256(header) for header in sorted(set(headers))}
        content = {"symbol": symbol, "sha256": _sha256(fresh), "headers": read}
        fresh_note = Path(folder, note.name)
        fresh_note.write_text(json.dumps(content))
        os.replace(fresh, path)
        os.replace(fresh_note, note)
    return path, symbol


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _own_text() -> str:
    return Path(__file__).read_text(encoding="utf-8")


@cache
def _versions(*packages: str) -> tuple[str, ...]:
    """The installed versions, "" where a package is not installed (NVRTC may come with a toolkit instead)."""
    import importlib.metadata  # only to compile CUDA code: it takes a third as long as importing NumPy

    found = []
    for package in packages:
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            found.append("")
    return tuple(found)


def _source(found: Rung) -> tuple[str, dict[Path, str]]:
    """The text of a rung's source, and of the headers in the op's folder that it includes, directly or not.

    The headers' texts are inputs of what is compiled, as the source's: trees that differ in a header share no binary.
    """
    text = found.source.read_text(encoding="utf-8")
    own = sorted(_reached(text, [str(found.source.parent)]))
    return text, {path: path.read_text(encoding="utf-8") for path in own}


def _texts(found: Rung, headers: dict[Path, str]) -> list[tuple[str, str]]:
    """Headers by their names, which are the same in every tree, with their texts."""
    return [(os.path.relpath(path, found.source.parent), text) for path, text in headers.items()]


def in_and_out(type: str) -> tuple[str, str]:
    """The element types of a rung's inputs and of its output: "float32" is both, "float16->float32" names them."""
    into, arrow, out = type.partition("->")
    return into, out if arrow else into


@cache
def _cuda_headers() -> tuple[str, ...]:
    """The folders of CUDA's own headers (cuda_fp16.h, mma.h): a toolkit's, or those of its wheels."""
    from cuda.pathfinder import locate_nvidia_header_directory

    found = [locate_nvidia_header_directory(name) for name in ("cudart", "nvcc")]
    folders = [where.abs_path for where in found if where is not None and where.abs_path]
    if nvcc := shutil.which("nvcc"):
        folders.append(str(Path(nvcc).resolve().parent.parent / "include"))
    return tuple(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))


INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def _reached(text: str, folders: Iterable[str]) -> set[Path]:
    """The headers that a source includes, directly or not, whatever its conditions say: NVRTC does not tell which it
    read. Those that are not in `folders` are NVRTC's own."""
    found: set[Path] = set()
    wanted = [(name, tuple(map(Path, folders))) for name in INCLUDE.findall(text)]
    while wanted:
        name, places = wanted.pop()
        header = next((place / name for place in places if (place / name).is_file()), None)
        if header is not None and header not in found:
            found.add(header)
            below = (header.parent, *map(Path, folders))
            wanted += [(name, below) for name in INCLUDE.findall(header.read_text(encoding="utf-8", errors="replace"))]
    return found


def _capability(arch: str) -> int:
    """The number of an architecture such as "sm_90a"."""
    return int(re.sub(r"\D", "", arch))


def compile_cuda(found: Rung, type: str, arch: str) -> tuple[Path, str]:
    """A rung's cubin for one architecture ("sm_90") and the mangled name of its kernel; needs NVRTC, no GPU.

    Raises: KernelError with NVRTC's own words.
    """
    missing = f"{found}: CUDA kernels are compiled through cuda-core, which is not installed"
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ToolMissing(f"{missing}: {error}") from error
    found = found.of(type)
    least, here = dict(found.arch_min).get(type, 0), _capability(arch)
    if here < least:
        raise ToolMissing(f"{found}: {type} needs compute capability {least / 10}, {arch} has {here / 10}")
    if found.arch_only:
        if here != (only := _capability(found.arch_only)):
            raise ToolMissing(
                f"{found}: its instructions are those of compute capability {only / 10} alone, not {arch}'s"
            )
        arch = f"sm_{found.arch_only}"
    into, out = in_and_out(type)
    expression = f"{found.symbol}<{', '.join(dict.fromkeys(TYPES[name][0] for name in (into, out)))}>"
    headers = "".join(f"#include <{TYPES[name][2]}>\n" for name in dict.fromkeys((into, out)) if TYPES[name][2])
    source, own = _source(found)
    folders = list(_cuda_headers() if headers or INCLUDE.search(source) else ())
    if headers:  # the compiler's words keep the source's line numbers
        source = f"{headers}#line 1\n{source}"
    searched = [str(found.source.parent), *folders] if own else folders
    options = {
        # Absolute: NVRTC looks for headers in its folder first, and <op> of the current folder may be another tree's.
        "name": f"/{found.op}/{found.source.name}",
        "arch": arch,
        "std": CUDA_STANDARD,
        "define_macro": [(name, str(value)) for name, value in sorted(found.macros().items())],
        "include_path": searched,
    }

    def build(path: Path) -> tuple[str, Iterable[Path]]:
        try:  # here, since it takes longer than to find a cubin in the cache
            from cuda.core import Program, ProgramOptions
        except ImportError as error:
            raise ToolMissing(f"{missing}: {error}") from error
        try:
            program = Program(source, "c++", ProgramOptions(**options))
            code = program.compile("cubin", name_expressions=(expression,))
        except Exception as error:  # cuda-core's errors share no base class; its text is NVRTC's log
            raise KernelError(f"{found} {type}: NVRTC does not compile it for {arch}: {error}") from error
        path.write_bytes(bytes(code.code))
        read = _reached(source, searched)
        return str(code.symbol_mapping[expression].decode()), read - own.keys()

    try:
        version = (*nvrtc.nvrtcVersion()[1:], *_versions("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-core"))
    except RuntimeError as error:
        raise ToolMissing(f"{found}: no NVRTC library is found (pip install nvidia-cuda-nvrtc): {error}") from error
    inputs = (source, _texts(found, own), expression, options | {"include_path": folders}, version)
    return _compiled(".cubin", inputs, build)


@cache
def _c_compiler() -> tuple[tuple[str, ...], str]:
    """The C compiler's command ($CC, else cc, gcc or clang) and what it says of its version and this CPU."""
    command = tuple(shlex.split(os.environ.get("CC", ""))) or next(
        ((name,) for name in ("cc", "gcc", "clang") if shutil.which(name)), ()
    )
    if not command or not shutil.which(command[0]):
        raise ToolMissing(
            f"no C compiler: {command[0] if command else 'cc, gcc, clang'} not found; install one or set CC"
        )
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    # -march=native means another binary on another CPU, under one cache that may lie in a shared home.
    native = subprocess.run(
        [*command, "-march=native", "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=False
    ).stdout
    return command, digest(*command, version, native, platform.machine())


def compile_c(found: Rung, type: str) -> tuple[Path, str]:
    """A rung's shared library for this machine's CPU and the name of its function.

    Raises: KernelError with the compiler's own words.
    """
    found = found.of(type)
    command, version = _c_compiler()
    source, own = _source(found)
    macros = [f"-D{name}={value}" for name, value in sorted(found.macros().items())]
    flags = [*C_FLAGS, *found.flags, *macros, f"-DT={TYPES[in_and_out(type)[0]][1]}"]

    def build(path: Path) -> tuple[str, Iterable[Path]]:
        rule = path.with_suffix(".d")
        written = ["-MD", "-MF", str(rule), "-o", str(path)]
        done = subprocess.run(
            [*command, *flags, *written, str(found.source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KernelError(f"{found} {type}: {shlex.join(command)} does not compile it: {done.stderr.strip()}")
        return found.symbol, _headers_in(rule.read_text(encoding="utf-8")) - {found.source, *own}

    environment = {name: os.environ.get(name) for name in C_ENVIRONMENT}
    return _compiled(".so", (source, _texts(found, own), flags, version, environment), build)


def _headers_in(rule: str) -> set[Path]:
    """The files that a compiler read, of the rule for make that -MD writes."""
    _, _, names = rule.replace("\\\n", " ").partition(": ")
    return {Path(re.sub(r"\\(.)", r"\1", name)) for name in re.findall(r"(?:\\.|\S)+", names)}
