"""Run a script, and keep the code that its process loads onto a GPU: CUPTI has it as the driver gets it.

    python loaded.py FOLDER SCRIPT [ARGUMENT ...]

FOLDER gets each cubin as a file, and told.json at the end: "cuda", whether the process has the library of the driver;
"why", why CUPTI does not tell what was loaded, "" if it does.

It runs under the Python of a measured project, and so uses the standard library alone.
"""

import ctypes
import glob
import hashlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

TOLD = "told.json"
DOMAIN_RESOURCE, MODULE_LOADED = 3, 6  # of cupti_callbacks.h


class _Module(ctypes.Structure):
    """CUpti_ModuleResourceData."""

    _fields_ = (("id", ctypes.c_uint32), ("size", ctypes.c_size_t), ("cubin", ctypes.c_void_p))


class _Resource(ctypes.Structure):
    """CUpti_ResourceData."""

    _fields_ = (("context", ctypes.c_void_p), ("handle", ctypes.c_void_p), ("module", ctypes.POINTER(_Module)))


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Resource))
_kept: list[Any] = []  # CUPTI calls the callback as long as the process lives


def subscribe(library: Any, keep: Callable[[bytes], object]) -> str:
    """Have CUPTI hand the cubin of every module that is loaded from now on to `keep`; why it does not, "" if it does.
    `library`: CUPTI, as ctypes loaded it."""

    def loaded(_user: object, _domain: int, _what: int, resource: Any) -> None:
        module = resource.contents.module.contents
        keep(ctypes.string_at(module.cubin, module.size))

    subscriber, callback = ctypes.c_void_p(), _Callback(loaded)
    _kept.append(callback)
    for status in (
        library.cuptiSubscribe(ctypes.byref(subscriber), callback, None),
        library.cuptiEnableCallback(1, subscriber, DOMAIN_RESOURCE, MODULE_LOADED),
    ):
        if status:
            return f"CUPTI does not say which modules are loaded: status {status}; a profiler may be using it"
    return ""


def _libraries() -> Iterator[Any]:
    """CUPTI, of the project's packages and of the system."""
    places = [os.path.join(place, "nvidia", "*", "lib") for place in sys.path if place]
    for root in filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        places += [os.path.join(root, "lib64"), os.path.join(root, "extras", "CUPTI", "lib64")]
    found = [path for place in places for path in sorted(glob.glob(os.path.join(place, "libcupti.so*")), reverse=True)]
    for path in [*found, "libcupti.so"]:
        with suppress(OSError):
            yield ctypes.CDLL(path)


def _run(folder: str, script: str) -> None:
    def keep(cubin: bytes) -> None:
        with open(os.path.join(folder, f"{hashlib.sha256(cubin).hexdigest()}.cubin"), "wb") as file:
            file.write(cubin)

    why = "there is no CUPTI here"
    for library in _libraries():
        why = subscribe(library, keep)
        if not why:
            break
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            cuda = "/libcuda.so" in maps.read()
        with open(os.path.join(folder, TOLD), "w", encoding="utf-8") as file:
            json.dump({"cuda": cuda, "why": why}, file)


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this script, whose modules are none of the project's
    _, own_folder, *sys.argv = sys.argv
    _run(own_folder, sys.argv[0])
