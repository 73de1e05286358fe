"""What an op computes and costs, as data: operands, reference, error bound, bytes, operations, shapes, rungs.

A project gives this data in its description; nothing here knows an op or a kernel.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ml_dtypes  # noqa: F401 (adds the type bfloat16 to NumPy and CuPy)
import numpy as np

from kernelwatch.plan.devices import DEVICES, Device

Shape = tuple[int, ...]
Dtype = np.dtype[Any]
Array = Any  # a NumPy or a CuPy array; CuPy has no types


def dtypes(type: str) -> tuple[Dtype, Dtype]:
    """The types of a problem's inputs and of its output. "float32" stands for both; "float16->float32" names each."""
    into, arrow, out = type.partition("->")
    return np.dtype(into), np.dtype(out if arrow else into)


def label(shape: Shape) -> str:
    """A shape as keys and pages show it, such as 4096x4096."""
    return "x".join(map(str, shape))


def extents(label: str) -> Shape:
    """The shape of a label."""
    return tuple(map(int, label.split("x")))


# Called with a np.random.Generator, the shape, the dtype, and if it takes a fourth argument the inputs before it.
Generator = Callable[..., Array]


@dataclass(frozen=True)
class Operand:
    """One array.

    `values(random, shape, dtype)`: a NumPy array to fill it with, if not every number is valid (an index, a
    probability). With a fourth parameter it also gets the list of the inputs before it, as NumPy arrays: for an input
    that follows from others. None: the device fills it with random numbers in [-1, 1) in its own format.
    `updated`: of an input that the function also writes. The reference gets what was there before, and returns what is
    to be there afterwards, behind the outputs. Nothing restores it between the launches of a measurement.
    `name`: of an input that the function and the reference take as a keyword argument.
    """

    shape: Shape
    dtype: Dtype
    values: Generator | None = None
    updated: bool = False
    name: str = ""

    @property
    def derived(self) -> bool:
        """Whether its values follow from the inputs before it."""
        return self.values is not None and _takes_inputs(self.values)

    def made(self, random: "np.random.Generator", before: Sequence[Array]) -> Array:
        """Its own values. `before`: the inputs before it, as NumPy arrays."""
        assert self.values is not None
        return self.values(random, self.shape, self.dtype, *([list(before)] if self.derived else ()))

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@lru_cache(maxsize=256)
def _takes_inputs(values: Generator) -> bool:
    """Whether a function takes a fourth argument by its position."""
    try:
        parameters = list(inspect.signature(values).parameters.values())
    except (TypeError, ValueError):  # a callable of a C extension may have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in positional and parameter.default is parameter.empty for parameter in parameters) > 3


