"""The outcomes of a group of cells, and the lines of a sidecar that record them. Only this module reads and writes
these lines."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from kernelwatch.identity import COUNTED, TIMED, known
from kernelwatch.system import student
from kernelwatch.timing import clocks
from kernelwatch.timing.record import CellState, Facts, Measurement

# Slow cells are steady and expensive, so fewer processes suffice: seconds per pass -> processes.
ENOUGH = {0.2: 2, 0.005: 3}
# A cell needs no further process if two such runs would show a change as small as the smallest that detection reports
# (FLOOR of detect/testing.py). Fewer processes than LEAST could agree by chance. The cost of a launch does not count:
# the host's part of it differs by a sixth from process to process, so that no number of them would do.
FINE = 0.005
LEAST = 3

# The facts that must be equal if two records of a group are compared, or if one takes the place of the other.
CONDITIONS = ("gpu", "nvml_uuid_sha256", "nvml_driver", "cpu", "cores", "compiler", "packages")
LOST = "the device was lost: "  # the beginning of a reason
LATER = ("machine", "gpus")  # such facts that older records lack; what one record does not know is no difference
IMPORT = "import "  # the beginning of such a condition for a distribution that only some commits may import


@dataclass
class Outcome:
    """The outcome of a cell: "waiting" at first, then "ok" with a measurement from each process, or "na" or "failed"
    with a reason."""

    state: CellState = "waiting"
    reason: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    roofline: dict[str, Any] = field(default_factory=dict)

    def wanted(self, process: int) -> bool:
        """Whether this process should measure the cell: it has not done so before, and more is to be known."""
        pass_s = max((measurement.get("seconds", 0.0) for measurement in self.measurements), default=0.0)
        enough = next((processes for slow_s, processes in ENOUGH.items() if pass_s > slow_s), math.inf)
        if self.state != "ok":
            return self.state == "waiting"
        if process in self._processes():
            return False
        return len(self.measurements) < enough and self.detectable() > FINE

    def _processes(self) -> set[int]:
        """The processes that have measured the cell, with those whose measurements were replaced."""
        found: set[int] = set()
        for one in self.measurements:
            told: Mapping[str, Any] | None = one
            while told:
                found.add(told["process"])
                told = told.get("instead_of")
        return found

    def detectable(self) -> float:
        """The minimum detectable change (system/student.py) of the time, without the odd one of the processes
        (timing/clocks.py). Infinite as long as few of them have measured the cell."""
        values = [one["seconds"] for one in clocks.agreeing(self.measurements) if "seconds" in one]
        if len(values) < LEAST or (mean := statistics.mean(values)) <= 0:
            return math.inf
        return student.detectable(statistics.stdev(values) / mean, len(values))

    def by_process(self, name: str) -> dict[int, float]:
        """Process -> one number of its measurement ("seconds", ...); processes without this number are left out."""
        values = {
            measurement["process"]: cast("float | None", measurement.get(name)) for measurement in self.measurements
        }
        return {process: value for process, value in values.items() if value is not None}


@dataclass
class Group:
    """The outcomes of the cells of an op on a device, by key, and the facts of the machine that measured them ({} if no
    process could start)."""

    name: str
    outcomes: dict[str, Outcome]
    facts: Facts

    def lines(self) -> Iterator[str]:
        """The group as lines of a sidecar: one line of facts, which also tells how many cells follow, then one line for
        each cell."""
        yield json.dumps({"group": self.name, "record": "run", "facts": self.facts, "cells": len(self.outcomes)})
        for key, outcome in self.outcomes.items():
            yield json.dumps(
                {
                    "group": self.name,
                    "record": "cell",
                    "key": key,
                    "state": outcome.state,
                    "reason": outcome.reason,
                    "visits": outcome.measurements,  # the name of the measurements in the file format
                    "roofline": outcome.roofline,
                }
            )


def group_of(line: str) -> str | None:
    """The name of the group to which a line belongs; None if the line is cut short or not a sidecar's."""
    try:
        return str(json.loads(line)["group"])
    except (ValueError, KeyError, TypeError):
        return None


def read(lines: Iterable[str]) -> list[Group]:
    """The groups in the lines of a sidecar. Skips lines that cannot be read, since the others are still valid."""
    groups: dict[str, Group] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            group = groups.setdefault(str(entry["group"]), Group(str(entry["group"]), {}, {}))
            if entry["record"] == "run":
                group.facts = cast(Facts, dict(entry["facts"]))
            else:
                group.outcomes[str(entry["key"])] = Outcome(
                    entry["state"], entry["reason"], list(entry["visits"]), dict(entry.get("roofline") or {})
                )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return list(groups.values())


def together(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a sidecar of several groups, each of whose lines of facts also tells the names of all."""
    lines = list(lines)
    names = sorted({str(entry["group"]) for line in lines if "group" in (entry := _entry(line))})
    for line in lines:
        entry = _entry(line)
        yield json.dumps({**entry, "groups": names}) if entry.get("record") == "run" else line


def missing(lines: Iterable[str]) -> list[str]:
    """What a sidecar has lost, such as by a cut at the end of a line: a sentence for each group. Older sidecars do not
    tell what they should have."""
    told: dict[str, int] = {}
    found: dict[str, int] = {}
    for entry in map(_entry, lines):
        name = str(entry.get("group"))
        if entry.get("record") == "run":
            cells, names = entry.get("cells"), entry.get("groups")
            told[name] = cells if isinstance(cells, int) else 0
            told |= {str(other): told.get(str(other), 1) for other in (names if isinstance(names, list) else ())}
        elif entry.get("record") == "cell":
            found[name] = found.get(name, 0) + 1
    there = {name: found.get(name, 0) for name in told}
    return [
        f"it has {there[name]} of {count} cells of {name}" if there[name] else f"it has no cell of {name}"
        for name, count in told.items()
        if there[name] < count
    ]


def _entry(line: str) -> dict[str, Any]:
    """What a line says, {} if it cannot be read."""
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
        return entry if isinstance(entry, dict) else {}
    return {}


def conditions(facts: Facts) -> dict[str, Any]:
    """The conditions in a group's facts: GPU or CPU, driver, versions of packages, harness and emulator."""
    machine = {name: facts.get(name) for name in CONDITIONS}
    machine |= {name: facts.get(name) for name in LATER if name in facts}
    imports = facts.get("imports", {}).items()
    machine |= {f"{IMPORT}{name}": version for name, version in imports if name not in facts.get("packages", {})}
    return machine | {identity.fact: known(facts, identity) for identity in (TIMED, COUNTED)}


def changed(before: Facts, after: Facts) -> str:
    """The conditions that differ between two processes of a run, with both values; "" if none does."""
    if not before:
        return ""
    old, new = conditions(before), conditions(after)
    return ", ".join(f"{name} {old.get(name)} -> {new.get(name)}" for name in differing(old, new))


def may_lack(name: str) -> bool:
    """Whether a record that does not know this condition is not different for that."""
    return name in LATER or name.startswith(IMPORT)


def alike(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two sets of conditions are the same, as far as both are known."""
    return not differing(before, after)


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of conditions that are not the same, as far as both are known."""
    both = before.keys() & after.keys()
    names = [name for name in {**before, **after} if not may_lack(name) or name in both]
    return [name for name in names if before.get(name) != after.get(name)]
