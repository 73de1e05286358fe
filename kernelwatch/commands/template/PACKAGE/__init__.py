"""The kernels that are measured: KERNELS[op][rung] is a function, or the text "module:function"."""

from PACKAGE import on_cpu

KERNELS = {
    "row_sum": {
        "numpy": on_cpu.row_sum_numpy,
        "einsum": on_cpu.row_sum_einsum,
        "cupy": "PACKAGE.on_gpu:row_sum_cupy",  # with a GPU
    },
}
