// matmul/vectors.cuh: four neighbors of a row of float32 (a vector), moved by one access of 16 bytes.
//
// WHOLE: all rows of the matrix consist of whole vectors, which begin at multiples of 16 bytes. Then a vector is inside
// the matrix or outside with all four elements, and one access moves it. If not WHOLE, four accesses move the elements
// that are inside.
// Source: NVIDIA, CUDA C++ Programming Guide, device memory accesses; NVIDIA, PTX ISA: st.

#pragma once

constexpr int VECTOR = 4;  // elements of a vector

// Whether a matrix is WHOLE, by where it begins and by its number of columns.
template <typename T>
__device__ bool whole_vectors(const T *matrix, long long columns) {
    return (unsigned long long)matrix % 16 == 0 && columns % VECTOR == 0;
}

// A vector of which the first `count` elements are inside the matrix; 0 for the others.
template <bool WHOLE>
__device__ float4 load(const float *from, long long count) {
    float4 v = make_float4(0, 0, 0, 0);
    if (WHOLE) {
        if (count > 0)
            v = *(const float4 *)from;
    } else {
        if (count > 0)
            v.x = from[0];
        if (count > 1)
            v.y = from[1];
        if (count > 2)
            v.z = from[2];
        if (count > 3)
            v.w = from[3];
    }
    return v;
}

// Store a vector. As inline PTX, since nvcc makes four stores of an assignment to *(float4 *)to if the address is a sum
// such as C + row * N + column0 + 4 * lane, without a constant.
//
// A vector leaves from four consecutive registers. If sums lay there while they are added up, many would be in the same
// register bank as both of their factors, which probably makes the multiply-add slower. So the elements are copied, by
// a multiplication of their bits by a 1 that the compiler does not know, blockDim.z. It would remove a plain copy.
__device__ void store_vector(float *to, float4 v) {
#ifdef KERNELWATCH_HOST
    *(float4 *)to = v;
#else
    asm volatile("{\n"
                 "    .reg .b32 one, x, y, z, w;\n"
                 "    mov.b32 one, %%ntid.z;\n"
                 "    mul.lo.u32 x, %1, one;\n"
                 "    mul.lo.u32 y, %2, one;\n"
                 "    mul.lo.u32 z, %3, one;\n"
                 "    mul.lo.u32 w, %4, one;\n"
                 "    st.global.v4.b32 [%0], {x, y, z, w};\n"
                 "}" ::"l"(to), "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)),
                 "r"(__float_as_uint(v.w))
                 : "memory");
#endif
}

// Store the first `count` elements of a vector.
template <bool WHOLE>
__device__ void store(float *to, float4 v, long long count) {
    if (WHOLE) {
        if (count > 0)
            store_vector(to, v);
    } else {
        if (count > 0)
            to[0] = v.x;
        if (count > 1)
            to[1] = v.y;
        if (count > 2)
            to[2] = v.z;
        if (count > 3)
            to[3] = v.w;
    }
}
