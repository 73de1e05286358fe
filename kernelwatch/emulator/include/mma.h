// Tensor cores for g++: of nvcuda::wmma the fragments of 16 x 16 x 16 elements that a rung uses.
//
// A lane holds 8 elements of a fragment. Those of an operand are half a row (16 bytes, what ldmatrix reads a lane),
// those of an accumulator four pairs of neighbors (what mma.m16n8k16 leaves to a lane): accesses are counted so.
// Products are summed in float one after the other, k upwards.
#pragma once

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "the stand-in has fragments of 16 x 16 x 16");
    static constexpr int num_elements = 8;
    static constexpr bool sums = std::is_same_v<Use, accumulator>;
    T x[num_elements];

    // Where element i of a lane lies in the 16 x 16 matrix.
    static int row(unsigned lane, int i) { return sums ? lane / 4 + 8 * (i / 2 % 2) : lane % 16; }
    static int column(unsigned lane, int i) { return sums ? lane % 4 * 2 + i % 2 + 8 * (i / 4) : lane / 16 * 8 + i; }
};

constexpr unsigned WARP = 0xFFFFFFFFu;

template <typename F, typename T>
EMULATOR_UNTRACED void fill_fragment(F &to, T value) {
    for (auto &element : to.x)
        element = value;
}

template <typename Use, typename T, typename Layout>
EMULATOR_UNTRACED void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &to, const T *from, unsigned pitch) {
    using F = fragment<Use, 16, 16, 16, T, Layout>;
    static_assert(!F::sums, "an accumulator is loaded with its layout");
    constexpr bool rows = std::is_same_v<Layout, row_major>;
    emulator::warp_barrier(WARP);
    const unsigned lane = emulator::lane();
    const auto at = [=](int i) { const int row = F::row(lane, i), column = F::column(lane, i);
                                 return from + (rows ? row * pitch + column : column * pitch + row); };
    for (int i = 0; i < F::num_elements; ++i) {
        if (rows ? i == 0 : true)
            emulator::touched(at(i), (rows ? F::num_elements : 1) * sizeof(T), emulator::READ,
                              __builtin_return_address(0));
        to.x[i] = *at(i);
    }
}

template <typename T>
EMULATOR_UNTRACED void store_matrix_sync(T *to, const fragment<accumulator, 16, 16, 16, T> &from, unsigned pitch,
                                         layout_t layout) {
    using F = fragment<accumulator, 16, 16, 16, T>;
    const bool rows = layout == mem_row_major;
    emulator::warp_barrier(WARP);
    const unsigned lane = emulator::lane();
    for (int i = 0; i < F::num_elements; ++i) {
        const int row = F::row(lane, i), column = F::column(lane, i);
        T *at = to + (rows ? row * pitch + column : column * pitch + row);
        if (!rows || i % 2 == 0)
            emulator::touched(at, (rows ? 2 : 1) * sizeof(T), emulator::WRITE, __builtin_return_address(0));
        *at = from.x[i];
    }
}

template <typename T, typename Sum, typename LA, typename LB>
EMULATOR_UNTRACED void mma_sync(fragment<accumulator, 16, 16, 16, Sum> &d,
                                const fragment<matrix_a, 16, 16, 16, T, LA> &a,
                                const fragment<matrix_b, 16, 16, 16, T, LB> &b,
                                const fragment<accumulator, 16, 16, 16, Sum> &c) {
    const unsigned lane = emulator::lane();
    Sum own_a[a.num_elements], own_b[b.num_elements];  // converted once, for all lanes
    for (int i = 0; i < a.num_elements; ++i)
        own_a[i] = Sum(a.x[i]), own_b[i] = Sum(b.x[i]);
    uint64_t as[32], bs[32];  // every lane's part lies on its own stack
    emulator::gather(WARP, reinterpret_cast<uint64_t>(own_a), as);
    emulator::gather(WARP, reinterpret_cast<uint64_t>(own_b), bs);
    for (int i = 0; i < d.num_elements; ++i) {
        const int row = d.row(lane, i), column = d.column(lane, i);
        Sum sum = c.x[i];
        for (int k = 0; k < 16; ++k)
            sum += reinterpret_cast<const Sum *>(as[row + k / 8 * 16])[k % 8] *  // no function: calls are traced
                   reinterpret_cast<const Sum *>(bs[k + column / 8 * 16])[column % 8];
        d.x[i] = sum;
    }
    emulator::warp_barrier(WARP);  // until then the others read own_a and own_b
}

}  // namespace nvcuda::wmma
