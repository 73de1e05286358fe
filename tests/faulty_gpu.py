"""A worker on a GPU that is not there, and has a fault: what stands in for CuPy, NVML and the device that measures.

Run as a script it does what worker.py does. The folder $FAULTY holds `fault`, the name of the fault, and how many
cells all processes together have begun. The fault comes with the cell number FAULT_AT, which is counted from 0.
"""

import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FAULT_AT = 5
WORKER = Path(__file__).resolve().parents[1] / "kernelwatch" / "run" / "worker.py"
FALLS_OFF, VANISHES, BREAKS, ECC, MIG, HANGS = "falls off", "vanishes", "breaks", "ECC", "MIG", "hangs"
UUIDS = ("MIG-first", "MIG-second")


class CUDARuntimeError(RuntimeError):
    """CuPy's."""


class NVMLError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class Fault:
    """The fault, and what has come of it so far."""

    def __init__(self, folder: Path) -> None:
        self.name, self._begun, self._processes = (folder / "fault").read_text(), folder / "begun", folder / "processes"
        self.uncorrected = 0

    @property
    def has_come(self) -> bool:
        return _count(self._begun) > FAULT_AT

    @property
    def is_gone(self) -> bool:
        return self.has_come and self.name in (FALLS_OFF, VANISHES, BREAKS)

    def get_device(self) -> int:
        if self.is_gone and self.name != BREAKS:
            raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return 0

    def handle(self, index: int) -> int:
        if self.is_gone and self.name == FALLS_OFF:
            raise NVMLError(15, "GPU is lost")
        return index

    def uuid(self) -> str:
        """Of the instance, which is another one after the first process."""
        _add(self._processes)
        return UUIDS[self.name == MIG and _count(self._processes) > 1]

    def measure(self) -> None:
        """Begin one cell."""
        now = _count(self._begun) == FAULT_AT
        _add(self._begun)
        if now and self.name in (FALLS_OFF, VANISHES, BREAKS):
            raise CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure")
        if now and self.name == HANGS:
            time.sleep(600)
        if now and self.name == ECC:
            self.uncorrected += 3


def _count(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _add(file: Path) -> None:
    with file.open("a") as lines:
        lines.write(".")


def cupy(fault: Fault) -> ModuleType:
    module: Any = ModuleType("cupy")
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=fault.get_device), Device=lambda: SimpleNamespace(pci_bus_id="0000:1B:00.0")
    )
    return module  # type: ignore[no-any-return]


def pynvml(fault: Fault) -> ModuleType:
    module: Any = ModuleType("pynvml")
    module.NVMLError, module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_UNKNOWN = NVMLError, 15, 999
    module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, module.NVML_VOLATILE_ECC = 1, 0
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetCount = lambda: 0 if fault.is_gone and fault.name == VANISHES else 1
    module.nvmlDeviceGetHandleByIndex = fault.handle
    module.nvmlDeviceGetHandleByPciBusId = lambda bus: 0
    module.nvmlDeviceGetUUID = lambda handle: "GPU-whole"
    module.nvmlDeviceGetTotalEccErrors = lambda handle, kind, since: fault.uncorrected * (kind == 1) * (since == 0)
    return module  # type: ignore[no-any-return]


def gpu(fault: Fault) -> ModuleType:
    """kernelwatch.timing.gpu, whose device measures nothing."""

    def make(project: Any, package: object, cells: Sequence[Any], budget: object, seed: int) -> Any:
        from kernelwatch.timing import device, nvml, spent

        if fault.is_gone:
            raise CUDARuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable")

        class Gpu(device.RunDevice):
            def __init__(self) -> None:
                self.nvml = nvml.Nvml("0000:1B:00.0")
                self.spent = spent.Spent()

            def facts(self) -> Any:
                return {"gpu": "none", "nvml_uuid_sha256": fault.uuid(), "packages": {}}

            def _measure(self, cell: Any) -> Any:
                fault.measure()
                return {"seconds": 1e-5 * (1 + 0.1 * seed), "identity": cell.key}

        return Gpu()

    module: Any = ModuleType("kernelwatch.timing.gpu")
    module.Gpu = make
    return module  # type: ignore[no-any-return]


if __name__ == "__main__":
    own = Fault(Path(os.environ["FAULTY"]))
    for one in (cupy(own), pynvml(own), gpu(own)):
        sys.modules[one.__name__] = one
    runpy.run_path(str(WORKER), run_name="__main__")
