"""Links of full runs: two records of one GPU under the same conditions compare the launches of their commits.

Nothing took turns in them, so such a link is less sure than one of a session. Its error has both runs' own, and how far
the launches that are the same in both moved: what differed between the two hours, such as the heat of the GPU, is in
that.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelwatch.detect.judging import FEWEST
from kernelwatch.history.links import FULL_RUNS, Link, Session
from kernelwatch.publish.columns import Columns
from kernelwatch.publish.recorded import Recorded
from kernelwatch.run.outcome import alike

FREEDOM = 2  # of the error of two runs: at least two processes in each
NORMAL = 1.4826  # the standard deviation of a normal distribution over its median absolute deviation


class Timed(NamedTuple):
    """A cell of a record. `error`: the relative standard error of its seconds."""

    seconds: float
    error: float
    identity: str
    clock_mhz: float | None


class Run(NamedTuple):
    """What a full run measured of a group of cells on one GPU, by their keys."""

    commit: str
    conditions: Mapping[str, Any]
    cells: Mapping[str, Timed]


def sessions(recorded: Iterable[Recorded], positions: Mapping[str, int]) -> list[Session]:
    """What the records of a machine say along a line of commits: each group of cells is compared with its last record
    on the same GPU under the same conditions. `positions`: of the commits of the line."""
    found: list[Session] = []
    earlier: dict[tuple[str, str], list[Run]] = {}  # by environment and group
    along = sorted((each for each in recorded if each.commit in positions), key=lambda each: positions[each.commit])
    for record in along:
        columns = record.load()[1]
        for group, conditions in columns.conditions.items() if columns else ():
            if columns and conditions.get("nvml_uuid_sha256"):
                run = Run(record.commit, conditions, _timed(columns, group))
                before = earlier.setdefault((record.environment, group), [])
                found += [_session(each, run) for each in before[::-1] if alike(each.conditions, conditions)][:1]
                before.append(run)
    return [session for session in found if session.links]


def _timed(columns: Columns, group: str) -> dict[str, Timed]:
    """The cells of a group that at least two processes measured; one alone shows no noise."""
    layout, numbers = columns.layout, columns.numbers
    seconds, clocks = numbers["median_s"], numbers["clock_mhz"]
    errors = numbers.get("seconds", np.zeros(len(seconds)))
    return {
        layout.keys[at]: Timed(
            float(seconds[at]),
            float(errors[at]),
            columns.identities[at],
            None if math.isnan(clocks[at]) else float(clocks[at]),
        )
        for at in layout.timed
        if layout.groups[at] == group and at not in columns.odd and seconds[at] > 0 and errors[at] > 0
    }


def _session(before: Run, after: Run) -> Session:
    """The links of two runs. There are none if too few of their launches are the same to tell how far runs differ."""
    both = [(key, before.cells[key], now) for key, now in after.cells.items() if key in before.cells]
    logs = {key: math.log(now.seconds / was.seconds) for key, was, now in both}
    same = {key for key, was, now in both if was.identity and was.identity == now.identity}
    links: list[Link] = []
    if len(same) >= FEWEST:
        apart = NORMAL * statistics.median(abs(logs[key]) for key in same)
        links = [
            Link(
                key, logs[key], math.hypot(was.error, now.error, apart), FREEDOM, (), (was.seconds, now.seconds),
                (was.identity, now.identity), (was.clock_mhz, now.clock_mhz), key in same,
            )
            for key, was, now in both
        ]  # fmt: skip
    return Session(
        FULL_RUNS, before.commit, after.commit, "", 0.0, after.conditions, len(same), links=tuple(links)
    )  # nobody measured it at one time
