"""What an op computes and costs: operands, compulsory bytes, operations, reference, error bound. Nothing here knows a
kernel."""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy and CuPy the type bfloat16)
import numpy as np

Shape = tuple[int, ...]

LADDER = Path(__file__).parent.parent / "gpukernels" / "ladder.toml"

# By type, how many bits the numbers have of which a check takes products: in the first operand as many as tell a type
# from a narrower one (12: TF32 has 11), in the second so many that the sums of 8192 of them are exact in any order.
EXACT_BITS = {"float32": (12, 3), "float64": (24, 18), "float16": (10, 3), "bfloat16": (7, 3)}


def dtypes(type: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The types of an op's inputs and of its output: "float32" is both, "float16->float32" names them."""
    into, arrow, out = type.partition("->")
    return np.dtype(into), np.dtype(out if arrow else into)


@dataclass(frozen=True)
class Computes:
    """What a rung or a reference line computes, as functions of the op's shape: the shapes of its `inputs`, that of its
    `output`, `flops` where it is arithmetic that counts.

    The output equals `reference(*inputs)` on NumPy or CuPy arrays; with `exact_bits(type)` on inputs of so many bits
    each, of which the arithmetic is exact, whatever its order.
    """

    inputs: Callable[[Shape], tuple[Shape, ...]]
    output: Callable[[Shape], Shape]
    reference: Callable[..., Any]
    exact_bits: Callable[[str], tuple[int, ...]] | None = None
    flops: Callable[[Shape], int] | None = None

    def operands(self, shape: Shape, type: str) -> list[tuple[Shape, np.dtype[Any]]]:
        """Shape and type of each operand, the output last."""
        into, out = dtypes(type)
        return [*((part, into) for part in self.inputs(shape)), (self.output(shape), out)]

    def bytes_moved(self, shape: Shape, type: str) -> int:
        """Compulsory traffic in bytes: each operand once."""
        return sum(math.prod(part) * dtype.itemsize for part, dtype in self.operands(shape, type))


COMPUTES = {
    "vector_add": Computes(lambda shape: (shape, shape), lambda shape: shape, lambda a, b: a + b),
    "transpose": Computes(lambda shape: (shape,), lambda shape: shape[::-1], lambda a: a.T),
    "copy": Computes(lambda shape: (shape,), lambda shape: shape, lambda a: a),
    "matmul": Computes(
        lambda shape: ((shape[0], shape[2]), (shape[2], shape[1])),
        lambda shape: shape[:2],
        lambda a, b: a.astype(np.float64) @ b.astype(np.float64),
        lambda type: EXACT_BITS[dtypes(type)[0].name],
        lambda shape: 2 * math.prod(shape),
    ),
}


@dataclass(frozen=True)
class Op:
    """One op as the stick sees it.

    `shapes` are timed on a GPU with float32 (`quick_shapes` for a first look), `element_shape` with the op's other
    types; `cpu_shapes` on a CPU. Each is timed cold, `hot_shapes` hot as well. `counted_shapes`: at which accesses are
    counted, an even one and a ragged one, small, since a count grows as the work does.
    `references`: the lines that its rungs are held against on a GPU, and what each computes. `vendor`: the rung that
    they are held against, by device, where the vendor's library does the same.
    """

    name: str
    shapes: tuple[Shape, ...]
    quick_shapes: tuple[Shape, ...]
    cpu_shapes: tuple[Shape, ...]
    element_shape: Shape
    hot_shapes: tuple[Shape, ...]
    counted_shapes: tuple[Shape, ...]
    references: dict[str, str]
    vendor: dict[str, str]

    def timed(self, device: str, quick: bool) -> tuple[Shape, ...]:
        """The shapes that are timed on a device with float32; the first is the smallest."""
        if device == "cpu":
            return self.cpu_shapes[:1] if quick else self.cpu_shapes
        return self.quick_shapes if quick else self.shapes


_VECTORS = ((256**2,), (1024**2,), (4096**2,), (16384**2,), (16411 * 8209,))
# The last is ragged on purpose: both extents are prime, no tile divides them.
_MATRICES = ((256, 256), (1024, 1024), (4096, 4096), (16384, 16384), (16411, 8209))
# M, N, K: the lectures' squares; a few rows against a layer's weights; a product of small depth; the filters of a
# convolution, whose 64 KiB fit in constant memory.
_SQUARES = tuple((n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192))
_PRODUCTS = (*_SQUARES, (128, 4096, 4096), (4096, 4096, 64), (64, 65536, 256))

OPS = {
    op.name: op
    for op in (
        Op(
            name="vector_add",
            shapes=_VECTORS,
            quick_shapes=((256**2,), (4096**2,)),
            cpu_shapes=((256**2,), (1024**2,), (4096**2,)),
            element_shape=(4096**2,),
            hot_shapes=_VECTORS,
            counted_shapes=((256**2,), (1000,)),
            references={"memcpy": "copy", "vector_copy": "copy", "cupy_copy": "copy", "cupy_add": "vector_add"},
            vendor={},
        ),
        Op(
            name="transpose",
            shapes=_MATRICES,
            quick_shapes=((256, 256), (4096, 4096)),
            cpu_shapes=((256, 256), (1024, 1024), (4096, 4096), (2053, 1031)),
            element_shape=(4096, 4096),
            hot_shapes=(*_MATRICES, (2053, 1031)),
            counted_shapes=((256, 256), (250, 130)),
            references={"memcpy": "copy", "vector_copy": "copy", "cupy_copy": "copy", "cupy_transpose": "transpose"},
            vendor={},
        ),
        Op(
            name="matmul",
            shapes=_PRODUCTS,
            quick_shapes=((256, 256, 256), (1024, 1024, 1024)),
            cpu_shapes=_SQUARES[:3],
            element_shape=(4096, 4096, 4096),
            hot_shapes=_SQUARES[:1],
            counted_shapes=((128, 128, 128), (100, 72, 60)),
            references={},
            vendor={"gpu": "cublas", "cpu": "numpy"},
        ),
    )
}

COPY = "vector_copy"  # the reference line that shares are taken of


@dataclass(frozen=True)
class Entry:
    """What the checkout's ladder says of a rung, as far as the stick cares. The rest (grid, macros, limits) is the
    measured commit's own business: it comes from that commit's ladder."""

    name: str
    device: str
    types: tuple[str, ...]
    computes: str
    idea: str
    repeats: int
    threads: str
    operands: str
    source: str
    input_bytes_max: tuple[int, ...]
    published_ms: dict[str, float]


def takes(entry: Entry, shape: Shape, type: str) -> bool:
    """Whether a rung's limits let it take inputs of a shape."""
    sizes = (math.prod(part) * dtype.itemsize for part, dtype in COMPUTES[entry.computes].operands(shape, type))
    return all(size <= most for size, most in zip(sizes, entry.input_bytes_max, strict=False))


def _device(folder: Path, rung: dict[str, Any]) -> str:
    """Where a rung runs whose entry leaves it to its source."""
    source = folder / rung.get("source", f"{rung['name']}.cu")
    return "gpu" if source.suffix == ".cu" and source.is_file() else "cpu"


@cache
def entries(op: str) -> tuple[Entry, ...]:
    """The rungs of an op in the checkout's ladder, in order; never the measured commit's."""
    table = tomllib.loads(LADDER.read_text(encoding="utf-8"))[op]
    folder = LADDER.parent / op
    return tuple(
        Entry(
            name=rung["name"],
            device=rung.get("device", _device(folder, rung)),
            types=tuple(rung.get("types", table["types"])),
            computes=rung.get("computes", op),
            idea=rung["idea"],
            repeats=rung.get("repeats", 1),
            threads=rung.get("threads", "1"),
            operands=rung.get("operands", "device"),
            source=Path(rung.get("source", rung["name"])).stem,
            input_bytes_max=tuple(rung.get("input_bytes_max", ())),
            published_ms=rung.get("published_ms", {}),
        )
        for rung in table["rungs"]
    )


def types(op: str) -> tuple[str, ...]:
    """The element types of an op; the first is the one that all shapes are timed with."""
    found = {type: None for entry in entries(op) for type in entry.types}
    return tuple(sorted(found, key=lambda type: type != "float32"))


def main_type(op: str, rung: str) -> str:
    """The type that a rung is timed with at all shapes: the op's first, or its own where it does not take that."""
    own = next((entry.types for entry in entries(op) if entry.name == rung), types(op))
    return types(op)[0] if types(op)[0] in own else own[0]
