"""Facts and state of one GPU through NVML. None: the driver does not report it (permission, WSL, MIG, age)."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any, TypedDict


class State(TypedDict):
    """The readings that change during a run: MHz, C, W, J since the driver's start, and the mask of event reasons."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    event_reasons: int | None


class Process(TypedDict):
    """A compute process on the GPU."""

    pid: int
    memory_bytes: int | None


class Others(TypedDict):
    """Other users of the GPU; None for what NVML does not report."""

    processes: list[Process] | None
    utilisation_percent: int | None


class Neighbors(TypedDict):
    """The other GPUs of this machine, and how many of them were at work."""

    gpus: int
    busy: int


FADE_S = 2.0  # NVML averages utilization over a second at most: after this, our previous process no longer counts

# The event reasons that lower the clocks, by NVML's bits (nvml.h, nvmlClocksEventReasons).
LIMITS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
POWER_CAP = LIMITS[0x04]


def limits(reasons: int | None) -> list[str]:
    """The names of the limits in a mask of event reasons."""
    return [name for bit, name in LIMITS.items() if (reasons or 0) & bit]


def busiest(one: Others | None, other: Others | None) -> Others | None:
    """The larger of two results of `Nvml.others`, taken by two processes of a run: more processes, more utilization."""
    if not one or not other:
        return one or other
    return {
        "processes": max(one["processes"], other["processes"], key=lambda processes: len(processes or [])),
        "utilisation_percent": max(
            one["utilisation_percent"], other["utilisation_percent"], key=lambda percent: percent or 0
        ),
    }


def most_neighbors(one: Neighbors | None, other: Neighbors | None) -> Neighbors | None:
    """The one of two results of `Nvml.neighbors` with more GPUs at work."""
    return max((found for found in (one, other) if found), key=lambda found: found["busy"], default=None)


def disturbed(others: Others | None) -> str:
    """Why a result of `Nvml.others` makes the figures doubtful, "" if it does not."""
    processes = (others["processes"] if others else None) or []
    busy = (others["utilisation_percent"] if others else None) or 0
    reasons = []
    if processes:
        reasons.append("other processes use the GPU (" + ", ".join(str(process["pid"]) for process in processes) + ")")
    if busy:
        reasons.append(f"the GPU was {busy} % busy before we began")
    return ", and ".join(reasons)


def lost(module: Any = None) -> str:
    """Which GPU has fallen off the bus, in the words of NVML; "" if none has, or if NVML does not say. `module`: as in
    `Nvml`."""
    try:
        if module is None:
            import pynvml

            module = pynvml
        module.nvmlInit()
        count = module.nvmlDeviceGetCount()
    except (ImportError, AttributeError):
        return ""
    except module.NVMLError as error:
        return f"NVML: {error}" if _is_lost(error, module) else ""
    for index in range(count):
        try:
            module.nvmlDeviceGetUUID(module.nvmlDeviceGetHandleByIndex(index))
        except module.NVMLError as error:
            if _is_lost(error, module):
                return f"NVML of GPU {index}: {error}"
    return ""


