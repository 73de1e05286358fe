"""What tells this machine apart from others of the same model, its free memory, its GPUs, and why it has none."""

import ctypes
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

ETC, SYS, PROC = Path("/etc"), Path("/sys"), Path("/proc")
DMI = ("sys_vendor", "product_name", "product_family", "board_vendor", "board_name")


def machine_id(etc: Path = ETC, hardware: Path = SYS) -> str:
    """A hash that is the same whenever this machine is measured, and another one on another machine.

    It is made from the machine's id, which systemd and D-Bus set once, and from facts that no boot and no update
    changes: the names of the system and its board, the cores and their caches. A container may lack the id, or share
    one with its image's other containers; the facts alone then tell different models apart, but not two machines of the
    same model.
    """
    own = _text(etc / "machine-id")
    facts = [_text(hardware / "class" / "dmi" / "id" / name) for name in DMI]
    cores = hardware / "devices" / "system" / "cpu"
    caches = sorted((cores / "cpu0" / "cache").glob("index*"))
    facts += [_text(cores / "present"), *(_text(cache / "size") for cache in caches)]
    # systemd asks that its id be published only as a hash made for one use.
    return hashlib.sha256("\0".join(["kernelwatch", own, *facts]).encode()).hexdigest()[:16]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def free_bytes() -> int:
    """The memory in bytes that processes can still take; a very large number if the system does not say."""
    for line in _text(PROC / "meminfo").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return sys.maxsize


@dataclass(frozen=True)
class FirstGpu:
    """CUDA's first GPU. `bus`: its PCI bus id; `driver`: the newest CUDA that its driver knows, such as 13000."""

    name: str
    bus: str
    driver: int


def first_gpu() -> FirstGpu | None:
    """CUDA's first GPU, None if there is none. It creates no context, and does not import CuPy, which takes longer."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    try:
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return None
        error, device = driver.cuDeviceGet(0)
        if error != driver.CUresult.CUDA_SUCCESS:
            return None
        texts = driver.cuDeviceGetName(100, device)[1], driver.cuDeviceGetPCIBusId(100, device)[1]
        version = int(driver.cuDriverGetVersion()[1])
    except RuntimeError:  # no libcuda
        return None
    name, bus = (text.split(b"\0")[0].decode() for text in texts)
    return FirstGpu(name, bus, version)


def gpus() -> list[str]:
    """CUDA's visible GPUs, as CUDA_VISIBLE_DEVICES names them."""
    try:
        from cuda.bindings import driver

        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return []
        count = int(driver.cuDeviceGetCount()[1])
    except (ImportError, RuntimeError):  # RuntimeError: no libcuda
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(index) for index in range(count)]


def no_gpu(error: Exception) -> str:
    """Why there is no GPU, if importing CuPy or its first call raised this error."""
    if isinstance(error, ImportError):
        return f"CuPy cannot be imported ({error}); install the engine with [cuda13] or [cuda12]"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed (libcuda.so.1 is not found)"
    return f"{type(error).__name__}: {error}"
