// transpose/c: out[n][m] = in[m][n], two loops.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// Reads run along rows; every store lands in another cache line, M elements from the last.

void transpose_c(const T *restrict in, T *restrict out, long long M, long long N) {
    for (long long m = 0; m < M; ++m)
        for (long long n = 0; n < N; ++n)
            out[n * M + m] = in[m * N + n];
}
