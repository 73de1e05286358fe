"""What a fleet measures of a commit: the suites that read one measurement form a unit, which is never divided."""

import importlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwatch.plan.project import Project, suites
from kernelwatch.suites.compiled import Compiled
from kernelwatch.suites.counted import Access

PLACES = {"gpu": "gpu", "cpu": "host"}  # of a device whose cells are linked
EXACT = (Compiled, Access)


@dataclass(frozen=True)
class Unit:
    """Benchmarks that read one measurement.

    `name`: such as "transpose gpu", the group's name in sidecars.
    `place`: what the figures depend on: "gpu", "host", or "" if they are exact.
    `versions`: the benchmarks' versions by name.
    """

    name: str
    place: str
    versions: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.name)

    def measured(self, result: Mapping[str, Any]) -> bool:
        """Whether a commit's result file has all of its series, none of them failed."""
        columns = result["result_columns"]
        for name, version in self.versions.items():
            row = dict(zip(columns, result["results"].get(name, ()), strict=False))
            values = row.get("result")
            if row.get("version") != version or values is None or None in values:
                return False
        return True


def units(project: Project, benchmarks: Mapping[str, Any], patterns: Iterable[str]) -> list[Unit]:
    """The units of a project in the order of their names. `benchmarks`: as in asv's benchmarks.json; `patterns`: a
    benchmark must match one of these regular expressions, if there are any."""
    wanted = [re.compile(pattern) for pattern in patterns]
    together: dict[str, dict[str, str]] = {}
    for name, entry in sorted(benchmarks.items()):
        if name == "version" or (wanted and not any(pattern.search(name) for pattern in wanted)):
            continue
        together.setdefault(entry.get("setup_cache_key") or name, {})[name] = str(entry["version"])
    return sorted((_unit(project, versions) for versions in together.values()), key=lambda unit: unit.name)


def unit_of(what: str, device: str) -> Unit:
    """What is linked of two commits on a device."""
    return Unit(f"{what} {device}", PLACES[device], {})


def _unit(project: Project, versions: dict[str, str]) -> Unit:
    package = suites(project.here.parent).__name__
    kinds = []
    for name in versions:
        module, kind, _ = name.rsplit(".", 2)
        kinds.append(getattr(importlib.import_module(f"{package}.{module}"), kind))
    first = min(versions)
    exact = next((kind for kind in kinds if issubclass(kind, EXACT)), None)
    if exact is not None:
        return Unit(f"{exact.op} {first.partition('.')[0]}", "", versions)
    timed = next((kind for kind in kinds if hasattr(kind, "device")), None)
    if timed is None:  # a suite of asv's own kind
        return Unit(first.rpartition(".")[0], "host", versions)
    place = "gpu" if project.devices[timed.device].holds == "GPU" else "host"
    return Unit(f"{timed.op} {timed.device}", place, versions)


def missing(
    folder: Path, commits: Iterable[str], wanted: Collection[Unit], *, again: bool = False
) -> Iterator[tuple[str, list[Unit]]]:
    """Each commit, and the units that no result file of it in a machine's folder has; with `again`, all of them.

    The folder is listed once and a file read once: a long history has tens of thousands.
    """
    files: dict[str, list[Path]] = {}
    for path in () if again else folder.glob("*-*.json"):
        files.setdefault(path.name.partition("-")[0], []).append(path)
    for commit in commits:
        results = [result for path in files.get(commit[:8], ()) if (result := read(path)) is not None]
        yield commit, [unit for unit in wanted if not any(map(unit.measured, results))]


def read(path: Path) -> dict[str, Any] | None:
    """A commit's result file; None if there is none, or if it is none of asv's."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return result if isinstance(result["results"], dict) and isinstance(result["result_columns"], list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
