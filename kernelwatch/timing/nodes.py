"""What a launch runs on the GPU: the kernels of a CUDA graph that was captured of it, whichever library launched them.

A graph names the functions that the driver runs, their grids and blocks. The driver knows what was compiled for each:
registers, shared and local memory, how many blocks fit on a multiprocessor.
"""

import ctypes
import hashlib
import json
import math
from typing import Any

from kernelwatch.timing.record import Ran

# Figure -> the name of the driver's attribute of a function.
ATTRIBUTES = {"registers": "NUM_REGS", "static_shared_bytes": "SHARED_SIZE_BYTES", "local_bytes": "LOCAL_SIZE_BYTES"}
# Of how a kernel is launched: what may move its time and is no part of its code.
LAUNCHED_WITH = (
    "CLUSTER_DIMENSION",
    "PREFERRED_CLUSTER_DIMENSION",
    "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
    "COOPERATIVE",
    "PRIORITY",
    "PREFERRED_SHARED_MEMORY_CARVEOUT",
    "MEM_SYNC_DOMAIN",
)
WINDOW = "ACCESS_POLICY_WINDOW"  # of the L2 cache, which belongs to an address
ADDRESSES = range(1 << 32, 1 << 48)  # of a GPU's memory; an integer is smaller, the bits of a float64 are larger
OTHERS = {"MEMCPY": "copy", "MEMSET": "fill", "HOST": "host function", "MEM_ALLOC": "allocation", "MEM_FREE": "release"}


def _called(result: tuple[Any, ...]) -> Any:
    """The values of a call of the driver, one by itself. Raises: RuntimeError if it failed."""
    error, *values = result
    if int(error):
        raise RuntimeError(f"CUDA driver: {error.name}")
    return values[0] if len(values) == 1 else values


def read(graph: Any) -> list[Ran] | None:
    """The nodes of a graph in the order of their creation; None if cuda.bindings is not installed, or if the graph is
    PyTorch's and a version before 2.8 does not tell it."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    if graph.graph is None:
        return None
    return [_node(driver, node) for node in _nodes(driver, graph)]


def arguments(graph: Any) -> str:
    """A digest of the numbers with which the kernels of a graph are called, and of how they are launched, such as in
    which clusters. An address, which is another one in each process, does not count. "" if the driver does not tell
    them, or if one is a structure, which may hold both, or if a launch has a window of the L2 cache."""
    from cuda.bindings import driver

    try:
        found = [[_arguments(driver, node), _attributes(driver, node)] for node in _nodes(driver, graph)]
    except RuntimeError:
        return ""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def _nodes(driver: Any, graph: Any) -> list[Any]:
    handle = driver.CUgraph(graph.graph)
    count = _called(driver.cuGraphGetNodes(handle))[1]
    nodes = _called(driver.cuGraphGetNodes(handle, count))[0] if count else []
    return list(nodes[:count])


def _arguments(driver: Any, node: Any) -> list[str]:
    """The arguments of a kernel, as hexadecimal digits. Raises: RuntimeError if they are not known."""
    if _kind(driver, node) != "KERNEL":
        return []
    launch = _called(driver.cuGraphKernelNodeGetParams(node))
    function, found = _function(driver, launch), list[str]()
    while True:
        error, _, size = driver.cuFuncGetParamInfo(function, len(found))
        if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # it has no more
            return found
        _called((error, size))
        if not launch.kernelParams or size > ctypes.sizeof(ctypes.c_void_p):  # they were given in one buffer
            raise RuntimeError("the arguments are not told one by one")
        place = int(launch.kernelParams) + len(found) * ctypes.sizeof(ctypes.c_void_p)
        at = ctypes.c_void_p.from_address(place).value
        if not at:
            raise RuntimeError(f"argument {len(found)} is not told")
        value = ctypes.string_at(at, size)
        is_address = len(value) == ctypes.sizeof(ctypes.c_void_p) and int.from_bytes(value, "little") in ADDRESSES
        found.append("an address" if is_address else value.hex())


def _attributes(driver: Any, node: Any) -> list[str]:
    """What a kernel is launched with, as hexadecimal digits; an error's name if the driver does not know of it. Raises:
    RuntimeError if it has a window of the cache."""
    if _kind(driver, node) != "KERNEL":
        return []
    found = []
    for name in (*LAUNCHED_WITH, WINDOW):
        which = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}", None)
        if which is None:  # this version of the bindings does not know it
            continue
        error, value = driver.cuGraphKernelNodeGetAttribute(node, which)
        if int(error):
            found.append(str(error.name))
        elif name != WINDOW:
            found.append(ctypes.string_at(value.getPtr(), ctypes.sizeof(ctypes.c_uint) * 3).hex())
        elif value.accessPolicyWindow.num_bytes:
            raise RuntimeError("a window of the cache belongs to an address")
    return found


def _kind(driver: Any, node: Any) -> str:
    return str(_called(driver.cuGraphNodeGetType(node)).name.removeprefix("CU_GRAPH_NODE_TYPE_"))


def _function(driver: Any, launch: Any) -> Any:
    return launch.func if int(launch.func) else _called(driver.cuKernelGetFunction(launch.kern))


def _node(driver: Any, node: Any) -> Ran:
    kind = _kind(driver, node)
    if kind != "KERNEL":
        return {"kind": OTHERS.get(kind, kind.lower())}
    try:
        return _kernel(driver, _called(driver.cuGraphKernelNodeGetParams(node)))
    except RuntimeError:  # a driver may not tell of every library's kernels; the cell was measured all the same
        return {"kind": "kernel"}


def identity(sources: str, ran: list[Ran], configurations: list[str]) -> str:
    """The identity of a launch: that of its sources, and what it ran in which configurations."""
    return hashlib.sha256(json.dumps([sources, ran, configurations], sort_keys=True).encode()).hexdigest()[:16]


def _kernel(driver: Any, launch: Any) -> Ran:
    block = [launch.blockDimX, launch.blockDimY, launch.blockDimZ]
    function = _function(driver, launch)
    dynamic = launch.sharedMemBytes
    figures = {
        figure: int(_called(driver.cuFuncGetAttribute(_attribute(driver, name), function)))
        for figure, name in ATTRIBUTES.items()
    }
    threads = math.prod(block)
    blocks = _called(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic))
    return {
        "kernel": _called(driver.cuFuncGetName(function)).decode(),
        "grid": [launch.gridDimX, launch.gridDimY, launch.gridDimZ],
        "block": block,
        "dynamic_shared_bytes": dynamic,
        "blocks_per_multiprocessor": int(blocks),
        **figures,  # type: ignore[typeddict-item]
    }


def _attribute(driver: Any, name: str) -> Any:
    return getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
