// matmul/pipelined: C[m][n] = sum over k of A[m][k] B[k][n], serpentine with fragments that are read one k ahead.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A, B, C and the sum of T (float), any M, N, K >= 1
//
// A fragment is what a thread needs of A or B for one k: TM or TN elements. In serpentine a thread reads its fragments
// of a k from shared memory, waits for them, and multiplies. Here it has two sets of them in registers. It reads those
// of the next k before it multiplies those of this k, and at the end of a stage it reads the first ones of the next
// stage. So no multiply-add needs what was read just before it. pipeline.cuh has the loop.
// Source: NVIDIA, CUTLASS, efficient GEMM in CUDA (software pipelining of fragments).

#include "pipeline.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS)
    matmul_pipelined(const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long M, long long N,
                     long long K) {
    extern __shared__ __align__(16) unsigned char shared[];
    // gridDim.y is at most 65,535, so tile rows continue in z.
    const long long row0 = (blockIdx.y + (long long)gridDim.y * blockIdx.z) * TILE_ROWS;
    const long long column0 = (long long)blockIdx.x * TILE_COLUMNS;
    if (whole_vectors(B, N) && whole_vectors(C, N))
        compute<true>((T *)shared, A, B, C, M, N, K, row0, column0);
    else
        compute<false>((T *)shared, A, B, C, M, N, K, row0, column0);
}
