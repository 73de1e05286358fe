// matmul/pipelined: C[m][n] = sum over k of A[m][k] B[k][n], tiles copied while products are made.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
// (if SPLIT_TAIL, up to EXTENTS_MAX of split_tail.py)
//
// Shared memory holds STAGES steps of TILE_K along K. Asynchronous copies fill the stages ahead, past the registers; one
// barrier a step says that a stage is full for all and the one before it free. A is stored transposed.
// A warp has a tile of WARP_ROWS x WARP_COLUMNS results, a thread every fourth group of four rows and every eighth group
// of four columns in it. For each k a thread reads its fragments of A and B as vectors of 16 bytes, one k ahead, so that
// the multiply-adds need not wait for shared memory. Lanes are numbered in a zigzag: each 8 lanes in a row need four
// vectors of A and two of B.
// Blocks go over the tiles of C in bands of BAND tiles, so that blocks at work at one time share tiles of A and B in the
// L2 cache.
// Multiply-adds go down two columns at a time, and back up the next two. Their order decides which registers the compiler
// takes, and with them how often the dispatch of an instruction stalls; it is the best of those that were measured, for
// all three tiles together; with SPLIT_TAIL, for the tile of split_tail.
// If SPLIT_TAIL, tiles that do not fill a last turn of the multiprocessors are split along K: split_tail.py says how. The
// sums of their parts go to memory, and a second kernel adds them.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA; NVIDIA, CUDA C++ Programming Guide, asynchronous data copies.

#include "ampere.cuh"

#ifndef SPLIT_TAIL
#define SPLIT_TAIL 0
#endif
#if SPLIT_TAIL
typedef int Extent;  // leaves the multiply-adds more registers
#else
typedef long long Extent;
#endif

constexpr int VECTOR = 4;  // elements of 16 bytes
constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARPS_N = TILE_COLUMNS / WARP_COLUMNS;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int GROUPS_M = WARP_ROWS / (VECTOR * LANES_M), GROUPS_N = WARP_COLUMNS / (VECTOR * LANES_N);
constexpr int TM = GROUPS_M * VECTOR, TN = GROUPS_N * VECTOR;  // results a thread: rows, columns
constexpr long long BAND = 8;      // rows of tiles
constexpr int TAIL_THREADS = 256;  // of a block of matmul_pipelined_tail

// Rows of A's tile, which are columns of A, have 4 spare elements: lanes that copy a row of A store to 8 banks, not to one.
constexpr int PITCH_A = TILE_ROWS + VECTOR, PITCH_B = TILE_COLUMNS;
constexpr int STAGE = TILE_K * (PITCH_A + PITCH_B);  // elements of a stage

static_assert(THREADS == 32 * WARPS_N * (TILE_ROWS / WARP_ROWS), "a warp for each tile of a warp");
static_assert(GROUPS_M * LANES_M * VECTOR == WARP_ROWS && GROUPS_N * LANES_N * VECTOR == WARP_COLUMNS, "whole groups");
static_assert(TILE_K % 2 == 0 && STAGES >= 2, "two fragments in turn, a stage to fill");
static_assert(!SPLIT_TAIL || TN == 8, "an order of four pairs of columns");
static_assert(TILE_ROWS * TILE_COLUMNS % (VECTOR * TAIL_THREADS) == 0, "whole blocks of matmul_pipelined_tail");
static_assert(STAGES * STAGE * 4 == SHARED_BYTES, "shared in the ladder is the size of the stages");

// Where a thread's results begin in the tile, and which lane of which warp it is.
struct Place {
    int thread, m0, n0;

    __device__ Place() : thread(threadIdx.y * BLOCK_X + threadIdx.x) {
        const int warp = thread / 32, lane = thread % 32, lane_m = lane / 2 % 4, lane_n = lane / 8 * 2 + lane % 2;
        m0 = warp / WARPS_N * WARP_ROWS + VECTOR * lane_m;
        n0 = warp % WARPS_N * WARP_COLUMNS + VECTOR * lane_n;
    }
};

