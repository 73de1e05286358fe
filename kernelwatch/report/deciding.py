"""How many turns would decide a comparison that cannot tell: documents say so, and nobody has to ask again for luck."""

import math
import re
from collections.abc import Iterable

from kernelwatch.comparison.paired import FALSE_ALARMS, LOOKS, TRIMMED
from kernelwatch.system.student import quantile

OPEN = re.compile(r"its interval is neither within (\S+) % nor beyond (\S+) %")  # the only reason that turns remove
ALONE = FALSE_ALARMS / (len(LOOKS) + 1)  # the chance of error of each look at a comparison of two functions


def turns_to_decide(
    bounds: tuple[float | None, float | None], turns: int, why: str, level: float, among: Iterable[int] = LOOKS
) -> int | None:
    """The turns after which a comparison should be decided that cannot tell after `turns`, if its change stays where it
    is and its turns differ as they did. None if it is decided, if it cannot tell for another reason, or if no number
    `among` those that may be taken would do.

    `bounds`: the interval of the ratio; `why`: the reason, which names the largest change that is the same and the
    smallest that is not; `level`: the chance of error of the interval.
    """
    (low, high), found = bounds, OPEN.match(why)
    if not (found and low and high and math.isfinite(high)):
        return None
    middle, half = math.log(high * low) / 2, math.log(high / low) / 2
    within, floor = (math.log1p(float(text) / 100) for text in found.groups())
    needed, spread = max(within - abs(middle), abs(middle) - floor), half / _half_width(turns, level)
    return next((more for more in among if more > turns and spread * _half_width(more, level) < needed), None)


def _half_width(turns: int, level: float) -> float:
    """Of the interval of a trimmed mean of so many turns, in units of their winsorized standard deviation."""
    kept = turns - 2 * int(TRIMMED * turns)
    return math.sqrt((turns - 1) / (kept * (kept - 1))) * quantile(1 - level / 2, kept - 1)
