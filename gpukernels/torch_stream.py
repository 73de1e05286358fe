"""PyTorch, and so Triton, on CuPy's current stream."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def on_current_stream() -> Iterator[None]:
    """Make CuPy's current stream PyTorch's."""
    import cupy
    import torch

    address = cupy.cuda.get_current_stream().ptr
    # PyTorch takes the address 0 for no address, and gives a stream of its own.
    with torch.cuda.stream(torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()):
        yield
