"""The twelve kernels of any commit of SGEMM_CUDA, compiled by NVRTC, and launched as the commit's own runner does it.

Kernel 9 is whatever header kernels.cuh includes by that number, under any name. Its template arguments, its grid and
its block are read from src/runner.cu, so that a commit that changes them is measured with what it chose.
"""

import functools
import hashlib
import math
import re
from contextlib import suppress
from pathlib import Path

from kernelwatch.plan import binaries, tree
from kernelwatch.plan.package import Absent, Parts
from kernelwatch.system import cache

NAMES = (
    "naive",
    "coalesced",
    "shared",
    "tiled_1d",
    "tiled_2d",
    "vectorized",
    "no_conflicts",
    "extra_column",
    "autotuned",
    "warptiled",
    "double_buffered",
    "asynchronous",
)
RUNNER = "src/runner.cu"
HOST = re.compile(
    r"#include <(algorithm|cassert|cstdio|cstdlib|cublas_v2\.h)>"
)  # which NVRTC lacks, and no kernel uses
AFTER = {11: 10, 12: 10}  # these take WARPSIZE from the header of another
CONSTANT = re.compile(r"const(?:expr)? u?int (\w+) =\s+([^;]+);")


def headers(number, file=tree.file):
    """The headers that a kernel needs, its own last. `file`: what gives a tree's file by its path. Raises: Absent."""
    listed = re.findall(r'"(kernels/(\d+)_\w+\.cuh)"', file("src/kernels.cuh").read_text())
    paths = {int(each): path for path, each in listed}
    if number not in paths:
        raise Absent(f"src/kernels.cuh of this commit includes no kernel {number}")
    return [file(f"src/{paths[each]}") for each in (AFTER.get(number), number) if each]


def launch(number, file=tree.file):
    """How the runner launches a kernel: its name for NVRTC, and what gives its grid and its block at (M, N, K).

    A runner that has two launches of a kernel has them for large matrices and for those below 128, which are not
    measured. Raises: Absent.
    """
    text, runner = headers(number, file)[-1].read_text(), file(RUNNER).read_text()
    name = re.search(r"__global__[^{;]*?(\w+)\((?:const )?int M", text)[1]
    called = re.search(rf"\b{name}(?:<([^<>]*)>)?\s*<<<", runner)
    if not called:
        raise Absent(f"{RUNNER} of this commit launches no {name}")
    function = runner[runner.rindex("\nvoid ", 0, called.start()) : called.start()]
    known = {}

    def numbers(expressions, **extents):
        code = f"({expressions},)".replace("/", "//")
        return eval(code, {"__builtins__": {}, "CEIL_DIV": lambda a, b: -(-a // b)}, known | extents)

    for key, value in CONSTANT.findall(function + text):
        with suppress(NameError):  # of the kernel's own, which follow from the index of the thread
            known.setdefault(key, *numbers(value))

    grid, block = (re.search(rf"dim3 {which}\((.*)\);", function)[1] for which in ("gridDim", "blockDim"))
    arguments = called[1] and ", ".join(map(str, numbers(called[1])))
    return f"{name}<{arguments}>" if arguments else name, functools.partial(numbers, grid), numbers(block)


def compiled(number, arch):
    """A kernel's Binary. It is kept, since NVRTC takes longer for the twelve than a process takes to measure them."""
    import cupy
    from cuda.bindings import nvrtc

    name, _, block = launch(number)
    texts = [HOST.sub("", path.read_text()) for path in headers(number)]
    text = "\n".join(["#include <cuda_runtime.h>", "using uint = unsigned int;", *texts])
    standard = Path(cupy.__file__).parent / "_core/include/cupy/_cccl/libcudacxx"  # <cuda/barrier>
    threads = math.prod(block)

    def make(path):
        # The seed: of the names in anonymous namespaces, which NVRTC otherwise draws anew for each compilation.
        options = {"include": [standard], "std": "c++17", "frandom_seed": "0"}
        path.write_bytes(binaries.of_cuda(text, name, arch, threads, **options).path.read_bytes())

    made_from = (text, name, arch, cupy.__version__, nvrtc.nvrtcVersion())
    kept = cache.built(hashlib.sha256(repr(made_from).encode()).hexdigest(), ".sgemm", make)
    return binaries.of_cubin(kept.read_bytes(), arch, block_threads=threads)


@functools.cache
def loaded(number):
    import cupy

    binary = compiled(number, f"sm_{cupy.cuda.Device().compute_capability}")
    return cupy.RawModule(path=str(binary.path)).get_function(binary.symbol), *launch(number)[1:]


def rung(number):
    def write(a, b, c, alpha, beta):  # into c
        import cupy

        (m, k), n = a.shape, b.shape[1]
        kernel, grid, block = loaded(number)
        extents = map(cupy.int32, (m, n, k))
        kernel(grid(M=m, N=n, K=k), block, (*extents, cupy.float32(alpha), a, b, cupy.float32(beta), c))

    return write


def binary(number):
    return lambda type, arch: compiled(number, arch)


def parts(places):
    """What each kernel of a tree is made from: its headers, and how the runner launches it."""

    def file(path):
        if not (places.folder / path).is_file():
            raise Absent(path)
        return places.folder / path

    found = {}
    for number, rung_name in enumerate(NAMES, 1):
        with suppress(Absent):
            name, grid, block = launch(number, file)
            how = f"{name} {grid(M=4096, N=8192, K=4096)} {block}"
            found[f"sgemm/{rung_name}"] = Parts(how, frozenset(headers(number, file)), data=False)
    return found


KERNELS = {"sgemm": {name: rung(number) for number, name in enumerate(NAMES, 1)}}
BINARIES = {"sgemm": {name: binary(number) for number, name in enumerate(NAMES, 1)}}
