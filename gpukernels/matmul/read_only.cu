// matmul/read_only: C[m][n] = sum over k of A[m][k] B[k][n], operands read through the read-only data path.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
//
// The initial rung (one thread an element of C, everything from global memory), with __ldg for both operands. __ldg is
// a load through the read-only cache. It needs operands that nothing writes while the kernel runs. (The compiler finds
// such loads itself if operands are const and __restrict__, as in the tiled rungs.) On GPUs of compute capability 3.x
// that cache is the texture cache, which plain loads do not use. Since 7.0 both kinds of load share one L1 cache, and
// little should change.
// Source: University of Utah, CS6235; NVIDIA, CUDA C++ Programming Guide, read-only data cache load function.

static_assert(TILE_ROWS == BLOCK_Y && TILE_COLUMNS == BLOCK_X, "one thread an element of the tile");

template <typename T, typename Sum = T>
__global__ void matmul_read_only(const T *__restrict__ A, const T *__restrict__ B, Sum *__restrict__ C, long long M,
                                 long long N, long long K) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    if (row >= M || column >= N)
        return;

    Sum sum = Sum(0);
    // Kept rolled as in the initial rung, so that the path of the loads is all that differs.
#pragma unroll 1
    for (long long k = 0; k < K; ++k)
        sum += (Sum)__ldg(&A[row * K + k]) * (Sum)__ldg(&B[k * N + column]);
    C[row * N + column] = sum;
}
