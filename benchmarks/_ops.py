"""What an op computes and costs: shapes, operands, compulsory bytes, reference. Nothing here knows a kernel."""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]

LADDER = Path(__file__).parent.parent / "gpukernels" / "ladder.toml"


@dataclass(frozen=True)
class Computes:
    """What a rung or a reference line computes: `inputs` operands of the op's shape, an output of the shape
    `output(shape)`, equal to `reference(*inputs)` on NumPy or CuPy arrays."""

    inputs: int
    output: Callable[[Shape], Shape]
    reference: Callable[..., Any]

    def bytes_moved(self, shape: Shape, itemsize: int) -> int:
        """Compulsory traffic in bytes: each operand once."""
        return (self.inputs * math.prod(shape) + math.prod(self.output(shape))) * itemsize


COMPUTES = {
    "vector_add": Computes(2, lambda shape: shape, lambda a, b: a + b),
    "transpose": Computes(1, lambda shape: shape[::-1], lambda a: a.T),
    "copy": Computes(1, lambda shape: shape, lambda a: a),
}


@dataclass(frozen=True)
class Op:
    """One op as the stick sees it.

    `shapes` are timed on a GPU with float32 (`quick_shapes` for a first look), `element_shape` with the op's other
    types; `cpu_shapes` on a CPU.
    `references`: the lines that its rungs are held against on a GPU, and what each computes.
    """

    name: str
    shapes: tuple[Shape, ...]
    quick_shapes: tuple[Shape, ...]
    cpu_shapes: tuple[Shape, ...]
    element_shape: Shape
    references: dict[str, str]

    def timed(self, device: str, quick: bool) -> tuple[Shape, ...]:
        """The shapes that are timed on a device with float32; the first is the smallest."""
        if device == "cpu":
            return self.cpu_shapes[:2] if quick else self.cpu_shapes
        return self.quick_shapes if quick else self.shapes


OPS = {
    op.name: op
    for op in (
        Op(
            name="vector_add",
            shapes=((256**2,), (1024**2,), (4096**2,), (16384**2,), (16411 * 8209,)),
            quick_shapes=((256**2,), (4096**2,)),
            cpu_shapes=((256**2,), (1024**2,), (4096**2,)),
            element_shape=(4096**2,),
            references={"memcpy": "copy", "vector_copy": "copy", "cupy_copy": "copy", "cupy_add": "vector_add"},
        ),
        Op(
            name="transpose",
            # The last is ragged on purpose: both extents are prime, no tile divides them.
            shapes=((256, 256), (1024, 1024), (4096, 4096), (16384, 16384), (16411, 8209)),
            quick_shapes=((256, 256), (4096, 4096)),
            cpu_shapes=((256, 256), (1024, 1024), (4096, 4096), (2053, 1031)),
            element_shape=(4096, 4096),
            references={"memcpy": "copy", "vector_copy": "copy", "cupy_copy": "copy", "cupy_transpose": "transpose"},
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


@cache
def entries(op: str) -> tuple[Entry, ...]:
    """The rungs of an op in the checkout's ladder, in order; never the measured commit's."""
    table = tomllib.loads(LADDER.read_text(encoding="utf-8"))[op]
    folder = LADDER.parent / op
    return tuple(
        Entry(
            name=rung["name"],
            device=rung.get("device", "gpu" if (folder / f"{rung['name']}.cu").is_file() else "cpu"),
            types=tuple(rung.get("types", table["types"])),
            computes=rung.get("computes", op),
            idea=rung["idea"],
            repeats=rung.get("repeats", 1),
            threads=rung.get("threads", "1"),
        )
        for rung in table["rungs"]
    )


def types(op: str) -> tuple[str, ...]:
    """The element types of an op; the first is the one that all shapes are timed with."""
    found = {type: None for entry in entries(op) for type in entry.types}
    return tuple(sorted(found, key=lambda type: type != "float32"))
