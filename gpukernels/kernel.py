"""Compile, load and launch: `load(op, rung, type)` gives a callable on CuPy arrays (NumPy for CPU rungs)."""

import ctypes
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy and CuPy the type bfloat16)
import numpy as np

from gpukernels.ladder import LadderError, Rung, rung

# Element type -> its name in CUDA C++ and in C, and CUDA's header for it. An op that only moves elements takes the
# unsigned types as bits.
TYPES = {
    "uint8": ("unsigned char", "unsigned char", ""),
    "uint16": ("unsigned short", "unsigned short", ""),
    "float16": ("__half", "_Float16", "cuda_fp16.h"),
    "bfloat16": ("__nv_bfloat16", "__bf16", "cuda_bf16.h"),
    "float32": ("float", "float", ""),
    "float64": ("double", "double", ""),
    "complex128": ("double2", "double _Complex", ""),
}

CUDA_STANDARD = "c++17"
SHARED_BYTES_MOST = 48 << 10  # dynamic shared memory that a kernel gets without asking for more
PREPARE = Path(__file__).with_name("prepare.py")  # what the preparations of launches share
C_FLAGS = ("-std=c11", "-O3", "-march=native", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")


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


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _compiled(key: str, suffix: str, build: Callable[[Path], str]) -> tuple[Path, str]:
    """A compiled file and the symbol in it, from the cache or from `build(path) -> symbol`.

    The note beside the file comes last and carries its hash: a file that was cut short is built again.
    """
    path = cache_folder() / f"{key}{suffix}"
    note = path.with_suffix(".json")
    try:
        known = json.loads(note.read_text())
        if hashlib.sha256(path.read_bytes()).hexdigest() == known["sha256"]:
            return path, str(known["symbol"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder, path.name)
        symbol = build(fresh)
        content = {"symbol": symbol, "sha256": hashlib.sha256(fresh.read_bytes()).hexdigest()}
        fresh_note = Path(folder, note.name)
        fresh_note.write_text(json.dumps(content))
        os.replace(fresh, path)
        os.replace(fresh_note, note)
    return path, symbol


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


def _source(found: Rung) -> str:
    """The text of a rung's source. Raises: KernelError where it includes a file of the project: a rung is one file, so
    that what it is compiled from, and is cached by, is all there."""
    text = found.source.read_text(encoding="utf-8")
    if include := re.search(r'^\s*#\s*include\s*"[^"]*"', text, re.MULTILINE):
        raise KernelError(f"{found}: {found.source.name} has {include[0].strip()}; a rung is one file")
    return text


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


def _capability(arch: str) -> int:
    """The number of an architecture such as "sm_90a"."""
    return int(re.sub(r"\D", "", arch))


def compile_cuda(found: Rung, type: str, arch: str) -> tuple[Path, str]:
    """A rung's cubin for one architecture ("sm_90") and the mangled name of its kernel; needs NVRTC, no GPU.

    Raises: KernelError with NVRTC's own words.
    """
    try:
        from cuda.bindings import nvrtc
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise ToolMissing(
            f"{found}: CUDA kernels are compiled through cuda-core, which is not installed: {error}"
        ) from error
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
    source = _source(found)
    folders = _cuda_headers() if headers or "#include" in source else ()
    if headers:  # the compiler's words keep the source's line numbers
        source = f"{headers}#line 1\n{source}"
    macros = [(name, str(value)) for name, value in sorted(found.macros().items())]
    name = f"{found.op}/{found.source.name}"

    def build(path: Path) -> str:
        options = ProgramOptions(
            name=name, arch=arch, std=CUDA_STANDARD, define_macro=macros, include_path=list(folders)
        )
        try:
            code = Program(source, "c++", options).compile("cubin", name_expressions=(expression,))
        except Exception as error:  # cuda-core's errors share no base class; its text is NVRTC's log
            raise KernelError(f"{found} {type}: NVRTC does not compile it for {arch}: {error}") from error
        path.write_bytes(bytes(code.code))
        return str(code.symbol_mapping[expression].decode())

    try:
        compiler = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-core")
        version = (*nvrtc.nvrtcVersion()[1:], *_versions(*compiler), *folders)
    except RuntimeError as error:
        raise ToolMissing(f"{found}: no NVRTC library is found (pip install nvidia-cuda-nvrtc): {error}") from error
    return _compiled(_digest("cubin", source, expression, macros, arch, CUDA_STANDARD, version), ".cubin", build)


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
    return command, _digest(*command, version, native, platform.machine())


def compile_c(found: Rung, type: str) -> tuple[Path, str]:
    """A rung's shared library for this machine's CPU and the name of its function.

    Raises: KernelError with the compiler's own words.
    """
    found = found.of(type)
    command, version = _c_compiler()
    source = _source(found)
    macros = [f"-D{name}={value}" for name, value in sorted(found.macros().items())]
    flags = [*C_FLAGS, *found.flags, *macros, f"-DT={TYPES[in_and_out(type)[0]][1]}"]

    def build(path: Path) -> str:
        done = subprocess.run(
            [*command, *flags, "-o", str(path), str(found.source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KernelError(f"{found} {type}: {shlex.join(command)} does not compile it: {done.stderr.strip()}")
        return found.symbol

    return _compiled(_digest("so", source, *flags, version), ".so", build)


# --- operands ------------------------------------------------------------------------------------------------------


def _pointer(array: Any) -> int:
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)


def _overlap(a: Any, b: Any) -> bool:
    return bool(_pointer(a) < _pointer(b) + b.nbytes and _pointer(b) < _pointer(a) + a.nbytes)


@dataclass(frozen=True)
class Launch:
    """A kernel bound to its operands. Calling it enqueues the work on CuPy's current stream and waits for nothing
    (a CPU rung has finished when the call returns). `out` is the output; `identity` says what is launched."""

    out: Any
    identity: str
    _run: Callable[[], object]

    def __call__(self) -> None:
        self._run()


class Kernel:
    """A rung for one element type: call it with its inputs, or `bind` them to time the bare launch.

    Inputs and output are C-contiguous CuPy arrays of the current device (NumPy arrays for a CPU rung, and for
    matmul/between_grids) of `type`, shaped as ladder.toml says: vector_add (N), (N) -> (N); transpose (M, N) -> (N, M);
    matmul (M, K), (K, N) -> (M, N). `out` is overwritten, and made where none is given; it must not overlap an input.
    Any dimension may be 0: then nothing is launched (a sum over nothing is 0).
    """

    def __init__(self, found: Rung, type: str, edge: int | None = None) -> None:
        self.rung = found.of(type)
        self.type = type
        self.edge = edge
        self.in_dtype, self.out_dtype = (np.dtype(name) for name in in_and_out(type))

    def __repr__(self) -> str:
        return f"<{self.rung} {self.type}>"

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """The output of the kernel on `inputs`; enqueued on the current stream, not synchronised.

        Raises: KernelError where an operand does not fit.
        """
        launch = self.bind(*inputs, out=out)
        launch()
        return launch.out

    def bind(self, *inputs: Any, out: Any = None) -> Launch:
        """Check the operands, make `out` where none is given, and return the launch, which has not run yet.

        Raises: KernelError where an operand does not fit.
        """
        module = self._array_module()
        shape = self._shape(inputs, module)
        wanted = tuple(shape[dim] for dim in self.rung.output.split())
        if out is None:
            out = module.empty(wanted, self.out_dtype)
        self._check(out, "out", wanted, module)
        if module is np and not out.flags.writeable:
            raise KernelError(f"{self.rung}: out is read-only; pass an array that can be written")
        for at, operand in enumerate(inputs):
            if _overlap(operand, out):
                raise KernelError(
                    f"{self.rung}: out overlaps input {at}; the rungs do not work in place, pass other memory"
                )
        for at, (operand, most) in enumerate(zip(inputs, self.rung.input_bytes_max, strict=False)):
            if operand.nbytes > most:
                raise LimitError(f"{self.rung}: input {at} must have at most {most} bytes, got {operand.nbytes}")
        if 0 in shape.values():
            return Launch(out, f"{self.rung} {self.type} nothing to do", lambda: out.fill(0))
        return self._launch((*inputs, out), shape)

    # What follows the operands in a call: an array module, a launch.

    def _array_module(self) -> Any:
        raise NotImplementedError

    def _launch(self, operands: tuple[Any, ...], shape: dict[str, int]) -> Launch:
        raise NotImplementedError

    def _shape(self, inputs: tuple[Any, ...], module: Any) -> dict[str, int]:
        patterns = self.rung.inputs
        if len(inputs) != len(patterns):
            raise KernelError(f"{self.rung} takes {len(patterns)} inputs ({'; '.join(patterns)}), got {len(inputs)}")
        shape: dict[str, int] = {}
        for at, (operand, pattern) in enumerate(zip(inputs, patterns, strict=True)):
            names = pattern.split()
            if isinstance(operand, module.ndarray) and operand.ndim == len(names):
                for dim, extent in zip(names, operand.shape, strict=True):
                    shape.setdefault(dim, extent)
            self._check(operand, f"input {at}", tuple(shape.get(dim, -1) for dim in names), module)
        return shape

    def _check(self, array: Any, which: str, wanted: tuple[int, ...], module: Any) -> None:
        who = f"{self.rung}: {which}"
        dtype = self.out_dtype if which == "out" else self.in_dtype
        if not isinstance(array, module.ndarray):
            kind = f"{type(array).__module__}.{type(array).__name__}"
            raise KernelError(f"{who} must be a {module.__name__}.ndarray ({self.rung.device} rung), got {kind}")
        if array.dtype != dtype:
            raise KernelError(f"{who} must be {dtype}, got {array.dtype}; load the rung for that type or convert")
        if array.ndim != len(wanted):
            raise KernelError(f"{who} must have {len(wanted)} dimensions, got shape {array.shape}")
        if array.shape != wanted:
            raise KernelError(f"{who} must have shape {wanted}, got {array.shape}")
        if not array.flags.c_contiguous:
            raise KernelError(
                f"{who} must be C-contiguous, got strides {array.strides} for shape {array.shape}; copy it"
            )
        # A view at an odd byte offset: the kernels use accesses of one element's width, aligned to it.
        if array.size and _pointer(array) % dtype.itemsize:
            raise KernelError(
                f"{who} must be aligned to its {dtype.itemsize}-byte elements, got address {_pointer(array):#x}"
            )


class _CpuKernel(Kernel):
    def __init__(self, found: Rung, type: str) -> None:
        super().__init__(found, type)
        if found.source.suffix == ".py":
            self._function: Any = python_function(found, found.source)
            self.identity = _digest(found.source.read_text(encoding="utf-8"), np.__version__)[:16]
        else:
            path, symbol = compile_c(found, type)
            self._function = getattr(ctypes.CDLL(str(path)), symbol)
            self._function.restype = None
            self.identity = hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    def _array_module(self) -> Any:
        return np

    def _launch(self, operands: tuple[Any, ...], shape: dict[str, int]) -> Launch:
        function = self._function
        if self.rung.source.suffix == ".py":
            return Launch(operands[-1], self.identity, lambda: function(*operands))
        arguments = [
            *(ctypes.c_void_p(_pointer(operand)) for operand in operands),
            *(ctypes.c_longlong(shape[dim]) for dim in self.rung.dims),
        ]

        def run(_alive: object = operands) -> None:  # the arguments are bare addresses: the operands must live on
            function(*arguments)

        return Launch(operands[-1], self.identity, run)


class _GpuKernel(Kernel):
    def __init__(self, found: Rung, type: str, edge: int | None) -> None:
        super().__init__(found, type, edge)
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device().id
        self._function: Any
        if found.source.suffix == ".py":
            self._function = python_function(found, found.source)
            library = self._function.__globals__.get("version", lambda: cupy.__version__)()
            self.identity = _digest(found.source.read_text(encoding="utf-8"), library)[:16]
            return
        path, symbol = compile_cuda(found, type, f"sm_{cupy.cuda.Device().compute_capability}")
        self.identity = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        self._prepare: Any = None
        if found.preparation:
            self._prepare = python_function(found, found.preparation)
            texts = (path.read_text(encoding="utf-8") for path in (found.preparation, PREPARE))
            self.identity = _digest(self.identity, *texts)[:16]
        try:
            self._module = cupy.RawModule(path=str(path))
            self._function = self._module.get_function(symbol)
            self._function.compile()  # loads it now: a first launch inside a graph capture must not
            if (shared := self.rung.shared_bytes(self.in_dtype.itemsize, edge)) > SHARED_BYTES_MOST:
                self._function.max_dynamic_shared_size_bytes = shared
        except cupy.cuda.driver.CUDADriverError as error:
            raise KernelError(
                f"{found}: the driver does not load what NVRTC made ({error}); "
                f"an NVRTC of the driver's own CUDA major version would do"
            ) from error

    def _array_module(self) -> Any:
        return self._cupy

    def _check(self, array: Any, which: str, wanted: tuple[int, ...], module: Any) -> None:
        super()._check(array, which, wanted, module)
        current = self._cupy.cuda.Device().id
        if array.device.id != current:
            raise KernelError(
                f"{self.rung}: {which} is on GPU {array.device.id}, the current device is GPU {current}; "
                f"move it or enter its device first"
            )

    def _launch(self, operands: tuple[Any, ...], shape: dict[str, int]) -> Launch:
        if self._device != self._cupy.cuda.Device().id:
            raise KernelError(
                f"{self.rung}: loaded for GPU {self._device}, the current device is GPU "
                f"{self._cupy.cuda.Device().id}; load it again there"
            )
        function = self._function
        if self.rung.source.suffix == ".py":
            return Launch(operands[-1], self.identity, lambda: function(*operands))
        grid = self.rung.grid(shape, self.edge)
        block = self.rung.block_threads(self.edge)
        shared = self.rung.shared_bytes(self.in_dtype.itemsize, self.edge)
        dims = tuple(np.int64(shape[dim]) for dim in self.rung.dims)
        arguments = (*operands, *dims)
        identity = _digest(self.identity, grid, block, shared)[:16]
        if self._prepare:
            enqueue = functools.partial(function, shared_mem=shared)
            prepared = self._prepare(self.rung, self._module, enqueue, grid, block, operands, dims)
            return Launch(operands[-1], identity, prepared)
        return Launch(operands[-1], identity, lambda: function(grid, block, arguments, shared_mem=shared))


class _HostKernel(Kernel):
    """A GPU rung that takes its operands from the host's memory and has finished when the call returns."""

    def __init__(self, found: Rung, type: str, options: dict[str, Any]) -> None:
        super().__init__(found, type)
        self._function = functools.partial(python_function(found, found.source), **options)
        self.identity = _digest(found.source.read_text(encoding="utf-8"))[:16]

    def _array_module(self) -> Any:
        return np

    def _launch(self, operands: tuple[Any, ...], shape: dict[str, int]) -> Launch:
        return Launch(operands[-1], self.identity, lambda: self._function(*operands))


@cache
def python_function(found: Rung, path: Path) -> Callable[..., Any]:
    """The function of a .py; its module is loaded once, and may keep what it makes, such as a library's handle."""
    spec = importlib.util.spec_from_file_location(f"gpukernels.{found.op}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, found.symbol)  # type: ignore[no-any-return]


def _one_of(found: Rung, what: str, value: object, choice: Iterable[object]) -> None:
    if value not in choice:
        raise LadderError(f"{found} has no {what} {value}; it has {', '.join(map(str, choice)) or f'no {what}s'}")


def _options(found: Rung) -> list[str]:
    """The options that a rung on host operands takes: the keyword arguments of its function."""
    if found.operands != "host":
        return []
    parameters = inspect.signature(python_function(found, found.source)).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _gpu_needed(who: str) -> None:
    """Raises: ToolMissing if CuPy or a GPU is missing."""
    try:
        import cupy
    except ImportError as error:
        raise ToolMissing(f"{who}: GPU rungs need CuPy, which cannot be imported: {error}") from error
    try:
        cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ToolMissing(f"{who}: a GPU rung needs a CUDA GPU and its driver here: {error}") from None


def load(op: str, name: str, type: str = "float32", *, edge: int | None = None, **options: Any) -> Kernel:
    """The rung `op`/`name` for one element type, compiled, as a callable on arrays; see Kernel. "best" is the fastest
    rung on this GPU for each shape; see best.py.

    `type`: of all operands, or in->out, such as float16->float32. `edge`: the tile's edge, for a rung that takes it at
    run time (its first where none is given). `options`: those of a rung on host operands, such as
    matmul/between_grids. A GPU rung is loaded for the current device. Compiled once and kept in the user's cache
    ($GPUKERNELS_CACHE) across processes.

    Raises: LadderError for a rung, type, edge or option that does not exist; KernelError where it cannot be compiled or
    there is no GPU to load it on.
    """
    if not isinstance(type, str):  # NumPy's own types are welcome
        type = np.dtype(type).name
    if name == "best":
        _gpu_needed(f"{op}/best")
        from gpukernels.best import Best  # which loads rungs by this function

        if edge is not None or options:
            raise LadderError(f"{op}/best takes no edge and no options; load a rung by its name")
        return Best(op, type)
    found = rung(op, name)
    _one_of(found, "type", type, found.types)
    if unknown := [part for part in in_and_out(type) if part not in TYPES]:
        raise LadderError(
            f"{found}: ladder.toml gives it type {unknown[0]}, which has no name in C; it may be of {', '.join(TYPES)}"
        )
    if edge is not None:
        _one_of(found, "edge", edge, found.edges)
    for option in options:
        _one_of(found, "option", option, _options(found))
    if found.device == "cpu":
        return _CpuKernel(found, type)
    _gpu_needed(str(found))
    if found.operands == "host":
        return _HostKernel(found, type, options)
    return _GpuKernel(found, type, edge if edge is not None else next(iter(found.edges), None))
