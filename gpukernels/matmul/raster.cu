// matmul/raster: C[m][n] = sum over k of A[m][k] B[k][n], pipelined with blocks in bands of rows of tiles.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// Blocks that are at work at the same time share what they load in the L2 cache. Blocks in the order of the rows of C
// have a few rows of A and all columns of B, which may not fit. In a band of BAND rows of tiles, whose columns come one
// after the other (bands.cuh), as many blocks have BAND times as many rows of A, and the BANDth part of the
// columns of B. Nothing but the place of a block's tile differs from pipelined.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (threadblock rasterization); Triton, tutorial 3, matrix
// multiplication (grouped ordering).

#include "bands.cuh"
#include "pipeline.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS)
    matmul_raster(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                  long long K) {
    extern __shared__ __align__(16) unsigned char shared[];
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long block = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * gridDim.x + blockIdx.x;
    const long long down = (M + TILE_ROWS - 1) / TILE_ROWS, across = gridDim.x;
    if (block >= down * across)
        return;
    const Tile tile(block, down, across);
    const long long row0 = tile.row0, column0 = tile.column0;
    if (whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K, row0, column0);
    else
        compute<false>((T *)shared, A, B, C, M, N, K, row0, column0);
}
