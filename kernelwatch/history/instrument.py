"""How quiet the instrument was at a commit: figures of the measuring itself, from what the processes recorded.

They are series of the history like any other, over all GPUs of a model. If the harness became noisier, that is a
regression of the harness, whatever the kernels do.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwatch.history.records import Measured, Record
from kernelwatch.run.outcome import LEAST

SHORT_S = 60e-6  # below this, a fixed time a kernel that differs between processes is a visible share of the figure
# The first processes of each cell, which every cell has: later ones measure only cells on which these do not agree.
PROCESSES = LEAST
CELLS_LEAST = 20  # with fewer a record says nothing
LEVELS_APART_S = 0.25e-6  # a kernel: between the lower half of a cell's processes and a process on another level
LEVELS_MOST_S = 0.5e-6  # what is farther away is no level of the launch


@dataclass(frozen=True)
class Instrument:
    """Figures of the measuring at one commit, over the cold GPU cells with a kernel time below SHORT_S, and over the
    first PROCESSES processes of each.

    `spread`, `spread_90`: of the coefficients of variation between processes, the median and the 90 % quantile.
    `two_levels`: the share of cells with a process on another level. `canary_spread`: the coefficient of variation of
    the memory's canary, which runs with each measurement of a GPU cell, whatever the cell; None without canaries.
    That of the arithmetic is no such figure: it has the clock that the cell before left behind.
    """

    spread: float
    spread_90: float
    two_levels: float
    canary_spread: float | None


def instrument(record: Record) -> Instrument | None:
    """The figures of a record; None if it has too few short cells."""
    timed = [cell for cell in record.cells.values() if cell.group.endswith(" gpu") and cell.seconds]
    short = [cell for cell in timed if cell.key.endswith(" cold") and _counts(cell)]
    if len(short) < CELLS_LEAST:
        return None
    spreads = sorted(statistics.stdev(first) / statistics.mean(first) for first in map(_first, short))
    return Instrument(
        statistics.median(spreads),
        spreads[math.ceil(0.9 * len(spreads)) - 1],
        sum(map(two_levels, short)) / len(short),
        _variation([value for cell in timed for value in cell.readings["canary_memory_s"]]),
    )


def _variation(values: Sequence[float]) -> float | None:
    """The coefficient of variation, None of fewer than two values."""
    return statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else None


def _counts(cell: Measured) -> bool:
    return len(cell.seconds) >= PROCESSES and min(cell.seconds) < SHORT_S


def _first(cell: Measured) -> Sequence[float]:
    return cell.seconds[:PROCESSES]


def two_levels(cell: Measured) -> bool:
    """Whether a process is on another level: slower by a fixed time for each kernel of a launch than the lower half."""
    kernels = max(1, *(len(each.get("kernels") or ()) for each in cell.measurements))
    seconds = sorted(_first(cell))
    low = seconds[: len(seconds) // 2]
    level = sum(low) / len(low)
    return any(LEVELS_APART_S < (each - level) / kernels < LEVELS_MOST_S for each in seconds)
