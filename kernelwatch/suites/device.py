"""The conditions under which a group was measured: the canaries, clocks, temperature, power."""

from abc import ABC, abstractmethod
from typing import ClassVar

from kernelwatch.identity import TIMED
from kernelwatch.plan.project import Project
from kernelwatch.run.outcome import Group
from kernelwatch.suites.measured import Measured
from kernelwatch.suites.series import Samples, series
from kernelwatch.suites.timed import per_process
from kernelwatch.timing.record import number


class _Conditions(Measured, ABC):
    """The conditions of an op's GPU group, which its timed suite measures in `setup_cache`."""

    device = "gpu"
    timeout = 1800

    def __init_subclass__(cls, project: Project | None = None, op: str = "") -> None:
        if project is not None:
            cls.project, cls.op = project, op

    @abstractmethod
    def setup_cache(self) -> Group:
        """The measured group."""


class Canary(_Conditions):
    """Two kernels of the harness that never change; if their time changes, the machine has changed."""

    params: ClassVar[list[list[str]]] = [["memory", "compute"]]
    param_names: ClassVar[list[str]] = ["canary"]

    @series(TIMED, "seconds", higher_is_better=False)
    def track_canary(self, group: Group, canary: str) -> Samples:
        """Seconds of the canary's graph."""
        return per_process(group, lambda measurement: number(measurement, "canary_s", canary))


class State(_Conditions):
    """NVML's readings and the SM clock (clock64 divided by globaltimer) during the samples."""

    @series(TIMED, "MHz", higher_is_better=None)
    def track_sm_clock(self, group: Group) -> Samples:
        """SM clock in MHz."""
        return per_process(group, lambda measurement: number(measurement, "clock64_mhz"))

    @series(TIMED, "C", higher_is_better=None)
    def track_temperature(self, group: Group) -> Samples:
        """Temperature in C."""
        return per_process(group, lambda measurement: number(measurement, "state", "temperature_c"))

    @series(TIMED, "W", higher_is_better=None)
    def track_power(self, group: Group) -> Samples:
        """Power in W."""
        return per_process(group, lambda measurement: number(measurement, "state", "power_w"))
