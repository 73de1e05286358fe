"""The originals whose unchanged candidates scripts/lab/candidates tries, and of each a candidate that does less work.

Each is a file with a loop whose turns change nothing of the output. An unchanged candidate is the same file with
another comment; on a GPU its kernel is compiled anew.
"""

from dataclasses import dataclass
from string import Template


@dataclass(frozen=True)
class Cell:
    """A campaign. `does`: what a call of the original does. `source`: of its file, with $turns and $comment.
    `turns`: of the original's loop; `fewer`: of that of the candidate with a gain. `cache`: as in
    `kernelwatch.compare`."""

    does: str
    source: str
    turns: int
    fewer: int
    cache: str = "cold"

    @property
    def work(self) -> float:
        """The turns of the candidate with a gain over those of the original."""
        return self.fewer / self.turns

    def original(self) -> str:
        """The original's file."""
        return self._file(self.turns, "the original")

    def unchanged(self, number: int) -> str:
        """The file of a candidate that is the original."""
        return self._file(self.turns, f"candidate {number}")

    def gained(self) -> str:
        """The file of the candidate that does less work."""
        return self._file(self.fewer, "fewer turns")

    def _file(self, turns: int, comment: str) -> str:
        return Template(self.source).substitute(turns=turns, comment=comment)


# The inputs are made on the device, by a hash of a seed: each call has other numbers.
GPU = """\
import cupy

N, THREADS = {n}, 256
KERNEL = cupy.RawKernel(r'''
// $comment
extern "C" __global__ void run(const float4 *x, float4 *out) {{
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
{body}
    out[at] = make_float4(2 * value.x, 2 * value.y, 2 * value.z, 2 * value.w);
}}
''', "run")
FILL = cupy.RawKernel(r'''
extern "C" __global__ void fill(float *x, unsigned seed) {{
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned hash = at * 2654435761u ^ seed;
    hash = (hash ^ hash >> 16) * 73244475u;
    x[at] = (hash ^ hash >> 16) * 2.3283064e-10f;
}}
''', "fill")


def inputs(seed):
    x, out = cupy.empty(N, cupy.float32), cupy.full(N, cupy.nan, cupy.float32)
    FILL((N // THREADS,), (THREADS,), (x, cupy.uint32(seed)))
    return x, out


def run(x, out):
    KERNEL((N // 4 // THREADS,), (THREADS,), (x, out))
"""

# Products with 1 and sums with 0 that no compiler leaves out; each waits for the one before it.
MULTIPLY = """\
    float4 value = x[at];
    #pragma unroll 1
    for (int turn = 0; turn < $turns; ++turn) {
        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(value.x) : "f"(1.0f), "f"(0.0f));
            asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(value.y) : "f"(1.0f), "f"(0.0f));
            asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(value.z) : "f"(1.0f), "f"(0.0f));
            asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(value.w) : "f"(1.0f), "f"(0.0f));
        }
    }"""

# Each turn reads all of the input once more, past the L1 cache, and drops it: only a volatile load stays. The number of
# threads is a power of two.
READ = """\
    const int last = gridDim.x * blockDim.x - 1;
    #pragma unroll 1
    for (int turn = 0; turn < $turns; ++turn) {
        float4 seen;
        asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(seen.x), "=f"(seen.y), "=f"(seen.z), "=f"(seen.w)
                     : "l"(x + ((at + turn * 9472) & last)));
    }
    const float4 value = x[at];"""

CPU = """\
import numpy

N = 1 << 14


def inputs(seed):
    return numpy.random.default_rng(seed).random(N), numpy.full(N, numpy.nan)


def run(x, out):  # $comment
    for _ in range($turns):
        numpy.multiply(x, 2, out=out)
"""

CELLS = {
    "gpu": {
        "arithmetic": Cell(
            "2,000 multiply-adds for each of 2^20 floats",
            GPU.format(n=1 << 20, body=MULTIPLY.replace("STEPS", "20")),
            100,
            99,
        ),
        "memory": Cell("reads 4 MiB a hundred times, from L2", GPU.format(n=1 << 20, body=READ), 100, 99),
        "short": Cell(
            "300 multiply-adds for each of 2^18 floats",
            GPU.format(n=1 << 18, body=MULTIPLY.replace("STEPS", "3")),
            100,
            98,
        ),
    },
    "cpu": {"numpy": Cell("multiplies 2^14 doubles twenty times", CPU, 20, 18)},
}
