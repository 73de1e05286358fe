// The roofs: each kernel repeats one instruction on operands in registers or shared memory, and nothing else in its loop.
//
// An operand is random, in [-1, 1) or any 8-bit integer, since multiplying zeros takes so little power that the clock is
// higher than in any product of real numbers. Every kernel writes what it computed, so that no instruction is left out,
// and the host sees that it is neither zero nor NaN. `rounds`: of the loop. ceilings.py knows how many operations a round
// has, and a test counts the instructions in the machine code.
// Source: NVIDIA, PTX ISA: mma.sync, wgmma.mma_async.

typedef unsigned int u32;
typedef unsigned long long u64;

// A hash of 32 bits (lowbias32).
__device__ u32 bits(u32 x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

__device__ float value(u32 i) { return (int)bits(i) * (1.0f / 2147483648.0f); }

// Four bytes of operands: one TF32, two FP16 or BF16, four FP8 (e4m3) or INT8.
struct Tf32 {
    static __device__ u32 word(u32 i) { return __float_as_uint(value(i)); }
};
#if __CUDA_ARCH__ >= 800
struct Fp16 {
    static __device__ u32 word(u32 i) {
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(value(2 * i)), "f"(value(2 * i + 1)));
        return both;
    }
};
struct Bf16 {
    static __device__ u32 word(u32 i) {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(value(2 * i)), "f"(value(2 * i + 1)));
        return both;
    }
};
#endif
struct Fp8 {
    static __device__ u32 byte(float x) {  // cut to the 3 bits after the leading one, or to multiples of 2^-9
        const u32 all = __float_as_uint(x), sign = all >> 24 & 0x80;
        const float size = fabsf(x);
        return sign | (size < 0.015625f ? (u32)(size * 512) : (all >> 20 & 0x7FF) - (120 << 3));
    }
    static __device__ u32 word(u32 i) {
        return byte(value(4 * i)) | byte(value(4 * i + 1)) << 8 | byte(value(4 * i + 2)) << 16 |
               byte(value(4 * i + 3)) << 24;
    }
};
struct Int8 {
    static __device__ u32 word(u32 i) { return bits(i); }
};

// --- multiply-adds of the ordinary units --------------------------------------------------------------------------

// Each pair of numbers turns on an ellipse: all is multiply-adds, and no number settles or grows.
template <typename T>
__device__ void turn(T *out, int rounds) {
    constexpr int PAIRS = 8, STEPS = 4;
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    T x[PAIRS], y[PAIRS], sum = 0;
    const T e = T(0.25) + T(0.5) * (T)fabsf(value(thread));
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        x[i] = (T)value(2 * PAIRS * thread + 2 * i);
        y[i] = (T)value(2 * PAIRS * thread + 2 * i + 1);
    }
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int i = 0; i < PAIRS; ++i)
                x[i] = fma(-e, y[i], x[i]);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i)
                y[i] = fma(e, x[i], y[i]);
        }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i)
        sum += x[i] * y[i];
    out[thread] = sum;
}
extern "C" __global__ void __launch_bounds__(256, 8) ceiling_fp32(float *out, int rounds) { turn(out, rounds); }
extern "C" __global__ void __launch_bounds__(256, 4) ceiling_fp64(double *out, int rounds) { turn(out, rounds); }

// --- tensor cores: the instructions of a warp ---------------------------------------------------------------------

#if __CUDA_ARCH__ >= 800
// d += A B of a warp's fragments, eight sums of two fragments of A and four of B in turn.
constexpr int ROWS = 2, COLUMNS = 4;

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
constexpr int A_64 = 8, B_64 = 4, C_64 = 4;
__device__ void multiply(double (&d)[C_64], const double (&a)[A_64], const double (&b)[B_64]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
}
#else
constexpr int A_64 = 1, B_64 = 1, C_64 = 2;
__device__ void multiply(double (&d)[C_64], const double (&a)[A_64], const double (&b)[B_64]) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a[0]), "d"(b[0]));
}
#endif

