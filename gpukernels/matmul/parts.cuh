// matmul/parts.cuh: float32 numbers as sums of 16-bit numbers, and products of these parts on Hopper's tensor cores.
//
// A number is the sum of its parts: PARTS 16-bit numbers, bfloat16 if 3, float16 if 2, the largest first. A product of
// two numbers is then the sum of the products of their parts, which tensor cores make. Three kernels of a rung run one
// after the other:
// 1. The first writes the parts of A and of B to memory, PARTS matrices of each. Each rung has its own.
// 2. The second (multiply_parts) multiplies the parts on tensor cores and sums the products, the small ones first. It
//    leaves out products that are too small to matter: of part p of A and part q of B where p + q >= PARTS. Tensor
//    cores truncate where float32 additions round, and the error grows with each addition. So they sum SPAN of K only;
//    a thread then adds this to its own float32 sum, rounded.
// 3. The third (multiply_outside) computes again, in float32, the rows and columns of C that depend on a number
//    outside: one of A or B that the parts cannot hold. It has nothing to do for most operands.
//
// The second works like persistent.cuh. A block has three groups of four warps and goes from tile to tile of C. One
// thread of the first group, the producer, lets the copy engine (TMA) fill STAGES stages of shared memory with all
// parts of a tile of A and of B. The other groups, the consumers, multiply, each 64 x 128 results. Barriers in shared
// memory say that a stage is full (all bytes have come), and that it is empty (all warps of the consumers have done
// with it).
// A block goes through every second tile from the end of K: what was read last is read first, from the L2 cache.
// Source: Henry, Tang and Heinecke, Leveraging the bfloat16 artificial intelligence datatype for higher-precision
// computations, 2019; Ootomo and Yokota, Recovering single precision accuracy from tensor cores, 2022.

#pragma once

#include "hopper.cuh"

#if PARTS == 3
#include <cuda_bf16.h>
#define ELEMENT "bf16"
#else
#include <cuda_fp16.h>
#define ELEMENT "f16"
#endif

constexpr int GROUP = 128;               // threads of a warp group
constexpr int ROWS = TILE_ROWS / 2;      // rows of C of a consumer
constexpr int ROW_BYTES = 128;           // bytes of a row in shared memory
constexpr int STEP = 16;                 // what an instruction has along K
constexpr int BAND = 8;                  // rows of tiles in a band, see place
constexpr int INTERVAL = SPAN / TILE_K;  // stages whose products the tensor cores sum
constexpr int A_BYTES = PARTS * TILE_ROWS * ROW_BYTES, B_BYTES = PARTS * TILE_COLUMNS * TILE_K * 2;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;  // 96 KiB with three parts, 64 KiB with two: two or three stages fit
constexpr int SUMS = TILE_COLUMNS / 2;  // of a thread: ROWS * TILE_COLUMNS / GROUP
constexpr int SPLITTERS = 256;          // threads of a block of the first and the third kernel
constexpr bool SCALED = PARTS == 2;
constexpr int SCALES = SCALED ? TILE_ROWS + TILE_COLUMNS : 4;  // of a stage; only float16 parts are scaled

static_assert(PARTS == 2 || PARTS == 3, "float16 or bfloat16");
static_assert(BLOCK_X * BLOCK_Y == 3 * GROUP, "a producer and two consumers");
static_assert(TILE_ROWS == 128 && TILE_COLUMNS == 128 && TILE_K * 2 == ROW_BYTES, "m64n128k16, rows of 128 bytes");
static_assert(SPAN % TILE_K == 0, "whole stages");
static_assert(1024 + STAGES * STAGE_BYTES == SHARED_BYTES, "shared in the ladder");

// ---- the parts of a number

