import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

from launched.by_cupy import SOURCE

DEVICE = Device()
DEVICE.set_current()
PROGRAM = Program(SOURCE.replace("void axpy", "void axpy_core"), "c++", ProgramOptions(arch=f"sm_{DEVICE.arch}"))
KERNEL = PROGRAM.compile("cubin").get_kernel("axpy_core")


def axpy(x, y, out, alpha, stream):
    config = LaunchConfig(grid=-(-x.size // 256), block=256)
    pointers = (x.data.ptr, y.data.ptr, out.data.ptr)
    launch(DEVICE.create_stream(stream), config, KERNEL, *pointers, np.float32(alpha), np.int64(x.size))