@dataclass(frozen=True)
class Operands:
    """The inputs and outputs of a problem at one shape and type. `scalars`: by name; `bind` takes them as keywords."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """All arrays, the outputs last."""
        return self.inputs + self.outputs

    @property
    def nbytes(self) -> int:
        """Compulsory traffic in bytes: the size of each array once, of an updated one twice."""
        return sum(array.nbytes for array in (*self.arrays, *self.updated))

    @property
    def updated(self) -> tuple[Operand, ...]:
        """The inputs that are written as well."""
        return tuple(array for array in self.inputs if array.updated)

    def arguments(self, inputs: Sequence[Array]) -> tuple[list[Array], dict[str, Any]]:
        """How a kernel and the reference take these inputs: those by position, and the others and the scalars by
        name."""
        by_position = [given for given, array in zip(inputs, self.inputs, strict=True) if not array.name]
        by_name = {array.name: given for given, array in zip(inputs, self.inputs, strict=True) if array.name}
        return by_position, {**by_name, **self.scalars}


@dataclass(frozen=True)
class Computation:
    """What a rung or a reference line computes.

    `operands(shape, type)`: its arrays and scalars.
    `reference(*inputs, **scalars)`: the output, or a tuple of outputs and of what the updated inputs then hold. It
    takes NumPy and CuPy arrays.
    `flops(shape)`: the number of operations, for arithmetic.
    `traffic(shape, type)`: the compulsory bytes, if they differ from the size of each array once.

    The output is compared with the reference in one of three ways:

    - bit for bit, the default for ops that only move data;
    - within `bound(type, *inputs, **scalars)`: the largest allowed error of each element, in the outputs' shapes,
      derived and not tuned;
    - with `exact_bits(type)`: the check uses inputs of that many bits each, for which the arithmetic is exact in any
      order, and compares bit for bit.

    Raises: ValueError if `flops` is given without `bound` or `exact_bits`: rounded sums differ in their bits.
    """

    operands: Callable[[Shape, str], Operands]
    reference: Callable[..., Array | tuple[Array, ...]]
    bound: Callable[..., Array | tuple[Array, ...]] | None = None
    exact_bits: Callable[[str], tuple[int, ...]] | None = None
    flops: Callable[[Shape], int] | None = None
    traffic: Callable[[Shape, str], int] | None = None

    def __post_init__(self) -> None:
        if self.flops and not (self.bound or self.exact_bits):
            raise ValueError(
                "a Computation with flops rounds its results, so it cannot be compared bit for bit: "
                "give a bound or exact_bits"
            )

    @classmethod
    def of_shapes(
        cls,
        inputs: Callable[[Shape], tuple[Shape, ...]],
        output: Callable[[Shape], Shape],
        reference: Callable[..., Array],
        **others: Any,
    ) -> "Computation":
        """The common case: inputs of one type, one output, no scalars. `inputs(shape)` and `output(shape)` give their
        shapes; `others` are further fields. Raises: ValueError."""

        def operands(shape: Shape, type: str) -> Operands:
            into, out = dtypes(type)
            arrays = tuple(Operand(part, into) for part in inputs(shape))
            return Operands(arrays, (Operand(output(shape), out),))

        return cls(operands, reference, **others)

    def bytes_moved(self, shape: Shape, type: str) -> int:
        """Compulsory traffic in bytes."""
        return self.traffic(shape, type) if self.traffic else self.operands(shape, type).nbytes


@dataclass(frozen=True)
class Rung:
    """One version of a kernel, as the checkout declares it. The measured commit decides how to compile and launch it.

    `computes`: the name of a Computation of its problem, "" for the problem's own.
    `source`: the file that it is made from.
    `repeats`: how often one launch does the work.
    `threads`: "all" if it uses every core, else "1".
    `where`: "device" for operands in the device's memory; else the `where` of the further device that launches it.
    `input_bytes_max`: the most bytes that each input may have, in the inputs' order; larger shapes are left out.
    `takes(shape, type)`: whether it takes the inputs of a shape: True, or the reason why it does not. Such a cell is
    n/a with that reason.
    `arrays`: "torch" if its function takes PyTorch's tensors; "" for NumPy's arrays on a CPU and CuPy's on a GPU.
    `compiled`: whether its package offers its binary, for the exact figures; every CUDA rung does.
    `published_ms`: milliseconds that its origin published, by the extent of a square problem.
    `was`: the name that it had in earlier commits, or several, the oldest first. What was recorded under them is its
    own history.
    """

    name: str
    device: Literal["gpu", "cpu"]
    types: tuple[str, ...]
    idea: str = ""
    computes: str = ""
    source: Path | None = None
    repeats: int = 1
    threads: str = "1"
    where: str = "device"
    input_bytes_max: tuple[int, ...] = ()
    takes: Callable[[Shape, str], bool | str] | None = None
    arrays: Literal["", "torch"] = ""
    compiled: bool = False
    published_ms: Mapping[str, float] = field(default_factory=dict)
    was: str | Sequence[str] = ()

    @property
    def earlier(self) -> tuple[str, ...]:
        """Its earlier names, the oldest first."""
        return (self.was,) if isinstance(self.was, str) else tuple(self.was)

    @property
    def is_cuda(self) -> bool:
        """Whether its source is CUDA, which can be compiled and counted without a GPU."""
        return self.source is not None and self.source.suffix == ".cu"


@dataclass(frozen=True)
class Line:
    """A reference line: what users would call instead. `computes`: as in Rung. `bind(cupy, inputs, out)` returns the
    launch; None for the engine's own lines (COPIES)."""

    computes: str
    bind: Callable[[Any, list[Array], Array], Callable[[], object]] | None = None


NAME = re.compile(r"[^\s/]+")  # of a rung; keys have it between the op's, with a slash, and a space

COPIES = ("memcpy", "vector_copy", "cupy_copy")  # the engine's own lines: copies of the first input
COPY = "vector_copy"  # the harness's own kernel; other rungs' rates are shown as a share of its rate