def architecture(module: Any = None) -> str:
    """The architecture of this machine's GPUs, such as "sm_90"; "" if they differ, or if NVML does not say. It makes no
    CUDA context. `module`: as in `Nvml`."""
    try:
        if module is None:
            import pynvml

            module = pynvml
        module.nvmlInit()
        handles = [module.nvmlDeviceGetHandleByIndex(index) for index in range(module.nvmlDeviceGetCount())]
        found = {tuple(module.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles}
    except (ImportError, AttributeError):
        return ""
    except module.NVMLError:
        return ""
    return "sm_{}{}".format(*found.pop()) if len(found) == 1 else ""


def _is_lost(error: Any, module: Any) -> bool:
    return getattr(error, "value", None) in (module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_UNKNOWN)


class Nvml:
    """One GPU as NVML sees it, found by CUDA's PCI bus id, since NVML and CUDA number GPUs differently.

    `why_not`: why NVML reports nothing, "" if it works. `module`: pynvml, or a stand-in for it.
    """

    def __init__(self, pci_bus_id: str, module: Any = None) -> None:
        self.why_not = ""
        self._handle: Any = None
        try:
            if module is None:
                import pynvml

                module = pynvml
            self._module = module
            module.nvmlInit()
            self._handle = module.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        except ImportError as error:
            self.why_not = f"nvidia-ml-py is not installed ({error})"
        except module.NVMLError as error:
            self.why_not = f"NVML does not answer for {pci_bus_id}: {error}"

    def _ask(self, name: str, *arguments: object) -> Any:
        """What an NVML function returns for this GPU; None if it fails or is missing."""
        if self._handle is None or not hasattr(self._module, name):
            return None
        try:
            return getattr(self._module, name)(self._handle, *arguments)
        except (self._module.NVMLError, TypeError, UnicodeDecodeError):
            return None

    def facts(self) -> dict[str, Any]:
        """The properties that do not change during a run. Clocks in MHz, memory in bytes, power in W, bandwidth in
        bytes/s (bus width times two transfers per cycle of the highest memory clock)."""
        n = self._module if self._handle is not None else None
        clock = {name: getattr(n, name, None) for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM")}
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        uuid = self._ask("nvmlDeviceGetUUID")
        power_limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        memory_clock_max = self._ask("nvmlDeviceGetMaxClockInfo", clock["NVML_CLOCK_MEM"])
        bus_bits = self._ask("nvmlDeviceGetMemoryBusWidth")
        ecc = self._ask("nvmlDeviceGetEccMode")
        mig = self._ask("nvmlDeviceGetMigMode")
        return {
            "name": _text(self._ask("nvmlDeviceGetName")),
            # Tells two GPUs of the same name apart without publishing a serial number.
            "uuid_sha256": hashlib.sha256(str(uuid).encode()).hexdigest()[:16] if uuid else None,
            "driver": _text(self._system("nvmlSystemGetDriverVersion")),
            "memory_bytes": None if memory is None else int(memory.total),
            "sm_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", clock["NVML_CLOCK_SM"]),
            "memory_clock_max_mhz": memory_clock_max,
            "memory_bus_bits": bus_bits,
            "theoretical_bandwidth_bytes_per_s": (
                memory_clock_max * 1_000_000 * 2 * bus_bits / 8 if memory_clock_max and bus_bits else None
            ),
            "power_limit_w": None if power_limit is None else power_limit / 1000,
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": None if mig is None else bool(mig[0]),
            "persistence": _flag(self._ask("nvmlDeviceGetPersistenceMode")),
            "pcie_generation": self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_lanes": self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "compute_mode": self._ask("nvmlDeviceGetComputeMode"),
        }

    def uncorrected_errors(self) -> int | None:
        """The errors of the memory that ECC could not correct since the driver's start; None if that is not known."""
        n = self._module if self._handle is not None else None
        which = getattr(n, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", None), getattr(n, "NVML_VOLATILE_ECC", None)
        errors = self._ask("nvmlDeviceGetTotalEccErrors", *which)
        return None if errors is None else int(errors)

    def state(self) -> State:
        """The readings that change: clocks in MHz, temperature in C, power in W, the mask of event reasons."""
        power = self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        n = self._module if self._handle is not None else None
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", getattr(n, "NVML_CLOCK_SM", None)),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", getattr(n, "NVML_CLOCK_MEM", None)),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", getattr(n, "NVML_TEMPERATURE_GPU", None)),
            "power_w": None if power is None else power / 1000,
            "event_reasons": reasons,
        }

    def others(self) -> Others:
        """Other users of the GPU, to be called before this process uses it.

        These are the compute processes ("memory_bytes" is None if a container hides it) but for those that wait for
        this one, and the utilization in percent once that of our previous process has faded."""
        processes, busy, until = self.processes(), self._busy(), time.monotonic() + FADE_S
        while busy and time.monotonic() < until:
            time.sleep(FADE_S / 10)
            busy = self._busy()
        if processes is not None:
            processes = [process for process in processes if process["pid"] not in _lineage()]
        return {"processes": processes, "utilisation_percent": busy}

    def neighbors(self) -> Neighbors | None:
        """The other GPUs of this machine that NVML shows, whichever CUDA shows; those of other machines are unknown."""
        count, own = self._system("nvmlDeviceGetCount"), self._ask("nvmlDeviceGetUUID")
        if count is None or own is None:
            return None
        found = []
        for index in range(count):
            try:
                handle = self._module.nvmlDeviceGetHandleByIndex(index)
                if self._module.nvmlDeviceGetUUID(handle) != own:
                    found.append(int(self._module.nvmlDeviceGetUtilizationRates(handle).gpu))
            except self._module.NVMLError:  # of a GPU that this user may not ask
                continue
        return {"gpus": len(found), "busy": sum(map(bool, found))}

    def processes(self) -> list[Process] | None:
        """The compute processes on the GPU."""
        processes = None
        for version in ("", "_v2"):  # the plain name is the newest version, which an older driver lacks
            processes = self._ask(f"nvmlDeviceGetComputeRunningProcesses{version}")
            if processes is not None:
                return [{"pid": process.pid, "memory_bytes": process.usedGpuMemory} for process in processes]
        return None

    def _busy(self) -> int | None:
        """The GPU's utilization in percent."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def _system(self, name: str) -> Any:
        """What an NVML function of the driver returns; None if it fails."""
        if self._handle is None or not hasattr(self._module, name):
            return None
        try:
            return getattr(self._module, name)()
        except self._module.NVMLError:
            return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _lineage() -> set[int]:
    """This process and those that it descends from, which wait for it (a parent may hold a CUDA context)."""
    found: set[int] = set()
    pid = os.getpid()
    while pid and pid not in found:
        found.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:  # not Linux, or not ours to read
            break
        pid = int(stat.rpartition(")")[2].split()[1])  # after the name, which may hold anything
    return found
