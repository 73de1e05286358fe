"""matmul/cublas: C = A B by cuBLAS on CuPy's current stream, what the other rungs are held against.

libcublas is called directly: CuPy's own product refuses to be captured in a CUDA graph. A float32 product is one in
float32: CUBLAS_DEFAULT_MATH with CUBLAS_COMPUTE_32F never takes TF32. That is what users get; the pedantic compute
types forbid more than TF32 and so would time something else. A product with an output of 16 bits is summed in float32
and rounded once, as by the other rungs: left alone, cuBLAS may split K and round each part of a sum to 16 bits, as it
does at 60 x 323 x 27 on an H100. What can still change the arithmetic behind a program's back is the environment, so
those variables are refused.
Source: NVIDIA, cuBLAS documentation: cublasGemmEx, cublasSetWorkspace, cublasMath_t.
"""

import ctypes
import os
import threading
from functools import cache
from typing import Any

from gpukernels.kernel import KernelError, ToolMissing

WHO = "matmul/cublas"
WORKSPACE_BYTES = 32 << 20  # what NVIDIA advises from compute capability 9 on, the most that any GPU is given here
INT_MAX = 2**31 - 1

# cublas_api.h, library_types.h
CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_POINTER_MODE_HOST, CUBLAS_GEMM_DEFAULT = 0, 1, 0, -1
CUBLAS_DEFAULT_MATH, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 0, 16
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 70, 77

# Type of the inputs, of the output -> their codes, the compute type, the type of alpha and beta.
TYPES: dict[tuple[str, str], tuple[int, int, int, type[ctypes.c_float] | type[ctypes.c_double]]] = {
    ("float32", "float32"): (CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, ctypes.c_float),
    ("float64", "float64"): (CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, ctypes.c_double),
    ("float16", "float32"): (CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, ctypes.c_float),
    ("bfloat16", "float32"): (CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, ctypes.c_float),
    ("float16", "float16"): (CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, ctypes.c_float),
    ("bfloat16", "bfloat16"): (CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, ctypes.c_float),
}

# Each makes cuBLAS compute in another type than the one that it is asked for.
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")

_one_at_a_time = threading.Lock()  # the handle's stream and workspace belong to one call at a time
_workspaces: dict[tuple[int, int], Any] = {}  # (device, stream) -> its memory, which a captured graph may still use


@cache
def _library() -> ctypes.CDLL:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("cublas").abs_path
        library = ctypes.CDLL(path)
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ToolMissing(
            f"{WHO}: needs libcublas (pip install nvidia-cublas), which cannot be found: {reason}"
        ) from error
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.cublasGetStatusString.argtypes = (number,)
    library.cublasGetStatusString.restype = ctypes.c_char_p
    library.cublasGetProperty.argtypes = (number, pointer)
    library.cublasCreate_v2.argtypes = (pointer,)
    library.cublasSetStream_v2.argtypes = (pointer, pointer)
    library.cublasSetWorkspace_v2.argtypes = (pointer, pointer, ctypes.c_size_t)
    library.cublasSetPointerMode_v2.argtypes = (pointer, number)
    library.cublasSetMathMode.argtypes = (pointer, number)
    for name, extent in (("cublasGemmEx", number), ("cublasGemmEx_64", ctypes.c_int64)):
        if function := getattr(library, name, None):
            matrix = (pointer, number, extent)
            function.argtypes = (
                *(pointer, number, number, extent, extent, extent),
                *(pointer, *matrix, *matrix, pointer, *matrix, number, number),
            )
    return library


def _check(status: int, call: str) -> None:
    if status:
        text = _library().cublasGetStatusString(status).decode()
        raise KernelError(f"{WHO}: {call} failed with status {status}, {text}")


@cache
def _handle(device: int) -> ctypes.c_void_p:
    """The handle of one device, made once: it is a few MB of device memory and some milliseconds. The device is the
    current one, which is where cublasCreate makes it."""
    for name in OVERRIDES:
        if (value := os.environ.get(name, "")) not in ("", "0"):
            raise KernelError(
                f"{WHO}: {name}={value} makes cuBLAS compute in another type than the operands'; unset it"
            )
    library = _library()
    handle = ctypes.c_void_p()
    _check(library.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    _check(library.cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_HOST), "cublasSetPointerMode")
    mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
    _check(library.cublasSetMathMode(handle, mode), "cublasSetMathMode")
    return handle


