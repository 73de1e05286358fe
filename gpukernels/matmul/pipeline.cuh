// matmul/pipeline.cuh: the loop of pipelined and of split_tail: copies under the multiply-adds, fragments read ahead.
//
// A step is TILE_K along K. A stage of shared memory holds what a step needs: a tile of A, stored transposed, and a
// tile of B. Asynchronous copies (cp.async) fill a stage from global memory, past the registers. All stages but one are
// filled ahead.
// There is one barrier a step. Before it each thread waits for its own copies of the next stage. After it that stage is
// complete for all threads. Nobody reads this step's stage any more, so the copies of the next step may fill it.
// A warp has a tile of WARP_ROWS x WARP_COLUMNS results. Its lanes lie there 4 x 8 (Place); a thread has groups of 4 x
// 4 results. For each k a thread reads its fragments, the elements of A and B that it needs, as vectors of 16 bytes. It
// reads them one k ahead, so that the multiply-adds need not wait for shared memory.
// Multiply-adds go down two columns of a thread's results, and back up the next two. Their order changes no sum, but
// the compiler assigns registers by it, and these decide how often an instruction stalls. So the order was chosen by
// measuring; a rung may give another one.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA; NVIDIA, CUDA C++ Programming Guide, asynchronous data copies.

#pragma once

#include "ampere.cuh"
#include "vectors.cuh"

constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARPS_N = TILE_COLUMNS / WARP_COLUMNS;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int GROUPS_M = WARP_ROWS / (VECTOR * LANES_M), GROUPS_N = WARP_COLUMNS / (VECTOR * LANES_N);
constexpr int TM = GROUPS_M * VECTOR, TN = GROUPS_N * VECTOR;  // results a thread: rows, columns
constexpr long long BAND = 8;  // rows of tiles in a band, see Tile

// As, A's tile, has TILE_K rows of TILE_ROWS elements, and 4 spare ones. So lanes that copy neighbors along K, and
// store them to as many rows of As, hit 8 banks and not a single one. A row begins at a multiple of 16 bytes, as
// vectors must.
constexpr int PITCH_A = TILE_ROWS + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int STAGE = TILE_K * (PITCH_A + PITCH_B);  // elements of a stage

