"""What the pages say of one record, a commit on a machine: its timed cells, its facts, the state of the machine."""

import math
import re
import statistics
from functools import cache
from typing import Any

from kernelwatch.history.instrument import instrument
from kernelwatch.history.records import READ, Measured, Record, finite
from kernelwatch.plan.cells import COUNTED
from kernelwatch.timing.record import Facts

Json = dict[str, Any]

FACTS = (
    "gpu", "compute_capability", "multiprocessors", "l2_bytes", "cpu", "cores", "cache_bytes", "compiler", "packages",
    "imports", "cuda_driver", "cuda_runtime", "ceilings", "others", "neighbors", "measured_at", "nvml", "nvml_name",
    "nvml_uuid_sha256", "nvml_driver", "nvml_memory_bytes", "nvml_sm_clock_max_mhz", "nvml_memory_clock_max_mhz",
    "nvml_memory_bus_bits", "nvml_theoretical_bandwidth_bytes_per_s", "nvml_power_limit_w", "nvml_ecc", "nvml_mig",
    "nvml_persistence", "nvml_pcie_generation", "nvml_pcie_lanes", "l2_reset",
)  # fmt: skip


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number with so many significant digits; None for what is not finite, which JSON does not know."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


@cache
def parts_of(key: str, group: str) -> Json | None:
    """The parts of a timed cell's key; None for another cell. `group`: such as "transpose gpu"."""
    match = re.fullmatch(r"([^/ ]+)/(\S+) (\S+) (\d+(?:x\d+)*) (\w+)", key)
    device = group.rpartition(" ")[2]
    if not match or match[5] == COUNTED:
        return None
    op, rung, type, shape, cache = match.groups()
    return {"op": op, "rung": rung, "type": type, "shape": shape, "cache": cache, "device": device}


def timed(record: Record) -> list[Measured]:
    """All timed cells of a record."""
    return [cell for cell in record.cells.values() if parts_of(cell.key, cell.group)]


def snapshot(record: Record) -> Json:
    """All timed cells of a commit on a machine, and the facts of each group."""
    return {
        "facts": {group: facts_of(facts) for group, facts in record.facts.items()},
        "cells": {cell.key: figures(cell) for cell in timed(record)},
    }


def facts_of(facts: Facts) -> Json:
    """The facts that the pages show."""
    return {name: finite(value) for name, value in facts.items() if name in FACTS}


def figures(cell: Measured) -> Json:
    """The figures of a timed cell: seconds with their 95 % interval, and the state of the device beside them."""
    if not cell.seconds:
        return {"state": cell.state, "reason": cell.reason}
    (low, high), read = cell.interval, cell.readings
    found = {
        "state": cell.state,
        "s": rounded(cell.median_s),
        "low": rounded(low),
        "high": rounded(high),
        "processes": len(cell.seconds),
        "detectable": rounded(cell.detectable, 3),
        "clock_mhz": rounded(median(read["clock_mhz"]), 5),
        "own_clock_mhz": rounded(cell.own_clock_mhz, 5),
        "temperature_c": rounded(median(read["temperature_c"]), 3),
        "power_w": rounded(median(read["power_w"]), 4),
        "launch_s": rounded(median(read["launch_s"]), 4),
        "limits": list(cell.limits),
        "notes": list(cell.notes),
        "kernels": next((finite(each["kernels"]) for each in cell.measurements if "kernels" in each), None),
        "reason": cell.reason,
    }
    return {name: value for name, value in found.items() if value not in (None, [], "")}


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def state(record: Record) -> Json:
    """The state of the machine at a commit: canaries, clocks, temperature, power, how quiet the instrument was, and the
    cells that failed or met a limit."""
    cells = timed(record)
    facts = next((facts for facts in record.facts.values() if facts.get("nvml_uuid_sha256")), Facts())
    medians = {name: median([value for cell in cells for value in cell.readings[name]]) for name in READ}
    quiet = instrument(record)
    found: Json = {
        "measured_at": max((str(facts.get("measured_at", "")) for facts in record.facts.values()), default=""),
        "gpu_uuid_sha256": finite(facts.get("nvml_uuid_sha256")),
        "driver": finite(facts.get("nvml_driver")),
        "ceilings": finite(facts.get("ceilings")),
        "clock_mhz": rounded(medians["clock_mhz"], 5),
        "temperature_c": rounded(medians["temperature_c"], 3),
        "power_w": rounded(medians["power_w"], 4),
        "canary_memory_s": rounded(medians["canary_memory_s"]),
        "canary_compute_s": rounded(medians["canary_compute_s"]),
        "launch_s": rounded(medians["launch_s"], 4),
        "spread": rounded(quiet.spread, 3) if quiet else None,
        "spread_90": rounded(quiet.spread_90, 3) if quiet else None,
        "two_levels": rounded(quiet.two_levels, 3) if quiet else None,
        "canary_spread": rounded(quiet.canary_spread, 3) if quiet else None,
        "cells": sum(bool(cell.seconds) for cell in cells),
        "failed": sorted(cell.key for cell in record.cells.values() if cell.state == "failed"),
        "limited": sorted(cell.key for cell in cells if cell.limits),
    }
    return {name: value for name, value in found.items() if value is not None}
