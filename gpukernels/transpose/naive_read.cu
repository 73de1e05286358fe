// transpose/naive_read: out[n][m] = in[m][n], coalesced where it reads.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// Neighboring threads read neighbors of a row and write down a column, M elements apart: every store of
// a warp touches 32 sectors.
// Source: CINECA, Programming paradigms for GPU devices, 2018; Memory coalescing (2).

static_assert(TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0, "a thread moves whole steps of BLOCK_Y rows");

template <typename T>
__global__ void transpose_naive_read(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    // A grid has at most 65,535 blocks in y and in z: z counts on where y ends.
    const long long tile_row = blockIdx.y + (long long)gridDim.y * blockIdx.z;
    const long long row = tile_row * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;

#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y)
        if (row + step < M && column < N)
            out[column * M + row + step] = in[(row + step) * N + column];
}
