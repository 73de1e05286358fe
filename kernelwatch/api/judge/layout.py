"""Sets of buffers in an arena: where the arrays of a set lie, and what lies between them.

Both processes see the same arena: the judge's, which fills it, and the candidate's, which works in it. A layout holds
no array. It is handed over, and each side makes its own arrays over its own mapping of the memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from kernelwatch.api.arguments import ALIGNMENT, LARGE, Memory, Original, apart, device_of, up
from kernelwatch.api.result import MeasureError

GUARD_BYTES = 4096  # behind the last array of a set, at least


@dataclass(frozen=True)
class Place:
    """An array in each set. `library`: "numpy", "cupy" or "torch"; `strides`, `start`, `span` in bytes: `start` is that
    of the lowest byte in the set, `first` is how far the first element lies above it."""

    library: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    first: int
    span: int

    @property
    def type(self) -> str:
        """The name of the type, such as "float64", in whichever order of bytes."""
        return self.dtype if self.library == "torch" else np.dtype(self.dtype).name

    def stack(self, memory: Memory, at: int, sets: int, set_bytes: int) -> Any:
        """The array in some sets as one array, whose first dimension is the set. `at`: of the first set, in bytes."""
        begin = at + self.start
        piece = memory[begin : begin + (sets - 1) * set_bytes + self.span]
        if self.library == "torch":
            torch = import_module("torch")
            flat = torch.from_numpy(piece) if isinstance(piece, np.ndarray) else torch.from_dlpack(piece)
            steps = [step // self.itemsize for step in (set_bytes, *self.strides)]
            typed = flat.view(getattr(torch, self.dtype))
            return typed.as_strided((sets, *self.shape), steps, self.first // self.itemsize)
        first = piece[self.first : self.first + self.itemsize].view(self.dtype)
        as_strided = import_module(self.library).lib.stride_tricks.as_strided
        return as_strided(first, (sets, *self.shape), (set_bytes, *self.strides))


Argument = Place | tuple[object]  # a tuple holds what is no array, which is passed as it is


@dataclass(frozen=True)
class Layout:
    """The arguments of a function, `positional` and by name, with the places of the arrays in a set."""

    positional: tuple[Argument, ...]
    named: Mapping[str, Argument]
    set_bytes: int

    @property
    def places(self) -> list[Place]:
        """The arrays, each once."""
        every = (*self.positional, *self.named.values())
        return list(dict.fromkeys(one for one in every if isinstance(one, Place)))

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The bytes of a set that belong to no array, from and to. The last are behind the last array."""
        ends = [0, *(place.start + place.span for place in self.places)]
        starts = [*(place.start for place in self.places), self.set_bytes]
        return [(begin, end) for begin, end in zip(ends, starts, strict=True) if begin < end]

    def arguments(self, memory: Memory, at: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments over the set that begins at a byte."""

        def of(one: Argument) -> Any:
            return one.stack(memory, at, 1, self.set_bytes)[0] if isinstance(one, Place) else one[0]

        return tuple(map(of, self.positional)), {name: of(one) for name, one in self.named.items()}


def layout_of(positional: Sequence[Any], named: Mapping[str, Any], device: str, xp: Any, page: int) -> Layout:
    """The layout of sets for arguments like these. Arrays lie as in the open mode: large ones begin on a page.

    Raises: MeasureError if there is no array, or one that has no elements or no type that can be handed over.
    """
    places: dict[int, Place] = {}
    end, large = 0, False

    def of(one: Any) -> Argument:
        nonlocal end, large
        if device_of(one) != device:
            return (one,)
        if id(one) not in places:
            array = Original(one, xp)
            if not array.nbytes or (not array.tensor and array.array.dtype.type in (np.str_, np.bytes_, np.void)):
                raise MeasureError(
                    "the judge takes arrays of numbers with at least one element; got one of shape "
                    f"{array.shape} and type {array.array.dtype}"
                )
            start = up(end, page if array.span >= LARGE else ALIGNMENT)
            library = "torch" if array.tensor else xp.__name__.partition(".")[0]
            name = str(array.array.dtype).removeprefix("torch.")
            geometry = (array.itemsize, array.shape, array.strides, start, array.first, array.span)
            places[id(one)] = Place(library, name, *geometry)
            end, large = start + array.span, large or array.span >= LARGE
        return places[id(one)]

    arguments = tuple(map(of, positional)), {name: of(one) for name, one in named.items()}
    if not places:
        raise MeasureError("no array is among the arguments: the judge sees what a function writes into its arrays")
    size = end + GUARD_BYTES
    return Layout(*arguments, apart(size, page) if large else up(size, ALIGNMENT))