def _workspace(device: int, stream: Any) -> tuple[int, int]:
    """The address and size of the workspace of one stream, so that no two streams ever share one."""
    import cupy

    if (device, stream.ptr) not in _workspaces:
        if stream.is_capturing():
            raise KernelError(
                f"{WHO}: the first call on a stream allocates its workspace, which a capture forbids; "
                f"call it once on that stream before capturing"
            )
        size = WORKSPACE_BYTES if int(cupy.cuda.Device(device).compute_capability) >= 90 else 8 << 20
        _workspaces[device, stream.ptr] = cupy.cuda.alloc(size), size
    memory, size = _workspaces[device, stream.ptr]
    return int(memory.ptr), size


def matmul_cublas(
    a: Any,
    b: Any,
    out: Any,
    *,
    accumulate: bool = False,
    workspace: tuple[int, int] | None = None,
    b_k_major: int = 0,
    tf32: int = 0,
) -> None:
    """out (M x N) = a (M x K) b (K x N): C-contiguous CuPy arrays of the current device, no dimension 0.

    out is overwritten, or added to with `accumulate`. Enqueued on CuPy's current stream, not synchronized; may be
    captured in a CUDA graph after a first call on the same stream. `workspace`: address, a multiple of 256, and size in
    bytes of device memory that no other stream uses; without it the stream is given its own, which is kept.
    `b_k_major`: b is the transpose, N x K. `tf32`: float32 operands may be cut to TF32.
    Raises: ToolMissing without libcublas; KernelError where cuBLAS fails, with its own words.
    """
    import cupy

    library = _library()
    (M, K), N = a.shape, out.shape[1]
    try:
        in_code, out_code, compute, scalar = TYPES[a.dtype.name, out.dtype.name]
    except KeyError:
        known = ", ".join("->".join(pair) for pair in TYPES)
        raise KernelError(f"{WHO}: no product {a.dtype}->{out.dtype}; it has {known}") from None
    if tf32:
        compute = CUBLAS_COMPUTE_32F_FAST_TF32
    call = "cublasGemmEx" if max(M, N, K) <= INT_MAX else "cublasGemmEx_64"
    gemm = getattr(library, call, None)
    if gemm is None:
        raise KernelError(f"{WHO}: M = {M}, N = {N}, K = {K} must be at most {INT_MAX} before cuBLAS 12")
    device = cupy.cuda.runtime.getDevice()
    stream = cupy.cuda.get_current_stream()
    handle = _handle(device)
    address, size = workspace or _workspace(device, stream)
    alpha, beta = scalar(1), scalar(1 if accumulate else 0)
    with _one_at_a_time:
        _check(library.cublasSetStream_v2(handle, stream.ptr), "cublasSetStream")  # takes the workspace away, so it is
        _check(library.cublasSetWorkspace_v2(handle, address, size), "cublasSetWorkspace")  # set after the stream
        # Row major C = A B is column major C^T = B^T A^T: the same bytes, the operands swapped.
        status = gemm(
            *(handle, CUBLAS_OP_T if b_k_major else CUBLAS_OP_N, CUBLAS_OP_N, N, M, K),
            *(ctypes.byref(alpha), b.data.ptr, in_code, b.shape[1], a.data.ptr, in_code, K),
            *(ctypes.byref(beta), out.data.ptr, out_code, N, compute, CUBLAS_GEMM_DEFAULT),
        )
    _check(status, f"{call} at M = {M}, N = {N}, K = {K}")


def version() -> str:
    """The version of the libcublas that is called, such as 13.1.0. Raises: ToolMissing where there is none."""
    library = _library()
    parts = []
    for property_type in range(3):  # major, minor, patch
        value = ctypes.c_int()
        _check(library.cublasGetProperty(property_type, ctypes.byref(value)), "cublasGetProperty")
        parts.append(str(value.value))
    return ".".join(parts)
