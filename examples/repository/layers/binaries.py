"""What the rungs of kernels.py and row_sum.py are compiled to, without a GPU, at the shapes that are timed."""

from kernelwatch.plan import binaries
from layers import kernels
from layers.row_sum import SOURCE, THREADS

FLOATS = {"x": "*fp32", "out": "*fp32", "columns": "i32"}


def row_sum_core(_type, arch):
    return binaries.of_cuda(SOURCE, "row_sum", arch, THREADS)


def row_sum(_type, arch):
    return _compiled(kernels.row_sum, arch, FLOATS, kernels.ROW_SUM)


def softmax(_type, arch):
    return _compiled(kernels.softmax, arch, FLOATS, {"BLOCK": 4096, **kernels.SOFTMAX})


def rms_norm(_type, arch):
    return _compiled(
        kernels.rms_norm, arch, FLOATS | {"weight": "*fp32", "eps": "fp32"}, {"BLOCK": 4096, **kernels.RMS_NORM}
    )


def attention(_type, arch):
    signature = dict.fromkeys(("q", "k", "v", "out"), "*fp16") | {"length": "i32", "scale": "fp32"}
    return _compiled(kernels.attention, arch, signature, {"DEPTH": 64, **kernels.ATTENTION})


def scaled_matmul(_type, arch):
    signature = dict.fromkeys(("a", "b"), "*i8") | dict.fromkeys(("a_scale", "b_scale", "out"), "*fp32")
    return _compiled(kernels.scaled_matmul, arch, signature | dict.fromkeys("MNK", "i32"), kernels.SCALED_MATMUL)


def _compiled(kernel, arch, signature, settings):
    """The binary for addresses and numbers that are multiples of 16. `settings`: constants, and options of Triton's."""
    constants = {name: value for name, value in settings.items() if name.isupper()}
    options = {name: value for name, value in settings.items() if name not in constants}
    whole = [name for name, type in signature.items() if type.startswith("*") or type == "i32"]
    return binaries.of_triton(kernel, arch, signature, constants, divisible=whole, **options)
