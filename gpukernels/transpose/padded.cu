// transpose/padded: out[n][m] = in[m][n] through a shared-memory tile with one spare column.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// With the spare column tile[r][c] and tile[r + 1][c] lie TILE_COLUMNS + 1 elements apart, in different
// banks, so that reading a column of 4-byte elements costs one wavefront instead of 32.
// Source: CINECA, Programming paradigms for GPU devices, 2018; Memory coalescing (2).

static_assert(TILE_ROWS == TILE_COLUMNS && TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0,
              "a square tile, turned by a block that covers it in steps of BLOCK_Y rows");

template <typename T>
__global__ void transpose_padded(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    __shared__ T tile[TILE_ROWS][TILE_COLUMNS + 1];

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
