// matmul/pipeline.cuh: the loop of pipelined, raster and split_tail: serpentine with fragments read one k ahead.
//
// A step is TILE_K along K. A stage of shared memory holds what a step needs: a tile of A, stored transposed, and a
// tile of B. Asynchronous copies (cp.async) fill a stage from global memory, past the registers. All stages but one are
// filled ahead.
// A fragment is what a thread needs of A or B for one k, read from shared memory as vectors of 16 bytes. A thread has
// two sets of fragments in registers: it multiplies one while it fills the other one from shared memory.
// There is one barrier a step, before the last k of its stage is multiplied. Each thread first waits for its own copies
// of the next stage. After the barrier that stage is complete for all threads. All have read this step's stage to its
// end, so the copies of the next step may fill it.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (software pipelining of fragments); NVIDIA, CUDA C++ Programming
// Guide, asynchronous data copies.

#pragma once

#include "ampere.cuh"
#include "vectors.cuh"

constexpr int TM = TILE_ROWS / BLOCK_Y, TN = TILE_COLUMNS / BLOCK_X;  // results a thread: rows, columns
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int APART = BLOCK_X * VECTOR;  // columns from one group of four of a thread to the next

// Rows of As, which are columns of A, have 4 spare elements: neighbors in a row of A go to banks 4 apart, not to one.
constexpr int PITCH_A = TILE_ROWS + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int STAGE = TILE_K * (PITCH_A + PITCH_B);  // elements of a stage

static_assert(TM * BLOCK_Y == TILE_ROWS && TN * BLOCK_X == TILE_COLUMNS, "a thread has TM x TN results");
static_assert(TM % VECTOR == 0 && TN % VECTOR == 0, "whole vectors of results");
static_assert(TILE_K % 2 == 0 && STAGES >= 2, "two fragments in turn, a stage to fill");
static_assert(STAGES * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of the stages");

// A thread's results of the tile at row0, column0: sums over the first `depth` columns of A, whose rows lie K elements
// apart. WHOLE: rows of B consist of vectors of 16 bytes.
template <bool WHOLE, typename T>
__device__ void multiply(T (&sum)[TM][TN], T *shared, const T *__restrict__ A, const T *__restrict__ B, long long M,
                         long long N, long long K, long long depth, long long row0, long long column0) {
    const int x = threadIdx.x, y = threadIdx.y, thread = y * BLOCK_X + x;

    // Where this thread starts in the tiles that it helps to copy: neighboring threads along the rows of each.
    constexpr int BY = WHOLE ? VECTOR : 1;  // elements of B a copy
    constexpr int A_ROWS = THREADS / TILE_K, B_COPIES = TILE_COLUMNS / BY, B_ROWS = THREADS / B_COPIES;
    static_assert(THREADS % TILE_K == 0 && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
    static_assert(THREADS % B_COPIES == 0 && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");
    const int a_row = thread / TILE_K, a_k = thread % TILE_K;
    const int b_k = thread / B_COPIES, b_column = thread % B_COPIES * BY;

    // Begin to copy the next tiles into a stage. Beyond M, N and `depth` the stages hold 0. Beyond `depth` both tiles
    // must: 0 times an infinity or a NaN is a NaN. The last steps fill stages with 0 on which no result depends.
    const T *a_from = A + (row0 + a_row) * K + a_k, *b_from = B + b_k * N + column0 + b_column;
    const long long a_down = A_ROWS * K, b_down = B_ROWS * N;           // from one copy of a thread to its next
    const int rows = (int)min(M - row0, (long long)TILE_ROWS) - a_row;  // of A, from the thread's first one on
    const bool column_there = b_column < N - column0;
    long long left = depth;
    auto copy = [&](int stage) {
        T *const As = shared + stage * STAGE + a_k * PITCH_A + a_row;
        T *const Bs = shared + stage * STAGE + TILE_K * PITCH_A + b_k * PITCH_B + b_column;
        const int deep = (int)max(min(left, (long long)TILE_K), 0LL);  // how many k of these tiles lie within `depth`
        const int b_rows = column_there ? deep - b_k : 0, a_rows = a_k < deep ? rows : 0;
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += A_ROWS)
            copy_async<1>(As + step, a_from + step / A_ROWS * a_down, step < a_rows);
#pragma unroll
        for (int step = 0; step < TILE_K; step += B_ROWS)
            copy_async<BY>(Bs + step * PITCH_B, b_from + step / B_ROWS * b_down, b_rows > step);
        commit_copies();
        a_from += TILE_K;
        b_from += TILE_K * N;
        left -= TILE_K;
    };

    // Read the fragments of a k of a stage into one of the two sets, `set`.
    float4 a[2][TM / VECTOR], b[2][TN / VECTOR];
    auto read = [&](int set, const T *stage, int k) {
        const T *const As = stage + k * PITCH_A + y * TM;
        const T *const Bs = stage + TILE_K * PITCH_A + k * PITCH_B + x * VECTOR;
#pragma unroll
        for (int i = 0; i < TM / VECTOR; ++i)
            a[set][i] = *(const float4 *)(As + i * VECTOR);
#pragma unroll
        for (int j = 0; j < TN / VECTOR; ++j)
            b[set][j] = *(const float4 *)(Bs + j * APART);
    };

#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead)
        copy(ahead);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
            sum[i][j] = 0;
    wait_for_copies<STAGES - 2>();  // those of the first stage have come
    __syncthreads();
    read(0, shared, 0);
    int stage = 0, filled = STAGES - 1;
    for (long long k0 = 0; k0 < depth; k0 += TILE_K) {
        const T *from = shared + stage * STAGE;
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            if (k == TILE_K - 1) {  // the next k is the first one of the next stage
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                filled = filled + 1 == STAGES ? 0 : filled + 1;
                from = shared + stage * STAGE;
                wait_for_copies<STAGES - 2>();
                __syncthreads();
            }
            read((k + 1) % 2, from, (k + 1) % TILE_K);
            if (k == 0)
                copy(filled);
            const T *const held_a = (const T *)a[k % 2], *const held_b = (const T *)b[k % 2];  // fragments of this k
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int at = 0; at < TM; ++at) {
                    const int i = j % 2 ? TM - 1 - at : at;
                    sum[i][j] += held_a[i] * held_b[j];
                }
        }
    }
}

// Store a thread's results of the tile at row0, column0. WHOLE: rows of C consist of vectors of 16 bytes.
template <bool WHOLE, typename T>
__device__ void store(const T (&sum)[TM][TN], T *__restrict__ C, long long M, long long N, long long row0,
                      long long column0) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += VECTOR) {
            const long long row = row0 + threadIdx.y * TM + i;
            const long long column = column0 + threadIdx.x * VECTOR + j / VECTOR * APART;
            store<WHOLE>(C + row * N + column, *(const float4 *)&sum[i][j], row < M ? N - column : 0);
        }
}

// A tile of C, with all of K.
template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long row0, long long column0) {
    T sum[TM][TN];
    multiply<WHOLE>(sum, shared, A, B, M, N, K, K, row0, column0);
    store<WHOLE>(sum, C, M, N, row0, column0);
}
