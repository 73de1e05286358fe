"""What scripts/lab/shapes times: shapes that a seed draws, their operands, and what `best` is held against."""

import importlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpukernels
from gpukernels import best, ladder
from gpukernels.compiler import in_and_out
from kernelwatch.plan.problem import Array, Shape, label

CAPABILITY = 90  # of the GPU whose types are drawn: a seed draws the same everywhere
MEMORY_BYTES = 16 << 30  # of the operands of a shape, at most
SIDES = (64, 16384)  # of a matrix, from and to
LENGTHS = (1 << 10, 1 << 29)  # of a vector
THIN, LONG, LARGE = (64, 256), (1024, 16384), (2048, 16384)
STEPS = (1, 1, 8, 128)  # a side is a multiple of one of these; of 1: ragged, mostly
SPREAD = 0.25  # by which the sides of a nearly square matrix differ at most
ORDER = (
    "matmul",
    "transpose",
    "matmul",
    "matmul",
    "transpose",
    "matmul",
    "vector_add",
    "matmul",
    "transpose",
    "matmul",
)
# Each kind of an op's shapes in turn: a range for each side; one range for sides that are nearly equal.
KINDS: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {
    "matmul": {
        "any": (SIDES, SIDES, SIDES),
        "few rows": (THIN, LONG, LONG),
        "large": (LARGE, LARGE, LARGE),
        "nearly square": (SIDES,),
        "small K": (LONG, LONG, THIN),
        "few columns": (LONG, THIN, LONG),
        "large K": (THIN, THIN, LONG),
    },
    "transpose": {"any": (SIDES, SIDES), "narrow": (LONG, THIN), "nearly square": (SIDES,), "flat": (THIN, LONG)},
    "vector_add": {"any": (LENGTHS,)},
}


@dataclass(frozen=True)
class Drawn:
    """A shape of an op and a type. `number`: how many were drawn before it; `kind`: see KINDS."""

    number: int
    op: str
    type: str
    kind: str
    shape: Shape

    @property
    def key(self) -> str:
        return f"{self.op} {self.type} {label(self.shape)}"

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(ladder.op(self.op).dims, self.shape, strict=True))

    def operands(self) -> list[tuple[Shape, np.dtype[Any]]]:
        """The shape and the type of each input, then of the output."""
        rung = next(rung for rung in ladder.op(self.op).rungs if rung.computes == self.op)
        into, out = map(np.dtype, in_and_out(self.type))
        shapes = [tuple(self.extents[dim] for dim in each.split()) for each in (*rung.inputs, rung.output)]
        return [*((shape, into) for shape in shapes[:-1]), (shapes[-1], out)]

    @property
    def nbytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.operands())


def types(op: str, device: str = "gpu") -> tuple[str, ...]:
    """The types that `best` takes, or on a CPU those of its rungs, in the order of the ladder."""
    if device == "cpu":
        return next(rung for rung in ladder.op(op).rungs if rung.name == "numpy").types
    return tuple(
        dict.fromkeys(type for rung in ladder.op(op).rungs for type in rung.types if best.fits(rung, type, CAPABILITY))
    )


def draw(seed: int, number: int, device: str = "gpu", most: int = SIDES[1], steps: Sequence[int] = STEPS) -> Drawn:
    """The shape of this number, which depends on the seed, the steps and the number alone. Of ten shapes six are
    products, three are transposes; the types and the kinds of shapes follow each other in turn. `most`: of a matrix's
    side, and the root of a vector's length. `steps`: sides are multiples of one of these."""
    own = random.Random(f"{seed} {number}")
    turn, at = divmod(number, len(ORDER))
    op = ORDER[at]
    before = turn * ORDER.count(op) + ORDER[:at].count(op)
    round_, which = divmod(before, len(types(op, device)))
    kinds = list(KINDS[op])
    kind = kinds[round_ % len(kinds)]
    while True:
        shape = _shape(own, op, kind, most if op != "vector_add" else most**2, steps)
        one = Drawn(number, op, types(op, device)[which], kind, shape)
        if one.nbytes <= MEMORY_BYTES:
            return one


