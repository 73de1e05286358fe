// matmul/fp16x3: C[m][n] = sum over k of A[m][k] B[k][n], float32 numbers as two scaled float16, three products.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, of T (float), any M, N, K >= 1; C begins at a multiple
// of 4 bytes. The parts of A and B are memory that parts.py gives.
//
// Two float16 parts hold 22 bits or more. float16 has a small range, so each row of A and each column of B is scaled by
// a power of two, chosen anew every SPAN of K, that takes its largest number there to [2^14, 2^15). Errors are relative
// to that largest number: 2^-39 of it, for numbers far below it. Numbers of 2^100 and more are outside: rows and
// columns of C that depend on one are computed again. parts.cuh has what the kernels do.
// Source: Ootomo and Yokota, Recovering single precision accuracy from tensor cores, 2022.

#include "parts.cuh"

static_assert(PARTS == 2, "two float16");

// The parts of A and B have rows of `pitch` elements, a multiple of 8. The first blocks take A, the others B. A thread
// makes the parts of eight neighbors at a time. Flags say which rows of A and columns of B have numbers outside.
// A block makes the parts of SPAN of K of some rows of A, or of some columns of B.
extern "C" __global__ void __launch_bounds__(SPLITTERS)
    matmul_fp16x3_parts(const float *__restrict__ A, const float *__restrict__ B, unsigned short *parts_a,
                        unsigned short *parts_b, float *scales_a, float *scales_b, unsigned char *outside_a,
                        unsigned char *outside_b, long long M, long long N, long long K, long long pitch_a,
                        long long pitch_b, long long wide_a, long long wide_b) {
    constexpr int LANES = SPAN / 8, HIGH = SPLITTERS / LANES;                         // of A: threads a row, rows
    constexpr int WIDE = 64, DOWN = SPLITTERS * 8 / WIDE, DEEP = SPAN / DOWN;        // of B: columns, rows at a time
    __shared__ u32 most[WIDE][SPLITTERS / 32 + 1];
    __shared__ int exponents[WIDE];
    const long long spans = (K + SPAN - 1) / SPAN, blocks_a = (M + HIGH - 1) / HIGH * spans;
    const int thread = threadIdx.x;

    if (blockIdx.x < blocks_a) {
        const long long span = blockIdx.x % spans, row = blockIdx.x / spans * HIGH + thread / LANES;
        const long long k = span * SPAN + thread % LANES * 8;
        float x[8];
        read(x, A + row * K + k, row < M ? K - k : 0);
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            largest = max(largest, magnitude(x[i]));
#pragma unroll
        for (int lanes = 1; lanes < LANES; lanes *= 2)
            largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, lanes));
        if (row >= M)
            return;
        const int e = scale_of(largest);
        if (thread % LANES == 0) {
            scales_a[span * wide_a + row] = power(-e);
            if (outside(largest))
                outside_a[row] = 1;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            x[i] *= power(e);
        if (k < pitch_a)
            write(x, parts_a + row * pitch_a + k, M * pitch_a);
        return;
    }

    const long long block = blockIdx.x - blocks_a, across = (N + WIDE - 1) / WIDE, span = block / across;
    const int lane = thread % (WIDE / 8);
    const long long column = block % across * WIDE + lane * 8, k = span * SPAN + thread / (WIDE / 8);
    float x[DEEP][8];
#pragma unroll
    for (int j = 0; j < DEEP; ++j)
        read(x[j], B + (k + j * DOWN) * N + column, k + j * DOWN < K ? N - column : 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        u32 largest = 0;
#pragma unroll
        for (int j = 0; j < DEEP; ++j)
            largest = max(largest, magnitude(x[j][i]));
#pragma unroll
        for (int lanes = WIDE / 8; lanes < 32; lanes *= 2)
            largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, lanes));
        if (thread % 32 < WIDE / 8)
            most[lane * 8 + i][thread / 32] = largest;
    }
    __syncthreads();
    if (thread < WIDE) {
        u32 largest = 0;
        for (int warp = 0; warp < SPLITTERS / 32; ++warp)
            largest = max(largest, most[thread][warp]);
        const int e = scale_of(largest);
        const long long n = block % across * WIDE + thread;
        exponents[thread] = e;
        if (n < N) {
            scales_b[span * wide_b + n] = power(-e);
            if (outside(largest))
                outside_b[n] = 1;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < DEEP; ++j)
            x[j][i] *= power(exponents[lane * 8 + i]);
#pragma unroll
    for (int j = 0; j < DEEP; ++j)
        if (k + j * DOWN < K && column < pitch_b)
            write(x[j], parts_b + (k + j * DOWN) * pitch_b + column, K * pitch_b);
}

template <typename T>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_fp16x3(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, T *C,
                  const float *scales_a, const float *scales_b, int M, int N, int K, long long wide_a,
                  long long wide_b) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    __shared__ alignas(16) float scales[STAGES][SCALES];
    multiply_parts(shared, full, empty, scales, map_a, map_b, C, scales_a, scales_b, M, N, K, wide_a, wide_b);
}

extern "C" __global__ void __launch_bounds__(SPLITTERS)
    matmul_fp16x3_outside(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C,
                          const unsigned char *outside_a, const unsigned char *outside_b, long long M, long long N,
                          long long K) {
    multiply_outside(A, B, C, outside_a, outside_b, M, N, K);
}
