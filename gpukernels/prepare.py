"""What a .py that prepares a launch needs: memory that lives until a launch has run, matrices as the copy engine takes
them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from gpukernels.compiler import KernelError
from gpukernels.ladder import Rung

ALIGNMENT = 16  # bytes at multiples of which the copy engine lets a matrix and its rows begin
LINE = 128  # bytes of a cache line; it has four sectors, and the copy engine reads whole ones

_ELEMENTS = {
    "uint8": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "float16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bfloat16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "float32": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}

_in_flight: deque[tuple[Any, ...]] = deque()  # an event after a launch, and what it uses until then


def keep_until_run(*used: Any) -> None:
    """Keep `used` alive until the work that is enqueued on CuPy's current stream has run.

    A launch may be dropped while it runs on another stream than its memory was allocated on. In a capture nothing is
    kept: whoever replays the graph keeps the launch.
    """
    stream = cupy.cuda.get_current_stream()
    if stream.is_capturing():
        return
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    _in_flight.append((event, *used))
    while _in_flight and _in_flight[0][0].done:
        _in_flight.popleft()


@dataclass(frozen=True)
class Enqueue:
    """A loaded kernel and the dynamic shared memory of its blocks: a call enqueues it on CuPy's current stream."""

    kernel: cupy.RawKernel
    shared_bytes: int

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        self.kernel(grid, block, arguments, shared_mem=self.shared_bytes)


@dataclass(frozen=True)
class Call:
    """What a .py that prepares a launch is given: `<op>_<source>(call)`, or `<op>_<launcher>(call)`, returns a
    function that enqueues the work on CuPy's current stream and waits for nothing.

    `rung`: the ladder entry, for the type of the operands; `module`: what its source was compiled to, with its other
    kernels and its constant memory; `function`: its kernel.
    `grid`, `block`: those of one plain launch.
    `operands`: inputs, then the output, which is overwritten; `dims`: the extents, in the order of the op's.
    """

    rung: Rung
    module: cupy.RawModule
    function: Enqueue
    grid: tuple[int, ...]
    block: tuple[int, ...]
    operands: tuple[Any, ...]
    dims: tuple[np.int64, ...]


def overlapping(
    function: Enqueue, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[np.generic]
) -> Callable[[], None]:
    """A launch on CuPy's current stream whose blocks may start before the kernel ahead of it has ended (programmatic
    dependent launch). The kernel itself must wait for that one, by griddepcontrol.wait.

    Raises: KernelError where the driver does not launch it.
    """
    values = [np.atleast_1d(argument).view(np.uint8) for argument in arguments]
    addresses = np.array([value.ctypes.data for value in values], np.uint64)
    overlap = driver.CUlaunchAttributeValue()
    overlap.programmaticStreamSerializationAllowed = 1
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value = overlap
    settings = driver.CUlaunchConfig()
    settings.gridDimX, settings.gridDimY, settings.gridDimZ = (*grid, 1, 1)[:3]
    settings.blockDimX, settings.blockDimY, settings.blockDimZ = (*block, 1, 1)[:3]
    settings.sharedMemBytes = function.shared_bytes
    settings.attrs, settings.numAttrs = [attribute], 1
    kernel = driver.CUfunction(function.kernel.kernel.ptr)

    one_at_a_time = threading.Lock()  # the settings have one stream

    def launch(_alive: object = values) -> None:
        with one_at_a_time:
            settings.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
            (error,) = driver.cuLaunchKernelEx(settings, kernel, addresses.ctypes.data, 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise KernelError(f"the driver does not launch {function.kernel.name}: {error}")

    return launch


def padded(columns: int, itemsize: int) -> int:
    """The least number of columns, from `columns` on, of rows that fill whole cache lines: the copy engine takes them,
    and reads no sector for half of it."""
    per = LINE // itemsize
    return -(-columns // per) * per


def tensor_map(who: str, array: Any, box: Sequence[int]) -> np.void:
    """A description of a CuPy array with contiguous rows, which Hopper's copy engine copies in boxes of `box` elements,
    as an argument of a kernel. Extents are in the order of the array's dimensions.

    A row of a box is 128 bytes in shared memory, and the 128-byte swizzle exchanges its pieces. What lies outside the
    array is read as 0, and not written.

    Raises: KernelError, which names `who`, if the driver does not take the array.
    """
    wide, count = driver.cuuint64_t, driver.cuuint32_t
    error, described = driver.cuTensorMapEncodeTiled(
        _ELEMENTS[array.dtype.name],
        array.ndim,
        array.data.ptr,
        [wide(extent) for extent in reversed(array.shape)],
        [wide(stride) for stride in reversed(array.strides[:-1])],
        [count(extent) for extent in reversed(box)],
        [count(1)] * array.ndim,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        shape = " x ".join(map(str, array.shape))
        raise KernelError(f"{who}: the driver does not describe a {shape} array of {array.dtype}: {error}")
    words = np.array([int(word) for word in described.opaque], np.uint64)
    return words.view("V128")[0]  # type: ignore[no-any-return]