// Two numbers as 16-bit parts in one register, and either of them as a float32 number.
#if PARTS == 3
__device__ u32 two(float low, float high) { return bfloat16_pair(low, high); }
__device__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ float high(u32 both) { return __uint_as_float(both & 0xFFFF0000); }
#else
__device__ u32 two(float low, float high) { return half_pair(low, high); }
__device__ float low(u32 both) { return __half2float(__ushort_as_half(both & 0xFFFF)); }
__device__ float high(u32 both) { return __half2float(__ushort_as_half(both >> 16)); }
#endif

__device__ float power(int e) { return __uint_as_float((u32)(e + 127) << 23); }  // 2^e, -126 <= e <= 127

// The exponent of the power of two that takes a number to [2^14, 2^15), from its bits; at most 126.
__device__ int scale_of(u32 magnitude) { return min(14 + 127 - (int)(magnitude >> 23), 126); }

__device__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

// Whether the parts cannot hold a number, or, if it is the largest of those that are scaled alike, one of them. Three
// parts hold all bits of a number from 2^-100 on: none is smaller than 2^-123 then, and so subnormal. Below 2^62 the
// product of two numbers, or a sum of some, is finite.
__device__ bool outside(u32 magnitude) {
    constexpr u32 LEAST = (127 - 100) << 23, END = (127 + (SCALED ? 100 : 62)) << 23;
    return magnitude >= END || (!SCALED && magnitude != 0 && magnitude < LEAST);
}

// Eight neighbors of a row, of which the first `count` exist; 0 for the others. By vectors if they are aligned.
__device__ void read(float (&x)[8], const float *from, long long count) {
    if (count >= 8 && (u64)from % 16 == 0) {
        const float4 u = ((const float4 *)from)[0], v = ((const float4 *)from)[1];
        x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w, x[4] = v.x, x[5] = v.y, x[6] = v.z, x[7] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            x[i] = i < count ? from[i] : 0;
    }
}

// Write the parts of eight neighbors: each part is what the ones before it left over, rounded to 16 bits. `apart`:
// elements from the matrix of one part to that of the next.
__device__ void write(float (&x)[8], unsigned short *to, u64 apart) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            words[i] = two(x[2 * i], x[2 * i + 1]);
            x[2 * i] -= low(words[i]), x[2 * i + 1] -= high(words[i]);
        }
        // Inline PTX: of an assignment to *(uint4 *) nvcc makes four stores if PARTS is 2.
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + part * apart), "r"(words[0]), "r"(words[1]),
                     "r"(words[2]), "r"(words[3]));
    }
}

// ---- rows and columns that depend on numbers outside

// Blocks share the tiles of 64 x 64 of C, and skip those without a row or column outside. Sums of 64 products are
// summed: fewer roundings than one after the other.
__device__ void multiply_outside(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C,
                                 const unsigned char *outside_a, const unsigned char *outside_b, long long M,
                                 long long N, long long K) {
    const long long across = (N + 63) / 64, tiles = (M + 63) / 64 * across;
    const int thread = threadIdx.x;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long m = tile / across * 64, n = tile % across * 64;
        const bool mine = thread < 64 ? m + thread < M && outside_a[m + thread]
                                      : thread < 128 && n + thread - 64 < N && outside_b[n + thread - 64];
        if (!__syncthreads_or(mine))
            continue;
        for (int i = thread; i < 64 * 64; i += SPLITTERS) {
            const long long row = m + i / 64, column = n + i % 64;
            if (row >= M || column >= N || !(outside_a[row] || outside_b[column]))
                continue;
            float sum = 0;
            for (long long k = 0; k < K; k += 64) {
                float part = 0;
                for (long long j = k; j < min(k + 64, K); ++j)
                    part = fmaf(A[row * K + j], B[j * N + column], part);
                sum += part;
            }
            C[row * N + column] = sum;
        }
    }
}

// ---- the products

// The lower word of a descriptor, by which wgmma reads a matrix in shared memory. `leading`: bytes from one group of 64
// columns to the next; A has one group, and does not use it. The upper word, 0x40000040, says that groups of 8 rows lie
// 1024 bytes apart, and that rows have the 128-byte swizzle.
__device__ u32 descriptor(u32 address, u32 leading) { return (address & 0x3FFFF) >> 4 | (leading >> 4) << 16; }

