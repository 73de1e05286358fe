"""The sum of each row, in CUDA C++: a block has a row."""

THREADS = 256
SOURCE = r"""
constexpr int THREADS = 256;

extern "C" __global__ void row_sum(const float *x, float *out, long long columns) {
    __shared__ float sum_of[THREADS / 32];
    const float *row = x + blockIdx.x * columns;
    float sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < columns; i += THREADS)
        sum += row[i];
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0)
        sum_of[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < THREADS / 32; ++warp)
            sum += sum_of[warp];
        out[blockIdx.x] = sum;
    }
}
"""
