"""What is recorded of each machine, by the position of the commit."""

import itertools
import re
from collections.abc import Collection

from kernelwatch.history import roofs
from kernelwatch.history.records import noise_of
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.publish.data import Machine
from kernelwatch.publish.record import Json
from kernelwatch.publish.recorded import History, Recorded


def machines_of(history: History, at: dict[str, int], renamed: Renamed = NONE) -> list[Machine]:
    """The recorded machines, the one with the newest commit first. Results of another environment of asv on the same
    machine are a machine of their own."""
    found: dict[tuple[str, str], dict[int, Recorded]] = {}
    for recorded in history.recorded:
        if recorded.head.get("record") and recorded.commit in at:
            found.setdefault((recorded.machine, recorded.environment), {})[at[recorded.commit]] = recorded
    machines: list[Machine] = []
    for (name, environment), commits in sorted(found.items()):
        known = [machine.name for machine in machines]
        full = f"{name} ({environment})" if name in known else name
        folder = folder_of(full, [machine.folder for machine in machines])
        place = next(iter(commits.values())).path.parent
        machines.append(Machine(full, folder, commits, noise_of(place, renamed), roofs.by_gpu(place)))
    return sorted(machines, key=lambda machine: (-max(machine.commits), -len(machine.commits), machine.name))


def folder_of(name: str, taken: Collection[str]) -> str:
    """A folder's name for a machine, like no other one's: people may call a machine what no folder can be called."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".") or "_"
    numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
    return next(folder for folder in numbered if folder not in taken)


def measured_on(history: History, at: dict[str, int]) -> dict[str, set[int]]:
    """The positions of the measured commits of each machine, the one with the newest commit first."""
    found: dict[str, set[int]] = {}
    for recorded in history.recorded:
        if recorded.commit in at:
            found.setdefault(recorded.machine, set()).add(at[recorded.commit])
    return dict(sorted(found.items(), key=lambda item: (-max(item[1]), -len(item[1]), item[0])))


def plain_machine(name: str, positions: set[int], head: int) -> Json:
    """What the pages say of a machine of a project without a description."""
    newest = max(positions)
    unknown: Json = {"gpu": "", "cpu": "", "cells": 0, "failed": [], "limited": [], "trend": {}}
    return {"name": name, "newest": newest, "commits": len(positions), "behind": head - newest} | unknown
