// matmul/async_stages: C[m][n] = sum over k of A[m][k] B[k][n], asynchronous copies into more stages.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// The copies of cp.async go from global to shared memory past the registers. No thread holds what is on its way, so
// that more than one step may be: shared memory has STAGES pairs of tiles, all but one of which are filled ahead. One
// barrier a step says that the next stage is full for all threads, and that nobody reads the one before it any more.
// A is stored transposed, so it is copied 4 bytes at a time; B is copied 16 bytes at a time if its rows allow it.
// Source: NVIDIA, CUDA C++ Programming Guide, asynchronous data copies; NVIDIA, CUTLASS, multistage GEMM on Ampere.

#include "ampere.cuh"
#include "vectors.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARPS_N = TILE_COLUMNS / WARP_COLUMNS;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int APART_M = LANES_M * VECTOR, APART_N = LANES_N * VECTOR;  // from one group of four of a thread to the next
constexpr int TM = WARP_ROWS / LANES_M, TN = WARP_COLUMNS / LANES_N;   // results a thread: rows, columns

// Rows of As, which are columns of A, have 4 spare elements: lanes that copy a row of A store to 8 banks, not to one.
constexpr int PITCH_A = TILE_ROWS + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int STAGE = TILE_K * (PITCH_A + PITCH_B);  // elements of a stage

static_assert(THREADS == 32 * WARPS_N * (TILE_ROWS / WARP_ROWS), "a warp for each tile of a warp");
static_assert(WARP_ROWS % APART_M == 0 && WARP_COLUMNS % APART_N == 0, "whole groups of four");
static_assert(STAGES >= 2, "a stage to fill");
static_assert(STAGES * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of the stages");

// WHOLE: rows of B and C consist of vectors of 16 bytes.
template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K) {
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    // Where this thread's results begin in the tile of C (warp_tile.cu draws the zigzag of the lanes), and where it
    // starts in the tiles that it helps to copy.
    const int m0 = warp / WARPS_N * WARP_ROWS + lane / 2 % LANES_M * VECTOR;
    const int n0 = warp % WARPS_N * WARP_COLUMNS + (lane / 8 * 2 + lane % 2) * VECTOR;
    constexpr int BY = WHOLE ? VECTOR : 1;  // elements of B a copy
    constexpr int A_ROWS = THREADS / TILE_K, B_COPIES = TILE_COLUMNS / BY, B_ROWS = THREADS / B_COPIES;
    static_assert(THREADS % TILE_K == 0 && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
    static_assert(THREADS % B_COPIES == 0 && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");
    const int a_row = thread / TILE_K, a_k = thread % TILE_K;
    const int b_k = thread / B_COPIES, b_column = thread % B_COPIES * BY;

    // Past M, N and K the stages hold 0. The last steps fill stages with 0 that are not used.
    auto copy = [&](long long k0, int stage) {
        T *const As = shared + stage * STAGE, *const Bs = As + TILE_K * PITCH_A;
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += A_ROWS) {
            const long long row = row0 + a_row + step, k = k0 + a_k;
            copy_async<1>(As + a_k * PITCH_A + a_row + step, A + row * K + k, row < M && k < K);
        }
#pragma unroll
        for (int step = 0; step < TILE_K; step += B_ROWS) {
            const long long k = k0 + b_k + step, column = column0 + b_column;
            copy_async<BY>(Bs + (b_k + step) * PITCH_B + b_column, B + k * N + column, k < K && column < N);
        }
        commit_copies();
    };

#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead)
        copy(ahead * TILE_K, ahead);
    T sum[TM][TN] = {};
    int stage = 0, filled = STAGES - 1;
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        wait_for_copies<STAGES - 2>();  // those of this step have come
        __syncthreads();
        copy(k0 + (STAGES - 1) * TILE_K, filled);
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
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
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
    matmul_async_stages(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                        long long K) {
    extern __shared__ __align__(16) unsigned char shared[];
    if (whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K);
    else
        compute<false>((T *)shared, A, B, C, M, N, K);
}
