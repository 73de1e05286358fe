"""The verdict on each link of a session.

A link has few turns, so its own spread is a poor guess of its noise. It is moderated: taken together with the median
spread of the session's links, as if that had been seen in PRIOR further turns. (Source: Smyth, Linear models and
empirical Bayes methods, 2004.) A change counts if its interval lies beyond FLOOR. If a control moved, no link of the
session is known better than that, so that levels and sums, too, hardly believe it. Noise and controls are those of the
same device: a CPU says nothing of a GPU. What has the same value in each turn, as a count or the memory of asv's
benchmarks, says nothing of the noise of times, nor do these of it.

In a long session a launch that is surely unchanged after EARLY turns takes no more of them (`unchanged`). Nothing else
stops early: what may become an event is judged after as many turns as ever. So this look finds no event by itself; the
noise of the session is estimated from fewer turns then.
Sums of links contain what stopped, so its intervals must hold, too: the session's noise is taken for the turns of each
link.
"""

import math
import statistics
from collections import Counter
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
EARLY = 2  # turns after which a long session stops measuring what is surely unchanged: others take 4 at least
WIDER = math.sqrt(4 / EARLY)  # the standard error after EARLY turns over that after 4
SEEN = WIDER * 0.6745 / 0.8881  # the same of medians of estimates: few degrees of freedom often guess too little


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
    return _judge(session.links)


def unchanged(links: Sequence[Link]) -> set[str]:
    """The cells of a session whose change is surely too small to count, controls left out: the verdict is "no change",
    and the 95 % interval lies within FLOOR. None of a device with fewer than FEWEST links."""
    judged, counts = _judge(links), Counter(link.device for link in links)
    return {
        link.cell
        for link in links
        if not link.control
        and counts[link.device] >= FEWEST
        and (own := judged[link.cell]).word == "no change"
        and abs(own.log) + own.half() < math.log1p(FLOOR)
    }


def _judge(links: Sequence[Link]) -> dict[str, Judged]:
    found: dict[str, Judged] = {}
    for device in sorted({link.device for link in links}):
        own = [link for link in links if link.device == device]
        errors = [link.error / SEEN if _is_early(link) else link.error for link in own if not _is_constant(link)]
        noise = statistics.median(errors) if len(errors) >= FEWEST else None
        noises = {link.cell: None if _is_constant(link) else noise for link in own}
        moved = [link for link in own if link.control and _is_beyond(link.log, *moderated(link, noises[link.cell]))]
        found |= {link.cell: _judged(link, noises[link.cell], moved) for link in own}
    return found


def moderated(link: Link, noise: float | None) -> tuple[float, int]:
    """The standard error of a link, and its degrees of freedom. `noise`: the session's, of a link that did not stop
    early; None if it is not known."""
    if noise is None:
        return max(link.error, EXACT), link.freedom
    noise *= WIDER if _is_early(link) else 1.0
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


def _is_constant(link: Link) -> bool:
    """Whether a link has the same value in each turn. EARLY turns of times agree by chance, to the digits kept."""
    return len(set(link.logs)) == 1 and not _is_early(link)


def _is_early(link: Link) -> bool:
    return len(link.logs) == EARLY


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
