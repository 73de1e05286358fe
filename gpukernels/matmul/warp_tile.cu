// matmul/warp_tile: C[m][n] = sum over k of A[m][k] B[k][n], vector_loads with a compact tile of C for each warp.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// A block has a tile of C. For each step of TILE_K along K its threads load a tile of A, stored transposed, and one of
// B to shared memory. Then they multiply: for each k a warp reads an element of As for each row of its results, and one
// of Bs for each column. In vector_loads these are 16 x 128 results, for 144 elements. Here they are WARP_ROWS x
// WARP_COLUMNS, nearly a square: 32 x 64 results for 96 elements.
// A thread has TM x TN results in registers: groups of 4 x 4, APART_M rows and APART_N columns apart. The lanes lie in
// the warp's tile in a zigzag, each with such a group:
//
//     0  1  8  9 16 17 24 25
//     2  3 10 11 18 19 26 27
//     4  5 12 13 20 21 28 29
//     6  7 14 15 22 23 30 31
//
// Shared memory serves reads of 16 bytes by quarters of a warp. It serves two quarters at once if each lane reads the
// same vector as its neighbor, or as the next but one. Here neighbors share A, and the next but one share B.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (warp tiles); Boehm, How to optimize a CUDA matmul kernel, 2022.

#include "vectors.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARPS_N = TILE_COLUMNS / WARP_COLUMNS;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int APART_M = LANES_M * VECTOR, APART_N = LANES_N * VECTOR;  // from one group of a thread to the next
constexpr int TM = WARP_ROWS / LANES_M, TN = WARP_COLUMNS / LANES_N;   // results a thread: rows, columns

// A warp loads 16 rows of A, 8 elements along K of each. A store of its lanes goes to 16 neighbors in row k of As, and
// to 16 in row k + 4. With 4 spare elements a row, these lie 16 banks apart: no two lanes hit one bank. Rows of As
// still begin at multiples of 16 bytes.
constexpr int PITCH_A = TILE_ROWS + VECTOR;

// Two threads load a row of A's tile, 8 along K at a time; B_VECTORS threads load a row of B's tile. A TILE_K of 8 with
// 128 x 128 results is one vector of A and one of B a thread and step.
constexpr int A_ROWS = THREADS / 2, B_VECTORS = TILE_COLUMNS / VECTOR, B_ROWS = THREADS / B_VECTORS;

static_assert(THREADS == 32 * WARPS_N * (TILE_ROWS / WARP_ROWS), "a warp for each tile of a warp");
static_assert(WARP_ROWS % APART_M == 0 && WARP_COLUMNS % APART_N == 0, "whole groups of four");
static_assert(TILE_ROWS % A_ROWS == 0 && TILE_K % (2 * VECTOR) == 0, "whole steps in A's tile");
static_assert(B_ROWS * B_VECTORS == THREADS && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");

template <bool WHOLE, typename T>
__device__ void compute(T (&As)[TILE_K][PITCH_A], T (&Bs)[TILE_K][TILE_COLUMNS], const T *__restrict__ A,
                        const T *__restrict__ B, T *__restrict__ C, long long M, long long N, long long K) {
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    // Where this thread's results begin in the tile of C, and its first vectors in the tiles that it helps to load.
    const int m0 = warp / WARPS_N * WARP_ROWS + lane / 2 % LANES_M * VECTOR;
    const int n0 = warp % WARPS_N * WARP_COLUMNS + (lane / 8 * 2 + lane % 2) * VECTOR;
    const int a_row = thread / 2, a_k = thread % 2 * VECTOR;
    const int b_k = thread / B_VECTORS, b_column = thread % B_VECTORS * VECTOR;

    T sum[TM][TN] = {};
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past M, N and K the tiles hold 0. Past K both must: 0 times an infinity or a NaN is no 0.
#pragma unroll
        for (int right = 0; right < TILE_K; right += 2 * VECTOR)
#pragma unroll
            for (int down = 0; down < TILE_ROWS; down += A_ROWS) {
                const long long row = row0 + a_row + down, k = k0 + a_k + right;
                const float4 v = load<WHOLE>(A + row * K + k, row < M ? K - k : 0);
                As[a_k + right][a_row + down] = v.x;
                As[a_k + right + 1][a_row + down] = v.y;
                As[a_k + right + 2][a_row + down] = v.z;
                As[a_k + right + 3][a_row + down] = v.w;
            }
#pragma unroll
        for (int step = 0; step < TILE_K; step += B_ROWS) {
            const long long k = k0 + b_k + step, column = column0 + b_column;
            *(float4 *)&Bs[b_k + step][b_column] = load<WHOLE>(B + k * N + column, k < K ? N - column : 0);
        }
        __syncthreads();  // the tiles are complete

#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float4 a[TM / VECTOR], b[TN / VECTOR];
#pragma unroll
            for (int i = 0; i < TM / VECTOR; ++i)
                a[i] = *(const float4 *)&As[k][m0 + i * APART_M];
#pragma unroll
            for (int j = 0; j < TN / VECTOR; ++j)
                b[j] = *(const float4 *)&Bs[k][n0 + j * APART_N];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += ((const T *)a)[i] * ((const T *)b)[j];
        }
        __syncthreads();  // nobody reads the tiles any more: the next step may overwrite them
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
    matmul_warp_tile(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                     long long K) {
    __shared__ __align__(16) T As[TILE_K][PITCH_A];
    __shared__ __align__(16) T Bs[TILE_K][TILE_COLUMNS];
    // Accesses of 16 bytes if K and N are multiples of 4, and A, B and C begin at multiples of 16 bytes.
    if (whole_vectors(A, K) && whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>(As, Bs, A, B, C, M, N, K);
    else
        compute<false>(As, Bs, A, B, C, M, N, K);
}
