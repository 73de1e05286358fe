"""Describes gpukernels to the engine: the ops, their shapes, and the adapter of the measured package.

The names of the rungs come from the checkout's ladder; the measured commit decides how to compile and launch them.
"""

import functools
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.older import PREPARED
from benchmarks.parts import PARTS
from benchmarks.streamed import Streamed
from kernelwatch.extras.streamed import device
from kernelwatch.plan import binaries
from kernelwatch.plan.package import Absent, Binary, CudaSource, Kernel, NotHere, Parts
from kernelwatch.plan.problem import Array, Computation, Line, Problem, Rung, Shape, Unit, dtypes
from kernelwatch.plan.project import Project
from kernelwatch.plan.tree import Places
from kernelwatch.system import installed, tools

HERE = Path(__file__).resolve()
PACKAGE = HERE.parent.parent / "gpukernels"
TRITON = "triton"  # a rung that needs it is compiled by it


def _ladder() -> ModuleType:
    """The checkout's gpukernels/ladder.py, which needs only the standard library. It is loaded by path, since `import
    gpukernels` must give the measured commit's package."""
    name = "gpukernels_ladder_of_the_checkout"
    if name not in sys.modules:
        _loaded(name, PACKAGE / "ladder.py")
    return sys.modules[name]


def _loaded(name: str, path: Path) -> ModuleType:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


# --- the ops -------------------------------------------------------------------------------------------------------

# By type, the bits of the numbers in A and B when a matrix product is checked. A has enough bits to tell the type from
# a narrower one (12: TF32 has 11). B has few enough that sums of 8192 products are exact in any order; those of float8
# stay within the 14 bits that Hopper's tensor cores keep, since they are random and of both signs.
EXACT_BITS = {
    "float32": (12, 3),
    "float64": (24, 18),
    "float16": (10, 3),
    "bfloat16": (7, 3),
    "float8_e4m3fn": (4, 0),
}
TF32_BITS = (10, 3)

ADDITION = Computation.of_shapes(lambda shape: (shape, shape), lambda shape: shape, lambda a, b: a + b)
TRANSPOSITION = Computation.of_shapes(lambda shape: (shape,), lambda shape: shape[::-1], lambda a: a.T)
COPY = Computation.of_shapes(lambda shape: (shape,), lambda shape: shape, lambda a: a)


def _exact_bits(type: str) -> tuple[int, int]:
    return EXACT_BITS[dtypes(type)[0].name]


def _wide(operand: Array) -> Array:
    """A NumPy or CuPy array in float64. CuPy converts no float8: its numbers come from a table of all of them."""
    if isinstance(operand, np.ndarray) or operand.dtype.itemsize > 1:
        return operand.astype(np.float64)
    import cupy

    numbers = np.arange(256, dtype=np.uint8).view(operand.dtype).astype(np.float64)
    return cupy.asarray(numbers)[operand.view(np.uint8)]


PRODUCT = Computation.of_shapes(
    lambda shape: ((shape[0], shape[2]), (shape[2], shape[1])),
    lambda shape: shape[:2],
    lambda a, b: _wide(a) @ _wide(b),
    exact_bits=_exact_bits,
    flops=lambda shape: 2 * math.prod(shape),
)

VECTORS: tuple[Shape, ...] = ((256**2,), (1024**2,), (4096**2,), (16384**2,), (16411 * 8209,))
# The last is ragged on purpose: no tile divides its extents, which are prime.
MATRICES: tuple[Shape, ...] = (*((n, n) for n in (256, 1024, 4096, 8192, 16384)), (16411, 8209))
# M, N, K: the squares of the lectures; a few rows times a layer's weights; a matrix product with a small K; the filters
# of a convolution, whose 64 KiB fit in constant memory; one that no tile divides, whose rows are whole 16-byte vectors
# in types of 2 bytes or more.
SQUARES: tuple[Shape, ...] = tuple((n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192))
PRODUCTS: tuple[Shape, ...] = (*SQUARES, (128, 4096, 4096), (4096, 4096, 64), (64, 65536, 256), (4000, 4104, 4040))


def _transposed_product(exact_bits: Callable[[str], tuple[int, ...]]) -> Computation:
    """A times the transpose of B, N x K. `exact_bits`: as in Computation."""
    return Computation.of_shapes(
        lambda shape: ((shape[0], shape[2]), (shape[1], shape[2])),
        lambda shape: shape[:2],
        lambda a, b: _wide(a) @ _wide(b).T,
        exact_bits=exact_bits,
        flops=lambda shape: 2 * math.prod(shape),
    )


