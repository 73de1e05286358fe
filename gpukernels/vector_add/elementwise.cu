// vector_add/elementwise: out[i] = a[i] + b[i], one thread an element.
//
// in   a, b  N    out  N, overwritten    T, any N >= 1
//
// Neighboring threads touch neighboring elements, so that a warp's 32 accesses are one run of memory.
// Source: the lesson before memory coalescing, in one dimension.

static_assert(TILE_COLUMNS == BLOCK_X, "a block adds as many elements as it has threads");

template <typename T>
__global__ void vector_add_elementwise(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ out,
                                       long long N) {
    const long long i = (long long)blockIdx.x * BLOCK_X + threadIdx.x;
    if (i < N)
        out[i] = a[i] + b[i];
}
