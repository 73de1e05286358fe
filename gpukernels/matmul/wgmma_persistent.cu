// matmul/wgmma_persistent: C[m][n] = sum over k of A[m][k] B[k][n], wgmma_specialized with blocks that stay.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sums
// of Out (float), any M, N, K >= 1. All come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// A block goes on with the next tile of C as soon as it has one. Its producer does not wait for the consumers' results:
// the copies for a tile run under the last products of the tile before it, and the copy engine stores results under the
// next products. The grid (wgmma.py) has as few blocks as finish in the same number of waves, so that all have equal
// work. If each block has one tile, launches overlap: a block makes its barriers while the launch before still runs.
// Source: NVIDIA, CUTLASS, warp-specialized persistent kernels for Hopper.

#include "persistent.cuh"

template <typename T, typename Out = T>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma_persistent(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                           const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plain, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