// d += A B for 64 x 128 results, 16 along K; d = A B if not `add`. `a`, `b`: lower words of descriptors. The last 1
// says that B lies row by row.
__device__ void multiply(float (&d)[SUMS], u32 a, u32 b, int add) {
    asm volatile(
        "{\n.reg .pred add;\n.reg .b64 a, b;\n"
        "mov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." ELEMENT "." ELEMENT " {" REGISTERS_64
        "}, a, b, add, 1, 1, 0, 1;\n}"
        : SUMS_64(0)
        : "r"(a), "r"(b), "r"(add));
}

// Where a tile of C lies: its row `m` and column `n`, counted in tiles, of `down` x `across`. Tiles lie in bands of
// BAND rows, and in a band one column of tiles follows the other: blocks at work share rows of A and columns of B in
// the L2 cache.
__device__ void place(int tile, int down, int across, int &m, int &n) {
    const int band = tile / (BAND * across), within = tile % (BAND * across), high = min(BAND, down - band * BAND);
    m = band * BAND + within % high;
    n = within / high;
}

// What a block of the second kernel does. In shared memory: `full`, `empty`, the barriers of its stages, and `scales`,
// factors of its rows and columns by stage. scales_a and scales_b have wide_a and wide_b factors for each span
// (fp16x3).
template <typename T>
__device__ void multiply_parts(unsigned char *shared, u64 (&full)[STAGES], u64 (&empty)[STAGES],
                               float (&scales)[STAGES][SCALES], const TensorMap &map_a, const TensorMap &map_b, T *C,
                               const float *scales_a, const float *scales_b, int M, int N, int K, long long wide_a,
                               long long wide_b) {
    const u32 stages = (address(shared) + 1023) & ~1023u;  // where matrices with the 128-byte swizzle may begin
    const int down = (M + TILE_ROWS - 1) / TILE_ROWS, across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int tiles = down * across, steps = (K + TILE_K - 1) / TILE_K;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    if (thread == 0) {
        for (int s = 0; s < STAGES; ++s) {
            init(full + s, 1);   // the producer's thread
            init(empty + s, 8);  // the consumers' warps
        }
        publish_barriers();
    }
    __syncthreads();

    if (group == 0) {
        keep_registers<40>();  // a block of 384 threads has 168 for each: 40 + 2 * 232 = 3 * 168
        if (thread > 0)
            return;
        const u64 keep = evict_last(), pass = evict_first();
        const int whole = steps - steps % INTERVAL;  // steps in whole spans; backward, the last span comes first
        int stage = 0, parity = 1;                   // all stages are free: the phase before the first has ended
        bool backward = false;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, backward = !backward) {
            int m, n;
            place(tile, down, across, m, n);
            for (int i = 0; i < steps; ++i) {
                const int within = i % INTERVAL;
                const int step = backward && i < whole ? whole - INTERVAL - (i - within) + within : i;
                const u32 a = stages + stage * STAGE_BYTES, b = a + A_BYTES;
                wait(empty + stage, parity);
                expect(full + stage, STAGE_BYTES + (SCALED ? (TILE_ROWS + TILE_COLUMNS) * 4 : 0));
                load_3d(a, &map_a, full + stage, step * TILE_K, m * TILE_ROWS, keep);
#pragma unroll
                for (int j = 0; j < TILE_COLUMNS; j += 64)  // columns of a row of 128 bytes
                    load_3d(b + j / 64 * PARTS * TILE_K * ROW_BYTES, &map_b, full + stage, n * TILE_COLUMNS + j,
                            step * TILE_K, pass);
                if (SCALED) {
                    const long long span = step / INTERVAL;
                    load_1d(scales[stage], scales_a + span * wide_a + m * TILE_ROWS, TILE_ROWS * 4, full + stage);
                    load_1d(scales[stage] + TILE_ROWS, scales_b + span * wide_b + n * TILE_COLUMNS, TILE_COLUMNS * 4,
                            full + stage);
                }
                if (++stage == STAGES)
                    stage = 0, parity ^= 1;
            }
        }
        return;
    }

    take_registers<232>();
    const int consumer = group - 1, warp = thread / 32 % 4, lane = thread % 32;
    const int own_row = consumer * ROWS + warp * 16 + lane / 4;  // and 8 rows below
    int stage = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int m, n;
        place(tile, down, across, m, n);
        float sum[SUMS], d[SUMS];  // rounded sums, and those of the tensor cores over a span
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            sum[i] = 0;
        for (int step = 0; step < steps;) {
            const int end = min(step + INTERVAL, steps);
            int before = -1;
            for (int add = 0; step < end; ++step) {
                wait(full + stage, parity);
                const u32 begin = stages + stage * STAGE_BYTES;
                const u32 a = descriptor(begin + consumer * ROWS * ROW_BYTES, 16);
                const u32 b = descriptor(begin + A_BYTES, PARTS * TILE_K * ROW_BYTES);
                settle(d);
                begin_products();
#pragma unroll
                for (int p_and_q = PARTS - 1; p_and_q >= 0; --p_and_q)  // the smallest products first
#pragma unroll
                    for (int p = 0; p <= p_and_q; ++p)
#pragma unroll
                        for (int k = 0; k < TILE_K; k += STEP) {
                            multiply(d, a + (p * TILE_ROWS * ROW_BYTES + k * 2) / 16,
                                     b + ((p_and_q - p) * TILE_K + k) * ROW_BYTES / 16, add);
                            add = 1;
                        }
                commit_products();
                settle(d);
                if (INTERVAL > 1) {
                    wait_for_products<1>();
                    if (before >= 0 && lane == 0)
                        arrive(empty + before);
                }
                before = stage;
                if (++stage == STAGES)
                    stage = 0, parity ^= 1;
            }
            wait_for_products<0>();
            settle(d);
            if (SCALED) {
                const float *const rows = scales[before] + own_row, *const columns = scales[before] + TILE_ROWS;
                const float scale[2] = {rows[0], rows[8]};
#pragma unroll
                for (int i = 0; i < SUMS; i += 4) {
                    const float2 across_n = *(const float2 *)(columns + i * 2 + lane % 4 * 2);
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        sum[i + 2 * e] = fmaf(d[i + 2 * e] * across_n.x, scale[e], sum[i + 2 * e]);
                        sum[i + 2 * e + 1] = fmaf(d[i + 2 * e + 1] * across_n.y, scale[e], sum[i + 2 * e + 1]);
                    }
                }
                __syncwarp();  // all lanes have read the scales
            }
            if (lane == 0)
                arrive(empty + before);
            if (!SCALED)
#pragma unroll
                for (int i = 0; i < SUMS; ++i)
                    sum[i] += d[i];
        }

        // A lane holds two neighbors of every 8 columns, in its row and 8 rows below.
        const int column = n * TILE_COLUMNS + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = m * TILE_ROWS + own_row + 8 * e;
            T *const to = C + (long long)row * N + column;
            if (row >= M)
                continue;
            if (N % 2 == 0 && (u64)C % 8 == 0) {
#pragma unroll
                for (int i = 0; i < SUMS; i += 4)
                    if (column + i * 2 < N)
                        *(float2 *)(to + i * 2) = make_float2(sum[i + 2 * e], sum[i + 2 * e + 1]);
            } else {
#pragma unroll
                for (int i = 0; i < SUMS; i += 4) {
                    if (column + i * 2 < N)
                        to[i * 2] = sum[i + 2 * e];
                    if (column + i * 2 + 1 < N)
                        to[i * 2 + 1] = sum[i + 2 * e + 1];
                }
            }
        }
    }
}
