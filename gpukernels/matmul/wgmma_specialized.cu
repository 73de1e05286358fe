// matmul/wgmma_specialized: C[m][n] = sum over k of A[m][k] B[k][n], wgmma_tma_store with a producer and two consumers.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sums
// of Out (float), any M, N, K >= 1. All come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// In wgmma_tma_store all warps of a block wait for their products in each step and meet, before one of their threads
// asks for the next tiles: from then until the next products begin, the tensor cores idle. Here a third warp group, the
// producer, does nothing but ask for tiles, as far ahead as there are free stages. The two others, the consumers, have
// the upper and the lower half of the tile of C. They wait for the bytes of a stage alone, and not for each other. Each
// stage has a second barrier, which counts the warps that have done with it: the producer waits for it. So a consumer
// begins the products of a step before those of the step before it have ended, so that tensor cores idle less.
// The producer needs few registers and gives the rest of its own to the consumers (setmaxnreg).
// Source: NVIDIA, PTX ISA: mbarrier, setmaxnreg; NVIDIA, CUTLASS, warp-specialized kernels for Hopper.

#include "tma_store.cuh"

static_assert(BLOCK_X * BLOCK_Y == 3 * GROUP, "a producer and two consumers");
static_assert(TILE_ROWS == 2 * ROWS, "an instruction's rows for each consumer");
static_assert(1024 + STAGES * STAGE_BYTES + 2 * BUFFERS * PART_BYTES == SHARED_BYTES, "shared in the ladder");

template <typename T, typename Out>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma_specialized(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                             const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    constexpr int PARTS = TILE_COLUMNS * sizeof(Out) / ROW_BYTES;
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];

    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const stages = shared + (1024 - address(shared) % 1024) % 1024;
    const int across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS, m = blockIdx.x / across, n = blockIdx.x % across;
    const int steps = (K + TILE_K - 1) / TILE_K;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    if (thread == 0) {
        for (int s = 0; s < STAGES; ++s) {
            init(full + s, 1);
            init(empty + s, 8);  // the consumers' warps
        }
        publish_barriers();
    }
    __syncthreads();

    if (group == 0) {
        keep_registers<40>();
        if (thread > 0)
            return;
        const u64 policy = evict_normal();
        int stage = 0, parity = 1;  // all stages are free: the phase before the first has ended
        for (int step = 0; step < steps; ++step) {
            unsigned char *const a = stages + stage * STAGE_BYTES, *const b = a + A_BYTES;
            wait(empty + stage, parity);
            expect(full + stage, STAGE_BYTES);
            load_2d(a, &map_a, full + stage, step * TILE_K, m * TILE_ROWS, policy);
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; j += 64)  // a row in shared memory
                load_2d(b + j * ROW_BYTES, &map_b, full + stage, n * TILE_COLUMNS + j, step * TILE_K, policy);
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
        return;
    }

    take_registers<232>();
    const int consumer = group - 1;
    float d[SUMS];
    int stage = 0, parity = 0, before = -1;
    for (int step = 0; step < steps; ++step) {
        wait(full + stage, parity);
        const u32 a = address(stages + stage * STAGE_BYTES) + consumer * ROWS * ROW_BYTES;
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
    const Epilogue epilogue = {stages + STAGES * STAGE_BYTES + consumer * BUFFERS * PART_BYTES, &map_c, consumer,
                               thread % GROUP};
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        epilogue.store_part(d, part, m, n);
    if (epilogue.thread == 0)  // shared memory must live until it has been read
        wait_for_stores();
}
