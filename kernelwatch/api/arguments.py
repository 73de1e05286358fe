"""The arguments of a callable: which of them are arrays, and copies of these, over which the calls rotate."""

import math
import sys
from collections.abc import Callable, Generator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from kernelwatch.api.result import MeasureError

ON_GPU = (2, 13)  # DLPack's numbers of CUDA memory, managed or not
SETS_MAX = 512  # each is a call in a CUDA graph, which Python enqueues for every round
ALIGNMENT = 512  # of a copy, in bytes
LARGE = 1 << 20  # such copies begin on a page of the device, where allocators also put them
SHARED_WORK = 10_000  # of NumPy's search for an element that two arrays share
FREE_SHARE = 0.7  # of the free memory, which the copies may take

Memory = Any  # an array of bytes, of NumPy or CuPy


def device_of(argument: object) -> str:
    """ "gpu" or "cpu" for an array in that memory, "" for an argument that is no array that can be copied.

    Raises: MeasureError if an array does not say where it lies.
    """
    if isinstance(argument, type) or (isinstance(argument, np.ndarray) and argument.dtype.hasobject):
        return ""
    if is_tensor(argument) and str(argument.layout) != "torch.strided":  # type: ignore[attr-defined]
        return ""
    if hasattr(argument, "__dlpack_device__"):
        try:
            return "gpu" if int(argument.__dlpack_device__()[0]) in ON_GPU else "cpu"
        except Exception as error:
            raise MeasureError(f"an argument of type {_kind(argument)} cannot be copied: {error}") from error
    return "gpu" if hasattr(argument, "__cuda_array_interface__") else ""


def _kind(argument: object) -> str:
    return f"{type(argument).__module__}.{type(argument).__qualname__}"


def _why_not(argument: Any) -> str:
    """Why an array cannot be copied such that a function sees no difference; "" if it can, or if it is no array."""
    if isinstance(argument, np.ndarray) and argument.dtype.hasobject:
        return "its elements are Python's objects"
    if isinstance(argument, np.ma.MaskedArray):
        return "it has a mask"
    if is_tensor(argument) and str(argument.layout) != "torch.strided":
        return f"its layout is {argument.layout}"
    if isinstance(argument, Generator | map | filter | zip):
        return "one call uses it up"
    return ""


