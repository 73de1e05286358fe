// matmul/wgmma_fp8_promoted: C[m][n] = sum over k of A[m][k] B[n][k], wgmma_fp8 with sums that are added in float.
//
// A   M x K    B   N x K    C   M x N, overwritten    row major, A and B of T (__nv_fp8_e4m3), C of Out, any
// M, N, K >= 1. The operands come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// The tensor cores, which keep 14 bits of a sum, sum no more than a stage, 128 along K. The sum of the stages is in
// registers, in all bits of float (promotion). A thread then has two sets of sums, for which the registers suffice with
// half the tile. While a consumer adds, the products of the other run.
// Source: DeepSeek-AI, DeepSeek-V3, 2024; NVIDIA, CUTLASS, FP8 accumulation on Hopper.

#define B_K_MAJOR 1
#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 16;
    static constexpr bool SERPENTINE = true, KEEP = true, PROMOTE = true;
};

template <typename T, typename Out = T>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma_fp8_promoted(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                             const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
