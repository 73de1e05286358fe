// matmul/double_buffer: C[m][n] = sum over k of A[m][k] B[k][n], vector_loads with two pairs of tiles.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// While one pair of tiles is multiplied, the next one is on its way: a thread loads its part into registers before the
// multiply-adds, which do not wait for it, and stores it to the other pair of tiles after them. So the latency of
// global memory passes under the multiply-adds, and a step has one barrier instead of two: it says that the next pair
// is full, and that nobody reads this one any more.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (software pipelining).

#include "vectors.cuh"

constexpr int TILE_K = 8;
constexpr int TM = TILE_ROWS / BLOCK_Y, TN = TILE_COLUMNS / BLOCK_X;  // results a thread: rows, columns
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int APART = BLOCK_X * VECTOR;  // columns from one group of four of a thread to the next

// Two lanes that load a row of A store to the rows k and k + 4 of As, 16 banks apart: with 4 spare elements no two of
// the warp's lanes hit one bank, and a row of As stays a multiple of 16 bytes.
constexpr int PITCH_A = TILE_ROWS + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int PAIR = TILE_K * (PITCH_A + PITCH_B);  // elements of a pair of tiles

// Vectors of a row of each tile, the rows that the threads load at a time, and the vectors that a thread loads.
constexpr int A_VECTORS = TILE_K / VECTOR, A_ROWS = THREADS / A_VECTORS, A_LOADS = TILE_ROWS / A_ROWS;
constexpr int B_VECTORS = TILE_COLUMNS / VECTOR, B_ROWS = THREADS / B_VECTORS, B_LOADS = TILE_K / B_ROWS;

static_assert(TM * BLOCK_Y == TILE_ROWS && TN * BLOCK_X == TILE_COLUMNS, "a thread has TM x TN results");
static_assert(TM % VECTOR == 0 && TN % VECTOR == 0, "whole vectors of results");
static_assert(A_ROWS * A_VECTORS == THREADS && A_LOADS * A_ROWS == TILE_ROWS, "whole steps of rows of A's tile");
static_assert(B_ROWS * B_VECTORS == THREADS && B_LOADS * B_ROWS == TILE_K, "whole steps of rows of B's tile");

template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long row0, long long column0) {
    const int x = threadIdx.x, y = threadIdx.y, thread = y * BLOCK_X + x;

    // Where this thread starts in the tiles that it helps to load: neighboring threads along the rows of each.
    const int a_row = thread / A_VECTORS, a_k = thread % A_VECTORS * VECTOR;
    const int b_k = thread / B_VECTORS, b_column = thread % B_VECTORS * VECTOR;

    // Load this thread's part of the tiles at k0 into registers. Past K both tiles hold 0, so that what is added there
    // is 0 whatever else A and B hold.
    float4 next_a[A_LOADS], next_b[B_LOADS];
    auto fetch = [&](long long k0) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const long long row = row0 + a_row + i * A_ROWS, k = k0 + a_k;
            next_a[i] = load<WHOLE>(A + row * K + k, row < M ? K - k : 0);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const long long k = k0 + b_k + i * B_ROWS, column = column0 + b_column;
            next_b[i] = load<WHOLE>(B + k * N + column, k < K ? N - column : 0);
        }
    };
    // Store it to a pair of tiles.
    auto put = [&](int pair) {
        T *const As = shared + pair * PAIR, *const Bs = As + TILE_K * PITCH_A;
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            T *const to = As + a_k * PITCH_A + a_row + i * A_ROWS;
            to[0] = next_a[i].x;
            to[PITCH_A] = next_a[i].y;
            to[2 * PITCH_A] = next_a[i].z;
            to[3 * PITCH_A] = next_a[i].w;
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i)
            *(float4 *)(Bs + (b_k + i * B_ROWS) * PITCH_B + b_column) = next_b[i];
    };

    fetch(0);
    put(0);
    __syncthreads();
    T sum[TM][TN] = {};
    int pair = 0;
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        const bool more = k0 + TILE_K < K;
        if (more)
            fetch(k0 + TILE_K);
        const T *const As = shared + pair * PAIR, *const Bs = As + TILE_K * PITCH_A;
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float4 a[TM / VECTOR], b[TN / VECTOR];
#pragma unroll
            for (int i = 0; i < TM / VECTOR; ++i)
                a[i] = *(const float4 *)(As + k * PITCH_A + y * TM + i * VECTOR);
#pragma unroll
            for (int j = 0; j < TN / VECTOR; ++j)
                b[j] = *(const float4 *)(Bs + k * PITCH_B + x * VECTOR + j * APART);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += ((const T *)a)[i] * ((const T *)b)[j];
        }
        pair ^= 1;
        if (more)
            put(pair);
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += VECTOR) {
            const long long row = row0 + y * TM + i, column = column0 + x * VECTOR + j / VECTOR * APART;
            store<WHOLE>(C + row * N + column, *(const float4 *)&sum[i][j], row < M ? N - column : 0);
        }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    matmul_double_buffer(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                         long long K) {
    __shared__ __align__(16) T shared[2 * PAIR];
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;
    if (whole_vectors(A, K) && whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>(shared, A, B, C, M, N, K, row0, column0);
    else
        compute<false>(shared, A, B, C, M, N, K, row0, column0);
}
