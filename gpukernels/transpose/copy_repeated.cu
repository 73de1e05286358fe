// transpose/copy_repeated: out[m][n] = in[m][n], REPEATS times over in one launch.
//
// in   M x N    out  M x N, overwritten    row major, T, any M, N >= 1
//
// CINECA's inner timing: transpose/copy with the repetition inside the kernel, so that one launch pays for
// REPEATS passes. A block repeats its own tile, which its SM's L1 cache then holds.
// Source: CINECA, Programming paradigms for GPU devices, 2018.

static_assert(TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0, "a thread moves whole steps of BLOCK_Y rows");

// Not __restrict__: the compiler could then read once and store the same value REPEATS times.
template <typename T>
__global__ void transpose_copy_repeated(const T *in, T *out, long long M, long long N) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long tile_row = blockIdx.y + (long long)gridDim.y * blockIdx.z;
    const long long row = tile_row * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;

#pragma unroll 1
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += BLOCK_Y)
            if (row + step < M && column < N)
                out[(row + step) * N + column] = in[(row + step) * N + column];
        asm volatile("" ::: "memory");  // each pass reads and writes anew
    }
}
