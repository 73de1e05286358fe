"""The modules that this process loads onto a GPU, by CUPTI: the cubins of every library, as the driver gets them."""

import ctypes

from kernelwatch.analysis import loaded
from kernelwatch.plan.package import NotHere

cubins: list[bytes] = []  # of the modules that were loaded since `subscribe`


def subscribe() -> None:
    """Keep the cubin of every module that is loaded from now on. Raises: NotHere if CUPTI is missing or in use."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        library = ctypes.CDLL(load_nvidia_dynamic_lib("cupti").abs_path)
    except (ImportError, RuntimeError, OSError) as error:
        raise NotHere(f"no CUPTI here (pip install nvidia-cuda-cupti): {str(error).partition(chr(10))[0]}") from error
    if why := loaded.subscribe(library, cubins.append):
        raise NotHere(why)
