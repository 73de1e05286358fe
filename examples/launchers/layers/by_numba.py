"""A rung that Numba compiles and launches: a block has a row."""

from numba import cuda, float32

THREADS, WARPS = 256, 8


@cuda.jit
def row_sum_kernel(x, out):
    sum_of = cuda.shared.array(WARPS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0)
    for column in range(thread, x.shape[1], THREADS):
        total += x[row, column]
    step = 16
    while step > 0:
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
        step //= 2
    if thread % 32 == 0:
        sum_of[thread // 32] = total
    cuda.syncthreads()
    if thread == 0:
        for warp in range(1, WARPS):
            total += sum_of[warp]
        out[row] = total


def row_sum(x, out, stream):
    _, pointer = stream.__cuda_stream__()
    # Without sync=False Numba waits for the arrays' stream, which a capture forbids.
    x, out = (cuda.as_cuda_array(array, sync=False) for array in (x, out))
    row_sum_kernel[x.shape[0], THREADS, cuda.external_stream(pointer)](x, out)
