// matmul/wgmma: C[m][n] = sum over k of A[m][k] B[k][n], on Hopper's tensor cores, fed by its copy engine.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, A and B of T (__half or __nv_bfloat16), C and the sum
// of Sum (float), any M, N, K >= 1. The operands come as tensor maps, which wgmma.py makes: rows begin at multiples of
// 16 bytes.
//
// A block has three groups of four warps. The first, the producer, lets the copy engine (TMA) fill STAGES stages of
// shared memory, each TILE_K along K, and keeps ahead of the others as far as there are free stages. The two consumers
// have the upper and the lower half of the block's tile of C, in registers which the producer gave away. Warp group
// matrix instructions read A and B from shared memory while the next are issued. Barriers in shared memory count the
// bytes that have come to a stage, and the warps that have done with it.
// A block goes on with the next tile of C as soon as it has one (persistent blocks), so that the copies for a tile start
// under the products of the tile before it. Its results go through shared memory in parts of 32 columns, from where the
// copy engine stores them under the products that follow. Every second tile goes down K: what was read last is read
// first. Tiles are in bands of BAND rows of tiles, whose A stays in the L2 cache (evict last; B evict first).
// Rows in shared memory are 128 bytes; 16-byte pieces of 8 rows are exchanged by the copy engine (128-byte swizzle), so
// that neither it nor the tensor cores meet bank conflicts.
// Source: NVIDIA, PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg; NVIDIA, CUTLASS, warp-specialized
// persistent kernels for Hopper.

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int GROUP = 128;               // threads of a warp group
constexpr int ROWS = TILE_ROWS / 2;      // rows of C a consumer
constexpr int ROW_BYTES = 128;           // of a row in shared memory
constexpr int STEP = 16;                 // of K an instruction
constexpr int BAND = 16;                 // rows of tiles
constexpr int PART = 32;                 // columns of C in a store
constexpr int PART_BYTES = ROWS * ROW_BYTES;
constexpr int A_BYTES = TILE_ROWS * ROW_BYTES, B_BYTES = TILE_COLUMNS * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SUMS = TILE_COLUMNS / 2;  // a thread

static_assert(BLOCK_X * BLOCK_Y == 3 * GROUP, "a producer and two consumers");
static_assert(TILE_ROWS == 128 && TILE_K * 2 == ROW_BYTES, "a consumer has 64 rows; rows of 128 bytes");
static_assert(TILE_COLUMNS == 256 || TILE_COLUMNS == 128, "m64n256k16 or m64n128k16");
static_assert(1024 + STAGES * STAGE_BYTES + 2 * BUFFERS * PART_BYTES == SHARED_BYTES, "shared_bytes in the ladder");

__device__ u32 address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ void init(u64 *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals));
}

__device__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Arrive, and let the barrier's phase end only when so many bytes have come.
__device__ void expect(u64 *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ void wait(u64 *barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(address(barrier)), "r"(parity)
        : "memory");
}

// Copy a box of a matrix, from `column` and `row` on, to shared memory.
__device__ void load(void *to, const TensorMap *map, u64 *barrier, int column, int row, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(address(to)), "l"(map), "r"(address(barrier)), "r"(column), "r"(row),
        "l"(policy)
        : "memory");
}

__device__ void store(const TensorMap *map, const void *from, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(address(from)), "r"(column), "r"(row)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// A matrix in shared memory with the 128-byte swizzle. `leading`, `stride`: bytes from one group of 64 columns to the
// next, from one group of 8 rows to the next.
__device__ u64 descriptor(u32 address, u32 leading, u32 stride) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// The compiler must not move accesses of the sums over this: the tensor cores write them in the background.
__device__ void settle(float (&d)[SUMS]) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}

#ifdef __CUDA_BF16_H__  // the header of T is included before this file
#define ELEMENT "bf16"
#else
#define ELEMENT "f16"
#endif

// d += A B for 64 x TILE_COLUMNS results, 16 along K; d = A B if not `add`.
// clang-format off
__device__ void multiply(float (&d)[SUMS], u64 a, u64 b, int add) {
#if TILE_COLUMNS == 256
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." ELEMENT "." ELEMENT " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, 0, 1;\n}"
        :
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]),
          "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),
          "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
          "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
          "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),
          "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
#else
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." ELEMENT "." ELEMENT " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, 0, 1;\n}"
        :
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
#endif
}
// clang-format on

