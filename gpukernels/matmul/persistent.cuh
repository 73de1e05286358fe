// matmul/persistent.cuh: the loop of Hopper's persistent rungs: a producer and consumers go from tile to tile of C.
//
// A block has warp groups: groups of four warps. The first one is the producer. One of its threads lets the copy engine
// (TMA) fill STAGES stages of shared memory, as far ahead as there are free stages. A stage holds TILE_K along K of a
// tile of A and of one of B. The other groups, mostly two, are the consumers. They have rows of the block's tile of C,
// one group below the other, as sums in registers. Warp group matrix instructions (wgmma) read A and B from shared
// memory, and add the products to the sums, in the background.
// Two barriers in shared memory guard each stage. `full` ends a phase when all bytes of the stage have come: the
// consumers wait for it before they multiply. `empty` ends one when all warps of the consumers have done with the
// stage: the producer waits for it before it fills the stage again.
// A block goes on with the next tile of C as soon as it has one, so that the copies for a tile start under the products
// of the tile before it. Results go through shared memory in parts of 128 bytes a row, from where the copy engine
// stores them. Those of 16 bits wait in registers, two in each, and leave under the first products of the next tile.
// For float32 ones there are too few registers.
// The launch may overlap the one before it (programmatic dependent launch): barriers are ready before that one has
// ended.
// Source: NVIDIA, PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, mapa, setmaxnreg, griddepcontrol; NVIDIA, CUTLASS,
// warp-specialized persistent kernels for Hopper.

#pragma once

#include "tma_store.cuh"

// What a rung may change, in a struct that inherits from this one.
struct Plain {
    static constexpr int BAND = 1;             // rows of tiles in a band; in it one column of tiles follows the other
    static constexpr bool SERPENTINE = false;  // every second tile goes from the end of K: first what was read last
    static constexpr bool KEEP = false;        // A stays in the L2 cache longer than B (evict last, evict first)
    static constexpr bool PROMOTE = false;     // the tensor cores sum one stage; float32 additions sum the stages
    static constexpr int BLOCKS = 1;           // of a cluster, which copy B for each other
};

constexpr int THREADS = (1 + CONSUMERS) * GROUP;

static_assert(BLOCK_X * BLOCK_Y == THREADS, "a producer and the consumers");
static_assert(STAGES > 1, "a stage is free when the products of the next have begun");
// STAGES and BUFFERS are what fits into the 227 KiB of a block. 1024: stages begin at a multiple of it.
static_assert(1024 + STAGES * STAGE_BYTES + CONSUMERS * BUFFERS * PART_BYTES == SHARED_BYTES, "shared in the ladder");

// Where the tile of block `rank` of a cluster lies: its row `m` and column `n`, counted in tiles. `tile`: the cluster's
// number; `down` x `across` such tiles cover C. A block without a cluster is one of its own.
template <typename Plan>
__device__ void place(int tile, int down, int across, int rank, int &m, int &n) {
    const int band = tile / (Plan::BAND * across), within = tile % (Plan::BAND * across);
    const int high = min(Plan::BAND, down - band * Plan::BAND);
    m = (band * Plan::BAND + within % high) * Plan::BLOCKS + rank;
    n = within / high;
}

// A warp has done with a stage. The producers of all blocks of the cluster copy to it, so that all must know: lane i
// tells block i.
template <int BLOCKS>
__device__ void release(u64 *barrier, int lane) {
    if (BLOCKS == 1 && lane == 0)
        arrive(barrier);
    if (BLOCKS > 1 && lane < BLOCKS)
        arrive(barrier, lane);
}