# Input type -> the unit of the tensor cores that multiplies it; float32 is cut to TF32 first.
TENSOR_CORES = {"float32": "tf32", "float64": "fp64_tensor"}
TENSOR_CORES |= {"float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}
SPLIT = {"bf16x6": Unit("bf16", 6), "fp16x3": Unit("fp16", 3)}
LIBRARIES = ("cublas", "cublas_k_major", "torch", "triton")  # tensor cores wherever they lose no bit of an input


def _unit(rung: str, type: str) -> Unit | None:
    """Where a matrix product computes. A rung without tensor cores converts 16 bits and multiplies in float32."""
    into = type.partition("->")[0]
    if rung in SPLIT:
        return SPLIT[rung]
    if "tf32" in rung or "fp8" in rung or rung.startswith(("wmma", "wgmma")):
        return Unit(TENSOR_CORES[into])
    if rung in LIBRARIES and into != "float32":
        return Unit(TENSOR_CORES[into])
    return Unit("fp64" if into == "float64" else "fp32")


COPIES = {"memcpy": Line("copy"), "vector_copy": Line("copy"), "cupy_copy": Line("copy")}


def _rungs(op: str) -> tuple[Rung, ...]:
    """The rungs of an op in the checkout's ladder, as the engine's Rung."""
    return tuple(
        Rung(
            name=rung.name,
            device=rung.device,
            types=rung.types,
            idea=rung.idea,
            computes=rung.computes,
            source=rung.source,
            repeats=rung.repeats,
            threads=rung.threads,
            where=rung.operands,
            input_bytes_max=rung.input_bytes_max,
            compiled=TRITON in getattr(rung, "needs", ()),  # the planted history has an older ladder
            published_ms=dict(rung.published_ms),
            was=getattr(rung, "was", ()),
        )
        for rung in _ladder().op(op).rungs
    )


PROBLEMS = (
    Problem(
        name="vector_add",
        computation=ADDITION,
        variants={"copy": COPY},
        rungs=_rungs("vector_add"),
        shapes=VECTORS,
        quick_shapes=((256**2,), (4096**2,)),
        cpu_shapes=((256**2,), (1024**2,), (4096**2,)),
        element_shape=(4096**2,),
        hot_shapes=VECTORS,
        counted_shapes=((256**2,), (1000,)),
        lines={
            **COPIES,
            "cupy_add": Line("vector_add", lambda cupy, inputs, out: lambda: cupy.add(*inputs, out=out)),
        },
    ),
    Problem(
        name="transpose",
        computation=TRANSPOSITION,
        variants={"copy": COPY},
        rungs=_rungs("transpose"),
        shapes=MATRICES,
        quick_shapes=((256, 256), (4096, 4096)),
        cpu_shapes=((256, 256), (1024, 1024), (4096, 4096), (2053, 1031)),
        element_shape=(4096, 4096),
        hot_shapes=(*MATRICES, (2053, 1031)),
        counted_shapes=((256, 256), (250, 130)),
        lines={
            **COPIES,
            "cupy_transpose": Line("transpose", lambda cupy, inputs, out: lambda: cupy.copyto(out, inputs[0].T)),
        },
    ),
    Problem(
        name="matmul",
        computation=PRODUCT,
        variants={
            "matmul_nt": _transposed_product(_exact_bits),
            "matmul_tf32": _transposed_product(lambda _type: TF32_BITS),
        },
        rungs=_rungs("matmul"),
        shapes=PRODUCTS,
        quick_shapes=((256, 256, 256), (1024, 1024, 1024)),
        cpu_shapes=SQUARES[:3],
        element_shape=(4096, 4096, 4096),
        hot_shapes=SQUARES[:1],
        counted_shapes=((128, 128, 128), (100, 72, 60)),
        devices=(device.Streamed(shapes=((24576, 24576, 24576),)), PARTS),
        noise_cells="/(thread_tile_2d|cublas) float32 1024x.* cold|/wmma float16->float32 1024x.* cold"
        "|/cublas float32 4096x4096x4096 cold",
        vendor={"gpu": "cublas", "cpu": "numpy"},
        vendors=("cublas_tf32", "torch_fp8"),
        unit=_unit,
    ),
)


# --- the measured package ------------------------------------------------------------------------------------------

NEEDED = ("load", "rung", "LadderError")  # the names that a commit must have to be measured at all

# Element type -> its name in CUDA C++, and CUDA's header for it.
CUDA_TYPES = {
    "uint8": ("unsigned char", ""),
    "uint16": ("unsigned short", ""),
    "float8_e4m3fn": ("__nv_fp8_e4m3", "cuda_fp8.h"),
    "float16": ("__half", "cuda_fp16.h"),
    "bfloat16": ("__nv_bfloat16", "cuda_bf16.h"),
    "float32": ("float", ""),
    "float64": ("double", ""),
    "complex128": ("double2", ""),
}


def of_type(entry: Any, type: str) -> Any:
    """A commit's ladder entry as it is launched for a type. Older commits launch all types alike."""
    return entry.of(type) if type and hasattr(entry, "of") else entry


class Gpukernels:
    """The Package of any commit of gpukernels. It uses only the names in NEEDED, and others if a commit has them.

    Raises: Absent if the commit lacks one of NEEDED.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module: Any = module
        if missing := [name for name in NEEDED if not hasattr(module, name)]:
            raise Absent(f"this commit's gpukernels lacks {', '.join(missing)}: older than the harness")
        errors = (getattr(module, name, NotHere) for name in ("ToolMissing", "LimitError"))
        self.not_here: tuple[type[Exception], ...] = tuple(dict.fromkeys(errors))

    def rung(self, op: str, name: str, type: str) -> Any:
        """The commit's own ladder entry. `type`: "" for any. Raises: Absent if there is no such rung, or no such type
        of it."""
        try:
            entry = self.module.rung(op, name)
        except self.module.LadderError as error:
            raise Absent(f"this commit has {error}") from error
        if type and type not in entry.types:
            raise Absent(f"at this commit {op}/{name} takes {', '.join(entry.types)}, not {type}")
        return of_type(entry, type)

    def load(self, op: str, rung: str, type: str) -> Kernel:
        entry = self.rung(op, rung, type)
        if getattr(entry, "operands", "device") == "host":
            return Streamed(self.module, op, rung, type)
        kernel: Kernel = self.module.load(op, rung, type)
        return kernel

    def variants(self, op: str, rung: str, type: str) -> Iterable[Kernel]:
        entry = self.rung(op, rung, type)
        return [self.module.load(op, rung, type, edge=edge) for edge in entry.edges or (None,)]

    def imports(self) -> dict[str, str]:
        """Name -> version, of what single rungs need. These distributions have the names of their modules."""
        rungs = [rung for op in getattr(self.module, "ops", tuple)() for rung in op.rungs]
        needs = sorted({module for rung in rungs for module in getattr(rung, "needs", ())})
        return installed.versions(needs) | (tools.ptxas_of_triton() if TRITON in needs else {})

    def needed(self, _rungs: Iterable[tuple[str, str]]) -> list[str]:
        """None early: PyTorch is imported when its rungs are loaded, as when the history was recorded."""
        return []

    def repeats(self, op: str, rung: str) -> int:
        return int(self.rung(op, rung, "").repeats)

    def binary(self, op: str, rung: str, type: str, arch: str) -> Binary:
        compile_cuda = self._function("compile_cuda")
        if TRITON in getattr(self.rung(op, rung, type), "needs", ()):
            told = self._function("specialized")(self.rung(op, rung, type), type)
            specialization = {"divisible": told.divisible, **told.options}
            return binaries.of_triton(told.kernel, arch, told.signature, told.constants, **specialization)
        entry = self._cuda(op, rung, type)
        path, symbol = compile_cuda(entry, type, arch)
        edge = next(iter(entry.edges), None)
        shared_bytes = entry.shared_bytes(dtypes(type)[0].itemsize, edge)
        return Binary(path, symbol, math.prod(entry.block_threads(edge)), shared_bytes)

    def cuda_source(self, op: str, rung: str, type: str) -> CudaSource:
        try:
            return cuda_source(self._cuda(op, rung, type), type)
        except AttributeError as error:
            raise Absent(f"this commit's gpukernels is older than the emulator: {error}") from error

    def _function(self, name: str) -> Any:
        """A function of the commit's. Raises: Absent if it has none of this name."""
        if not hasattr(self.module, name):
            raise Absent(f"this commit's gpukernels lacks {name}: older than the harness")
        return getattr(self.module, name)

    def _cuda(self, op: str, name: str, type: str) -> Any:
        """The ladder entry of a CUDA rung. Raises: Absent."""
        entry = self.rung(op, name, type)
        if entry.source.suffix != ".cu":
            raise Absent(f"at this commit {entry} has no CUDA source")
        return entry


# --- the emulator --------------------------------------------------------------------------------------------------


STAND_IN = re.compile(r"^def on_emulator\(", re.MULTILINE)  # the stand-in of a .py that prepares a launch


def _stand_in(rung: Any) -> Callable[..., list[Any]] | None:
    """What prepares the arguments of a ladder entry on the emulator, as the .py beside its source does on a GPU; None
    if the launch is a plain one. The .py is imported only if it has such a function: older ones have none.

    Raises: NotHere if the .py has none, or cannot be imported.
    """
    path: Path | None = rung.preparation
    if path is None:
        return None
    who = f"{rung} is launched by {path.name}"
    if not STAND_IN.search(path.read_text(encoding="utf-8")):
        if (older := PREPARED.get(f"{rung.op}/{path.name}")) is None:
            raise NotHere(f"{who}, for which the emulator has no stand-in")
        return functools.partial(older, rung)
    try:
        module: Any = _loaded(f"gpukernels.{rung.op}.{path.stem}", path)
    except ImportError as error:
        raise NotHere(f"{who}, which cannot be imported here: {error}") from error
    return functools.partial(module.on_emulator, rung)


def cuda_source(rung: Any, type: str, edge: int | None = None) -> CudaSource:
    """The emulator's CudaSource of a ladder entry. `edge`: the edge of a tile that is chosen at run time, by default
    the rung's first.

    Raises: NotHere if a .py prepares the launch and the emulator has no stand-in for it, or if the rung has the
    instructions of one architecture alone.
    """
    rung = of_type(rung, type)
    arguments = _stand_in(rung)
    if only := getattr(rung, "arch_only", ""):
        raise NotHere(f"{rung} has the instructions of sm_{only} alone, which the emulator lacks")
    edge = edge if edge is not None else next(iter(rung.edges), None)
    into, out = dtypes(type)
    names = list(dict.fromkeys((into.name, out.name)))
    return CudaSource(
        name=str(rung),
        path=rung.source,
        entry=rung.symbol,
        template=tuple(CUDA_TYPES[name][0] for name in names),
        headers=tuple(CUDA_TYPES[name][1] for name in names if CUDA_TYPES[name][1]),
        macros=rung.macros(),
        types=(into.name, out.name),
        dims=rung.dims,
        inputs=rung.inputs,
        output=rung.output,
        grid=lambda extents: rung.grid(extents, edge),
        block=rung.block_threads(edge),
        dynamic_shared_bytes=rung.shared_bytes(into.itemsize, edge),
        loop_step=rung.macros().get("TILE_K", 0),
        arguments=arguments,
    )


# --- what a rung is made from --------------------------------------------------------------------------------------

# Keys of an entry that describe the rung and do not affect its launch; its name stands for files that are told.
WORDS = ("name", "was", "idea", "origin", "limits", "published_ms")


def parts(places: Places) -> Mapping[str, Parts]:
    """The parts of each rung ("op/rung") of a tree: its ladder entry, its source, the .py that prepares its launch, and
    the modules of the package that load it.

    {} if the tree's ladder cannot be read.
    """
    ladder = _ladder()
    folder = places.package("gpukernels")
    assert folder is not None
    table = folder / "ladder.toml"
    try:
        ops = ladder.read(table)
    except ladder.LadderError:
        return {}
    modules = {path for path in folder.glob("*.py") if path.name not in ("prepare.py", "torch_stream.py")}
    parts_by_rung = {}
    for op in ops.values():
        for rung in op.rungs:
            entry = {
                name: value for name, value in sorted(vars(rung).items()) if name not in WORDS and name != "source"
            }
            entry["source"] = rung.source.name
            entry["preparation"] = rung.preparation.name if rung.preparation else ""
            files = modules | {rung.source}
            if rung.preparation:
                files |= {rung.preparation, folder / "prepare.py"}
            if "torch" in rung.needs:
                files.add(folder / "torch_stream.py")
            launch = json.dumps(entry, default=str)
            parts_by_rung[str(rung)] = Parts(launch, frozenset(files), frozenset({table}), data=False)
    return parts_by_rung


UNSEEN = "cuBLASLt stores by TMA, which initcheck did not see before 2025.4, and PyTorch copies what it stored"

PROJECT = Project(
    package="gpukernels",
    here=HERE,
    problems=PROBLEMS,
    adapt=Gpukernels,
    parts=parts,
    decides={"gpukernels/best.toml": 'which rung load(op, "best") launches'},
    gate=("-n", "auto", "--maxprocesses", "8", "tests/test_kernels.py"),
    truth_cells=(
        "vector_add/elementwise float32 16777216 cold",
        "transpose/copy float32 4096x4096 cold",
        "transpose/naive_read float32 1024x1024 cold",
        "transpose/padded float32 1024x1024 cold",
        "transpose/padded float32 4096x4096 cold",
        "transpose/padded float32 16411x8209 cold",
    ),
    unsanitized={  # NVIDIA, Compute Sanitizer release notes, 2025.4; flash-attention, AI/RACECHECK_TMA_HAZARD.md
        ("initcheck", "matmul/torch_fp8"): UNSEEN,
        ("initcheck", "matmul/torch_fp8_promoted"): UNSEEN,
        ("racecheck", "matmul/fp16x3"): "its scales come by cp.async.bulk in a loop, which racecheck takes for a race",
    },
)
