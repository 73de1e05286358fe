"""Projects that asv benchmarks and that have no description: what of them is judged, and the noise of their figures.

A description is `benchmarks/project.py` with a PROJECT (plan/project.py). Without one the engine knows neither ops nor
cells, and takes asv's own results and statistics.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from asv.config import Config
from asv.util import UserError

from kernelwatch.detect.robust import Values
from kernelwatch.plan.project import is_described

JUDGED = "value"  # a change beyond the noise of asv's value
TYPES = ("time", "memory", "peakmemory", "track")  # of the benchmarks that are judged
QUANTILE = 2.576  # of the normal distribution: asv's interval is one of 99 %
QUARTILES = 1.349  # standard deviations between the quartiles of the normal distribution
TYPICAL = 0.6745  # the median distance from the mean over the standard deviation
MEDIAN = 1.2533  # the standard error of a median over that of a mean


def is_described_here() -> bool:
    """Whether the project of which asv runs a command, in the folder of its configuration, has a description."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    name = parser.parse_known_args(sys.argv[1:])[0].config
    try:
        conf = Config.load(Path(name).name if name else None)
    except UserError:
        return True  # a program that has no configuration here uses the engine by itself
    return is_described(Path(conf.benchmark_dir).absolute())


def judged(benchmark: dict[str, Any]) -> str:
    """What is judged of an entry of benchmarks.json, "" if nothing is."""
    own = benchmark.get("judged", JUDGED if benchmark.get("type") in TYPES else "")
    return own if isinstance(own, str) else ""


def key(name: str, params: Sequence[str]) -> str:
    """A benchmark with its parameters, as asv names it."""
    return f"{name}({', '.join(params)})" if params else name


def spreads(entry: dict[str, Any], values: list[float]) -> list[float]:
    """The relative standard errors of a benchmark's values, from asv's statistics of their samples: from the 99 %
    interval or the quartiles, whichever is less, since the interval of a few samples is very wide; 0 where there are
    none. `entry`: its columns by name."""
    columns = (entry.get(f"stats_{name}") or [] for name in ("ci_99_a", "ci_99_b", "q_25", "q_75", "repeat"))
    low, high, first, third, repeat = (list(column) + [None] * (len(values) - len(column)) for column in columns)
    return [
        _spread(value, *known) for value, *known in zip(values, low, high, first, third, repeat, strict=False)
    ]  # fmt: skip


def widened(values: Values, spreads: Values) -> Values:
    """The spreads of a series' values, the oldest first. asv's samples come from one or two processes, whose spread is
    less than that of several runs: no spread is less than how far neighboring commits typically differ."""
    known = np.flatnonzero(np.isfinite(values) & (values > 0) & (spreads > 0))
    if len(known) < 2:
        return spreads
    differences = np.abs(np.diff(np.log(values[known])))
    typical = float(np.median(differences)) / TYPICAL / math.sqrt(2) / MEDIAN
    wider = spreads.copy()
    wider[known] = np.maximum(spreads[known], typical)
    return wider


def _spread(
    value: float, low: float | None, high: float | None, first: float | None, third: float | None, repeat: float | None
) -> float:
    errors = []
    if low is not None and high is not None:
        errors.append((high - low) / 2 / QUANTILE)
    if first is not None and third is not None and repeat:
        errors.append(MEDIAN * (third - first) / QUARTILES / math.sqrt(repeat))
    spreads = [error / abs(value) for error in errors if value]
    return min((spread for spread in spreads if 0 < spread < math.inf), default=0.0)
