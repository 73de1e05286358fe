// transpose/raster: out[n][m] = in[m][n], vectorized with its blocks in the order of the output.
//
// in   M x N    out   N x M, overwritten    row major, any M, N >= 1, T of 1, 2, 4, 8 or 16 bytes
//
// Blocks begin in the order of their numbers, x first. So those of vectorized that run at one time read one band of rows
// of the input, piece beside piece, and write pieces that are rows of the output apart. Here they go down the columns of
// the input: what they read lies apart, and what they write lies together. tile.cuh has the way of a tile.
// Source: Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA, 2009, whose blocks go along diagonals.

#include "tile.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS) transpose_raster(const T *__restrict__ in, T *__restrict__ out, long long M,
                                                            long long N) {
    __shared__ uint4 tile[VECTORS<T>];
    const long long tile_rows = (M + TILE_ROWS - 1) / TILE_ROWS;
    const long long block = blockIdx.x + gridDim.x * (blockIdx.y + (long long)gridDim.y * blockIdx.z);
    const long long row0 = block % tile_rows * TILE_ROWS, column0 = block / tile_rows * TILE_COLUMNS;
    transpose_tile(in, out, M, N, row0, column0, threadIdx.y * BLOCK_X + threadIdx.x, tile);
}
