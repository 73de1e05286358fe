// The harness's own kernels. They never change: a change here is a new version of the harness and of every series.

// Values in [-1, 1) computed from the index alone (a 64-bit finalizer), so that no run depends on a generator's state.
__device__ float value(long long i, unsigned long long seed) {
    unsigned long long x = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (float)((x ^ (x >> 31)) >> 40) * (1.0f / 8388608.0f) - 1.0f;
}

// Multiples of 2^-bits in [-1, 1), whose products have exact sums.
__device__ float short_value(long long i, unsigned long long seed, int bits) {
    const int scaled = (int)floorf(ldexpf(value(i, seed), bits));
    return ldexpf((float)scaled, -bits);
}

// Fill kernels by type, since the operands of an arithmetic op are numbers in its own format. The types of 16 and 8 bits
// are written as bits, since this file includes no header: float16 rounded by the GPU, bfloat16 cut to the upper half,
// float8 (e4m3) cut to its 3 bits after the leading one, or to multiples of 2^-9.
#define FILL(name, T, converted)                                                                                       \
    extern "C" __global__ void name##_short(T *out, long long n, unsigned long long seed, int bits) {                  \
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;                                    \
             i += (long long)gridDim.x * blockDim.x)                                                                   \
            out[i] = converted(short_value(i, seed, bits));                                                            \
    }                                                                                                                  \
    extern "C" __global__ void name(T *out, long long n, unsigned long long seed) {                                    \
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;                                    \
             i += (long long)gridDim.x * blockDim.x)                                                                   \
            out[i] = converted(value(i, seed));                                                                        \
    }
__device__ unsigned short as_float16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ unsigned short as_bfloat16(float x) { return __float_as_uint(x) >> 16; }
__device__ unsigned char as_float8(float x) {
    const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
    const float size = fabsf(x);
    return sign | (size < 0.015625f ? (unsigned)(size * 512) : (bits >> 20 & 0x7FF) - (120 << 3));
}
FILL(fill, float, float)
FILL(fill_float64, double, double)
FILL(fill_float16, unsigned short, as_float16)
FILL(fill_bfloat16, unsigned short, as_bfloat16)
FILL(fill_float8, unsigned char, as_float8)

// The copy with which other rungs are compared: 16 bytes per access, four accesses in flight per thread, contiguous
// memory for each warp. Both pointers are multiples of 16; `bytes` need not be.
extern "C" __global__ void __launch_bounds__(256) vector_copy(const uint4 *in, uint4 *out, long long bytes) {
    const long long whole = bytes / 16, first = (long long)blockIdx.x * 1024 + threadIdx.x;
    uint4 held[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + 256 * i < whole)
            held[i] = in[first + 256 * i];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + 256 * i < whole)
            out[first + 256 * i] = held[i];
    if (blockIdx.x == 0 && threadIdx.x < bytes % 16)
        ((unsigned char *)(out + whole))[threadIdx.x] = ((const unsigned char *)(in + whole))[threadIdx.x];
}

// Canary for the arithmetic: four chains of dependent FMAs per thread, almost no memory traffic.
extern "C" __global__ void __launch_bounds__(256) canary_compute(float *out, int rounds) {
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < rounds; ++i) {
        a = fmaf(a, 0.999f, 0.5f);
        b = fmaf(b, 0.998f, 0.5f);
        c = fmaf(c, 0.997f, 0.5f);
        d = fmaf(d, 0.996f, 0.5f);
    }
    if (a + b + c + d == 12345.678f)  // never: keeps the chains alive
        out[0] = a;
}

// The same for float64, as a ceiling: the highest rate of multiply-adds on this GPU.
extern "C" __global__ void __launch_bounds__(256) peak_float64(double *out, int rounds) {
    double a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < rounds; ++i) {
        a = fma(a, 0.999, 0.5);
        b = fma(b, 0.998, 0.5);
        c = fma(c, 0.997, 0.5);
        d = fma(d, 0.996, 0.5);
    }
    if (a + b + c + d == 12345.678)
        out[0] = a;
}

// This SM's cycle counter, the GPU's clock in nanoseconds, and the number of the SM.
extern "C" __global__ void stamp(long long *out) {
    unsigned long long nanoseconds;
    unsigned sm;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    out[0] = clock64();
    out[1] = nanoseconds;
    out[2] = sm;
}
