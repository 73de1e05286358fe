// matmul/bf16x6: C[m][n] = sum over k of A[m][k] B[k][n], a float32 number as three bfloat16, six of their products.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, of T (float), any M, N, K >= 1; C begins at a multiple
// of 4 bytes. parts.py gives the memory for the parts of A and B.
//
// Tensor cores multiply float32 numbers only cut to TF32, but bfloat16 ones exactly, and more than ten times as fast as
// float32 units work. Three bfloat16 parts, of 8 bits each, hold all 24 bits of a float: each is what the ones before
// it left over, rounded. Of the nine products of parts the three smallest are left out, 2^-23 of a product at most.
// Numbers must be 0 or in [2^-100, 2^62): of others a part would lose bits, or products overflow. Rows and columns of C
// that depend on such a number are computed again in float32. parts.cuh has what the three kernels do.
// Source: Henry, Tang and Heinecke, Leveraging the bfloat16 artificial intelligence datatype for higher-precision
// computations, 2019.

#include "parts.cuh"

static_assert(PARTS == 3, "three bfloat16");

// The first kernel. The parts of A and B have rows of `pitch` elements, a multiple of 8. The first threads take A, the
// others B; each makes the parts of eight neighbors. Flags say which rows of A and columns of B have numbers outside.
// Arguments without a name are scales, which bfloat16 parts do not need.
extern "C" __global__ void __launch_bounds__(SPLITTERS)
    matmul_bf16x6_parts(const float *__restrict__ A, const float *__restrict__ B, unsigned short *parts_a,
                        unsigned short *parts_b, float *, float *, unsigned char *outside_a, unsigned char *outside_b,
                        long long M, long long N, long long K, long long pitch_a, long long pitch_b, long long,
                        long long) {
    const long long vectors_a = M * (pitch_a / 8), vector = blockIdx.x * (long long)SPLITTERS + threadIdx.x;
    const bool of_a = vector < vectors_a;
    const long long rows = of_a ? M : K, columns = of_a ? K : N, pitch = of_a ? pitch_a : pitch_b;
    // The number of this thread's eight neighbors in its own matrix, and where they begin.
    const long long own = of_a ? vector : vector - vectors_a, row = own / (pitch / 8), column = own % (pitch / 8) * 8;
    if (row >= rows)
        return;
    float x[8];
    read(x, (of_a ? A : B) + row * columns + column, columns - column);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (outside(magnitude(x[i])))  // what lies beyond the row was read as 0
            *(of_a ? outside_a + row : outside_b + column + i) = 1;
    write(x, (of_a ? parts_a : parts_b) + row * pitch + column, rows * pitch);
}

// The second kernel: a block for each multiprocessor, a producer and two consumers.
template <typename T>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_bf16x6(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, T *C,
                  const float *scales_a, const float *scales_b, int M, int N, int K, long long wide_a,
                  long long wide_b) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    __shared__ alignas(16) float scales[STAGES][SCALES];
    multiply_parts(shared, full, empty, scales, map_a, map_b, C, scales_a, scales_b, M, N, K, wide_a, wide_b);
}

// The third kernel.
extern "C" __global__ void __launch_bounds__(SPLITTERS)
    matmul_bf16x6_outside(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C,
                          const unsigned char *outside_a, const unsigned char *outside_b, long long M, long long N,
                          long long K) {
    multiply_outside(A, B, C, outside_a, outside_b, M, N, K);
}
