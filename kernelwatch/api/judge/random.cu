// Random numbers by their place alone, so that the judge can make those of one set of buffers again. The generator is
// counter based and keyed: whoever sees numbers, but not the key, does not get the others from them in passing, as one
// would from a hash of the index.
//
// Philox4x32-10. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

__device__ uint4 philox(uint4 counter, unsigned key0, unsigned key1) {
    for (int round = 0; round < 10; ++round) {
        const unsigned long long a = 0xD2511F53ull * counter.x, b = 0xCD9E8D57ull * counter.z;
        counter = make_uint4((unsigned)(b >> 32) ^ counter.y ^ key0, (unsigned)b,
                             (unsigned)(a >> 32) ^ counter.w ^ key1, (unsigned)a);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// out[2 i] and out[2 i + 1] are the 128 bits of counter `first` + i of a stream.
extern "C" __global__ void words(unsigned long long *out, long long pairs, unsigned long long key,
                                 unsigned long long stream, unsigned long long first) {
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < pairs;
         i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long at = first + i;
        const uint4 bits = philox(make_uint4((unsigned)at, (unsigned)(at >> 32), (unsigned)stream,
                                             (unsigned)(stream >> 32)), (unsigned)key, (unsigned)(key >> 32));
        out[2 * i] = (unsigned long long)bits.y << 32 | bits.x;
        out[2 * i + 1] = (unsigned long long)bits.w << 32 | bits.z;
    }
}
