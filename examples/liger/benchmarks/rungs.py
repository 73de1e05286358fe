"""The functions that are measured, of any commit of Liger-Kernel, whose modules are imported when they are called."""

import inspect
from functools import partial
from importlib import import_module


def of(op, name, *arguments, **options):
    """Call a function of `liger_kernel.ops` with those of the options that the commit's function takes."""
    module = import_module(f"liger_kernel.ops.{op}")
    if not hasattr(module, name):
        raise ImportError(f"{module.__name__} has no {name}", name=module.__name__)
    known = inspect.signature(getattr(module, name)).parameters
    return getattr(module, name)(*arguments, **{key: value for key, value in options.items() if key in known})


def rms_norm_backward(dy, x, w, rstd):
    block, warps = of("utils", "calculate_settings", x.shape[1])
    return of("rms_norm", "rms_norm_backward", dy, x, w, rstd, 0.0, 0, block, warps, in_place=False, row_mode=None)


def softmax_backward(dy, y):
    return of("softmax", "_softmax_backward", dy, y, *of("utils", "calculate_settings", y.shape[1]), False)


def updating(op, name, turned=lambda x: x):
    def write(a, b, *others):  # into a and b
        of(op, name, turned(a), turned(b), *others)

    return write


rope = partial(updating, "rope", turned=lambda x: x.transpose(1, 2))
FORWARD = {
    "rms_norm": lambda x, w: of("rms_norm", "rms_norm_forward", x, w, 1e-6, 0.0, "llama", row_mode=None)[0],
    "layer_norm": lambda x, w, b: of("layer_norm", "layer_norm_forward", x, w, b, 1e-6)[0],
    "swiglu": lambda a, b: of("swiglu", "swiglu_forward", a, b)[2],
    "geglu": lambda a, b: of("geglu", "geglu_forward", a, b)[2],
    "softmax": lambda x: of("softmax", "_softmax_forward", x)[0],
    "rope": rope("rope_forward"),
}
BACKWARD = {
    "rms_norm": rms_norm_backward,
    "layer_norm": lambda dy, x, w, b, mean, rstd: of("layer_norm", "layer_norm_backward", dy, x, w, b, mean, rstd),
    "swiglu": updating("swiglu", "swiglu_backward"),
    "geglu": updating("geglu", "geglu_backward"),
    "softmax": softmax_backward,
    "rope": rope("rope_backward"),
}
KERNELS = {op: {"forward": FORWARD[op], "backward": BACKWARD[op]} for op in FORWARD}