def is_tensor(argument: object) -> bool:
    """Whether an argument is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(argument, torch.Tensor)


class Original:
    """An array of which copies are made: with its shape, type and strides, as an array of the same library. An array
    that is neither NumPy's, CuPy's nor PyTorch's is copied into NumPy's or CuPy's."""

    def __init__(self, array: Any, xp: Any) -> None:
        self.xp, self.tensor = xp, is_tensor(array)
        if not self.tensor and not isinstance(array, xp.ndarray):
            given = hasattr(array, "__cuda_array_interface__") or hasattr(array, "__array_interface__")
            array = xp.asarray(array) if given else xp.from_dlpack(array)
        self.array = array
        self.shape = tuple(array.shape)
        self.itemsize = int(array.element_size() if self.tensor else array.dtype.itemsize)
        steps = array.stride() if self.tensor else array.strides
        self.strides = tuple(step * self.itemsize for step in steps) if self.tensor else tuple(steps)
        self.nbytes: int = math.prod(self.shape) * self.itemsize
        reach = [(extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True)]
        self.first = -sum(min(0, far) for far in reach)  # of the first element from the lowest, in bytes
        self.span = self.first + sum(max(0, far) for far in reach) + self.itemsize if self.nbytes else 0

    def views(self, memory: Memory, starts: Sequence[int]) -> list[Any]:
        """Arrays like this one in a piece of memory, each from one of these bytes on."""
        if not self.nbytes:
            return [self.array for _ in starts]
        if self.tensor:
            torch = sys.modules["torch"]
            flat = (torch.from_numpy(memory) if self.xp is np else torch.from_dlpack(memory)).view(self.array.dtype)
            steps = [step // self.itemsize for step in self.strides]
            copies = [flat.as_strided(self.shape, steps, start // self.itemsize) for start in starts]
            return [copy.requires_grad_(self.array.requires_grad) for copy in copies]
        firsts = [memory[start + self.first :][: self.itemsize].view(self.array.dtype) for start in starts]
        copies = [self.xp.lib.stride_tricks.as_strided(first, self.shape, self.strides) for first in firsts]
        return copies if type(self.array) is self.xp.ndarray else list(map(self._of_its_class, copies))

    def _of_its_class(self, copy: Any) -> Any:
        """A copy as an array of the original's subclass, such as a matrix, whose `*` is another operation."""
        own = copy.view(type(self.array))
        own.__array_finalize__(self.array)  # the attributes that NumPy hands on to what is derived from an array
        return own

    def fill(self, copy: Any) -> None:
        """Copy the values into such an array."""
        if self.tensor and self.nbytes:
            copy.detach().copy_(self.array.detach())
        elif self.nbytes:
            copy[...] = self.array


class Rotation:
    """Sets of arguments over which the calls rotate. The arrays of each set are copies of the user's; everything else
    is passed as it is.

    `device`: whose arrays are copied. `allocate`: makes an array of so many bytes. `cold_bytes`, `hot_bytes`: what the
    copies together should have at least, or at most. `free_bytes`: the free memory.
    `page`: large copies begin at a multiple of it.
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
        page: int = ALIGNMENT,
    ) -> None:
        self.arguments = tuple(arguments)
        self.allocate = allocate
        arrays = {id(one): one for one in arguments if device_of(one) == device}
        for one in arguments:
            if why := _why_not(one):
                raise MeasureError(f"an argument of type {_kind(one)} cannot be copied: {why}")
        self.originals = {key: _original(array, xp) for key, array in arrays.items()}
        self.starts: dict[int, int] = {}  # of each array in a set, in bytes
        self.set_bytes = 0
        for key, one in self.originals.items():
            self.starts[key] = up(self.set_bytes, page if one.span >= LARGE else ALIGNMENT)
            self.set_bytes = self.starts[key] + one.span
        large = any(one.span >= LARGE for one in self.originals.values())
        self.set_bytes = apart(self.set_bytes, page) if large else up(self.set_bytes, ALIGNMENT)
        self.nbytes = sum(one.nbytes for one in self.originals.values())
        self.warnings: list[str] = []
        if any(_share(*pair) for pair in combinations(self.originals.values(), 2)):
            self.warnings.append("arrays among the arguments share memory, and their copies do not")
        self.sets = self._count(cache, cache_bytes, cold_bytes, hot_bytes, free_bytes)

    def _count(self, cache: str, cache_bytes: int, cold_bytes: int, hot_bytes: int, free_bytes: int) -> int:
        """The number of sets. 0: the user's own arrays are used. Raises: MeasureError if hot is impossible."""
        if not self.nbytes:
            if self.originals:
                self.warnings.append("the arrays have no elements: what is timed is the call")
            elif cache == "cold":
                self.warnings.append(
                    "no array is among the arguments (those within a list or another object do not count): every call "
                    "uses the same memory, which is not cold if it fits in the cache"
                )
            return 0
        if cache == "hot":
            if self.nbytes > cache_bytes / 2:
                raise MeasureError(
                    f"cache='hot': the arrays ({mib(self.nbytes)}) do not fit in half of the cache "
                    f"({mib(cache_bytes)}), so they are never hot"
                )
            return max(1, min(SETS_MAX, hot_bytes // self.nbytes))
        sets = min(SETS_MAX, -(-cold_bytes // self.nbytes))
        room = int(FREE_SHARE * free_bytes) // self.set_bytes
        if room < sets:
            self.warnings.append(
                f"the free memory ({mib(free_bytes)}) has room for {room} of {sets} copies of the arrays"
                + ("" if room else ": the arrays themselves are used")
            )
        elif sets * self.nbytes < cache_bytes:
            self.warnings.append(
                f"the arrays are so small that {sets} copies of them ({mib(sets * self.nbytes)}) fit in the cache "
                f"({mib(cache_bytes)}): they are hot"
            )
        return min(sets, room)

    def fresh(self) -> list[tuple[Any, ...]]:
        """The sets, with new copies in new memory. The caller drops those of the round before first."""
        if not self.sets:
            return [self.arguments]
        memory = self.allocate(self.sets * self.set_bytes)
        bases = range(0, len(memory), self.set_bytes)
        copies: dict[int, list[Any]] = {}
        for key, one in self.originals.items():
            try:
                copies[key] = one.views(memory, [base + self.starts[key] for base in bases])
                one.fill(copies[key][0])
            except (AttributeError, RuntimeError, TypeError, ValueError) as error:
                raise MeasureError(f"an argument of type {_kind(one.array)} cannot be copied: {error}") from error
        words = memory.view(np.uint64).reshape(self.sets, -1)
        words[1:] = words[0]
        return [
            tuple(copies[id(one)][at] if id(one) in copies else one for one in self.arguments)
            for at in range(self.sets)
        ]


def _share(one: Original, other: Original) -> bool:
    """Whether two arrays share memory, as far as that is quickly told."""
    if any(not isinstance(each.array, np.ndarray) for each in (one, other)):
        return False
    try:
        return np.shares_memory(one.array, other.array, max_work=SHARED_WORK)  # type: ignore[arg-type]  # its stub knows -1 and 0
    except np.exceptions.TooHardError:
        return True


def _original(array: object, xp: Any) -> Original:
    """Raises: MeasureError if no copy can be made of an array."""
    try:
        return Original(array, xp)
    except Exception as error:
        raise MeasureError(f"an argument of type {_kind(array)} cannot be copied: {error}") from error


def up(size: int, alignment: int) -> int:
    """The next multiple of an alignment."""
    return -(-size // alignment) * alignment


def apart(size: int, page: int) -> int:
    """How far sets with large arrays lie apart, in bytes: an odd number of pages, so that they go through all places
    above a page. Without pages, as on a CPU, the next multiple of ALIGNMENT.

    A kernel with long strides is several percent slower at some places than at others (docs/judge.md). Sets that lie a
    power of two apart may all have one kind of place, and those of the next block of memory the other.
    """
    return up(size, page) if page <= ALIGNMENT else (-(-size // page) | 1) * page


def mib(size: int) -> str:
    mebibytes = size / (1 << 20)
    return f"{mebibytes:.0f} MiB" if mebibytes >= 100 else f"{mebibytes:.3g} MiB"
