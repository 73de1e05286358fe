// transpose/copy: out[m][n] = in[m][n], on the grid and tile of the transposing rungs.
//
// in   M x N    out  M x N, overwritten    row major, T, any M, N >= 1
//
// A block of 32 x 8 threads moves a 32 x 32 tile. A warp reads and writes 32 neighbors of a row; a thread moves an
// element of four rows, BLOCK_Y rows apart. A transpose with this launch moves the same bytes and turns them, so it can
// be as fast at best.
// Source: CINECA, Programming paradigms for GPU devices, 2018.

static_assert(TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0, "a thread moves whole steps of BLOCK_Y rows");

template <typename T>
__global__ void transpose_copy(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long tile_row = blockIdx.y + (long long)gridDim.y * blockIdx.z;
    const long long row = tile_row * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;

#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y)
        if (row + step < M && column < N)
            out[(row + step) * N + column] = in[(row + step) * N + column];
}
