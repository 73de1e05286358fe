// transpose/tiled: out[n][m] = in[m][n] through a tile in shared memory.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// The tile is read row by row and written column by column, so that both sides of global memory are
// coalesced. A column of the tile lies in one bank: reading it takes a wavefront for each of its 32 rows
// (with 4-byte elements), which the next rung mends.
// Source: CINECA, Programming paradigms for GPU devices, 2018.

static_assert(TILE_ROWS == TILE_COLUMNS && TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0,
              "a square tile, turned by a block that covers it in steps of BLOCK_Y rows");

template <typename T>
__global__ void transpose_tiled(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    __shared__ T tile[TILE_ROWS][TILE_COLUMNS];

    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {
        const long long row = row0 + threadIdx.y + step, column = column0 + threadIdx.x;
        if (row < M && column < N)
            tile[threadIdx.y + step][threadIdx.x] = in[row * N + column];
    }
    __syncthreads();

    // Row of out = column of in: threadIdx.x now runs down a column of the tile.
#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {
        const long long row = row0 + threadIdx.x, column = column0 + threadIdx.y + step;
        if (row < M && column < N)
            out[column * M + row] = tile[threadIdx.x][threadIdx.y + step];
    }
}
