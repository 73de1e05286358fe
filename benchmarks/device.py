"""The conditions under which the transposes were measured: clocks, temperature, power, the canaries."""

from typing import ClassVar

from benchmarks import _suites, transpose
from benchmarks._group import Group
from benchmarks._identity import TIMED


class Canary:
    """Two kernels of the stick that never change: what moves them is the machine."""

    setup_cache = transpose.GPU.setup_cache
    params: ClassVar[list[list[str]]] = [["memory", "compute"]]
    param_names: ClassVar[list[str]] = ["canary"]
    timeout = 1800

    @_suites.series(TIMED, "seconds", higher_is_better=False)
    def track_canary(self, group: Group, canary: str) -> _suites.Samples:
        """Seconds of the canary's graph."""
        return _suites.per_process(group, lambda visit: visit.get("canary_s", {}).get(canary))


class State:
    """NVML's readings, and the SM clock from clock64 over globaltimer, during the samples."""

    setup_cache = transpose.GPU.setup_cache
    timeout = 1800

    @_suites.series(TIMED, "MHz", higher_is_better=None)
    def track_sm_clock(self, group: Group) -> _suites.Samples:
        """MHz."""
        return _suites.per_process(group, lambda visit: visit.get("clock64_mhz"))

    @_suites.series(TIMED, "C", higher_is_better=None)
    def track_temperature(self, group: Group) -> _suites.Samples:
        """Degrees Celsius."""
        return _suites.per_process(group, lambda visit: visit.get("state", {}).get("temperature_c"))

    @_suites.series(TIMED, "W", higher_is_better=None)
    def track_power(self, group: Group) -> _suites.Samples:
        """Watts."""
        return _suites.per_process(group, lambda visit: visit.get("state", {}).get("power_w"))
