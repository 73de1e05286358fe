"""Read the sidecars of a machine's commits."""

import hashlib
import json
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.run import outcome as outcomes
from kernelwatch.run.outcome import Outcome
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import read_regular
from kernelwatch.system.student import detectable, quantile
from kernelwatch.timing import clocks
from kernelwatch.timing.record import CellState, Facts, Measurement, number

READ = {
    "clock_mhz": ("clock64_mhz", ""),
    "temperature_c": ("state", "temperature_c"),
    "power_w": ("state", "power_w"),
    "launch_s": ("launch_seconds", ""),
    "canary_memory_s": ("canary_s", "memory"),
    "canary_compute_s": ("canary_s", "compute"),
}  # where a measurement has what its process read beside the seconds


@dataclass(frozen=True)
class Measured:
    """One cell at one commit: the seconds of each process, or the reason why there are none.

    `limits`: of clock, power or heat, which make the figure doubtful; `doubt`: by how much it may be wrong for that,
    relative to the figure; `own_clock_mhz`: the SM clock, if the kernel's own work held it below the highest;
    `group`: such as "transpose gpu"; `measurements`: the full records, one per process.
    """

    key: str
    state: CellState
    reason: str
    seconds: tuple[float, ...]
    limits: tuple[str, ...]
    group: str = ""
    measurements: tuple[Measurement, ...] = ()
    own_clock_mhz: float | None = None
    doubt: float = 0.0

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def by_events(self) -> bool:
        """Whether it was timed by events around launches of the host, since it cannot be captured in a CUDA graph."""
        return any(each.get("timed_by") == "events" for each in self.measurements)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most device memory that a launch allocates at once; in older records the sum of what it asks for."""
        own = (each.get("peak_allocated_bytes", each.get("allocated_bytes", 0)) for each in self.measurements)
        return max(own, default=0)

    @property
    def configurations(self) -> tuple[str, ...]:
        """What autotuners chose, each choice once; several if the processes chose differently."""
        return tuple(sorted({choice for each in self.measurements for choice in each.get("configurations", ())}))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its figures should know of its launches, in words."""
        events = ("timed by events, with the host's part: it cannot be captured in a CUDA graph",)
        allocates = (f"allocates {self.peak_allocated_bytes} bytes in each launch",)
        return (
            *(events if self.by_events else ()),
            *(allocates if self.peak_allocated_bytes else ()),
            *(f"autotuned, {choice}" for choice in self.configurations),
        )

    @property
    def identity(self) -> str:
        """Of the binary and launch that were measured; "" if it is not known."""
        return " ".join(sorted({str(each["identity"]) for each in self.measurements if each.get("identity")}))

    def error(self, name: str) -> float:
        """The relative standard error of a figure ("seconds"), from the processes that measured it."""
        values = (number(each, name) for each in self.measurements)
        return spread([value for value in values if isinstance(value, float) and math.isfinite(value)], self.doubt)

    @cached_property
    def readings(self) -> dict[str, list[float]]:
        """By name in READ, the finite numbers in the measurements, which may be edited by hand."""
        found: dict[str, list[float]] = {name: [] for name in READ}
        for measurement in self.measurements:
            for name, (outer, inner) in READ.items():
                value = measurement.get(outer)
                if inner:
                    value = value.get(inner) if isinstance(value, dict) else None
                if is_finite(value):
                    found[name].append(cast(float, value))
        return found

    @property
    def spread(self) -> float:
        """Standard deviation over mean across processes; NaN with fewer than two."""
        return self._deviation / (math.fsum(self.seconds) / len(self.seconds)) if len(self.seconds) > 1 else math.nan

    @cached_property
    def _deviation(self) -> float:
        """As statistics.stdev, whose exact fractions take 50 times as long."""
        mean = math.fsum(self.seconds) / len(self.seconds)
        return math.sqrt(math.fsum((each - mean) ** 2 for each in self.seconds) / (len(self.seconds) - 1))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the seconds around their median, from the spread between processes; both NaN with fewer
        than two."""
        n = len(self.seconds)
        if n < 2:
            return math.nan, math.nan
        half = quantile(0.975, n - 1) * self._deviation / math.sqrt(n)
        return self.median_s - half, self.median_s + half

    @property
    def detectable(self) -> float:
        """The minimum detectable change, in a comparison with another such run; NaN with fewer than two processes."""
        n = len(self.seconds)
        return detectable(self.spread, n) if n > 1 else math.nan


@dataclass(frozen=True)
class CellChange:
    """One cell in two runs: the ratio of the medians, and the minimum detectable change."""

    ratio: float
    detectable: float

    @classmethod
    def between(cls, before: Measured, after: Measured) -> "CellChange":
        return cls(after.median_s / before.median_s, max(before.detectable, after.detectable))

    @property
    def verdict(self) -> str:
        """Is "slower" or "faster" if the change exceeds the minimum detectable change, else ""."""
        if not abs(self.ratio - 1) > self.detectable:
            return ""
        return "slower" if self.ratio > 1 else "faster"


@dataclass(frozen=True)
class Record:
    """A commit's sidecar: facts by group (such as "transpose gpu"), cells by key."""

    machine: str
    commit: str
    facts: dict[str, Facts]
    cells: dict[str, Measured]

    @cached_property
    def binaries(self) -> dict[str, str]:
        """What a rung is compiled to on all architectures, by "op/rung type". A rung of which a target does not
        compile has none."""
        parts: dict[str, list[str]] = {}
        failed = set()
        for key, cell in sorted(self.cells.items()):
            if cell.group.endswith(" static"):
                for figures in cell.measurements:
                    launch = (figures.get(name) for name in ("cubin_sha256", "block_threads", "dynamic_shared_bytes"))
                    parts.setdefault(rung_and_type(key), []).append(" ".join(map(str, (key, *launch))))
                if cell.state == "failed":
                    failed.add(rung_and_type(key))
        known = {place: binaries for place, binaries in parts.items() if place not in failed}
        return {
            place: hashlib.sha256("\n".join(binaries).encode(errors="surrogatepass")).hexdigest()[:16]
            for place, binaries in known.items()
        }


