// matmul/async_stages: C[m][n] = sum over k of A[m][k] B[k][n], double_buffer with asynchronous copies into stages.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// The copies of cp.async go from global to shared memory past the registers. No thread holds what is on its way, so
// more than one step can be: shared memory has STAGES pairs of tiles, all but one of which are filled ahead. One
// barrier a step says that this step's stage is full for all threads, and that nobody reads the one before it any more.
// A is stored transposed, so it is copied 4 bytes at a time; B is copied 16 bytes at a time if its rows allow it.
// Source: NVIDIA, CUDA C++ Programming Guide, asynchronous data copies; NVIDIA, CUTLASS, multistage GEMM on Ampere.

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
static_assert(STAGES >= 2, "a stage to fill");
static_assert(STAGES * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of the stages");

// WHOLE: rows of B and C consist of vectors of 16 bytes.
template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long row0, long long column0) {
    const int x = threadIdx.x, y = threadIdx.y, thread = y * BLOCK_X + x;

    // Where this thread starts in the tiles that it helps to copy: neighboring threads along the rows of each.
    constexpr int BY = WHOLE ? VECTOR : 1;  // elements of B a copy
    constexpr int A_ROWS = THREADS / TILE_K, B_COPIES = TILE_COLUMNS / BY, B_ROWS = THREADS / B_COPIES;
    static_assert(THREADS % TILE_K == 0 && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
    static_assert(THREADS % B_COPIES == 0 && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");
    const int a_row = thread / TILE_K, a_k = thread % TILE_K;
    const int b_k = thread / B_COPIES, b_column = thread % B_COPIES * BY;

    // Begin to copy the next tiles into a stage. From step to step a thread moves on two pointers, and what is left of
    // K. Beyond M, N and K the stages hold 0. Beyond K both tiles must: 0 times an infinity or a NaN is a NaN. The last
    // steps fill stages with 0 on which no result depends.
    const T *a_from = A + (row0 + a_row) * K + a_k, *b_from = B + b_k * N + column0 + b_column;
    const long long a_down = A_ROWS * K, b_down = B_ROWS * N;           // from one copy of a thread to its next
    const int rows = (int)min(M - row0, (long long)TILE_ROWS) - a_row;  // of A, from the thread's first one on
    const bool column_there = b_column < N - column0;
    long long left = K;
    auto copy = [&](int stage) {
        T *const As = shared + stage * STAGE + a_k * PITCH_A + a_row;
        T *const Bs = shared + stage * STAGE + TILE_K * PITCH_A + b_k * PITCH_B + b_column;
        const int depth = (int)max(min(left, (long long)TILE_K), 0LL);  // of these tiles, along K
        const int b_rows = column_there ? depth - b_k : 0, a_rows = a_k < depth ? rows : 0;
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

#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead)
        copy(ahead);
    T sum[TM][TN] = {};
    int stage = 0, filled = STAGES - 1;
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        wait_for_copies<STAGES - 2>();  // those of this step have come
        __syncthreads();                // for all threads, and all have done with the stage of the step before
        copy(filled);                   // which this fills
        const T *const As = shared + stage * STAGE, *const Bs = As + TILE_K * PITCH_A;
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
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
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
    matmul_async_stages(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                        long long K) {
    extern __shared__ __align__(16) unsigned char shared[];
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;
    if (whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K, row0, column0);
    else
        compute<false>((T *)shared, A, B, C, M, N, K, row0, column0);
}
