"""Load and launch: `load_rung(op, rung, type)` gives a callable on CuPy arrays (NumPy for CPU rungs)."""

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpukernels.compiler import (
    TYPES,
    KernelError,
    LimitError,
    ToolMissing,
    compile_c,
    compile_cuda,
    digest,
    in_and_out,
)
from gpukernels.ladder import LadderError, Rung, rung
from gpukernels.specialization import Specialization

__all__ = [
    "Kernel",
    "KernelError",
    "Launch",
    "LimitError",
    "ToolMissing",
    "load_rung",
    "python_function",
    "specialized",
]

PREPARE = Path(__file__).with_name("prepare.py")  # what the preparations of launches share
TORCH_STREAM = Path(__file__).with_name("torch_stream.py")  # what the rungs that need PyTorch share
SHARED_BYTES_MOST = 48 << 10  # dynamic shared memory that a kernel gets without asking for more


# --- operands ------------------------------------------------------------------------------------------------------


def _pointer(array: Any) -> int:
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)


def _overlap(a: Any, b: Any) -> bool:
    return bool(_pointer(a) < _pointer(b) + b.nbytes and _pointer(b) < _pointer(a) + a.nbytes)


@dataclass(frozen=True)
class Launch:
    """A kernel bound to its operands. Calling it enqueues the work on CuPy's current stream and waits for nothing
    (a CPU rung has finished when the call returns). `out` is the output; `identity` says what is launched.

    `has_memory`: the launch has memory of its own. Enqueue it on one stream at a time, and keep it as long as a graph
    that was captured from it is replayed.
    """

    out: Any
    identity: str
    _run: Callable[[], object]
    has_memory: bool = False

    def __call__(self) -> None:
        self._run()


class Kernel:
    """A rung for one element type: call it with its inputs, or `bind` them to time the bare launch.

    Inputs and output are C-contiguous CuPy arrays of the current device (NumPy arrays for a CPU rung, and for
    matmul/between_grids) of `type`, shaped as ladder.toml says: vector_add (N), (N) -> (N); transpose (M, N) -> (N, M);
    matmul (M, K), (K, N) -> (M, N). `out` is overwritten, and made where none is given; it must not overlap an input.
    Any dimension may be 0: then nothing is launched (a sum over nothing is 0). CuPy makes no float8 arrays, but views
    its bytes as such: `bytes.view("float8_e4m3fn")`.
    """

    def __init__(self, found: Rung, type: str, edge: int | None = None) -> None:
        self.rung = found.of(type)
        self.type = type
        self.edge = edge
        self.in_dtype, self.out_dtype = (np.dtype(name) for name in in_and_out(type))

    def __repr__(self) -> str:
        return f"<{self.rung} {self.type}>"

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """The output of the kernel on `inputs`; enqueued on the current stream, not synchronized.

        Raises: KernelError where an operand does not fit, or in a capture if the launch has memory of its own.
        """
        launch = self.bind(*inputs, out=out)
        if launch.has_memory and self._array_module().cuda.get_current_stream().is_capturing():
            raise KernelError(
                f"{self.rung}: the launch has memory that a graph needs whenever it is replayed; bind it before the "
                f"capture, call the launch in it, and keep the launch"
            )
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
            self.identity = digest(found.source.read_text(encoding="utf-8"), np.__version__)[:16]
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
            function = python_function(found, found.source)
            library = function.__globals__.get("version", lambda: cupy.__version__)()
            sources = (found.source, TORCH_STREAM) if "torch" in found.needs else (found.source,)
            text = "".join(path.read_text(encoding="utf-8") for path in sources)
            self.identity = digest(text, library, *found.constants)[:16]
            self._function = functools.partial(function, **{name.lower(): value for name, value in found.constants})
            return
        path, symbol = compile_cuda(found, type, f"sm_{cupy.cuda.Device().compute_capability}")
        self.identity = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        self._prepare: Any = None
        if found.preparation:
            self._prepare = python_function(found, found.preparation)
            texts = (path.read_text(encoding="utf-8") for path in (found.preparation, PREPARE))
            self.identity = digest(self.identity, *texts)[:16]
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
        identity = digest(self.identity, grid, block, shared)[:16]
        if self._prepare:
            from gpukernels.prepare import Call, Enqueue

            call = Call(self.rung, self._module, Enqueue(function, shared), grid, block, operands, dims)
            return Launch(operands[-1], identity, self._prepare(call), has_memory=True)
        return Launch(operands[-1], identity, lambda: function(grid, block, arguments, shared_mem=shared))


