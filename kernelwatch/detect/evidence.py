"""What the judged series say of the newest commit of each machine, and what they cannot say: a verdict needs it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelwatch.detect.alike import alike
from kernelwatch.detect.events import JudgedSeries
from kernelwatch.detect.levels import LEAST
from kernelwatch.detect.point import stretches
from kernelwatch.detect.results import Results

Place = tuple[str, str]  # the names of the machine and of the branch
ABSENT = "no figure at the newest commit"
ALONE = "one commit is measured"
TURNED = "one commit under the newest conditions"
BEFORE = 2  # commits that a branch must share with another: a step needs two points on each side
APART = "too few comparable commits before the branch began"
UNDIRECTED = "no better direction is declared, so no change is a regression"
BLIND = 1.0  # the minimum detectable change above which a series is not judged
NOISY = "so noisy that twice the value would not show"
SHORT = f"too few commits under the newest conditions: {LEAST} are enough"


@dataclass(frozen=True)
class Evidence:
    """How much of what was measured is judged at the newest commit of a machine's branch.

    `newest`: the hash of that commit. `series`: how many series have a figure at any commit.
    `judged`: how many of them have enough comparable commits to show a change.
    `unjudged`: the reasons for the others, with how many series each explains, the most frequent first.
    """

    machine: str
    branch: str
    newest: str
    series: int
    judged: int
    unjudged: tuple[tuple[str, int], ...]


def evidence(judged: Sequence[JudgedSeries], newest: Mapping[Place, tuple[int, str]]) -> list[Evidence]:
    """The evidence by machine and branch. `newest`: the newest commit that was measured there, by position and hash,
    whether or not a series has a figure of it."""
    together: dict[Place, list[JudgedSeries]] = {place: [] for place in newest}
    for series in judged:
        together[series.place.get("machine") or "", series.place.get("branch") or ""].append(series)
    found = []
    for (machine, branch), own in together.items():
        position, commit = newest[machine, branch]
        reasons = Counter(why_unjudged(series, position) for series in own)
        count = reasons.pop("", 0)
        found.append(Evidence(machine, branch, commit, len(own), count, tuple(reasons.most_common())))
    return found


def why_unjudged(series: JudgedSeries, newest: int) -> str:
    """Why a series says nothing about the commit at the position `newest`; "" if it is judged there."""
    results = Results.of(series.results)
    known = results[np.flatnonzero(np.isfinite(results.points.value))]
    begin = stretches(alike(known.points))[-1]  # of the newest conditions
    shared = sum(series.own is None or commit not in series.own for commit in known.commits[begin:])
    reasons = {
        ABSENT: not len(known) or int(known.points.commit[-1]) != newest,
        ALONE: len(known) == 1,
        TURNED: begin == len(known) - 1,
        UNDIRECTED: series.higher_is_better is None,
        SHORT: not series.exact and not math.isfinite(series.smallest),
        APART: series.own is not None and shared < (1 if series.exact else BEFORE),
        NOISY: series.smallest > BLIND,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")
