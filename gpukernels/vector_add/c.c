// vector_add/c: out[i] = a[i] + b[i], one loop.
//
// in   a, b  N    out  N, overwritten    T, any N >= 1
//
// `restrict` tells the compiler that the operands do not overlap, so that it may vectorize without a check.

void vector_add_c(const T *restrict a, const T *restrict b, T *restrict out, long long N) {
    for (long long i = 0; i < N; ++i)
        out[i] = a[i] + b[i];
}
