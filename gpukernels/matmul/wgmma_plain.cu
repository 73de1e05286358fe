// matmul/wgmma_plain: C[m][n] = sum over k of A[m][k] B[k][n], on Hopper's tensor cores by warp group products (wgmma).
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sums
// of Out (float), any M, N, K >= 1
//
// Four warps multiply 64 x 256 x 16 at once. They read both operands from shared memory, where descriptors say how they
// lie, and keep the results in registers: 128 a thread. The instruction goes on in the background until it is waited
// for. A block's two warp groups have 64 rows of its tile of C each. The tiles of A and B are filled as ever, by loads
// of 16 bytes and stores; the stores exchange the 16-byte pieces of 8 rows, as the descriptors say (128-byte swizzle).
// The tensor cores read shared memory by another way (the asynchronous proxy) than the threads write it: a fence makes
// what was written visible there. A block loads, waits, multiplies, and waits.
// Source: NVIDIA, PTX ISA: wgmma, fence.proxy.async.

#include "wgmma.cuh"

constexpr int VECTOR = 8;  // elements of 16 bytes, a piece of a row
constexpr int THREADS = 2 * GROUP;
constexpr int A_VECTORS = ROW_BYTES / 16, A_ROWS = THREADS / A_VECTORS;        // in a row of A's tile; rows at a time
constexpr int B_VECTORS = TILE_COLUMNS / VECTOR, B_ROWS = THREADS / B_VECTORS;  // the same of B

static_assert(BLOCK_X * BLOCK_Y == THREADS, "two warp groups");
static_assert(TILE_ROWS == 2 * ROWS, "an instruction's rows for each of them");
static_assert(TILE_ROWS % A_ROWS == 0 && TILE_K % B_ROWS == 0, "whole steps of rows");
static_assert(1024 + STAGE_BYTES == SHARED_BYTES, "shared in the ladder");

// Eight neighbors of a row, of which `there` exist; 0 for the others. WHOLE: all or none exist, and they begin at a
// multiple of 16 bytes.
template <bool WHOLE, typename T>
__device__ uint4 load(const T *from, long long there) {
    if (WHOLE)
        return there > 0 ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i)
        if (i < there)
            words[i / 2] |= (u32)((const unsigned short *)from)[i] << 16 * (i % 2);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// A thread's results of the tile at row0, column0.
template <bool WHOLE, typename T>
__device__ void compute(float (&d)[SUMS], unsigned char *As, unsigned char *Bs, const T *__restrict__ A,
                        const T *__restrict__ B, long long M, long long N, long long K, long long row0,
                        long long column0, int thread, int group) {
    const int a_row = thread / A_VECTORS, a_piece = thread % A_VECTORS;
    const int b_row = thread / B_VECTORS, b_vector = thread % B_VECTORS;
    unsigned char *const b_part = Bs + b_vector / 8 * (TILE_K * ROW_BYTES);  // 64 columns lie together
    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += A_ROWS) {
            const int r = a_row + step;
            const long long row = row0 + r, k = k0 + a_piece * VECTOR;
            *(uint4 *)(As + r * ROW_BYTES + (a_piece ^ r % 8) * 16) =
                load<WHOLE>(A + row * K + k, row < M ? K - k : 0);
        }
#pragma unroll
        for (int step = 0; step < TILE_K; step += B_ROWS) {
            const int r = b_row + step;
            const long long k = k0 + r, column = column0 + b_vector * VECTOR;
            *(uint4 *)(b_part + r * ROW_BYTES + (b_vector % 8 ^ r % 8) * 16) =
                load<WHOLE>(B + k * N + column, k < K ? N - column : 0);
        }
        publish();
        __syncthreads();
        multiply_tiles(d, address(As) + group * ROWS * ROW_BYTES, address(Bs), k0 > 0);
        wait_for_products<0>();
        settle(d);
        __syncthreads();
    }
}

template <typename T, typename Out>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma_plain(const T *__restrict__ A, const T *__restrict__ B, Out *__restrict__ C, long long M, long long N,
                       long long K) {
    static_assert(TILE_K * sizeof(T) == ROW_BYTES, "rows of 128 bytes");
    extern __shared__ unsigned char shared[];
    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const As = shared + (1024 - address(shared) % 1024) % 1024, *const Bs = As + A_BYTES;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    float d[SUMS];
    if (((u64)A | (u64)B | (K | N) * sizeof(T)) % 16 == 0)
        compute<true>(d, As, Bs, A, B, M, N, K, row0, column0, thread, group);
    else
        compute<false>(d, As, Bs, A, B, M, N, K, row0, column0, thread, group);
    store_results(d, C, M, N, row0 + group * ROWS, column0, thread % GROUP);
}
