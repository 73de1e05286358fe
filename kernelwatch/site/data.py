"""The data files of the pages, from the sidecars and results of a project. docs/data.md describes each file.

Every file is JSON. A commit is named by its position on the branch, 0 for the oldest, which does not change when more
commits are measured. A cell is named by its key, such as "transpose/padded float32 4096x4096 cold".
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypedDict

from kernelwatch.history.records import Measured, Record, conditions
from kernelwatch.measure.record import Facts, Measurement, number
from kernelwatch.plan.cells import rungs
from kernelwatch.plan.problem import Problem, label
from kernelwatch.plan.project import Project

VERSION = 1  # of the files; raised when a field changes its meaning or goes
Json = dict[str, Any]
Files = Iterator[tuple[str, Json]]  # name without ".json", content

FACTS = (
    "gpu", "compute_capability", "multiprocessors", "l2_bytes", "cpu", "cores", "cache_bytes", "compiler", "packages",
    "cuda_driver", "cuda_runtime", "ceilings", "others", "measured_at", "nvml", "nvml_name", "nvml_uuid_sha256",
    "nvml_driver", "nvml_memory_bytes", "nvml_sm_clock_max_mhz", "nvml_memory_clock_max_mhz", "nvml_memory_bus_bits",
    "nvml_theoretical_bandwidth_bytes_per_s", "nvml_power_limit_w", "nvml_ecc", "nvml_mig", "nvml_persistence",
    "nvml_pcie_generation", "nvml_pcie_lanes",
)  # fmt: skip


class Commit(TypedDict):
    """A commit. `date`: when it was authored, in ms since 1970; `files`: git's letter, path, number of lines added and
    removed, None for a binary file."""

    hash: str
    date: int
    author: str
    subject: str
    files: list[tuple[str, str, int | None, int | None]]


@dataclass
class Machine:
    """What was recorded on one machine, in one environment of asv: records by the position of their commit, and the
    values of the series that show exact figures."""

    name: str
    folder: str
    records: dict[int, Record]
    exact: dict[int, list["Figure"]] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)  # cell -> coefficient of variation in an A/A


@dataclass(frozen=True)
class Figure:
    """One value of a series of exact figures. `place`: its other parameters, such as "float32 sm_90"."""

    benchmark: str
    op: str
    rung: str
    place: str
    value: float | None


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number with so many significant digits; None for what is not finite, which JSON does not know."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


# --- what the checkout says ---------------------------------------------------------------------------------------


def ops(project: Project) -> list[Json]:
    """The ladders: what is measured, in which order, and what it is compared with."""
    return [_op(project, problem) for problem in project.problems]


def _op(project: Project, problem: Problem) -> Json:
    return {
        "name": problem.name,
        "unit": "GFLOP/s" if problem.computation.flops else "GB/s",
        "types": list(problem.types),
        "shapes": {device: list(map(label, problem.timed(device, quick=False))) for device in ("gpu", "cpu")},
        "element_shape": label(problem.element_shape),
        "order": {device: rungs(problem, device) for device in ("gpu", "cpu")},
        "against": {device: problem.held_against(device) for device in ("gpu", "cpu")},
        "lines": list(problem.lines),
        "rungs": [
            {
                "name": rung.name,
                "device": rung.device,
                "idea": rung.idea,
                "types": list(rung.types),
                "source": rung.source.relative_to(project.root).as_posix() if rung.source else "",
                "published_ms": dict(rung.published_ms),
                "plain": rung.repeats == 1 and rung.computes in ("", problem.name),  # does the op's work, once a launch
            }
            for rung in problem.rungs
        ],
    }


def cells(project: Project, machines: Iterable[Machine]) -> Json:
    """Every cell of the records: its parts, and the bytes and operations of one pass, None for a rung that the checkout
    does not know."""
    found: dict[str, Json] = {}
    for machine in machines:
        for record in machine.records.values():
            for cell in record.cells.values():
                if cell.key not in found and (parts := _parts(cell)):
                    found[cell.key] = parts | _work(project, parts)
    return found


@cache
def _parts_of(key: str, device: str) -> Json | None:
    match = re.fullmatch(r"([^/ ]+)/(\S+) (\S+) (\d+(?:x\d+)*) (\w+)", key)
    if not match or device not in ("gpu", "cpu", "streamed"):
        return None
    op, rung, type, shape, cache = match.groups()
    return {"op": op, "rung": rung, "type": type, "shape": shape, "cache": cache, "device": device}


def _parts(cell: Measured) -> Json | None:
    """The parts of a timed cell's key; None for another cell."""
    return _parts_of(cell.key, cell.group.rpartition(" ")[2])


