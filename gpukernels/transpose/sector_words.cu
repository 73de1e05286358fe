// transpose/sector_words: out[n][m] = in[m][n], by words of 4 bytes; stores begin at sectors, whatever the pitch.
//
// in   M x N    out   N x M, overwritten    row major, any M, N >= 1, T of 1, 2 or 4 bytes
//
// Tiles begin in each row of the output at a sector, as those of sector_aligned do. A word holds W elements. A lane
// loads the words of W rows, turns W x W elements in registers, and stores words of the output's rows to shared memory.
// Neither a row of the input nor what is stored of a row begins at a word of its memory or of the tile. So a word is
// put together of two neighbors. The columns of the tile lie in the order 0, W, 2 W, ..., 1, W + 1, ...: what a warp
// stores at once lies in neighboring columns, and the pitch is odd, so no banks conflict.
// Source: this project; NVIDIA, CUDA C++ Programming Guide, device memory accesses; PTX ISA, prmt.

constexpr int SECTOR_BYTES = 32, WORD_BYTES = 4;

// The word that begins `shift` bytes after the first one of two neighbors.
__device__ unsigned int shifted(unsigned int first, unsigned int second, int shift) {
    return __byte_perm(first, second, 0x3210 + 0x1111 * shift);
}

// The rows `in` of W x W elements, transposed.
template <int W>
__device__ void turn(const unsigned int (&in)[W], unsigned int (&out)[W]) {
    if constexpr (W == 1) {
        out[0] = in[0];
    } else if constexpr (W == 2) {
        out[0] = __byte_perm(in[0], in[1], 0x5410);
        out[1] = __byte_perm(in[0], in[1], 0x7632);
    } else {
        const unsigned int low01 = __byte_perm(in[0], in[1], 0x5140), low23 = __byte_perm(in[2], in[3], 0x5140);
        const unsigned int high01 = __byte_perm(in[0], in[1], 0x7362), high23 = __byte_perm(in[2], in[3], 0x7362);
        out[0] = __byte_perm(low01, low23, 0x5410);
        out[1] = __byte_perm(low01, low23, 0x7632);
        out[2] = __byte_perm(high01, high23, 0x5410);
        out[3] = __byte_perm(high01, high23, 0x7632);
    }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK_X *BLOCK_Y) transpose_sector_words(const T *__restrict__ in, T *__restrict__ out,
                                                                           long long M, long long N) {
    constexpr int W = WORD_BYTES / sizeof(T);         // elements of a word
    constexpr int SECTOR = SECTOR_BYTES / sizeof(T);  // elements of a sector
    constexpr int LOADED = TILE_ROWS + SECTOR;        // rows of the input
    constexpr int PITCH = LOADED / W | 1;             // words of a column of the tile
    static_assert(BLOCK_X == 32 && TILE_COLUMNS == BLOCK_X * W, "a warp loads a word of each row a lane");
    static_assert(TILE_ROWS % SECTOR == 0, "the next block begins where this one ends");
    static_assert(LOADED % (W * BLOCK_Y) == 0 && TILE_COLUMNS % BLOCK_Y == 0, "whole steps of BLOCK_Y");

    __shared__ unsigned int tile[TILE_COLUMNS * PITCH];

    const int lane = threadIdx.x, warp = threadIdx.y;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;
    // If rows do not begin at words, the first and the last word of a row hold elements of its neighbors.
    const int spare = ((unsigned long long)in | N * sizeof(T)) % WORD_BYTES ? W : 0;
    const bool inside = row0 + LOADED <= M && column0 + TILE_COLUMNS + spare <= N && (row0 + column0 > 0 || !spare);

    if (inside) {
        const T *const from = in + row0 * N + column0;
#pragma unroll 4
        for (int q = warp; q < LOADED / W; q += BLOCK_Y) {
            unsigned int held[W], turned[W];
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const T *const row = from + (q * W + i) * N;
                const int before = (unsigned long long)row % WORD_BYTES / sizeof(T);
                const unsigned int *const words = (const unsigned int *)(row - before) + lane;
                held[i] = shifted(words[0], before ? words[1] : 0, before * sizeof(T));
            }
            turn<W>(held, turned);
#pragma unroll
            for (int j = 0; j < W; ++j)
                tile[(j * BLOCK_X + lane) * PITCH + q] = turned[j];
        }
    } else {
        T *const elements = (T *)tile;
        for (int r = warp; r < LOADED; r += BLOCK_Y)
            for (int step = 0; step < TILE_COLUMNS; step += BLOCK_X) {
                const int c = step + lane;
                if (row0 + r < M && column0 + c < N)
                    elements[(c % W * BLOCK_X + c / W) * PITCH * W + r] = in[(row0 + r) * N + column0 + c];
            }
    }
    __syncthreads();

    const long long place = (unsigned long long)out / sizeof(T);
    for (int c = warp; c < TILE_COLUMNS; c += BLOCK_Y) {
        if (column0 + c >= N)
            break;
        const unsigned int *const column = tile + (c % W * BLOCK_X + c / W) * PITCH;
        const T *const elements = (const T *)column;
        const long long first = (column0 + c) * M;                   // of this row of the output
        const int skipped = (int)(-(place + first) & (SECTOR - 1));  // elements before the first sector
        T *const to = out + first + row0;
        if (row0 == 0 && lane < skipped && lane < M)
            to[lane] = elements[lane];
        if (inside) {
            const unsigned int *const words = column + skipped / W;
            const int before = skipped % W;
            unsigned int *const sectors = (unsigned int *)(to + skipped);
            // All lanes take the same number of steps. If `w` were the counter, nvcc would unroll the loop for 4 steps
            // at a time, and one warp would run it twice: once for its lanes with 4 steps, once for those with 3.
#pragma unroll
            for (int step = 0; step < TILE_ROWS / W; step += BLOCK_X) {
                const int w = step + lane;
                if (step + BLOCK_X <= TILE_ROWS / W || w < TILE_ROWS / W)
                    sectors[w] = shifted(words[w], before ? words[w + 1] : 0, before * sizeof(T));
            }
        } else {
            for (int at = skipped + lane; at < skipped + TILE_ROWS && row0 + at < M; at += BLOCK_X)
                to[at] = elements[at];
        }
    }
}
