"""The comparison of a kernel's SASS on two sides, of kernels that NVRTC compiles without a GPU."""

import functools
from typing import Any

import pytest

from kernelwatch.analysis import sassdiff
from kernelwatch.analysis.sass import CLASSES, count, disassemble, listing
from kernelwatch.plan.binaries import of_cuda
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.plan.package import NotHere
from kernelwatch.system.errors import ToolMissing

ARCH = "sm_90"
TRANSPOSE = """
extern "C" __global__ void kernel(const float *in, float *out, long long M, long long N) {
    __shared__ float tile[32][33];
    long long x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
#pragma unroll
    for (int i = 0; i < 32; i += 8)
        if (x < N && y + i < M) tile[threadIdx.y + i][threadIdx.x] = in[(y + i) * N + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (x < M && y + i < N) out[(y + i) * M + x] = tile[threadIdx.x][threadIdx.y + i];
}
"""
COPY = """
extern "C" __global__ void kernel(const float4 *in, float4 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}
"""


@functools.cache
def code(source: str) -> bytes:
    try:
        binary = of_cuda(source, "kernel", ARCH, 256)
    except NotHere as error:
        pytest.skip(f"NVRTC compiles these kernels: {error}")
    return read_cubin(binary.path.read_bytes(), binary.symbol, ARCH).code


@functools.cache
def sass(source: str) -> str:
    try:
        return listing([code(source)], ARCH)
    except ToolMissing as error:
        pytest.skip(f"nvdisasm prints the SASS: {error}")


def compared(source: str, old: str, new: str) -> dict[str, Any]:
    assert old in source
    return sassdiff.compare(sass(source), sass(source.replace(old, new, 1)))


def texts(told: dict[str, Any], mark: str) -> list[str]:
    return [text for own, _, text in told["rows"] if own == mark]


def test_a_kernel_does_not_differ_from_itself() -> None:
    told = sassdiff.compare(sass(TRANSPOSE), sass(TRANSPOSE))
    assert told["rows"] == []
    assert told["opcodes"] == {}
    assert (told["removed"], told["added"], told["moved"], told["renamed"]) == (0, 0, 0, 0)
    counted = count(disassemble([code(TRANSPOSE)], ARCH)[0])  # the same numbers as in the exact figures
    assert told["instructions"] == [counted["instructions"]] * 2
    assert told["classes"] == {kind: [counted["mix"][kind]] * 2 for kind in CLASSES}


def test_another_pitch_is_another_immediate_and_nothing_else() -> None:
    told = compared(TRANSPOSE, "[33]", "[32]")
    assert told["opcodes"] == {}
    assert told["instructions"][0] == told["instructions"][1]
    assert 0 < told["removed"] == told["added"] < 8
    removed, added = "\n".join(texts(told, "-")), "\n".join(texts(told, "+"))
    assert "0x84" in removed  # 33 floats
    assert "0x84" not in added
    assert "0x80" in added


def test_a_loop_that_is_not_unrolled_is_a_loop_with_fewer_accesses() -> None:
    told = compared(TRANSPOSE, "#pragma unroll\n", "#pragma unroll 1\n")
    assert told["loops"] == [0, 1]
    assert told["opcodes"]["LDG"] == [4, 1]
    assert told["opcodes"]["STS"] == [4, 1]
    assert "LDS" not in told["opcodes"]  # the other loop
    assert list(told["opcodes"])[:2] == ["LDG", "STS"]  # likely causes first
    assert told["classes"]["global"] == [8, 5]
    assert told["removed"] > told["added"] > 0


def test_narrower_accesses_are_named_by_their_width() -> None:
    told = sassdiff.compare(sass(COPY), sass(COPY.replace("float4", "float")))
    assert {name: told["opcodes"][name] for name in ("LDG.128", "LDG", "STG.128", "STG")} == {
        "LDG.128": [1, 0],
        "LDG": [0, 1],
        "STG.128": [1, 0],
        "STG": [0, 1],
    }
    assert any("LDG.E.128" in text for text in texts(told, "-"))
    assert any(text.startswith("LDG.E ") for text in texts(told, "+"))


def test_another_register_or_address_is_no_difference() -> None:
    lines = "/*0000*/ LDS R4, [R3+0x84] ;\n/*0010*/ @!P0 BRA 0x40 ;\n/*0020*/ IMAD.X R5, RZ, RZ, RZ, P0 ;\n"
    other = "/*0000*/ LDS R9, [R7+0x84] ;\n/*0010*/ @P2 BRA 0x80 ;\n/*0020*/ IADD3.X R1, RZ, RZ, RZ, P4 ;\n"
    told = sassdiff.compare(lines, other)
    assert (told["removed"], told["added"], told["renamed"]) == (0, 0, 3)
    assert told["rows"][0] == ("=", "0000", "LDS R4, [R3+0x84] \u2192 LDS R9, [R7+0x84]")
    assert len(told["rows"]) == 3
    told = sassdiff.compare(lines, other.replace("0x84", "0x80"))
    assert (told["removed"], told["added"], told["renamed"]) == (1, 1, 2)


def test_what_stands_elsewhere_has_moved() -> None:
    first, second, third = "LDG.E R1, [R2]", "MUFU.EX2 R3, R4", "STG.E [R5], R6"

    def listed(*names: str) -> str:
        return "".join(f"/*{16 * at:04x}*/ {name} ;\n" for at, name in enumerate(names))

    told = sassdiff.compare(listed(first, second, third), listed(second, third, first, "BAR.SYNC 0x0"))
    assert (told["removed"], told["added"], told["moved"]) == (0, 1, 1)
    assert [mark for mark, *_ in told["rows"]] == ["<", " ", " ", ">", "+"]
    assert told["opcodes"] == {"BAR": [0, 1]}


def test_a_kernel_that_is_too_long_is_counted_only() -> None:
    long = "".join(f"/*{16 * at:04x}*/ FFMA R1, R2, R3, {at} ;\n" for at in range(sassdiff.ALIGNED_MOST + 1))
    told = sassdiff.compare(long, long + "/*ffff0*/ EXIT ;\n")
    assert not told["aligned"]
    assert told["rows"] == []
    assert told["added"] == 1


def test_a_nop_between_instructions_counts_and_padding_does_not() -> None:
    first, second, pad = "FFMA R1, R2, R3, R4", "EXIT", "NOP"

    def listed(*names: str) -> str:
        return "".join(f"/*{16 * at:04x}*/ {name} ;\n" for at, name in enumerate(names))

    told = sassdiff.compare(listed(first, second), listed(first, pad, second, pad, pad))
    assert told["opcodes"] == {"NOP": [0, 1]}
    assert told["added"] == 1
    assert told["instructions"] == [2, 2]  # as the exact figures count
    assert [row for row in told["rows"] if row[0] == "+"] == [("+", "0010", "NOP")]
