"""NVML's facts and units, and what is left of them when the driver does not answer a question."""

import builtins
import hashlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernelwatch.timing import nvml as nvml_module
from kernelwatch.timing.nvml import (
    LIMITS,
    Neighbors,
    Nvml,
    Others,
    Process,
    busiest,
    disturbed,
    limits,
    most_neighbors,
)

BUS = "00000000:1B:00.0"
TOO_LARGE = 1 << 22  # for the id of a process of this machine
UUID = "GPU-6a4c3f2e-0000-1111-2222-333344445555"

# What an H200 says, and a little more than it does at once.
ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetName": b"NVIDIA H200",
    "nvmlDeviceGetUUID": UUID,
    "nvmlSystemGetDriverVersion": "580.95.05",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096, free=1, used=2),
    "nvmlDeviceGetMemoryBusWidth": 6016,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetEccMode": [1, 0],  # now, and after the next boot
    "nvmlDeviceGetMigMode": [0, 1],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetPowerUsage": 123_456,
    "nvmlDeviceGetTotalEnergyConsumption": 98_765_432,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x24,
}
FACTS: dict[str, Any] = {
    "name": "NVIDIA H200",
    "uuid_sha256": hashlib.sha256(UUID.encode()).hexdigest()[:16],
    "driver": "580.95.05",
    "memory_bytes": 150_754_820_096,
    "sm_clock_max_mhz": 1980,
    "memory_clock_max_mhz": 3201,
    "memory_bus_bits": 6016,
    "theoretical_bandwidth_bytes_per_s": 4_814_304_000_000.0,  # 3201 MHz, two transfers each of 752 bytes
    "power_limit_w": 700.0,
    "ecc": True,
    "mig": False,
    "persistence": True,
    "pcie_generation": 5,
    "pcie_lanes": 16,
    "compute_mode": 0,
}
STATE: dict[str, Any] = {
    "sm_clock_mhz": 1755,
    "memory_clock_mhz": 3200,
    "temperature_c": 41,
    "power_w": 123.456,
    "event_reasons": 0x24,
}
# Which facts and readings fall with a call.
FALLS = {
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetUUID": {"uuid_sha256"},
    "nvmlSystemGetDriverVersion": {"driver"},
    "nvmlDeviceGetMemoryInfo": {"memory_bytes"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz", "memory_clock_max_mhz", "theoretical_bandwidth_bytes_per_s"},
    "nvmlDeviceGetMemoryBusWidth": {"memory_bus_bits", "theoretical_bandwidth_bytes_per_s"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetEccMode": {"ecc"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetPersistenceMode": {"persistence"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_lanes"},
    "nvmlDeviceGetComputeMode": {"compute_mode"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"event_reasons"},
}


class NVMLError(Exception):
    pass


class NVMLErrorNotSupported(NVMLError):
    def __str__(self) -> str:
        return "Not Supported"


class FakePynvml(ModuleType):
    """pynvml for one GPU; `answers` are its replies, an exception among them is raised."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    HANDLE = object()

    def __init__(self, **changes: Any) -> None:
        super().__init__("pynvml")
        self.changes = changes
        for name, answer in ANSWERS.items():
            self.answer(name, answer)
        for name in changes:
            self.answer(name, None)

    def answer(self, name: str, answer: Any) -> None:
        given = self.changes.get(name, answer)

        def reply(*arguments: Any) -> Any:
            assert arguments == (() if name.startswith("nvmlSystem") else (self.HANDLE,))
            return self.said(given)

        if name not in ("nvmlInit", "nvmlDeviceGetHandleByPciBusId", *self.BY_WHICH):
            setattr(self, name, reply)

    BY_WHICH = ("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature")

    @staticmethod
    def said(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nvmlInit(self) -> None:
        self.said(self.changes.get("nvmlInit"))

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> object:
        assert bus == BUS
        return self.said(self.changes.get("nvmlDeviceGetHandleByPciBusId", self.HANDLE))

    def nvmlDeviceGetMaxClockInfo(self, handle: object, which: int) -> Any:
        return self.said(self.changes.get("nvmlDeviceGetMaxClockInfo", {1: 1980, 2: 3201}[which]))

    def nvmlDeviceGetClockInfo(self, handle: object, which: int) -> Any:
        return self.said(self.changes.get("nvmlDeviceGetClockInfo", {1: 1755, 2: 3200}[which]))

    def nvmlDeviceGetTemperature(self, handle: object, which: int) -> Any:
        return self.said(self.changes.get("nvmlDeviceGetTemperature", {0: 41}[which]))


def test_all_facts_and_their_units() -> None:
    nvml = Nvml(BUS, FakePynvml())
    assert nvml.why_not == ""
    assert nvml.facts() == FACTS
    assert nvml.state() == STATE


def test_the_serial_is_only_hashed() -> None:
    facts = str(Nvml(BUS, FakePynvml()).facts())
    assert UUID not in facts
    assert UUID.removeprefix("GPU-") not in facts
    other = Nvml(BUS, FakePynvml(nvmlDeviceGetUUID=UUID[:-1] + "6")).facts()
    assert other["uuid_sha256"] != FACTS["uuid_sha256"]


@pytest.mark.parametrize("error", [NVMLError("Insufficient Permissions"), NVMLErrorNotSupported()], ids=str)
@pytest.mark.parametrize("call", FALLS)
def test_an_error_costs_only_what_it_answers(call: str, error: NVMLError) -> None:
    nvml = Nvml(BUS, FakePynvml(**{call: error}))
    lost = dict.fromkeys(FALLS[call])
    assert nvml.facts() == FACTS | {name: None for name in lost if name in FACTS}
    assert nvml.state() == STATE | {name: None for name in lost if name in STATE}
    assert nvml.why_not == ""


def test_every_fact_and_reading_is_tried_without() -> None:
    assert set[str]().union(*FALLS.values()) == set(FACTS) | set(STATE)


@pytest.mark.parametrize("call", [name for name in FALLS if name in ANSWERS and name.startswith("nvmlDevice")])
def test_a_binding_without_the_call(call: str) -> None:
    module = FakePynvml()
    delattr(module, call)
    nvml = Nvml(BUS, module)
    assert {**nvml.facts(), **nvml.state()} == FACTS | STATE | dict.fromkeys(FALLS[call])


def test_ecc_off_and_mig_on() -> None:
    facts = Nvml(BUS, FakePynvml(nvmlDeviceGetEccMode=[0, 1], nvmlDeviceGetMigMode=[1, 0])).facts()
    assert (facts["ecc"], facts["mig"]) == (False, True)


def test_the_event_reasons_of_an_older_driver() -> None:
    module = FakePynvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x80)
    assert Nvml(BUS, module).state()["event_reasons"] == 0x24  # the newer name comes first
    del module.nvmlDeviceGetCurrentClocksEventReasons
    assert Nvml(BUS, module).state() == STATE | {"event_reasons": 0x80}
    found = FakePynvml(
        nvmlDeviceGetCurrentClocksEventReasons=NVMLError("Function Not Found"),
        nvmlDeviceGetCurrentClocksThrottleReasons=0x40,
    )
    assert Nvml(BUS, found).state() == STATE | {"event_reasons": 0x40}


def test_no_reason_is_not_the_older_name() -> None:
    module = FakePynvml(nvmlDeviceGetCurrentClocksEventReasons=0, nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    assert Nvml(BUS, module).state()["event_reasons"] == 0


def test_a_name_that_is_no_utf8() -> None:
    assert Nvml(BUS, FakePynvml(nvmlDeviceGetName=b"NVIDIA \xff")).facts()["name"] == "NVIDIA \ufffd"


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByPciBusId"])
def test_no_nvml_at_all_says_why(call: str) -> None:
    nvml = Nvml(BUS, FakePynvml(**{call: NVMLError("Driver Not Loaded")}))
    assert nvml.why_not == f"NVML does not answer for {BUS}: Driver Not Loaded"
    assert nvml.facts() == dict.fromkeys(FACTS)
    assert nvml.state() == dict.fromkeys(STATE)


def test_no_binding_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pynvml":
            raise ModuleNotFoundError("No module named 'pynvml'")
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    nvml = Nvml(BUS)
    assert nvml.why_not == "nvidia-ml-py is not installed (No module named 'pynvml')"
    assert nvml.facts() == dict.fromkeys(FACTS)
    assert nvml.state() == dict.fromkeys(STATE)


def process(pid: int, memory: int | None = 1 << 30) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def utilization(module: FakePynvml, *percent: int) -> FakePynvml:
    """One answer after another, the last for ever."""
    answers = list(percent)

    def rates(handle: object) -> SimpleNamespace:
        return SimpleNamespace(gpu=answers.pop(0) if answers[1:] else answers[0], memory=0)

    setattr(module, "nvmlDeviceGetUtilizationRates", rates)  # noqa: B010 mypy knows no attributes of a module
    return module


def test_others_on_the_gpu_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "FADE_S", 0.05)
    mine, parent = process(os.getpid()), process(os.getppid())  # who waits for this process disturbs nothing
    theirs = [process(TOO_LARGE, None), process(TOO_LARGE + 1)]
    module = utilization(FakePynvml(nvmlDeviceGetComputeRunningProcesses=[mine, parent, *theirs]), 35)
    found = Nvml(BUS, module).others()
    listed = [{"pid": TOO_LARGE, "memory_bytes": None}, {"pid": TOO_LARGE + 1, "memory_bytes": 1 << 30}]
    assert found == {"processes": listed, "utilisation_percent": 35}
    who = f"other processes use the GPU ({TOO_LARGE}, {TOO_LARGE + 1})"
    assert disturbed(found) == f"{who}, and the GPU was 35 % busy before we began"


def test_alone_on_the_gpu_what_ran_before_fades() -> None:
    module = utilization(FakePynvml(nvmlDeviceGetComputeRunningProcesses=[]), 90, 40, 0)
    found = Nvml(BUS, module).others()
    assert found == {"processes": [], "utilisation_percent": 0}
    assert disturbed(found) == ""


def test_others_by_what_an_older_driver_has() -> None:
    """Its library lacks the newest version of the call, or all of them, and the utilization."""
    lacks = NVMLError("Function Not Found")
    module = FakePynvml(
        nvmlDeviceGetComputeRunningProcesses=lacks, nvmlDeviceGetComputeRunningProcesses_v2=[process(7)]
    )
    assert Nvml(BUS, module).others() == {
        "processes": [{"pid": 7, "memory_bytes": 1 << 30}],
        "utilisation_percent": None,
    }
    nothing: Others = {"processes": None, "utilisation_percent": None}
    for module in (FakePynvml(), FakePynvml(nvmlDeviceGetComputeRunningProcesses=lacks), FakePynvml(nvmlInit=lacks)):
        assert Nvml(BUS, module).others() == nothing
    assert disturbed(nothing) == disturbed(None) == ""


def test_the_worst_of_several_processes_is_kept() -> None:
    who: list[Process] = [{"pid": 4, "memory_bytes": None}]
    one: Others = {"processes": who, "utilisation_percent": None}
    other: Others = {"processes": None, "utilisation_percent": 7}
    assert busiest(one, other) == busiest(other, one) == {"processes": who, "utilisation_percent": 7}
    assert busiest(None, one) == busiest(one, None) == one
    assert busiest(None, None) is None


def test_limits_of_a_mask() -> None:
    assert limits(0xFFFF) == list(LIMITS.values())
    assert limits(None) == limits(0) == []


@pytest.mark.gpu
def test_the_real_one_answers() -> None:
    import cupy

    nvml = Nvml(cupy.cuda.Device().pci_bus_id)
    assert nvml.why_not == ""
    facts = nvml.facts()
    assert facts["name"] == cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    assert facts["driver"].split(".")[0].isdecimal()
    assert 1e11 < facts["theoretical_bandwidth_bytes_per_s"] < 1e14
    assert set(facts) == set(FACTS)
    assert set(nvml.state()) == set(STATE)
    assert all(isinstance(value, int | float | None) for value in nvml.state().values())
    assert set(nvml.others()) == {"processes", "utilisation_percent"}


class Machine(FakePynvml):
    """Several GPUs, by UUID and utilization in percent; an exception in place of it is raised."""

    def __init__(self, *gpus: tuple[str, Any]) -> None:
        super().__init__()
        del self.nvmlDeviceGetUUID  # the same answer for each
        self.gpus = gpus

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        return index

    def nvmlDeviceGetUUID(self, handle: object) -> str:
        return UUID if handle is self.HANDLE else self.gpus[int(str(handle))][0]

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Any:
        return SimpleNamespace(gpu=self.said(self.gpus[int(str(handle))][1]))


def test_the_other_gpus_of_the_machine_and_which_of_them_work() -> None:
    found = Nvml(BUS, Machine(("a", 0), (UUID, 99), ("b", 1), ("c", NVMLError("Insufficient Permissions")))).neighbors()
    assert found == {"gpus": 2, "busy": 1}
    assert Nvml(BUS, Machine((UUID, 99))).neighbors() == {"gpus": 0, "busy": 0}
    assert Nvml(BUS, FakePynvml()).neighbors() is None  # a binding without the count


def test_the_process_with_the_most_neighbors_at_work_counts() -> None:
    few, many = Neighbors(gpus=3, busy=1), Neighbors(gpus=3, busy=3)
    assert most_neighbors(few, many) == most_neighbors(many, few) == many
    assert most_neighbors(None, few) == most_neighbors(few, None) == few
    assert most_neighbors(None, None) is None
