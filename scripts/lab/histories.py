"""Simulated histories: the noise that a series has, and the changes that are put into it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwatch.detect.noise import MEDIAN
from kernelwatch.detect.steps import Values
from kernelwatch.history.records import spread

LENGTH = 200
QUIET_CV = 0.002  # cells whose A/A runs vary by no more than this are quiet: the goals are for them


class Series(NamedTuple):
    """A history of one cell: a value for each commit; the canary's value, if there is one; and the relative standard
    error from each commit's processes, if it is known."""

    values: Values
    canary: Values | None = None
    spreads: Values | None = None

    def until(self, length: int) -> "Series":
        """The series after its first `length` commits."""
        canary = None if self.canary is None else self.canary[:length]
        spreads = None if self.spreads is None else self.spreads[:length]
        return Series(self.values[:length], canary, spreads)


class Runs(NamedTuple):
    """The A/A runs of a cell: the relative distance of each from their mean, and the relative standard error of each
    from its processes."""

    off: Values
    spreads: Values

    def drawn(self, rng: np.random.Generator) -> Series:
        """A history of this cell without any change: its runs, resampled."""
        at = rng.integers(len(self.off), size=LENGTH)
        return Series(1 + self.off[at], None, self.spreads[at])

    @property
    def variation(self) -> float:
        """Their coefficient of variation; `off` is already corrected for the estimated mean."""
        return float(np.std(self.off))


Truth = list[tuple[int, int]]  # the first and the last commit of each change


# --- noise ---------------------------------------------------------------------------------------------------------


def record(path: Path) -> dict[str, Runs]:
    """The runs of each cell in an A/A record. Distances are scaled by sqrt(n / (n - 1)), since the mean is estimated
    from the same n runs."""
    cells = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        runs = np.array(entry["medians_s"])
        off = (runs / runs.mean() - 1) * math.sqrt(len(runs) / (len(runs) - 1))
        processes = entry.get("processes_s", [[]] * len(runs))  # older records lack these
        cells[entry["key"]] = Runs(off, np.array([spread(run) for run in processes]))
    return cells


