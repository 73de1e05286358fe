"""asv's machine: an identity that changes only with the hardware, the architecture or the OS family."""

import platform
import re

from asv import util


def gpu_name() -> str:
    """The name of CUDA's first GPU, or "none". It creates no context."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return "none"
    try:
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return "none"
        error, device = driver.cuDeviceGet(0)
        if error != driver.CUresult.CUDA_SUCCESS:
            return "none"
        return str(driver.cuDeviceGetName(100, device)[1].split(b"\0")[0].decode())
    except RuntimeError:  # no libcuda
        return "none"


def identity(gpu: str | None = None) -> dict[str, str]:
    """asv's machine: a slug and the parts it consists of. `gpu`: the GPU's name; None looks it up."""
    gpu = gpu_name() if gpu is None else gpu
    cpu = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", util.get_cpu_info() or platform.processor() or "unknown")
    parts = {"gpu": gpu, "cpu": " ".join(cpu.split()), "arch": platform.machine(), "os": platform.system()}
    slug = ".".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "unknown" for part in parts.values())
    return {"machine": slug.replace("none.", "no-gpu.", 1) if gpu == "none" else slug} | parts
