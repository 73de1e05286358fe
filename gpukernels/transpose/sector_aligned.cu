// transpose/sector_aligned: out[n][m] = in[m][n], stores begin at sectors of global memory, whatever the pitch.
//
// in   M x N    out   N x M, overwritten    row major, any M, N >= 1, T of any size
//
// Global memory is written in sectors of 32 bytes. If M * sizeof(T) is no multiple of 32, tiles at multiples of
// TILE_ROWS cut sectors in most rows of the output, and two blocks write a part of each. Here a block begins in each
// row of the output at the first sector from its tile on, and ends where the next block begins. It loads the rows of a
// sector more than it stores. The first block of a row stores what comes before the first sector, too.
// Inside of the matrix no access is guarded, so that a thread has all of its loads in flight at once.
// Source: this project; NVIDIA, CUDA C++ Programming Guide, device memory accesses.

constexpr int SECTOR_BYTES = 32;

template <typename T>
__global__ void __launch_bounds__(BLOCK_X *BLOCK_Y) transpose_sector_aligned(const T *__restrict__ in,
                                                                             T *__restrict__ out, long long M,
                                                                             long long N) {
    constexpr int SECTOR = SECTOR_BYTES / sizeof(T);  // elements of a sector
    constexpr int LOADED = TILE_ROWS + SECTOR;        // rows of the input
    static_assert(BLOCK_X == 32 && SECTOR <= BLOCK_X && TILE_COLUMNS % BLOCK_X == 0, "a warp loads whole rows");
    static_assert(TILE_ROWS % SECTOR == 0, "the next block begins where this one ends");
    static_assert(LOADED % BLOCK_Y == 0 && TILE_COLUMNS % BLOCK_Y == 0, "whole steps of BLOCK_Y rows");

    __shared__ T tile[TILE_COLUMNS][LOADED | 1];  // odd: no bank conflicts for elements of 4 bytes

    const int lane = threadIdx.x, warp = threadIdx.y;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;
    const bool inside = row0 + LOADED <= M && column0 + TILE_COLUMNS <= N;

    const T *const from = in + (row0 + warp) * N + column0 + lane;
    if (inside) {
#pragma unroll
        for (int r = 0; r < LOADED; r += BLOCK_Y)
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c += BLOCK_X)
                tile[c + lane][r + warp] = from[r * N + c];
    } else {
        for (int r = 0; r < LOADED; r += BLOCK_Y)
            for (int c = 0; c < TILE_COLUMNS; c += BLOCK_X)
                if (row0 + r + warp < M && column0 + c + lane < N)
                    tile[c + lane][r + warp] = from[r * N + c];
    }
    __syncthreads();

    const long long place = (unsigned long long)out / sizeof(T);
#pragma unroll
    for (int c = warp; c < TILE_COLUMNS; c += BLOCK_Y) {
        if (column0 + c >= N)
            break;
        const long long first = (column0 + c) * M;                  // of this row of the output
        const int skipped = (int)(-(place + first) & (SECTOR - 1));  // elements before the first sector
        T *const to = out + first + row0;
        if (row0 == 0 && lane < skipped && lane < M)
            to[lane] = tile[c][lane];
#pragma unroll
        for (int r = 0; r < TILE_ROWS; r += BLOCK_X) {
            const int at = r + lane + skipped;
            if (r + lane < TILE_ROWS && (inside || row0 + at < M))
                to[at] = tile[c][at];
        }
    }
}
