"""`load(op, "best", type)`: the rung that is fastest for the operands at hand, from a table of what was measured.

best.toml is written by scripts/lab/best from the recorded results. By GPU, op, type and kind of rows it has the seconds
of the fastest rungs at each measured shape, relative to the fastest. The nearest shapes decide. A GPU that is not in it
is taken for one of the same architecture. Where there is none, the first rung of FALLBACK that it can run is taken.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gpukernels.compiler import LimitError, in_and_out
from gpukernels.kernel import Kernel, Launch, gpu_needed, load_rung
from gpukernels.ladder import LadderError, Rung
from gpukernels.ladder import op as find_op

TABLE = Path(__file__).with_name("best.toml")
VECTOR_BYTES = 16
NEIGHBORS = 5  # measured shapes that decide: of one alone, what is just ahead there may be far behind a step beside it
VENDOR, AHEAD = "cublas", 1.1  # between measured shapes a rung must be so far ahead of the vendor's to be taken
ALIGNMENT, WIDEST = 0.5, 8  # of the distance, for each factor 2 up to 8 that an extent has and the other one has not
SLOW = 2.0  # a rung that took so many times the fastest one's seconds is not in the table, and counts as that slow
# What is right on every GPU of its architecture, the best guess first.
FALLBACK = {
    "vector_add": ("elementwise",),
    "transpose": ("vectorized", "padded"),
    "matmul": ("pipelined", "cublas"),
}


@cache
def measured() -> dict[str, Any]:
    """The content of best.toml: by GPU, op, "type rows", shape and rung the relative seconds."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def fits(found: Rung, type: str, capability: int) -> bool:
    """Whether `best` may take a rung for a type on a GPU of a compute capability, such as 90: it has no limits, needs
    no other module, computes what its op says, once, and runs there."""
    only = int(found.arch_only.rstrip("a") or capability)
    return (
        found.device == "gpu"
        and found.operands == "device"
        and not found.limits
        and not found.needs
        and found.computes == found.op
        and found.repeats == 1
        and type in found.types
        and only == capability
        and dict(found.arch_min).get(type, 0) <= capability
    )


def rows(type: str, shape: Mapping[str, int], patterns: tuple[str, ...]) -> str:
    """The kind of the operands' rows: "whole" if all are whole vectors of 16 bytes, else "ragged"."""
    into, out = in_and_out(type)
    *inputs, output = patterns
    sizes = [(into, pattern) for pattern in inputs] + [(out, output)]
    whole = all(shape[pattern.split()[-1]] * _itemsize(name) % VECTOR_BYTES == 0 for name, pattern in sizes)
    return "whole" if whole else "ragged"


def _itemsize(name: str) -> int:
    return np.dtype(name).itemsize


def _width(type: str) -> int:
    """The bytes of an element of the inputs."""
    return _itemsize(in_and_out(type)[0])


def label(extents: Mapping[str, int]) -> str:
    """A shape as the table has it, such as 4096x4096."""
    return "x".join(map(str, extents.values()))


def _distance(extents: Mapping[str, int], shape: str) -> float:
    """How far two shapes are apart: by size in factors of 2, and by what they can be divided by, which decides how wide
    an access may be."""
    pairs = [(max(own, 1), other) for own, other in zip(extents.values(), map(int, shape.split("x")), strict=True)]
    sizes = sum(abs(math.log2(own / other)) for own, other in pairs)
    return sizes + ALIGNMENT * sum(
        abs(math.log2(math.gcd(own, WIDEST) / math.gcd(other, WIDEST))) for own, other in pairs
    )


