// transpose/vectorized: out[n][m] = in[m][n], 16 bytes an access on both sides.
//
// in   M x N    out   N x M, overwritten    row major, any M, N >= 1, T of 1, 2, 4, 8 or 16 bytes
//
// A thread turns blocks of V x V elements in registers, V = 16 / sizeof(T), between loads and stores of 16 bytes.
// tile.cuh has the way of a tile.
// Source: Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA, 2009, with vectors in place of elements.

#include "tile.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS) transpose_vectorized(const T *__restrict__ in, T *__restrict__ out,
                                                                long long M, long long N) {
    __shared__ uint4 tile[VECTORS<T>];
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;
    transpose_tile(in, out, M, N, row0, column0, thread, tile);
}
