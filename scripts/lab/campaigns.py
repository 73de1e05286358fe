#!/usr/bin/env python3
"""Simulates searches for a faster launch: how often 500 unchanged candidates get one crowned, and a 1 % gain found.

Candidates are tried and finalists confirmed by the rule of kernelwatch/comparison/spending.py. The noise is that of the
turns of recorded links, and worse. The seed and the record determine all. The table goes to docs/research/campaigns.md.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelwatch.comparison.paired import FALSE_ALARMS, LOOKS, Judged, judge
from kernelwatch.comparison.spending import FINALISTS, PROCESSES, bounds, confirmed, finalists
from kernelwatch.history import links
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
PAPER = ROOT / "docs" / "research" / "campaigns.md"
MACHINE = ROOT / "results" / "nvidia-h200.intel-xeon-processor.x86-64.linux"
TRIES, GAINED, AT = 500, 200, 137  # candidates without a gain; with one, and which of them has it
GAIN = 0.01
TURNS = LOOKS[1]  # of a try

Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Values]  # log ratios of so many candidates in so many turns
WORDS = {"worse": "slower", "better": "faster", "no change": "same"}


# --- noise ---------------------------------------------------------------------------------------------------------


def differences(folder: Path) -> Values:
    """What the turns of the recorded links differ by from the median of their link, scaled as if that were known."""
    sessions, _ = links.read(folder)
    known = [link.logs for session in sessions for link in session.links if len(link.logs) >= LOOKS[0]]
    rest = [math.sqrt(len(logs) / (len(logs) - 1)) * (np.array(logs) - statistics.fmean(logs)) for logs in known]
    return np.concatenate(rest)


def noises(recorded: Values) -> dict[str, Noise]:
    """By name."""
    quiet = float(np.median(abs(recorded))) / 0.6745  # the deviation of the normal distribution with this median
    return {
        f"quiet: normal, {100 * quiet:.2f} % a turn": lambda rng, n, turns: quiet * rng.standard_normal((n, turns)),
        "recorded: any turn of any link": lambda rng, n, turns: rng.choice(recorded, (n, turns)),
        "heavy tails: Student's t, 2 degrees": lambda rng, n, turns: quiet * rng.standard_t(2, (n, turns)),
        "delays: one turn in ten, up to 10 %": lambda rng, n, turns: (
            quiet * rng.standard_normal((n, turns))
            + rng.uniform(-0.1, 0.1, (n, turns)) * (rng.random((n, turns)) < 0.1)
        ),
        "processes: each try is off by 1 % for all its turns": lambda rng, n, turns: (
            quiet * rng.standard_normal((n, turns))
            + (0.01 * rng.standard_normal((n, 1)) if n > 1 else 0.01 * rng.standard_normal((1, turns)))
        ),
    }


# --- a campaign ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """A candidate as it was tried."""

    at: int
    verdict: str
    ratio: float
    upper: float


@dataclass(frozen=True)
class Outcome:
    """Of a campaign. `crowned`: the candidate, -1 if none; `size`: what its confirmation says; `luckiest`: the smallest
    ratio of all tries; `faster`: how many tries said faster."""

    crowned: int
    size: float
    luckiest: float
    faster: int


def tried(at: int, logs: Sequence[float], floor: float, within: float) -> Tried:
    """The verdict on a try by the rule of `kernelwatch.compare`, after all its turns."""
    judged = judge(logs, {}, floor=floor, within=within, level=FALSE_ALARMS / (len(LOOKS) + 1))
    return Tried(at, word(judged), 1 + judged.change, 1 + judged.bounds[1])


def word(judged: Judged) -> str:
    return WORDS.get(judged.word, judged.word)


def campaign(
    rng: np.random.Generator, noise: Noise, tries: int, gains: Mapping[int, float], floor: float, within: float
) -> Outcome:
    """A campaign. `gains`: by candidate, how much faster it truly is."""
    true = np.zeros((tries, 1))
    for at, gain in gains.items():
        true[at] = math.log1p(-gain)
    seen = [tried(at, logs, floor, within) for at, logs in enumerate((true + noise(rng, tries, TURNS)).tolist())]
    crowned, size = -1, math.nan
    for number, one in enumerate(finalists(seen)[:FINALISTS], start=1):
        fresh = true[one.at, 0] + noise(rng, 1, PROCESSES)[0]
        judged = confirmed(fresh.tolist(), number, floor, within)
        if word(judged) == "faster":
            crowned, size = one.at, judged.change
            break
    return Outcome(crowned, size, min(one.ratio for one in seen), sum(one.verdict == "faster" for one in seen))


@dataclass
class Tally:
    """Of many campaigns: those without a gain, and those with one."""

    null: list[Outcome] = field(default_factory=list)
    gain: list[Outcome] = field(default_factory=list)


def campaigns(job: tuple[str, int, int, float | None]) -> Tally:
    """As many campaigns without a gain and as many with one. `job`: the noise, the number, the seed, and the floor,
    None for the usual one of a GPU."""
    name, count, seed, floor = job
    noise = noises(differences(MACHINE))[name]
    usual, within = bounds("gpu", None)
    floor = usual if floor is None else floor
    if floor == 0:
        within = 1e-9  # no candidate is the same
    rng = np.random.default_rng([seed, list(noises(differences(MACHINE))).index(name), int(floor == 0)])
    told = Tally()
    for _ in range(count):
        told.null.append(campaign(rng, noise, TRIES, {}, floor, within))
        told.gain.append(campaign(rng, noise, GAINED, {AT - 1: GAIN}, floor, within))
    return told


def rows(told: Mapping[str, Tally]) -> str:
    """The table."""
    lines = []
    for name, own in told.items():
        nulls, count = own.null, len(own.null)
        found = [one for one in own.gain if one.crowned == AT - 1]
        sizes = [100 * one.size for one in found]
        lines.append(
            [
                name,
                f"{100 * sum(one.faster > 0 for one in nulls) / count:.0f}",
                f"{100 * (statistics.median(one.luckiest for one in nulls) - 1):.1f}",
                f"{100 * sum(one.crowned >= 0 for one in nulls) / count:.2f}",
                f"{100 * len(found) / len(own.gain):.0f}",
                f"{statistics.fmean(sizes):.2f}" if sizes else "",
                f"{100 * sum(one.crowned not in (-1, AT - 1) for one in own.gain) / len(own.gain):.2f}",
            ]
        )
    head = [
        "noise",
        "a try says faster, %",
        "the luckiest try, %",
        "crowned, % of campaigns",
        "1 % gain found, %",
        "its size, %",
        "another one crowned, %",
    ]
    return table(head, lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation and write its table; the exit code."""
    parser = Parser("scripts/lab/campaigns", __doc__)
    parser.add_argument("--seed", type=int, default=35, help="seed of all random numbers (default: 35)")
    parser.add_argument("--campaigns", type=int, default=4000, help="for each noise (default: 4000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: each core)")
    parser.add_argument("--print", action="store_true", help="print the table, write no file")
    options = parser.parse_args(arguments)
    kinds = [(name, None) for name in noises(differences(MACHINE))]
    floorless = [(name, 0.0) for name, _ in kinds[:2]]
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [(name, options.campaigns, options.seed, floor) for name, floor in [*kinds, *floorless]]
        told = {
            f"{name}{'' if floor is None else '; any gain counts'}": own
            for (name, _, _, floor), own in zip(jobs, pool.map(campaigns, jobs), strict=True)
        }
    text = rows(told)
    print(text)
    if not options.print:
        write_block(PAPER, "campaigns", text, "scripts/lab/campaigns")
    return 0