def ranked(extents: Mapping[str, int], by_shape: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The rungs of some measured shapes, the best guess for these extents first.

    `by_shape`: by shape and rung, the seconds relative to the fastest. At a measured shape they are the order. Else it
    is that of their geometric mean at the nearest shapes, weighted by 1 / distance**2, with a start for the vendor's.
    """
    near = sorted((_distance(extents, shape), shape) for shape in by_shape)[:NEIGHBORS]
    if near[0][0] == 0:  # measured itself
        return list(by_shape[near[0][1]])
    weights = {shape: 1 / distance**2 for distance, shape in near}
    cost: dict[str, float] = {}
    for name in dict.fromkeys(name for shape in weights for name in by_shape[shape]):
        logs = (weight * math.log(by_shape[shape].get(name, SLOW)) for shape, weight in weights.items())
        cost[name] = sum(logs) / sum(weights.values()) - (math.log(AHEAD) if name == VENDOR else 0.0)
    return sorted(cost, key=lambda name: cost[name])


def known(op: str, gpu: str, capability: int) -> dict[str, dict[str, dict[str, float]]]:
    """What was measured of an op, by "type rows", shape and rung: on this GPU, and on others of its architecture at the
    shapes that were not measured on this one."""
    alike = [name for name, entry in measured().items() if entry["capability"] == capability]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in reversed(dict.fromkeys([gpu, *alike])):  # the last word is this GPU's
        for kind, by_shape in measured().get(name, {}).get(op, {}).items():
            found[kind] = found.get(kind, {}) | by_shape
    return found


def relevant(of_op: Mapping[str, Any], type: str, kind: str) -> dict[str, dict[str, float]]:
    """What is known for a type and a kind of rows, by shape. `of_op`: by type and kind.

    The types of one width share what was measured. If that is fewer than NEIGHBORS shapes of this kind of rows, the
    other widths count as well, or else the type's other rows.
    """
    own = [name for name in of_op if _width(name.split()[0]) == _width(type)]
    alike = [name for name in of_op if name.endswith(f" {kind}")]
    names = [name for name in own if name in alike]
    if len({shape for name in names for shape in of_op[name]}) < NEIGHBORS:
        names = alike or own
    found: dict[str, dict[str, float]] = {}
    # Its own figures are the last word, then those of its width.
    for name in sorted(names, key=lambda name: (name.startswith(f"{type} "), name in own)):
        found |= of_op[name]
    return found


def candidates(op: str, type: str, extents: Mapping[str, int], gpu: str, capability: int) -> Iterator[str]:
    """The rungs of an op to try for a type, the best first. `extents`: by dimension, in the op's order. `gpu`: its name
    in CUDA, such as "NVIDIA H200"; `capability`: such as 90."""
    can = [found.name for found in find_op(op).rungs if fits(found, type, capability)]
    by_shape = relevant(known(op, gpu, capability), type, rows(type, extents, _patterns(op)))
    if can and by_shape:
        yield from (name for name in ranked(extents, by_shape) if name in can)
    yield from (name for name in (*FALLBACK.get(op, ()), *reversed(can)) if name in can)


@lru_cache(1024)
def _kept(op: str, type: str, extents: tuple[tuple[str, int], ...], gpu: str, capability: int) -> tuple[str, ...]:
    """The candidates, each once. They are kept: to choose anew would take longer than a small kernel."""
    return tuple(dict.fromkeys(candidates(op, type, dict(extents), gpu, capability)))


def _patterns(op: str) -> tuple[str, ...]:
    """The shapes of an op's operands, the output's last."""
    found = next(found for found in find_op(op).rungs if found.computes == op)
    return (*found.inputs, found.output)


@cache
def _gpu_of(device: int) -> tuple[str, int]:
    """The name and the compute capability of a device. The runtime takes long to tell all of its properties."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(device)
    return properties["name"].decode(), properties["major"] * 10 + properties["minor"]


class Best(Kernel):
    """The fastest rung of an op for one type, chosen anew for each shape."""

    def __init__(self, op: str, type: str) -> None:
        import cupy

        self._cupy = cupy
        self.op = op
        self._loaded: dict[tuple[int, str], Kernel] = {}
        can = [found for found in find_op(op).rungs if fits(found, type, self._gpu()[1])]
        if not can:
            have = dict.fromkeys(name for found in find_op(op).rungs if found.device == "gpu" for name in found.types)
            raise LadderError(f"{op}/best has no type {type} on this GPU; on GPUs the op has {', '.join(have)}")
        super().__init__(can[0], type)

    def __repr__(self) -> str:
        return f"<{self.op}/best {self.type}>"

    def _gpu(self) -> tuple[str, int]:
        return _gpu_of(self._cupy.cuda.Device().id)

    def _load(self, name: str) -> Kernel:
        key = (self._cupy.cuda.Device().id, name)
        if key not in self._loaded:
            self._loaded[key] = load_rung(self.op, name, self.type)
        return self._loaded[key]

    def _extents(self, inputs: tuple[Any, ...]) -> dict[str, int]:
        """The extents of the operands. What does not fit is 1 here; binding says what is wrong with it."""
        found: dict[str, int] = {}
        for operand, pattern in zip(inputs, self.rung.inputs, strict=False):
            found |= dict(zip(pattern.split(), getattr(operand, "shape", ()), strict=False))
        return {dim: found.get(dim, 1) for dim in self.rung.dims}

    def choice(self, *inputs: Any) -> str:
        """The name of the rung that the inputs get first."""
        return self._names(inputs)[0]

    def _names(self, inputs: tuple[Any, ...]) -> tuple[str, ...]:
        return _kept(self.op, self.type, tuple(self._extents(inputs).items()), *self._gpu())

    def bind(self, *inputs: Any, out: Any = None) -> Launch:
        """As Kernel.bind, of the rung that is fastest for the inputs; of the next one if they are too large for it."""
        names = self._names(inputs)
        for name in names[:-1]:
            try:
                return self._load(name).bind(*inputs, out=out)
            except LimitError:
                continue
        return self._load(names[-1]).bind(*inputs, out=out)


def load(op: str, name: str, type: str = "float32", *, edge: int | None = None, **options: Any) -> Kernel:
    """The rung `op`/`name` for one element type, compiled, as a callable on arrays; see Kernel. "best" stands for the
    fastest rung on this GPU for each shape.

    `type`: of all operands, or in->out, such as float16->float32. `edge`: the tile's edge, for a rung that takes it at
    run time (its first where none is given). `options`: those of a rung on host operands, such as
    matmul/between_grids. A GPU rung is loaded for the current device. Compiled once and kept in the user's cache
    ($GPUKERNELS_CACHE) across processes.

    Raises: LadderError for a rung, type, edge or option that does not exist; KernelError where it cannot be compiled or
    there is no GPU to load it on.
    """
    if name != "best":
        return load_rung(op, name, type, edge=edge, **options)
    if edge is not None or options:
        raise LadderError(f"{op}/best takes no edge and no options; load a rung by its name")
    gpu_needed(f"{op}/best")
    return Best(op, type if isinstance(type, str) else np.dtype(type).name)