// A thread's results of the tile at row0, column0: sums over the first `depth` columns of A, which has pitch K.
// BY: elements that a copy of B takes, 4 if all rows of B begin at multiples of 16 bytes, else 1.
template <int BY, typename T>
__device__ void multiply(T (&sum)[TM][TN], T *shared, const T *__restrict__ A, const T *__restrict__ B, Extent M, Extent N,
                         Extent K, Extent depth, Extent row0, Extent column0) {
    const Place place;
    const int thread = place.thread, m0 = place.m0, n0 = place.n0;

    // Where this thread starts in the tiles that it helps to copy: neighboring threads along the rows of each.
    constexpr int A_ROWS = THREADS / TILE_K, B_VECTORS = TILE_COLUMNS / BY, B_ROWS = THREADS / B_VECTORS;
    static_assert(THREADS % TILE_K == 0 && TILE_ROWS % A_ROWS == 0, "whole steps of rows of A's tile");
    static_assert(THREADS % B_VECTORS == 0 && TILE_K % B_ROWS == 0, "whole steps of rows of B's tile");
    const int a_m = thread / TILE_K, a_k = thread % TILE_K, b_k = thread / B_VECTORS, b_n = thread % B_VECTORS * BY;
    const T *a_from = A + (long long)(row0 + a_m) * K + a_k;
    const T *b_from = B + b_k * N + column0 + b_n;

    const int steps = (int)((depth + TILE_K - 1) / TILE_K), rest = (int)(depth - (steps - 1LL) * TILE_K);
    // Past M, N and depth the stages hold 0, so that what is added there is 0 whatever else A and B hold. The last steps fill
    // stages with 0 that are fetched from, but not used.
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
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    fetch(0, 0, 0);
    int stage = 0, filled = STAGES - 1;
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
                wait_for_copies<STAGES - 2>();
                __syncthreads();
                fetch(next, 0, 0);
            }
            const T *const held_a = (const T *)a[k % 2], *const held_b = (const T *)b[k % 2];
            constexpr int PAIRS[] = {3, 2, 0, 1};
#pragma unroll
            for (int turn = 0; turn < TN / 2; ++turn)
#pragma unroll
                for (int at = 0; at < TM; ++at) {
                    const int i = turn % 2 ? TM - 1 - at : at;
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int j = 2 * (SPLIT_TAIL ? PAIRS[turn] : turn) + (at % 2 ? 1 - e : e);
                        sum[i][j] += held_a[i] * held_b[j];
                    }
                }
        }
        stage = next;
    }
}

// Store a thread's results of the tile at row0, column0.
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
            if (BY == VECTOR && row < M && column < N)
                *(float4 *)(C + row * N + column) = *(const float4 *)&sum[i][g * VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                if (BY < VECTOR && row < M && column + e < N)
                    C[row * N + column + e] = sum[i][g * VECTOR + e];
        }
    }
}

// `sums`: where a part's sums go, a matrix of TILE_ROWS x TILE_COLUMNS; nullptr if the tile is not split.
template <int BY, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long depth, long long row0, long long column0, T *sums) {
    T sum[TM][TN];
    multiply<BY>(sum, shared, A, B, (Extent)M, (Extent)N, (Extent)K, (Extent)depth, (Extent)row0, (Extent)column0);
    if (SPLIT_TAIL && sums)
        store<VECTOR>(sum, sums, TILE_ROWS, TILE_COLUMNS, 0, 0);
    else
        store<BY>(sum, C, M, N, row0, column0);
}

// Where a tile begins. Tiles lie in bands, whose columns come one after the other.
struct Tile {
    long long row0, column0;

    __device__ Tile(long long tile, long long down, long long across) {
        const long long band = tile / (BAND * across), within = tile % (BAND * across);
        const long long high = min(BAND, down - band * BAND);
        row0 = (band * BAND + within % high) * TILE_ROWS;
        column0 = within / high * TILE_COLUMNS;
    }
};

