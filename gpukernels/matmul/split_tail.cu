// matmul/split_tail: C[m][n] = sum over k of A[m][k] B[k][n], raster with the tiles of the last wave split along K.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// A multiprocessor has room for ROOM blocks, by the registers that the launch bounds leave to a thread. So the tiles of
// C are computed in waves, each of as many tiles as there are such places on all multiprocessors. What is left for the
// last wave may be few tiles, or all, if C has fewer tiles than there are places. Here these are split along K into
// parts, as split_tail.py says, so that all multiprocessors work almost to the end.
// The first kernel has a block for each whole tile, and one for each part. The sums of a part go to memory of its own,
// so that no two blocks write to one place. The second kernel starts when the first has ended. It adds the parts of
// each tile in their order, so that each launch on one model of GPU has the same result, bit for bit.
// pipeline.cuh has the loop.
// Source: Osama et al., Stream-K: work-centric parallel decomposition for dense matrix-matrix multiplication, 2023.

#include "bands.cuh"
#include "pipeline.cuh"

constexpr int TAIL_THREADS = 256;  // of a block of matmul_split_tail_sums

static_assert(TILE_ROWS * TILE_COLUMNS % (VECTOR * TAIL_THREADS) == 0, "whole blocks of matmul_split_tail_sums");

// `sums`: where a part's sums go, a matrix of TILE_ROWS x TILE_COLUMNS; nullptr if the tile is not split.
template <bool WHOLE, typename T>
__device__ void compute(T *shared, const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M,
                        long long N, long long K, long long depth, long long row0, long long column0, T *sums) {
    T sum[TM][TN];
    multiply<WHOLE>(sum, shared, A, B, M, N, K, depth, row0, column0);
    if (sums)
        store<true>(sum, sums, TILE_ROWS, TILE_COLUMNS, 0, 0);
    else
        store<WHOLE>(sum, C, M, N, row0, column0);
}

// What a block computes: the steps along K from `from` to `to` of a tile, part number `which` of it. Tiles from `whole`
// on are split into `splits` parts. Part 0 has `first` steps and takes one place during the whole last wave. The
// others share the rest; several of them follow each other in one of the places that remain. The numbers of the blocks:
// the whole tiles, then part 0 of each split tile, then part 1 of each, and so on. Blocks usually start in the order of
// their numbers; only the time depends on it.
struct Part {
    int tile, which, from, to;

    __device__ Part(int block, int tiles, int steps, int whole, int splits, int first)
        : tile(block), which(0), from(0), to(steps) {
        if (block < whole)
            return;
        const int left = tiles - whole;  // tiles that are split
        const long long rest = steps - first;
        which = (block - whole) / left;
        tile = whole + (block - whole) % left;
        from = which == 0 ? 0 : (int)(first + rest * (which - 1) / (splits - 1));
        to = (int)(first + rest * which / (splits - 1));
    }
};

// A block for each whole tile and each part. `parts`: where the sums of parts go, tile by tile, part by part.
template <typename T>
__global__ void __launch_bounds__(THREADS, ROOM)
    matmul_split_tail(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                      long long K, T *__restrict__ parts, int whole, int splits, int first) {
    extern __shared__ __align__(16) unsigned char shared[];
    // `down`, `across`: tiles in a column and in a row of C.
    const int down = (M + TILE_ROWS - 1) / TILE_ROWS, across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (block >= whole && block - whole >= (down * across - whole) * splits)
        return;  // the grid may have more blocks than there are parts
    const Part part(block, down * across, (K + TILE_K - 1) / TILE_K, whole, splits, first);
    long long depth = K;  // what the block has along K
    T *sums = nullptr;
    if (part.tile >= whole) {
        const long long from = (long long)part.from * TILE_K;
        sums = parts + ((part.tile - whole) * splits + part.which) * (long long)(TILE_ROWS * TILE_COLUMNS);
        depth = min(K, (long long)part.to * TILE_K) - from;
        A += from;
        B += from * N;
    }
    const Tile tile(part.tile, down, across);
    if (whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K, depth, tile.row0, tile.column0, sums);
    else
        compute<false>((T *)shared, A, B, C, M, N, K, depth, tile.row0, tile.column0, sums);
}

// Add the parts of each tile from `whole` on, and store them to C. A thread has four neighbors of a row; blockIdx.y is
// the tile.
extern "C" __global__ void __launch_bounds__(TAIL_THREADS)
    matmul_split_tail_sums(const float *__restrict__ parts, float *__restrict__ C, long long M, long long N, int whole,
                          int splits) {
    constexpr int QUADS = TILE_ROWS * TILE_COLUMNS / VECTOR;  // of a part: four neighbors each
    const int tail = blockIdx.y, quad = blockIdx.x * TAIL_THREADS + threadIdx.x;
    const float4 *const from = (const float4 *)parts + (long long)tail * splits * QUADS + quad;
    float4 sum = from[0];
#pragma unroll 8
    for (int part = 1; part < splits; ++part) {
        const float4 more = from[part * QUADS];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    const int down = (M + TILE_ROWS - 1) / TILE_ROWS, across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const Tile tile(whole + tail, down, across);
    const long long row = tile.row0 + quad * VECTOR / TILE_COLUMNS;
    const long long column = tile.column0 + quad * VECTOR % TILE_COLUMNS;
    if (row >= M)
        return;
    float *const to = C + row * N + column;
    if (column + VECTOR <= N && (unsigned long long)to % 16 == 0)
        store<true>(to, sum, VECTOR);
    else
        store<false>(to, sum, N - column);
}
