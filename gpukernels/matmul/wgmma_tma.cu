// matmul/wgmma_tma: C[m][n] = sum over k of A[m][k] B[k][n], wgmma_plain with tiles that the copy engine (TMA) fills.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sums
// of Out (float), any M, N, K >= 1. A and B come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// One thread asks for a whole tile, by its row and column, and no other thread computes an address. The copy engine
// exchanges the 16-byte pieces of the rows on its way, and writes 0 for what lies outside of A or B. The bytes come to
// a barrier in shared memory (mbarrier), on which everyone waits. Its phase ends when the thread has arrived and all
// bytes that it has announced have come; phases alternate between the parities 0 and 1.
// The copy engine and the tensor cores use the same way to shared memory, so no fence is needed between them. There is
// one stage: a block waits for its tiles, multiplies, and waits.
// Source: NVIDIA, PTX ISA: cp.async.bulk.tensor, mbarrier.

#include "wgmma.cuh"

static_assert(BLOCK_X * BLOCK_Y == 2 * GROUP, "two warp groups");
static_assert(TILE_ROWS == 2 * ROWS, "an instruction's rows for each of them");
static_assert(1024 + STAGE_BYTES == SHARED_BYTES, "shared in the ladder");

template <typename T, typename Out>
__global__ void __launch_bounds__(2 * GROUP, 1)
    matmul_wgmma_tma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, Out *C, int M,
                     int N, int K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    extern __shared__ unsigned char shared[];
    __shared__ u64 full;

    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const a = shared + (1024 - address(shared) % 1024) % 1024, *const b = a + A_BYTES;
    const int across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS, m = blockIdx.x / across, n = blockIdx.x % across;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    if (thread == 0) {
        init(&full, 1);
        publish_barriers();
    }
    __syncthreads();

    const u64 policy = evict_normal();
    float d[SUMS];
    int parity = 0;
    for (int k = 0; k < K; k += TILE_K, parity ^= 1) {
        if (thread == 0) {
            expect(&full, STAGE_BYTES);
            load_2d(a, &map_a, &full, k, m * TILE_ROWS, policy);
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; j += 64)  // a row in shared memory
                load_2d(b + j * ROW_BYTES, &map_b, &full, n * TILE_COLUMNS + j, k, policy);
        }
        wait(&full, parity);
        multiply_tiles(d, address(a) + group * ROWS * ROW_BYTES, address(b), k > 0);
        wait_for_products<0>();
        settle(d);
        __syncthreads();  // both warp groups have done with the tiles
    }
    store_results(d, C, M, N, (long long)m * TILE_ROWS + group * ROWS, (long long)n * TILE_COLUMNS, thread % GROUP);
}
