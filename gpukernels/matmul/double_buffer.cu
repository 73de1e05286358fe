// matmul/double_buffer: C[m][n] = sum over k of A[m][k] B[k][n], warp_tile with two tiles of A and B in shared memory.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// While one pair of tiles is multiplied, the next one is on its way: a thread loads its part into registers before the
// multiply-adds, which do not wait for it, and stores it to the other pair of tiles after them. So the latency of
// global memory passes under the multiply-adds, and a step has one barrier instead of two: it says that the next pair
// is full, and that nobody reads this one any more.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (software pipelining).

#include "vectors.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARPS_N = TILE_COLUMNS / WARP_COLUMNS;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int APART_M = LANES_M * VECTOR, APART_N = LANES_N * VECTOR;  // from one group of four of a thread to the next
constexpr int TM = WARP_ROWS / LANES_M, TN = WARP_COLUMNS / LANES_N;   // results a thread: rows, columns

// A warp loads 16 rows of A, 8 along K of each, and stores to the rows k and k + 4 of As, 16 banks apart: with 4 spare
// elements no two of its lanes hit one bank, and a row of As stays a multiple of 16 bytes.
constexpr int PITCH_A = TILE_ROWS + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int STAGE = TILE_K * (PITCH_A + PITCH_B);  // elements of a pair of tiles
constexpr int A_ROWS = THREADS / 2, B_VECTORS = TILE_COLUMNS / VECTOR, B_ROWS = THREADS / B_VECTORS;

// The vectors that a thread loads for a pair of tiles.
constexpr int A_DOWN = TILE_ROWS / A_ROWS, A_ALONG = TILE_K / (2 * VECTOR), B_DOWN = TILE_K / B_ROWS;

static_assert(THREADS == 32 * WARPS_N * (TILE_ROWS / WARP_ROWS), "a warp for each tile of a warp");
static_assert(WARP_ROWS % APART_M == 0 && WARP_COLUMNS % APART_N == 0, "whole groups of four");
static_assert(A_ROWS * A_DOWN == TILE_ROWS && A_ALONG * 2 * VECTOR == TILE_K, "whole steps in A's tile");
static_assert(B_ROWS * B_VECTORS == THREADS && B_ROWS * B_DOWN == TILE_K, "whole steps of rows of B's tile");
static_assert(2 * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of two pairs of tiles");

template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K) {
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    // Where this thread's results begin in the tile of C (warp_tile.cu draws the zigzag of the lanes), and where it
    // starts in the tiles that it helps to load.
    const int m0 = warp / WARPS_N * WARP_ROWS + lane / 2 % LANES_M * VECTOR;
    const int n0 = warp % WARPS_N * WARP_COLUMNS + (lane / 8 * 2 + lane % 2) * VECTOR;
    const int a_row = thread / 2, a_k = thread % 2 * VECTOR;
    const int b_k = thread / B_VECTORS, b_column = thread % B_VECTORS * VECTOR;

    // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
    float4 next_a[A_ALONG][A_DOWN], next_b[B_DOWN];
    auto fetch = [&](long long k0) {
#pragma unroll
        for (int i = 0; i < A_ALONG; ++i)
#pragma unroll
            for (int j = 0; j < A_DOWN; ++j) {
                const long long row = row0 + a_row + j * A_ROWS, k = k0 + a_k + i * 2 * VECTOR;
                next_a[i][j] = load<WHOLE>(A + row * K + k, row < M ? K - k : 0);
            }
#pragma unroll
        for (int i = 0; i < B_DOWN; ++i) {
            const long long k = k0 + b_k + i * B_ROWS, column = column0 + b_column;
            next_b[i] = load<WHOLE>(B + k * N + column, k < K ? N - column : 0);
        }
    };
    auto put = [&](int stage) {
        T *const As = shared + stage * STAGE, *const Bs = As + TILE_K * PITCH_A;
#pragma unroll
        for (int i = 0; i < A_ALONG; ++i)
#pragma unroll
            for (int j = 0; j < A_DOWN; ++j) {
                T *const to = As + (a_k + i * 2 * VECTOR) * PITCH_A + a_row + j * A_ROWS;
                to[0] = next_a[i][j].x;
                to[PITCH_A] = next_a[i][j].y;
                to[2 * PITCH_A] = next_a[i][j].z;
                to[3 * PITCH_A] = next_a[i][j].w;
            }
#pragma unroll
        for (int i = 0; i < B_DOWN; ++i)
            *(float4 *)(Bs + (b_k + i * B_ROWS) * PITCH_B + b_column) = next_b[i];
    };

    fetch(0);
    put(0);
    __syncthreads();
    T sum[TM][TN] = {};
    int stage = 0;
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        const bool more = k0 + TILE_K < K;
        if (more)
            fetch(k0 + TILE_K);
        const T *const As = shared + stage * STAGE, *const Bs = As + TILE_K * PITCH_A;
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float4 a[TM / VECTOR], b[TN / VECTOR];
#pragma unroll
            for (int i = 0; i < TM / VECTOR; ++i)
                a[i] = *(const float4 *)(As + k * PITCH_A + m0 + i * APART_M);
#pragma unroll
            for (int j = 0; j < TN / VECTOR; ++j)
                b[j] = *(const float4 *)(Bs + k * PITCH_B + n0 + j * APART_N);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += ((const T *)a)[i] * ((const T *)b)[j];
        }
        stage ^= 1;
        if (more)
            put(stage);
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += VECTOR) {
            const long long row = row0 + m0 + i / VECTOR * APART_M + i % VECTOR;
            const long long column = column0 + n0 + j / VECTOR * APART_N;
            store<WHOLE>(C + row * N + column, *(const float4 *)&sum[i][j], row < M ? N - column : 0);
        }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    matmul_double_buffer(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                         long long K) {
    extern __shared__ __align__(16) unsigned char shared[];
    if (whole_vectors(A, K) && whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K);
    else
        compute<false>((T *)shared, A, B, C, M, N, K);
}