template <typename T>
__device__ void run(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                    long long K, long long depth, const Tile &tile, T *sums) {
    static_assert(sizeof(T) == 4, "elements of 4 bytes");
    extern __shared__ __align__(16) unsigned char shared[];
    if (((unsigned long long)B | (unsigned long long)C | N * sizeof(T)) % 16)
        compute<1>((T *)shared, A, B, C, M, N, K, depth, tile.row0, tile.column0, sums);
    else
        compute<VECTOR>((T *)shared, A, B, C, M, N, K, depth, tile.row0, tile.column0, sums);
}

#if SPLIT_TAIL
// What a block computes: the steps along K from `from` to `to` of a tile. Tiles from `whole` on are split into `splits`
// parts, the first of which has `first` steps; the others share the rest. The first parts of all tiles come first.
struct Part {
    int tile, which, from, to;

    __device__ Part(int block, int tiles, int steps, int whole, int splits, int first)
        : tile(block), which(0), from(0), to(steps) {
        if (block < whole)
            return;
        const int left = tiles - whole;
        const long long rest = steps - first;
        which = (block - whole) / left;
        tile = whole + (block - whole) % left;
        from = which == 0 ? 0 : (int)(first + rest * (which - 1) / (splits - 1));
        to = (int)(first + rest * which / (splits - 1));
    }
};

// A block for each whole tile and each part. The sums of parts go to `parts`, where matmul_pipelined_tail finds them.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    matmul_pipelined(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                     long long K, T *__restrict__ parts, int whole, int splits, int first) {
    const int down = (M + TILE_ROWS - 1) / TILE_ROWS, across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (block >= whole && block - whole >= (down * across - whole) * splits)
        return;
    const Part part(block, down * across, (K + TILE_K - 1) / TILE_K, whole, splits, first);
    long long depth = K;
    T *sums = nullptr;
    if (part.tile >= whole) {
        const long long from = (long long)part.from * TILE_K;
        sums = parts + ((part.tile - whole) * splits + part.which) * (long long)(TILE_ROWS * TILE_COLUMNS);
        depth = min(K, (long long)part.to * TILE_K) - from;
        A += from;
        B += from * N;
    }
    run(A, B, C, M, N, K, depth, Tile(part.tile, down, across), sums);
}

// Store the sums of the tiles from `whole` on: those of their parts, in their order. A thread has four results of a row.
extern "C" __global__ void __launch_bounds__(TAIL_THREADS)
    matmul_pipelined_tail(const float *__restrict__ parts, float *__restrict__ C, long long M, long long N, int whole,
                          int splits) {
    constexpr int QUADS = TILE_ROWS * TILE_COLUMNS / VECTOR;
    const int tail = blockIdx.y, quad = blockIdx.x * TAIL_THREADS + threadIdx.x;
    const float4 *const from = (const float4 *)parts + (long long)tail * splits * QUADS + quad;
    float4 sum = from[0];
#pragma unroll 8
    for (int part = 1; part < splits; ++part) {
        const float4 more = from[part * QUADS];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    const int down = (M + TILE_ROWS - 1) / TILE_ROWS, across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const Tile tile(whole + tail, down, across);
    const long long row = tile.row0 + quad * VECTOR / TILE_COLUMNS, column = tile.column0 + quad * VECTOR % TILE_COLUMNS;
    if (row >= M)
        return;
    if (column + VECTOR <= N && ((unsigned long long)C + (row * N + column) * sizeof(float)) % 16 == 0) {
        *(float4 *)(C + row * N + column) = sum;
        return;
    }
    const float values[] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        if (column + e < N)
            C[row * N + column + e] = values[e];
}
#else
template <typename T>
__global__ void __launch_bounds__(THREADS) matmul_pipelined(const T *__restrict__ A, const T *__restrict__ B,
                                                            T *__restrict__ C, long long M, long long N, long long K) {
    // A grid has at most 65,535 blocks in y and in z: z counts on where y ends.
    const long long down = (M + TILE_ROWS - 1) / TILE_ROWS;
    const long long block = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * gridDim.x + blockIdx.x;
    if (block < down * gridDim.x)
        run(A, B, C, M, N, K, K, Tile(block, down, gridDim.x), (T *)nullptr);
}
#endif
