"""Where a series changed, and what is to blame: its commit, the environment, or many small commits together."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A commit's value in a series. `commit`: its place on the branch, oldest 0, not every one measured; `value`: as
    recorded, seconds or a count; `spread`: its relative standard error, 0 for what is exact; `identity`: of the
    binary and its launch, "" where it is not known; `conditions`: of GPU, driver, packages and stick, "" where they
    are not known; `canary`: seconds of the control kernel beside it, None where there is none."""

    commit: int
    value: float
    spread: float = 0.0
    identity: str = ""
    conditions: str = ""
    canary: float | None = None


@dataclass(frozen=True)
class Step:
    """A change of level. `at`: the index of the first point after it; `kind`: "step", "creep" (many small ones, `since`
    the index of the first) or "environment" (nothing of the commit's: `why` says what changed); `before` and `after`:
    the levels, raw; `smallest`: the relative change that this series could show there."""

    at: int
    kind: str
    before: float
    after: float
    smallest: float
    why: str = ""
    since: int | None = None

    @property
    def change(self) -> float:
        """Relative; infinite from 0."""
        return self.after / self.before - 1 if self.before else float("inf")


def find(points: Sequence[Point], *, exact: bool = False) -> list[Step]:
    """The changes of a series, oldest first, up and down alike. `exact`: any difference is a step."""
    raise NotImplementedError


def smallest(points: Sequence[Point], *, exact: bool = False) -> float:
    """The smallest relative step that a series could show at its newest level; infinite where it is too short to show
    any."""
    raise NotImplementedError
