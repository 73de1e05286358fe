// matmul/tf32: C[m][n] = sum over k of A[m][k] B[n][k], wgmma_k_major on float32, which the tensor cores cut to TF32.
//
// A   M x K    B   N x K    C   M x N, overwritten    row major, of T (float), any M, N, K >= 1. The tensor cores take
// the first 19 bits of a number, of which 11 are its significant ones. The operands come as tensor maps, which wgmma.py
// makes, of a copy if rows are not 16-byte aligned.
//
// A row of 128 bytes has 32 numbers, and an instruction takes 8 along K. The tensor cores read 32-bit operands only
// with K along the rows of both.
// Source: NVIDIA, PTX ISA: wgmma (.tf32).

#define B_K_MAJOR 1
#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 16;
    static constexpr bool SERPENTINE = true, KEEP = true;
};

template <typename T, typename Out = T>
__global__ void __launch_bounds__(THREADS, 1)
    matmul_tf32(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
