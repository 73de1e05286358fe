"""The locks of a machine's GPUs and of its CPU: who times something holds them, from whatever checkout."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from kernelwatch.system.files import locked
from kernelwatch.system.options import Options

CPU = "cpu"


def holding(device: str, waiting: Callable[[str], None]) -> AbstractContextManager[None]:
    """Hold a device, once no other process does. `device`: CPU, or the PCI bus id of a GPU; MIG instances share a lock,
    since they share the card's limits. `waiting`: as in `locked`."""
    name = "".join(letter if letter.isalnum() else "-" for letter in device)
    return locked(Path(Options.here().locks, f"kernelwatch-{name}.lock"), waiting)
