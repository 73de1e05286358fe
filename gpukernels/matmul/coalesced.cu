// matmul/coalesced: C[m][n] = sum over k of A[m][k] B[k][n], loads coalesced, B's tile stored transposed.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
//
// Neighboring threads load neighbors of a row from both operands, and B's tile is turned on its way into shared
// memory, so that a thread's product runs along a row of As and a row of Bs. Global memory sees what it saw in the
// tiled rung; shared memory does not: the store to Bs[x][y] and the product's read of Bs[x][k] walk down a column of
// 32 elements a row, one bank for 4-byte elements, and cost 32 wavefronts instead of one. The next rung mends that.
// Source: Hallym University, lecture on matrix multiplication on GPUs.

static_assert(TILE_ROWS == TILE_COLUMNS && TILE_COLUMNS == BLOCK_X && TILE_ROWS == BLOCK_Y,
              "square tiles, one thread an element of each");

constexpr int TILE_K = TILE_COLUMNS;

template <typename T, typename Sum = T>
__global__ void matmul_coalesced(const T *__restrict__ A, const T *__restrict__ B, Sum *__restrict__ C, long long M,
                                 long long N, long long K) {
    __shared__ T As[TILE_ROWS][TILE_K];
    __shared__ T Bs[TILE_COLUMNS][TILE_K];

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

        // Kept rolled: the compiler would otherwise anticipate the rung unrolled.
#pragma unroll 1
        for (int k = 0; k < TILE_K; ++k)
            sum += (Sum)As[y][k] * (Sum)Bs[x][k];
        __syncthreads();
    }
    if (row < M && column < N)
        C[row * N + column] = sum;
}
