// matmul/constant: C[m][n] = sum over k of A[m][k] B[k][n], A in constant memory.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
// with at most 65,536 bytes in A, which is copied to constant_A before the launch.
//
// The initial rung with A read through the constant cache, which serves one address a warp in one go and several one
// after the other. The lanes of a warp work on one row of C and so share A[m][k]: each read is one broadcast. B
// comes from global memory by plain loads as before, neighbors of a row for the lanes of a warp.
// Source: University of Utah, CS6235; NVIDIA, CUDA C++ Programming Guide, constant memory.

static_assert(TILE_ROWS == BLOCK_Y && TILE_COLUMNS == BLOCK_X, "one thread an element of the tile");
static_assert(BLOCK_X % 32 == 0, "the lanes of a warp share a row");

// Bytes, since one array serves every T; unmangled, so that it can be found by name. In braces: extern "C" alone
// would declare it without defining it.
extern "C" {
__constant__ __align__(16) unsigned char constant_A[65536];
}

template <typename T, typename Sum = T>
__global__ void matmul_constant(const T *B, Sum *C, long long M, long long N, long long K) {
    const T *A = reinterpret_cast<const T *>(constant_A);

    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    if (row >= M || column >= N)
        return;

    Sum sum = Sum(0);
    // Kept rolled as in the initial rung, so that the path of the loads is all that differs.
#pragma unroll 1
    for (long long k = 0; k < K; ++k)
        sum += (Sum)A[row * K + k] * (Sum)B[k * N + column];
    C[row * N + column] = sum;
}
