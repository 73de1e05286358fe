// matmul/wgmma_split_k: C[m][n] = sum over k of A[m][k] B[k][n], wgmma on small tiles, K split over a cluster's blocks.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C of Out, any
// M, N, K >= 1. Sums are float. A and B come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// A small product has fewer tiles than there are multiprocessors, and its time is mostly latency. Here the SPLIT blocks
// of a cluster share a tile of C: each multiplies its part of K, which all fits into its stages, or nearly, so that it
// is on its way from the beginning. Then each block adds up its part of the columns. The others send it their sums of
// these columns, from registers into its shared memory (st.async), where a barrier counts the bytes. Every thread has
// the same places in its tile in all blocks, so that it finds what it needs where the threads of its number sent it.
// The order of the additions is that of the blocks. No sum goes to memory, and no second kernel adds them.
// Results leave from registers. The launch may overlap the one before it, as those of persistent.cuh do.
// Source: NVIDIA, PTX ISA: st.async, mapa; NVIDIA, CUDA C++ programming guide: distributed shared memory.

#include "wgmma.cuh"

constexpr int THREADS = CONSUMERS * GROUP;  // that multiply; behind them is a warp that copies
constexpr int OWN = SUMS / SPLIT;           // sums of a thread that its block adds up
constexpr int QUADS = OWN / 4;              // that it gets of each other block, 16 bytes each
constexpr int INBOX_BYTES = (SPLIT - 1) * QUADS * THREADS * 16;

static_assert(BLOCK_X * BLOCK_Y == THREADS + 32, "warp groups, and a warp that copies");
static_assert(STAGES > 1, "a stage is free when the products of the next have begun");
static_assert(SPLIT * TILE_K <= 256, "K, which wgmma.py limits, fits an int in whole parts");
static_assert(GROUP_ROWS == ROWS, "an instruction's rows for each warp group");
static_assert(OWN % 4 == 0, "a block adds up whole groups of 8 columns");
static_assert(1024 + STAGES * STAGE_BYTES + INBOX_BYTES == SHARED_BYTES, "shared in the ladder");

template <typename T, typename Out = T>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS + 32)
    matmul_wgmma_split_k(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, Out *C,
                         int M, int N, int K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES], sent;

    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const stages = shared + (1024 - address(shared) % 1024) % 1024;
    float4 *const inbox = (float4 *)(stages + STAGES * STAGE_BYTES);
    const int across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS, tile = blockIdx.x / SPLIT, rank = blockIdx.x % SPLIT;
    const int m = tile / across, n = tile % across;
    const int steps = (K + SPLIT * TILE_K - 1) / (SPLIT * TILE_K);  // of each block; behind K the copy engine reads 0
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    let_next_launch_begin();
    if (thread == THREADS) {
        prefetch(&map_a);
        prefetch(&map_b);
        for (int s = 0; s < STAGES; ++s) {
            init(full + s, 1);
            init(empty + s, THREADS / 32);
        }
        init(&sent, 1);
        publish_barriers();
        expect(&sent, INBOX_BYTES);
    }
    if (SPLIT > 1)
        meet_cluster();
    else
        __syncthreads();
    wait_for_last_launch();

    if (group == CONSUMERS) {
        const u64 policy = evict_normal();
        int stage = 0, parity = 1;
        for (int step = 0; step < steps && thread == THREADS; ++step) {
            unsigned char *const a = stages + stage * STAGE_BYTES, *const b = a + A_BYTES;
            const int k = (rank * steps + step) * TILE_K;
            if (step >= STAGES)  // before that all stages are free
                wait(empty + stage, parity);
            expect(full + stage, STAGE_BYTES);
            load_2d(a, &map_a, full + stage, k, m * TILE_ROWS, policy);
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; j += 64)  // a row in shared memory
                load_2d(b + j * ROW_BYTES, &map_b, full + stage, n * TILE_COLUMNS + j, k, policy);
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
        return;
    }

    float d[SUMS];
    int stage = 0, parity = 0, before = -1;
    for (int step = 0; step < steps; ++step) {
        wait(full + stage, parity);
        const u32 a = address(stages + stage * STAGE_BYTES) + group * ROWS * ROW_BYTES;
        multiply_tiles(d, a, address(stages + stage * STAGE_BYTES + A_BYTES), step > 0);
        wait_for_products<1>();  // this warp group has done with the stage before
        if (before >= 0 && thread % 32 == 0)
            arrive(empty + before);
        before = stage;
        if (++stage == STAGES)
            stage = 0, parity ^= 1;
    }
    wait_for_products<0>();
    settle(d);

    float own[OWN];
#pragma unroll
    for (int to = 0; to < SPLIT; ++to)
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            const float *const sums = d + to * OWN + i;
            if (to != rank)
                send(inbox + ((rank - (rank > to)) * QUADS + i / 4) * THREADS + thread, &sent, to,
                     make_float4(sums[0], sums[1], sums[2], sums[3]));
            else
                own[i] = sums[0], own[i + 1] = sums[1], own[i + 2] = sums[2], own[i + 3] = sums[3];
        }
    if (SPLIT > 1)
        wait_for_sent(&sent, 0);
#pragma unroll
    for (int from = 0; from < SPLIT - 1; ++from)
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            const float4 more = inbox[(from * QUADS + i / 4) * THREADS + thread];
            own[i] += more.x, own[i + 1] += more.y, own[i + 2] += more.z, own[i + 3] += more.w;
        }
    store_results(own, C, M, N, (long long)m * TILE_ROWS + group * ROWS,
                  (long long)n * TILE_COLUMNS + rank * (TILE_COLUMNS / SPLIT), thread % GROUP);
}
