"""Layers of neural networks, each by several launchers: KERNELS[op][rung] is where a function is.

A module is imported only when one of its rungs is measured, so that whoever lacks a library lacks its rungs alone.
"""

KERNELS = {
    "row_sum": {
        "numpy": "layers.by_numpy:row_sum",
        "cupy": "layers.by_cupy:row_sum",
        "core": "layers.by_core:row_sum",
        "triton": "layers.by_triton:row_sum",
        "torch": "layers.by_torch:row_sum",
    },
    "softmax": {
        "numpy": "layers.by_numpy:softmax",
        "cuda": "layers.by_cupy:softmax",
        "triton": "layers.by_triton:softmax",
        "torch": "layers.by_torch:softmax",
        "compiled": "layers.by_torch:softmax_compiled",
    },
    "rms_norm": {
        "numpy": "layers.by_numpy:rms_norm",
        "cupy": "layers.by_cupy:rms_norm",
        "triton": "layers.by_triton:rms_norm",
        "torch": "layers.by_torch:rms_norm",
        "compiled": "layers.by_torch:rms_norm_compiled",
    },
    "attention": {
        "triton": "layers.by_triton:attention",
        "torch": "layers.by_torch:attention",
        "eager": "layers.by_torch:attention_eager",
    },
    "scaled_matmul": {
        "numpy": "layers.by_numpy:scaled_matmul",
        "triton": "layers.by_triton:scaled_matmul",
        "torch": "layers.by_torch:scaled_matmul",
    },
}

# What can be compiled without a GPU, so that registers, spills and instructions have a history there, too.
BINARIES = {
    "row_sum": {"core": "layers.binaries:row_sum_core", "triton": "layers.binaries:row_sum"},
    "softmax": {"triton": "layers.binaries:softmax"},
    "rms_norm": {"triton": "layers.binaries:rms_norm"},
    "attention": {"triton": "layers.binaries:attention"},
    "scaled_matmul": {"triton": "layers.binaries:scaled_matmul"},
}
