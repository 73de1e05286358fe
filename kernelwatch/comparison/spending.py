"""How a search for a faster launch spends its chance of error: not on looking, on confirming alone.

Whatever was seen while candidates were tried only chooses the one that is measured again. That measurement is fresh, so
choosing the luckiest of 500 cannot make it look faster. Its level is what the search has left: the levels of all its
confirmations, however many there are and whatever they depend on, add up to BUDGET at most. So at most a share BUDGET
of searches among unchanged candidates calls one faster, and the intervals of a search hold together in a share
1 - BUDGET of searches.

Source: Cox, "A note on data-splitting for the evaluation of significance levels", Biometrika 62, 1975; Tian and Ramdas,
"Online control of the familywise error rate", Statistical Methods in Medical Research 30, 2021 (alpha-spending).
"""

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

from kernelwatch.comparison.paired import FALSE_ALARMS, FLOOR, WITHIN, Judged, judge

BUDGET = FALSE_ALARMS  # chance that a whole search without a faster candidate calls one faster
FINALISTS = 3  # candidates that are measured again at one time, at most
# Fresh ones of a confirmation. At 16 the interval of a trimmed mean misses the truth as often as it says, to 4 % of
# that; at 10, where the two that are left out are a larger share, 1.2 to 1.4 times as often.
PROCESSES = 16


def level(number: int) -> float:
    """The chance of error of a search's confirmation, the first of which is number 1. All levels add up to BUDGET."""
    return BUDGET * 6 / (math.pi * number) ** 2


def spent(confirmations: int) -> float:
    """The chance of error of this many confirmations together."""
    return sum(map(level, range(1, confirmations + 1)))


def bounds(device: str, within: float | None) -> tuple[float, float]:
    """The smallest change that is faster or slower, and the largest that is the same. `within`: the latter; None for
    the usual one of the device."""
    within = WITHIN[device] if within is None else within
    return min(FLOOR[device], within), within


def confirmed(logs: Sequence[float], number: int, floor: float, within: float) -> Judged:
    """The verdict of a confirmation. `logs`: the log ratio of each of its processes. Their number was set beforehand,
    so that the ratio is not that of a lucky moment to stop."""
    return judge(logs, {}, floor=floor, within=within, level=level(number))


class Tried(Protocol):
    """A candidate as it was tried. `verdict`: "faster", "slower", "same", "cannot tell", or why it was not judged;
    `upper`: the upper end of the interval of its ratio."""

    @property
    def verdict(self) -> str: ...

    @property
    def ratio(self) -> float | None: ...

    @property
    def upper(self) -> float: ...


T = TypeVar("T", bound=Tried)


def finalists(tries: Sequence[T]) -> list[T]:
    """The candidates that may be faster, the surest first: one that is fast in a few noisy turns comes after one that
    is certainly somewhat faster."""
    hopeful = [each for each in tries if each.ratio is not None and each.ratio < 1]
    return sorted((each for each in hopeful if each.verdict in ("faster", "cannot tell")), key=lambda each: each.upper)