class _HostKernel(Kernel):
    """A GPU rung that takes its operands from the host's memory and has finished when the call returns."""

    def __init__(self, found: Rung, type: str, options: dict[str, Any]) -> None:
        super().__init__(found, type)
        self._function = functools.partial(python_function(found, found.source), **options)
        self.identity = digest(found.source.read_text(encoding="utf-8"))[:16]

    def _array_module(self) -> Any:
        return np

    def _launch(self, operands: tuple[Any, ...], shape: dict[str, int]) -> Launch:
        return Launch(operands[-1], self.identity, lambda: self._function(*operands))


class _SeveralKernel(_GpuKernel):
    """A rung of several GPUs: each process binds its parts of the operands, and the communicator of all of them."""

    def bind(self, *inputs: Any, out: Any = None, communicator: Any = None) -> Launch:
        """The launch of this process's part, whose shapes the rung's function checks. `communicator`: CuPy's
        NcclCommunicator.

        Raises: KernelError where an operand does not fit.
        """
        if out is None or communicator is None or len(inputs) != len(self.rung.inputs):
            raise KernelError(f"{self.rung}: needs {len(self.rung.inputs)} inputs, out and communicator")
        for at, operand in enumerate(inputs):
            self._check(operand, f"input {at}", getattr(operand, "shape", ()), self._cupy)
            if _overlap(operand, out):
                raise KernelError(f"{self.rung}: out overlaps input {at}; pass other memory")
        self._check(out, "out", getattr(out, "shape", ()), self._cupy)
        return Launch(out, self.identity, self._function(*inputs, out, communicator=communicator))


@cache
def python_function(found: Rung, path: Path) -> Callable[..., Any]:
    """The function of a .py; its module is loaded once, and may keep what it makes, such as a library's handle."""
    spec = importlib.util.spec_from_file_location(f"gpukernels.{found.op}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"{found.op}_{path.stem}" if path.name == found.launcher else found.symbol)  # type: ignore[no-any-return]


def _one_of(found: Rung, what: str, value: object, choice: Iterable[object]) -> None:
    if value not in choice:
        raise LadderError(f"{found} has no {what} {value}; it has {', '.join(map(str, choice)) or f'no {what}s'}")


def _options(found: Rung) -> list[str]:
    """The options that a rung on host operands takes: the keyword arguments of its function."""
    if found.operands != "host":
        return []
    parameters = inspect.signature(python_function(found, found.source)).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def gpu_needed(who: str) -> None:
    """Raises: ToolMissing if CuPy or a GPU is missing."""
    try:
        import cupy
    except ImportError as error:
        raise ToolMissing(f"{who}: GPU rungs need CuPy, which cannot be imported: {error}") from error
    try:
        cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ToolMissing(f"{who}: a GPU rung needs a CUDA GPU and its driver here: {error}") from None


def _module_needed(found: Rung, module: str) -> None:
    """Raises: ToolMissing if a module that a rung needs cannot be imported."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ToolMissing(f"{found}: needs {module}, which cannot be imported: {error}") from error


def specialized(found: Rung, type: str) -> Specialization:
    """What Triton compiles for a rung that needs it, for one element type; its .py says so by a function of this name.

    Raises: ToolMissing if Triton is not installed.
    """
    _module_needed(found, "triton")
    told: Specialization = python_function(found, found.source).__globals__["specialized"](type)
    return told


def load_rung(op: str, name: str, type: str = "float32", *, edge: int | None = None, **options: Any) -> Kernel:
    """As gpukernels.load, of a rung of the ladder."""
    if not isinstance(type, str):  # NumPy's own types are welcome
        type = np.dtype(type).name
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
    gpu_needed(str(found))
    for module in found.needs:
        _module_needed(found, module)
    if found.operands == "host":
        return _HostKernel(found, type, options)
    if found.operands == "several":
        return _SeveralKernel(found, type, None)
    return _GpuKernel(found, type, edge if edge is not None else next(iter(found.edges), None))
