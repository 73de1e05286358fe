// matmul/thread_tile_2d: C[m][n] = sum over k of A[m][k] B[k][n], a thread computes TM x TN results.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T, C and the sum of Sum, any M, N, K >= 1
//
// For each k a thread reads TM elements of As and TN of Bs into registers and makes TM * TN multiply-adds of them:
// with 8 x 8 results a quarter of a read of shared memory each. As is stored transposed, so that a thread's TM
// elements are neighbors; thread x takes the columns x, x + BLOCK_X, ... and not TN neighbors, so that the lanes
// of a warp read neighbors of a row of Bs (no bank conflicts) and store neighbors of a row of C.
// Source: University of Utah, CS6235; Boehm, How to optimize a CUDA matmul kernel, 2022 (2D block tiling).

constexpr int TILE_K = 8;
constexpr int TM = TILE_ROWS / BLOCK_Y, TN = TILE_COLUMNS / BLOCK_X;  // results a thread: rows, columns
constexpr int THREADS = BLOCK_X * BLOCK_Y;

// 8 lanes that load a row of A store down a column of As: with 4 spare elements they and their neighbors in the
// warp hit 32 different banks (4-byte elements), and a row of As stays a multiple of 16 bytes.
constexpr int PAD_A = 4;

static_assert(TILE_ROWS % BLOCK_Y == 0 && TILE_COLUMNS % BLOCK_X == 0, "a thread has TM x TN results");
static_assert(THREADS % TILE_K == 0 && TILE_ROWS % (THREADS / TILE_K) == 0, "whole steps of rows of A's tile");
static_assert(THREADS % TILE_COLUMNS == 0 && TILE_K % (THREADS / TILE_COLUMNS) == 0, "whole steps of rows of B's tile");

template <typename T, typename Sum = T>
__global__ void matmul_thread_tile_2d(const T *__restrict__ A, const T *__restrict__ B, Sum *__restrict__ C,
                                      long long M, long long N, long long K) {
    __shared__ __align__(16) T As[TILE_K][TILE_ROWS + PAD_A];
    __shared__ __align__(16) T Bs[TILE_K][TILE_COLUMNS];

    const int x = threadIdx.x, y = threadIdx.y, thread = y * BLOCK_X + x;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    // Where this thread starts in the tiles that it helps to load: neighboring threads along the rows of each.
    const int a_row = thread / TILE_K, a_k = thread % TILE_K;
    const int b_k = thread / TILE_COLUMNS, b_column = thread % TILE_COLUMNS;

    Sum sum[TM][TN] = {};
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += THREADS / TILE_K) {
            const long long row = row0 + a_row + step, k = k0 + a_k;
            As[a_k][a_row + step] = row < M && k < K ? A[row * K + k] : T(0.0f);
        }
#pragma unroll
        for (int step = 0; step < TILE_K; step += THREADS / TILE_COLUMNS) {
            const long long k = k0 + b_k + step, column = column0 + b_column;
            Bs[b_k + step][b_column] = k < K && column < N ? B[k * N + column] : T(0.0f);
        }
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            Sum a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                a[i] = (Sum)As[k][y * TM + i];
#pragma unroll
            for (int j = 0; j < TN; ++j)
                b[j] = (Sum)Bs[k][x + j * BLOCK_X];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const long long row = row0 + y * TM + i, column = column0 + x + j * BLOCK_X;
            if (row < M && column < N)
                C[row * N + column] = sum[i][j];
        }
}
