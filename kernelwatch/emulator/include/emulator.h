// CUDA C++ for g++: the declarations that a kernel's source relies on. It is included before the source; runtime.cpp
// implements it.
//
// KERNELWATCH_HOST is defined: a __device__ wrapper around inline PTX has its host body under #ifdef KERNELWATCH_HOST.
// The compiler reports each plain access in the source (-fsanitize=thread); the functions below report the accesses that
// they make for the source by `touched`.
#pragma once

#define KERNELWATCH_HOST 1

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector_functions.h>
#include <vector_types.h>

#undef __shared__
#undef __constant__
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#define __shared__ static  // one block runs at a time; `extern __shared__` is rewritten by the loader
#define __constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define EMULATOR_UNTRACED __attribute__((noinline, no_sanitize("thread", "bounds")))

namespace emulator {

enum Kind : int { READ, WRITE, ATOMIC };

// Properties of the running thread. They never change within one thread, so the compiler may call each function once.
__attribute__((const)) uint3 thread_index() noexcept;
__attribute__((const)) uint3 block_index() noexcept;
__attribute__((const)) uint3 block_extent() noexcept;
__attribute__((const)) uint3 grid_extent() noexcept;
__attribute__((const)) unsigned lane() noexcept;
__attribute__((const)) void *dynamic_shared() noexcept;

void block_barrier(int id, int line);  // id: the same for every compiled copy of one barrier in the source
void warp_barrier(unsigned mask);
// Every lane of `mask` contributes a value and receives all values. Returns the lanes of `mask` that have not returned.
unsigned gather(unsigned mask, uint64_t value, uint64_t all[32]);
unsigned active_lanes();

void touched(const void *address, unsigned size, int kind, void *site);
// The host body of cp.async.cg calls this before it copies 16 bytes from global to shared memory.
void copies_past_l1(const void *to, const void *from);

template <typename... P, std::size_t... I>
EMULATOR_UNTRACED void call(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<P> *>(arguments[I])...);
}
template <typename... P>
void call(void (*kernel)(P...), void **arguments) {
    call(kernel, arguments, std::index_sequence_for<P...>());
}

template <typename T, typename F>
EMULATOR_UNTRACED T atomic(T *address, F changed) {
    touched(address, sizeof(T), ATOMIC, __builtin_return_address(0));
    const T old = *address;
    *address = changed(old);
    return old;
}

template <typename T>
T shuffle(unsigned mask, T value, unsigned from) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes a lane");
    uint64_t bits = 0, all[32];
    std::memcpy(&bits, &value, sizeof(T));
    if (gather(mask, bits, all) >> from & 1)
        std::memcpy(&value, &all[from], sizeof(T));
    return value;
}

}  // namespace emulator

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_extent())
#define gridDim (emulator::grid_extent())
constexpr int warpSize = 32;

#define __syncthreads() emulator::block_barrier(__COUNTER__, __LINE__)
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emulator::warp_barrier(mask); }
inline unsigned __activemask() { return emulator::active_lanes(); }
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    uint64_t all[32];
    const unsigned there = emulator::gather(mask, predicate != 0, all);
    unsigned found = 0;
    for (int lane = 0; lane < 32; ++lane)
        found |= (there >> lane & 1) && all[lane] ? 1u << lane : 0;
    return found;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = uint64_t(y) << 32 | x;
    unsigned found = 0;
    for (int at = 0; at < 4; ++at)
        found |= unsigned(both >> 8 * (selector >> 4 * at & 7) & 0xFF) << 8 * at;
    return found;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// A lane that would read outside its segment of `width` lanes, or from a lane that has returned, keeps its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const unsigned lane = emulator::lane();
    return emulator::shuffle(mask, value, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = emulator::lane();
    return emulator::shuffle(mask, value, (lane & (width - 1)) + by < unsigned(width) ? lane + by : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const unsigned lane = emulator::lane();
    return emulator::shuffle(mask, value, (lane & (width - 1)) >= by ? lane - by : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    const unsigned lane = emulator::lane(), from = lane ^ with;
    return emulator::shuffle(mask, value, (from & ~(width - 1)) <= (lane & ~(width - 1)) ? from : lane);
}

template <typename T>
T atomicAdd(T *address, std::common_type_t<T> value) {
    return emulator::atomic(address, [=](T old) { return T(old + value); });
}
template <typename T>
T atomicMax(T *address, std::common_type_t<T> value) {
    return emulator::atomic(address, [=](T old) { return std::max(old, value); });
}
template <typename T>
T atomicMin(T *address, std::common_type_t<T> value) {
    return emulator::atomic(address, [=](T old) { return std::min(old, value); });
}

template <typename T>
inline T __ldg(const T *address) {
    return *address;
}

// A linear texture's handle is the address of its memory. A fetch past its end gives 0 on hardware; here it is a fault.
using cudaTextureObject_t = unsigned long long;
template <typename T>
inline T tex1Dfetch(cudaTextureObject_t texture, int at) {
    return reinterpret_cast<const T *>(texture)[at];
}

using std::max;
using std::min;