def _shape(own: random.Random, op: str, kind: str, most: int, steps: Sequence[int]) -> Shape:
    ranges = [(min(low, most // 4), min(high, most)) for low, high in KINDS[op][kind]]
    step, dims = own.choice(steps), len(ladder.op(op).dims)
    if len(ranges) == dims:
        sides = [_log_uniform(own, *each) for each in ranges]
    else:
        edge = _log_uniform(own, *ranges[0])
        sides = [edge * own.uniform(1 - SPREAD, 1 + SPREAD) for _ in range(dims)]
        ranges *= dims
    return tuple(
        min(max(low, step * round(side / step)), high) for side, (low, high) in zip(sides, ranges, strict=True)
    )


def _log_uniform(own: random.Random, low: int, high: int) -> float:
    return math.exp(own.uniform(math.log(low), math.log(high)))


# --- operands ------------------------------------------------------------------------------------------------------

# By the type of the inputs, the bits of integers in A and B of which every sum of 16384 products is exact in any order.
# A has more bits than TF32 or a narrower type keeps. If the output is float16, the sums stay below its largest number.
EXACT_BITS = {"float32": (12, 3), "float64": (24, 18), "float16": (10, 3), "bfloat16": (7, 3)}
EXACT_BITS_OF_OUTPUT = {"float16": (7, 0)}


def exact_bits(one: Drawn) -> Sequence[int | None]:
    """The bits of the integers in each input for which the result is exact; None if any numbers will do."""
    into, out = in_and_out(one.type)
    return EXACT_BITS_OF_OUTPUT.get(out, EXACT_BITS[into]) if one.op == "matmul" else (None, None)


def numbers(shape: Shape, dtype: np.dtype[Any], bits: int | None, rng: Any, xp: Any) -> Array:
    """Random numbers in [-1, 1), integers of so many bits and a sign, or any integers of a type of integers."""
    if dtype.kind == "c":
        return numbers((*shape, 2), np.dtype(np.float64), bits, rng, xp).view(dtype).reshape(shape)
    uniform = rng.random(shape, dtype=np.float64 if dtype.itemsize == 8 else np.float32)
    if dtype.kind == "u":
        return (uniform * (1 << 8 * dtype.itemsize)).astype(dtype)
    uniform = 2 * uniform - 1 if bits is None else xp.floor(uniform * (2 * (1 << bits) + 1)) - (1 << bits)
    if dtype.name == "bfloat16":  # its bits are the first 16 of a float32's
        return (uniform.view(np.uint32) >> 16).astype(np.uint16).view(dtype)
    return uniform.astype(dtype)


def comparable(array: Array) -> Array:
    """An array whose elements can be compared: CuPy compares no bfloat16."""
    if array.dtype.name == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array


def rounded(expected: Array, dtype: np.dtype[Any]) -> Array:
    """An exact and finite result as numbers of a type, to the nearest and ties to even; they can be compared."""
    if dtype.name != "bfloat16":
        return expected.astype(dtype)
    bits = expected.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


# --- what is timed -------------------------------------------------------------------------------------------------

Call = Callable[[], object]
Binder = Callable[..., Call]  # of the inputs and `out`


def binder(op: str, rung: str, type: str) -> Binder:
    """What binds a rung to operands. Raises: KernelError, LadderError."""
    return gpukernels.load(op, rung, type).bind


def vendors(op: str, type: str, device: str) -> dict[str, Callable[[], Binder]]:
    """What `best` is held against, by name; each makes its binder, and raises if it cannot."""
    if device == "cpu":
        return {"numpy": lambda: binder(op, "numpy", type)}
    names: dict[str, Callable[[], Binder]] = {}
    if op == "matmul":
        names["cublas"] = lambda: binder(op, "cublas", type)
    if "->" not in type:  # CuPy's products have the type of their operands
        names["cupy"] = lambda: _cupy(op)
    return names | {"torch": lambda: _torch(op, type)}


def _cupy(op: str) -> Binder:
    import cupy

    def bind(*inputs: Array, out: Array) -> Call:
        return {
            "vector_add": lambda: cupy.add(*inputs, out=out),
            "transpose": lambda: cupy.copyto(out, inputs[0].T),
            "matmul": lambda: cupy.matmul(*inputs, out=out),
        }[op]

    return bind


SAME_BITS = {"uint16": "int16", "bfloat16": "int16"}  # PyTorch takes the first from CuPy as the second


def _torch(op: str, type: str) -> Binder:
    """PyTorch's call. Sums of 16-bit products are float32, as those of the others are; so is a float32 product."""
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch has no CUDA")
    products = torch.backends.cuda.matmul
    products.allow_tf32 = False
    products.allow_fp16_reduced_precision_reduction = False
    products.allow_bf16_reduced_precision_reduction = False

    def tensor(array: Array) -> Any:
        name = array.dtype.name
        taken = torch.from_dlpack(array.view(SAME_BITS.get(name, name)))
        return taken.view(torch.bfloat16) if name == "bfloat16" else taken

    def bind(*inputs: Array, out: Array) -> Call:
        given, into = [tensor(each) for each in inputs], tensor(out)
        wide = {"out_dtype": into.dtype} if "->" in type else {}
        return {
            "vector_add": lambda: torch.add(*given, out=into),
            "transpose": lambda: into.copy_(given[0].T),
            "matmul": lambda: torch.mm(*given, **wide, out=into),
        }[op]

    return bind
