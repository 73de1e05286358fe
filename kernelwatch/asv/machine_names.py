"""asv's name of this machine, which changes only with the hardware, the architecture or the OS family."""

import platform
import re

from kernelwatch.system.machine import first_gpu
from kernelwatch.timing.nvml import Nvml


def gpu_name() -> str:
    """The name of CUDA's first GPU, or "none"."""
    gpu = first_gpu()
    return gpu.name if gpu else "none"


def who() -> dict[str, str | None]:
    """Which GPU a record is of: name, hashed UUID, driver, named as in a group's facts; {} without a GPU."""
    gpu = first_gpu()
    if gpu is None:
        return {}
    facts = Nvml(gpu.bus).facts()
    return {"gpu": gpu.name, "nvml_uuid_sha256": facts["uuid_sha256"], "nvml_driver": facts["driver"]}


def described(gpu: str | None = None) -> dict[str, str]:
    """asv's machine: a slug and the parts it consists of. `gpu`: the GPU's name; None looks it up."""
    from asv import util  # not at the top: commands that ask for no name of a machine need not wait for asv

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
