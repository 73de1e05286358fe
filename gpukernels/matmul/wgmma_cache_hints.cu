// matmul/wgmma_cache_hints: C[m][n] = sum over k of A[m][k] B[k][n], wgmma_persistent with hints for the L2 cache.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sums
// of Out (float), any M, N, K >= 1. All come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// Blocks at work at one time have the same rows of A, and all columns of B pass by. The copy engine is told to evict
// what it reads of A last, and of B first, so that the rows of A stay in the cache.
// Source: NVIDIA, PTX ISA: createpolicy, cache eviction priorities.

#include "persistent.cuh"

struct Plan : Plain {
    static constexpr bool KEEP = true;
};

template <typename T, typename Out = T>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma_cache_hints(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                            const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