def _work(project: Project, parts: Json) -> Json:
    try:
        problem, shape = project.ops[parts["op"]], tuple(map(int, parts["shape"].split("x")))
        return {
            "bytes": problem.bytes_moved(parts["rung"], parts["type"], shape),
            "flops": problem.flops(parts["rung"], shape),
        }
    except (KeyError, ValueError, TypeError, IndexError):
        return {"bytes": None, "flops": None}


# --- what was recorded -------------------------------------------------------------------------------------------


def snapshot(record: Record) -> Json:
    """All timed cells of a commit on a machine, and the facts of each group."""
    return {
        "facts": {group: facts_of(facts) for group, facts in record.facts.items()},
        "cells": {cell.key: figures(cell) for cell in record.cells.values() if _parts(cell)},
    }


def facts_of(facts: Facts) -> Json:
    """The facts that the pages show."""
    return {name: _finite(value) for name, value in facts.items() if name in FACTS}


def _finite(value: object) -> object:
    """JSON without the numbers that JSON does not know; records may be edited by hand."""
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_finite, value))
    if not isinstance(value, int | float):
        return value
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None


def figures(cell: Measured) -> Json:
    """The figures of a timed cell: seconds with their 95 % interval, and the state of the device beside them."""
    if not cell.seconds:
        return {"state": cell.state, "reason": cell.reason}
    low, high = cell.interval
    found = {
        "state": cell.state,
        "s": rounded(cell.median_s),
        "low": rounded(low),
        "high": rounded(high),
        "processes": len(cell.seconds),
        "detectable": rounded(cell.detectable, 3),
        "clock_mhz": rounded(_median(cell.measurements, "clock64_mhz"), 5),
        "temperature_c": rounded(_median(cell.measurements, "state", "temperature_c"), 3),
        "power_w": rounded(_median(cell.measurements, "state", "power_w"), 4),
        "launch_s": rounded(_median(cell.measurements, "launch_seconds"), 4),
        "limits": list(cell.throttled),
        "reason": cell.reason,
    }
    return {name: value for name, value in found.items() if value not in (None, [], "")}


def _median(measurements: Iterable[Measurement], *names: str) -> float | None:
    found = (_finite(number(each, *names)) for each in measurements)
    values = [value for value in found if isinstance(value, int | float)]
    return statistics.median(values) if values else None


COLUMNS = ("s", "low", "high", "clock_mhz", "temperature_c", "power_w", "launch_s")  # of a cell's history


def histories(snapshots: dict[int, Json]) -> dict[str, Json]:
    """By rung ("op/rung"), the history of each of its timed cells as columns: `at` holds the commits; a column that is
    None throughout is left out; `limits` and `failed` are by the index of the commit in `at`."""
    rows: dict[str, dict[str, list[tuple[int, Json]]]] = {}
    for at, found in sorted(snapshots.items()):
        for key, cell in found["cells"].items():
            if cell["state"] in ("ok", "failed"):
                rows.setdefault(key.split(" ")[0], {}).setdefault(key, []).append((at, cell))
    return {rung: {key: _columns(found) for key, found in by_key.items()} for rung, by_key in rows.items()}


def _columns(rows: Sequence[tuple[int, Json]]) -> Json:
    found: Json = {"at": [at for at, _ in rows]}
    for name in COLUMNS:
        values = [row.get(name) for _, row in rows]
        if any(value is not None for value in values):
            found[name] = values
    for name, kept in (("limits", "limits"), ("failed", "reason")):
        notes = {str(index): row[kept] for index, (_, row) in enumerate(rows) if row.get(kept)}
        if notes:
            found[name] = notes
    return found


def exact(machine: Machine) -> dict[str, Json]:
    """By op, the history of its exact figures: series -> rung -> place -> [commit, value] where the value changed. A
    value holds until the next one; None where a measured commit has none. `at`: the commits that have any."""
    found: dict[str, Json] = {}
    for at, values in sorted(machine.exact.items()):
        for figure in values:
            op = found.setdefault(figure.op, {"at": [], "series": {}})
            if op["at"][-1:] != [at]:
                op["at"].append(at)
            runs = op["series"].setdefault(figure.benchmark, {}).setdefault(figure.rung, {})
            run = runs.setdefault(figure.place, [])
            value = rounded(figure.value, 9)
            if not run or run[-1][1] != value:
                run.append([at, value])
    return found


def states(machine: Machine) -> list[Json]:
    """A machine's own history, commit by commit: canaries, clocks, temperature, power, and how many cells failed or met
    a limit."""
    return [_state(at, record) for at, record in sorted(machine.records.items())]