static_assert(THREADS == 32 * WARPS_N * (TILE_ROWS / WARP_ROWS), "a warp for each tile of a warp");
static_assert(GROUPS_M * LANES_M * VECTOR == WARP_ROWS && GROUPS_N * LANES_N * VECTOR == WARP_COLUMNS, "whole groups");
static_assert(TILE_K % 2 == 0 && STAGES >= 2, "two fragments in turn, a stage to fill");
static_assert(STAGES * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of the stages");

// This thread's number, and where its first group of results begins in the block's tile. Lanes lie in a zigzag: 0, 1,
// 8, 9, 16, 17, 24, 25 in the first row of groups, 2, 3, 10, 11, ... in the second. Neighbors read the same vector of
// A, and the next but one the same of B. So shared memory serves half a warp at once, and not a quarter.
struct Place {
    int thread, m0, n0;

    __device__ Place() : thread(threadIdx.y * BLOCK_X + threadIdx.x) {
        const int warp = thread / 32, lane = thread % 32, lane_m = lane / 2 % LANES_M, lane_n = lane / 8 * 2 + lane % 2;
        m0 = warp / WARPS_N * WARP_ROWS + VECTOR * lane_m;
        n0 = warp % WARPS_N * WARP_COLUMNS + VECTOR * lane_n;
    }
};

// A thread's results of the tile at row0, column0: sums over the first `depth` columns of A, whose rows lie K elements
// apart. BY: elements that a copy of B takes, 4 (VECTOR) if all rows of B begin at multiples of 16 bytes, else 1.
// PAIRS: an order of the pairs of columns in the multiply-adds; by default as they lie. Extent: long long, or int where
// it suffices.
template <int BY, int... PAIRS, typename Extent, typename T>
__device__ void multiply(T (&sum)[TM][TN], T *shared, const T *__restrict__ A, const T *__restrict__ B, Extent M,
                         Extent N, Extent K, Extent depth, Extent row0, Extent column0) {
    static_assert(sizeof...(PAIRS) == 0 || sizeof...(PAIRS) == TN / 2, "all pairs of columns");
    const Place place;
    const int thread = place.thread, m0 = place.m0, n0 = place.n0;

    // Where this thread starts in the tiles that it helps to copy: neighboring threads along the rows of each.
    constexpr int A_ROWS = THREADS / TILE_K, B_VECTORS = TILE_COLUMNS / BY, B_ROWS = THREADS / B_VECTORS;
    static_assert(THREADS % TILE_K == 0 && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
    static_assert(THREADS % B_VECTORS == 0 && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");
    const int a_m = thread / TILE_K, a_k = thread % TILE_K, b_k = thread / B_VECTORS, b_n = thread % B_VECTORS * BY;
    const T *a_from = A + (long long)(row0 + a_m) * K + a_k;
    const T *b_from = B + b_k * N + column0 + b_n;

    // `rest`: what the last step has along K.
    const int steps = (int)((depth + TILE_K - 1) / TILE_K), rest = (int)(depth - (steps - 1LL) * TILE_K);
    // Begin to copy a step's tiles. Past M, N and depth they hold 0. Past depth both must: 0 times a NaN is no 0. Steps
    // past the last one fill stages with 0 that are fetched from, but not used.
    auto copy = [&](int step, int stage) {
        T *const As = shared + stage * STAGE, *const Bs = As + TILE_K * PITCH_A;
        const int left = step < steps - 1 ? TILE_K : step == steps - 1 ? rest : 0;
#pragma unroll
        for (int m = 0; m < TILE_ROWS; m += A_ROWS)
            copy_async<1>(As + a_k * PITCH_A + a_m + m, a_from + m * K, row0 + a_m + m < M && a_k < left);
#pragma unroll
        for (int k = 0; k < TILE_K; k += B_ROWS)
            copy_async<BY>(Bs + (b_k + k) * PITCH_B + b_n, b_from + k * N, column0 + b_n < N && b_k + k < left);
        commit_copies();
        a_from += TILE_K;
        b_from += TILE_K * N;
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s)
        copy(s, s);

    // Read the fragments of a k of a stage into one of two sets, `slot`.
    float4 a[2][GROUPS_M], b[2][GROUPS_N];
    auto fetch = [&](int stage, int k, int slot) {
        const T *const As = shared + stage * STAGE + k * PITCH_A + m0;
        const T *const Bs = shared + stage * STAGE + TILE_K * PITCH_A + k * PITCH_B + n0;
#pragma unroll
        for (int g = 0; g < GROUPS_M; ++g)
            a[slot][g] = *(const float4 *)(As + g * VECTOR * LANES_M);
#pragma unroll
        for (int g = 0; g < GROUPS_N; ++g)
            b[slot][g] = *(const float4 *)(Bs + g * VECTOR * LANES_N);
    };

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
            sum[i][j] = 0;
    wait_for_copies<STAGES - 2>();  // the oldest of STAGES - 1 groups has come: the first stage
    __syncthreads();
    fetch(0, 0, 0);
    int stage = 0, filled = STAGES - 1;  // the stage of this step, and the one that its copies fill
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        copy(step + STAGES - 1, filled);
        filled = filled + 1 == STAGES ? 0 : filled + 1;
        const int next = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            if (k + 1 < TILE_K) {
                fetch(stage, k + 1, (k + 1) % 2);
            } else {
                wait_for_copies<STAGES - 2>();  // those of the next stage have come
                __syncthreads();
                fetch(next, 0, 0);
            }
            const T *const held_a = (const T *)a[k % 2], *const held_b = (const T *)b[k % 2];  // fragments of this k
            constexpr int pairs[] = {PAIRS..., 0};  // the 0: an array has at least one element
#pragma unroll
            for (int pair = 0; pair < TN / 2; ++pair)
#pragma unroll
                for (int at = 0; at < TM; ++at) {
                    const int i = pair % 2 ? TM - 1 - at : at;
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int j = 2 * (sizeof...(PAIRS) ? pairs[pair] : pair) + (at % 2 ? 1 - e : e);
                        sum[i][j] += held_a[i] * held_b[j];
                    }
                }
        }
        stage = next;
    }
}

// Store a thread's results of the tile at row0, column0: as vectors if BY is VECTOR, else one by one.
template <int BY, typename T>
__device__ void store(const T (&sum)[TM][TN], T *__restrict__ C, long long M, long long N, long long row0,
                      long long column0) {
    const Place place;
    const int m0 = place.m0, n0 = place.n0;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const long long row = row0 + m0 + i / VECTOR * VECTOR * LANES_M + i % VECTOR;
#pragma unroll
        for (int g = 0; g < GROUPS_N; ++g) {
            const long long column = column0 + n0 + g * VECTOR * LANES_N;
            store<BY == VECTOR>(C + row * N + column, *(const float4 *)&sum[i][g * VECTOR], row < M ? N - column : 0);
        }
    }
}

// Where a tile of C begins; there are `down` x `across`. Tiles are numbered band by band, each of BAND rows of tiles,
// and in a band one column of tiles after the other. So tiles whose blocks run at the same time lie close together.
struct Tile {
    long long row0, column0;

    __device__ Tile(long long tile, long long down, long long across) {
        const long long band = tile / (BAND * across), within = tile % (BAND * across);
        const long long high = min(BAND, down - band * BAND);  // the last band may be lower
        row0 = (band * BAND + within % high) * TILE_ROWS;
        column0 = within / high * TILE_COLUMNS;
    }
};

// Whether a row of B or C begins elsewhere than at a multiple of 16 bytes.
template <typename T>
__device__ bool unaligned(const T *B, const T *C, long long N) {
    return ((unsigned long long)B | (unsigned long long)C | N * sizeof(T)) % 16;
}
