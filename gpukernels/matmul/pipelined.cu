// matmul/pipelined: C[m][n] = sum over k of A[m][k] B[k][n], raster with fragments that are read one step ahead.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// In raster a thread reads its fragments of A and B for a k, waits for shared memory, and multiplies. Here it has two
// sets of fragments in registers: it reads those of the next k, also the first of the next stage, before it multiplies.
// So the multiply-adds wait neither for shared memory nor for the barrier. pipeline.cuh has the loop; the order of the
// multiply-adds there is the best of those that were measured, for all three tiles together.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (software pipelining of fragments).

#include "pipeline.cuh"

template <int BY, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long row0, long long column0) {
    T sum[TM][TN];
    multiply<BY>(sum, shared, A, B, M, N, K, K, row0, column0);
    store<BY>(sum, C, M, N, row0, column0);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) matmul_pipelined(const T *__restrict__ A, const T *__restrict__ B,
                                                            T *__restrict__ C, long long M, long long N, long long K) {
    static_assert(sizeof(T) == 4, "elements of 4 bytes");
    extern __shared__ __align__(16) unsigned char shared[];
    // A grid has at most 65,535 blocks in y and in z: z counts on where y ends.
    const long long down = (M + TILE_ROWS - 1) / TILE_ROWS;
    const long long block = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * gridDim.x + blockIdx.x;
    if (block >= down * gridDim.x)
        return;
    const Tile tile(block, down, gridDim.x);
    if (unaligned(B, C, N))
        compute<1>((T *)shared, A, B, C, M, N, K, tile.row0, tile.column0);
    else
        compute<VECTOR>((T *)shared, A, B, C, M, N, K, tile.row0, tile.column0);
}
