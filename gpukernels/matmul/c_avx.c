// matmul/c_avx: C[m][n] = sum over k of A[m][k] B[k][n], a vector of neighbors of a row of C at a time.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, T (float or double), any M, N, K >= 1
//
// On one core, by intrinsics: a vector register sums up neighbors of a row of C, to which each k adds A[m][k] times
// as many neighbors of a row of B. The sums are independent, so that no order of addition changes. The widest
// vectors that the CPU has, found out in each call: AVX-512, else AVX2 with FMA, else the plain loops, which also do
// the columns at the end of a row that fill no vector.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void columns_from(long long first, const T *restrict A, const T *restrict B, T *restrict C, long long M,
                         long long N, long long K) {
    for (long long m = 0; m < M; ++m)
        for (long long n = first; n < N; ++n) {
            T sum = 0;
            for (long long k = 0; k < K; ++k)
                sum += A[m * K + k] * B[k * N + n];
            C[m * N + n] = sum;
        }
}

#if defined(__x86_64__)
// The intrinsics and the vectors of T by name: INTRINSIC(_mm256_loadu_) is _mm256_loadu_ps where T is float.
#define SUFFIX_float ps
#define SUFFIX_double pd
#define VECTOR256_float __m256
#define VECTOR256_double __m256d
#define VECTOR512_float __m512
#define VECTOR512_double __m512d
#define GLUE(left, right) left##right
#define JOIN(left, right) GLUE(left, right)
#define INTRINSIC(name) JOIN(name, JOIN(SUFFIX_, T))

__attribute__((target("avx512f"))) static void avx512(const T *restrict A, const T *restrict B, T *restrict C,
                                                      long long M, long long N, long long K) {
    const long long width = 64 / sizeof(T), whole = N / width * width;
    for (long long m = 0; m < M; ++m)
        for (long long n = 0; n < whole; n += width) {
            JOIN(VECTOR512_, T) sum = INTRINSIC(_mm512_setzero_)();
            for (long long k = 0; k < K; ++k) {
                const JOIN(VECTOR512_, T) a = INTRINSIC(_mm512_set1_)(A[m * K + k]);
                const JOIN(VECTOR512_, T) b = INTRINSIC(_mm512_loadu_)(&B[k * N + n]);
                sum = INTRINSIC(_mm512_fmadd_)(a, b, sum);
            }
            INTRINSIC(_mm512_storeu_)(&C[m * N + n], sum);
        }
    columns_from(whole, A, B, C, M, N, K);
}

__attribute__((target("avx2,fma"))) static void avx2(const T *restrict A, const T *restrict B, T *restrict C,
                                                     long long M, long long N, long long K) {
    const long long width = 32 / sizeof(T), whole = N / width * width;
    for (long long m = 0; m < M; ++m)
        for (long long n = 0; n < whole; n += width) {
            JOIN(VECTOR256_, T) sum = INTRINSIC(_mm256_setzero_)();
            for (long long k = 0; k < K; ++k) {
                const JOIN(VECTOR256_, T) a = INTRINSIC(_mm256_set1_)(A[m * K + k]);
                const JOIN(VECTOR256_, T) b = INTRINSIC(_mm256_loadu_)(&B[k * N + n]);
                sum = INTRINSIC(_mm256_fmadd_)(a, b, sum);
            }
            INTRINSIC(_mm256_storeu_)(&C[m * N + n], sum);
        }
    columns_from(whole, A, B, C, M, N, K);
}
#endif

void matmul_c_avx(const T *restrict A, const T *restrict B, T *restrict C, long long M, long long N, long long K) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        avx512(A, B, C, M, N, K);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        avx2(A, B, C, M, N, K);
        return;
    }
#endif
    columns_from(0, A, B, C, M, N, K);
}
