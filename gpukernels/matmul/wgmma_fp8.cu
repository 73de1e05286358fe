// matmul/wgmma_fp8: C[m][n] = sum over k of A[m][k] B[n][k], wgmma_k_major on numbers of 8 bits.
//
// A   M x K    B   N x K    C   M x N, overwritten    row major, A and B of T (__nv_fp8_e4m3), C of Out, any
// M, N, K >= 1. The operands come as tensor maps (wgmma.py), of a copy if rows are not 16-byte aligned.
//
// A row of 128 bytes has 128 numbers, and an instruction takes 32 along K: twice the products for the bytes. The tensor
// cores keep 14 bits of a sum. They read 8-bit operands only with K along the rows of both.
// Source: NVIDIA, PTX ISA: wgmma (.e4m3); DeepSeek-AI, DeepSeek-V3, 2024 (accumulation in 14 bits).

#define B_K_MAJOR 1
#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 16;
    static constexpr bool SERPENTINE = true, KEEP = true;
};

template <typename T, typename Out = T>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma_fp8(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                    const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
