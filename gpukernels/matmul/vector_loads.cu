// matmul/vector_loads: C[m][n] = sum over k of A[m][k] B[k][n], thread_tile_2d with accesses of 16 bytes.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// One instruction moves four neighbors instead of one: from A and B to shared memory, from there to registers, and from
// registers to C. So a thread's TN columns are groups of four neighbors now, BLOCK_X groups apart. As is stored
// transposed: four neighbors of a row of A, which lie along K, go to four rows of As. A thread's rows are then
// neighbors in As. Rows that are no whole vectors, or operands that begin elsewhere, take a second copy of the loop,
// element by element.
// Source: Boehm, How to optimize a CUDA matmul kernel, 2022 (vectorized accesses).

#include "vectors.cuh"

constexpr int TILE_K = 8;
constexpr int TM = TILE_ROWS / BLOCK_Y, TN = TILE_COLUMNS / BLOCK_X;  // results a thread: rows, columns
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int APART = BLOCK_X * VECTOR;  // columns from one group of four of a thread to the next

// Two lanes that load a row of A store to the rows k and k + 4 of As, 16 banks apart: with 4 spare elements no two of
// the warp's lanes hit one bank, and a row of As stays a multiple of 16 bytes.
constexpr int PITCH_A = TILE_ROWS + VECTOR;

// Vectors of a row of each tile, and the rows that the threads load at a time.
constexpr int A_VECTORS = TILE_K / VECTOR, A_ROWS = THREADS / A_VECTORS;
constexpr int B_VECTORS = TILE_COLUMNS / VECTOR, B_ROWS = THREADS / B_VECTORS;

static_assert(TM * BLOCK_Y == TILE_ROWS && TN * BLOCK_X == TILE_COLUMNS, "a thread has TM x TN results");
static_assert(TM % VECTOR == 0 && TN % VECTOR == 0, "whole vectors of results");
static_assert(A_ROWS * A_VECTORS == THREADS && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
static_assert(B_ROWS * B_VECTORS == THREADS && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");

template <bool WHOLE, typename T>
__device__ void compute(T (&As)[TILE_K][PITCH_A], T (&Bs)[TILE_K][TILE_COLUMNS], const T *__restrict__ A,
                        const T *__restrict__ B, T *__restrict__ C, long long M, long long N, long long K) {
    const int x = threadIdx.x, y = threadIdx.y, thread = y * BLOCK_X + x;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    // Where this thread starts in the tiles that it helps to load: neighboring threads along the rows of each.
    const int a_row = thread / A_VECTORS, a_k = thread % A_VECTORS * VECTOR;
    const int b_k = thread / B_VECTORS, b_column = thread % B_VECTORS * VECTOR;

    T sum[TM][TN] = {};
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += A_ROWS) {
            const long long row = row0 + a_row + step, k = k0 + a_k;
            const float4 v = load<WHOLE>(A + row * K + k, row < M ? K - k : 0);
            As[a_k][a_row + step] = v.x;
            As[a_k + 1][a_row + step] = v.y;
            As[a_k + 2][a_row + step] = v.z;
            As[a_k + 3][a_row + step] = v.w;
        }
#pragma unroll
        for (int step = 0; step < TILE_K; step += B_ROWS) {
            const long long k = k0 + b_k + step, column = column0 + b_column;
            *(float4 *)&Bs[b_k + step][b_column] = load<WHOLE>(B + k * N + column, k < K ? N - column : 0);
        }
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float4 a[TM / VECTOR], b[TN / VECTOR];
#pragma unroll
            for (int i = 0; i < TM / VECTOR; ++i)
                a[i] = *(const float4 *)&As[k][y * TM + i * VECTOR];
#pragma unroll
            for (int j = 0; j < TN / VECTOR; ++j)
                b[j] = *(const float4 *)&Bs[k][x * VECTOR + j * APART];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += ((const T *)a)[i] * ((const T *)b)[j];
        }
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
__global__ void matmul_vector_loads(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                                    long long N, long long K) {
    __shared__ __align__(16) T As[TILE_K][PITCH_A];
    __shared__ __align__(16) T Bs[TILE_K][TILE_COLUMNS];
    if (whole_vectors(A, K) && whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>(As, Bs, A, B, C, M, N, K);
    else
        compute<false>(As, Bs, A, B, C, M, N, K);
}
