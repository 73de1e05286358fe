// matmul/c: C[m][n] = sum over k of A[m][k] B[k][n], three loops.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, T, any M, N, K >= 1
//
// The textbook's loops in the textbook's order, on one core: k, the innermost, walks down a column of B, N
// elements a step, so that nearly every product of a large matrix misses the L1 cache.

void matmul_c(const T *restrict A, const T *restrict B, T *restrict C, long long M, long long N, long long K) {
    for (long long m = 0; m < M; ++m)
        for (long long n = 0; n < N; ++n) {
            T sum = 0;
            for (long long k = 0; k < K; ++k)
                sum += A[m * K + k] * B[k * N + n];
            C[m * N + n] = sum;
        }
}
