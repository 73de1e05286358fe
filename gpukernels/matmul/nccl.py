"""matmul/nccl: C = A B on several GPUs of one host, a process each: NCCL gathers A while cuBLAS multiplies.

GPU r of n holds part r of the rows of A and part r of the columns of B, and makes part r of the columns of C. It needs
all of A, which the GPUs send each other in panels of rows. A panel is as contiguous as the rows of C that it gives, and
no sum is split: each element of C is rounded as in one product.

All transfers are enqueued first, on a stream of the highest priority: a product that is enqueued before them fills the
GPU with its blocks, and NCCL's would wait until the last of them has started. A GPU multiplies its own rows while the
first panels travel, then each panel as it comes. In step s, GPU r sends to r - s and receives from r + s, so that each
link carries one panel each way at a time.
Source: van de Geijn and Watts, SUMMA: scalable universal matrix multiplication algorithm, 1997; NVIDIA, NCCL
documentation: point-to-point communication.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

WHO = "matmul/nccl"
PANEL_ROWS = 4096  # the least: fewer make products that fill a GPU badly
PANELS_MAX = 8


class Exchange(NamedTuple):
    """One transfer each way: rows of A that go to the process `target`, and that come from the process `source`."""

    target: int
    sent: range
    source: int
    received: range


def part(extent: int, rank: int, ranks: int) -> range:
    """Part `rank` of `ranks` of an extent; the parts differ by at most 1."""
    return range(extent * rank // ranks, extent * (rank + 1) // ranks)


def panels(rows: int, ranks: int) -> int:
    """The panels in which a process sends its part of so many rows of A."""
    return max(1, min(rows // ranks // PANEL_ROWS, PANELS_MAX))


def exchanges(rows: int, rank: int, ranks: int, count: int) -> Iterator[Exchange]:
    """The transfers of one process in order, each part of A's rows in `count` panels. What one process sends in its
    i-th exchange, the other receives in its i-th."""

    def panel(owner: int, at: int) -> range:
        own = part(rows, owner, ranks)
        piece = part(len(own), at, count)
        return own[piece.start : piece.stop]

    for step in range(1, ranks):
        target, source = (rank - step) % ranks, (rank + step) % ranks
        for at in range(count):
            yield Exchange(target, panel(rank, at), source, panel(source, at))


def matmul_nccl(
    a: Any, b: Any, out: Any, *, communicator: Any, count: int | None = None, high: bool = True
) -> Callable[[], None]:
    import cupy
    from cupy.cuda import nccl

    import gpukernels
    from gpukernels.kernel import python_function

    rung = gpukernels.rung("matmul", "cublas")
    multiply = python_function(rung, rung.source)
    rank, ranks = communicator.rank_id(), communicator.size()
    own = part(len(out), rank, ranks)
    plan = list(exchanges(len(out), rank, ranks, count or panels(len(out), ranks)))
    gathered = cupy.empty((len(out) - len(own), a.shape[1]), a.dtype)
    transfers = cupy.cuda.Stream(non_blocking=True, priority=-5 if high else 0)
    begun = cupy.cuda.Event(disable_timing=True)
    come = [cupy.cuda.Event(disable_timing=True) for _ in plan]
    starts = []
    at = 0
    for each in plan:
        starts.append(at)
        at += len(each.received)

    def launch() -> None:
        stream = cupy.cuda.get_current_stream()
        begun.record(stream)
        transfers.wait_event(begun)
        width = a.shape[1] * a.itemsize
        for each, event, start in zip(plan, come, starts):
            nccl.groupStart()
            address = a.data.ptr + (each.sent.start - own.start) * width
            communicator.send(address, len(each.sent) * width, nccl.NCCL_UINT8, each.target, transfers.ptr)
            communicator.recv(
                gathered.data.ptr + start * width, len(each.received) * width, nccl.NCCL_UINT8, each.source, transfers.ptr
            )
            nccl.groupEnd()
            event.record(transfers)
        multiply(a, b, out[own.start : own.stop])
        for each, event, start in zip(plan, come, starts):
            stream.wait_event(event)
            rows = each.received
            multiply(gathered[start : start + len(rows)], b, out[rows.start : rows.stop])

    return launch
