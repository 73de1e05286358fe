"""The verdict on each link of a session.

A link has few turns, so its own spread is a poor guess of its noise. It is moderated: taken together with the median
spread of the session's links, as if that had been seen in PRIOR further turns. (Source: Smyth, Linear models and
empirical Bayes methods, 2004.) A change counts if its interval lies beyond FLOOR. If a control moved, no link of the
session is known better than that, so that levels and sums, too, hardly believe it. Noise and controls are those of the
same device: a CPU says nothing of a GPU.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwatch.detect.testing import FLOOR
from kernelwatch.history.links import Link, Session, Word
from kernelwatch.system.student import quantile

LEVEL = 0.001  # chance that the interval of a link misses the true ratio
WITHIN = 0.01  # a change that is certainly smaller is "no change", with the chance of error INTERVAL
INTERVAL = 0.05
PRIOR = 6  # turns that the noise of the session counts for
FEWEST = 5  # links from which the noise of a session is known
EXACT = 1e-6  # no ratio is known better


@dataclass(frozen=True)
class Judged:
    """The verdict on a link, and the reason if it does not follow from the interval. `error`, `freedom`: the moderated
    standard error of its logarithm, and the degrees of freedom of that."""

    word: Word
    log: float
    error: float
    freedom: int
    why: str = ""

    def half(self, level: float = INTERVAL) -> float:
        """The half-width of the interval that misses the true logarithm with a probability of `level`."""
        return quantile(1 - level / 2, self.freedom) * self.error

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of the relative change."""
        return relative(self.log, self.half())[1]


def relative(log: float, half: float, sign: float = 1.0) -> tuple[float, tuple[float, float]]:
    """A relative change and its interval, from a logarithm and the half-width of its interval. `sign`: of the values,
    as of a Link."""
    low, high = sorted((math.expm1(sign * (log - half)), math.expm1(sign * (log + half))))
    return math.expm1(sign * log), (low, high)


def judge(session: Session) -> dict[str, Judged]:
    """The verdicts on the links of a session, controls included, by cell."""
    found: dict[str, Judged] = {}
    for device in sorted({link.device for link in session.links}):
        own = [link for link in session.links if link.device == device]
        errors = [link.error for link in own]
        noise = statistics.median(errors) if len(errors) >= FEWEST else None
        moved = [link for link in own if link.control and _is_beyond(link.log, *moderated(link, noise))]
        found |= {link.cell: _judged(link, noise, moved) for link in own}
    return found


def moderated(link: Link, noise: float | None) -> tuple[float, int]:
    """The standard error of a link, and its degrees of freedom. `noise`: the session's; None if it is not known."""
    if noise is None:
        return max(link.error, EXACT), link.freedom
    freedom = link.freedom + PRIOR
    variance = (link.freedom * link.error**2 + PRIOR * noise**2) / freedom
    return max(math.sqrt(variance), EXACT), freedom


def word_of(log: float, error: float, freedom: int) -> Word:
    """The verdict that an estimate gives by itself."""
    if _is_beyond(log, error, freedom):
        return "worse" if log > 0 else "better"
    is_small = abs(log) + quantile(1 - INTERVAL / 2, freedom) * error < math.log1p(WITHIN)
    return "no change" if is_small else "cannot tell"


def _is_beyond(log: float, error: float, freedom: int) -> bool:
    return abs(log) - quantile(1 - LEVEL / 2, freedom) * error > math.log1p(FLOOR)


def _judged(link: Link, noise: float | None, moved: Sequence[Link]) -> Judged:
    error, freedom = moderated(link, noise)
    word = word_of(link.log, error, freedom)
    changed = word in ("worse", "better")
    if changed and link.identities[0] and link.identities[0] == link.identities[1]:
        why = "both sides launch the same, and yet their times differ"
        return Judged("cannot tell", link.log, math.hypot(error, link.log), freedom, why)
    if not moved or link.control:
        return Judged(word, link.log, error, freedom)
    worst = max(moved, key=lambda each: abs(each.log))
    error = math.hypot(error, worst.log)
    if changed and word_of(link.log, error, freedom) == word:
        return Judged(word, link.log, error, freedom)  # by so much more that this explains nothing
    why = f"{worst.cell}, alike on both sides, moved by {100 * math.expm1(worst.log):+.2f} %"
    return Judged("cannot tell", link.log, error, freedom, why)
