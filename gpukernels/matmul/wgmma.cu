// matmul/wgmma: C[m][n] = sum over k of A[m][k] B[k][n], wgmma_cache_hints with tiles in bands, K back and forth.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C of Out, any
// M, N, K >= 1. Sums are float. The operands come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// Blocks at work at one time have tiles in BAND rows of tiles, and share rows of A as well as columns of B in the L2
// cache. A block goes through every second tile from the end of K: what was read last for a tile is read first for
// the next. Results may also be of 16 bits.
// Source: NVIDIA, CUTLASS, warp-specialized persistent kernels for Hopper (tile scheduler).

#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 16;
    static constexpr bool SERPENTINE = true, KEEP = true;
};

template <typename T, typename Out = T>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
