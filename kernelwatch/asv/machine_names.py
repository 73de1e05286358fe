"""asv's name of this machine, which changes only with the hardware, the architecture or the OS family."""

import platform
import re

from asv import util

from kernelwatch.timing.nvml import Nvml


def _first_gpu() -> tuple[str, str] | None:
    """The name and the PCI bus id of CUDA's first GPU; None if there is none. It creates no context."""
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
    except RuntimeError:  # no libcuda
        return None
    name, bus = (text.split(b"\0")[0].decode() for text in texts)
    return name, bus


def gpu_name() -> str:
    """The name of CUDA's first GPU, or "none"."""
    first = _first_gpu()
    return first[0] if first else "none"


def who() -> dict[str, str | None]:
    """Which GPU a record is of: name, hashed UUID, driver, named as in a group's facts; {} without a GPU."""
    first = _first_gpu()
    if first is None:
        return {}
    name, bus = first
    facts = Nvml(bus).facts()
    return {"gpu": name, "nvml_uuid_sha256": facts["uuid_sha256"], "nvml_driver": facts["driver"]}


def described(gpu: str | None = None) -> dict[str, str]:
    """asv's machine: a slug and the parts it consists of. `gpu`: the GPU's name; None looks it up."""
    gpu = gpu_name() if gpu is None else gpu
    cpu = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", util.get_cpu_info() or platform.processor() or "unknown")
    parts = {"gpu": gpu, "cpu": " ".join(cpu.split()), "arch": platform.machine(), "os": platform.system()}
    slug = ".".join(map(slug_of, parts.values()))
    return {"machine": slug.replace("none.", "no-gpu.", 1) if gpu == "none" else slug} | parts


def machine_name() -> str:
    """The name of this machine's folder of results."""
    return described()["machine"]


def slug_of(name: str) -> str:
    """A part of asv's name of a machine."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"