def spread(figures: Sequence[float], doubt: float = 0.0) -> float:
    """The relative standard error of a cell's figure, from the processes that measured it. It is 0 for fewer than two,
    which show no noise: the noise of the series is then taken from the differences between commits.

    `doubt`: by how much a limit of the clock may have moved all of them together (timing/clocks.py).
    """
    count = len(figures)
    mean = math.fsum(figures) / count if count >= 2 else 0.0
    if not mean:
        return 0.0
    error = math.sqrt(math.fsum((each - mean) ** 2 for each in figures) / (count - 1) / count) / abs(mean)
    return math.hypot(error, doubt)


def is_finite(value: object) -> bool:
    """Whether a value is a number that JSON knows."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def finite(value: Any) -> Any:
    """JSON without the numbers that JSON does not know, which are null, and without tuples."""
    if isinstance(value, dict):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(finite, value))
    return value if is_finite(value) or not isinstance(value, int | float) else None


def rung_and_type(key: str) -> str:
    """The beginning of a cell's key, "op/rung type"."""
    return " ".join(key.split(" ")[:2])


def read(path: Path, renamed: Renamed = NONE) -> Record:
    """Read one sidecar; unreadable lines are left out. Cells have the names that their rungs have today."""
    facts, cells = {}, {}
    for group in outcomes.read(read_regular(path).decode("utf-8", "replace").splitlines()):
        if group.facts:
            facts[group.name] = group.facts
        for key, outcome in renamed.by_now(group.outcomes).items():
            try:
                cells[key] = measured(key, outcome, group.name, group.facts)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                continue  # the file may come from another version, or may be edited
    return Record(path.parent.name, path.name.split("-")[0], facts, cells)


def measured(key: str, outcome: Outcome, group: str = "", facts: Facts | None = None) -> Measured:
    """A cell's outcome as a record. A counted or compiled cell has no seconds and met no limits. `facts`: of its group.

    Raises: ValueError if a time is not a positive number, or the state or reason is none; the exceptions of other
    malformed measurements.
    """
    if outcome.state not in get_args(CellState) or not isinstance(outcome.reason, str):
        raise ValueError(f"{key}: no cell is in the state {outcome.state!r} for the reason {outcome.reason!r}")
    seconds = tuple(float(each["seconds"]) for each in outcome.measurements if "seconds" in each)
    if not all(0 < value < math.inf for value in seconds):
        raise ValueError(f"{key}: seconds should be positive numbers, not {seconds}")
    clock = clocks.clock(outcome.measurements, (facts or {}).get("others"))
    return Measured(
        key,
        outcome.state,
        outcome.reason,
        seconds,
        clock.limits,
        group,
        tuple(outcome.measurements),
        clock.own_mhz,
        clock.doubt,
    )


