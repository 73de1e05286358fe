// matmul/wgmma: C[m][n] = sum over k of A[m][k] B[k][n], on Hopper's tensor cores, fed by its copy engine.
//
// A   M x K    B   K x N, or N x K if B_K_MAJOR    C   M x N, overwritten    row major, A and B of T, C of Out, any
// M, N, K >= 1. T is __half or __nv_bfloat16, or if B_K_MAJOR also __nv_fp8_e4m3, or float, of which the tensor cores take
// the first 19 bits (TF32). Sums are float; the tensor cores keep 14 bits of a sum of 8-bit operands. The operands come as
// tensor maps, which wgmma.py makes: rows begin at multiples of 16 bytes.
//
// A block has three groups of four warps. The first, the producer, lets the copy engine (TMA) fill STAGES stages of
// shared memory, each TILE_K along K, and keeps ahead of the others as far as there are free stages. The two consumers
// have the upper and the lower half of the block's tile of C, in registers which the producer gave away. Warp group
// matrix instructions read A and B from shared memory while the next are issued. Barriers in shared memory count the
// bytes that have come to a stage, and the warps that have done with it.
// The blocks of a cluster have tiles one below the other, which need the same columns of B. Each block copies its part
// of B's tile into all of them (multicast), when the consumers of all have done with the stage. All have the same
// number of tiles; the last ones may lie below C. A band then has BAND rows of such tiles of a cluster.
// A block goes on with the next tile of C as soon as it has one (persistent blocks), so that the copies for a tile start
// under the products of the tile before it. Tiles are in bands of BAND rows of tiles. If SERPENTINE, every second tile goes
// down K: what was read last is read first. If KEEP, A stays in the L2 cache longer than B (evict last, evict first).
// Results go through shared memory in parts of 128 bytes a row, from where the copy engine stores them. Those of 16 bits
// wait in registers, two in each, and leave under the first products of the next tile; for others there are too few.
// The launch may overlap the one before it (griddepcontrol): barriers are ready before that one has ended.
// If PROMOTE, the tensor cores sum no more than a stage, and the sum of the stages is in registers, in all bits of float.
// Rows in shared memory are 128 bytes; 16-byte pieces of 8 rows are exchanged by the copy engine (128-byte swizzle), so
// that neither it nor the tensor cores meet bank conflicts.
// Source: NVIDIA, PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, mapa, setmaxnreg, griddepcontrol; NVIDIA, CUTLASS,
// warp-specialized persistent kernels for Hopper.

#include "hopper.cuh"

#ifndef B_K_MAJOR
#define B_K_MAJOR 0
#endif
#ifndef PROMOTE
#define PROMOTE 0
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

constexpr int GROUP = 128;               // threads of a warp group
constexpr int ROWS = 64;                 // of C an instruction, and a store
constexpr int ROW_BYTES = 128;           // of a row in shared memory
constexpr int STEP_BYTES = 32;           // of a row of A an instruction
constexpr int PART_BYTES = ROWS * ROW_BYTES;  // in a store
constexpr int A_BYTES = TILE_ROWS * ROW_BYTES, B_BYTES = TILE_COLUMNS * ROW_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SUMS = TILE_ROWS / 2 * TILE_COLUMNS / GROUP;  // a thread

static_assert(BLOCK_X * BLOCK_Y == 3 * GROUP, "a producer and two consumers");
static_assert(TILE_ROWS == 128 || TILE_ROWS == 256, "a consumer has 64 rows, or twice as many");
static_assert(TILE_COLUMNS == 256 || TILE_COLUMNS == 128, "the width of an instruction");
static_assert(SUMS <= 128, "registers");
static_assert(CLUSTER == 1 || !B_K_MAJOR, "a block copies some columns of B for its cluster");
static_assert(TILE_COLUMNS % (64 * CLUSTER) == 0, "all blocks of a cluster copy as much of B");
static_assert(1024 + STAGES * STAGE_BYTES + 2 * BUFFERS * PART_BYTES == SHARED_BYTES, "shared in the ladder");

// A warp has done with a stage. The producers of all blocks of the cluster copy to it, so that all must know.
__device__ void release(u64 *barrier, int lane) {
    if (CLUSTER == 1 && lane == 0)
        arrive(barrier);
    if (CLUSTER > 1 && lane < CLUSTER)
        arrive(barrier, lane);
}

// What an instruction multiplies: the elements' types, and whether A and B are row major in their tiles (tnspA, tnspB).
#if defined(__CUDA_FP8_H__)  // the header of T is included before this file; this one includes those of 16-bit types
#define KIND "k32.f32.e4m3.e4m3 "
#elif defined(__CUDA_BF16_H__)
#define KIND "k16.f32.bf16.bf16 "
#elif defined(__CUDA_FP16_H__)
#define KIND "k16.f32.f16.f16 "
#else
#define KIND "k8.f32.tf32.tf32 "
#endif
#if defined(__CUDA_FP8_H__) || !defined(__CUDA_BF16_H__) && !defined(__CUDA_FP16_H__)
#define MAJOR ""
#elif B_K_MAJOR
#define MAJOR ", 0, 0"
#else
#define MAJOR ", 0, 1"
#endif

