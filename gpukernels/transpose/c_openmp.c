// transpose/c_openmp: out[n][m] = in[m][n], tile by tile, rows of tiles split over the cores.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// The blocked loops; a static schedule gives each thread the same rows in every call.

static inline long long least(long long a, long long b) { return a < b ? a : b; }

void transpose_c_openmp(const T *restrict in, T *restrict out, long long M, long long N) {
#pragma omp parallel for schedule(static)
    for (long long m0 = 0; m0 < M; m0 += TILE_ROWS)
        for (long long n0 = 0; n0 < N; n0 += TILE_COLUMNS)
            for (long long n = n0; n < least(n0 + TILE_COLUMNS, N); ++n)
                for (long long m = m0; m < least(m0 + TILE_ROWS, M); ++m)
                    out[n * M + m] = in[m * N + n];
}
