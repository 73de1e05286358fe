// transpose/naive_read: out[n][m] = in[m][n], coalesced where it reads.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// The copy rung with another index of out. A block of 32 x 8 threads has a 32 x 32 tile, four rows a thread. A warp
// reads 32 neighbors of a row (coalesced), and writes them down a column of out, M elements apart. Global memory is
// accessed in sectors of 32 bytes: each store of a warp touches 32 sectors, and writes one element of each.
// Source: CINECA, Programming paradigms for GPU devices, 2018; Memory coalescing (2).

static_assert(TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0, "a thread moves whole steps of BLOCK_Y rows");

template <typename T>
__global__ void transpose_naive_read(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long tile_row = blockIdx.y + (long long)gridDim.y * blockIdx.z;
    const long long row = tile_row * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;

#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y)
        if (row + step < M && column < N)
            out[column * M + row + step] = in[(row + step) * N + column];
}
