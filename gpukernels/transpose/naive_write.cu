// transpose/naive_write: out[n][m] = in[m][n], coalesced where it writes.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// The same tile with the roles turned: threadIdx.x runs along a row of out, so that neighboring threads
// write neighbors and read down a column of in, N elements apart.
// Source: Memory coalescing (2).

static_assert(TILE_ROWS == BLOCK_X && TILE_COLUMNS % BLOCK_Y == 0, "a thread moves whole steps of BLOCK_Y columns");

template <typename T>
__global__ void transpose_naive_write(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long tile_row = blockIdx.y + (long long)gridDim.y * blockIdx.z;
    const long long row = tile_row * TILE_ROWS + threadIdx.x;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.y;

#pragma unroll
    for (int step = 0; step < TILE_COLUMNS; step += BLOCK_Y)
        if (row < M && column + step < N)
            out[(column + step) * M + row] = in[row * N + column + step];
}
