// transpose/tile.cuh: a tile of a transpose, 16 bytes an access on both sides.
//
// A thread loads blocks of V x V elements, V = 16 / sizeof(T), as V vectors of 16 bytes. It turns a block in registers,
// so that what it stores to shared memory are vectors of the output. Shared memory holds the tile as rows of the output.
// Neighboring threads store down a column of vectors there: an exclusive or of the place in a row with the column's
// number spreads them over all banks. A warp then loads rows, and stores rows of the output.
// Vectors lie at multiples of 16 bytes. If an operand or its rows do not, the tile takes the same way by elements.
// TILE_ROWS, TILE_COLUMNS, BLOCK_X and BLOCK_Y come from the rung's entry in gpukernels/ladder.toml.
// Source: Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA, 2009, with vectors in place of elements.

#pragma once

constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int WORDS = 4;  // 32-bit words of a vector

// The block `in`, V rows of V elements, transposed.
template <typename T>
__device__ void turn(const unsigned int (&in)[16 / sizeof(T)][WORDS], unsigned int (&out)[16 / sizeof(T)][WORDS]) {
    constexpr int V = 16 / sizeof(T);
    if constexpr (sizeof(T) >= 4) {
        constexpr int W = sizeof(T) / 4;  // words of an element
#pragma unroll
        for (int i = 0; i < V; ++i)
#pragma unroll
            for (int j = 0; j < V; ++j)
#pragma unroll
                for (int w = 0; w < W; ++w)
                    out[j][i * W + w] = in[i][j * W + w];
    } else if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int j = 0; j < V; ++j)
#pragma unroll
            for (int m = 0; m < WORDS; ++m)
                out[j][m] = __byte_perm(in[2 * m][j / 2], in[2 * m + 1][j / 2], j % 2 ? 0x7632 : 0x5410);
    } else {
#pragma unroll
        for (int k = 0; k < WORDS; ++k)
#pragma unroll
            for (int m = 0; m < WORDS; ++m) {  // 4 x 4 bytes: columns 4 k to 4 k + 3 of rows 4 m to 4 m + 3
                const unsigned int low01 = __byte_perm(in[4 * m][k], in[4 * m + 1][k], 0x5140);
                const unsigned int low23 = __byte_perm(in[4 * m + 2][k], in[4 * m + 3][k], 0x5140);
                const unsigned int high01 = __byte_perm(in[4 * m][k], in[4 * m + 1][k], 0x7362);
                const unsigned int high23 = __byte_perm(in[4 * m + 2][k], in[4 * m + 3][k], 0x7362);
                out[4 * k][m] = __byte_perm(low01, low23, 0x5410);
                out[4 * k + 1][m] = __byte_perm(low01, low23, 0x7632);
                out[4 * k + 2][m] = __byte_perm(high01, high23, 0x5410);
                out[4 * k + 3][m] = __byte_perm(high01, high23, 0x7632);
            }
    }
}

// Vectors of a tile.
template <typename T>
constexpr int VECTORS = TILE_COLUMNS * (TILE_ROWS * (int)sizeof(T) / 16);

// The tile of the input that begins at row0, column0, transposed. `thread`: of the block; `tile`: TILE_COLUMNS rows of
// the output, in shared memory.
template <typename T>
__device__ void transpose_tile(const T *__restrict__ in, T *__restrict__ out, long long M, long long N, long long row0,
                               long long column0, int thread, uint4 *tile) {
    constexpr int V = 16 / sizeof(T);                                // elements of a vector
    constexpr int ROWS = TILE_ROWS / V, COLUMNS = TILE_COLUMNS / V;  // blocks of V x V
    constexpr int BLOCKS = ROWS * COLUMNS / THREADS;                 // blocks a thread
    static_assert((ROWS & (ROWS - 1)) == 0, "the exclusive or stays within a row");
    static_assert(BLOCKS > 0 && ROWS * COLUMNS % THREADS == 0, "whole blocks for each thread");

    const unsigned long long places = (unsigned long long)in | (unsigned long long)out | M * sizeof(T) | N * sizeof(T);
    if (places % 16) {
        T *const elements = (T *)tile;
        for (int at = thread; at < TILE_ROWS * TILE_COLUMNS; at += THREADS) {
            const int r = at / TILE_COLUMNS, c = at % TILE_COLUMNS;
            if (row0 + r < M && column0 + c < N)
                elements[c * TILE_ROWS + r] = in[(row0 + r) * N + column0 + c];
        }
        __syncthreads();
        for (int at = thread; at < TILE_ROWS * TILE_COLUMNS; at += THREADS) {
            const int r = at % TILE_ROWS, c = at / TILE_ROWS;
            if (row0 + r < M && column0 + c < N)
                out[(column0 + c) * M + row0 + r] = elements[at];
        }
        return;
    }

    // M and N are multiples of V here: a block lies inside of the input, or outside.
    unsigned int held[BLOCKS][V][WORDS];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
        const int block = thread + b * THREADS, r = block / COLUMNS * V, c = block % COLUMNS * V;
        if (row0 + r < M && column0 + c < N)
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const uint4 row = *(const uint4 *)(in + (row0 + r + i) * N + column0 + c);
                held[b][i][0] = row.x, held[b][i][1] = row.y, held[b][i][2] = row.z, held[b][i][3] = row.w;
            }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
        const int block = thread + b * THREADS, r = block / COLUMNS, c = block % COLUMNS;
        unsigned int turned[V][WORDS];
        turn<T>(held[b], turned);
#pragma unroll
        for (int j = 0; j < V; ++j)
            tile[(c * V + j) * ROWS + (r ^ c % ROWS)] =
                make_uint4(turned[j][0], turned[j][1], turned[j][2], turned[j][3]);
    }
    __syncthreads();

#pragma unroll
    for (int at = thread; at < TILE_COLUMNS * ROWS; at += THREADS) {
        const int c = at / ROWS, r = at % ROWS;
        if (row0 + r * V < M && column0 + c < N)
            *(uint4 *)(out + (column0 + c) * M + row0 + r * V) = tile[c * ROWS + (r ^ c / V % ROWS)];
    }
}
