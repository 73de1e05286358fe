// matmul/pipelined_32x64: C[m][n] = sum over k of A[m][k] B[k][n], small tiles, with A's tile as it lies in memory.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// A small C has few tiles, so these are small: at 512 x 512 nearly each multiprocessor has a block of four warps. Then
// a step has few multiply-adds, and all else weighs more: copies, addresses, waits.
// So A's tile is not transposed on its way. Its rows lie along K, as in A, and are copied 16 bytes at a time, like B's.
// For four k a thread reads four elements along K of each of its rows, and four neighbors of each of four rows of B.
// A transposed tile needs as many reads; each read moves a vector.
// As in pipelined, fragments are read ahead. There are two sets of those of A: a thread fills one while it multiplies
// the other. Once it has used a fragment of B, it reads the one that is four k later into the same registers.
// Multiply-adds go right along one row of sums and left along the next. Tiles of C lie in bands, as in raster.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (software pipelining of fragments).

#include "ampere.cuh"
#include "bands.cuh"
#include "vectors.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARPS_N = TILE_COLUMNS / WARP_COLUMNS;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int TM = WARP_ROWS / LANES_M, TN = WARP_COLUMNS / LANES_N;  // results a thread: rows, columns

// Rows of As have 4 spare elements: the vectors of the four rows that a warp reads at a time lie in different banks.
constexpr int PITCH_A = TILE_K + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int STAGE = TILE_ROWS * PITCH_A + TILE_K * PITCH_B;  // elements of a stage

static_assert(THREADS == 32 * WARPS_N * (TILE_ROWS / WARP_ROWS), "a warp for each tile of a warp");
static_assert(TM == VECTOR && TN == VECTOR, "a thread has 4 x 4 results");
static_assert(TILE_K % (2 * VECTOR) == 0, "a step begins with the same set of fragments of A");
static_assert(STAGES >= 2, "a stage to fill");
static_assert(STAGES * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of the stages");

// WHOLE: rows of A, B and C consist of vectors of 16 bytes.
template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long row0, long long column0) {
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;

    // This thread's first row, the others are LANES_M apart, and its four columns. Lanes lie in a zigzag,
    // 0, 1, 8, 9, 16, 17, 24, 25 in the first row: neighbors read the same vectors of A, the next but one those of B.
    const int m0 = warp / WARPS_N * WARP_ROWS + lane / 2 % LANES_M;
    const int n0 = warp % WARPS_N * WARP_COLUMNS + (lane / 8 * 2 + lane % 2) * VECTOR;

    // Where this thread starts in the tiles that it helps to copy: neighboring threads along the rows of each.
    constexpr int BY = WHOLE ? VECTOR : 1;  // elements a copy
    constexpr int A_COPIES = TILE_K / BY, A_ROWS = THREADS / A_COPIES;
    constexpr int B_COPIES = TILE_COLUMNS / BY, B_ROWS = THREADS / B_COPIES;
    static_assert(THREADS % A_COPIES == 0 && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
    static_assert(THREADS % B_COPIES == 0 && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");
    const int a_row = thread / A_COPIES, a_k = thread % A_COPIES * BY;
    const int b_k = thread / B_COPIES, b_column = thread % B_COPIES * BY;

    // Begin to copy the next tiles into a stage. From step to step a thread moves on two pointers, and the steps that
    // are left to copy; `b_from` moves on with each copy. Beyond M, N and K the stages hold 0. Beyond K both tiles
    // must: 0 times an infinity or a NaN is a NaN. The last steps fill stages with 0 on which no result depends.
    const T *a_from = A + (row0 + a_row) * K + a_k, *b_from = B + b_k * N + column0 + b_column;
    const long long a_down = A_ROWS * K, b_down = B_ROWS * N;           // from one copy of a thread to its next
    const int rows = (int)min(M - row0, (long long)TILE_ROWS) - a_row;  // of A, from the thread's first one on
    const bool column_there = b_column < N - column0;
    // `rest`: what the last step has along K.
    const int steps = (int)((K + TILE_K - 1) / TILE_K), rest = (int)(K - (steps - 1LL) * TILE_K);
    int left = steps;
    auto copy = [&](int stage) {
        T *const As = shared + stage * STAGE + a_row * PITCH_A + a_k;
        T *const Bs = shared + stage * STAGE + TILE_ROWS * PITCH_A + b_k * PITCH_B + b_column;
        const int depth = left > 1 ? TILE_K : left == 1 ? rest : 0;  // of these tiles, along K
        const int a_depth = depth - a_k, b_rows = column_there ? depth - b_k : 0;
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += A_ROWS)
            copy_async<BY>(As + step * PITCH_A, a_from + step / A_ROWS * a_down, step < rows && a_depth > 0);
#pragma unroll
        for (int step = 0; step < TILE_K; step += B_ROWS) {
            copy_async<BY>(Bs + step * PITCH_B, b_from, b_rows > step);
            b_from += b_down;
        }
        commit_copies();
        a_from += TILE_K;
        --left;
    };

#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead)
        copy(ahead);
    T sum[TM][TN] = {};
    // Fragments for four k. A: of each row four neighbors along K. B: of each k four neighbors along N.
    float4 a[2][TM], b[VECTOR];
    auto fetch_a = [&](int set, int stage, int k) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
            a[set][i] = *(const float4 *)(shared + stage * STAGE + (m0 + i * LANES_M) * PITCH_A + k);
    };
    auto fetch_b = [&](int e, int stage, int k) {
        const T *const Bs = shared + stage * STAGE + TILE_ROWS * PITCH_A + n0;
        b[e] = *(const float4 *)(Bs + (k + e) * PITCH_B);
    };

    wait_for_copies<STAGES - 2>();  // those of the first step have come
    __syncthreads();
    fetch_a(0, 0, 0);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        fetch_b(e, 0, 0);
    int stage = 0, filled = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        copy(filled);
        const int next = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int k = 0; k < TILE_K; k += VECTOR) {
            const bool last = k + VECTOR == TILE_K;  // the next four k are the first ones of the next stage
            const int from = last ? next : stage, k_next = last ? 0 : k + VECTOR, set = k / VECTOR % 2;
            if (last) {
                wait_for_copies<STAGES - 2>();  // those of the next stage have come
                __syncthreads();                // for all threads, and all have read this stage to its end
            }
            fetch_a(1 - set, from, k_next);
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int at = 0; at < TN; ++at) {
                        const int j = i % 2 ? TN - 1 - at : at;
                        sum[i][j] += ((const T *)&a[set][i])[e] * ((const T *)&b[e])[j];
                    }
                fetch_b(e, from, k_next);
            }
        }
        stage = next;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const long long row = row0 + m0 + i * LANES_M, column = column0 + n0;
        store<WHOLE>(C + row * N + column, *(const float4 *)sum[i], row < M ? N - column : 0);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    matmul_pipelined_32x64(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                           long long N, long long K) {
    extern __shared__ __align__(16) unsigned char shared[];
    // gridDim.y is at most 65,535, so blocks continue in z. Tile says which tile the block of a number has.
    const long long block = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * gridDim.x + blockIdx.x;
    const long long down = (M + TILE_ROWS - 1) / TILE_ROWS, across = gridDim.x;
    if (block >= down * across)
        return;
    const Tile tile(block, down, across);
    if (whole_vectors(A, K) && whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K, tile.row0, tile.column0);
    else
        compute<false>((T *)shared, A, B, C, M, N, K, tile.row0, tile.column0);
}
