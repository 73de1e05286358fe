"""A rung that the CuTe DSL compiles and launches: a block has a row."""

from functools import cache

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_stream
from cutlass.memory import SmemAllocator

THREADS, WARPS = 256, 8
ALIGNED = 16  # bytes, the addresses of all arrays


@cute.kernel
def row_sum_kernel(x: cute.Tensor, out: cute.Tensor):
    sum_of = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(WARPS))
    row, thread = cute.arch.block_idx()[0], cute.arch.thread_idx()[0]
    total = cutlass.Float32(0)
    for column in cutlass.range(thread, x.shape[1], THREADS):
        total += x[row, column]
    total = cute.arch.warp_reduction_sum(total)
    if thread % 32 == 0:
        sum_of[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        for warp in cutlass.range_constexpr(1, WARPS):
            total += sum_of[warp]
        out[row] = total


@cute.jit
def launch(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    row_sum_kernel(x, out).launch(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


def compiled(options=""):
    """For arrays of any shape. `options`: the compiler's, such as "--gpu-arch sm_90"; by default those of this GPU."""
    rows, columns = cute.sym_int(), cute.sym_int()
    x = make_fake_compact_tensor(cutlass.Float32, (rows, columns), stride_order=(1, 0), assumed_align=ALIGNED)
    out = make_fake_compact_tensor(cutlass.Float32, (rows,), assumed_align=ALIGNED)
    return cute.compile(launch, x, out, make_fake_stream(), options=options)


compiled_here = cache(compiled)


def row_sum(x, out, stream):
    _, pointer = stream.__cuda_stream__()
    tensors = (from_dlpack(array, ALIGNED).mark_layout_dynamic(array.ndim - 1) for array in (x, out))
    compiled_here()(*tensors, CUstream(pointer))
