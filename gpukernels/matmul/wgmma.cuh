// matmul/wgmma.cuh: tiles of A and B in shared memory, their product on Hopper's tensor cores, and where results lie.
//
// The warp groups that multiply (CONSUMERS) have rows of the block's tile of C, one group below the other. Rows in
// shared memory are 128 bytes, whose 16-byte pieces are exchanged within 8 rows (128-byte swizzle), so that neither
// those who write the tiles nor the tensor cores meet bank conflicts: piece p of row r lies at p ^ r % 8. A's tile has
// TILE_ROWS rows, of TILE_K elements. B's tile has TILE_K rows of 64 columns, and behind them the next 64 columns; or
// if B_K_MAJOR, TILE_COLUMNS rows of TILE_K elements. The macros that no file here defines (TILE_ROWS, STAGES, BUFFERS)
// come from the rung's entry in gpukernels/ladder.toml.
// Source: NVIDIA, PTX ISA: wgmma.

#pragma once

#include "hopper.cuh"

#ifndef B_K_MAJOR
#define B_K_MAJOR 0
#endif
#ifndef CONSUMERS
#define CONSUMERS 2  // warp groups that multiply
#endif

constexpr int GROUP = 128;      // threads of a warp group
constexpr int ROWS = 64;        // rows of C that an instruction computes
constexpr int ROW_BYTES = 128;  // bytes of a row in shared memory
constexpr int STEP_BYTES = 32;  // bytes of a row of A that an instruction multiplies: 16 numbers of 16 bits
constexpr int A_BYTES = TILE_ROWS * ROW_BYTES, B_BYTES = TILE_COLUMNS * ROW_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int GROUP_ROWS = TILE_ROWS / CONSUMERS;           // rows of C of a warp group
constexpr int SUMS = GROUP_ROWS * TILE_COLUMNS / GROUP;     // of a thread, each in a register

static_assert(GROUP_ROWS == ROWS || GROUP_ROWS == 2 * ROWS, "a warp group has 64 rows, or twice as many");
static_assert(TILE_COLUMNS % 64 == 0 && TILE_COLUMNS <= 256, "the width of an instruction");
static_assert(SUMS <= 128, "registers");

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

// d += A B for ROWS x TILE_COLUMNS results, from `d[first]` on, STEP_BYTES along K; d = A B if not `add`. `a`, `b`:
// descriptors.
__device__ void multiply(float (&d)[SUMS], int first, u64 a, u64 b, int add) {
#if TILE_COLUMNS == 256
    MULTIPLY("256", REGISTERS_128, "%128", "%129", "%130", SUMS_128(first));
#elif TILE_COLUMNS == 192
    MULTIPLY("192", REGISTERS_96, "%96", "%97", "%98", SUMS_96(first));
#elif TILE_COLUMNS == 128
    MULTIPLY("128", REGISTERS_64, "%64", "%65", "%66", SUMS_64(first));
#else
    MULTIPLY("64", REGISTERS_32, "%32", "%33", "%34", SUMS_32(first));
#endif
}

// The descriptor of B's tile from that k on which lies `byte` bytes from the begin of A's rows.
__device__ u64 part_of_b(u32 b, int byte) {
#if B_K_MAJOR
    return descriptor(b + byte, 16, 8 * ROW_BYTES);  // a row has one group of columns: 16 is not used
#else  // rows of 64 columns, 128 bytes, lie one below the other; a k is a row
    return descriptor(b + byte / 2 * ROW_BYTES, TILE_K * ROW_BYTES, 8 * ROW_BYTES);
#endif
}

// Begin to multiply a warp group's rows of A's tile, which begin at `a`, and B's tile. The instructions are a group,
// which goes on in the background. They add to d, or overwrite it if not `add`.
__device__ void multiply_tiles(float (&d)[SUMS], u32 a, u32 b, bool add) {
    settle(d);
    begin_products();
#pragma unroll
    for (int byte = 0; byte < ROW_BYTES; byte += STEP_BYTES)
#pragma unroll
        for (int row = 0; row < GROUP_ROWS; row += ROWS)
            multiply(d, row / ROWS * (TILE_COLUMNS / 2), descriptor(a + row * ROW_BYTES + byte, 16, 8 * ROW_BYTES),
                     part_of_b(b, byte), add || byte > 0);
    commit_products();
    settle(d);
}

// Which results a thread has: two neighbors of every 8 columns, from own_column on, in row own_row of each ROWS rows of
// its warp group, and in the row 8 below.
__device__ int own_row(int thread) { return thread / 32 * 16 + thread % 32 / 4; }
__device__ int own_column(int thread) { return thread % 4 * 2; }

// Two neighbors, rounded to 16 bits.
__device__ u32 packed(float low, float high) {
#if defined(__CUDA_BF16_H__)
    return bfloat16_pair(low, high);
#else
    return half_pair(low, high);
#endif
}

__device__ void store_pair(float *to, float low, float high) { *(float2 *)to = make_float2(low, high); }

template <typename Out>
__device__ void store_pair(Out *to, float low, float high) {
    *(u32 *)to = packed(low, high);
}

// Store what a thread of a warp group has of ROWS rows of results, which begin at row0, column0 of C: two numbers of
// every 8 columns in each of its two rows.
template <int COUNT, typename Out>
__device__ void store_results(const float (&d)[COUNT], Out *C, long long M, long long N, long long row0,
                              long long column0, int thread) {
    const bool pairs = N % 2 == 0 && (u64)C % (2 * sizeof(Out)) == 0;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const long long row = row0 + own_row(thread) + 8 * below;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const long long column = column0 + own_column(thread) + 2 * i;
            Out *const to = C + row * N + column;
            if (pairs && row < M && column < N)
                store_pair(to, d[i + 2 * below], d[i + 2 * below + 1]);
            if (!pairs && row < M && column < N)
                to[0] = d[i + 2 * below];
            if (!pairs && row < M && column + 1 < N)
                to[1] = d[i + 2 * below + 1];
        }
    }
}
