// matmul/wmma: C[m][n] = sum over k of A[m][k] B[k][n], on the tensor cores by warp-level matrix operations.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16, the latter
// from compute capability 8.0 on), C and the sum of Sum (float), any M, N, K >= 1
//
// A warp multiplies fragments of 16 x 16 x 16 at once and adds them up in Sum; a product of two such T has at most 22
// significant bits, which float holds. A block's four warps share tiles of A and B in shared memory and have a
// quarter of the tile of C each, 2 x 2 fragments, so that each fragment loaded is used twice. Rows of the tiles have
// 16 spare bytes: 8 rows of 16 bytes, which a warp reads at once, then lie in different banks. The results go
// through shared memory, since the hardware decides which lane holds which element, and since the edge must be checked.
// Source: NVIDIA, CUDA C++ Programming Guide, warp matrix functions.

#include <mma.h>

constexpr int FRAGMENT = 16;  // edge of a fragment
constexpr int TILE_K = 32;
constexpr int WM = TILE_ROWS / 2, WN = TILE_COLUMNS / 2;  // a warp's tile of C
constexpr int FRAGMENTS_M = WM / FRAGMENT, FRAGMENTS_N = WN / FRAGMENT;
constexpr int PAD_AB = 8, PAD_C = 4;  // 16 bytes in elements of T and of Sum

static_assert(BLOCK_X == 32 && BLOCK_Y == 4, "four warps, 2 x 2 in the tile, threadIdx.y the warp");
static_assert(WM % FRAGMENT == 0 && WN % FRAGMENT == 0 && TILE_K % FRAGMENT == 0, "whole fragments");
static_assert(TILE_K == BLOCK_X && TILE_COLUMNS % BLOCK_X == 0, "a warp loads whole rows of the tiles");
static_assert(TILE_ROWS % BLOCK_Y == 0 && TILE_K % BLOCK_Y == 0, "whole steps of BLOCK_Y rows");

template <typename T, typename Sum = T>
__global__ void matmul_wmma(const T *__restrict__ A, const T *__restrict__ B, Sum *__restrict__ C, long long M,
                            long long N, long long K) {
    using namespace nvcuda;
    static_assert(sizeof(T) == 2 && sizeof(Sum) == 4, "16-bit operands, 32-bit sums");

    // A fragment begins at a multiple of 32 bytes, its rows at multiples of 16.
    __shared__ __align__(32) T As[TILE_ROWS][TILE_K + PAD_AB];
    __shared__ __align__(32) T Bs[TILE_K][TILE_COLUMNS + PAD_AB];
    __shared__ __align__(32) Sum Cs[TILE_ROWS][TILE_COLUMNS + PAD_C];

    const int lane = threadIdx.x, warp = threadIdx.y;
    const int warp_row = warp / 2 * WM, warp_column = warp % 2 * WN;
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;

    wmma::fragment<wmma::accumulator, FRAGMENT, FRAGMENT, FRAGMENT, Sum> sum[FRAGMENTS_M][FRAGMENTS_N];
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j)
            wmma::fill_fragment(sum[i][j], Sum(0));

    for (long long k0 = 0; k0 < K; k0 += TILE_K) {
        // Past K both tiles hold 0, so that what is added there is 0 whatever else A and B hold.
#pragma unroll
        for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {
            const long long row = row0 + warp + step, k = k0 + lane;
            As[warp + step][lane] = row < M && k < K ? A[row * K + k] : T(0.0f);
        }
#pragma unroll
        for (int step = 0; step < TILE_K; step += BLOCK_Y)
#pragma unroll
            for (int across = 0; across < TILE_COLUMNS; across += BLOCK_X) {
                const long long k = k0 + warp + step, column = column0 + lane + across;
                Bs[warp + step][lane + across] = k < K && column < N ? B[k * N + column] : T(0.0f);
            }
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE_K; k += FRAGMENT) {
            wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT, T, wmma::row_major> a[FRAGMENTS_M];
            wmma::fragment<wmma::matrix_b, FRAGMENT, FRAGMENT, FRAGMENT, T, wmma::row_major> b[FRAGMENTS_N];
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; ++i)
                wmma::load_matrix_sync(a[i], &As[warp_row + i * FRAGMENT][k], TILE_K + PAD_AB);
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; ++j)
                wmma::load_matrix_sync(b[j], &Bs[k][warp_column + j * FRAGMENT], TILE_COLUMNS + PAD_AB);
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
                for (int j = 0; j < FRAGMENTS_N; ++j)
                    wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; ++j)
            wmma::store_matrix_sync(&Cs[warp_row + i * FRAGMENT][warp_column + j * FRAGMENT], sum[i][j],
                                    TILE_COLUMNS + PAD_C, wmma::mem_row_major);
    __syncthreads();

#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y)
#pragma unroll
        for (int across = 0; across < TILE_COLUMNS; across += BLOCK_X) {
            const long long row = row0 + warp + step, column = column0 + lane + across;
            if (row < M && column < N)
                C[row * N + column] = Cs[warp + step][lane + across];
        }
}
