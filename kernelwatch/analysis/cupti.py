"""The modules that this process loads onto a GPU, by CUPTI: the cubins of every library, as the driver gets them."""

import ctypes
from typing import Any

from kernelwatch.plan.package import NotHere

DOMAIN_RESOURCE, MODULE_LOADED = 3, 6  # of cupti_callbacks.h


class _Module(ctypes.Structure):
    """CUpti_ModuleResourceData."""

    _fields_ = (("id", ctypes.c_uint32), ("size", ctypes.c_size_t), ("cubin", ctypes.c_void_p))


class _Resource(ctypes.Structure):
    """CUpti_ResourceData."""

    _fields_ = (("context", ctypes.c_void_p), ("handle", ctypes.c_void_p), ("module", ctypes.POINTER(_Module)))


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Resource))

cubins: list[bytes] = []  # of the modules that were loaded since `subscribe`
_kept: list[Any] = []  # CUPTI calls the callback as long as the process lives


def _loaded(_user: object, _domain: int, _what: int, resource: Any) -> None:
    module = resource.contents.module.contents
    cubins.append(ctypes.string_at(module.cubin, module.size))


def subscribe() -> None:
    """Keep the cubin of every module that is loaded from now on. Raises: NotHere if CUPTI is missing or in use."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        library = ctypes.CDLL(load_nvidia_dynamic_lib("cupti").abs_path)
    except (ImportError, RuntimeError, OSError) as error:
        raise NotHere(f"no CUPTI here (pip install nvidia-cuda-cupti): {str(error).partition(chr(10))[0]}") from error
    subscriber, callback = ctypes.c_void_p(), _Callback(_loaded)
    _kept.append(callback)
    for status in (
        library.cuptiSubscribe(ctypes.byref(subscriber), callback, None),
        library.cuptiEnableCallback(1, subscriber, DOMAIN_RESOURCE, MODULE_LOADED),
    ):
        if status:
            raise NotHere(f"CUPTI does not say which modules are loaded: status {status}; a profiler may be using it")
