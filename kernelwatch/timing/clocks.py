"""Tells whether a kernel's own work held the SM clock below its highest, or something that makes its figure doubtful.

Work on tensor cores lowers the clock at once, by nearly the same amount on a GPU that is as hot: the clock is then a
property of the kernel, as its time is. It is the kernel's *own* clock if all processes agree. A *limited* clock differs
from process to process, or was lowered by heat, by the hardware's protection or beside another program; such a figure
is less certain.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwatch.timing.nvml import POWER_CAP, Others, disturbed
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import LOW_CLOCK

OWN = (LOW_CLOCK, POWER_CAP)  # what a kernel's own work may do; any other limit comes from outside
CLOCKS_AGREE = 0.02  # of the median clock: the clocks of all processes lie within it
SECONDS_AGREE = 0.003  # the coefficient of variation of the processes' seconds, whatever their clocks
ODD_CLOCK = 0.006  # of the clock of the others: a process this far from it ran a step of the clock lower or higher
AGREEING_LEAST = 3  # processes that a cell needs beside an odd one, which is left out then
DOUBT_LEAST = 0.01  # by how much a limited figure may be wrong, if its clocks do not say more

DIFFERS = "SM clock differs between processes"
BESIDE = "SM clock lowered beside another program"


@dataclass(frozen=True)
class Clock:
    """What held the SM clock of a cell. `own_mhz`: the median of the processes, if its own work held it below the
    highest, else None. `limits`: what makes the figure doubtful. `doubt`: by how much it may be wrong for that,
    relative to the figure; 0 without limits."""

    own_mhz: float | None = None
    limits: tuple[str, ...] = ()
    doubt: float = 0.0


def clock(measurements: Sequence[Measurement], others: Others | None = None) -> Clock:
    """The clock of a cell, from what its processes recorded. `others`: the other users of the GPU."""
    met = {str(limit) for each in measurements for limit in each.get("throttled", ())}
    if not met:
        return Clock()
    known = [float(mhz) for each in measurements if (mhz := each.get("clock64_mhz"))]
    middle = statistics.median(known) if known else None
    apart = (max(known) - min(known)) / middle if middle else 0.0
    outside = met.difference(OWN)
    if disturbed(others):
        outside.add(BESIDE)
    alike = len(known) == len(measurements) and (apart <= CLOCKS_AGREE or _agree(measurements))
    if alike and not outside:
        return Clock(own_mhz=middle)
    if not alike and apart > CLOCKS_AGREE:
        outside.add(DIFFERS)
    limits = tuple(sorted(outside | (met - {LOW_CLOCK}) or met))
    return Clock(limits=limits, doubt=max(DOUBT_LEAST, apart / 2))


def odd(measurements: Sequence[Measurement], least: int = 2) -> int | None:
    """The place of the process that ran at another clock than the others, which agree; None if there is none. `least`:
    the number of others, at least; what read no clock does not count."""
    known = {place: float(mhz) for place, each in enumerate(measurements) if (mhz := each.get("clock64_mhz"))}
    if len(known) <= least:
        return None
    for at in (min(known, key=known.__getitem__), max(known, key=known.__getitem__)):
        others = [mhz for place, mhz in known.items() if place != at]
        step = ODD_CLOCK * statistics.median(others)
        if abs(known[at] - statistics.median(others)) > step >= max(others) - min(others):
            return at
    return None


def agreeing(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements of a cell without the odd one, if there are enough others to tell. What two processes had is
    no odd clock: a cell that has two clocks keeps both."""
    at = odd(measurements, AGREEING_LEAST)
    return [each for place, each in enumerate(measurements) if place != at]


def settled(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements of a cell after its last process, which takes the place of the odd one; if it is the odd one
    itself, the one before it does."""
    at = odd(measurements, AGREEING_LEAST)
    if at is None:
        return [*measurements]
    *others, last = measurements
    if at == len(others):
        return [*others[:-1], _instead_of(others[-1], last)]
    return [*others[:at], _merged(others[at], last), *others[at + 1 :]]


def _merged(old: Measurement, one: Measurement) -> Measurement:
    """A measurement that replaces another one, with what that alone knows: only the first process looks at what a
    launch runs. A clock or takes that the new one lacks are not those of the old one."""
    known: Measurement = {**old, "clock64_mhz": None}
    known.pop("takes_s", None)
    return {**known, **_instead_of(one, old)}


def _instead_of(one: Measurement, old: Measurement) -> Measurement:
    """A measurement that tells what it replaced, and what that had replaced."""
    names = ("process", "seconds", "clock64_mhz", "throttled", "spent_s", "instead_of")
    return {**one, "instead_of": {name: told for name in names if (told := old.get(name)) is not None}}


def retaken(measurements: Sequence[Measurement], fresh: Measurement) -> list[Measurement]:
    """The measurements of a cell whose clock is limited, or odd in one process, after one more. That takes the place of
    the one that agrees least with the others, if all agree better then.

    What it replaced is kept in it, as `instead_of`. If it replaces nothing, the one that agrees least has one more
    retake.
    """
    places = range(len(measurements))
    at = max(places, key=lambda place: _apart(measurements, place))
    old = measurements[at]
    changed = list(measurements)
    changed[at] = _merged(old, fresh)
    if max(_apart(changed, place) for place in places) < _apart(measurements, at):
        return changed
    changed[at] = {**old, "retakes": old.get("retakes", 0) + 1}
    return changed


def _apart(measurements: Sequence[Measurement], at: int) -> tuple[int, float]:
    """How many limits from outside a measurement met, and how far its clock lies from those of the others in MHz. A
    clock that was not read is as far as can be."""
    known = [mhz for place, each in enumerate(measurements) if place != at and (mhz := each.get("clock64_mhz"))]
    own = measurements[at].get("clock64_mhz")
    outside = len({*measurements[at].get("throttled", ())}.difference(OWN))
    return outside, (abs(own - statistics.median(known)) if own else math.inf) if known else 0.0


def _agree(measurements: Sequence[Measurement]) -> bool:
    seconds = [each["seconds"] for each in measurements if "seconds" in each]
    if len(seconds) < 2:
        return False
    mean = math.fsum(seconds) / len(seconds)
    return statistics.stdev(seconds) <= SECONDS_AGREE * mean