class Kind(NamedTuple):
    """What rungs compute whose rates are comparable: the element type, the variant of the op if it is of another
    precision than the op itself, and whether each of its operations is emulated by several of the tensor cores."""

    type: str
    variant: str = ""
    emulated: bool = False

    def title(self, op: str) -> str:
        """The title of the rungs of this kind in the ladder of an op."""
        return f"{self.variant or op} {self.type}{' emulated on tensor cores' if self.emulated else ''}"


class Unit(NamedTuple):
    """A unit of a GPU, as timing/ceilings.py names its roof ("fp32", "tf32"), and how many of its operations one of the
    op's takes: 3 for a product of float32 numbers that are sums of two float16."""

    name: str
    operations: int = 1


OWN_UNITS = {"float32": "fp32", "float64": "fp64"}  # of types with ordinary multiply-adds


@dataclass(frozen=True, eq=False)
class Problem:
    """One op: what it computes, its shapes, its rungs in the order of the ladder.

    `shapes`: timed on a GPU with the first type, the smallest first; `quick_shapes`: the same for a first look.
    `cpu_shapes`: timed on a CPU.
    `element_shape`: the shape at which the other types are timed.
    `hot_shapes`: timed hot as well; every shape is timed cold.
    `counted_shapes`: for counting accesses; an even and a ragged one, small, since the emulator is slow.
    `devices`: further devices besides a GPU and a CPU, for rungs with another `where`.
    `noise_cells`: a regular expression on the keys of the cells whose noise an A/A measures, "" for all.
    `lines`: reference lines on a GPU, by name.
    `vendor`: device -> the vendor's rung, with which the others are compared.
    `vendors`: further rungs of the vendor's, for what that one does not compute (another type, fewer bits).
    `variants`: further Computations, by the name that rungs and lines use in `computes`.
    `unit(name, type)`: the unit of the GPU on which a GPU rung or line computes with a type; None if it is not known.
    Without this field, it is that of the type's own multiply-adds.
    """

    name: str
    computation: Computation
    rungs: tuple[Rung, ...]
    shapes: tuple[Shape, ...]
    quick_shapes: tuple[Shape, ...] = ()
    cpu_shapes: tuple[Shape, ...] = ()
    element_shape: Shape = ()
    hot_shapes: tuple[Shape, ...] = ()
    counted_shapes: tuple[Shape, ...] = ()
    devices: tuple[Device, ...] = ()
    noise_cells: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    vendor: Mapping[str, str] = field(default_factory=dict)
    vendors: tuple[str, ...] = ()
    variants: Mapping[str, Computation] = field(default_factory=dict)
    unit: Callable[[str, str], Unit | None] | None = None

    def __post_init__(self) -> None:
        """Raises: ValueError if an earlier name of a rung is none."""
        names, claimed = {*self._by_name, *self.lines}, dict[str, str]()
        for rung in self.rungs:
            who = f"{self.name}/{rung.name}"
            for old in rung.earlier:
                if not isinstance(old, str) or not NAME.fullmatch(old):
                    raise ValueError(f'{who}: was must be an earlier name, such as "tiled", or a list; got {old!r}')
                if old == rung.name:
                    raise ValueError(f"{who}: was must be an earlier name of the rung; {old} is the one it has")
                if old in names:
                    raise ValueError(
                        f"{who}: was must be a name that no rung has any more; {self.name}/{old} still exists"
                    )
                if old in claimed:
                    raise ValueError(f"{who}: {claimed[old]} has was {old} already; one rung had the name, and once")
                claimed[old] = who

    def timed(self, device: str, quick: bool) -> tuple[Shape, ...]:
        """The shapes that are timed on a device ("gpu" or "cpu") with the first type, the smallest first."""
        if device == "cpu":
            return self.cpu_shapes[:1] if quick else self.cpu_shapes
        return (self.quick_shapes or self.shapes[:1]) if quick else self.shapes

    @cached_property
    def _by_name(self) -> dict[str, Rung]:
        return {rung.name: rung for rung in self.rungs}

    def rung(self, name: str) -> Rung:
        """A rung by name. Raises: KeyError."""
        return self._by_name[name]

    def device_of(self, rung: Rung) -> Device:
        """What launches a rung. Raises: ValueError if no device does."""
        for device in (DEVICES[rung.device], *self.devices):
            if device.where == rung.where:
                return device
        raise ValueError(f"{self.name}/{rung.name}: no device of {self.name} launches what has where = {rung.where!r}")

    def computes(self, name: str) -> Computation:
        """What a rung or reference line computes. Raises: KeyError."""
        computation = self.lines[name].computes if name in self.lines else self._by_name[name].computes
        return self.computation if computation in ("", self.name) else self.variants[computation]

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The element types of its rungs. All shapes are timed with the first: float32 if a rung has it."""
        known = dict.fromkeys(type for rung in self.rungs for type in rung.types)
        return tuple(sorted(known, key=lambda type: type != "float32"))

    def main_type(self, name: str) -> str:
        """The type with which a rung is timed at every shape: the problem's first, else the rung's."""
        own = self._by_name[name].types if name in self._by_name else self.types
        return self.types[0] if self.types[0] in own else own[0]

    def takes(self, rung: Rung, shape: Shape, type: str) -> bool:
        """Whether a rung takes the inputs of a shape. Raises: KeyError."""
        return self.within(rung, shape, type) and not self.refusal(rung, shape, type)

    def refusal(self, rung: Rung, shape: Shape, type: str) -> str:
        """Why a rung does not take a shape, as its `takes` says; "" if it does."""
        said = True if rung.takes is None else rung.takes(shape, type)
        if isinstance(said, str):
            return said
        return "" if said else f"{self.name}/{rung.name} does not take the shape {label(shape)}"

    def within(self, rung: Rung, shape: Shape, type: str) -> bool:
        """Whether the inputs of a shape are within a rung's limits in bytes. Raises: KeyError."""
        inputs = self.computes(rung.name).operands(shape, type).inputs
        return all(operand.nbytes <= most for operand, most in zip(inputs, rung.input_bytes_max, strict=False))

    def bytes_moved(self, name: str, type: str, shape: Shape) -> int:
        """Compulsory bytes of a rung or reference line at a shape. Raises: KeyError."""
        return self.computes(name).bytes_moved(shape, type)

    def flops(self, name: str, shape: Shape) -> int:
        """Operations of a rung or reference line at a shape; 0 if it only moves data. Raises: KeyError."""
        count = self.computes(name).flops
        return count(shape) if count else 0

    def rate(self, name: str, type: str, shape: Shape, seconds: float) -> float:
        """Operations per second, or compulsory bytes per second if it only moves data. Raises: KeyError."""
        return (self.flops(name, shape) or self.bytes_moved(name, type, shape)) / seconds

    def kind(self, name: str, type: str) -> Kind:
        """What a rung or reference line computes with a type: only rates of one kind are comparable. Two variants of an
        op that has operations to count are of one kind if they are checked on numbers of as many bits."""
        own, usual = self.computes(name), self.computation
        variant = self.lines[name].computes if name in self.lines else self._by_name[name].computes
        alike = own is usual or not usual.flops or not (own.exact_bits and usual.exact_bits)
        is_usual = alike or own.exact_bits(type) == usual.exact_bits(type)  # type: ignore[misc]
        unit = self.unit_of(name, type)
        return Kind(type, "" if is_usual else variant, unit is not None and unit.operations > 1)

    def unit_of(self, name: str, type: str) -> Unit | None:
        """The unit of a GPU on which a rung or line computes; None if it runs elsewhere, only moves data, or it is not
        known."""
        rung = self._by_name.get(name)
        if rung is not None and (rung.device != "gpu" or rung.where != "device"):
            return None
        if not self.computes(name).flops:
            return None
        if self.unit is not None:
            return self.unit(name, type)
        own = OWN_UNITS.get(dtypes(type)[0].name)
        return Unit(own) if own else None

    def held_against(self, device: str, kind: Kind | None = None) -> str:
        """The rung or reference line whose rate is 100 % for the others on a device, "" if there is none. `kind`: of
        those others; None for that of most."""
        vendor = self.vendor.get(device, "")
        if kind and vendor:
            names = (name for name in (vendor, *self.vendors) if name in self._by_name)  # an older ladder lacks some
            known = [self._by_name[name] for name in names]
            own = (rung.name for rung in known if rung.device == device and kind.type in rung.types)
            return next((name for name in own if self.kind(name, kind.type).variant == kind.variant), "")
        return vendor or (COPY if device == "gpu" and COPY in self.lines else "")