def _state(at: int, record: Record) -> Json:
    timed = [cell for cell in record.cells.values() if _parts(cell)]
    measurements = [each for cell in timed for each in cell.measurements]
    facts = next((facts for facts in record.facts.values() if facts.get("nvml_uuid_sha256")), Facts())
    found: Json = {
        "at": at,
        "measured_at": max((str(facts.get("measured_at", "")) for facts in record.facts.values()), default=""),
        "gpu_uuid_sha256": _finite(facts.get("nvml_uuid_sha256")),
        "driver": _finite(facts.get("nvml_driver")),
        "ceilings": _finite(facts.get("ceilings")),
        "clock_mhz": rounded(_median(measurements, "clock64_mhz"), 5),
        "temperature_c": rounded(_median(measurements, "state", "temperature_c"), 3),
        "power_w": rounded(_median(measurements, "state", "power_w"), 4),
        "canary_memory_s": rounded(_median(measurements, "canary_s", "memory")),
        "canary_compute_s": rounded(_median(measurements, "canary_s", "compute")),
        "cells": sum(bool(cell.seconds) for cell in timed),
        "failed": sorted(cell.key for cell in record.cells.values() if cell.state == "failed"),
        "limited": sorted(cell.key for cell in timed if cell.throttled),
    }
    return {name: value for name, value in found.items() if value is not None}


def turns(machine: Machine) -> dict[str, list[Any]]:
    """By group, the conditions that must be alike for two commits to be compared: [commit, conditions] where they
    changed."""
    found: dict[str, list[Any]] = {}
    for at, record in sorted(machine.records.items()):
        for group in record.facts:
            run = found.setdefault(group, [])
            known = _finite(conditions(record, group))
            if not run or run[-1][1] != known:
                run.append([at, known])
    return found


def trend(machine: Machine) -> dict[str, list[tuple[int, float]]]:
    """By "op device", how its time moved: the geometric mean over the cells that a commit and the commit before it have
    in common, chained; 1 at the newest commit."""
    previous: dict[str, dict[str, float]] = {}
    level: dict[str, float] = {}
    found: dict[str, list[tuple[int, float]]] = {}
    for at, record in sorted(machine.records.items()):
        now: dict[str, dict[str, float]] = {}
        for cell in record.cells.values():
            if (parts := _parts(cell)) and cell.seconds and cell.median_s > 0:
                now.setdefault(f"{parts['op']} {parts['device']}", {})[cell.key] = math.log(cell.median_s)
        for name, values in now.items():
            common = values.keys() & previous.get(name, {}).keys()
            if common:
                level[name] = level.get(name, 0.0) + statistics.fmean(values[k] - previous[name][k] for k in common)
            found.setdefault(name, []).append((at, level.get(name, 0.0)))
            previous[name] = values
    return {name: [(at, round(math.exp(log - run[-1][1]), 6)) for at, log in run] for name, run in found.items()}


# --- the files -----------------------------------------------------------------------------------------------------


def of_machine(machine: Machine) -> Files:
    """The files of one machine, in its folder."""
    snapshots = {at: snapshot(record) for at, record in machine.records.items()}
    by_rung, by_op = histories(snapshots), exact(machine)
    names = {rung: f"history/{index}" for index, rung in enumerate(by_rung)}
    tables = {op: f"exact/{index}" for index, op in enumerate(by_op)}
    yield (
        "machine",
        {
            "name": machine.name,
            "commits": sorted(machine.records),
            "history": names,
            "exact": tables,
            "states": states(machine),
            "turns": turns(machine),
            "noise": {key: rounded(value, 3) for key, value in machine.noise.items()},
        },
    )
    for at, found in snapshots.items():
        yield f"at/{at}", found
    for rung, name in names.items():
        yield name, {"rung": rung, "cells": by_rung[rung]}
    for op, name in tables.items():
        yield name, {"op": op, **by_op[op]}


def summary(machine: Machine, head: int) -> Json:
    """What the status page says of a machine."""
    newest = max(machine.records)
    record = machine.records[newest]
    facts = {name: value for facts in record.facts.values() for name, value in facts_of(facts).items()}
    return {
        "name": machine.name,
        "folder": machine.folder,
        "gpu": facts.get("gpu", ""),
        "cpu": facts.get("cpu", ""),
        "compute_capability": facts.get("compute_capability", ""),
        "newest": newest,
        "commits": len(machine.records),
        "behind": head - newest,
        "trend": trend(machine),
        **{name: value for name, value in _state(newest, record).items() if name != "at"},
    }