def recorded(results: Path) -> Path:
    """The newest A/A record. Raises: SystemExit if there is none."""
    paths = sorted(results.glob("*/noise.jsonl"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise SystemExit(
            f"scripts/lab/simulate: no A/A record under {results.name}/; scripts/lab/noise makes one, with a GPU"
        )
    return paths[-1]


def gaussian(share: float) -> Callable[[np.random.Generator], Series]:
    """Gaussian noise with this relative standard deviation."""
    return lambda rng: Series(1 + share * rng.standard_normal(LENGTH))


def measured(cells: dict[str, Runs]) -> Callable[[np.random.Generator], Series]:
    """The recorded noise of a cell drawn at random."""
    all_runs = list(cells.values())
    return lambda rng: all_runs[rng.integers(len(all_runs))].drawn(rng)


def bimodal(rng: np.random.Generator) -> Series:
    """One commit in five is 3 % slower."""
    return Series((1 + 0.003 * rng.standard_normal(LENGTH)) * np.where(rng.random(LENGTH) < 0.2, 1.03, 1.0))


def outliers(rng: np.random.Generator) -> Series:
    """One commit in twenty is slower, by 5 % on average."""
    off = np.where(rng.random(LENGTH) < 0.05, rng.exponential(0.05, LENGTH), 0.0)
    return Series(1 + 0.003 * rng.standard_normal(LENGTH) + off)


def sticky(rng: np.random.Generator) -> Series:
    """Two states of the machine, 1.5 % apart. The rare one begins every 100 commits and lasts for 8, on average."""
    state = np.zeros(LENGTH, bool)
    for at in range(1, LENGTH):
        state[at] = rng.random() < (7 / 8 if state[at - 1] else 1 / 100)
    return Series((1 + 0.003 * rng.standard_normal(LENGTH)) * np.where(state, 1.015, 1.0))


def drifting(seen: bool) -> Callable[[np.random.Generator], Series]:
    """The machine's speed drifts by 1 % within some 30 commits. `seen`: a canary with 0.1 % noise shows it; else there
    is no canary."""

    def make(rng: np.random.Generator) -> Series:
        wander = np.zeros(LENGTH)
        for at, push in enumerate(rng.standard_normal(LENGTH - 1), start=1):
            wander[at] = 0.97 * wander[at - 1] + 0.01 * math.sqrt(1 - 0.97**2) * push
        values = (1 + 0.002 * rng.standard_normal(LENGTH)) * np.exp(wander)
        return Series(values, np.exp(wander) * (1 + 0.001 * rng.standard_normal(LENGTH)) if seen else None)

    return make


def two_levels(cells: dict[str, Runs], apart: float) -> Callable[[np.random.Generator], Series]:
    """The recorded noise, and three commits in ten on a level that is so much slower."""

    def make(rng: np.random.Generator) -> Series:
        series = measured(cells)(rng)
        return series._replace(values=series.values * np.where(rng.random(LENGTH) < 0.3, 1 + apart, 1.0))

    return make


def noisy_past(cells: dict[str, Runs], share: float) -> Callable[[np.random.Generator], Series]:
    """Gaussian noise in the first half, then the recorded noise of a quiet cell. The six processes of each commit
    show it."""
    quiet = {key: runs for key, runs in cells.items() if runs.variation <= QUIET_CV}

    def make(rng: np.random.Generator) -> Series:
        series = measured(quiet)(rng)
        half = LENGTH // 2
        processes = 1 + share * math.sqrt(6) / MEDIAN * rng.standard_normal((half, 6))
        values, spreads = series.values.copy(), np.array(series.spreads)
        values[:half] = 1 + share * rng.standard_normal(half)
        spreads[:half] = [spread(commit) for commit in processes.tolist()]
        return Series(values, None, spreads)

    return make


def disturbed(cells: dict[str, Runs]) -> Callable[[np.random.Generator], Series]:
    """The recorded noise; with one commit in a hundred begins a disturbance of one to three commits."""

    def make(rng: np.random.Generator) -> Series:
        series = measured(cells)(rng)
        return series._replace(values=series.values * disturbances(rng))

    return make


def disturbances(rng: np.random.Generator) -> Values:
    """By what factor each commit is disturbed: 1, or 1.01 to 1.03 for one to three commits in a row."""
    factors = np.ones(LENGTH)
    for at in np.flatnonzero(rng.random(LENGTH) < 0.01):
        factors[at : at + rng.integers(1, 4)] = 1 + rng.uniform(0.01, 0.03)
    return factors


def sessions(cells: dict[str, Runs]) -> Callable[[np.random.Generator], Series]:
    """The recorded noise, and a shift with a standard deviation of 0.5 % that lasts for a session, ten commits on
    average."""

    def make(rng: np.random.Generator) -> Series:
        series = measured(cells)(rng)
        return series._replace(values=series.values * shifts(rng))

    return make


def shifts(rng: np.random.Generator) -> Values:
    """By what factor all cells are shifted at each commit; a new session begins with one commit in ten."""
    session = np.cumsum(rng.random(LENGTH) < 0.1)
    return np.asarray(np.exp(0.005 * rng.standard_normal(LENGTH + 1))[session])


def autoregressive(rng: np.random.Generator) -> Series:
    """AR(1) noise of 0.5 %: each value keeps 0.7 of how far the one before was off."""
    off = 0.005 * rng.standard_normal(LENGTH)
    for at in range(1, LENGTH):
        off[at] = 0.7 * off[at - 1] + math.sqrt(1 - 0.7**2) * off[at]
    return Series(1 + off)


def noises(cells: dict[str, Runs]) -> dict[str, Callable[[np.random.Generator], Series]]:
    """All kinds of noise by name, each a maker of histories without any change."""
    return {
        "as recorded": measured(cells),
        "gaussian 0.5 %": gaussian(0.005),
        "gaussian 1 %": gaussian(0.01),
        "gaussian 2 %": gaussian(0.02),
        "noisy past, 0.3 %": noisy_past(cells, 0.003),
        "noisy past, 0.5 %": noisy_past(cells, 0.005),
        "disturbed runs": disturbed(cells),
        "two levels, 2 % apart": two_levels(cells, 0.02),
        "two levels, 10 % apart": two_levels(cells, 0.1),
        "bimodal": bimodal,
        "5 % outliers": outliers,
        "sticky states": sticky,
        "AR(1)": autoregressive,
        "sessions": sessions(cells),
        "drift": drifting(seen=False),
        "drift, canary": drifting(seen=True),
    }


# --- changes -------------------------------------------------------------------------------------------------------


def single(size: float) -> Callable[[np.random.Generator], tuple[Values, Truth]]:
    """One step of this relative size, in the second half."""

    def make(rng: np.random.Generator) -> tuple[Values, Truth]:
        at = int(rng.integers(LENGTH // 2 + 10, LENGTH - 15))
        return np.where(np.arange(LENGTH) >= at, 1 + size, 1.0), [(at, at)]

    return make


def creep(rng: np.random.Generator) -> tuple[Values, Truth]:
    """A gradual change of 0.3 % per commit over ten commits."""
    at = int(rng.integers(50, 150))
    return np.exp(math.log(1.003) * np.clip(np.arange(LENGTH) - at + 1, 0, 10)), [(at, at + 9)]


def slow_growth(rng: np.random.Generator) -> tuple[Values, Truth]:
    """A gradual change of 0.1 % per commit over a hundred commits."""
    at = int(rng.integers(20, 80))
    return np.exp(math.log(1.001) * np.clip(np.arange(LENGTH) - at + 1, 0, 100)), [(at, at + 99)]


def staircase(*sizes: float) -> Callable[[np.random.Generator], tuple[Values, Truth]]:
    """Steps of these relative sizes, evenly spaced up to 5 commits."""

    def make(rng: np.random.Generator) -> tuple[Values, Truth]:
        gap = LENGTH // (len(sizes) + 1)
        places = [gap * (at + 1) + int(rng.integers(-5, 6)) for at in range(len(sizes))]
        level = np.ones(LENGTH)
        for at, size in zip(places, sizes, strict=True):
            level[at:] *= 1 + size
        return level, [(at, at) for at in places]

    return make


# A change's name is also part of its seed, and a key in docs/detection.json.
SINGLES = {f"{100 * size:g} %": single(size) for size in (0.005, 0.01, 0.02, 0.05, 0.1)}
OTHERS = {
    "creep": creep,
    "slow growth": slow_growth,
    "6 x 2 %": staircase(*[0.02] * 6),
    "6 x 5 %": staircase(*[0.05] * 6),
    "8 x 5 % up and down": staircase(*[0.05, -0.05] * 4),
}
TITLES = {"creep": "gradual change"}  # of changes whose recorded name the random draws depend on
NONE = "none"
