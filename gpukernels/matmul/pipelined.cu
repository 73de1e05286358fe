// matmul/pipelined: C[m][n] = sum over k of A[m][k] B[k][n], larger tiles, with fragments that are read one k ahead.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// A block's tile is twice that of raster. A warp has a compact tile of it, WARP_ROWS x WARP_COLUMNS, and a thread twice
// as many sums, so that it reads less of shared memory for each multiply-add. But it takes so many registers that a
// multiprocessor has room for one block, whose 8 warps are few to wait under.
// A fragment is what a thread needs of A or B for one k: TM or TN elements. Here a thread has two sets of them in
// registers. It reads those of the next k before it multiplies those of this k, and at the end of a stage it reads the
// first ones of the next stage. So no multiply-add needs what was read just before it. pipeline.cuh has the loop; the
// order of the multiply-adds there is the best of those that were measured.
// Blocks that run at the same time share what they load in the L2 cache. So, as in raster, their tiles lie in bands of
// BAND rows of tiles (Tile in pipeline.cuh): such blocks need few rows of A and few columns of B.
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
    const long long down = (M + TILE_ROWS - 1) / TILE_ROWS;  // tiles in a column of C
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long block = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * gridDim.x + blockIdx.x;
    if (block >= down * gridDim.x)
        return;
    const Tile tile(block, down, gridDim.x);
    // A is copied by elements in any case, since it is stored transposed.
    if (unaligned(B, C, N))
        compute<1>((T *)shared, A, B, C, M, N, K, tile.row0, tile.column0);
    else
        compute<VECTOR>((T *)shared, A, B, C, M, N, K, tile.row0, tile.column0);
}
