// matmul/wgmma_multicast: C[m][n] = sum over k of A[m][k] B[k][n], wgmma with clusters of blocks that share B.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C of Out, any
// M, N, K >= 1. Sums are float. The operands come as tensor maps (wgmma.py): rows begin at multiples of 16 bytes.
//
// The blocks of a cluster have tiles one below the other, which need the same columns of B. Each block copies its part
// of B's tile into all of them (multicast), when the consumers of all have done with the stage: they arrive at the
// barriers of all blocks. All have the same number of tiles; the last ones may lie below C. A band has BAND rows of
// tiles of a cluster.
// Source: NVIDIA, PTX ISA: cp.async.bulk.tensor with multicast, mapa; CUTLASS, clusters of thread blocks on Hopper.

#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 4, BLOCKS = CLUSTER;
    static constexpr bool SERPENTINE = true, KEEP = true;
};

template <typename T, typename Out = T>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    matmul_wgmma_multicast(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                          const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    run<Plan, T, Out>(shared, full, empty, map_a, map_b, map_c, M, N, K);
}
