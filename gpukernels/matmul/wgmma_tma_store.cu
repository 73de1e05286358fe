// matmul/wgmma_tma_store: C[m][n] = sum over k of A[m][k] B[k][n], wgmma_stages with results stored by TMA.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sums
// of Out (float), any M, N, K >= 1. All come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// A thread's results are two neighbors of every 8 columns: stored from there, a warp writes 32 bytes to each of 8 rows
// at a time. Here they go through shared memory in parts of 64 rows, of 128 bytes each, from where the copy engine
// stores them. While it stores one part, the next is written to another of BUFFERS.
// Source: NVIDIA, PTX ISA: cp.async.bulk.tensor; NVIDIA, CUTLASS, epilogues on Hopper.

#include "tma_store.cuh"

static_assert(BLOCK_X * BLOCK_Y == 2 * GROUP, "two warp groups");
static_assert(TILE_ROWS == 2 * ROWS, "an instruction's rows for each of them");
static_assert(1024 + STAGES * STAGE_BYTES + 2 * BUFFERS * PART_BYTES == SHARED_BYTES, "shared in the ladder");

template <typename T, typename Out>
__global__ void __launch_bounds__(2 * GROUP, 1)
    matmul_wgmma_tma_store(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                           const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    constexpr int PARTS = TILE_COLUMNS * sizeof(Out) / ROW_BYTES;
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES];

    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const stages = shared + (1024 - address(shared) % 1024) % 1024;
    const int across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS, m = blockIdx.x / across, n = blockIdx.x % across;
    const int steps = (K + TILE_K - 1) / TILE_K;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    const u64 policy = evict_normal();
    auto copy = [&](int step, int stage) {
        unsigned char *const a = stages + stage * STAGE_BYTES, *const b = a + A_BYTES;
        expect(full + stage, STAGE_BYTES);
        load_2d(a, &map_a, full + stage, step * TILE_K, m * TILE_ROWS, policy);
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS; j += 64)  // a row in shared memory
            load_2d(b + j * ROW_BYTES, &map_b, full + stage, n * TILE_COLUMNS + j, step * TILE_K, policy);
    };
    if (thread == 0) {
        for (int s = 0; s < STAGES; ++s)
            init(full + s, 1);
        publish_barriers();
        for (int s = 0; s < min(STAGES, steps); ++s)
            copy(s, s);
    }
    __syncthreads();

    float d[SUMS];
    int stage = 0, parity = 0;
    for (int step = 0; step < steps; ++step) {
        wait(full + stage, parity);
        const u32 a = address(stages + stage * STAGE_BYTES) + group * ROWS * ROW_BYTES;
        multiply_tiles(d, a, address(stages + stage * STAGE_BYTES + A_BYTES), step > 0);
        wait_for_products<0>();
        __syncthreads();  // both warp groups have done with the stage
        if (thread == 0 && step + STAGES < steps)
            copy(step + STAGES, stage);
        if (++stage == STAGES)
            stage = 0, parity ^= 1;
    }
    settle(d);
    const Epilogue epilogue = {stages + STAGES * STAGE_BYTES + group * BUFFERS * PART_BYTES, &map_c, group,
                               thread % GROUP};
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        epilogue.store_part(d, part, m, n);
    if (epilogue.thread == 0)  // shared memory must live until it has been read
        wait_for_stores();
}