// What a block does. `full`, `empty`: the barriers of its stages, in shared memory.
template <typename Plan, typename T, typename Out>
__device__ void run(unsigned char *shared, u64 (&full)[STAGES], u64 (&empty)[STAGES], const TensorMap &map_a,
                    const TensorMap &map_b, const TensorMap &map_c, int M, int N, int K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    static_assert(B_K_MAJOR || sizeof(T) == 2, "operands of 8 and of 32 bits must be K-major");
    constexpr int BLOCKS = Plan::BLOCKS, PARTS = GROUP_ROWS / ROWS * TILE_COLUMNS * sizeof(Out) / ROW_BYTES;
    constexpr bool PROMOTE = Plan::PROMOTE;
    constexpr bool GIVE = CONSUMERS == 2;  // the producer gives registers to the consumers: one alone has enough
    static_assert(BLOCKS == 1 || TILE_COLUMNS % (64 * BLOCKS) == 0, "each block of a cluster copies whole boxes of B");
    static_assert(PARTS % BUFFERS == 0, "a tile leaves through every buffer as often");
    // Matrices with the 128-byte swizzle (wgmma.cuh) begin at multiples of 1024 bytes.
    unsigned char *const stages = shared + (1024 - address(shared) % 1024) % 1024;
    unsigned char *const parts = stages + STAGES * STAGE_BYTES;
    const int down = ((M + TILE_ROWS - 1) / TILE_ROWS + BLOCKS - 1) / BLOCKS;  // the last block's tile may be empty
    const int across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int tiles = down * across, steps = (K + TILE_K - 1) / TILE_K;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    let_next_launch_begin();
    if (thread == 0) {
        prefetch(&map_a);
        prefetch(&map_b);
        for (int s = 0; s < STAGES; ++s) {
            init(full + s, 1);                        // the producer's thread
            init(empty + s, 4 * CONSUMERS * BLOCKS);  // the consumers' warps
        }
        publish_barriers();
    }
    if (BLOCKS > 1)
        meet_cluster();
    else
        __syncthreads();
    wait_for_last_launch();

    if (group == 0) {
        if (GIVE)  // a block of 384 threads has 168 for each: 40 + 2 * 232 = 3 * 168
            keep_registers<40>();
        if (thread > 0)
            return;
        const u64 keep = Plan::KEEP ? evict_last() : evict_normal(), pass = Plan::KEEP ? evict_first() : keep;
        constexpr auto copy = BLOCKS == 1 ? load_2d : multicast_2d<BLOCKS>;
        int stage = 0, parity = 1;  // all stages are free: the phase before the first has ended
        bool backward = false;
        for (int tile = blockIdx.x / BLOCKS; tile < tiles;
             tile += gridDim.x / BLOCKS, backward = Plan::SERPENTINE && !backward) {
            int m, n;
            place<Plan>(tile, down, across, blockIdx.x % BLOCKS, m, n);
            for (int step = 0; step < steps; ++step) {
                const int k = (backward ? steps - 1 - step : step) * TILE_K;
                unsigned char *const a = stages + stage * STAGE_BYTES, *const b = a + A_BYTES;
                wait(empty + stage, parity);
                // Also of what other blocks multicast: that may come before this, but the phase cannot end before it.
                expect(full + stage, STAGE_BYTES);
                load_2d(a, &map_a, full + stage, k, m * TILE_ROWS, keep);
                if (B_K_MAJOR)
                    load_2d(b, &map_b, full + stage, k, n * TILE_COLUMNS, pass);
                else
#pragma unroll
                    for (int i = 0; i < TILE_COLUMNS / BLOCKS; i += 64) {  // columns of a row of 128 bytes
                        const int j = blockIdx.x % BLOCKS * (TILE_COLUMNS / BLOCKS) + i;
                        copy(b + j * ROW_BYTES, &map_b, full + stage, n * TILE_COLUMNS + j, k, pass);
                    }
                if (++stage == STAGES)
                    stage = 0, parity ^= 1;
            }
        }
        // Shared memory must live until the cluster's consumers have arrived at its barriers for the last time.
        for (int s = 0; s < STAGES && BLOCKS > 1; ++s) {
            wait(empty + stage, parity);
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
        return;
    }

    if (GIVE)
        take_registers<232>();
    const int consumer = group - 1, lane = thread % 32;
    const Epilogue epilogue = {parts + consumer * BUFFERS * PART_BYTES, &map_c, consumer, thread % GROUP};
    constexpr bool NARROW = sizeof(Out) == 2;
    int stage = 0, parity = 0, m = -1, n = 0;  // -1: there is no tile before
    float d[SUMS], total[SUMS];
    const float (&sums)[SUMS] = PROMOTE ? total : d;
    u32 pairs[SUMS / 2];  // of 16-bit results, of the tile before, at m, n
    for (int tile = blockIdx.x / BLOCKS; tile < tiles; tile += gridDim.x / BLOCKS) {
        int before = -1;
#pragma unroll
        for (int i = 0; i < SUMS && PROMOTE; ++i)
            total[i] = 0;
        for (int step = 0; step < steps; ++step) {
            wait(full + stage, parity);
            const u32 a = address(stages + stage * STAGE_BYTES) + consumer * GROUP_ROWS * ROW_BYTES;
            const u32 b = address(stages + stage * STAGE_BYTES + A_BYTES);
            multiply_tiles(d, a, b, step > 0 && !PROMOTE);  // the first products of a tile overwrite the sums
            if (NARROW && m >= 0)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    if (part == step)
                        epilogue.store_part(pairs, part, m, n);
            wait_for_products<PROMOTE ? 0 : 1>();  // 1: those of the step before have ended
            const int free = PROMOTE ? stage : before;
            if (free >= 0)
                release<BLOCKS>(empty + free, lane);
            before = stage;
            if (PROMOTE) {
                settle(d);
#pragma unroll
                for (int i = 0; i < SUMS; ++i)
                    total[i] += d[i];
            }
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
        wait_for_products<0>();
        settle(d);
        if (!PROMOTE)
            release<BLOCKS>(empty + before, lane);
        if (NARROW && m >= 0)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                if (part >= steps)
                    epilogue.store_part(pairs, part, m, n);
        place<Plan>(tile, down, across, blockIdx.x % BLOCKS, m, n);  // of the tile that now has its sums
#pragma unroll
        for (int part = 0; part < PARTS && !NARROW; ++part)
            epilogue.store_part(sums, part, m, n);
#pragma unroll
        for (int i = 0; i < SUMS / 2 && NARROW; ++i)
            pairs[i] = packed(sums[2 * i], sums[2 * i + 1]);
    }
#pragma unroll
    for (int part = 0; part < PARTS && NARROW; ++part)  // the grid has no more blocks than tiles: there is a last one
        epilogue.store_part(pairs, part, m, n);
    if (epilogue.thread == 0)  // shared memory must live until it has been read
        wait_for_stores();
}
