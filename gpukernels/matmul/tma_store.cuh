// matmul/tma_store.cuh: results leave through shared memory, from where Hopper's copy engine stores them.
//
// A thread has pairs of neighbors, spread over the tile. Shared memory gathers ROWS rows of 128 bytes, a part, which
// the copy engine (TMA) stores in the background, and only where C has them. Each warp group has BUFFERS buffers of its
// own, one for a part.
// Source: NVIDIA, PTX ISA: cp.async.bulk.tensor, stmatrix, wgmma (layout of the results).

#pragma once

#include "wgmma.cuh"

constexpr int PART_BYTES = ROWS * ROW_BYTES;

// Write a part of the results to a buffer. Parts go on to the right, then ROWS rows below. A lane has two neighbors of
// every 8 columns, in row lane / 4 of the warp's 16 rows and 8 rows below.
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

// The same for pairs of 16-bit results: the warp stores four matrices of 8 x 8 at a time.
__device__ void put(unsigned char *buffer, const u32 (&pairs)[SUMS / 2], int part, int warp, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = warp * 16 + lane % 16, piece = 2 * j + lane / 16, at = 16 * part + 4 * j;
        store_matrices(address(buffer + row * ROW_BYTES + (piece ^ row % 8) * 16), pairs[at], pairs[at + 1],
                       pairs[at + 2], pairs[at + 3]);
    }
}

// How a warp group stores its results: its buffers in shared memory, C's tensor map, the warp group's number among the
// consumers, and the thread's number in it.
struct Epilogue {
    unsigned char *buffers;
    const TensorMap *map;
    int consumer, thread;

    // Store a part of the results of the tile in row m and column n of tiles. All threads of the warp group call this.
    template <typename Values>
    __device__ void store_part(const Values &values, int part, int m, int n) const {
        // Parts of the lower 64 rows, if there are such, are counted on from those of the upper ones: their columns are
        // TILE_COLUMNS too many.
        constexpr int COLUMNS = sizeof(Values) == sizeof(float) * SUMS ? ROW_BYTES / 4 : ROW_BYTES / 2;
        const int below = GROUP_ROWS == ROWS ? 0 : part / (TILE_COLUMNS / COLUMNS);
        unsigned char *const buffer = buffers + part % BUFFERS * PART_BYTES;
        if (thread == 0)  // until the store before from this buffer has read it
            wait_until_read<BUFFERS - 1>();
        meet<GROUP>(1 + consumer);  // the buffer is free
        put(buffer, values, part, thread / 32, thread % 32);
        publish();
        meet<GROUP>(1 + consumer);  // the buffer is full
        if (thread == 0)
            store_2d(map, buffer, (n - below) * TILE_COLUMNS + part * COLUMNS,
                     m * TILE_ROWS + consumer * GROUP_ROWS + below * ROWS);
    }
};