// The tile's row and column of tiles.
__device__ void place(int tile, int down, int across, int &m, int &n) {
    const int band = tile / (BAND * across), within = tile % (BAND * across), high = min(BAND, down - band * BAND);
    m = band * BAND + within % high;
    n = within / high;
}

template <typename T, typename Sum>
__global__ void __launch_bounds__(3 * GROUP, 1)
    matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                 const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    static_assert(sizeof(T) == 2 && sizeof(Sum) == 4, "16-bit operands, 32-bit sums");
    extern __shared__ unsigned char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];

    // Matrices with the 128-byte swizzle begin at multiples of 1024 bytes.
    unsigned char *const stages = shared + (1024 - address(shared) % 1024) % 1024;
    unsigned char *const parts = stages + STAGES * STAGE_BYTES;
    const int down = (M + TILE_ROWS - 1) / TILE_ROWS, across = (N + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int tiles = down * across, steps = (K + TILE_K - 1) / TILE_K;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int group = __shfl_sync(0xFFFFFFFF, thread / GROUP, 0);  // the compiler now knows that a warp agrees

    if (thread == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_a) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_b) : "memory");
        for (int s = 0; s < STAGES; ++s) {
            init(full + s, 1);
            init(empty + s, 8);  // the consumers' warps
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();

    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread > 0)
            return;
        u64 keep, pass;
        asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(pass));
        int stage = 0, parity = 1;  // all stages are free: the phase before the first has ended
        bool upward = false;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, upward = !upward) {
            int m, n;
            place(tile, down, across, m, n);
            for (int i = 0; i < steps; ++i) {
                const int k = (upward ? steps - 1 - i : i) * TILE_K;
                unsigned char *const a = stages + stage * STAGE_BYTES, *const b = a + A_BYTES;
                wait(empty + stage, parity);
                expect(full + stage, STAGE_BYTES);
                load(a, &map_a, full + stage, k, m * TILE_ROWS, keep);
#pragma unroll
                for (int j = 0; j < TILE_COLUMNS; j += 64)  // a row in shared memory
                    load(b + j * ROW_BYTES * TILE_K / 64, &map_b, full + stage, n * TILE_COLUMNS + j, k, pass);
                if (++stage == STAGES)
                    stage = 0, parity ^= 1;
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int consumer = group - 1, warp = thread / 32 % 4, lane = thread % 32;
    const bool first = thread % GROUP == 0;
    unsigned char *const own = parts + consumer * BUFFERS * PART_BYTES;
    int stage = 0, parity = 0;
    float d[SUMS];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int m, n, before = -1;
        place(tile, down, across, m, n);
        for (int step = 0; step < steps; ++step) {
            wait(full + stage, parity);
            const u32 a = address(stages + stage * STAGE_BYTES) + consumer * ROWS * ROW_BYTES;
            const u32 b = address(stages + stage * STAGE_BYTES + A_BYTES);
            settle(d);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < TILE_K; k += STEP)
                multiply(d, descriptor(a + k * 2, 16, 8 * ROW_BYTES),
                         descriptor(b + k * ROW_BYTES, TILE_K * ROW_BYTES, 8 * ROW_BYTES), step > 0 || k > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            settle(d);
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (before >= 0 && lane == 0)
                arrive(empty + before);
            before = stage;
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        settle(d);
        if (lane == 0)
            arrive(empty + before);

        // A lane holds two neighbors of every 8 columns, in row lane / 4 of the warp's 16 and 8 rows below.
#pragma unroll
        for (int part = 0; part < TILE_COLUMNS / PART; ++part) {
            unsigned char *const buffer = own + part % BUFFERS * PART_BYTES;
            if (first)  // the store that read this buffer last has read all
                asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BUFFERS - 1) : "memory");
            asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(GROUP) : "memory");
#pragma unroll
            for (int j = 0; j < PART / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int row = warp * 16 + lane / 4 + 8 * e, byte = j * 32 + lane % 4 * 8;
                    const int at = 4 * (part * (PART / 8) + j) + 2 * e;
                    *(float2 *)(buffer + row * ROW_BYTES + ((byte / 16 ^ row % 8) * 16 + byte % 16)) =
                        make_float2(d[at], d[at + 1]);
                }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(GROUP) : "memory");
            if (first)
                store(&map_c, buffer, n * TILE_COLUMNS + part * PART, m * TILE_ROWS + consumer * ROWS);
        }
    }
    if (first)  // shared memory must live until it has been read
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
