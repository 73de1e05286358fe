// matmul/vectors.cuh: four neighbors of a row of float32, moved as 16 bytes at once.
//
// WHOLE: whether a row can only be inside or outside of a matrix with all four, and they begin at a multiple of 16
// bytes. If not, each of the four is looked at alone.
// Source: NVIDIA, CUDA C++ Programming Guide, device memory accesses.

#pragma once

constexpr int VECTOR = 4;  // elements of 16 bytes

// Whether rows of so many elements, of a matrix that begins there, consist of whole vectors.
template <typename T>
__device__ bool whole_vectors(const T *matrix, long long columns) {
    return (unsigned long long)matrix % 16 == 0 && columns % VECTOR == 0;
}

// Four neighbors, of which `there` exist; 0 for the others.
template <bool WHOLE>
__device__ float4 load(const float *from, long long there) {
    float4 v = make_float4(0, 0, 0, 0);
    if (WHOLE) {
        if (there > 0)
            v = *(const float4 *)from;
    } else {
        if (there > 0)
            v.x = from[0];
        if (there > 1)
            v.y = from[1];
        if (there > 2)
            v.z = from[2];
        if (there > 3)
            v.w = from[3];
    }
    return v;
}

template <bool WHOLE>
__device__ void store(float *to, float4 v, long long there) {
    if (WHOLE) {
        if (there > 0)
            *(float4 *)to = v;
    } else {
        if (there > 0)
            to[0] = v.x;
        if (there > 1)
            to[1] = v.y;
        if (there > 2)
            to[2] = v.z;
        if (there > 3)
            to[3] = v.w;
    }
}
