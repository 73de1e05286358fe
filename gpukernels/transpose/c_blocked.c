// transpose/c_blocked: out[n][m] = in[m][n], tile by tile.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// A tile of in and its image in out fit in the L1 cache together, so that a cache line of out is filled
// before it is evicted.

static inline long long least(long long a, long long b) { return a < b ? a : b; }

void transpose_c_blocked(const T *restrict in, T *restrict out, long long M, long long N) {
    for (long long m0 = 0; m0 < M; m0 += TILE_ROWS)
        for (long long n0 = 0; n0 < N; n0 += TILE_COLUMNS)
            for (long long n = n0; n < least(n0 + TILE_COLUMNS, N); ++n)
                for (long long m = m0; m < least(m0 + TILE_ROWS, M); ++m)
                    out[n * M + m] = in[m * N + n];
}
