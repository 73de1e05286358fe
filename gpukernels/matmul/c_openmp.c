// matmul/c_openmp: C[m][n] = sum over k of A[m][k] B[k][n], three loops, rows of C split over the cores.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, T, any M, N, K >= 1
//
// The textbook's loops; no two threads write to the same row, so that they need no lock. A static schedule gives
// each thread the same rows in every call.

void matmul_c_openmp(const T *restrict A, const T *restrict B, T *restrict C, long long M, long long N, long long K) {
#pragma omp parallel for schedule(static)
    for (long long m = 0; m < M; ++m)
        for (long long n = 0; n < N; ++n) {
            T sum = 0;
            for (long long k = 0; k < K; ++k)
                sum += A[m * K + k] * B[k * N + n];
            C[m * N + n] = sum;
        }
}
