// transpose/dynamic: out[n][m] = in[m][n] through a tile whose edge is chosen at run time.
//
// in   M x N    out  N x M, overwritten    row major, T, any M, N >= 1
//
// The tile's edge is blockDim.x, one element a thread, in edge x (edge + PAD) elements of dynamic shared
// memory. One binary serves every edge; what the compiler knew about the tile of the padded rung is
// computed here in every thread.
// Source: Memory coalescing (2).

template <typename T>
__global__ void transpose_dynamic(const T *__restrict__ in, T *__restrict__ out, long long M, long long N) {
    // One name may be declared with one type only, whatever T is: bytes, aligned for the widest element.
    extern __shared__ __align__(16) unsigned char shared[];
    T *tile = reinterpret_cast<T *>(shared);

    const int edge = blockDim.x, pitch = edge + PAD;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * edge;
    const long long column0 = (long long)blockIdx.x * edge;

    if (row0 + threadIdx.y < M && column0 + threadIdx.x < N)
        tile[threadIdx.y * pitch + threadIdx.x] = in[(row0 + threadIdx.y) * N + column0 + threadIdx.x];
    __syncthreads();

    if (row0 + threadIdx.x < M && column0 + threadIdx.y < N)
        out[(column0 + threadIdx.y) * M + row0 + threadIdx.x] = tile[threadIdx.x * pitch + threadIdx.y];
}
