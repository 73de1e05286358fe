"""PyTorch's tensors and the engine's arrays: the same memory, seen by both."""

import importlib
from typing import Any

import numpy as np

from kernelwatch.plan.package import NotHere
from kernelwatch.plan.problem import Array

# PyTorch has no unsigned type of every size in DLPack; an integer of the same size carries the bits of any type.
CARRIERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def pytorch(who: str) -> Any:
    """PyTorch. Raises: NotHere if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NotHere(f"{who} takes tensors of PyTorch, which cannot be imported: {error}") from error


def is_tensor(value: object) -> bool:
    """Whether an object is a tensor of PyTorch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr")


def tensor(array: Array) -> Any:
    """A tensor over the memory of a NumPy or CuPy array, of the type with the same name."""
    torch = importlib.import_module("torch")
    take = torch.from_numpy if array.__dlpack_device__()[0] == 1 else torch.from_dlpack
    if np.dtype(array.dtype).kind in "fcib" and array.dtype.isbuiltin == 1:
        return take(array)
    return take(array.view(CARRIERS[array.itemsize])).view(getattr(torch, array.dtype.name))


def array(tensor: Any, xp: Any) -> Array:
    """An array of NumPy or CuPy (`xp`) over the memory of a tensor. Raises: TypeError if its type is unknown."""
    torch = importlib.import_module("torch")
    own = tensor.detach()
    name = str(own.dtype).removeprefix("torch.")
    dtype = np.dtype(name)
    if dtype.kind not in "fcib" or dtype.isbuiltin != 1:
        own = own.view(getattr(torch, CARRIERS[dtype.itemsize]))
    made = own.numpy() if xp is np else xp.from_dlpack(own)
    return made if made.dtype == dtype else made.view(dtype)
