"""Rungs that CuPy launches: its own reduction, a kernel of CUDA C++, elementwise kernels."""

import cupy

SOFTMAX = r"""
#define NOTHING __int_as_float(0xff800000)  // minus infinity

// A block has a row: its largest number and the sum in one pass (online softmax), the results in a second one.
extern "C" __global__ void softmax(const float *x, float *out, long long columns) {
    __shared__ float largest_of[32], sum_of[32];
    const float *row = x + blockIdx.x * columns;
    float largest = NOTHING, sum = 0;
    for (long long i = threadIdx.x; i < columns; i += blockDim.x) {
        const float value = row[i], next = fmaxf(largest, value);
        sum = sum * expf(largest - next) + expf(value - next);
        largest = next;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(~0u, largest, step), more = __shfl_xor_sync(~0u, sum, step);
        const float next = fmaxf(largest, other);
        // Two lanes without a number have minus infinity, of which no difference is a number.
        sum = next == NOTHING ? 0 : sum * expf(largest - next) + more * expf(other - next);
        largest = next;
    }
    if (threadIdx.x % 32 == 0) {
        largest_of[threadIdx.x / 32] = largest;
        sum_of[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    largest = NOTHING;
    for (int warp = 0; warp < blockDim.x / 32; ++warp)
        largest = fmaxf(largest, largest_of[warp]);
    sum = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp)
        sum += largest_of[warp] == NOTHING ? 0 : sum_of[warp] * expf(largest_of[warp] - largest);
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        out[blockIdx.x * columns + i] = expf(row[i] - largest) / sum;
}
"""
SOFTMAX_KERNEL = cupy.RawKernel(SOFTMAX, "softmax")
SQUARES = cupy.ReductionKernel("float32 x", "float32 y", "x * x", "a + b", "y = a", "0", "sum_of_squares")
SCALED = cupy.ElementwiseKernel(
    "float32 x, float32 weight, float32 squares, float32 columns, float32 eps",
    "float32 y",
    "y = x * (1 / sqrtf(squares / columns + eps)) * weight",
    "scale_rows",
)


def row_sum(x, out):
    x.sum(axis=1, out=out)


def softmax(x, out):
    SOFTMAX_KERNEL((x.shape[0],), (256,), (x, out, cupy.int64(x.shape[1])))


def rms_norm(x, weight, out, eps):
    squares = SQUARES(x, axis=1, keepdims=True)
    SCALED(x, weight, squares, cupy.float32(x.shape[1]), cupy.float32(eps), out)
