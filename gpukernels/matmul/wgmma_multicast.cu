// matmul/wgmma_multicast: C[m][n] = sum over k of A[m][k] B[k][n], wgmma with clusters of blocks that share B.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C of Out, any
// M, N, K >= 1. Sums are float. The operands come as tensor maps, which wgmma.py makes. If rows of an operand do not
// begin at multiples of 16 bytes, wgmma.py copies it to one whose rows do; C after the kernel.
//
// A cluster is a group of CLUSTER blocks that run at the same time, on multiprocessors close to each other, and reach
// each other's shared memory. Its blocks have tiles of C one below the other, which need the same columns of B. Each
// block copies its own rows of A. Of B's tile it copies one part, which the copy engine (TMA) writes to the shared
// memory of all blocks of the cluster (multicast). So B's tile is read once for all of them.
// Each block fills stages of the others, too. So it must know that the consumers of all have done with a stage: their
// warps arrive at the `empty` barriers of all blocks. persistent.cuh has the loop.
// All blocks of a cluster have the same number of tiles. The lowest tile may lie below C: the copy engine then reads 0,
// and stores nothing.
// Source: NVIDIA, PTX ISA: cp.async.bulk.tensor with multicast, mapa; CUTLASS, clusters of thread blocks on Hopper.

#include "persistent.cuh"

struct Plan : Plain {
    static constexpr int BAND = 4, BLOCKS = CLUSTER;  // rows of a cluster's tiles; 2 and 8 were slower with 3 stages
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