def damaged(path: Path) -> str:
    """How much of a sidecar cannot be read, or is missing; "" if all of it is there."""
    lines = read_regular(path).decode("utf-8", "replace").splitlines()
    count = sum(not outcomes.read([line]) for line in lines)
    told = [f"{count} of {len(lines)} lines cannot be read"] if count else []
    return ", ".join([*told, *outcomes.missing(lines)])


def sidecars(results: Path, machine: str | None = None) -> list[Path]:
    """The sidecars under a results folder, the newest last. `machine`: part of the name of the machine's folder."""
    part = (machine or "").lower()
    paths = [path for path in results.glob("*/*.facts.jsonl") if part in path.parent.name.lower() and path.is_file()]
    return sorted(paths, key=lambda path: (_date(path), path.stat().st_mtime))


def lost(results: Path, machine: str | None = None) -> dict[Path, set[str]]:
    """The sidecars that are missing beside result files, with the series of each. asv's own benchmarks have no sidecar.
    `machine`: as in `sidecars`."""
    part = (machine or "").lower()
    found = {}
    for path in results.glob("*/*-*.json"):
        sidecar = path.with_suffix(".facts.jsonl")
        if part not in path.parent.name.lower() or sidecar.exists():
            continue
        try:
            found[sidecar] = {*json.loads(read_regular(path))["results"]}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # asv could not read it either
    return found


def is_newer(path: Path, other: Path) -> bool:
    """Whether the commit of a sidecar, which may be missing, is newer than that of another one; of two commits of one
    second, whether its results are."""
    results = (each.with_name(each.name.replace(".facts.jsonl", ".json")) for each in (path, other))
    times = [result.stat().st_mtime if result.is_file() else 0.0 for result in results]
    return (_date(path), times[0]) > (_date(other), times[1])


def merged(old: str, new: str) -> str:
    """The text of a sidecar with the groups of two; those of the new one replace the old."""
    groups = {outcomes.group_of(line) for line in new.splitlines()}
    kept = [line for line in old.splitlines() if outcomes.group_of(line) not in groups]
    return "".join(f"{line}\n" for line in outcomes.together([*kept, *new.splitlines()]))


def newest(paths: list[Path], groups: Collection[str] = (), renamed: Renamed = NONE) -> tuple[Record, list[str]]:
    """The record of the last sidecar that holds any cell, and a sentence for each damaged file that was met on the way.

    `groups`: names such as "matmul gpu"; records that have none of them are passed over.

    Raises: UserError if no sidecar holds a cell.
    """
    messages: list[str] = []
    for path in reversed(paths):
        record = read(path, renamed)
        if groups and record.cells and not set(groups) & set(record.facts):
            continue
        why = damaged(path) or ("" if record.cells else "it holds no cell")
        if not why:
            return record, messages
        messages.append(f"{path} is damaged: {why}; measure this commit again (bench --again)")
        if record.cells:
            return record, messages
    raise UserError("\n".join([*messages, "no other file fits"]))


def noise_of(folder: Path, renamed: Renamed = NONE) -> dict[str, float]:
    """The coefficient of variation of each cell in the A/A record of a machine's folder, {} without one. Unreadable
    lines are left out."""
    path, found = folder / "noise.jsonl", {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
            found[str(entry["key"])] = float(entry["cv"])
        except (ValueError, KeyError, TypeError):
            continue
    return renamed.by_now(found)


def before(path: Path, ancestors: list[str]) -> Path | None:
    """The sidecar of the nearest ancestor that has one for the same environment. `ancestors`: the nearest first."""
    environment = path.name.split("-", 1)[1]
    candidates = (path.with_name(f"{commit[:8]}-{environment}") for commit in ancestors)
    return next((other for other in candidates if other.is_file()), None)


def conditions(record: Record, group: str) -> dict[str, object]:
    """What must be the same for two records of a group to be compared: the GPU or CPU, the driver, the versions of
    packages and of the harness."""
    return outcomes.conditions(record.facts.get(group, {}))


def _date(path: Path) -> int:
    """The commit's date, which asv keeps in the result file beside the sidecar."""
    try:
        return int(json.loads(read_regular(path.with_name(path.name.replace(".facts.jsonl", ".json"))))["date"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
