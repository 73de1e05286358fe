// matmul/thread_tile_1d: C[m][n] = sum over k of A[m][k] B[k][n], a thread computes a column of results.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
//
// A thread keeps TM sums of one column in registers: an element of Bs is read once and used TM times, so that a
// multiply-add costs 1 + 1 / TM reads of shared memory instead of 2. The reads of As are broadcasts, since the lanes
// of a warp share their rows. The tile of C grows with the work a thread does; TILE_K is short, so that the tiles
// of A and B have an element of each for a thread to load.
// Source: University of Utah, CS6235; Boehm, How to optimize a CUDA matmul kernel, 2022 (1D block tiling).

constexpr int TILE_K = 8;
constexpr int TM = TILE_ROWS / BLOCK_Y;  // results a thread, one below the other

static_assert(TILE_COLUMNS == BLOCK_X && TILE_ROWS % BLOCK_Y == 0, "a thread has TM rows of one column of the tile");
static_assert(BLOCK_Y == TILE_K, "a thread loads one element of B's tile");
static_assert(TILE_ROWS * TILE_K == BLOCK_X * BLOCK_Y, "a thread loads one element of A's tile");

template <typename T, typename Sum = T>
__global__ void matmul_thread_tile_1d(const T *__restrict__ A, const T *__restrict__ B, Sum *__restrict__ C,
                                      long long M, long long N, long long K) {
    __shared__ T As[TILE_ROWS][TILE_K];
    __shared__ T Bs[TILE_K][TILE_COLUMNS];

    const int x = threadIdx.x, y = threadIdx.y;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column = (long long)blockIdx.x * TILE_COLUMNS + x;

    // The element of A's tile that this thread loads: TILE_K neighboring threads share a row.
    const int a_row = (y * BLOCK_X + x) / TILE_K, a_k = (y * BLOCK_X + x) % TILE_K;

    Sum sum[TM] = {};
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
        As[a_row][a_k] = row0 + a_row < M && k0 + a_k < K ? A[(row0 + a_row) * K + k0 + a_k] : T(0.0f);
        Bs[y][x] = k0 + y < K && column < N ? B[(k0 + y) * N + column] : T(0.0f);
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            const Sum b = (Sum)Bs[k][x];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                sum[i] += (Sum)As[y * TM + i][k] * b;
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const long long row = row0 + y * TM + i;
        if (row < M && column < N)
            C[row * N + column] = sum[i];
    }
}
