// matmul/texture: C[m][n] = sum over k of A[m][k] B[k][n], operands fetched through 1-D linear textures.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
// with at most 2^27 elements in A and in B, the largest index of a linear texture. A texture begins at an aligned
// address; A_first and B_first say at which of its elements the operand begins.
//
// The initial rung with both operands read by the texture units. Where those have a cache of their own they relieve
// the L1 cache; since compute capability 7.0 textures and plain loads share one, and a fetch has the longer way.
// Source: University of Utah, CS6235; NVIDIA, CUDA C++ Programming Guide, texture object API.

static_assert(TILE_ROWS == BLOCK_Y && TILE_COLUMNS == BLOCK_X, "one thread an element of the tile");

template <typename T, typename Sum = T>
__global__ void matmul_texture(cudaTextureObject_t A, cudaTextureObject_t B, Sum *__restrict__ C, long long M,
                               long long N, long long K, int A_first, int B_first) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    if (row >= M || column >= N)
        return;

    Sum sum = Sum(0);
    // Kept rolled as in the initial rung, so that the path of the loads is all that differs.
#pragma unroll 1
    for (long long k = 0; k < K; ++k)
        sum += (Sum)tex1Dfetch<T>(A, A_first + (int)(row * K + k)) *
               (Sum)tex1Dfetch<T>(B, B_first + (int)(k * N + column));
    C[row * N + column] = sum;
}