#define MULTIPLY(columns, registers, a_, b_, add_, sums) \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" columns KIND "{" registers "}, " a_ ", " b_ ", add, 1, 1" MAJOR \
                 ";\n}" \
                 : sums \
                 : "l"(a), "l"(b), "r"(add))

// d += A B for ROWS x TILE_COLUMNS results, from `d[first]` on, STEP_BYTES along K; d = A B if not `add`.
__device__ void multiply(float (&d)[SUMS], int first, u64 a, u64 b, int add) {
#if TILE_COLUMNS == 256
    MULTIPLY("256", REGISTERS_128, "%128", "%129", "%130", SUMS_128(first));
#else
    MULTIPLY("128", REGISTERS_64, "%64", "%65", "%66", SUMS_64(first));
#endif
}

// The row and column of tiles of a cluster's tile, of its block `rank`. `down`, `across`: the tiles of clusters.
__device__ void place(int tile, int down, int across, int rank, int &m, int &n) {
    const int band = tile / (BAND * across), within = tile % (BAND * across), high = min(BAND, down - band * BAND);
    m = (band * BAND + within % high) * CLUSTER + rank;
    n = within / high;
}

// B's tile in shared memory, from the row of B on that takes a byte of A's rows.
__device__ u64 part_of_b(u32 b, int byte) {
#if B_K_MAJOR
    return descriptor(b + byte, 16, 8 * ROW_BYTES);
#else  // 64 columns, of 128 bytes each row, lie together
    return descriptor(b + byte / 2 * ROW_BYTES, TILE_K * ROW_BYTES, 8 * ROW_BYTES);
#endif
}

__device__ u32 packed(float low, float high) {
#if defined(__CUDA_BF16_H__)
    return bfloat16_pair(low, high);
#else
    return half_pair(low, high);
#endif
}

// A part of the results, ROWS rows of 128 bytes, into shared memory. Parts go on to the right, then ROWS rows below.
// A lane holds two neighbors of every 8 columns, in row lane / 4 of the warp's 16 and 8 rows below.
__device__ void put(unsigned char *buffer, const float (&d)[SUMS], int part, int warp, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = warp * 16 + lane / 4 + 8 * e, byte = j * 32 + lane % 4 * 8, at = 16 * part + 4 * j + 2 * e;
            *(float2 *)(buffer + row * ROW_BYTES + ((byte / 16 ^ row % 8) * 16 + byte % 16)) =
                make_float2(d[at], d[at + 1]);
        }
}

// The same of pairs of 16-bit results: four matrices of 8 x 8 at a time.
__device__ void put(unsigned char *buffer, const u32 (&pairs)[SUMS / 2], int part, int warp, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = warp * 16 + lane % 16, piece = 2 * j + lane / 16, at = 16 * part + 4 * j;
        store_matrices(address(buffer + row * ROW_BYTES + (piece ^ row % 8) * 16), pairs[at], pairs[at + 1],
                       pairs[at + 2], pairs[at + 3]);
    }
}

// A consumer's way out: its buffers in shared memory, and C.
struct Exit {
    unsigned char *buffers;
    const TensorMap *map;
    int consumer, thread;

    // Store a part of the results of the tile at m, n.
    template <typename Values>
    __device__ void leave(const Values &values, int part, int m, int n) const {
        constexpr int COLUMNS = sizeof(Values) == sizeof(float) * SUMS ? ROW_BYTES / 4 : ROW_BYTES / 2;
        const int below = TILE_ROWS == 2 * ROWS ? 0 : part / (TILE_COLUMNS / COLUMNS);
        unsigned char *const buffer = buffers + part % BUFFERS * PART_BYTES;
        if (thread == 0)  // the store that read this buffer last has read all
            wait_until_read<BUFFERS - 1>();
        meet<GROUP>(1 + consumer);
        put(buffer, values, part, thread / 32, thread % 32);
        publish();
        meet<GROUP>(1 + consumer);
        if (thread == 0)
            store_2d(map, buffer, (n - below) * TILE_COLUMNS + part * COLUMNS,
                     m * TILE_ROWS + consumer * (TILE_ROWS / 2) + below * ROWS);
    }
};