extern "C" __global__ void __launch_bounds__(256, 1) ceiling_fp64_tensor(double *out, int rounds) {
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    double a[ROWS][A_64], b[COLUMNS][B_64], d[ROWS][COLUMNS][C_64] = {}, sum = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int e = 0; e < A_64; ++e)
            a[i][e] = value(64 * thread + A_64 * i + e);
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < B_64; ++e)
            b[j][e] = value(64 * thread + 32 + B_64 * j + e);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                multiply(d[i][j], a[i], b[j]);
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS * C_64; ++i)
        sum += (&d[0][0][0])[i];
    out[thread] = sum;
}

#ifndef __CUDA_ARCH_FEAT_SM90_ALL  // Hopper's tensor cores reach only part of their rate by these
#define MULTIPLY(T, D, constraint, shape)                                                                             \
    __device__ void multiply(T, D(&d)[4], const u32(&a)[4], const u32(&b)[2]) {                                       \
        asm volatile("mma.sync.aligned." shape                                                                        \
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                               \
                     : constraint(d[0]), constraint(d[1]), constraint(d[2]), constraint(d[3])                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                             \
    }
MULTIPLY(Tf32, float, "+f", "m16n8k8.row.col.f32.tf32.tf32.f32")
MULTIPLY(Fp16, float, "+f", "m16n8k16.row.col.f32.f16.f16.f32")
MULTIPLY(Bf16, float, "+f", "m16n8k16.row.col.f32.bf16.bf16.f32")
#if __CUDA_ARCH__ >= 890 && __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200  // others convert to 16 bits
#define HAS_FP8
MULTIPLY(Fp8, float, "+f", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif
MULTIPLY(Int8, int, "+r", "m16n8k32.row.col.s32.s8.s8.s32")

template <typename T, typename D>
__device__ void products(D *out, int rounds) {
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    u32 a[ROWS][4], b[COLUMNS][2];
    D d[ROWS][COLUMNS][4] = {}, sum = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            a[i][e] = T::word(16 * thread + 4 * i + e);
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            b[j][e] = T::word(16 * thread + 8 + 2 * j + e);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                multiply(T(), d[i][j], a[i], b[j]);
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            for (int e = 0; e < 4; ++e)
                sum += d[i][j][e];
    out[thread] = sum;
}
#define PRODUCTS(name, T, D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 2) name(D *out, int rounds) { products<T>(out, rounds); }
PRODUCTS(ceiling_tf32, Tf32, float)
PRODUCTS(ceiling_fp16, Fp16, float)
PRODUCTS(ceiling_bf16, Bf16, float)
#ifdef HAS_FP8
PRODUCTS(ceiling_fp8, Fp8, float)
#endif
PRODUCTS(ceiling_int8, Int8, int)
#endif
#endif

// --- Hopper: the instructions of a warp group, which read A and B from shared memory --------------------------------

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int GROUP = 128, GROUPS = 2, STAGES = 2;        // threads, groups of a block, tiles of A and of B
constexpr int ROW_BYTES = 128, STEP_BYTES = 32;           // of a row in shared memory, of which an instruction takes 32
constexpr int A_BYTES = 64 * ROW_BYTES, B_BYTES = 256 * ROW_BYTES;

// A matrix in shared memory, K-major, with the 128-byte swizzle: 1024 bytes from 8 rows to the next.
__device__ u64 descriptor(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | (u64)(8 * ROW_BYTES >> 4) << 32 | 1ull << 62;
}

#define REGISTERS_32                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                          \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64                                                                                                  \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                 \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128                                                                                                 \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                 \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                   \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "       \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_64(c, i) SUMS_16(c, i), SUMS_16(c, i + 16), SUMS_16(c, i + 32), SUMS_16(c, i + 48)
// 64 x 256 sums: d += A B. `more`: the signs of A and B, and for 16 bits that both are K-major.
#define MULTIPLY(T, D, constraint, shape, more)                                                                       \
    __device__ void multiply(T, D(&d)[128], u64 a, u64 b) {                                                           \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned." shape                \
                     " {" REGISTERS_128 "}, %128, %129, add" more ";\n}"                                              \
                     : SUMS_64(constraint, 0), SUMS_64(constraint, 64)                                                \
                     : "l"(a), "l"(b));                                                                               \
    }
MULTIPLY(Tf32, float, "+f", "m64n256k8.f32.tf32.tf32", ", 1, 1")
MULTIPLY(Fp16, float, "+f", "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0")
MULTIPLY(Bf16, float, "+f", "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0")
MULTIPLY(Fp8, float, "+f", "m64n256k32.f32.e4m3.e4m3", ", 1, 1")
MULTIPLY(Int8, int, "+r", "m64n256k32.s32.s8.s8", "")

// The compiler must not move accesses of the sums over this: the tensor cores write them in the background.
__device__ void settle(float &sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ void settle(int &sum) { asm volatile("" : "+r"(sum)::"memory"); }

template <typename T, typename D>
__device__ void products(D *out, int rounds) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int WORDS = STAGES * (GROUPS * A_BYTES + B_BYTES) / 4;
    for (int i = threadIdx.x; i < WORDS; i += GROUPS * GROUP)
        ((u32 *)shared)[i] = T::word(blockIdx.x * WORDS + i);
    D d[128], sum = 0;
#pragma unroll
    for (int i = 0; i < 128; ++i)
        d[i] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const u32 start = (u32)__cvta_generic_to_shared(shared);
    const u32 a = start + __shfl_sync(0xFFFFFFFF, threadIdx.x / GROUP, 0) * A_BYTES;
    const u32 b = start + STAGES * GROUPS * A_BYTES;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage)
#pragma unroll
            for (int byte = 0; byte < ROW_BYTES; byte += STEP_BYTES)
                multiply(T(), d, descriptor(a + stage * GROUPS * A_BYTES + byte), descriptor(b + stage * B_BYTES + byte));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) {
        settle(d[i]);
        sum += d[i];
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
#define PRODUCTS(name, T, D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(GROUPS * GROUP, 1) name(D *out, int rounds) {                        \
        products<T>(out, rounds);                                                                                     \
    }
PRODUCTS(ceiling_tf32, Tf32, float)
PRODUCTS(ceiling_fp16, Fp16, float)
PRODUCTS(ceiling_bf16, Bf16, float)
PRODUCTS(ceiling_fp8, Fp8, float)
PRODUCTS(ceiling_int8, Int8, int)
#endif

// --- copies ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void fill_random(u32 *out, long long words) {
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (long long)gridDim.x * blockDim.x)
        out[i] = bits((u32)i);
}

// From and to the L2 cache: each thread copies the same four vectors of 16 bytes again and again, past the L1 cache.
extern "C" __global__ void __launch_bounds__(256) ceiling_l2(uint4 *in, uint4 *out, int rounds) {
    constexpr int VECTORS = 4;
    const uint4 *const from = in + (long long)blockIdx.x * 256 * VECTORS + threadIdx.x;
    uint4 *const to = out + (long long)blockIdx.x * 256 * VECTORS + threadIdx.x;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        uint4 held[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(held[i].x), "=r"(held[i].y), "=r"(held[i].z), "=r"(held[i].w)
                         : "l"(from + 256 * i));
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
            asm volatile("st.global.cg.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + 256 * i), "r"(held[i].x),
                         "r"(held[i].y), "r"(held[i].z), "r"(held[i].w)
                         : "memory");
    }
}

// From and to memory: one vector of 16 bytes a thread.
extern "C" __global__ void __launch_bounds__(256) ceiling_memory(uint4 *in, uint4 *out) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    out[i] = in[i];
}
