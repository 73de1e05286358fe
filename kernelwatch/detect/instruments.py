"""Judges how quiet the instrument was at each commit, by the detector that judges the kernels' figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwatch.detect import steps
from kernelwatch.detect.point import Point, Points

# The figures that are judged, all the worse the higher -> what is added, so that a share of 0 has a relative change.
JUDGED = {"spread": 0.0, "spread_90": 0.0, "two_levels": 0.02, "canary_spread": 0.0, "launch_s": 0.0}
ERROR = 0.2  # relative standard error of a record's figure: about that of a quantile of 100 spreads of six processes


@dataclass(frozen=True)
class Moved:
    """A change of the instrument. `figure`: one of JUDGED; `at`: the position of the first commit after it; `before`,
    `after`: the levels."""

    figure: str
    at: int
    before: float
    after: float

    @property
    def worse(self) -> bool:
        return self.after > self.before


def judge(records: Sequence[tuple[int, Mapping[str, float | None]]]) -> list[Moved]:
    """The changes of the judged figures, by commit. `records`: the positions of the commits on their branch, oldest
    first, and the figures of each; a figure that is missing or None is not known there.

    No conditions cut these series: the GPUs of a model are compared, and a new version of the harness is what may
    change them.
    """
    moved = []
    for figure, more in JUDGED.items():
        known = [(at, value + more) for at, figures in records if (value := figures.get(figure)) is not None]
        points = Points.of([Point(at, value, ERROR) for at, value in known])
        moved += [
            Moved(figure, known[step.at][0], step.before - more, step.after - more) for step in steps.find(points)
        ]
    return sorted(moved, key=lambda change: change.at)
