"""What row_sum of Numba, cuTile and the CuTe DSL is compiled to, without a GPU, at the shapes that are timed."""

import tempfile
from io import BytesIO

from kernelwatch.plan import binaries
from kernelwatch.plan.package import NotHere

LEAST = 80  # the compute capability that cuTile and the CuTe DSL support, times 10


def by_numba(_type, arch):
    """As cuda.jit does it: NVVM makes LTO-IR, nvJitLink a cubin; from compute capability 9.0 on for that GPU alone."""
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from layers.by_numba import THREADS, row_sum_kernel
    from numba import cuda, float32, void

    capability = divmod(int(arch[3:]), 10)
    alone = "a" if capability >= (9, 0) else ""
    signature, how = void(float32[:, ::1], float32[::1]), {"device": False, "abi": "numba", "output": "ltoir"}
    code, _ = cuda.compile(row_sum_kernel.py_func, signature, cc=(*capability, alone), **how)
    options = LinkerOptions(arch=arch + alone, link_time_optimization=True)
    linked = Linker(ObjectCode.from_ltoir(code), options=options).link("cubin")
    return binaries.of_cubin(bytes(linked.code), arch, block_threads=THREADS)


def by_cutile(_type, arch):
    """With what cuTile knows of the arrays at a launch: their layout, and that all extents are multiples of 16."""
    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, export_kernel
    from layers.by_cutile import TILE, row_sum_kernel

    _check("cuTile", arch)
    known = {"index_dtype": ct.int32, "stride_lower_bound_incl": 0, "alias_groups": (), "may_alias_internally": False}
    known |= {"shape_divisible_by": 16, "base_addr_divisible_by": 16}
    x = ArrayConstraint(ct.float32, 2, stride_constant=(None, 1), stride_divisible_by=(4, 1), **known)
    out = ArrayConstraint(ct.float32, 1, stride_constant=(1,), **known)
    signature = KernelSignature([x, out, TILE], CallingConvention.cutile_python_v1())
    cubin = BytesIO()
    try:
        export_kernel(row_sum_kernel, [signature], cubin, gpu_code=arch, output_format="cubin")
    except FileNotFoundError as error:
        raise NotHere(f"cuTile's compiler is not installed: {error}") from error
    return binaries.of_cubin(cubin.getvalue(), arch)


def by_cute(_type, arch):
    from layers.by_cute import WARPS, compiled

    _check("the CuTe DSL", arch)
    with tempfile.TemporaryDirectory() as folder:
        cubin = compiled(f"--gpu-arch {arch} --keep-cubin --dump-dir {folder}").__cubin__
    return binaries.of_cubin(cubin, arch, dynamic_shared_bytes=4 * WARPS)


def _check(compiler, arch):
    if int(arch[3:]) < LEAST:
        raise NotHere(f"{compiler} supports compute capability {LEAST / 10} and newer, not {arch}")
