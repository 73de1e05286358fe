// matmul/initial: C[m][n] = sum over k of A[m][k] B[k][n], one thread an element of C.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
//
// Every operand of every product comes from global memory: a warp reads one element of A, which all its lanes
// share, and neighbors of a row of B, two loads for one multiply-add. A row of A is read N times in all, a
// column of B M times; only the caches stand between them and DRAM. A and B are not declared __restrict__: with
// it the compiler reads them by the read-only path, which is a rung of its own.
// Source: Hallym University, lecture on matrix multiplication on GPUs.

static_assert(TILE_ROWS == BLOCK_Y && TILE_COLUMNS == BLOCK_X, "one thread an element of the tile");

template <typename T, typename Sum = T>
__global__ void matmul_initial(const T *A, const T *B, Sum *C, long long M, long long N, long long K) {
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS + threadIdx.y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + threadIdx.x;
    if (row >= M || column >= N)
        return;

    Sum sum = Sum(0);
    // Kept rolled: the compiler would otherwise anticipate the rung unrolled.
#pragma unroll 1
    for (long long k = 0; k < K; ++k)
        sum += (Sum)A[row * K + k] * (Sum)B[k * N + column];
    C[row * N + column] = sum;
}
