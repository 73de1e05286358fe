// matmul/ampere.cuh: asynchronous copies to shared memory, from compute capability 8.0 on (cp.async).
//
// The copies of a thread since its last commit_copies() are a group; groups are complete in the order of their commits.
// Under KERNELWATCH_HOST, on the emulator, a copy is complete at once.
// Source: NVIDIA, PTX ISA: cp.async.

#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// The address in shared memory that a pointer points to, as the instructions below take it.
__device__ u32 address(const void *p) {
#ifdef KERNELWATCH_HOST
    return 0;
#else
    return (u32)__cvta_generic_to_shared(p);
#endif
}

// Copy COUNT elements to shared memory in the background, or zeros if they are not `there`. Copies of 16 bytes go past
// the L1 cache (cg), which smaller ones cannot (ca).
template <int COUNT, typename T>
__device__ void copy_async(T *to, const T *from, bool there) {
#ifdef KERNELWATCH_HOST
    struct alignas(COUNT * sizeof(T)) Copy {
        T values[COUNT];
    };
    if (sizeof(Copy) == 16 && there)
        emulator::copies_past_l1(to, from);
    *(Copy *)to = there ? *(const Copy *)from : Copy();
#else
    if constexpr (COUNT * sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from), "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address(to)), "l"(from),
                     "n"(COUNT * sizeof(T)), "r"(there ? int(COUNT * sizeof(T)) : 0)
                     : "memory");
#endif
}

__device__ void commit_copies() {
#ifndef KERNELWATCH_HOST
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most PENDING groups of this thread's copies are still on their way.
template <int PENDING>
__device__ void wait_for_copies() {
#ifndef KERNELWATCH_HOST
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
