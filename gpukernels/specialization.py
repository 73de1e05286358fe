"""What Triton compiles for a launch: a kernel and how its arguments specialize it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Element type -> Triton's type of a pointer to such elements.
POINTERS = {"uint8": "*u8", "uint16": "*u16", "float16": "*fp16", "float32": "*fp32", "float64": "*fp64"}


@dataclass(frozen=True)
class Specialization:
    """A Triton kernel as launches of one element type compile it; it can be compiled without a GPU and without PyTorch.

    kernel: the function of triton.jit.
    signature: parameter -> Triton's type, such as "*fp32" or "i32".
    constants: the tl.constexpr parameters, by name.
    divisible: the parameters whose value, an address or a number, is a multiple of 16.
    options: num_warps and num_stages, if they are not Triton's own.
    """

    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    divisible: tuple[str, ...]
    options: Mapping[str, int]
