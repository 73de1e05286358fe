"""Keeps the search for unreachable cycles of objects out of what is timed.

In a process that has imported PyTorch and Triton, Python's search takes 0.1 s at times (docs/research/measuring.md).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No search within a `with` block. What the block leaves in cycles, a later search finds."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep() -> None:
    """Take what exists now for what stays, such as modules: no later search looks at it. So what becomes garbage in
    cycles after that is never found: this is for moments at which little else than modules exists."""
    gc.collect()
    gc.freeze()
