"""matmul/nccl: C = A B on several GPUs of one host, a process each: NCCL gathers A while cuBLAS multiplies.

GPU r of n holds part r of the rows of A and part r of the columns of B, and makes part r of the columns of C. It needs
all of A, so the GPUs send each other their parts. These and the rows of C that they give are contiguous, and no sum is
split: an element of C is rounded as in a product on one GPU.

The transfers of a launch are enqueued before its products, on a stream of the highest priority: blocks of a large
product would fill the GPU, and NCCL's would wait until nearly all of them have run. A GPU multiplies its own rows while
the first part travels, then each part as it comes. In step s, GPU r sends to r - s and receives from r + s, so that a
link carries one part at a time each way.
Source: van de Geijn and Watts, SUMMA: scalable universal matrix multiplication algorithm, 1997; NVIDIA, NCCL
documentation: point-to-point communication.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gpukernels
from gpukernels.compiler import KernelError, ToolMissing, digest
from gpukernels.kernel import python_function

WHO = "matmul/nccl"
FIRST = -5  # the highest priority that a stream can have, or beyond it


class Exchange(NamedTuple):
    """A transfer each way: the own rows of A go to the process `target`, the rows `received` come from `source`."""

    target: int
    source: int
    received: range


# --- the plan: sizes only, no GPU ----------------------------------------------------------------------------------


def part(extent: int, rank: int, ranks: int) -> range:
    """Part `rank` of `ranks` of an extent; the parts differ by at most 1."""
    return range(extent * rank // ranks, extent * (rank + 1) // ranks)


def exchanges(rows: int, rank: int, ranks: int) -> Iterator[Exchange]:
    """The transfers of one process, in order. `target` receives in its own one of the same number."""
    for step in range(1, ranks):
        source = (rank + step) % ranks
        yield Exchange((rank - step) % ranks, source, part(rows, source, ranks))


# --- the launch ----------------------------------------------------------------------------------------------------


def _cublas() -> Any:
    return gpukernels.rung("matmul", "cublas")


def version() -> str:
    """NCCL, cuBLAS, and the code that calls it, for the identity of a launch. Raises: ToolMissing without NCCL."""
    from cupy.cuda import nccl

    if not nccl.available:
        raise ToolMissing(
            f"{WHO}: needs NCCL, which CuPy does not find (pip install nvidia-nccl-cu13, or -cu12 with CUDA 12)"
        )
    path = _cublas().source
    vendors = python_function(_cublas(), path).__globals__["version"]()
    return f"NCCL {nccl.get_version()}, cuBLAS {vendors}, {digest(path.read_text(encoding='utf-8'))}"


def matmul_nccl(a: Any, b: Any, out: Any, *, communicator: Any) -> Callable[[], None]:
    """A launch of this process's part of C = A B; every process of the communicator must make and call one.

    a, b, out: parts of A (rows), B (columns) and C (columns), as `part` cuts them; out is overwritten. C-contiguous
    CuPy arrays of the current device. `communicator`: CuPy's NcclCommunicator, rank r on GPU r's device. The launch
    runs on CuPy's current stream and one of its own, which that stream waits for; not synchronized. It has memory for
    the rows of A that the other processes have: keep it until it has run.

    Raises: KernelError if the parts do not fit together.
    """
    import cupy
    from cupy.cuda import nccl

    rank, ranks = communicator.rank_id(), communicator.size()
    (rows, k), (depth, columns), (M, N) = a.shape, b.shape, out.shape
    own = part(M, rank, ranks)
    if (rows, depth, N) != (len(own), k, columns):
        raise KernelError(
            f"{WHO}: part {rank} of {ranks} must be of {len(own)} x K, K x N and {M} x N; "
            f"got {rows} x {k}, {depth} x {columns} and {M} x {N}"
        )
    multiply = python_function(_cublas(), _cublas().source)  # the rung's own module, and so its one handle
    plan = [(each, cupy.empty((len(each.received), k), a.dtype)) for each in exchanges(M, rank, ranks)]
    transfers = cupy.cuda.Stream(non_blocking=True, priority=FIRST)
    begun, *arrived = (cupy.cuda.Event(disable_timing=True) for _ in range(len(plan) + 1))

    def transfer(each: Exchange, received: Any) -> None:
        nccl.groupStart()
        if a.size:
            communicator.send(a.data.ptr, a.nbytes, nccl.NCCL_UINT8, each.target, transfers.ptr)
        if received.size:
            communicator.recv(received.data.ptr, received.nbytes, nccl.NCCL_UINT8, each.source, transfers.ptr)
        nccl.groupEnd()

    def product(rows_of_a: Any, at: range) -> None:
        if 0 in (len(at), columns, k):
            out[at.start : at.stop] = 0  # a sum over nothing
        else:
            multiply(rows_of_a, b, out[at.start : at.stop])

    def launch() -> None:
        stream = cupy.cuda.get_current_stream()
        begun.record(stream)
        transfers.wait_event(begun)  # the products of the launch before read what is received now
        for (each, received), event in zip(plan, arrived, strict=True):
            transfer(each, received)
            event.record(transfers)
        product(a, own)
        for (each, received), event in zip(plan, arrived, strict=True):
            stream.wait_event(event)
            product(received, each.received)

    return launch
