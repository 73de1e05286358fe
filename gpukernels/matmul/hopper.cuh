// matmul/hopper.cuh: Hopper's own instructions (compute capability 9.0a): barriers in shared memory, the copy engine,
// warp group matrix instructions, registers that warps give away, launches that overlap.
//
// The copy engine (TMA, tensor memory accelerator) copies boxes of matrices between global and shared memory in the
// background: one thread asks for a box, and none computes an address or moves a number. A warp group is four
// neighboring warps, which multiply together. A barrier in shared memory is not __syncthreads(): a thread may arrive at
// it without waiting, or wait without arriving.
// Matrices in shared memory have rows of 128 bytes, whose 16-byte pieces are exchanged within 8 rows (128-byte
// swizzle). They begin at multiples of 1024 bytes. The emulator has no such instructions.
// Source: NVIDIA, PTX ISA: mbarrier, cp.async.bulk.tensor, wgmma, mapa, setmaxnreg, griddepcontrol, createpolicy.

#pragma once

#include "ampere.cuh"

// ---- barriers in shared memory

// A barrier goes through phases. A phase ends when so many threads have arrived, and the bytes that were expected have
// come; then the next one begins.
__device__ void init(u64 *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals));
}

// Let the copy engine and the blocks of the cluster see barriers that this thread has made.
__device__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Arrive at the barrier of block `rank` of the cluster that lies there where `barrier` lies here. Without
// .release.cluster, which would wait for all memory accesses of this thread. None has to be: the copy engine wrote the
// stage and the tensor cores have read it.
__device__ void arrive(u64 *barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(address(barrier)), "r"(rank)
        : "memory");
}

// Arrive, and let this phase end only when so many bytes have come, too.
__device__ void expect(u64 *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes)
                 : "memory");
}

// Wait until the phase of this parity has ended: 0 for the first phase, 1 for the second, 0 for the third, and so on.
// At a new barrier 1 does not wait, as if a phase before the first had ended.
__device__ void wait(u64 *barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(address(barrier)), "r"(parity)
        : "memory");
}

// All threads of the cluster's blocks wait for each other, and then see each other's barriers.
__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Store 16 bytes to where `to` lies in block `rank` of the cluster. They come to the barrier that lies there where
// `barrier` lies here; this thread does not wait.
__device__ void send(const float4 *to, u64 *barrier, int rank, float4 values) {
    asm volatile(
        "{\n.reg .b32 there, signal;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 signal, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [signal];\n}" ::"r"(
            address(to)),
        "r"(address(barrier)), "r"(rank), "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w)
        : "memory");
}

// As wait, for what blocks of the cluster have sent.
__device__ void wait_for_sent(u64 *barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(address(barrier)), "r"(parity)
        : "memory");
}

// THREADS threads of the block, whole warps, wait for each other: a __syncthreads() of a part of the block. `id`: which
// of 15 such barriers, 1 to 15.
template <int THREADS>
__device__ void meet(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// ---- the copy engine (TMA)

// A tensor map: address, shape and pitch of a matrix in global memory, and the box that a copy takes, as
// gpukernels/prepare.py describes them. What a box has outside of the matrix is read as 0, and not stored.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ void prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Policies: what the L2 cache evicts first, or last, of all that copies read.
__device__ u64 evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ u64 evict_normal() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ u64 evict_last() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Copy a box of a matrix, from `column` and `row` on, to shared memory. `barrier` counts the bytes as they come.
__device__ void load_2d(void *to, const TensorMap *map, u64 *barrier, int column, int row, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(address(to)), "l"(map), "r"(address(barrier)), "r"(column), "r"(row),
        "l"(policy)
        : "memory");
}

// The same for all blocks of a cluster of BLOCKS: the box goes to where `to` lies in each of them, and the barrier that
// lies there where `barrier` lies here counts its bytes.
template <int BLOCKS>
__device__ void multicast_2d(void *to, const TensorMap *map, u64 *barrier, int column, int row, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(address(to)), "l"(map), "r"(address(barrier)),
        "r"(column), "r"(row), "h"((unsigned short)((1 << BLOCKS) - 1)), "l"(policy)
        : "memory");
}

// Copy a box of each of the matrices that lie one behind the other, to an address in shared memory.
__device__ void load_3d(u32 to, const TensorMap *map, u64 *barrier, int column, int row, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(address(barrier)), "r"(column), "r"(row), "r"(0),
        "l"(policy)
        : "memory");
}

// Copy contiguous bytes, a multiple of 16 that begin at one.
__device__ void load_1d(void *to, const void *from, int bytes, u64 *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(barrier))
        : "memory");
}

// Copy a box from shared memory to a matrix. What this thread has stored is a group.
__device__ void store_2d(const TensorMap *map, const void *from, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(address(from)), "r"(column), "r"(row)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Let the copy engine and the tensor cores see what this thread has written to shared memory.
__device__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Wait until at most PENDING groups of this thread's stores have not read all of shared memory yet.
template <int PENDING>
__device__ void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

__device__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- warp group matrix instructions (wgmma)

// The descriptor by which wgmma reads a matrix in shared memory. `leading`: bytes from one group of columns, 128 bytes
// wide, to the next, if there are several; `stride`: from one group of 8 rows to the next. Bit 62: 128-byte swizzle.
__device__ u64 descriptor(u32 address, u32 leading, u32 stride) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// The compiler must not move accesses of the sums past this: the tensor cores write them in the background.
template <int SUMS>
__device__ void settle(float (&d)[SUMS]) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}

// Before the first wgmma, and after other instructions have written registers of the sums.
__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The wgmma instructions since the last call are a group.
__device__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most PENDING groups have not ended.
template <int PENDING>
__device__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The sums of an instruction, 32, 64, 96 or 128 a thread: their places in its text, and as operands of asm, from d[i] on.
#define REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_96 \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_128 \
    REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)
#define SUMS_96(i) SUMS_64(i), SUMS_32(i + 64)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 64)

// Two numbers, rounded to 16 bits, in one register.
__device__ u32 bfloat16_pair(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ u32 half_pair(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Store four matrices of 8 x 8 16-bit numbers to shared memory; lane i has the address of row i % 8 of matrix i / 8.
__device__ void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// ---- registers and launches

// All warps of a warp group call these. keep: each thread keeps REGISTERS, and gives the others back to the block.
// take: it waits until the block has enough of them, and then has REGISTERS.
template <int REGISTERS>
__device__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// The next launch on the stream may begin, if it was launched to overlap this one (programmatic dependent launch).
__device__ void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

// Wait until the launch before has ended: its stores are seen from here on.
__device__ void wait_for_last_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