template <typename T, typename Out = T>
__global__ void CLUSTERED __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                 const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    static_assert(B_K_MAJOR || sizeof(T) == 2, "operands of 8 and of 32 bits must be K-major");
    constexpr int PARTS = TILE_ROWS / 2 / ROWS * TILE_COLUMNS * sizeof(Out) / ROW_BYTES;
    static_assert(PARTS % BUFFERS == 0, "a tile leaves through every buffer as often");
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];

    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const stages = shared + (1024 - address(shared) % 1024) % 1024;
    unsigned char *const parts = stages + STAGES * STAGE_BYTES;
    const int down = ((M + TILE_ROWS - 1) / TILE_ROWS + CLUSTER - 1) / CLUSTER;  // the last block's tile may be empty
    const int across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int tiles = down * across, steps = (K + TILE_K - 1) / TILE_K;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    let_next_launch_begin();
    if (thread == 0) {
        prefetch(&map_a);
        prefetch(&map_b);
        for (int s = 0; s < STAGES; ++s) {
            init(full + s, 1);
            init(empty + s, 8 * CLUSTER);  // the consumers' warps
        }
        publish_barriers();
    }
    if (CLUSTER > 1)
        meet_cluster();
    else
        __syncthreads();
    wait_for_last_launch();

    if (group == 0) {
        keep_registers<40>();
        if (thread > 0)
            return;
        const u64 keep = KEEP ? evict_last() : evict_normal(), pass = KEEP ? evict_first() : keep;
        constexpr auto copy = CLUSTER == 1 ? load_2d : multicast_2d<CLUSTER>;
        int stage = 0, parity = 1;  // all stages are free: the phase before the first has ended
        bool upward = false;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER, upward = SERPENTINE && !upward) {
            int m, n;
            place(tile, down, across, blockIdx.x % CLUSTER, m, n);
            for (int step = 0; step < steps; ++step) {
                const int k = (upward ? steps - 1 - step : step) * TILE_K;
                unsigned char *const a = stages + stage * STAGE_BYTES, *const b = a + A_BYTES;
                wait(empty + stage, parity);
                expect(full + stage, STAGE_BYTES);
                load_2d(a, &map_a, full + stage, k, m * TILE_ROWS, keep);
                if (B_K_MAJOR)
                    load_2d(b, &map_b, full + stage, k, n * TILE_COLUMNS, pass);
                else
#pragma unroll
                    for (int i = 0; i < TILE_COLUMNS / CLUSTER; i += 64) {  // a row in shared memory
                        const int j = blockIdx.x % CLUSTER * (TILE_COLUMNS / CLUSTER) + i;
                        copy(b + j * ROW_BYTES, &map_b, full + stage, n * TILE_COLUMNS + j, k, pass);
                    }
                if (++stage == STAGES)
                    stage = 0, parity ^= 1;
            }
        }
        // Shared memory must live until the cluster's consumers have arrived at its barriers for the last time.
        for (int s = 0; s < STAGES && CLUSTER > 1; ++s) {
            wait(empty + stage, parity);
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
        return;
    }

    take_registers<232>();
    const int consumer = group - 1, lane = thread % 32;
    const Exit exit = {parts + consumer * BUFFERS * PART_BYTES, &map_c, consumer, thread % GROUP};
    constexpr bool NARROW = sizeof(Out) == 2;
    int stage = 0, parity = 0, m = -1, n = 0;
    float d[SUMS], total[SUMS];
    const float (&sums)[SUMS] = PROMOTE ? total : d;
    u32 pairs[SUMS / 2];  // of 16-bit results, of the tile before, at m, n
    for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
        int before = -1;
#pragma unroll
        for (int i = 0; i < SUMS && PROMOTE; ++i)
            total[i] = 0;
        for (int step = 0; step < steps; ++step) {
            wait(full + stage, parity);
            const u32 a = address(stages + stage * STAGE_BYTES) + consumer * (TILE_ROWS / 2) * ROW_BYTES;
            const u32 b = address(stages + stage * STAGE_BYTES + A_BYTES);
            settle(d);
            begin_products();
#pragma unroll
            for (int byte = 0; byte < ROW_BYTES; byte += STEP_BYTES)
#pragma unroll
                for (int row = 0; row < TILE_ROWS / 2; row += ROWS)
                    multiply(d, row / ROWS * (TILE_COLUMNS / 2), descriptor(a + row * ROW_BYTES + byte, 16, 8 * ROW_BYTES),
                             part_of_b(b, byte), (step > 0 && !PROMOTE) || byte > 0);
            commit_products();
            settle(d);
            if (NARROW && m >= 0)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    if (part == step)
                        exit.leave(pairs, part, m, n);
            wait_for_products<PROMOTE ? 0 : 1>();
            const int free = PROMOTE ? stage : before;
            if (free >= 0)
                release(empty + free, lane);
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
            release(empty + before, lane);
        if (NARROW && m >= 0)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                if (part >= steps)
                    exit.leave(pairs, part, m, n);
        place(tile, down, across, blockIdx.x % CLUSTER, m, n);
#pragma unroll
        for (int part = 0; part < PARTS && !NARROW; ++part)
            exit.leave(sums, part, m, n);
#pragma unroll
        for (int i = 0; i < SUMS / 2 && NARROW; ++i)
            pairs[i] = packed(sums[2 * i], sums[2 * i + 1]);
    }
#pragma unroll
    for (int part = 0; part < PARTS && NARROW; ++part)  // the grid has no more blocks than tiles: there is a last one
        exit.leave(pairs, part, m, n);
    if (exit.thread == 0)  // shared memory must live until it has been read
        wait_for_stores();
}
