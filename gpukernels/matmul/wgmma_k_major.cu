// matmul/wgmma_k_major: C[m][n] = sum over k of A[m][k] B[n][k], wgmma on a transposed B.
//
// A   M x K    B   N x K    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C of Out, any
// M, N, K >= 1. Sums are float. The operands come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// K goes along the rows of both operands, as in the weights of a layer. B's tile then has TILE_COLUMNS rows of 128
// bytes, which one copy brings, and the descriptors of the tensor cores say so.
// Source: NVIDIA, PTX ISA: wgmma, shared memory layouts.

#define B_K_MAJOR 1
#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 16;
    static constexpr bool SERPENTINE = true, KEEP = true;
};

template <typename T, typename Out = T>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma_k_major(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                        const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
