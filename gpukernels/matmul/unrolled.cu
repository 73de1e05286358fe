// matmul/unrolled: C[m][n] = sum over k of A[m][k] B[k][n], padded tiles, the inner product unrolled.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
//
// The loop over a tile's k has a constant length and is written out in full: no counter, no branch, every address a
// constant offset, and neighbors of a row of As can be read by one wide load. What remains is two operands from
// shared memory for each multiply-add, which the thread tiles mend.
// No read has bank conflicts: a row of 32 threads reads one element of As, and a column of Bs, whose rows have a spare
// element (conflict_free), so that they lie in different banks.
// Source: Hallym University, lecture on matrix multiplication on GPUs.

static_assert(TILE_ROWS == TILE_COLUMNS && TILE_COLUMNS == BLOCK_X && TILE_ROWS == BLOCK_Y,
              "square tiles, one thread an element of each");

constexpr int TILE_K = TILE_COLUMNS;

template <typename T, typename Sum = T>
__global__ void matmul_unrolled(const T *__restrict__ A, const T *__restrict__ B, Sum *__restrict__ C, long long M,
                                long long N, long long K) {
    __shared__ T As[TILE_ROWS][TILE_K];
    __shared__ T Bs[TILE_COLUMNS][TILE_K + 1];

    const int x = threadIdx.x, y = threadIdx.y;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS + y;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + x;

    Sum sum = Sum(0);
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
        As[y][x] = row < M && k0 + x < K ? A[row * K + k0 + x] : T(0.0f);
        Bs[x][y] = k0 + y < K && column < N ? B[(k0 + y) * N + column] : T(0.0f);
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE_K; ++k)
            sum += (Sum)As[y][k] * (Sum)Bs[x][k];
        __syncthreads();
    }
    if (row < M && column < N)
        C[row * N + column] = sum;
}
