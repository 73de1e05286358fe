"""Finds the programs and headers that the engine uses; no other module searches for them."""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelwatch.system.errors import ToolMissing

# What a C or C++ compiler reads of the environment: where it looks for headers, libraries and its own programs.
COMPILER_ENVIRONMENT = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS"),
)


@dataclass(frozen=True)
class Tool:
    """A program. `command`: how it is called; `version`: the whole output of `--version`."""

    command: tuple[str, ...]
    version: str

    @property
    def key(self) -> str:
        """What decides what a compiler makes of the same source and options, headers apart: for the key of a cache."""
        return digest(*self.command, self.version, *(os.environ.get(name) for name in COMPILER_ENVIRONMENT))

    @property
    def title(self) -> str:
        """The first line of its version."""
        return self.version.partition("\n")[0]


def _tool(variable: str, names: tuple[str, ...], what: str) -> Tool:
    """The command in an environment variable, else the first of these names that is on the PATH.

    Raises: ToolMissing.
    """
    command = tuple(shlex.split(os.environ.get(variable, "")))
    command = command or next(((name,) for name in names if shutil.which(name)), ())
    if not command or not shutil.which(command[0]):
        wanted = command[0] if command else ", ".join(names)
        raise ToolMissing(f"no {what}: {wanted} not found; install gcc or set {variable}")
    return _asked(command)


@cache
def _asked(command: tuple[str, ...]) -> Tool:
    """A command with its version."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return Tool(command, done.stdout)


def c_compiler() -> Tool:
    """$CC, else cc, gcc or clang. Raises: ToolMissing."""
    return _tool("CC", ("cc", "gcc", "clang"), "C compiler")


def cxx_compiler() -> Tool:
    """$CXX, else g++; no other compiler by default, since the recorded access counts are g++'s. Raises: ToolMissing."""
    return _tool("CXX", ("g++",), "C++ compiler")


@cache
def cuda_headers() -> tuple[str, ...]:
    """The folders of CUDA's own headers (cuda_fp16.h, mma.h): the wheels', then the toolkit's."""
    folders: list[str] = []
    with suppress(ImportError):
        from cuda.pathfinder import locate_nvidia_header_directory

        for name in ("cudart", "nvcc"):
            if any(Path(folder, "crt").is_dir() for folder in folders):
                break  # CUDA 13 has nvcc's headers in the same folder; to look for what is not there starts a process
            place = locate_nvidia_header_directory(name)
            if place is not None and place.abs_path:
                folders.append(place.abs_path)
    if nvcc := shutil.which("nvcc"):
        folders.append(str(Path(nvcc).resolve().parent.parent / "include"))
    return tuple(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))


@cache
def nvdisasm() -> Tool:
    """NVIDIA's disassembler, from its wheel or the toolkit. Raises: ToolMissing."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        path = find_nvidia_binary_utility("nvdisasm")
    except ImportError:
        path = shutil.which("nvdisasm")
    if not path:
        raise ToolMissing("nvdisasm is not found; it comes with pip install nvidia-cuda-nvdisasm")
    return _asked((str(path),))


def ptxas_of_triton() -> dict[str, str]:
    """Name -> version of the assemblers that Triton calls, such as {"triton ptxas": "12.8.93"}; {} if Triton is not
    installed. They are Triton's own, unless an environment variable names another."""
    spec = importlib.util.find_spec("triton")
    versions: dict[str, str] = {}
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("ptxas", "ptxas-blackwell"):
            told = os.environ.get(f"TRITON_{name.upper().replace('-', '_')}_PATH", "")
            own = str(Path(folder, "backends", "nvidia", "bin", name))
            for path in (told, own) if told else (own,):  # as Triton looks for it
                with suppress(OSError):
                    if version := re.search(r"\bV(\d[\d.]*)", _asked((path,)).version):
                        versions.setdefault(f"triton {name}", version[1])
    return versions


def ncu() -> str:
    """The path of Nsight Compute's command-line profiler. Raises: ToolMissing."""
    return _of_toolkit("ncu", "Nsight Compute's ncu")


def compute_sanitizer() -> str:
    """The path of compute-sanitizer. Raises: ToolMissing."""
    return _of_toolkit("compute-sanitizer", "compute-sanitizer")


def _of_toolkit(name: str, title: str) -> str:
    path = shutil.which(name)
    if not path:
        raise ToolMissing(f"{title} is not on the PATH; it comes with the CUDA toolkit")
    return path


def read_by(rule: Path) -> set[Path]:
    """The files that a compiler read, of the rule for make that its option -MD writes."""
    _, _, names = rule.read_text(encoding="utf-8").replace("\\\n", " ").partition(": ")
    return {Path(re.sub(r"\\(.)", r"\1", name)) for name in re.findall(r"(?:\\.|\S)+", names)}


def digest(*parts: object) -> str:
    """The SHA-256 of some parts as text, in hexadecimal."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
