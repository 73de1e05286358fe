// matmul/tma_store.cuh: results leave through shared memory, from where Hopper's copy engine stores them.
//
// Threads have two neighbors of a row here and there. In shared memory they become rows of 128 bytes, ROWS of them a
// part, which the copy engine stores in the background, and only where C has them. Each warp group has BUFFERS parts of
// its own.
// Source: NVIDIA, PTX ISA: cp.async.bulk.tensor, stmatrix, wgmma (layout of the results).

#pragma once

#include "wgmma.cuh"

constexpr int PART_BYTES = ROWS * ROW_BYTES;  // in a store

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

// A warp group's way out: its buffers in shared memory, and C. `consumer`: which it is.
struct Exit {
    unsigned char *buffers;
    const TensorMap *map;
    int consumer, thread;

    // Store a part of the results of the tile at m, n.
    template <typename Values>
    __device__ void leave(const Values &values, int part, int m, int n) const {
        constexpr int COLUMNS = sizeof(Values) == sizeof(float) * SUMS ? ROW_BYTES / 4 : ROW_BYTES / 2;
        const int below = GROUP_ROWS == ROWS ? 0 : part / (TILE_COLUMNS / COLUMNS);
        unsigned char *const buffer = buffers + part % BUFFERS * PART_BYTES;
        if (thread == 0)  // the store that read this buffer last has read all
            wait_until_read<BUFFERS - 1>();
        meet<GROUP>(1 + consumer);
        put(buffer, values, part, thread / 32, thread % 32);
        publish();
        meet<GROUP>(1 + consumer);
        if (thread == 0)
            store_2d(map, buffer, (n - below) * TILE_COLUMNS + part * COLUMNS,
                     m * TILE_ROWS + consumer * GROUP_ROWS + below * ROWS);
    }
};
