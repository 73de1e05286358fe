// vector_add/vectorized: out[i] = a[i] + b[i], 16 bytes an access.
//
// in   a, b  N    out  N, overwritten    T, any N >= 1
//
// A thread adds V = 16 / sizeof(T) neighboring elements, a vector: four float32 or two float64. So the same bytes take
// a quarter or half as many loads and stores, and a thread has more bytes on their way at a time.
// A 16-byte access needs an address that is a multiple of 16. If an operand begins elsewhere, all blocks add element by
// element. If N does not fill the last block, that block does.
// Source: Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access, 2013.

template <typename T>
__global__ void __launch_bounds__(BLOCK_X)
    vector_add_vectorized(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ out, long long N) {
    constexpr int V = 16 / sizeof(T);
    static_assert(TILE_COLUMNS == BLOCK_X * V, "a thread adds one vector");

    const long long first = (long long)blockIdx.x * TILE_COLUMNS;
    const unsigned long long addresses = (unsigned long long)a | (unsigned long long)b | (unsigned long long)out;
    if (addresses % 16 || first + TILE_COLUMNS > N) {
        for (int at = threadIdx.x; at < TILE_COLUMNS; at += BLOCK_X)
            if (first + at < N)
                out[first + at] = a[first + at] + b[first + at];
        return;
    }
    const long long vector = first / V + threadIdx.x;
    const uint4 left = ((const uint4 *)a)[vector], right = ((const uint4 *)b)[vector];
    uint4 sums;
#pragma unroll
    for (int i = 0; i < V; ++i)
        ((T *)&sums)[i] = ((const T *)&left)[i] + ((const T *)&right)[i];
    ((uint4 *)out)[vector] = sums;
}
