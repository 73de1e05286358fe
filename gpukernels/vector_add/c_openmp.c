// vector_add/c_openmp: out[i] = a[i] + b[i], the loop split over the cores.
//
// in   a, b  N    out  N, overwritten    T, any N >= 1
//
// A static schedule gives each thread one run of memory, the same in every call.

void vector_add_c_openmp(const T *restrict a, const T *restrict b, T *restrict out, long long N) {
#pragma omp parallel for simd schedule(static)
    for (long long i = 0; i < N; ++i)
        out[i] = a[i] + b[i];
}
