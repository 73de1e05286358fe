"""Read what was recorded: a machine's commits, and the cells of one of them."""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t

from benchmarks import _kept
from benchmarks._cells import label
from benchmarks._ops import COPY, OPS, Shape, entries, main_type, types
from benchmarks._suites import bytes_moved, flops


@dataclass(frozen=True)
class Measured:
    """One cell at one commit: the seconds of each process, or why there are none. `group`: "transpose gpu"; `visits`:
    all that each process noted."""

    key: str
    state: str
    reason: str
    seconds: tuple[float, ...]
    throttled: tuple[str, ...]
    group: str = ""
    visits: tuple[dict[str, Any], ...] = ()

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Standard deviation over mean, across processes; NaN with fewer than two."""
        return statistics.stdev(self.seconds) / statistics.mean(self.seconds) if len(self.seconds) > 1 else math.nan

    @property
    def smallest_change(self) -> float:
        """The smallest relative change that comparing this with another such run would have shown: seen 19 times out
        of 20 at a false-alarm rate of 1 in 100 (two-sided t-test of two samples of n processes each)."""
        n = len(self.seconds)
        if n < 2:
            return math.nan
        freedom = 2 * n - 2
        return float(t.ppf(0.995, freedom) + t.ppf(0.95, freedom)) * math.sqrt(2 / n) * self.spread


@dataclass(frozen=True)
class Change:
    """One cell in two runs: the ratio of the medians, and the smallest relative change that would have shown."""

    ratio: float
    would_show: float

    @classmethod
    def between(cls, before: Measured, after: Measured) -> "Change":
        return cls(after.median_s / before.median_s, max(before.smallest_change, after.smallest_change))

    @property
    def verdict(self) -> str:
        """Says "slower" or "faster" where the change is larger than what would have shown, else ""."""
        if not abs(self.ratio - 1) > self.would_show:
            return ""
        return "slower" if self.ratio > 1 else "faster"


@dataclass(frozen=True)
class Record:
    """A commit's sidecar: facts by group ("transpose gpu"), cells by key."""

    machine: str
    commit: str
    facts: dict[str, dict[str, Any]]
    cells: dict[str, Measured]


def read(path: Path) -> Record:
    """One sidecar. A line that cannot be read is left out: what is whole is still worth showing."""
    facts, cells = {}, {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if entry["record"] == "run":
                facts[str(entry["group"])] = dict(entry["facts"])
            else:
                cells[str(entry["key"])] = measured(str(entry["key"]), entry)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return Record(path.parent.name, path.name.split("-")[0], facts, cells)


def measured(key: str, outcome: dict[str, Any]) -> Measured:
    """A cell from an outcome in JSON; what is counted or compiled has no seconds, and no limits met."""
    visits = outcome["visits"]
    limits = {str(limit) for visit in visits for limit in visit.get("throttled", ())}
    return Measured(
        key,
        outcome["state"],
        outcome["reason"],
        tuple(float(visit["seconds"]) for visit in visits if "seconds" in visit),
        tuple(sorted(limits)),
        str(outcome.get("group", "")),
        tuple(visits),
    )


def sidecars(results: Path, machine: str | None = None) -> list[Path]:
    """The sidecars under a results folder, the newest last."""
    found = results.glob(f"{machine or '*'}/*.facts.jsonl")
    return sorted(found, key=lambda path: (_date(path), path.stat().st_mtime))


def before(path: Path, ancestors: list[str]) -> Path | None:
    """The sidecar, of the same environment, of the nearest of a commit's ancestors that has one."""
    environment = path.name.split("-", 1)[1]
    found = (path.with_name(f"{commit[:8]}-{environment}") for commit in ancestors)
    return next((other for other in found if other.is_file()), None)


def conditions(record: Record, group: str) -> dict[str, Any]:
    """What must be the same for two records of a group to be compared: the GPU or CPU, the stick, the driver, the
    versions."""
    return _kept.conditions(record.facts.get(group, {}))


def _date(path: Path) -> int:
    """The commit's date, which asv keeps in the result file beside the sidecar."""
    try:
        return int(json.loads(path.with_name(path.name.replace(".facts.jsonl", ".json")).read_text())["date"])
    except (OSError, ValueError, KeyError):
        return 0


@dataclass(frozen=True)
class Row:
    """A line of the ladder's table."""

    rung: str
    idea: str
    cell: Measured
    rate: float  # bytes/s; FLOP/s where operations count
    share: float  # of the vector copy's rate; of the vendor's where operations count


def held_against(op: str, device: str) -> str:
    """The rung or reference line that shares are taken of, "" where there is none."""
    return OPS[op].vendor.get(device, "") or (COPY if device == "gpu" and OPS[op].references else "")


def rate(op: str, rung: str, type: str, shape: Shape, seconds: float) -> float:
    """Operations a second where operations count, else compulsory bytes a second."""
    return (flops(op, rung, shape) or bytes_moved(op, rung, type, shape)) / seconds


def ladder(record: Record, op: str, device: str, shape: Shape, cache: str, type: str | None = None) -> list[Row]:
    """The rows of an op's ladder at one shape, each rung with its main type where none is given.

    Only what was measured (or failed) is there; share is NaN where there is nothing to hold it against.
    """
    ideas = {entry.name: entry.idea for entry in entries(op) if entry.device == device}
    if device == "gpu":
        ideas |= dict.fromkeys(OPS[op].references, "reference line")
    rows = []
    for rung, idea in ideas.items():
        own = type or main_type(op, rung)
        place = f"{own} {label(shape)} {cache}"
        cell = record.cells.get(f"{op}/{rung} {place}")
        if cell is None or not (cell.seconds or cell.state == "failed"):
            continue
        mine = rate(op, rung, own, shape, cell.median_s) if cell.seconds else math.nan
        against = held_against(op, device)
        base = record.cells.get(f"{op}/{against} {place}")
        other = rate(op, against, own, shape, base.median_s) if base and base.seconds else math.nan
        rows.append(Row(rung if own == (type or types(op)[0]) else f"{rung} ({own})", idea, cell, mine, mine / other))
    return rows


def reasons(cells: Iterable[Measured], state: str) -> dict[str, list[str]]:
    """Why cells have no figure, and which: reason -> keys."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.state == state:
            found.setdefault(cell.reason, []).append(cell.key)
    return found
