// matmul/bands.cuh: the order of the tiles of C in bands, for raster, split_tail and pipelined_32x64.
//
// Tiles are numbered band by band, each of BAND rows of tiles, and in a band one column of tiles after the other. So
// blocks that run at the same time read the same rows of A and columns of B, which the L2 cache holds.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (threadblock rasterization); Triton, tutorial 3, matrix
// multiplication (grouped ordering).

#pragma once

constexpr long long BAND = 8;  // rows of tiles

// Where a tile of C begins; there are `down` x `across`.
struct Tile {
    long long row0, column0;

    __device__ Tile(long long tile, long long down, long long across) {
        const long long band = tile / (BAND * across), within = tile % (BAND * across);
        const long long high = min(BAND, down - band * BAND);  // the last band may have fewer rows of tiles
        row0 = (band * BAND + within % high) * TILE_ROWS;
        column0 = within / high * TILE_COLUMNS;
    }
};
