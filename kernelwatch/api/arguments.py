"""The arguments of a callable: which of them are arrays, and copies of these, over which the calls rotate."""

import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelwatch.api.result import MeasureError

ON_GPU = (2, 13)  # DLPack's numbers of CUDA memory, managed or not
SETS_MAX = 512  # each is a call in a CUDA graph, which Python enqueues for every round
ALIGNMENT = 256
OFFSETS = 1 << 13  # the copies begin at one of so many places, ALIGNMENT apart, anew in each round
FREE_SHARE = 0.7  # of the free memory, which the copies may take

Memory = Any  # an array of bytes, of NumPy or CuPy


def device_of(argument: object) -> str:
    """ "gpu" or "cpu" for an array in that memory, "" for an argument that is no array."""
    if isinstance(argument, type) or (isinstance(argument, np.ndarray) and argument.dtype.hasobject):
        return ""
    if _is_tensor(argument) and str(argument.layout) != "torch.strided":  # type: ignore[attr-defined]
        return ""
    if hasattr(argument, "__dlpack_device__"):
        return "gpu" if int(argument.__dlpack_device__()[0]) in ON_GPU else "cpu"
    return "gpu" if hasattr(argument, "__cuda_array_interface__") else ""


def _is_tensor(argument: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(argument, torch.Tensor)


class Original:
    """An array of which copies are made: with its shape, type and strides, as an array of the same library. An array
    that is neither NumPy's, CuPy's nor PyTorch's is copied into NumPy's or CuPy's."""

    def __init__(self, array: Any, xp: Any) -> None:
        self.xp, self.tensor = xp, _is_tensor(array)
        if not self.tensor and not isinstance(array, xp.ndarray):
            given = hasattr(array, "__cuda_array_interface__") or hasattr(array, "__array_interface__")
            array = xp.asarray(array) if given else xp.from_dlpack(array)
        self.array = array
        self.shape = tuple(array.shape)
        self.itemsize = int(array.element_size() if self.tensor else array.dtype.itemsize)
        steps = array.stride() if self.tensor else array.strides
        self.strides = tuple(step * self.itemsize for step in steps) if self.tensor else tuple(steps)
        self.nbytes = math.prod(self.shape) * self.itemsize
        reach = [(extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True)]
        self.first = -sum(min(0, far) for far in reach)  # of the first element from the lowest, in bytes
        self.span = self.first + sum(max(0, far) for far in reach) + self.itemsize if self.nbytes else 0

    def copy(self, memory: Memory) -> Any:
        """A copy in the first `span` bytes of a piece of memory."""
        if not self.nbytes:
            return self.array
        if self.tensor:
            torch = sys.modules["torch"]
            flat = torch.from_numpy(memory) if self.xp is np else torch.from_dlpack(memory)
            steps = [step // self.itemsize for step in self.strides]
            copy = flat[: self.span].view(self.array.dtype).as_strided(self.shape, steps)
            copy.copy_(self.array.detach())
            return copy.requires_grad_() if self.array.requires_grad else copy
        first = memory[self.first : self.first + self.itemsize].view(self.array.dtype)
        copy = self.xp.lib.stride_tricks.as_strided(first, self.shape, self.strides)
        copy[...] = self.array
        return copy


class Rotation:
    """Sets of arguments over which the calls rotate. The arrays of each set are copies of the user's; everything else
    is passed as it is.

    `device`: whose arrays are copied. `allocate`: makes an array of so many bytes. `cold_bytes`, `hot_bytes`: what the
    copies together should have at least, or at most. `free_bytes`: the free memory.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        device: str,
        xp: Any,
        allocate: Callable[[int], Memory],
        *,
        cache: str,
        cache_bytes: int,
        cold_bytes: int,
        hot_bytes: int,
        free_bytes: int,
    ) -> None:
        self.arguments = tuple(arguments)
        self.allocate = allocate
        arrays = {id(one): one for one in arguments if device_of(one) == device}
        self.originals = {key: Original(array, xp) for key, array in arrays.items()}
        self.set_bytes = sum(-(-one.span // ALIGNMENT) * ALIGNMENT for one in self.originals.values())
        self.nbytes = sum(one.nbytes for one in self.originals.values())
        self.warnings: list[str] = []
        self.sets = self._count(cache, cache_bytes, cold_bytes, hot_bytes, free_bytes)

    def _count(self, cache: str, cache_bytes: int, cold_bytes: int, hot_bytes: int, free_bytes: int) -> int:
        """The number of sets. 0: the user's own arrays are used. Raises: MeasureError if hot is impossible."""
        if not self.set_bytes:
            if cache == "cold":
                self.warnings.append(
                    "no array is among the arguments: every call uses the same memory, which is not cold if it fits in "
                    "the cache"
                )
            return 0
        if cache == "hot":
            if self.set_bytes > cache_bytes / 2:
                raise MeasureError(
                    f"cache='hot': the arrays ({_mib(self.set_bytes)}) do not fit in half of the cache "
                    f"({_mib(cache_bytes)}), so they are never hot"
                )
            return max(1, min(SETS_MAX, hot_bytes // self.set_bytes))
        sets = min(SETS_MAX, -(-cold_bytes // self.set_bytes))
        room = int(FREE_SHARE * free_bytes) // self.set_bytes
        if room < sets:
            self.warnings.append(
                f"the free memory ({_mib(free_bytes)}) has room for {room} of {sets} copies of the arrays"
                + ("" if room else ": the arrays themselves are used")
            )
        elif sets * self.set_bytes < cache_bytes:
            self.warnings.append(
                f"the arrays are so small that {sets} copies of them ({_mib(sets * self.set_bytes)}) fit in the cache "
                f"({_mib(cache_bytes)}): they are hot"
            )
        return min(sets, room)

    def fresh(self) -> list[tuple[Any, ...]]:
        """The sets, with new copies in new memory. The caller drops those of the round before first."""
        if not self.sets:
            return [self.arguments]
        at = random.randrange(OFFSETS) * ALIGNMENT
        memory = self.allocate(at + self.sets * self.set_bytes)
        sets = []
        for _ in range(self.sets):
            copies = {}
            for key, original in self.originals.items():
                copies[key] = original.copy(memory[at : at + original.span])
                at += -(-original.span // ALIGNMENT) * ALIGNMENT
            sets.append(tuple(copies.get(id(one), one) for one in self.arguments))
        return sets


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.3g} MiB"
